"""The report of a run: one page, opening without a network, with a page for each executed notebook.

It reads receipts, failures and the summaries the notebooks wrote, and invents nothing: a claim, a table or a figure
is in the report because a notebook put it there. Layout and wording stand in report.html.j2; `pages` turns notebooks
into pages, and `comparison` sets two runs side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template

from dynatree_lib.plots.theme import dark_css

from ..files import write_atomically
from .pages import asset, export_page, figure_html, figure_scripts, make_exporter
from .plan import Cost
from .receipts import NOTE, RUN, RUN_FILE, SUMMARY, Files, damage, library_sha256, read_or_empty, read_or_problem


def build_report(out: Path) -> Path:
    """Write report.html, which needs no other file for what it shows, and a page for each notebook.

    Raises:
        FileNotFoundError: where nothing has been run.
    """
    run, torn = read_run(out)
    exporter = make_exporter(out)
    entries = [read_entry(Files(out, name), exporter) for name in notebook_names(out, run)]
    columns = {"Profile": "profile", "Machine": "machine", "Commit": "commit"}
    page = template("report.html.j2").render(
        entries=entries,
        run=read_subject(run, [entry["facts"] for entry in entries]),
        differing={
            word: name for word, name in columns.items() if len({*(entry[name] for entry in entries)} - {""}) > 1
        },
        torn=torn,
        older=[entry["name"] for entry in entries if entry["library"] not in (None, library_sha256())],
        judged=[claim for entry in entries for claim in entry["claims"] if claim.get("holds") is not None],
        style=page_style(),
        scripts=figure_scripts(inline=True),
    )
    report = out / "report.html"
    write_atomically(report, page)
    return report


def notebook_names(out: Path, run: dict[str, Any]) -> list[str]:
    """Return the notebooks of a run, those that have not begun included; FileNotFoundError where none has ended."""
    ends = (".receipt.json", ".failure.json")
    names = {path.name.removesuffix(end) for end in ends for path in out.glob(f"*{end}")}
    if not names:
        raise FileNotFoundError(
            f"{out} holds no receipt (NAME.receipt.json), so there is nothing to report. "
            f"Run notebooks into it first: dynatree run --out {out}."
        )
    return sorted(names | set(run.get("notebooks", [])))


def read_run(out: Path) -> tuple[dict[str, Any], str]:
    """Return what the run's file says of the run, and why it cannot be read ("" where it can, or is not there)."""
    run, problem = read_or_problem(out / RUN_FILE, RUN)
    return run, problem and f"{problem} Notebooks that never began are missing below."


def read_subject(run: dict[str, Any], notes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return profile, start, commit and environment of what was run, "several" where notebooks differ.

    Args:
        run: the run's file, for notebooks whose notes say nothing of it.
        notes: receipts and failure notes; an empty one of a notebook that did not run.
    """
    notes = [{**run, **{key: value for key, value in note.items() if value is not None}} for note in notes if note] or [
        run
    ]
    machines = [note.get("environment") or {} for note in notes]
    names = dict.fromkeys(name for machine in machines for name in machine)
    return {
        "profile": _common(note.get("profile") for note in notes),
        "started": min((note["started"] for note in notes if note.get("started")), default=None),
        "commit": _common(note.get("commit") for note in notes),
        "environment": {name: _common(machine.get(name) for machine in machines) for name in names},
    }


def _common(values: Iterable[Any]) -> Any:
    first, *others = values
    return first if all(other == first for other in others) else "several"


def machine(environment: dict[str, Any] | None) -> str:
    """Return a machine in a few words; empty for None."""
    if not environment:
        return ""
    gpu = environment.get("gpu")
    name = gpu.get("name") if isinstance(gpu, dict) else environment.get("cpu")
    return f"{name or 'unknown'}, {environment.get('threads')} threads"


def template(name: str) -> Template:
    """Return a template of a page; what it is given is escaped unless it says otherwise."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["measured"] = measured
    return environment.from_string(asset(name))


def page_style() -> str:
    """Return the style of the pages, for light and dark."""
    return f"{asset('report.css')}@media (prefers-color-scheme: dark) {{\n{dark_css('body')}\n}}\n"


def read_entry(files: Files, exporter: Any) -> dict[str, Any]:
    """Gather everything known of one notebook for the template, and export it to HTML as far as it came."""
    status, problems, facts, summary = read_notebook(files)
    shown = files.executed if files.executed.is_file() else files.stopped(status)
    page = None
    if shown.is_file():
        try:
            export_page(exporter, shown, files.page)
            page = files.page.name
        except Exception as error:  # whatever is in the file, the others are still reported
            problems.append(f"{shown.name} cannot be shown ({type(error).__name__})")
    return {
        "name": files.name,
        "title": facts.get("title") or files.name,
        "status": status,
        "problem": "; ".join(problems),
        "facts": facts,
        "profile": facts.get("profile") or "",
        "machine": machine(facts.get("environment")),
        "commit": (facts.get("commit") or "")[:12],
        "library": facts.get("library_sha256"),
        "cost": Cost(facts.get("seconds"), facts.get("memory_mb")),
        "claims": summary.get("claims", []),
        "tables": summary.get("tables", []),
        "figures": [read_figure(figure, files.out) for figure in summary.get("figures", []) if figure.get("headline")],
        "page": page,
    }


def read_notebook(files: Files) -> tuple[str, list[str], dict[str, Any], dict[str, Any]]:
    """Return a notebook's status, its problems, its receipt or failure note, and its summary.

    The status is finished, failed, interrupted, not run, altered or unreadable.
    """
    status, problem, note = "not run", None, {}
    again = "dynatree run --resume runs it again"
    if files.failure.is_file():
        note = read_or_empty(files.failure, NOTE)
        status, problem = note.get("status") or "failed", note.get("problem", "its failure note cannot be read")
    elif files.receipt.is_file():
        receipt = read_or_empty(files.receipt, NOTE)
        if not isinstance(receipt.get("written"), dict):
            status, problem = "unreadable", f"its receipt cannot be read; {again}"
        elif harm := damage(files, receipt):
            status, problem, note = "altered", f"{harm}; {again}", receipt
        else:
            status, note = "finished", receipt
    summary, damaged = read_or_problem(files.summary, SUMMARY)
    return status, [*filter(None, (problem, damaged.rstrip(".")))], note, summary


def read_figure(figure: dict[str, Any], out: Path) -> dict[str, Any]:
    """Return a headline figure with its `html`, which is None where its file is gone."""
    path = out / str(figure["path"])
    if not path.is_file():
        return {**figure, "html": None}
    text = path.read_text(encoding="utf-8")
    return {**figure, "html": figure_html(text) if path.suffix == ".json" else text}


def measured(claim: dict[str, Any] | None) -> str:
    """Return what a claim measured, with its unit; empty where it was not stated."""
    return " ".join(filter(None, (number(claim.get("value")), claim.get("unit")))) if claim else ""


def number(value: float | str | None) -> str:
    """Return a measured value with the digits a reader can use."""
    if value is None or isinstance(value, str | bool):
        return "" if value is None else str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"
