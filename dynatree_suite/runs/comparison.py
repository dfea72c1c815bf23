"""Two runs side by side: which claims changed their verdict, what each measured, and on which machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..files import write_atomically
from .receipts import Files
from .report import notebook_names, page_style, read_notebook, read_run, read_subject, template

PAGE = "comparison.html"


def compare_runs(first: Path, second: Path) -> Path:
    """Write a page that compares two runs into the second one's folder, and return its path.

    Raises:
        FileNotFoundError: where one of the folders has no notebook that ended.
        ValueError: where both are the same folder.
    """
    if first.resolve() == second.resolve():
        raise ValueError(f"{first} and {second} are the same run; name two.")
    runs = [read_whole(first), read_whole(second)]
    if runs[0]["name"] == runs[1]["name"]:
        for run, out in zip(runs, (first, second), strict=True):
            run["name"] = "/".join(out.resolve().parts[-2:])
    names = sorted({*runs[0]["notebooks"], *runs[1]["notebooks"]})
    notebooks = [compare_notebook(name, *(run["notebooks"].get(name) for run in runs)) for name in names]
    known = {**runs[0]["facts"], **runs[1]["facts"]}
    facts = [fact for fact in known if runs[0]["facts"].get(fact) != runs[1]["facts"].get(fact)]
    page = second / PAGE
    claims = [claim for notebook in notebooks for claim in notebook["claims"]]
    text = template("comparison.html.j2").render(
        runs=runs,
        notebooks=notebooks,
        facts=facts,
        both=sum(claim["both"] for claim in claims),
        single=sum(not claim["both"] for claim in claims),
        changed=[claim for claim in claims if claim["changed"]],
        style=page_style(),
    )
    write_atomically(page, text)
    return page


def read_whole(out: Path) -> dict[str, Any]:
    """Return a run: its `name`, `facts` in words, `problem` of its file, and `notebooks` by name."""
    run, torn = read_run(out)
    notebooks, notes = {}, []
    for name in notebook_names(out, run):
        status, problems, note, summary = read_notebook(Files(out, name))
        notes.append(note)
        claims = {claim["claim"]: claim for claim in summary.get("claims", [])}
        told = ": ".join(filter(None, (status, "; ".join(problems))))
        notebooks[name] = {"status": told, "seconds": note.get("seconds"), "claims": claims}
    facts = read_subject(run, notes)
    for name, value in facts.pop("environment").items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        facts |= {f"{name} {part}".strip(): fact for part, fact in parts}
    return {"name": out.resolve().name, "facts": facts, "problem": torn, "notebooks": notebooks}


def compare_notebook(name: str, first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any]:
    """Return a notebook's `status` and `seconds` in both runs (None where it is not in a run) and its `claims`.

    A claim has its `text`, what it is in `first` and `second` (None where it is not stated), whether `both` state it,
    and whether its verdict `changed`: from holding to not holding, or back. One that only one run judged did not.
    """
    sides = [side or {"status": None, "seconds": None, "claims": {}} for side in (first, second)]
    claims = []
    for text in {**sides[0]["claims"], **sides[1]["claims"]}:
        one, other = (side["claims"].get(text) for side in sides)
        verdicts = [claim.get("holds") for claim in (one, other) if claim is not None]
        both = len(verdicts) == 2
        changed = both and None not in verdicts and verdicts[0] != verdicts[1]
        claims.append({"text": text, "notebook": name, "first": one, "second": other, "both": both, "changed": changed})
    return {"name": name, "claims": claims, **{fact: [side[fact] for side in sides] for fact in ("status", "seconds")}}
