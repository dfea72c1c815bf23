"""The published numbers: typed in again by hand, recomputed, joined and rendered."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from dynatree_suite.papers.published import (
    PAPERS,
    PaperError,
    html_table,
    known_differences,
    published,
    published_and_measured,
    shown_where,
)

# Typed from the tables of the paper's text.
FIXED_TABLE_1 = [
    ("ar", 119.4, 1.00, None),
    ("hf-assisted", 161.9, 1.36, None),
    ("chain", 133.1, 1.11, 0.68),
    ("streaming-llm", 132.9, 1.11, None),
    ("fixed-tree", 193.4, 1.62, 0.30),
]
FIXED_TABLE_2 = [
    ("chain", {"K": 6}, 133.1, 1.11),
    ("fixed-tree", {"D": 4, "B": 3, "tau": 0.01}, 176.6, 1.43),
    ("fixed-tree", {"D": 8, "B": 3, "tau": 0.03}, 221.4, 1.79),
]
FIXED_TABLE_3 = [
    (100, 7, 3, 0.03, 105.3, 150.7, 1.43, 0.31),
    (200, 7, 3, 0.03, 125.5, 193.2, 1.54, 0.36),
    (300, 7, 3, 0.03, 124.2, 199.0, 1.60, 0.38),
    (500, 8, 3, 0.03, 123.9, 221.4, 1.79, 0.38),
    (1000, 6, 3, 0.05, 124.5, 212.3, 1.71, 0.37),
]
ADAPTIVE_TABLE_1 = {
    ("wikitext-2", "ar"): (133.4, 0.5, 1.00),
    ("wikitext-2", "chain"): (196.1, 37.8, 1.47),
    ("wikitext-2", "fixed-tree"): (200.7, 41.7, 1.50),
    ("wikitext-2", "adaptive-tree"): (219.5, 22.2, 1.64),
    ("pg-19", "ar"): (114.8, 20.6, 1.00),
    ("pg-19", "chain"): (144.9, 28.6, 1.26),
    ("pg-19", "fixed-tree"): (185.5, 33.2, 1.62),
    ("pg-19", "adaptive-tree"): (194.9, 35.6, 1.70),
}


def columns_of(table, *names):
    return [tuple(row[name] for name in names) for row in table.rows]


def speedup_fits(value, baseline, printed):
    """Whether the printed ratio of two decimals follows from throughputs of one decimal."""
    low, high = (value - 0.05) / (baseline + 0.05), (value + 0.05) / (baseline - 0.05)
    return low - 0.005 <= printed <= high + 0.005


@pytest.mark.parametrize("key", PAPERS)
def test_every_paper_loads_and_every_row_is_complete(key):
    paper = published(key)
    assert paper.key == key
    assert paper.title
    for table in paper.tables.values():
        assert table.caption
        assert table.source
        assert set(table.units) <= set(table.columns)
        assert all(len(row) == len(table.columns) for row in table.cells)
        assert table.cells or "diagram" in table.source or "not recoverable" in table.source
    for fact in paper.setup.values():
        assert fact["source"] in {"paper text", "authors' code", "not stated", "derived from Table 1"}


def test_tables_of_the_fixed_tree_paper():
    paper = published("dynatree-fixed")
    assert columns_of(paper.table(1), "method", "tokens_per_second", "speedup", "accept") == FIXED_TABLE_1
    assert paper.table(1).rows[2]["config"] == {"K": 6}
    assert paper.table(1).rows[4]["config_source"] == "authors' code"  # the paper does not print it
    assert columns_of(paper.table(2), "method", "config", "tokens_per_second", "speedup") == FIXED_TABLE_2
    names = ("new_tokens", "D", "B", "tau", "ar_tokens_per_second", "tokens_per_second", "speedup", "accept")
    assert columns_of(paper.table(3), *names) == FIXED_TABLE_3
    assert paper.figure(2).rows == paper.table(1).rows


def test_table_1_of_the_adaptive_paper():
    for key in ("dynatree-adaptive", "dynatree-adaptive-earlier"):
        rows = published(key).table(1).rows
        printed = {
            (row["dataset"], row["method"]): (row["tokens_per_second"], row["tokens_per_second_std"], row["speedup"])
            for row in rows
        }
        assert printed == ADAPTIVE_TABLE_1


def test_speedups_follow_from_throughputs_or_a_difference_says_why():
    fixed = published("dynatree-fixed")
    cases = [("dynatree-fixed", "Table 1", row, 119.4) for row in fixed.table(1).rows]
    cases += [("dynatree-fixed", "Table 2", row, 123.9) for row in fixed.table(2).rows]
    cases += [("dynatree-fixed", "Table 3", row, row["ar_tokens_per_second"]) for row in fixed.table(3).rows]
    adaptive = published("dynatree-adaptive")
    baseline = {row["dataset"]: row["tokens_per_second"] for row in adaptive.table(1).where(method="ar")}
    for number in (1, 4):
        cases += [
            ("dynatree-adaptive", f"Table {number}", row, baseline[row["dataset"]])
            for row in adaptive.table(number).rows
        ]
    misfits = {
        (paper, where)
        for paper, where, row, ar in cases
        if not speedup_fits(row["tokens_per_second"], ar, row["speedup"])
    }
    assert misfits == {("dynatree-fixed", "Table 2"), ("dynatree-adaptive", "Table 4")}
    for paper, where in misfits:
        assert any(one.kind == "table arithmetic" for one in known_differences(paper, where))


def test_gains_of_ptd_follow_from_its_throughputs_except_the_listed_cell():
    for number in (1, 3):
        table = published("ptd").table(number)
        misfits = []
        for row in table.rows:
            if row["gain_percent"] is None:
                continue
            (ar,) = table.where(benchmark=row["benchmark"], model=row["model"], method="ar")
            low = (row["tokens_per_second"] - 0.5) / (ar["tokens_per_second"] + 0.5) - 1
            high = (row["tokens_per_second"] + 0.5) / (ar["tokens_per_second"] - 0.5) - 1
            if not 100 * low - 0.5 <= row["gain_percent"] <= 100 * high + 0.5:
                misfits.append((row["benchmark"], row["model"], row["method"]))
        assert misfits == ([("mt-bench", "llama2-13b-chat", "chain")] if number == 1 else [])
    assert "ptd-01" in {one.id for one in known_differences("ptd", "Table 1")}


def test_decoding_efficiency_identity_of_ptd():
    rows = published("ptd").table(4).rows
    assert len(rows) == 42
    for row in rows:
        expected = row["hit_rate"] * row["accept_length"] + 1 - row["hit_rate"]
        assert abs(row["decoding_efficiency"] - expected) < 0.03


def test_acceptance_of_the_adaptive_paper_is_path_length_over_a_constant():
    ceilings = {("chain", "wikitext-2"): 8, ("chain", "pg-19"): 5, ("fixed-tree", "wikitext-2"): 10}
    for row in published("dynatree-adaptive").table(3).rows:
        if row["method"] != "ar":
            default = 7 if row["method"] == "adaptive-tree" else 10
            ceiling = ceilings.get((row["method"], row["dataset"]), default)
            assert row["accept_percent"] == pytest.approx(100 * row["path_length"] / ceiling, abs=0.15)


def test_the_earlier_draft_has_its_own_memory_table_and_figure_numbers():
    later, earlier = published("dynatree-adaptive"), published("dynatree-adaptive-earlier")
    assert earlier.table(5).rows[1]["average_mib"] == 6337.2
    assert later.table(5).rows[1]["average_mib"] == 6339.2
    assert earlier.figure(5).rows == later.figure(6).rows
    assert earlier.setup["D_max"]["value"] == 8
    assert len(later.figure(7).rows) == 90


def test_logs_and_figures_have_all_their_rows():
    fixed, adaptive = published("dynatree-fixed"), published("dynatree-adaptive")
    assert len(fixed.log("sweep").rows) == 450
    assert len(fixed.figure(3).rows) == 42  # 6 depths, 3 branchings, 5 thresholds, 5 lengths, 18 pairs, 5 acceptances
    assert len(adaptive.log("sensitivity").rows) == 35
    assert len(adaptive.figure(6).rows) == len(adaptive.figure(6).where()) == 32
    variants = {row["variant"] for row in adaptive.log("lengths-tuned-baselines").where(method="adaptive-tree")}
    assert variants == {"breadth", "breadth+depth", "breadth+depth+history"}
    assert fixed.figure(1).rows == []


def test_all_49_differences_are_kept_and_selected_by_place():
    everything = {one.id for key in PAPERS for one in known_differences(key)}
    assert len(everything) == 49
    assert "dynatree-adaptive-03" in {one.id for one in known_differences("dynatree-adaptive", "Table 3")}
    assert known_differences("dynatree-adaptive", "Table 30") == []
    twice = [*known_differences("ptd", "Table 1"), *known_differences("ptd")]  # a difference concerns several places
    assert set(twice) == set(known_differences("ptd"))
    assert len(set(twice)) < len(twice)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: published("dynatree"), "There is no paper 'dynatree'; the papers are dynatree-fixed"),
        (lambda: published("traversal").table(9), "(traversal) has no 'Table 9' here; stored: Table 1, Table 2, "),
        (lambda: published("ptd").figure(12), "has no 'Figure 12'"),
        (lambda: published("ptd").log("sweep"), "has no 'log sweep' here; stored: Table 1"),
        (lambda: published("ptd").table(1).where(metod="ptd"), "Table 1 has no column ['metod']"),
    ],
)
def test_what_is_missing_is_an_error_in_a_sentence(call, message):
    with pytest.raises(PaperError) as caught:
        call()
    assert message in str(caught.value)


def test_rows_are_fresh():
    table = published("dynatree-fixed").table(1)
    table.rows[0]["speedup"] = 99
    assert table.rows[0]["speedup"] == 1.0


def test_published_and_measured():
    rows = published("dynatree-fixed").table(1).rows
    measured = [
        {"method": "fixed-tree", "tokens_per_second": 200.0, "speedup": 1.7, "identical": "20/20"},
        {"method": "adaptive-tree", "tokens_per_second": 210.0, "speedup": 1.8, "identical": "20/20"},
    ]
    joined = published_and_measured(rows, measured, columns=["tokens_per_second", "speedup"])
    assert [row["method"] for row in joined] == [*(row["method"] for row in rows), "adaptive-tree"]
    assert joined[4]["speedup (paper)"] == 1.62
    assert joined[4]["speedup (measured)"] == 1.7
    assert joined[0]["speedup (measured)"] is None
    assert joined[5]["speedup (paper)"] is None
    assert "identical (paper)" not in joined[0]


def test_published_and_measured_refuses_what_it_cannot_tell_apart():
    rows = published("dynatree-adaptive").table(1).rows
    with pytest.raises(ValueError, match="Two published rows share method"):
        published_and_measured(rows, [], columns=["speedup"])
    assert len(published_and_measured(rows, [], on=("dataset", "method"), columns=["speedup"])) == 8
    with pytest.raises(ValueError, match="A measured row has no column 'method'"):
        published_and_measured([], [{"speedup": 1.0}], columns=["speedup"])


def test_html_table():
    rows = [
        {"method": "a<b", "speedup": 1.0, "count": 1500, "config": {"K": 6}, "ok": True},
        {"method": "c", "speedup": 1.625, "count": None, "config": {}, "ok": False},
    ]
    text = html_table(rows, caption="x & y")
    assert "a&lt;b" in text
    assert "<caption>x &amp; y</caption>" in text
    assert "<td>1.000</td>" in text
    assert "<td>1.625</td>" in text
    assert "<td>1,500</td>" in text
    assert "<td>K=6</td>" in text
    assert "<td>–</td>" in text
    assert "<td>yes</td>" in text
    assert "count" not in html_table(rows, columns=["method"])
    assert text == html_table(pd.DataFrame(rows), caption="x & y")
    assert "<td>" not in html_table([])
    assert "<td>–</td>" in html_table([{"x": float("nan")}])
    assert "w" * 300 in html_table([{"x": "w" * 300}])


def test_every_table_and_figure_is_in_a_section_of_a_notebook():
    rows = shown_where()
    assert {(row["paper"], row["item"]) for row in rows if row["item"] == "Table 1"} == {
        (row["paper"], "Table 1") for row in rows
    }
    assert len(rows) == sum(name.split()[0] in ("Table", "Figure") for key in PAPERS for name in published(key).tables)
    folder, titles = Path(__file__).resolve().parents[2] / "notebooks", {}
    for path in folder.glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        titles[path.stem] = re.findall(r"^##+ (?:[\d.]+ · )?(.*)$", text, flags=re.M)
    for row in rows:
        assert row["section"] in titles[row["notebook"]], row
        assert row["how"] in ("measured", "drawn", "exact")
