"""What is kept of the notebooks' runs: records that open, and the two tables that are filled from them."""

import gzip
import json
import re
from pathlib import Path

import pytest

from dynatree_lib.paths import sha256_of
from dynatree_suite.bench.protocol import read_results
from dynatree_suite.runs.receipts import Files
from tools import fill_tables, keep_evidence
from tools.fill_tables import claim_of, quote_claims, quote_papers, read_evidence
from tools.keep_evidence import EVIDENCE, place
from tools.keep_notebooks import worth_keeping

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = json.loads(fill_tables.CLAIMS.read_text(encoding="utf-8"))
KEPT = [(pair, name, body) for pair, bodies in read_evidence(EVIDENCE).items() for name, body in bodies.items()]


def lines_of(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize(("pair", "name", "body"), KEPT, ids=[f"{pair}/{name}" for pair, name, _ in KEPT])
def test_every_record_behind_a_table_of_the_papers_opens(pair, name, body):
    shown = [claim for claim in body["claims"] if claim["shows"]]
    assert shown
    assert len(body["commit"]) == 40
    assert body["profile"] != "smoke"
    folder = EVIDENCE / pair / name
    assert all((folder / f"{Path(claim['record']).name}.gz").is_file() for claim in shown)
    for path in sorted(folder.glob("*.json.gz")):
        assert json.loads(gzip.decompress(path.read_bytes()))
    for path in sorted(folder.glob("*.jsonl.gz")):
        lines = lines_of(path)
        assert lines
        if lines[0].get("kind") == "header":  # of a benchmark: what it measured is read back
            records = read_results(path).records
            assert records.header.setup["pair"] == body["pair"]
            assert len(records.frame()) >= 2


def test_what_the_papers_tables_call_measured_is_kept_on_both_pairs():
    kept = read_evidence(EVIDENCE)
    rows = [(row, names) for row, names in fill_tables.items() if row["how"] == "measured"]
    missing = [
        (pair, row["notebook"], row["item"])
        for pair in fill_tables.PAIRS_SHOWN for row, names in rows
        if claim_of(names, kept[pair].get(row["notebook"])) is None
    ]  # fmt: skip
    assert len(rows) > 20
    assert missing == []


def test_every_claim_of_the_papers_is_measured_by_the_notebook_that_it_names():
    names = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert all(entry["notebook"] in names for entry in CLAIMS)
    assert len([entry for entry in CLAIMS if entry.get("brief")]) == 5
    assert all(entry["why"].endswith(".") for entry in CLAIMS)


def test_the_intervals_in_the_causes_are_those_of_kept_claims():
    measured = " ".join(str(claim["value"]) for _, _, body in KEPT for claim in body["claims"])
    quoted = [one for entry in CLAIMS for one in re.findall(r"\d\.\d\d \[\d\.\d\d, \d\.\d\d\]", entry["why"])]
    assert len(quoted) >= 5
    assert [one for one in quoted if one not in measured] == []


def test_the_counts_in_the_causes_are_those_of_kept_records():
    counted = [entry for entry in CLAIMS if fill_tables.COUNT.search(entry["why"])]
    assert len(counted) >= 5
    assert not re.search(r"[?{}]", quote_claims(counted, EVIDENCE))
    found, text, method = [], quote_claims([counted[0]], EVIDENCE), "fixed tree, no tau"
    for run in read_results(EVIDENCE / "smollm2/12_dynatree_ablation/main.jsonl.gz").records.runs.values():
        if run.method == method:
            found += run.nodes
    assert f"{sum(found) / len(found):.1f} nodes an iteration" in text


def test_the_shares_in_the_causes_are_those_of_a_kept_records_rows():
    rows = json.loads(gzip.decompress((EVIDENCE / "smollm2/30_traversal/causes.json.gz").read_bytes()))
    found = {row["temperature"]: row["repair (above 1.1)"] for row in rows if row["own"]}
    (entry,) = (entry for entry in CLAIMS if "temperature=0.2" in entry["why"])
    told = f"fall from {100 * found[1.0]:.0f} % at temperature 1 to {100 * found[0.2]:.0f} % at 0.2"
    assert told in quote_claims([entry], EVIDENCE)


# ------------------------------------------------------------------------------------------------------- made evidence
def claim(text, value, holds=None, shows=()):
    return {"claim": text, "value": value, "unit": "x", "holds": holds, "record": None, "shows": [*shows]}


def made(folder, pair, *claims, notebook="12_dynatree_ablation"):
    body = {"notebook": notebook, "pair": pair, "claims": [*claims]}
    path = folder / pair / f"{notebook}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(body))


ENTRY = {"claim": "Depth helps", "paper": "adaptive", "printed": "1.13 x", "notebook": "12_dynatree_ablation",
         "stated": "Depth alone", "unit": "x", "why": "Because."}  # fmt: skip


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_claims_row_has_a_column_per_pair_with_the_verdict(tmp_path):
    made(tmp_path, "tiny", claim("Depth alone faster (paper: 1)", "0.97 [0.95, 0.98]", holds=False))
    table = quote_claims([ENTRY], tmp_path).strip().splitlines()
    assert cells(table[0]) == ["claim", "paper", "printed", "bundled pair", "SmolLM2", "SmolLM2, H100", "why"]
    assert cells(table[2])[3:6] == ["0.97 [0.95, 0.98] x (fails)", "not run", "not run"]
    made(tmp_path, "smollm2", claim("Depth alone faster", "1.10 [1.05, 1.15]", holds=True))
    made(tmp_path, "tesla-t4-float16-smollm2", claim("Depth alone faster", "1.00 [0.9, 1.1]"))
    table = quote_claims([ENTRY], tmp_path).strip().splitlines()
    assert cells(table[0])[4:7] == ["SmolLM2", "tesla-t4-float16-smollm2", "SmolLM2, H100"]
    assert cells(table[2])[4:7] == ["1.10 [1.05, 1.15] x (holds)", "1.00 [0.9, 1.1] x", "not run"]
    assert "Because" not in quote_claims([ENTRY | {"brief": True}], tmp_path, brief=True)
    assert "Depth" not in quote_claims([ENTRY, ENTRY | {"claim": "x", "brief": True}], tmp_path, brief=True)


def test_a_claim_that_a_notebook_no_longer_states_is_an_error(tmp_path):
    made(tmp_path, "tiny", claim("Breadth alone faster", "1.0"))
    with pytest.raises(ValueError, match="12_dynatree_ablation on tiny states 0 claims 'Depth alone...', not 1"):
        quote_claims([ENTRY], tmp_path)


def test_where_no_notebook_ran_on_a_gpu_the_named_record_speaks(tmp_path):
    entry = next(entry for entry in CLAIMS if "gpu" in entry and entry["gpu"]["method"] == "adaptive-tree")
    results = read_results(fill_tables.REFERENCE / entry["gpu"]["record"])
    gain = fill_tables.ratio(results.records.frame(), "adaptive-tree", over="fixed-tree")
    row = cells(quote_claims([entry], tmp_path).strip().splitlines()[2])
    assert row[5] == f"{gain} x ({'holds' if gain.above() else 'fails'})"


def test_the_papers_table_has_the_number_of_each_pair(tmp_path):
    assert "bundled pair" not in quote_papers("notebooks", tmp_path)
    made(tmp_path, "tiny", claim("Both faster", "1.2", holds=True, shows=["Table 4"]))
    told = quote_papers("notebooks", tmp_path)
    lines = [line for line in told.splitlines() if line.startswith("| Table 4") and "ablation" in line]
    assert len(lines) == 2  # both drafts of the paper have it
    assert all("1.2 x (holds)" in line for line in lines)
    assert claim_of({"Table 4"}, None) is None


# ---------------------------------------------------------------------------------------------------- what can be kept
def test_a_run_that_is_no_evidence_is_refused(tmp_path, monkeypatch):
    from suite_notebooks import records_notebook

    from tools import keep_notebooks

    path = records_notebook(tmp_path / "notebooks", "10_x")
    monkeypatch.setattr(keep_notebooks, "NOTEBOOKS", tmp_path / "notebooks")
    files = Files(tmp_path / "run", "10_x")

    def receipt(**other):
        files.out.mkdir(exist_ok=True)
        files.executed.write_bytes(path.read_bytes())
        about = {"profile": "colab", "commit": "0" * 40, "environment": {"cpu": "x"}, "written": {}, **other}
        files.receipt.write_text(json.dumps(about | {"executed_sha256": sha256_of(files.executed)}))

    with pytest.raises(SystemExit, match="it has not finished"):
        worth_keeping(files)
    receipt()
    assert worth_keeping(files)[0]["profile"] == "colab"
    for wrong, words in (
        ({"commit": "0" * 40 + "+dirty.12"}, "should be one that others can check out"),
        ({"profile": "smoke"}, "amounts of a test"),
        ({"divide": 9}, "amounts of a test"),
        ({"folders": {"DYNATREE_MODELS": "/made"}}, "may be stand-ins"),
    ):
        receipt(**wrong)
        with pytest.raises(SystemExit, match=words):
            worth_keeping(files)
    receipt()
    path.write_text(path.read_text().replace("A text.", "Other words."))
    assert worth_keeping(files)
    path.write_text(path.read_text().replace("exist_ok=True", "exist_ok=False"))
    with pytest.raises(SystemExit, match="code has changed"):
        worth_keeping(files)


@pytest.mark.parametrize(
    ("body", "folder"),
    [
        ({"pair": "tiny", "device": "cpu"}, "tiny"),
        ({"pair": "a/b + c/d", "device": "cpu"}, "a_b_+_c_d"),
        ({"pair": "p", "device": "cuda", "dtype": "float16", "gpu": {"name": "Tesla T4"}}, "tesla-t4-float16-p"),
    ],
)  # fmt: skip
def test_evidence_lies_by_pair_and_by_card(body, folder):
    assert place({"notebook": "10_x", **body}) == EVIDENCE / folder / "10_x.json"


def test_a_run_with_one_notebook_that_cannot_be_kept_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "run.json").write_text(json.dumps({"notebooks": ["10_x", "11_y"]}))
    kept = {"notebook": "10_x", "pair": "tiny", "device": "cpu", "claims": [claim("c", "1", shows=["Table 1"])]}

    def evidence(files):
        if files.name == "11_y":
            raise SystemExit("it has not finished")
        return kept, []

    monkeypatch.setattr(keep_evidence, "evidence", evidence)
    monkeypatch.setattr(keep_evidence, "EVIDENCE", tmp_path / "evidence")
    with pytest.raises(SystemExit):
        keep_evidence.keep([tmp_path])
    assert not (tmp_path / "evidence").exists()
