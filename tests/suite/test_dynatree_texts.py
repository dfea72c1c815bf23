"""The prompts of both DynaTree papers, and a sweep at each generation length."""

import pytest
from models import noisy_copy, random_model

from dynatree_lib.models.pairs import Pair
from dynatree_suite.bench import grids
from dynatree_suite.bench.prompts import BenchPrompt
from dynatree_suite.bench.protocol import run_benchmark
from dynatree_suite.papers.dynatree.lengths import best_of_each_length, swept
from dynatree_suite.papers.dynatree.texts import FIXED, SPLITS, tuning_and_judging
from dynatree_suite.papers.published import published


def test_wikitext_is_read_from_the_split_that_the_authors_code_reads(tmp_path):
    for name in ("valid", "test"):
        (tmp_path / f"wiki.{name}.raw").write_text(f" = {name} = \n" + f"{name} text " * 40, encoding="utf-8")
    tuning, _ = tuning_and_judging("wikitext-2", 1, 1, source=tmp_path)
    assert tuning.ids == ("validation-0",)
    assert tuning.prompts[0].text.startswith("valid text")
    assert SPLITS["wikitext-2"] in published("dynatree-adaptive").setup["datasets"]["value"]["wikitext-2"]


def test_fixed_prompts_come_first_where_asked_for():
    tuning, judging = tuning_and_judging("bundled", 2, 3)
    fixed, others = tuning_and_judging("bundled", 2, 3, fixed=True)
    assert (len(tuning), len(judging)) == (len(fixed), len(others)) == (2, 3)
    assert (fixed.ids[0], others.ids[0]) == tuple(FIXED)
    assert len({*fixed.ids, *others.ids}) == 5
    assert not {*tuning.ids, *judging.ids} & {*FIXED}
    assert "fixed prompts, written for this project" in fixed.source
    assert "fixed" not in tuning.source
    alone = tuning_and_judging("bundled", 1, 1, fixed=True)
    assert [part.ids for part in alone] == [(name,) for name in FIXED]


def test_fixed_prompts_are_of_the_papers_kind():
    kind = published("dynatree-fixed").setup["prompt_main"]["value"]
    assert "3 instruction lines plus an opening clause" in kind
    for lines in FIXED.values():
        *instructions, space, opening = lines
        assert len(instructions) == 3
        assert not space
        assert "language models" in opening.lower()
        assert not opening.endswith(".")


@pytest.fixture(scope="module")
def sweep():
    target = random_model("gpt_neox")
    pair = Pair("random", target, noisy_copy(target), None)
    prompts = [BenchPrompt.from_ids(str(n), list(range(1, 5 + n))) for n in range(2)]
    trees = grids.grid("fixed-tree", {"max_nodes": 16}, depth=(2, 4), branching=(2,), tau=(0.01,))
    return run_benchmark(pair, ["hf-generate", "ar", *trees], prompts, max_new_tokens=12)


def test_a_sweep_is_read_at_each_length_in_the_papers_words(sweep):
    rows = swept(sweep, (4, 12))
    assert [(row["new_tokens"], row["D"], row["B"], row["tau"]) for row in rows] == [
        (4, 1, 2, 0.01), (4, 3, 2, 0.01), (12, 1, 2, 0.01), (12, 3, 2, 0.01),
    ]  # fmt: skip
    assert [row["tokens"] for row in rows] == [8, 8, 24, 24]
    whole = {row["method"]: row for row in grids.rows(sweep)}
    for row in rows[2:]:
        own = whole[row["method"]]
        assert row["ar_tokens_per_second"] == whole["hf-generate"]["tokens_per_second"]
        assert (row["speedup"], row["accept"]) == (own["speedup_hf_generate"], own["acceptance_published"])


def test_the_best_of_each_length_is_the_fastest_of_that_length(sweep):
    rows = swept(sweep, (4, 12))
    best = best_of_each_length(rows)
    assert [row["new_tokens"] for row in best] == [4, 12]
    for row in best:
        assert row["speedup"] == max(one["speedup"] for one in rows if one["new_tokens"] == row["new_tokens"])
    assert {*published("dynatree-fixed").table(3).columns} <= {*best[0]}
