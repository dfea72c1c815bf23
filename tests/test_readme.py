"""The README quotes records: its tables must say what the records in the repository say."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"<!-- table: (\S+) -->\n(.*?)<!-- end of table -->", README, flags=re.S)


def test_the_readme_quotes_a_record():
    assert QUOTED


def test_every_quoted_table_is_its_records():
    from dynatree_lib.measure.quote import quote

    for name, text in QUOTED:
        assert text == quote(json.loads((ROOT / name).read_text(encoding="utf-8")), name)


def test_linked_files_exist():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_what_the_readme_says_of_the_audit_is_in_its_record():
    from dynatree_lib.measure import unsound
    from dynatree_lib.measure.audit import read_audit

    audit = read_audit(ROOT / "outputs" / "reference" / "audit.json")
    told = re.search(r"audit\.json\): ([\d,]+) instances, none off by more than ([\de-]+)", README)
    assert int(told[1].replace(",", "")) == len(audit.checks)
    assert max(one.deviation for one in audit.checks) < float(told[2])
    assert len(unsound.UNSOUND) == 9
    seen = {one.tree.split()[0] for one in audit.controls if one.bias > 1e-3}
    assert seen == {one.name for one in unsound.UNSOUND}


def test_what_the_readme_says_of_sampling_is_in_its_records():
    from dynatree_lib.experiments.adaptive.sensitivity import ratios
    from dynatree_lib.measure.judge import read_paired
    from dynatree_lib.measure.protocol import read_results

    folder = ROOT / "outputs" / "reference" / "cpu"
    told = " ".join(README.split())
    judged, chain = read_paired(folder / "judged.jsonl"), "sampled-tree:branching=1"
    assert f"On {len(judged.setup['prompts'])} held-out prompts" in told
    for tree in (chain, "sampled-tree", "sampled-tree:shape=eagle"):
        ratio, (low, high) = judged.where(tree=tree).gain("traversal", "token-level")
        assert f"{ratio:.3f} [{low:.3f}, {high:.3f}]" in told
    sampled = read_results(folder / "sampled.jsonl")
    for label, over in (
        (chain, "ar"),
        (chain, f"{chain},verifier=token-level"),
        (chain, "hf-assisted"),
        ("fixed-tree", "ar"),
    ):
        row = ratios(sampled, [label], [over])[0]
        assert "{:.2f} [{:.2f}, {:.2f}]".format(row["ratio"], *row["interval"]) in told


def test_what_the_readme_says_of_ptd_is_in_its_records():
    from dynatree_lib.experiments.ptd.analysis import Tally
    from dynatree_lib.measure.metrics import speedup
    from dynatree_lib.measure.protocol import read_results
    from dynatree_lib.measure.tune import load_tuned

    section = README.split("### Without a draft model")[1].split("### The rules alone")[0]
    places = ROOT / "outputs" / "reference" / "cpu"
    costs = load_tuned(places / "tuned.json").costs
    priced = "ptd:start_tree=1,depth=3,max_draft=4,text_depth=10,prune_first=false,verify_cost="
    said = {
        "ptd": {
            "DE": [("ptd", "lookahead"), ("ptd", "self-draft"), ("ptd:text_depth=6", "lookahead:text=true"),
                   ("ptd:text_depth=6", "self-draft")],
            "speed": [("ptd", "ar"), ("ptd", "self-draft"), (priced, "ar"), (priced, "prompt-lookup")],
        },
        "ptd-sampled": {"DE": [], "speed": [("ptd", "ar"), (priced, "ar")]},
    }  # fmt: skip
    for name, ratios in said.items():
        results = read_results(places / f"{name}.jsonl")
        runs, labels = [*results.records.runs.values()], results.records.header.setup["methods"]
        full = {one["label"].split("verify_cost=")[0] + "verify_cost=" * ("verify_cost" in one["label"]): one["label"]
                for one in labels}  # fmt: skip
        tally = Tally.of(results, costs)
        found = [tally.over(one, other, "DE")["text"] for one, other in ratios["DE"]]
        for one, other in ratios["speed"]:
            value, (low, high) = speedup(
                [r for r in runs if r.method == full[one]], [r for r in runs if r.method == other]
            )
            found.append(f"{value:.2f} [{low:.2f}, {high:.2f}]")
        missing = [text for text in found if text not in " ".join(section.split())]
        assert not missing, name


def test_what_the_readme_says_of_speed_is_in_its_records():
    from dynatree_lib.experiments.adaptive.sensitivity import ratios
    from dynatree_lib.measure.protocol import read_results

    folder = ROOT / "outputs" / "reference" / "cpu"
    told = " ".join(README.split("### At temperature 1")[0].split())
    results = read_results(folder / "bench.jsonl")
    lookup, chain, fixed = "lookup-tree (tuned)", "chain (tuned)", "fixed-tree (tuned)"
    peers = ["hf-generate", "hf-assisted:num_assistant_tokens=5,confidence=0.0", "hf-prompt-lookup", "ar-fast", chain,
             "prompt-lookup (tuned)"]  # fmt: skip
    said = [(lookup, other) for other in peers] + [
        ("ar-fast", "hf-generate"), ("ar-fast", "ar"), ("cost-aware-tree (tuned)", "ar-fast"),
        ("cost-aware-tree (tuned)", chain), (fixed, chain), ("adaptive-tree (tuned)", fixed),
    ]  # fmt: skip
    for label, over in said:
        row = ratios(results, [label], [over])[0]
        assert "{:.2f} [{:.2f}, {:.2f}]".format(row["ratio"], *row["interval"]) in told, (label, over)
    bound = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
    methods = {one["label"]: one for one in bound["methods"]}
    assert f"bounds plain decoding at {bound['bandwidth']['tokens_per_second']:,.0f} tokens/s" in told
    assert f"`ar-fast` reaches {methods['ar-fast']['bound_ratio']:.2f} of it" in told
    assert f"takes {100 * methods['ar']['split']['host']:.0f} % of an iteration of `ar`" in told


def test_what_the_readme_says_of_forwards_batches_and_rounding_is_in_its_records():
    read = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in (ROOT / "outputs" / "reference" / "cpu").glob("*.json")
    }
    told = " ".join(README.split())
    forward = {(one["model"], one["rows"]): one["milliseconds"] for one in read["engines"]["target"]}
    for rows in (1, 16):
        assert all(f"{forward[engine, rows]:.1f}" in told for engine in ("eager", "lean", "packed"))
    flat = read["growth"]["flatness"]
    assert f"{flat['prefix']['overhead']:.2f} beyond the forward, {flat['prefix']['rise']:+.2f} from 128" in told
    ours = [one for one in read["throughput"]["rows"] if one["method"] != "hf-generate"]
    equal, total = (sum(one[key] for one in ours) for key in ("identical", "prompts"))
    assert f"{equal} of {total} texts equal" in told
    half = {one["label"]: one for one in read["precision-bfloat16"]["dtypes"][0]["comparisons"]}
    trees = [half[name]["rate"] for name in ("chain:length=4", "fixed-tree", "cost-aware-tree", "lookup-tree")]
    alone = [one["rate"] for one in half.values() if one["group"] == "rows"]
    assert f"{min(trees):.1f} to {max(trees):.1f} flips in 1,000 tokens of chains and trees, " in told
    assert f"{min(alone):.1f} to {max(alone):.1f} of `ar` in 2 to 64 rows" in told
    assert not any(one["flipped"] for part in read["precision"]["dtypes"] for one in part["comparisons"])
    assert not any(one["exceeds"] for one in read["precision-bfloat16"]["dtypes"][0]["against"])
