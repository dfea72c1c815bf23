"""The README and the pages of docs/: they quote records, link files that exist, and their code runs."""

import argparse
import gzip
import importlib.util
import json
import re
import sys
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch

from dynatree_lib.drafters import ProgressiveTree, SampledTree
from dynatree_lib.models import engine as engines
from dynatree_lib.models.fetch import fetched
from dynatree_suite import PACKAGES
from dynatree_suite.bench import methods
from dynatree_suite.bench.chooser import EVERYTHING, map_rows
from dynatree_suite.bench.protocol import read_results
from dynatree_suite.bench.records import read_records
from dynatree_suite.bench.statistics import quotient, ratio
from dynatree_suite.cli.options import COMMANDS
from dynatree_suite.drafters import Lookahead, SelfDraft
from dynatree_suite.proofs.judge import read_judged
from dynatree_suite.rules import ALL_RULES
from tools.fill_tables import filled, over_llama_cpp
from tools.peers_by_depth import DEPTHS, FLASH, OURS

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "outputs" / "reference" / "cpu"
REAL, UNTILED = RECORDS.parent / "smollm2", RECORDS.parent / "smollm2-epyc"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def record(name):
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


@cache
def real(run, folder=REAL):
    """A record of tools/smollm2_reference.sh."""
    return read_results(folder / f"{run}.jsonl.gz")


def section(name, title):
    """The text under a heading of the second level, on one line."""
    (text,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page(name), flags=re.S | re.M)
    return " ".join(text.split())


def code_blocks(name):
    return re.findall(r"^```python\n(.*?)^```$", page(name), flags=re.S | re.M)


# --------------------------------------------------------------------------------------------------- quoted records
def test_every_quoted_table_is_its_records():
    assert page("docs/results.md").count("<!-- table: ") == 4
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        assert filled(text, path.parent) == text, path.name


def test_the_readmes_table_of_methods_is_the_records():
    rows = re.findall(
        r"^\| `([^`]+)` \| [^|]+ \| ([^|\n]*) \| ([^|\n]*) \| ([^|\n]*) \|$", page("README.md"), flags=re.M
    )
    assert 5 <= len(rows) <= 12
    speeds = {row["label"]: f"{row['tokens_per_second']:.0f}" for row in real("quantised").summaries()}
    runs = ("quantised",), ("float32", "float32-peers")
    for label, speed, *gains in rows:
        assert speed == speeds.get(label, "–")
        for found, names in zip(gains, runs, strict=True):
            frames = [real(name).records.frame() for name in names]
            frame = next((one for one in frames if label in set(one["method"])), None)
            if "q4_1" in label and "quantised" not in names:  # measured without its fast kernel there
                frame = None
            assert found == ("–" if frame is None else str(ratio(frame, label, over="ar-fast"))), (label, names)


def test_the_readmes_time_to_a_picture_is_that_of_its_record():
    seconds = json.loads((RECORDS.parent / "first_picture.json").read_text(encoding="utf-8"))["seconds"]
    told = re.search(r"in (\w+) minutes \(\[record\]\(outputs/reference/first_picture\.json\)", page("README.md"))
    minutes = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5}[told[1]]
    assert 60 * (minutes - 1) < seconds["first picture"] <= 60 * minutes


def test_what_the_results_say_of_repetition_and_of_temperature_1_is_in_the_records():
    repeated = next(method["repeated_4grams"] for method in record("bench")["methods"] if method["label"] == "ar")
    assert re.search(rf"\b{100 * repeated:.0f} %", section("docs/results.md", "Greedy decoding"))
    fastest = max(record("sampled")["methods"], key=lambda method: method["tokens_per_second"])
    assert fastest["label"] == "ar-fast"
    assert "`ar-fast` is the fastest method" in section("docs/results.md", "Temperature 1")
    card = page("data/tiny/README.md")
    assert 0.65 < float(re.search(r"repeated 4-grams: ([\d.]+)", card)[1]) < 0.7  # "two thirds"


@pytest.mark.parametrize("name", ["README.md", "docs/results.md"])
def test_what_the_docs_say_of_the_audit_is_in_its_record(name):
    from dynatree_suite.proofs import unsound
    from dynatree_suite.proofs.audit import BIASED, SOUND, read_audit

    audit = read_audit(ROOT / "outputs" / "reference" / "audit.json.gz")
    told = re.search(r"audit\.json\.gz\): ([\d,]+) instances, none off by more than ([\de-]+)", page(name))
    assert int(told[1].replace(",", "")) == len(audit.checks)
    assert audit.checks["deviation"].max() < float(told[2].rstrip("."))
    assert len(unsound.UNSOUND) == 9
    biased = audit.controls.query("bias > 1e-3")
    sound = biased["tree"] == SOUND
    assert set(biased[sound]["rule"]) == {*BIASED}
    seen = {tree.split()[0] for tree in biased[~sound]["tree"]}
    assert seen == {mistake.name for mistake in unsound.UNSOUND} | {unsound.GrownSiblings.name}


def test_what_is_said_of_the_rules_beyond_the_papers_is_in_the_audits_record():
    from dynatree_suite.proofs.audit import CASE, CHAINS, RULES, read_audit

    audit = read_audit(ROOT / "outputs" / "reference" / "audit.json.gz")
    tokens = audit.checks.merge(audit.optima, on=CASE)
    tokens = tokens.pivot(index=[*CASE, "optimum"], columns="rule", values="tokens").reset_index()
    text = page("docs/beyond.md").partition("## Verification rules")[2].partition("**On SmolLM2**")[0]
    told = dict(re.findall(r"^\| `(\w+)` \|[^|]+\|(.*)\|$", text, flags=re.M))
    assert set(told) == {rule.__name__ for rule in RULES}
    drawn = ~tokens["tree"].isin([*CHAINS, "fixed tree", "2x2 top"])
    for rule in RULES:
        shares = []
        for part in (tokens[drawn], tokens[tokens["tree"] == CHAINS[0]]):
            known = part.dropna(axis=1, how="all").dropna()
            served = rule.name in known
            shares.append(f"{(known[rule.name] - 1).sum() / (known['optimum'] - 1).sum():.3f}" if served else "")
        assert [share.strip() for share in told[rule.__name__].split("|")] == shares, rule
    shares = {(row["tree"], row["rule"]): row["share"] for row in audit.shares()}
    for tree in ("2x2 iid", "irregular"):
        ours, other = (f"{shares[tree, rule]:.3f}" for rule in ("conditional-transport", "traversal"))
        assert re.search(rf"{ours} against\s(traversal's )?{other}", text), tree


def test_what_the_results_say_of_sampling_is_in_the_records():
    rules, told = (
        section("docs/results.md", "The verification rules alone"),
        section("docs/results.md", "Temperature 1"),
    )
    judged, chain = read_judged(RECORDS / "judged.jsonl.gz"), "sampled-tree:branching=1"
    assert f"On {len(judged.setup['prompts'])} held-out prompts" in rules
    for tree in (chain, "sampled-tree", "sampled-tree:shape=eagle"):
        assert format(judged.where(tree=tree).gain("traversal", "token-level"), ".3f") in rules
    frame = read_results(RECORDS / "sampled.jsonl.gz").records.frame()
    pairs = [(chain, "ar"), (chain, "ar-fast"), (chain, f"{chain},verifier=token-level"), (chain, "hf-assisted"),
             ("fixed-tree", "ar")]  # fmt: skip
    for label, over in pairs:
        assert str(ratio(frame, label, over=over)) in told, (label, over)


def test_what_the_results_say_of_methods_without_a_draft_model_is_in_the_records():
    from dynatree_suite.costs.tune import load_tuned
    from dynatree_suite.papers.ptd.analysis import counts_frame, over

    told = section("docs/results.md", "Without a draft model")
    costs = load_tuned(RECORDS / "tuned.json").costs
    by_cost = "ptd:start_tree=1,depth=3,max_draft=4,text_depth=10,prune_first=false,verify_cost="
    said = {
        "ptd": {
            "DE": [("ptd", "lookahead"), ("ptd", "self-draft"), ("ptd:text_depth=6", "lookahead:text=true"),
                   ("ptd:text_depth=6", "self-draft")],
            "speed": [("ptd", "ar"), ("ptd", "self-draft"), (by_cost, "ar"), (by_cost, "prompt-lookup")],
        },
        "ptd-sampled": {"DE": [], "speed": [("ptd", "ar"), (by_cost, "ar")]},
    }  # fmt: skip
    for name, ratios in said.items():
        results = read_results(RECORDS / f"{name}.jsonl.gz")
        labels = [method["label"] for method in results.records.header.setup["methods"]]
        full = {re.sub(r"(?<=verify_cost=).*", "", label): label for label in labels}
        counts, frame = counts_frame(results, costs), results.records.frame()
        found = [str(over(counts, method, other, "DE")) for method, other in ratios["DE"]]
        found += [str(ratio(frame, full[method], over=other)) for method, other in ratios["speed"]]
        assert not [text for text in found if text not in told], name


def test_what_the_results_say_of_speed_is_in_the_records():
    told, time = (section("docs/results.md", title) for title in ("Greedy decoding", "Where the time goes"))
    frame = read_results(RECORDS / "bench.jsonl.gz").records.frame()
    lookup, chain, fixed = "lookup-tree (tuned)", "chain (tuned)", "fixed-tree (tuned)"
    peers = ["hf-generate", "hf-assisted:num_assistant_tokens=5,confidence=0.0", "hf-prompt-lookup", "ar-fast", chain,
             "prompt-lookup (tuned)"]  # fmt: skip
    said = [(lookup, other) for other in peers] + [
        ("ar-fast", "hf-generate"), ("ar-fast", "ar"), ("cost-aware-tree (tuned)", "ar-fast"),
        ("cost-aware-tree (tuned)", chain), (fixed, chain), ("adaptive-tree (tuned)", fixed),
    ]  # fmt: skip
    for label, over in said:
        assert str(ratio(frame, label, over=over)) in told, (label, over)
    bench = record("bench")
    assert f"In this [record](../outputs/reference/cpu/bench.json), of an {bench['environment']['cpu']}," in told
    measured = {method["label"]: method for method in bench["methods"]}
    assert f"bounds plain decoding at {bench['bandwidth']['tokens_per_second']:,.0f} tokens/s" in time
    reached = [measured[label]["bound_ratio"] for label in ("ar-fast", lookup)]
    assert "`ar-fast` reaches {:.2f} of it, the lookup tree {:.2f}".format(*reached) in time
    host = {label: 100 * method["split"]["host"] for label, method in measured.items() if method["split"]}
    assert f"takes {host['ar']:.0f} % of an iteration of `ar`, {host['chain:length=4']:.0f} % of a chain's" in time
    trees = [
        host[name] for name in ("fixed-tree", "adaptive-tree", "best-first-tree", "cost-aware-tree", "lookup-tree")
    ]
    assert f"{min(trees):.0f} to {max(trees):.0f} % of a tree's" in time


def test_what_the_results_say_of_forwards_batches_and_rounding_is_in_the_records():
    told = section("docs/results.md", "Where the time goes")
    forward = {(row["model"], row["rows"]): row["milliseconds"] for row in record("engines")["target"]}
    for rows in (1, 16):
        assert all(f"{forward[engine, rows]:.1f}" in told for engine in ("eager", "lean", "packed"))
    prefix, nodes = (record("growth")["flatness"][name] for name in ("prefix", "nodes"))
    assert f"{prefix['overhead']:.2f} ms beyond the forward, {prefix['rise']:+.2f} ms from 128" in told
    assert f"the forward itself grows by {prefix['forward_rise']:.1f} ms" in told
    assert (
        f"{nodes['rise']:+.2f} ms from 1 to 256 nodes, where the forward grows by {nodes['forward_rise']:.0f} ms"
        in told
    )

    batches = {(row["method"], row["batch"]): row for row in record("throughput")["rows"]}
    ours = [row for (method, _), row in batches.items() if method != "hf-generate"]
    equal, total = (sum(row[key] for row in ours) for key in ("identical", "prompts"))
    assert f"{equal} of {total} texts equal" in told
    plain, tree = ([batches[name, size]["tokens_per_second"] for size in (1, 16)] for name in ("ar", "fixed-tree"))
    assert "from {:.0f} tokens/s to {:,.0f}".format(*plain) in told
    assert f"from {tree[0] / plain[0]:.2f} of `ar` to {tree[1] / plain[1]:.2f}" in told

    (half,) = record("precision-bfloat16")["dtypes"]
    rates = {row["label"]: row["rate"] for row in half["comparisons"]}
    trees = [rates[name] for name in ("chain:length=4", "fixed-tree", "cost-aware-tree", "lookup-tree")]
    alone = [row["rate"] for row in half["comparisons"] if row["group"] == "rows"]
    assert f"{min(trees):.1f} to {max(trees):.1f} flips in 1,000 tokens of chains and trees, " in told
    assert f"{min(alone):.1f} to {max(alone):.1f} of `ar` in forwards of 2 to 64 tokens" in told
    first = next(row["first_rate"] for row in half["comparisons"] if row["label"] == "hf-generate")
    assert f"{first:.1f} of `hf-generate`, counted until its first flip" in told
    assert not any(row["flipped"] for part in record("precision")["dtypes"] for row in part["comparisons"])
    assert not any(row["exceeds"] for row in half["against"])


def test_what_the_page_on_the_real_model_says_is_in_the_records():
    told = " ".join(page("docs/smollm2.md").split())
    frames = {dtype: real(dtype).records.frame() for dtype in ("float32", "bfloat16")}
    single = frames["float32"]
    aware, chain, lookup = "cost-aware-tree (tuned)", "chain (tuned)", "lookup-tree (tuned)"
    for frame in frames.values():
        assert str(ratio(frame, lookup, over="ar-fast", of="further", per="span")) in told
        assert str(ratio(frame, aware, over=chain)) in told
        assert format(ratio(frame, aware, over=chain, per="iterations").value, ".2f") in told
        assert f"{ratio(frame, 'adaptive-tree', over='fixed-tree')} " in told
        assert str(ratio(frame, aware, over="adaptive-tree")) in told
    assert f"{ratio(single, 'fixed-tree', over='chain:length=4')} over the chain" in told
    assert f"It runs at {ratio(single, 'ptd', over='ar-fast')} of `ar-fast`" in told
    rows = {one["label"]: one for one in json.loads((REAL / "bfloat16.json").read_text(encoding="utf-8"))["methods"]}
    assert f"has {rows['ar-fast']['identical'].replace('/', ' of ')} texts in common" in told
    bench = read_results(RECORDS / "bench.jsonl.gz").records.frame()
    assert f"the same comparison gives {ratio(bench, aware, over=chain)}" in told
    tuned = ratio(bench, "fixed-tree (tuned)", over=chain).value
    assert f"the tuned one gained {tuned:.2f} there over the tuned chain" in told
    assert f"On the bundled pair it was {ratio(bench, 'adaptive-tree', over='fixed-tree')}:" in told


def test_the_milliseconds_that_notebooks_tell_are_in_the_records():
    def took(folder, engine):
        rows = json.loads((folder / "forwards.json").read_text(encoding="utf-8"))["float32"]["target"]
        return {row["rows"]: f"{row['milliseconds']:.0f}" for row in rows if row["model"] == engine}

    compiled, eager = took(UNTILED, "compiled"), took(REAL, "eager")
    told = f"float32 forward takes {compiled[16]} ms for 16 tokens and {compiled[32]} ms for 32"
    assert told in page("notebooks/51_beyond_this_machine.ipynb")
    told = f"own forward behaves differently: {eager[1]} ms for one token and {eager[8]} ms for eight"
    assert told in page("notebooks/slides/session_1.ipynb")
    read = real("quantised").records.header.setup["target"]["forward_bytes"]
    assert f"the engine `quantised` reads {read / 1e6:.1f} MB" in page("notebooks/40_speed.ipynb")


def test_what_the_page_on_the_real_model_says_of_rounding_is_in_the_record():
    body = json.loads((REAL / "precision.json").read_text(encoding="utf-8"))
    single, half = body["dtypes"]
    told = section("docs/smollm2.md", "Rounding")
    assert not any(row["flipped"] for row in single["comparisons"])
    assert f"none in {single['tokens']} tokens" in told
    rates = {row["label"]: f"{row['rate']:.1f}" for row in half["comparisons"]}
    assert rates["fixed-tree"] == rates["lookup-tree"]
    assert f"flips {rates['chain:length=4']} of 1,000 tokens and the two trees {rates['fixed-tree']}, " in told
    assert f"of eight nodes ({rates['ar in 8 rows']})" in told
    engines = sorted(float(rates[label]) for label in rates if label.endswith(" engine"))
    assert f"{engines[0]} to {engines[-1]}" in told


def test_what_the_slides_say_is_in_the_records():
    first, second = (page(f"notebooks/slides/session_{number}.ipynb") for number in (1, 2))
    forwards = json.loads((REAL / "forwards.json").read_text(encoding="utf-8"))["float32"]
    took = [f"{row['milliseconds']:.1f}" for row in forwards["target"] if row["model"] == "compiled"]
    assert f"| milliseconds | {' | '.join(took)} |" in first
    assert f"once takes {forwards['bound_milliseconds']['compiled']:.1f} ms" in first
    results = real("float32")
    frame, rows = results.records.frame(), {row["label"]: row for row in results.summaries()}
    told = re.findall(r"\| `([^`]+)` \| ([\d.]+) \| ([^|]+) \|", first)
    assert len(told) == 5
    for label, tokens, speed in told:
        assert tokens == f"{rows[label]['tokens_per_iteration']:.2f}"
        assert speed == str(ratio(frame, label, over="ar-fast"))
    (instances,) = re.findall(r"([\d,]+) instances of two models", second)
    assert f"audit.json.gz): {instances} instances, none off by more than 2e-15" in " ".join(page("README.md").split())


def test_what_is_said_of_forwards_and_tokens_of_the_real_model_is_in_the_records():
    body = json.loads((REAL / "forwards.json").read_text(encoding="utf-8"))
    more, level = {}, {}
    for dtype in ("float32", "bfloat16"):
        took = {row["rows"]: row["milliseconds"] for row in body[dtype]["target"] if row["model"] == "compiled"}
        more[dtype] = f"{took[8] / took[1]:.2f}"
        level[dtype] = f"{body[dtype]['draft'][0]['milliseconds'] / took[1]:.2f}"
    costs = section("docs/smollm2.md", "What a forward costs")
    assert "{float32} of the time of one in float32, {bfloat16} in bfloat16".format(**more) in costs
    assert "takes {float32} of a forward of the target in float32, {bfloat16} in bfloat16".format(**level) in costs
    readme = " ".join(page("README.md").split())
    took = {row["rows"]: row["milliseconds"] for row in body["float32"]["target"] if row["model"] == "quantised"}
    assert (
        f"takes {took[8] / took[1]:.2f} times as long as one of one token, with full weights {more['float32']} times"
        in readme
    )
    for dtype in more:
        frame = real(dtype).records.frame()
        assert frame["task"].nunique() == 13  # "drafting paid in all 13 categories"
        for task in frame["task"].unique():
            assert ratio(frame[frame["task"] == task], "lookup-tree (tuned)", over="ar-fast").low > 1
    frames = {dtype: real(dtype).records.frame() for dtype in more}
    forwards, lookup = (
        [f"{ratio(frame, *pair).value:.2f}" for frame in frames.values()]
        for pair in (("ar-fast", "hf-generate"), ("lookup-tree (tuned)", "ar-fast"))
    )
    assert f"as published {ratio(frames['float32'], 'ptd', over='ar-fast').value:.2f} with full weights |" in page(
        "README.md"
    )
    short = " ".join(page("docs/smollm2.md").partition("##")[0].split())
    assert (
        "{} times as fast as the fastest plain loop here in float32, and {} times in bfloat16".format(*lookup) in short
    )
    assert "itself is {} and {} times as fast as transformers' `generate`".format(*forwards) in short


def test_how_many_texts_of_the_real_model_are_said_to_be_identical():
    readme = " ".join(page("README.md").split())
    single, half, codes = (
        [int(row["identical"].split("/")[0]) for row in real(run).summaries()[1:] if "llama" not in row["label"]]
        for run in ("float32", "bfloat16", "quantised")
    )
    assert set(single) == set(codes) == {39}
    assert (
        f"In float32 all 39 texts of our methods equal `generate`'s; in bfloat16 {min(half)} to {max(half)} do"
        in readme
    )
    assert "**Every text of ours is `generate`'s**, all 39 of each method" in page("docs/smollm2.md")


def test_what_is_said_of_weights_read_as_4_bits_is_in_the_records():
    told, readme = section("docs/smollm2.md", "With the weights read as 4 bits"), " ".join(page("README.md").split())
    results, trees = real("quantised"), ("lookup-tree (tuned)", "cost-aware-tree (tuned)")
    frame, rows = results.records.frame(), {row["label"]: row for row in results.summaries()}
    theirs, without = "llama-cpp:weights=q4_1", {"of": "further", "per": "span"}

    def gain(label, over, **of):
        return ratio(frame, label, over=over, **of)

    gains = gain(trees[0], "ar-fast"), gain(trees[0], "ar-fast", **without)
    assert "binds**: {}, and without the reading of prompts {}".format(*gains) in told
    nodes = [rows[trees[0]], next(row for row in real("float32").summaries() if row["label"] == trees[0])]
    drafted = [f"{row['nodes_per_iteration']:.1f}" for row in nodes]
    assert f"chooses fewer nodes, {drafted[0]} an iteration instead of {drafted[1]}" in told
    over_chain = gain(trees[1], "chain (tuned)")
    assert over_chain.low > 1
    assert f"ahead of the best chain ({over_chain})" in told
    tasks = {task: ratio(frame[frame["task"] == task], trees[0], over="ar-fast") for task in frame["task"].unique()}
    ordered = sorted(tasks, key=lambda task: tasks[task].value)
    assert all(one.high > 1 for one in tasks.values())
    assert f"the lowest is {ordered[0]}, {tasks[ordered[0]]} of `ar-fast`" in told
    assert f"the highest is {ordered[-1]}, {tasks[ordered[-1]]}." in told
    plain = frame[frame["method"] == "ar-fast"]
    share = 100 * (1 - plain["span"] / plain["seconds"])
    firsts = [1000 * rows[label]["ttft"] for label in ("ar-fast", "hf-generate")]
    assert f"is {share.min():.0f} to {share.max():.0f} % of such a text" in told
    assert "is {:.0f} ms of `ar-fast`, {:.0f} ms of `generate`".format(*firsts) in told
    assert f"{rows[theirs]['identical'].split('/')[0]} of 39 are `generate`'s" in told
    pairs = ("ar-fast", theirs), (trees[0], theirs)
    bare = [gain(*pair, **without) for pair in pairs]
    assert "`ar-fast` runs at {} of llama.cpp's plain decoding and the lookup tree at {};".format(*bare) in told
    assert "with it, at {} and {}.".format(*(gain(*pair) for pair in pairs)) in told
    assert f"lookup tree runs at {bare[1].value:.2f} of it, `ar-fast` at {bare[0].value:.2f}" in readme
    whole = [gain(label, "hf-generate").value for label in (trees[0], "ar-fast")]
    assert "is {:.2f} times as fast as `hf-generate`, `ar-fast` {:.2f} times".format(*whole) in readme
    short = " ".join(page("docs/smollm2.md").partition("##")[0].split())
    speeds = [f"{rows[label]['tokens_per_second']:.0f}" for label in (trees[0], "hf-generate")]
    assert (
        "writes {} tokens/s here, exactly the text of transformers' `generate`, which writes {}.".format(*speeds)
        in short
    )
    assert f"gives {whole[1]:.2f} times `generate`" in short
    assert f"gives {gains[0].value:.2f} times that" in short
    body = json.loads((REAL / "forwards.json").read_text(encoding="utf-8"))
    took = {(row["model"], row["rows"]): row["milliseconds"] for row in body["float32"]["target"]}
    draft, costs = body["bfloat16"]["draft"][0]["milliseconds"], section("docs/smollm2.md", "What a forward costs")
    one = took["quantised", 1]
    assert f"take {took['compiled', 1] / one:.1f} times less time for one token" in costs
    assert f"eight tokens take {took['quantised', 8] / one:.2f} of the time of one" in costs
    assert f"(in bfloat16) takes {draft / one:.2f} of it" in costs


def test_what_is_said_of_the_default_is_in_its_records():
    told, readme = section("docs/smollm2.md", "Nothing tuned"), " ".join(page("README.md").split())
    tuned, both, without = "lookup-tree (tuned)", ("auto", "auto:alone=true"), {"of": "further", "per": "span"}
    runs = "default-quantised", "default-float32", "default-bfloat16", "default-quantised-1"
    few, full, half, drawn = (real(run).records.frame() for run in runs)

    def gains(frame, over="ar-fast", **of):
        return [ratio(frame, label, over=over, **of) for label in both]

    def least(frame, label):
        tasks = {task: ratio(frame[frame["task"] == task], label, over="ar-fast") for task in frame["task"].unique()}
        return min(tasks.items(), key=lambda found: found[1].value)

    told_of = [given for frame in (few, full, half) for given in (gains(frame), gains(frame, **without))]
    pairs = ["{} {} {}".format(pair[0], "{}", pair[1]) for pair in told_of]
    assert pairs[0].format("of `ar-fast` with the draft and at") in told
    assert pairs[1].format("and") in told
    for words, alone, apart in (("With full weights in float32", *pairs[2:4]), ("In bfloat16", *pairs[4:])):
        assert (
            f"**{words}** it runs at {alone.format('and')}; without the reading of prompts at {apart.format('and')}."
            in told
        )
    over_tuned = [ratio(frame, "auto", over=tuned) for frame in (few, full, half)]
    assert "`auto` runs at {} with 4 bits, at {} in float32 and at {} in bfloat16.".format(*over_tuned) in told
    slower, level = gains(drawn)
    assert slower.high < 1
    assert level.low <= 1 <= level.high
    assert f"it is slower than plain decoding with the draft, {slower}, and level with it without one, {level}." in told
    chains = real("default-float32-1").records.frame()
    others = [ratio(chains, label, over="ar-fast") for label in (tuned, "sampled-tree:branching=1")]
    assert (
        "**At temperature 1 in float32** it runs at {} with the draft, at {} without one;".format(*gains(chains))
        in told
    )
    assert "the tuned lookup tree at {}, a drawn chain of five at {}.".format(*others) in told
    best = ratio(drawn, tuned, over="ar-fast")
    assert best.high < 1
    assert f"the tuned lookup tree runs at {best}." in told
    assert all(ratio(drawn, label, over="ar-fast").low <= 1 for label in drawn["method"].unique())
    for frame, words in (
        (few, "{} with the draft, {}, and {} without it, {};"),
        (full, "; in float32 {}, {}, and {}, {};"),
        (half, "; in bfloat16 {}, {}, and {}, {}."),
    ):
        assert words.format(*least(frame, "auto"), *least(frame, "auto:alone=true")) in told
    values = [f"{one.value:.2f}" for one in (*told_of[0][::-1], *told_of[2][::-1])]
    words = "runs at {} of `ar-fast` without a draft and {} with it; full weights {} and {} ("
    assert words.format(*values) in readme


def test_what_the_page_says_of_sampling_on_the_real_model_is_in_the_records():
    told, results, tree = section("docs/smollm2.md", "Sampling"), real("float32-1"), "sampled-tree:branching=2/1"
    frame, rows = results.records.frame(), {row["label"]: row for row in results.summaries()}
    best = ratio(frame, "sampled-tree (tuned)", over="ar-fast")
    assert f"the tuned method, a drawn chain of three, runs at {best} of `ar-fast`" in told
    assert [rows["sampled-tree (tuned)"]["options"][name] for name in ("depth", "branching")] == [3, 1]
    assert max(rows, key=lambda label: rows[label]["tokens_per_second"]) == "sampled-tree (tuned)"
    assert f"gains nothing ({ratio(frame, 'chain:length=4', over='ar-fast')})" in told
    assert max(rows, key=lambda label: rows[label]["tokens_per_iteration"]) == tree
    nodes = [rows[label]["nodes_per_iteration"] for label in (tree, "sampled-tree (tuned)")]
    emitted = rows[tree]["tokens_per_iteration"]
    assert f"emits most tokens, {emitted:.2f}, of {nodes[0]:.1f} nodes instead of {nodes[1]:.1f}" in told
    cooler = real("float32-0.5").records.frame()
    for words, label in (("lookup tree runs at", "lookup-tree"), ("cost-aware tree at", "cost-aware-tree"),
                         ("tuned drawn tree at", "sampled-tree")):  # fmt: skip
        assert f"{words} {ratio(cooler, f'{label} (tuned)', over='ar-fast')}" in told
    codes = real("quantised-1")
    drawn, others = codes.records.frame(), [row["label"] for row in codes.summaries()]
    speeds = {label: ratio(drawn, label, over="ar-fast") for label in others if label != "ar-fast"}
    assert all(speed.high < 1 for speed in speeds.values())
    fastest = max(speeds, key=lambda label: speeds[label].value)
    assert fastest == "sampled-tree (tuned)"
    assert f"the best, the tuned drawn tree, runs at {speeds[fastest]} of it." in told
    both = best.value, speeds[fastest].value
    readme = " ".join(page("README.md").split())
    assert "runs at {:.2f} of `ar-fast` with full weights and at {:.2f} with 4 bits".format(*both) in readme
    forwards = json.loads((REAL / "forwards.json").read_text(encoding="utf-8"))["float32"]["target"]
    (one,) = (row["milliseconds"] for row in forwards if (row["model"], row["rows"]) == ("quantised", 1))
    assert f"A plain forward takes {one:.1f} ms there" in told
    assert "\nUse ar\n" in (REAL / "tuned-quantised-1.txt").read_text(encoding="utf-8")
    audited = (REAL / "audit.txt").read_text(encoding="utf-8")
    verdicts = re.findall(r"^(.*?)  .* (follows|biased)$", audited, flags=re.M)
    sound = [verdict for label, verdict in verdicts if "(control)" not in label]
    assert f"{sound.count('follows')} of {len(sound)} methods follow" in told
    assert [verdict for label, verdict in verdicts if "(control)" in label] == ["biased"] * 2
    rules = [tree, f"{tree},verifier=token-level"]
    assert f"The separate runs of the table say {ratio(frame, *rules, of='tokens', per='iterations')}" in told
    judged = read_judged(REAL / "judged.jsonl.gz")
    chain, wide = (judged.where(tree=name).gain("traversal", "token-level") for name in judged.setup["trees"])
    assert f"{len(judged.rows):,} of these prompts, the expected tokens are {chain:.3f} times" in told
    assert f"{wide:.3f} times for the tree" in told
    assert f"best method gives {best.value:.2f} in float32" in page("docs/smollm2.md").partition("##")[0]


def test_what_is_said_of_llama_cpp_is_in_the_records():
    told, plain = section("docs/smollm2.md", "Compared with llama.cpp"), "llama-cpp"
    results = {dtype: real(f"{dtype}-peers") for dtype in ("float32", "bfloat16")}
    single, half = (one.records.frame() for one in results.values())
    lookup, ours = "llama-cpp:tool=lookup", "lookup-tree (tuned)"
    speeds = [
        f"{ratio(frame, 'ar-fast', over=plain)} {words}"
        for frame, words in ((single, "of llama.cpp's"), (half, "in bf"))
    ]
    assert all(text in told for text in speeds)
    speeds = [
        f"{ratio(frame, ours, over=lookup)} {words}" for frame, words in ((single, "of it in float32"), (half, "in bf"))
    ]
    assert all(text in told for text in speeds)
    own = llama_bench(REAL)
    assert f"llama-bench, without a prompt, decodes {own[0]:.0f} tokens/s" in " ".join(page("docs/smollm2.md").split())
    assert f"own llama-bench reports {own[0]:.0f} tokens/s" in " ".join(page("README.md").split())
    assert "llama-bench decodes {:.0f} tokens/s in F32 and {:.0f} in BF16".format(*own[1:]) in told
    for frame in (single, half):  # "its best speculative program is `lookup`"; two are slower than plain decoding
        speed = {name: ratio(frame, name, over=plain).value for name in frame["method"].unique() if plain in name}
        assert max((name for name in speed if "tool=" in name), key=speed.__getitem__) == lookup
        assert max(speed[f"llama-cpp:tool={tool}"] for tool in ("speculative", "tree")) < 1
    same = {row["label"]: row["identical"] for row in results["float32"].summaries()}[plain]
    assert f"In float32 {same.split('/')[0]} of llama.cpp's 39 texts are `generate`'s" in told


def test_what_is_said_of_llama_cpp_by_depth_is_in_the_record():
    told, body = section("docs/smollm2.md", "By the depth of the text"), json.loads((REAL / "depths.json").read_bytes())
    over = {depth: over_llama_cpp(body, depth) for depth in DEPTHS}
    assert f"`ar-fast` runs at {over[0]} of llama.cpp's better setting at depth 0 and at {over[512]} at 512." in told
    speed = {(row["method"], row["depth"]): np.median(row["speeds"]) for row in body["rows"]}
    off, on = FLASH
    ratios = [speed[on, depth] / speed[off, depth] for depth in DEPTHS]
    assert ratios[0] > 1 > ratios[3]  # "gains after short texts alone"
    assert "runs at {:.2f}, {:.2f}, {:.2f} and {:.2f} of the speed without it.".format(*ratios) in told
    falls = [speed[name, 512] / speed[name, 0] for name in (OURS, off)]
    words = "decodes at {:.2f} of its speed at depth 0, llama.cpp without flash attention at {:.2f}."
    assert words.format(*falls) in told


def test_what_is_said_of_a_processor_without_matrix_tiles_is_in_its_records():
    told = section("docs/smollm2.md", "On a processor without matrix tiles")
    runs = {run: real(run, UNTILED) for run in ("quantised", "float32-all", "bfloat16-all")}
    codes, single, half = (results.records.frame() for results in runs.values())
    rows = {run: {row["label"]: row for row in results.summaries()} for run, results in runs.items()}
    lookup, without = "lookup-tree (tuned)", {"of": "further", "per": "span"}
    assert f"plain decoding {ratio(codes, 'ar-fast', over='hf-generate').value:.2f} times as fast" in told
    assert f"lookup tree runs at {ratio(codes, lookup, over='ar-fast')} of `ar-fast`" in told
    assert f"leaves {rows['quantised'][lookup]['nodes_per_iteration']:.1f} nodes an iteration" in told
    target = json.loads((UNTILED / "forwards.json").read_text(encoding="utf-8"))["float32"]["target"]
    took = {(row["model"], row["rows"]): row["milliseconds"] for row in target}
    assert f"eight tokens takes {took['quantised', 8] / took['quantised', 1]:.2f} of the time of one" in told
    gains = [ratio(frame, lookup, over="ar-fast", **of) for frame in (single, half) for of in ({}, without)]
    assert "{} of `ar-fast` in float32, and at {} without the reading of prompts".format(*gains[:2]) in told
    assert "in bfloat16 at {} and {}.".format(*gains[2:]) in told
    speeds = [rows[run][lookup]["tokens_per_second"] for run in ("bfloat16-all", "quantised")]
    assert "is the fastest**: {:.0f} tokens/s, against {:.0f} with 4 bits".format(*speeds) in told
    assert max(row["tokens_per_second"] for run in rows.values() for row in run.values()) == speeds[0]
    assert (
        f"{rows['bfloat16-all'][lookup]['identical'].split('/')[0]} of 39 equal to those of `generate` in bfloat16"
        in told
    )
    readme = " ".join(page("README.md").split())
    few = [ratio(codes, lookup, over="ar-fast", **of) for of in ({}, without)]
    assert f"at {few[0].value:.2f} of `ar-fast` with 4 bits and at {gains[0].value:.2f} with full weights" in readme
    assert f"at {few[0]} of `ar-fast`, and at {few[1]} without the reading of prompts" in told
    for task in codes["task"].unique():  # "no kind of task loses beyond doubt"
        assert ratio(codes[codes["task"] == task], lookup, over="ar-fast").high >= 1
    over_chain = [ratio(frame, "cost-aware-tree (tuned)", over="chain (tuned)") for frame in (single, half)]
    assert all(found.low > 1 for found in over_chain)
    assert "ahead of the best chain**: {} in float32, {} in bfloat16".format(*over_chain) in told
    plain = [ratio(codes, "ar-fast", over="llama-cpp:weights=q4_1", **of) for of in ({}, without)]
    assert "`ar-fast` runs at {} of its plain decoding, and at {} without the reading".format(*plain) in told
    plain = [ratio(frame, "ar-fast", over="llama-cpp") for frame in (single, half)]
    copied = [ratio(frame, lookup, over="llama-cpp:tool=lookup") for frame in (single, half)]
    assert "float32 `ar-fast` runs at {} and in bfloat16 at {}; the lookup tree".format(*plain) in told
    assert "the lookup tree runs at {} and {} of llama.cpp's `lookup`".format(*copied) in told
    assert "llama-bench decodes {:.0f} tokens/s in 4 bits, {:.0f} in F32 and {:.0f} in BF16".format(
        *llama_bench(UNTILED)
    ) in told  # fmt: skip


def llama_bench(folder):
    """The tokens/s of plain decoding in 4 bits, F32 and BF16, each with or without flash attention, as is faster."""
    text = (folder / "llama-bench.txt").read_text(encoding="utf-8")
    return [max(map(float, re.findall(rf"{kind} .* ([\d.]+) ±", text))) for kind in ("Q4_1", "F32", "BF16")]


def test_what_is_said_of_drafting_without_a_draft_is_in_the_record():
    told, results = " ".join(page("docs/smollm2.md").split()), real("float32-peers")
    frame, tuned, copied = results.records.frame(), "ptd (tuned)", "prompt-lookup"
    assert f"prompt lookup gives {ratio(frame, copied, over='ar-fast').value:.2f} in float32" in told
    tokens = ratio(frame, tuned, over=copied, of="tokens", per="iterations")
    assert f"it runs at {ratio(frame, tuned, over='ar-fast')}, level with `{copied}`" in told
    assert f"({ratio(frame, tuned, over=copied)} of it, with {tokens} times its tokens)" in told
    published = json.loads((REAL / "float32.json").read_text(encoding="utf-8"))["methods"]
    nodes = next(row for row in published if row["label"] == "ptd")
    drafted, verified = (round(nodes[f"{kind}nodes_per_iteration"]) for kind in ("side_", ""))
    assert (
        f"scores {drafted + verified} further nodes for them ({drafted} in its draft tree, {verified} candidates)"
        in told
    )
    bounds = [real(dtype) for dtype in ("float32", "bfloat16")]
    shares = [next(row["bound_ratio"] for row in one.summaries() if row["label"] == "ar-fast") for one in bounds]
    assert f"reaches {shares[0]:.2f} of the limit that memory bandwidth sets" in told
    assert f"in float32, and {shares[1]:.2f} in bfloat16" in told


# ------------------------------------------------------------------------------------------------------------- pages
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_linked_files_and_headings_exist(path):
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.M)
            assert heading in {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in headings}


def test_the_readme_is_short_and_names_every_notebook():
    assert len([word for word in page("README.md").split() if re.search(r"\w", word)]) <= 1200
    named = re.findall(r"\]\(notebooks/(\w+)\.ipynb\)", page("README.md"))
    assert named == sorted(notebook.stem for notebook in (ROOT / "notebooks").glob("*.ipynb"))
    assert all(f"docs/{path.name}" in page("README.md") for path in PAGES if path.parent.name == "docs")


def options(name):
    parser = argparse.ArgumentParser()
    COMMANDS[name](parser)
    return {option for action in parser._actions for option in action.option_strings}


def test_the_page_of_commands_has_every_command_and_only_options_that_exist():
    assert re.findall(r"^\| \[`dynatree (\w+)`\]", page("docs/cli.md"), flags=re.M) == list(COMMANDS)
    known = {name: options(name) for name in COMMANDS}
    for name in COMMANDS:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", section("docs/cli.md", name)))
        assert named <= known[name], (name, named - known[name])
    shared = set(re.findall(r"--[a-z][a-z-]*", section("docs/cli.md", "Options that most commands share")))
    assert shared <= {*known["bench"], "--help"}


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        (ProgressiveTree, "ptd"), (SampledTree, "sampled-tree:verifier=traversal"),
        (Lookahead, "lookahead:verifier=traversal"), (SelfDraft, "self-draft:verifier=traversal"),
    ],
)  # fmt: skip
def test_a_papers_method_that_loses_says_by_how_much(kind, label):
    told = " ".join(kind.__doc__.split())
    found = re.search(r"at (\d\.\d\d) of its plain speed[^(]*\((\S+\.jsonl\.gz)\)\. Use `Auto\((draft)?\)`", told)
    frame = read_records(ROOT / found[2]).frame()
    assert found[1] == f"{ratio(frame, label, over='ar-fast', of='further', per='span').value:.2f}"


def table_rows(text):
    """The cells of the rows of a Markdown table, its heading and rule left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_of_drafters_that_nobody_trained_is_that_of_its_records():
    cold, carried = (read_records(REAL / f"{name}.jsonl.gz").frame() for name in ("untrained", "untrained-carried"))
    text = page("docs/beyond.md").partition("**What they commit**")[2].partition("**`Auto`**")[0]
    first = "union-tree:first=suffix-tree,second=token-recycling;max_nodes=32,max_nodes=64"
    second = "union-tree:max_nodes=64"
    many = {name: f"{name}:max_nodes=64" for name in ("suffix-tree", "token-recycling", "lookup-tree")}
    labels = (
        "prompt-lookup",
        "suffix-tree",
        many["suffix-tree"],
        "token-recycling",
        many["token-recycling"],
        "token-recycling:context=1",
        first,
        many["lookup-tree"],
        second,
    )
    priced = {
        label: label.partition(":")[0] for label in ("suffix-tree", "token-recycling", many["lookup-tree"], second)
    }

    def counted(frame, label, of="tokens"):
        return quotient(frame[frame["method"] == label], of, "iterations").value

    def kept(label):
        return label if label == "prompt-lookup" else f"{label}{',' if ':' in label else ':'}carry=true"

    for label, (_, *cells) in zip(labels, table_rows(text), strict=True):
        wanted = [
            f"{counted(cold, label, 'nodes'):.1f}",
            f"{counted(cold, label):.2f}",
            f"{counted(carried, kept(label)):.2f}",
        ]
        wanted.append(str(ratio(cold, label, over="ar-fast")))
        wanted.append(str(ratio(cold, f"{priced[label]} (tuned)", over="ar-fast")) if label in priced else "")
        assert cells == wanted, label
    told = " ".join(text.split())
    runs = ((cold, str), (carried, kept))
    parts = {"suffix-tree": ("prompt-lookup",), second: (many["lookup-tree"], many["token-recycling"])}
    for one, other in ((one, other) for one, others in parts.items() for other in others):
        for frame, named in runs:
            found = ratio(frame, named(one), over=named(other), of="tokens", per="iterations")
            assert str(found) in told, (one, other, str(found))
            assert found.low > 1
    for part in ("suffix-tree", "token-recycling"):
        assert ratio(cold, first, over=part, of="tokens", per="iterations").low > 1
    gains = [ratio(cold, f"{name} (tuned)", over="ar-fast").value for name in ("suffix-tree", "token-recycling")]
    words = "a suffix tree gives {:.2f} and token recycling {:.2f}"
    assert words.format(*gains) in " ".join(page("docs/smollm2.md").split())
    few, more = (
        ratio(frame, named(first), over=named(many["token-recycling"]), of="tokens", per="iterations")
        for frame, named in runs
    )
    assert f"{few} times as much as token recycling with the same limit, carried {more} times" in told
    recycling, suffix = (ratio(carried, kept(one), over="ar-fast") for one in ("token-recycling", "suffix-tree"))
    fewer, grown = (counted(frame, named("token-recycling"), "nodes") for frame, named in runs)
    assert f"drafts {grown:.1f} nodes instead of {fewer:.1f}" in told
    assert f"runs at {recycling} of `ar-fast`, the suffix tree at {suffix}" in told


@pytest.mark.parametrize(
    ("name", "after", "prompts"), [("vocabularies", "## Drafts with another", 9), ("skipping", "## A target that", 39)]
)
def test_tables_of_other_tokenizers_and_of_skipped_layers_are_those_of_their_records(name, after, prompts):
    record = json.loads((ROOT / "outputs" / "reference" / f"{name}.json").read_text(encoding="utf-8"))
    text = page("docs/beyond.md").partition(after)[2].partition("\n## ")[0]
    text = text.partition(f"{name}.json")[2]
    methods = [one for one in record["methods"] if one["acceptance"] is not None or one["method"] == "hf-assisted"]
    methods = [one for one in methods if one["method"] != "prompt-lookup"]
    known = {}
    for one in methods:
        low, high = one["speedup_ar_fast_interval"]
        accepted = "" if one["acceptance"] is None else f"{one['acceptance']:.2f}"
        speed = f"{one['speedup_ar_fast']:.2f} [{low:.2f}, {high:.2f}]"
        known[one["label"]] = [f"{one['tokens_per_iteration']:.2f}", accepted, speed]
        assert one["identical"] == f"{prompts}/{prompts}"
    assert sorted(cells for _, *cells in table_rows(text)) == sorted(known.values())
    if "search" in record:
        assert record["search"]["forwards"] == sum(30 - number for number in range(len(record["search"]["steps"])))
        assert f"{record['search']['forwards']} drafts on" in text
        assert f"on {record['search']['tokens']} tokens" in text
        steps = record["search"]["steps"]
        told = " ".join(text.split())
        assert f"still chooses {steps[0]['agreement']:.2f} of its tokens" in told
        assert f"without {len(steps[-1]['layers'])} layers it chooses {steps[-1]['agreement']:.2f}" in told
        assert f"best predicted gain is {record['search']['best']['gain']:.2f}" in told


def test_what_is_said_of_inheriting_is_in_its_record():
    record = json.loads((ROOT / "outputs" / "reference" / "inherited.json").read_text(encoding="utf-8"))
    counts, told = pd.DataFrame(record["counts"]), " ".join(page("docs/beyond.md").split())
    words = {"of": "tokens", "per": "iterations", "by": "prompt", "column": "inherited"}
    alone = {name: ratio(counts, name, over="nothing", **words) for name in counts["inherited"].unique()[1:]}
    assert f"inherits the sharpness commits {alone['the sharpness']} times" in told
    assert f"with the shares of right copies it is {alone['the shares of right copies']}, with the rate" in told
    assert f"with the rate {alone['the rate']}, with all three {alone['all three']} (record" in told
    names = ("the rate, copies by suffix", "the rate, copies by suffix of earlier texts too")
    found = [ratio(counts, name, over="the rate", **words) for name in names]
    assert "the last two tokens: {} times; of earlier texts too: {}.".format(*found) in told
    assert len(counts["prompt"].unique()) == 39


def test_the_table_of_drawn_trees_is_that_of_its_records():
    folder, text = ROOT / "outputs" / "reference", page("docs/beyond.md")
    drawn = read_records(folder / "drawn.jsonl.gz")
    rows = {row["method"]: row for row in map_rows({"": drawn}) if row["kind"] == EVERYTHING}
    table = table_rows(text.partition("(record\n[drawn.jsonl.gz]")[2].partition("\n\nDySpec")[0])
    assert len(table) == 4
    names = {"one chain": "drawn chain", "two chains": "two drawn chains"}
    for tree, *cells in table:
        for nodes, cell in zip((4, 8, 16), cells, strict=True):
            row = rows.get(f"{names.get(tree, tree)}, {nodes}")
            assert cell == (f"{row['tokens']:.2f} / {row['speed']:.2f}" if row else ""), (tree, nodes)
    told = " ".join(text.split())
    for nodes in (4, 8, 16):
        words = {"over": f"Sequoia's shape, {nodes}", "of": "tokens", "per": "iterations"}
        assert str(ratio(drawn.frame(), f"DySpec, {nodes}", **words)) in told
    counted = json.loads((folder / "grown.json").read_text(encoding="utf-8"))
    least, *_, most = counted["rates"]
    seldom, often = (one["accepted"] / one["drawn"] for one in (least, most))
    assert f"{seldom:.2f} of the tokens that had a probability below 0.05" in told
    assert f"DySpec expects {least['probability']:.2f}, and {often:.2f} of those above" in told
    words = {"over": "Sequoia's shape", "of": "tokens", "per": "iterations", "by": "prompt", "column": "tree"}
    names = ("DySpec", *(f"DySpec, {share} accepted" for share in (0.5, 0.6, 0.7)))
    own, *constants = (ratio(counted["counts"], name, **words) for name in names)
    assert f"{constants[0]} of Sequoia's shape, where DySpec's own value gives {own}" in told
    assert all(found.high >= 1 for found in constants)


def test_the_table_of_rules_on_the_real_pair_is_that_of_its_records():
    folder, text = ROOT / "outputs" / "reference", page("docs/beyond.md")
    frames = [
        pd.concat([read_records(folder / f"{name}-{temperature}.jsonl.gz").frame() for name in ("rules", "made")])
        for temperature in ("1", "0.5")
    ]
    names = {rule.__name__: rule.name for rule in ALL_RULES}
    drawn = {"sampled-tree", "dyspec-tree", "cost-aware-sampled-tree"}

    def over(frame, rule, other, drawing=True):
        served = {one: {} for one in (rule, other)}
        for label in frame["method"].unique():
            drafter, _, its = label.rpartition("verifier=")
            if its in served and drawn.isdisjoint(drafter.replace(":", ",").split(",")) != drawing:
                served[its][drafter] = label
        both = [drafter for drafter in served[rule] if drafter in served[other]]
        labels, others = ([served[one][drafter] for drafter in both] for one in (rule, other))
        return len(both), ratio(frame, labels, over=others, of="tokens", per="iterations")

    table = table_rows(text.partition("[made-0.5.jsonl.gz]")[2].partition("\n\nOn one path")[0])
    assert {cells[0].strip("`") for cells in table} == {*names} - {"Greedy", "Traversal"}
    for rule, drafters, *cells in table:
        found = [over(frame, names[rule.strip("`")], "traversal") for frame in frames]
        assert [int(drafters), int(drafters)] == [count for count, _ in found]
        assert cells == [str(value) for _, value in found]
    told = " ".join(text.split())
    gains = [str(over(frame, "conditional-transport", "token-level")[1]) for frame in frames]
    assert "commits {} times what `TokenLevel` does at temperature 1, and {} times at 0.5".format(*gains) in told
    under = frames[0][frames[0]["method"].str.endswith("verifier=traversal")].groupby("method")
    tokens = under["tokens"].sum() / under["iterations"].sum()
    assert f"at temperature 1 they commit from {tokens.min():.2f} to {tokens.max():.2f} tokens" in told
    fixed = {
        (rule, temperature): over(frame, name, "traversal", False)[1]
        for frame, temperature in zip(frames, ("1", "0.5"), strict=True)
        for rule, name in names.items()
        if rule not in ("Greedy", "Traversal")
    }
    rule, temperature = max(fixed, key=lambda key: abs(fixed[key].value - 1))
    assert f"of `{rule}` at temperature {temperature}, {fixed[rule, temperature]}." in told


@pytest.mark.parametrize("name", ["rounding.json.gz", "smollm2/rounding.json", "smollm2/rounding-bfloat16.json"])
def test_what_is_said_of_rounding_is_in_its_records(name):
    path = ROOT / "outputs" / "reference" / name
    body = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    known = json.loads(body)["distributions"]
    bias, share = max(one["bias"] for one in known), max(one["bias"] / one["bound"] for one in known)
    told = " ".join(page("docs/design.md").split())
    told = told.rpartition(f"([record](../outputs/reference/{name}))")[0][-200:]
    assert f"{len(known):,}" in told
    assert f"more than {bias:.1e}, and none by more than {100 * share:.1f} % of its bound" in told


def test_the_table_of_faults_is_that_of_its_record():
    record = json.loads((ROOT / "outputs" / "reference" / "faults.json").read_text(encoding="utf-8"))
    kinds = list(record["kinds"].values())
    text = page("docs/cluster.md")
    for _, count, injections, lost in table_rows(text.partition("faults.json")[2].partition("\n## ")[0]):
        some, kinds = kinds[: int(count)], kinds[int(count) :]
        assert int(injections) == sum(kind["injections"] for kind in some)
        assert lost == "nothing"
        assert not any(kind["lost"] for kind in some)
    assert not kinds
    total = sum(kind["injections"] for kind in record["kinds"].values())
    assert f"{total} injections of {len(record['kinds'])} kinds" in " ".join(text.split())


def test_what_is_said_of_one_and_two_workers_is_in_its_record():
    from tools.workers_reference import speedup

    record = json.loads((ROOT / "outputs" / "reference" / "workers.json").read_text(encoding="utf-8"))
    runs, found = record["runs"], speedup(record["runs"])
    said = f"{found} times as fast as one ({len(runs) // 2} runs of each, {len(runs[0]['notebooks'])} notebooks"
    assert said in " ".join(page("docs/cluster.md").split())
    assert found.low > 1


def test_what_is_said_of_slurm_is_in_its_record():
    record = json.loads((ROOT / "outputs" / "reference" / "slurm.json").read_text(encoding="utf-8"))
    assert record["slurm"] in " ".join(page("docs/cluster.md").partition("slurm.json")[0].split())
    assert (record["exit_code"], record["cancelled"], len(record["finished"])) == (0, 1, 3)
    assert len(record["started_again"]) == 1


def test_the_page_of_commands_has_every_environment_variable():
    told = set(re.findall(r"^\| `(DYNATREE_\w+)`", page("docs/cli.md"), flags=re.M))
    sources = [path.read_text(encoding="utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    sources += [path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("*.ipynb")]
    assert told == {name for source in sources for name in re.findall(r"\bDYNATREE_[A-Z]+\b", source)}


# -------------------------------------------------------------------------------------------------------------- code
def test_the_readmes_snippet_runs(monkeypatch, capsys):
    from plotly.graph_objects import Figure

    shown = []
    monkeypatch.setattr(Figure, "show", lambda figure: shown.append(figure))
    (snippet,) = code_blocks("README.md")
    names = {}
    exec(snippet, names)
    assert "tokens per iteration" in capsys.readouterr().out
    assert len(shown) == 1
    assert len(names["out"].tokens) > 1


def test_the_code_of_the_page_on_extending_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(methods, "METHODS", dict(methods.METHODS))  # the page adds a method and an engine
    monkeypatch.setattr(engines, "_ENGINES", dict(engines.engines()))
    blocks = code_blocks("docs/extending.md")
    assert len(blocks) == 7
    place = tmp_path / "extending_page.py"
    place.write_text("\n\n".join(blocks), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(place.stem, place)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, place.stem, module)  # an engine is found by the name of its module
    spec.loader.exec_module(module)
    assert [method["label"] for method in module.results.summaries()] == ["ar", "confident-chain:least=0.5"]
    assert all(method["identical"] in (None, "1/1") for method in module.results.summaries())
    p, of_some = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.75])  # a draft of the first tokens alone
    assert module.SpeculativeSampling().resampled(p, of_some).tolist() == [0.25, 0, 0.25]


def test_the_code_of_the_page_on_further_methods_runs():
    blocks, names = code_blocks("docs/beyond.md"), {}
    assert len(blocks) == 3
    for block in blocks:
        if "smollm2" not in block or fetched("smollm2"):
            exec(re.sub(r"max_new_tokens=\d+", "max_new_tokens=12", block), names)
    assert len(names["plain"].tokens) == 12


def test_the_code_of_the_page_on_transformers_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    blocks = code_blocks("docs/huggingface.md")
    assert len(blocks) == 9
    names = {}
    for block in blocks:
        exec(block, names)
    assert capsys.readouterr().out.strip() == names["tokenizer"].decode(names["plain"][0, -60:]).strip()
    assert names["tokenizer"].decode(names["text"][0]).endswith(".")


def test_the_page_and_the_card_name_the_same_versions_of_transformers():
    found = [re.findall(r"\b5\.\d+\b", page(name)) for name in ("docs/huggingface.md", "data/huggingface/README.md")]
    assert found[0] == found[1] != []


def test_the_page_on_transformers_has_every_argument():
    from transformers import GenerationConfig

    told = {name for names in re.findall(r"^\| (.+?) \|", page("docs/huggingface.md"), flags=re.M)
            for name in re.findall(r"`([a-z_]+)[`=]", names)}  # fmt: skip
    silent = {
        "early_stopping", "length_penalty", "diversity_penalty", "num_beam_groups", "force_words_ids", "low_memory",
        "max_matching_ngram_size", "speculation_type", "is_assistant", "cache_config", "max_cache_len",
        "compile_config", "disable_compile", "continuous_batching_config", "bos_token_id", "decoder_start_token_id",
    }  # fmt: skip
    known = {name for name in GenerationConfig().to_dict() if name[0] != "_" and name != "transformers_version"}
    assert known - told == silent & known


# ----------------------------------------------------------------------------------------------------------- picture
def test_the_picture_shows_the_iteration_and_describes_it():
    spec = importlib.util.spec_from_file_location("make_picture", ROOT / "tools" / "make_picture.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    drawn, _, pair = tool.iteration()
    svg = ElementTree.parse(ROOT / "docs" / "images" / "tree.svg").getroot()
    space = {"svg": "http://www.w3.org/2000/svg"}
    assert svg.find("svg:title", space).text
    assert svg.find("svg:desc", space).text
    assert "prefers-color-scheme: dark" in svg.find("svg:style", space).text
    told = {
        role: [
            group.findtext("svg:text[@class='token']", None, space)
            for group in svg.findall(f"svg:g[@class='{role}']", space)
        ]
        for role in tool.ROLES
    }
    names = [tool.label(token, pair.tokenizer, 11) for token in drawn.tree.tokens]
    accepted = [names[node] for node in drawn.verdict.path]
    assert [text for text in told["accepted"] if text] == accepted
    assert [text for text in told["bonus"] if text] == [tool.label(drawn.verdict.next_token, pair.tokenizer, 11)]
    rejected = [name for node, name in enumerate(names) if node and node not in drawn.verdict.path]
    assert sorted(text for text in told["rejected"] if text) == sorted(rejected)
