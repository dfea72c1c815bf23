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
    from dynatree_lib.bench.quote import quote

    for name, text in QUOTED:
        assert text == quote(json.loads((ROOT / name).read_text(encoding="utf-8")), name)


def test_linked_files_exist():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_what_the_readme_says_of_the_audit_is_in_its_record():
    from dynatree_lib import unsound
    from dynatree_lib.bench.audit import read_audit

    audit = read_audit(ROOT / "outputs" / "reference" / "audit.json")
    told = re.search(r"audit\.json\): ([\d,]+) instances, none off by more than ([\de-]+)", README)
    assert int(told[1].replace(",", "")) == len(audit.checks)
    assert max(one.deviation for one in audit.checks) < float(told[2])
    assert len(unsound.UNSOUND) == 9
    seen = {one.tree.split()[0] for one in audit.controls if one.bias > 1e-3}
    assert seen == {one.name for one in unsound.UNSOUND}


def test_what_the_readme_says_of_sampling_is_in_its_records():
    from dynatree_lib.bench.paired import read_paired
    from dynatree_lib.bench.protocol import read_results
    from dynatree_lib.bench.sensitivity import ratios

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
