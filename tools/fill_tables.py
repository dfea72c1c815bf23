"""Fill the tables of a Markdown file from records.

    python3 -m tools.fill_tables docs/results.md docs/smollm2.md

A table stands between a mark and `<!-- end of table -->`. The marks, paths being relative to the file:

    <!-- table: FILE -->                             methods; FILE is the JSON of `dynatree bench`
    <!-- table: FILE | METHOD; METHOD -->            some methods only
    <!-- table: FILE | METHOD; METHOD | COLUMN -->   some columns only; METHOD may be `all`
    <!-- tasks: FILE | METHOD; METHOD | BASELINE --> speeds over a baseline's by kind of task; FILE has its lines
    <!-- forwards: FILE -->                          times of forwards, of tools/smollm2_reference.sh
    <!-- depths: FILE -->                           plain decoding by depth of the text, of tools.peers_by_depth
    <!-- gpu: FILE -->                               forwards by engine, of tools.gpu_speed
    <!-- papers: FOLDER -->                          where the papers' tables and figures are; FOLDER has the notebooks
    <!-- claims: FILE -->                            the papers' claims beside what was measured (`| brief`: some)
    <!-- architectures: FILE -->                     what tools/try_architectures.py found

A test compares table and record, so that the text cannot drift from the record.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dynatree_suite.bench.grids import text
from dynatree_suite.bench.methods import METHODS
from dynatree_suite.bench.protocol import Results, read_results
from dynatree_suite.bench.records import read_bytes
from dynatree_suite.bench.statistics import Estimate, estimate, ratio
from dynatree_suite.bench.tables import Method, bound_sentence, brief, disturbed_sentence, method_table, sampling_text
from dynatree_suite.papers.published import shown_where
from dynatree_suite.runs.report import measured
from tools.keep_evidence import EVIDENCE
from tools.peers_by_depth import OURS, better

REFERENCE = EVIDENCE.parent
CLAIMS = Path(__file__).resolve().parents[1] / "docs" / "claims.json"

DOCS = (
    "tokens/s", "x hf-generate", "x ar", "x ar-fast", "x bound", "tokens/iteration", "iteration cost",
    "draft/verify/host %", "identical", "HR", "AL", "Dft/Ver",
)  # fmt: skip
"""Columns of a table in the docs; the console has all of `tables.columns`."""


def quote(results: Mapping[str, Any], name: str, only: Sequence[str] = (), columns: Sequence[str] = DOCS) -> str:
    """Return Markdown for the JSON object of `dynatree bench`.

    Args:
        results: the object.
        name: the file it came from, relative to the Markdown file.
        only: labels of the methods to show; all by default.
        columns: columns to show.
    """
    setup, environment = results["setup"], results["environment"]
    methods = [method for method in results["methods"] if not only or method["label"] in only]
    table = method_table(methods, intervals=False, only=columns)
    table["method"] = [f"`{label}`" for label in table["method"]]
    lines = [
        *_markdown(table),
        f"One interleaved run, {sampling_text(setup['sampling'])}, {_prompts(methods, setup)} x "
        f"{setup['max_new_tokens']} tokens, {setup['dtype']}, {_device(setup, environment)}.",
        f"{setup['workload']} Brackets: 95 % bootstrap interval over prompts. {_record(name)}",
    ]
    if "iteration cost" in table:
        lines.append("Iteration cost: time of an iteration in greedy steps of `hf-generate`.")
    if results["bandwidth"] and "x bound" in table:
        lines.append(bound_sentence(results["bandwidth"]))
    if "draft/verify/host %" in table and any(method["split"] for method in methods):
        lines.append("Draft and verify: time in the models' forwards; host: all the rest (traced runs).")
    if disturbed := [method for method in methods if method.get("disturbed")]:
        lines.append(disturbed_sentence(disturbed))
    return "\n".join([*lines, *_tuned(methods), "", ""])


def _prompts(methods: Sequence[Method], setup: Mapping[str, Any]) -> str:
    """How many prompts all methods had; fewer than planned where the run was stopped."""
    had, planned = min(method["prompts"] for method in methods), len(setup["prompts"])
    return f"{planned} prompts" if had == planned else f"{had} of {planned} prompts"


def _device(setup: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    if setup["target"]["device"] == "cuda":
        return f"{environment['gpu']['name']}"
    return f"{environment['cpu']}, {environment['threads']} threads"


def _tuned(methods: Sequence[Method]) -> list[str]:
    """Return a sentence on what `--tuned` methods stand for; measured cost curves are left to the record."""
    parts = []
    for method in (method for method in methods if method["label"] == f"{method['method']} (tuned)"):
        defaults = METHODS[method["method"]].defaults  # older records have three options of costs
        options = {key: text(v) for key, v in method["options"].items()}
        changed = [f"{key}={v}" for key, v in options.items() if v != text(defaults.get(key))]
        shown = [option for option in changed if "_cost=" not in option and not option.startswith("costs=")]
        measured = ", measured costs" if shown != changed else ""
        parts.append(f"`{method['method']}` {', '.join(shown) or 'its defaults'}{measured}")
    return [f"Tuned on other prompts (`dynatree tune`): {'; '.join(parts)}."] if parts else []


def quote_tasks(results: Results, name: str, methods: Sequence[str], baseline: str) -> str:
    """Return Markdown: speeds of methods over a baseline's, a row for each kind of task; arguments as for `quote`."""
    frame = results.records.frame()
    rows = []
    for task in frame["task"].unique():
        part = frame[frame["task"] == task]
        speeds = {f"`{brief(label)}`": str(ratio(part, label, over=baseline)) for label in methods}
        rows.append({"task": task, "prompts": str(part["prompt"].nunique()), **speeds})
    told = f"Tokens/s over `{baseline}`'s, with 95 % bootstrap intervals over prompts. {_record(name)}"
    return "\n".join([*_markdown(pd.DataFrame(rows)), told, "", ""])


def quote_forwards(body: Mapping[str, Any], name: str) -> str:
    """Return Markdown: milliseconds of a forward by dtype, model and number of tokens; arguments as for `quote`."""
    rows, bounds = [], []
    for dtype in (key for key, part in body.items() if isinstance(part, Mapping) and "target" in part):
        for engine, bound in body[dtype]["bound_milliseconds"].items():
            bounds.append(f"{bound:.1f} in {dtype}" + (f" by `{engine}`" if engine in ("quantised", "rounded") else ""))
        for kind in ("target", "draft"):
            for model in dict.fromkeys(row["model"] for row in body[dtype][kind]):
                took = {row["rows"]: row["milliseconds"] for row in body[dtype][kind] if row["model"] == model}
                label = ENGINES[model] if kind == "target" else f"{model}: one level of a tree"
                rows.append(
                    {"dtype": dtype, "forward": label, **{str(count): f"{ms:.1f}" for count, ms in took.items()}}
                )
    table, where = pd.DataFrame(rows).fillna(""), body["environment"]
    lines = [
        *_markdown(table, text=2),
        f"Milliseconds (median) by the number of tokens scored, after {body['prefix']} tokens; {where['cpu']}, "
        f"{where['threads']} threads.",
        f"Reading weights and cache once takes {', '.join(bounds)} at the bandwidth measured in that run.",
        _record(name),
    ]
    return "\n".join([*lines, "", ""])


def over_llama_cpp(body: Mapping[str, Any], depth: int) -> Estimate:
    """Return the speed of `ar-fast` over that of llama.cpp's better setting at a depth; turns are drawn anew."""
    (ours,) = (row for row in body["rows"] if (row["method"], row["depth"]) == (OURS, depth))
    speeds = np.array([ours["speeds"], better(body["rows"], depth)["speeds"]]).T
    return estimate(speeds, lambda drawn: np.divide(*np.moveaxis(np.median(drawn, -2), -1, 0)))


def quote_depths(body: Mapping[str, Any], name: str) -> str:
    """Return Markdown: tokens/s of plain decoding by depth of the text; arguments as for `quote`."""
    table = pd.DataFrame(
        [{"method": f"`{row['method']}`" if row["method"] == OURS else row["method"], "depth": row["depth"],
          "speed": f"{np.median(row['speeds']):.0f}"} for row in body["rows"]]
    ).pivot(index="method", columns="depth", values="speed")  # fmt: skip
    depths = [int(depth) for depth in table]
    table.loc["over the better setting"] = [str(over_llama_cpp(body, depth)) for depth in depths]
    where, turns = body["environment"], len(body["rows"][0]["speeds"])
    lines = [
        *_markdown(table.rename(columns=str).reset_index()),
        f"Tokens/s of {body['tokens']} tokens after a text of so many, the weights' own 4 bits, medians of {turns} "
        f"turns; {where['cpu']}, {where['threads']} threads. Brackets: 95 % bootstrap interval over turns.",
        _record(name),
    ]
    return "\n".join([*lines, "", ""])


def quote_gpu(body: Mapping[str, Any], name: str) -> str:
    """Return Markdown: milliseconds of a forward by engine, text and number of tokens; arguments as for `quote`."""
    measured, rows = body["forwards"]["rows"], []
    for model, prefix in dict.fromkeys((row["model"], row["prefix"]) for row in measured):
        took = {
            row["rows"]: row["milliseconds"] for row in measured if (row["model"], row["prefix"]) == (model, prefix)
        }
        label = f"`{model}`" if model in ("eager", "lean") else GPU_ENGINES[model]
        rows.append({"forward": label, "after": str(prefix), **{str(count): f"{ms:.1f}" for count, ms in took.items()}})
    bounds = ", ".join(f"{1000 * row['bound']:.2f} after {row['prefix']}" for row in body["plain"]["rows"])
    lines = [
        *_markdown(pd.DataFrame(rows)),
        f"Milliseconds (median) by the number of tokens scored, after so many tokens of text; "
        f"{body['environment']['gpu']['name']}, {body['dtype']}, random weights.",
        f"Reading weights and cache once takes {bounds} tokens at the bandwidth measured in that run. {_record(name)}",
    ]
    return "\n".join([*lines, "", ""])


PAIRS_SHOWN = {"tiny": "bundled pair", "smollm2": "SmolLM2"}
"""Folder of outputs/reference/evidence -> the title of its column; another folder is its own title."""
ON_GPU = "SmolLM2, H100"
"""The column of the record of a GPU that a claim names where no notebook ran on one."""
LATER_DRAFT, EARLIER_DRAFT = "DynaTree (confidence-aware)", "DynaTree (confidence-aware, earlier draft)"
VERDICTS = {True: "holds", False: "fails", None: ""}


def read_evidence(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what notebooks have claimed: the folder's name -> notebook -> what `tools.keep_evidence` kept."""
    kept: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*/*.json")):
        kept.setdefault(path.parent.name, {})[path.stem] = json.loads(path.read_text(encoding="utf-8"))
    return kept


def columns_of(kept: Iterable[str]) -> dict[str, str]:
    """Return folder -> title of the columns, those of `PAIRS_SHOWN` first."""
    return {name: PAIRS_SHOWN.get(name, name) for name in [*PAIRS_SHOWN, *kept]}


def items() -> list[tuple[dict[str, Any], set[str]]]:
    """Return the rows of `shown_where`, each with the items by which notebooks name it.

    What both drafts of a paper have, notebooks name by the later one.
    """
    rows = shown_where()
    later = {(row["caption"], row["section"]): row["item"] for row in rows if row["paper"] == LATER_DRAFT}
    found = []
    for row in rows:
        same = later.get((row["caption"], row["section"])) if row["paper"] == EARLIER_DRAFT else None
        found.append((row, {row["item"], same or row["item"]}))
    return found


def claim_of(names: set[str], body: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the claim that stands for a table or figure, by its `items`, of a notebook's evidence if there is any."""
    return next((claim for claim in (body or {"claims": []})["claims"] if names & set(claim["shows"])), None)


def verdict(claim: Mapping[str, Any] | None) -> str:
    """Return what a claim measured and whether it holds; "not run" without one."""
    if claim is None:
        return "not run"
    told = VERDICTS[claim["holds"]]
    return f"{measured(claim)}{f' ({told})' if told else ''}"


def quote_papers(folder: str, evidence: Path, entries: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return Markdown: where each table and figure is shown, and the number that stands for it on every pair.

    Args:
        folder: of the notebooks, relative to the Markdown file.
        evidence: folder of `tools.keep_evidence`.
        entries: of docs/claims.json, which may name a record of a GPU.
    """
    kept, rows = read_evidence(evidence), items()
    columns = {name: title for name, title in columns_of(kept).items() if name in kept}
    lines: list[str] = []
    for paper in dict.fromkeys(row["paper"] for row, _ in rows):
        table = []
        for row, names in ((row, names) for row, names in rows if row["paper"] == paper):
            line = {"item": row["item"], "caption": row["caption"]}
            line["where"] = f"[{row['notebook']}]({folder}/{row['notebook']}.ipynb), {row['section']}"
            claims = {title: claim_of(names, kept[name].get(row["notebook"])) for name, title in columns.items()}
            stated = next(filter(None, claims.values()), None)
            line["how"] = stated["claim"] if stated else row["how"]
            if stated:
                claims[ON_GPU] = next((_on_gpu(entry) for entry in entries if _is_of(entry, row, stated)), None)
            line |= {
                title: verdict(claim) if row["how"] == "measured" else row["how"] for title, claim in claims.items()
            }
            table.append(line)
        lines += [f"\n**{paper}**", *_markdown(pd.DataFrame(table), text=len(table[0]))]
    return "\n".join(lines) + "\n"


def quote_claims(body: Sequence[Mapping[str, Any]], evidence: Path, *, brief: bool = False) -> str:
    """Return Markdown: what the papers claim, what they print, and what was measured on each pair, with the reason.

    Args:
        body: of docs/claims.json: entries with `claim`, `paper`, `printed` in words; the `notebook` that decides it and
            how its claim there begins, `stated`; `unit` of the number; `why`, the cause of what was found, with counts
            of kept records in braces, {PAIR/NOTEBOOK/RECORD | METHOD | nodes, tokens or levels an iteration}, and
            shares of a record's rows, {PAIR/NOTEBOOK/RECORD | KEY=VALUE, KEY=VALUE | column}; perhaps `gpu`, a kept
            record with the method and the one it is measured over; and `brief` for the README's table.
        evidence: folder of `tools.keep_evidence`.
        brief: the entries for the README alone, without paper and reason.
    """
    kept, rows = read_evidence(evidence), []
    titles = columns_of(kept)
    for entry in (entry for entry in body if entry.get("brief") or not brief):
        columns = {title: _stated(entry, kept.get(name, {}).get(entry["notebook"])) for name, title in titles.items()}
        columns[ON_GPU] = _on_gpu(entry)
        row = {"claim": entry["claim"], "paper": entry["paper"], "printed": entry["printed"]}
        shown = {title: _first(claim) if brief else claim for title, claim in columns.items()}
        row |= {title: verdict(claim) for title, claim in shown.items()} | {"why": _counted(entry["why"], evidence)}
        rows.append({key: value for key, value in row.items() if not (brief and key in ("paper", "why"))})
    return "\n".join([*_markdown(pd.DataFrame(rows), text=len(rows[0])), ""])


def _first(claim: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a claim with the first of its numbers, where it has one for each of several trees."""
    first, more, _ = str(claim["value"]).partition("], ") if claim else ("", "", "")
    return {**claim, "value": f"{first}]"} if claim and more else claim


COUNTS = {"nodes": ("nodes_per_iteration", 1), "tokens": ("tokens_per_iteration", 2), "levels": ("draft_levels", 1)}
"""A word in a cause -> what it is in a method's summary, and decimal places."""
COUNT = re.compile(r"\{([^|{}]+) \| ([^|{}]+) \| ([^|{}]+)\}")


def _counted(why: str, evidence: Path) -> str:
    """Return a cause with the counts of kept records in it, "?" where a record is not kept."""

    def count(found: re.Match[str]) -> str:
        record, method, what = found.groups()
        if what not in COUNTS:
            return _share(evidence / f"{record}.json.gz", method, what)
        path = evidence / f"{record}.jsonl.gz"
        if not path.is_file():
            return "?"
        name, places = COUNTS[what]
        return f"{_kept(path).summary(method)[name]:.{places}f}"

    return COUNT.sub(count, why)


def _share(path: Path, wanted: str, column: str) -> str:
    """Return a share in per cent, from the row of a kept record in which keys have the values of "KEY=VALUE, ..."."""
    if not path.is_file():
        return "?"
    known = {key: json.loads(value) for key, value in (each.split("=") for each in wanted.split(", "))}
    (row,) = (row for row in json.loads(read_bytes(path)) if known.items() <= row.items())
    return f"{100 * row[column]:.0f} %"


@cache
def _kept(path: Path) -> Results:
    """Return the results of a kept record, of which a table tells many counts."""
    return read_results(path)


def _is_of(entry: Mapping[str, Any], row: Mapping[str, Any], claim: Mapping[str, Any]) -> bool:
    """Whether an entry of docs/claims.json is of this claim of a row's notebook."""
    return entry["notebook"] == row["notebook"] and claim["claim"].startswith(_beginnings(entry))


def _beginnings(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """How a notebook's claim begins that decides an entry: one text, or several where it names its texts."""
    stated = entry["stated"]
    return (stated,) if isinstance(stated, str) else tuple(stated)


def _on_gpu(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an entry's claim as the record that it names for a GPU decides it; None where it names none."""
    if "gpu" not in entry:
        return None
    about = dict(entry["gpu"])
    gain = ratio(_runs(about.pop("record")), about.pop("method"), **about)
    return {"value": str(gain), "unit": entry["unit"], "holds": gain.above()}


@cache
def _runs(record: str) -> pd.DataFrame:
    """Return the runs of a kept record, which many entries name."""
    return read_results(REFERENCE / record).records.frame()


def _stated(entry: Mapping[str, Any], body: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the claim of a notebook that begins as an entry says; ValueError where it has run and states none."""
    if body is None:
        return None
    found = [claim for claim in body["claims"] if claim["claim"].startswith(_beginnings(entry))]
    if len(found) != 1:
        raise ValueError(
            f"{entry['notebook']} on {body['pair']} states {len(found)} claims '{_beginnings(entry)[0]}...', not 1."
        )
    return dict(found[0])


def quote_architectures(body: Mapping[str, Any], name: str) -> str:
    """Return Markdown: the architectures that are served, then those refused, with the reason; as for `quote`."""
    setup, parts = body["setup"], pd.DataFrame(body["rows"]).astype(object).fillna("").groupby("result")
    lines = []
    for result in ("served", "wrong", "refused", "not made"):
        if result not in parts.groups:
            continue
        part = parts.get_group(result)
        table = pd.DataFrame({"architecture": [f"`{label}`" for label in part["architecture"]]})
        if result == "served":
            table["attention"], table["numbers"] = part["attention"].to_numpy(), part["dtype"].to_numpy()
            for column, title in (
                ("float32", "engine in float32"), ("bfloat16", "in bfloat16"), ("engine", "engine"),
            ):  # fmt: skip
                if column in part:
                    table[title] = [f"`{engine}`" if " " not in engine else "refused" for engine in part[column]]
            table["identical texts"] = [
                f"{texts - ties:.0f} of {texts:.0f}" for texts, ties in zip(part["texts"], part["ties"], strict=True)
            ]
            if (eager := "with eager attention") in part:
                table[eager] = [text if ":" not in text else "refused" for text in part[eager]]
        else:
            table["why"] = [_reason(text) for text in part["reason"]]
        words = [*table].index("identical texts") if result == "served" else 2
        lines += [f"\n**{len(part)} {result}**", *_markdown(table, text=words)]
    lengths = ", ".join(map(str, setup["prompts"]))
    lines += [
        f"transformers {setup['transformers']}, torch {setup['torch']}. Prompts of {lengths} tokens, "
        f"{setup['max_new_tokens']} tokens added to each, windows and chunks of {setup['window']}. {_record(name)}"
    ]
    return "\n".join([*lines, "", ""])


def _reason(text: str) -> str:
    """What is told of a refusal, without the model's name, as a cell of a table."""
    short = re.sub(r"^(A model of type|Model) .*? (cannot|does not) score .*?: ", "", text.splitlines()[0])
    return short.replace("|", "\\|").removesuffix(".")


ENGINES = {
    "eager": "`eager`: transformers",
    "packed": "`packed`: fused projections, otherwise transformers",
    "compiled": "`compiled`: the whole forward in one native call",
    "quantised": "`quantised`: that, on the weights' own 4 and 8 bits",
    "rounded": "`rounded`: that, with inputs of 16 bits",
}
"""What stands for an engine in a table of forwards."""


GPU_ENGINES = {
    "static, no graphs": "`lean` over static buffers, no graphs",
    "static": "`lean` over static buffers, in CUDA graphs",
}
"""What stands for an engine in a table of forwards on a GPU."""


def _markdown(table: pd.DataFrame, text: int = 1) -> list[str]:
    """A table with an empty line before and after it; its first `text` columns are aligned left."""
    align = ["left"] * text + ["right"] * (table.shape[1] - text)
    return ["", table.to_markdown(index=False, colalign=align, disable_numparse=True), ""]


def _record(name: str) -> str:
    return f"Record: [{Path(name).name}]({name})."


PATTERN = re.compile(
    r"<!-- (table|tasks|forwards|depths|gpu|papers|claims|architectures): ([^|\n]*?)(?: \| (.*?))? -->\n"
    r".*?<!-- end of table -->",
    flags=re.S,
)


def filled(page: str, folder: Path) -> str:
    """Return a Markdown page with every table rewritten from its record; record paths are relative to `folder`."""

    def rewritten(match: re.Match[str]) -> str:
        kind, name, rest = match.groups()
        first, second = [part.split("; ") if part else [] for part in [*(rest or "").split(" | "), ""][:2]]
        if kind == "papers":
            text = quote_papers(name, EVIDENCE, json.loads(CLAIMS.read_text(encoding="utf-8")))
        elif kind == "claims":
            text = quote_claims(
                json.loads((folder / name).read_text(encoding="utf-8")), EVIDENCE, brief=first == ["brief"]
            )
        elif kind == "architectures":
            text = quote_architectures(json.loads((folder / name).read_text(encoding="utf-8")), name)
        elif kind == "tasks":
            text = quote_tasks(read_results(folder / name), name, first, *second)
        else:
            body, only = json.loads((folder / name).read_text(encoding="utf-8")), () if first == ["all"] else first
            plain = {"forwards": quote_forwards, "depths": quote_depths, "gpu": quote_gpu}.get(kind)
            text = plain(body, name) if plain else quote(body, name, only, second or DOCS)
        return f"<!-- {kind}: {name}{f' | {rest}' if rest else ''} -->\n{text}<!-- end of table -->"

    return PATTERN.sub(rewritten, page)


if __name__ == "__main__":
    for place in map(Path, sys.argv[1:]):
        place.write_text(filled(place.read_text(encoding="utf-8"), place.parent), encoding="utf-8")
