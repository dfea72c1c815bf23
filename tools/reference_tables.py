"""Every table that the library computes from the records in outputs/reference, as one JSON file.

python3 -m tools.reference_tables [FILE]

FILE is tests/reference_tables.json by default. A test compares it with what the library computes now, so that moving or
rewriting the code that computes a table cannot change a number unnoticed: run this tool after every new record in
outputs/reference/cpu or outputs/reference/audit.json.gz. Nothing is measured here.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CPU = ROOT / "outputs" / "reference" / "cpu"
FILE = ROOT / "tests" / "reference_tables.json"
RUNS = ("bench", "sampled", "ptd", "ptd-sampled")
DIGITS = 10


def run_tables() -> Iterator[tuple[str, Any]]:
    """Summaries, ratios, drafting metrics, memory, predictions and printed tables of the four recorded runs."""
    from dynatree_suite.bench.metrics import drafting_metrics
    from dynatree_suite.bench.protocol import read_results
    from dynatree_suite.bench.statistics import ratio
    from dynatree_suite.cli.bench import report
    from dynatree_suite.costs.cost_model import prediction_rows
    from dynatree_suite.costs.tune import load_tuned
    from dynatree_suite.papers.adaptive.footprint import footprint
    from tools.fill_tables import quote

    costs = load_tuned(CPU / "tuned.json").costs
    for name in RUNS:
        results = read_results(CPU / f"{name}.jsonl.gz")
        summaries, frame = results.summaries(), results.records.frame()
        labels = [one["label"] for one in summaries]
        yield f"{name}: summaries", summaries
        yield f"{name}: bandwidth", results.bandwidth
        yield f"{name}: disturbed", frame.loc[frame["disturbed"], ["method", "prompt"]].to_dict("records")
        for base in ("hf-generate", "ar", "ar-fast"):
            yield f"{name}: ratios over {base}", {label: ratio(frame, label, over=base) for label in labels}
        terms = {label: drafting_metrics(frame[frame["method"] == label]) for label in labels}
        yield f"{name}: drafting metrics", terms
        yield f"{name}: footprint", footprint(results)
        yield f"{name}: predictions", prediction_rows(results, costs)
        yield f"{name}: printed", report(results)
        yield f"{name}: quoted", quote(results.to_json(), f"{name}.json")


def length_tables() -> Iterator[tuple[str, Any]]:
    """What notebooks 13 and 14 compute: budgets read off one run, stretches of texts, the luck of a choice."""
    from dynatree_suite.bench.protocol import read_results
    from dynatree_suite.papers.adaptive import scaling
    from dynatree_suite.papers.adaptive.sensitivity import luck

    ptd, greedy = (read_results(CPU / f"{name}.jsonl.gz") for name in ("ptd", "bench"))
    labels = ["hf-generate", "ar", "chain:length=4", "ptd", "lookahead", "prompt-lookup"]
    columns = ["method", "new_tokens", "tokens_per_second", "speedup_ar", "speedup_ar_interval", "tokens_per_iteration"]
    shorter = [{name: row[name] for name in columns} for row in scaling.by_length(ptd, (32, 64))]
    yield "scaling: by length", shorter
    rows = scaling.stretches(ptd, 32, labels)
    yield "scaling: stretches pooled", scaling.pooled(rows, reference="ar")
    yield "scaling: by repetition", scaling.by_repetition(rows, (0.5, 0.75), 64)
    yield "scaling: late over early", [scaling.late_over_early(rows, label, 64) for label in labels[2:]]
    yield "scaling: late over early, without", scaling.late_over_early(rows, "ptd", 64, without="lookahead")
    some = ["chain:length=4", "fixed-tree", "cost-aware-tree"]
    chosen = luck(greedy.records.frame(), some, "ar", 2)
    yield "sensitivity: luck", [{name: row[name] for name in ("chosen", "there", "elsewhere")} for row in chosen]


def ptd_tables() -> Iterator[tuple[str, Any]]:
    """What notebooks 20 and 21 compute: the quantities of PTD's section 4.1, fronts, stages."""
    from dynatree_suite.bench.protocol import read_results
    from dynatree_suite.costs.tune import load_tuned
    from dynatree_suite.papers.ptd import analysis

    costs = load_tuned(CPU / "tuned.json").costs
    ours = ["ptd", "ptd:prune_first=false", "ptd:text_depth=6"]
    drafts, windows = ["self-draft", "self-draft:text=false"], ["lookahead", "lookahead:text=true"]
    for name in ("ptd", "ptd-sampled"):
        counts = analysis.counts_frame(read_results(CPU / f"{name}.jsonl.gz"), costs)
        labels = list(counts["method"].unique())
        yield f"{name}: quantities", [analysis.quantity_row(counts, label) for label in labels]
        for other in ("lookahead", "self-draft"):
            for quantity in ("DE", "HR", "AL", "Ver", "scored", "speed"):
                ratio = analysis.over(counts, "ptd", other, quantity)
                yield f"{name}: {quantity} over {other}", analysis.compared(f"ptd over {other}", ratio)
        yield f"{name}: front", analysis.front(counts, labels)
        ratio = analysis.at_equal(counts, ours, drafts)
        yield f"{name}: at equal scored", analysis.compared("ptd over self-draft", ratio)
        ratio = analysis.at_equal(counts, ours, windows, "DE", "scored")
        yield f"{name}: at equal DE", analysis.compared("ptd over lookahead", ratio)
    yield "ptd: stages", analysis.stage_shares(json.loads((CPU / "ptd_stages.json").read_text())["rows"])


def judged_tables() -> Iterator[tuple[str, Any]]:
    """What notebooks 30 to 32 compute from judged trees."""
    from dynatree_suite.cli.judge import report
    from dynatree_suite.papers.traversal import tables as traversal_tables
    from dynatree_suite.papers.traversal import which
    from dynatree_suite.proofs.judge import read_judged

    judged = read_judged(CPU / "judged.jsonl.gz")
    trees = list(judged.setup["rules"])
    parts = {tree: judged.where(tree=tree) for tree in trees}
    yield "judged: printed", report(judged)
    yield "judged: gains", {tree: traversal_tables.gain_row(part) for tree, part in parts.items()}
    yield "judged: separate gains", {tree: traversal_tables.separate_gain(part) for tree, part in parts.items()}
    yield "judged: trees needed", {tree: traversal_tables.trees_needed(part) for tree, part in parts.items()}
    yield "judged: gain change", [traversal_tables.gain_change(parts[tree], parts[trees[0]]) for tree in trees[1:]]
    pairs = [which.DrafterAndRule(tree, rule) for tree in trees for rule in traversal_tables.RULES]
    rows = [{**row, "temperature": 1.0, "budget": 5 if row["tree"] == trees[0] else 62} for row in judged.rows]
    frame = which.methods_frame(rows)
    yield "judged: sizes", frame.groupby("tree", sort=False)[["nodes", "levels"]].mean().to_dict("records")
    yield "judged: compared", {pair.name: which.compare(frame, pair, pairs[0]) for pair in pairs}
    yield "judged: summary", which.summary(frame, pairs).to_dict("records")
    default = dict.fromkeys(trees, "traversal")
    yield "judged: rule checks", which.rule_checks(frame, default, traversal_tables.RULES)


def other_tables() -> Iterator[tuple[str, Any]]:
    """Records with a format of their own: growth, rounding, the audit, tuning."""
    from dynatree_suite.cli import audit as audit_command
    from dynatree_suite.cli import precision as precision_command
    from dynatree_suite.cli import tune as tune_command
    from dynatree_suite.costs.cost_growth import flatness
    from dynatree_suite.costs.tune import load_tuned
    from dynatree_suite.proofs.audit import read_audit

    parts = json.loads((CPU / "growth.json").read_text())["rows"]
    for name, rows in parts.items():
        whole = "level" if name.startswith("level") else "iteration"
        yield f"growth: {name}", flatness(rows, name.split()[-1], whole)
    for name in ("precision", "precision-bfloat16"):
        yield f"{name}: printed", "\n".join(precision_command.report(json.loads((CPU / f"{name}.json").read_text())))
    audit = read_audit(ROOT / "outputs" / "reference" / "audit.json.gz")
    yield "audit: printed", "\n".join(audit_command.report(audit))
    yield "audit: summary", audit.summary()
    yield "audit: controls", audit.control_summary()
    yield "audit: comparison", audit.comparison()
    tuned = load_tuned(CPU / "tuned.json")
    yield "tuned: printed", tune_command.report(tuned, "9 of the bundled prompts.")
    yield "tuned: drafters", tuned.python


def plain(value: Any) -> Any:
    """The value as JSON has it, numbers to `DIGITS` significant digits."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if hasattr(value, "interval"):  # an Estimate
        return [plain(value.value), plain(value.interval)]
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, str):
        return value.splitlines() if "\n" in value else value
    if value is None or isinstance(value, bool | int):
        return value
    return float(f"{float(value):.{DIGITS}g}") if math.isfinite(value) else str(float(value))


GROUPS = {group.__name__: group for group in (run_tables, length_tables, ptd_tables, judged_tables, other_tables)}


def main() -> None:
    """Write the file: the tables of each group, a table a line."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    groups, count = [], 0
    for name, tables in GROUPS.items():
        lines = [f"{json.dumps(title)}: {json.dumps(plain(rows), ensure_ascii=False)}" for title, rows in tables()]
        groups.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
        count += len(lines)
    path.write_text("{\n" + ",\n".join(groups) + "\n}\n", encoding="utf-8")
    sys.stdout.write(f"{count} tables in {path}\n")


if __name__ == "__main__":
    main()
