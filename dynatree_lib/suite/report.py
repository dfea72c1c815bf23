"""`dynatree report DIR`: one page that shows what a run found, opening without a network.

It reads receipts, failures and the summaries the notebooks wrote, and invents nothing: a claim, a table or a figure
is in the report because a notebook put it there. Turning notebooks into pages is `pages`' part.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from .pages import asset, copy_plotly, export_page, figure_html, figure_scripts, make_exporter
from .receipts import Files, damage, read_json
from .run import RUN_FILE, duration, megabytes

REPORT = "report.html"


@dataclass(frozen=True)
class Entry:
    """One notebook of a run as the report shows it."""

    name: str
    title: str
    status: str  # finished, failed, interrupted, not run, altered, unreadable
    problem: str
    seconds: float | None
    memory_mb: float | None
    claims: Sequence[Mapping[str, Any]]
    tables: Sequence[Mapping[str, Any]]
    figures: Sequence[Mapping[str, Any]]
    page: str | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of `dynatree report`."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of a run, as `dynatree run` printed it")


def main(args: argparse.Namespace) -> int:
    """Build the report and say where it is."""
    sys.stdout.write(f"Report: {build_report(args.folder)}\n")
    return 0


def build_report(out: Path) -> Path:
    """Write report.html and a page for each notebook; FileNotFoundError where nothing has been run."""
    if not any([*out.glob("*.receipt.json"), *out.glob("*.failure.json")]):
        raise FileNotFoundError(
            f"{out} holds no receipt (NAME.receipt.json), so there is nothing to report. "
            f"Run notebooks into it first: dynatree run --out {out}."
        )
    about = read_or_empty(out / RUN_FILE)
    exporter = make_exporter()
    entries = [read_entry(Files(out, name), exporter) for name in notebook_names(out, about)]
    copy_plotly(out)
    report = out / REPORT
    report.write_text(page_html(entries, about, out), encoding="utf-8")
    return report


def notebook_names(out: Path, about: Mapping[str, Any]) -> list[str]:
    """Every notebook that was planned or has left something, in running order."""
    names = set(about.get("notebooks", []))
    for kind in ("receipt", "failure"):
        names |= {path.name.removesuffix(f".{kind}.json") for path in out.glob(f"*.{kind}.json")}
    return sorted(names)


def read_or_empty(path: Path) -> dict[str, Any]:
    """A JSON object, or nothing where the file is missing or damaged."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}


def read_entry(files: Files, exporter: Any) -> Entry:
    """Gather what is known of one notebook, and export it to HTML as far as it came."""
    status, problem, facts = read_status(files)
    shown = files.executed if files.executed.is_file() else files.stopped(status)
    if shown.is_file():
        export_page(exporter, shown, files.page)
    summary = read_or_empty(files.summary)
    return Entry(
        name=files.name,
        title=facts.get("title", files.name),
        status=status,
        problem=problem,
        seconds=facts.get("seconds"),
        memory_mb=facts.get("memory_mb"),
        claims=summary.get("claims", []),
        tables=summary.get("tables", []),
        figures=summary.get("figures", []),
        page=files.page.name if shown.is_file() else None,
    )


def read_status(files: Files) -> tuple[str, str, dict[str, Any]]:
    """How a notebook ended, what is wrong if anything, and its receipt or failure note."""
    if files.failure.is_file():
        failure = read_or_empty(files.failure)
        return failure.get("status", "failed"), failure.get("problem", "its failure note cannot be read"), failure
    if not files.receipt.is_file():
        return "not run", "", {}
    receipt = read_or_empty(files.receipt)
    if not isinstance(receipt.get("written"), dict):
        return "unreadable", "its receipt cannot be read; dynatree run --resume runs it again", {}
    harm = damage(files, receipt)
    return ("altered", f"{harm}; dynatree run --resume runs it again", receipt) if harm else ("finished", "", receipt)


def page_html(entries: Sequence[Entry], about: Mapping[str, Any], out: Path) -> str:
    """The whole report."""
    parts = [
        "<h1>Tree speculative decoding: what this run found</h1>",
        verdict_html(entries, about),
        problems_html(entries),
        notebooks_html(entries),
        *(entry_html(entry, out) for entry in entries),
        environment_html(about),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>DynaTree suite: report</title>\n<style>\n{asset('report.css')}</style>\n{figure_scripts()}\n"
        "</head>\n<body>\n" + "\n".join(part for part in parts if part) + "\n</body>\n</html>\n"
    )


def verdict_html(entries: Sequence[Entry], about: Mapping[str, Any]) -> str:
    """The first lines: what finished, which claims hold, when and from which commit."""
    finished = sum(entry.status == "finished" for entry in entries)
    judged = [claim for entry in entries for claim in entry.claims if claim.get("holds") is not None]
    held = sum(bool(claim["holds"]) for claim in judged)
    fine = finished == len(entries) and held == len(judged)
    claims = f"; {held} of {len(judged)} claims checked hold" if judged else ""
    facts = [f"{key} {about[key]}" for key in ("profile", "started") if about.get(key)]
    if about.get("commit"):
        commit, changes, _ = about["commit"].partition("+")
        facts.append(f"commit {commit[:12]}{' with changes' if changes else ''}")
    return (
        f'<p class="verdict {"good" if fine else "bad"}">{finished} of {len(entries)} notebooks finished{claims}.</p>'
        f'<p class="soft">{escape(", ".join(facts))}</p>'
    )


def problems_html(entries: Iterable[Entry]) -> str:
    """Everything that went wrong, before anything else; empty when nothing did."""
    lines = [f"<p><b>{escape(e.name)}</b> {e.status}: {escape(e.problem)}</p>" for e in entries if e.problem]
    missed = [
        f"<p><b>{escape(e.name)}</b>: claim does not hold: {escape(str(claim['claim']))}</p>"
        for e in entries
        for claim in e.claims
        if claim.get("holds") is False
    ]
    return f'<div class="problems"><h2>Problems</h2>{"".join(lines + missed)}</div>' if lines or missed else ""


def notebooks_html(entries: Sequence[Entry]) -> str:
    """The table of notebooks with status, cost and links."""
    rows = [
        [
            f'<a href="#{escape(e.name)}">{escape(e.title)}</a>' if has_section(e) else escape(e.title),
            f'<span class="{"good" if e.status == "finished" else "bad"}">{e.status}</span>',
            duration(e.seconds) if e.seconds is not None else "",
            megabytes(e.memory_mb) if e.memory_mb is not None else "",
            page_link(e, escape(e.name)),
        ]
        for e in entries
    ]
    return "<h2>Notebooks</h2>" + table_html(["Notebook", "Status", "Time", "Memory", "Executed"], rows)


def page_link(entry: Entry, words: str) -> str:
    """A link to the executed notebook, or the bare words where there is none."""
    return f'<a href="{escape(entry.page)}">{words}</a>' if entry.page else words


def entry_html(entry: Entry, out: Path) -> str:
    """One notebook's claims, headline figures and tables; empty for a notebook that stated none."""
    if not has_section(entry):
        return ""
    parts = [f'<h2 id="{escape(entry.name)}">{escape(entry.title)}</h2>']
    if entry.page:
        parts.append(f'<p class="soft">{page_link(entry, "The whole notebook, executed")}</p>')
    if entry.claims:
        parts.append(table_html(["", "Claim", "Measured", "Record"], [claim_row(claim) for claim in entry.claims]))
    parts += [headline_figure(figure, out) for figure in headline_figures(entry)]
    parts += [f'<h3>{escape(t["caption"])}</h3><div class="wide">{t["html"]}</div>' for t in entry.tables]
    return "\n".join(parts)


def has_section(entry: Entry) -> bool:
    """Whether a notebook handed the report anything to show."""
    return bool(entry.claims or entry.tables or headline_figures(entry))


def headline_figures(entry: Entry) -> list[Mapping[str, Any]]:
    """The figures a notebook wants shown in the report itself."""
    return [figure for figure in entry.figures if figure.get("headline")]


def claim_row(claim: Mapping[str, Any]) -> list[str]:
    """A claim with its mark, its value and a link to the record it was read from."""
    holds, record = claim.get("holds"), claim.get("record")
    marks = {True: '<span class="good">✓ holds</span>', False: '<span class="bad">✗ fails</span>', None: ""}
    link = f'<a href="{escape(record)}">{escape(Path(record).name)}</a>' if record else ""
    value = " ".join(filter(None, [number(claim.get("value")), str(claim.get("unit") or "")]))
    return [marks[holds], escape(str(claim.get("claim", ""))), escape(value), link]


def headline_figure(figure: Mapping[str, Any], out: Path) -> str:
    """A headline figure drawn in the report itself, or a sentence where its file is gone."""
    path = out / str(figure["path"])
    caption = f"<figcaption>{escape(str(figure.get('caption') or ''))}</figcaption>"
    if not path.is_file():
        return f"<p class='bad'>The figure {escape(str(figure['path']))} is missing.</p>"
    text = path.read_text(encoding="utf-8")
    return f"<figure>{figure_html(text) if path.suffix == '.json' else text}{caption}</figure>"


def environment_html(about: Mapping[str, Any]) -> str:
    """Where the run took place; empty where the run did not say."""
    environment = dict(about.get("environment", {}))
    packages = environment.pop("packages", {})
    facts = {**environment, **packages}
    rows = "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in facts.items() if v is not None)
    return f'<h2>Environment</h2><dl class="facts">{rows}</dl>' if rows else ""


def table_html(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{cell}</th>" for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def number(value: float | str | None) -> str:
    """A measured value with the digits a reader can use."""
    if value is None or isinstance(value, str | bool):
        return "" if value is None else str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"
