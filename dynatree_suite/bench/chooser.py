"""The map: what each method commits per iteration and what an iteration costs, by kind of task, and which to choose.

Rows come from benchmark records. Each method is compared with plain decoding of its own run, so records of several
runs, engines and temperatures can stand side by side. Times are those after the first token: how long a prompt takes to
read is the same for every method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .methods import METHODS
from .metrics import after_first
from .records import Records
from .statistics import Estimate, quotient, ratio

Row = dict[str, Any]
PLAIN = "ar-fast"
EVERYTHING = "all tasks"
KINDS: dict[str, tuple[str, ...]] = {
    "open-ended": ("writing", "roleplay", "humanities", "stem", "qa"),
    "reasoning and code": ("reasoning", "math", "math_reasoning", "coding"),
    "from a given text": ("extraction", "summarization", "rag", "translation"),
}
"""Kinds of task, of Spec-Bench's 13 categories."""
GROUPS = ("plain", "no draft model", "draft model")
"""What a method needs."""


def map_rows(records: Mapping[str, Records], plain: str = PLAIN) -> list[Row]:
    """Return where every method of every run stands, for all tasks and for each kind of task.

    Args:
        records: name of a run -> its records.
        plain: label of plain decoding, which every run needs; methods without iterations are left out.

    Returns:
        rows with `run`, `engine`, `temperature`, `kind`, `method` (label), `group` (one of `GROUPS`), `prompts`,
        `tokens` (per iteration), `cost` (of an iteration after the first, in steps of plain decoding), `speed` (over
        plain decoding; tokens over cost, but for first iterations and disturbed prompts, which only `tokens` counts)
        and `interval` (95 %, of the speed, over prompts).

    Raises:
        ValueError: for a run without plain decoding.
    """
    rows: list[Row] = []
    for run, one in records.items():
        frame, setup = one.frame(), one.header.setup
        names = {entry["label"]: entry for entry in setup["methods"]}
        if plain not in names:
            raise ValueError(f"The run '{run}' has no method '{plain}' to compare with; it has {', '.join(names)}.")
        about = {"run": run, "engine": setup["target"]["engine"], "temperature": setup["sampling"]["temperature"]}
        for kind, tasks in {EVERYTHING: None, **KINDS}.items():
            part = frame if tasks is None else frame[frame["task"].isin(tasks)]
            for label, entry in names.items():
                own = part[part["method"] == label]
                method = METHODS.get(entry["name"])  # None: of a tool, such as llama.cpp
                drafts = method is not None and method.drafter is not None and entry["name"] != "ar"
                if own.empty or not (drafts or label == plain):
                    continue
                speed, cost, tokens = ratio(part, label, over=plain, of="further", per="span"), 1.0, 1.0
                if drafts:
                    tokens = quotient(own, "tokens", "iterations").value
                    steps = part.assign(steps=after_first(part, "iterations"))
                    cost = ratio(steps, label, over=plain, of="span", per="steps").value
                rows.append(
                    {**about, "kind": kind, "method": label, "group": _group(entry), "prompts": own["prompt"].nunique(),
                     "tokens": tokens, "cost": cost, "speed": speed.value,
                     "interval": [speed.low, speed.high]}
                )  # fmt: skip
    return rows


def _group(entry: Mapping[str, Any]) -> str:
    method = METHODS[entry["name"]]
    if method.drafter is None:
        return "plain"
    return "draft model" if method.needs_draft(entry["options"]) else "no draft model"


def front(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that no other beats, cheapest iteration first: none commits as many tokens at a lower cost."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (row["cost"], -row["tokens"])):
        if not best or row["tokens"] > best[-1]["tokens"]:
            best.append(row)
    return best


def choose(rows: Iterable[Row], *, run: str, kind: str = EVERYTHING, draft: bool = True) -> list[Row]:
    """Return the methods that come into question, fastest first.

    Args:
        rows: of `map_rows`.
        run: whose engine and temperature are the reader's.
        kind: of task.
        draft: whether there is a draft model.

    Returns:
        rows with one column more, `level`: whether the interval of its speed reaches the fastest's speed.

    Raises:
        ValueError: where no row is of this run and kind.
    """
    known = list(rows)
    some = [row for row in known if (row["run"], row["kind"]) == (run, kind)]
    some = [row for row in some if draft or row["group"] != "draft model"]
    if not some:
        runs, kinds = (", ".join(dict.fromkeys(row[name] for row in known)) for name in ("run", "kind"))
        raise ValueError(f"There is no row of run '{run}' and kind '{kind}'; runs are {runs}, kinds are {kinds}.")
    some.sort(key=lambda row: -row["speed"])
    return [{**row, "level": row["interval"][1] >= some[0]["speed"]} for row in some]


def speed_of(row: Row) -> str:
    """Return a row's speed as text: "1.93 [1.80, 2.12]"."""
    return str(Estimate(row["speed"], *row["interval"]))


def advice(chosen: Sequence[Row]) -> str:
    """Return the sentence that a reader may act on, of the rows of `choose`."""
    best, drafting = chosen[0], [f"`{row['method']}`" for row in chosen if row["group"] != "plain"]
    if not drafting:
        return "No method of this run comes into question but plain decoding (`autoregressive_fast`); see other runs."
    if best["group"] == "plain" or best["interval"][0] <= 1:
        names = ", ".join(drafting)
        return f"Decode plainly (`autoregressive_fast`): of {names}, the fastest is not faster beyond doubt."
    level = [f"`{row['method']}`" for row in chosen[1:] if row["level"]]
    others = f"; not told from it: {', '.join(level)}" if level else ""
    return f"Take `{best['method']}`: {speed_of(best)} times plain decoding{others}."
