"""`dynatree judge`, and the shapes that measured rates suggest."""

import gzip
import json
from itertools import combinations

import pytest

from dynatree_suite.cli.main import main
from dynatree_suite.costs.ranks import RankAcceptance
from dynatree_suite.proofs.judge import read_judged

SMALL = ["judge", "--limit", "2", "--max-new-tokens", "6", "--threads", "1"]


def test_it_prints_a_table_and_writes_a_line_per_tree(tmp_path, capsys):
    file = tmp_path / "judged.jsonl"
    trees = "sampled-tree:depth=3,branching=1,sampled-tree:depth=2"
    options = ["--trees", trees, "--rules", "token-level,traversal,target-walk", "--top-p", "0.9", "--out", str(file)]
    assert main([*SMALL, *options]) == 0
    shown = capsys.readouterr().out
    assert "temperature 1, top-p 0.9; 2 prompts" in shown
    judged = read_judged(file)
    assert len(judged.rows) == len(file.read_text().splitlines()) - 1
    packed = tmp_path / "judged.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert read_judged(packed) == judged
    assert {row["driver"] for row in judged.rows} == {"token-level", "traversal", "target-walk"}
    for tree in judged.setup["rules"]:
        gain = judged.where(tree=tree).gain("traversal", "token-level").value
        assert any(f"{gain:.3f} [" in line and line.startswith(tree) for line in shown.splitlines())
    with pytest.raises(SystemExit):
        main([*SMALL, "--rules"])
    assert main([*SMALL, *options]) == 2
    assert "replace it with --overwrite" in capsys.readouterr().err
    json.loads(file.read_text().splitlines()[0])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--temperature", "0"], "give a --temperature above 0"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--top-p", "1.5"], "top_p is 1.5"),
        (["--rules", "greedy"], "There is no rule 'greedy' at temperature > 0"),
        (["--rules", ","], "No rule was given"),
        (["--trees", "sampled-tree:depth=0"], "depth is 0"),
        (["--trees", "hf-generate"], "does not draft in this library's loop"),
        (["--rules", "block", "--trees", "sampled-tree"], "Block is a rule for chains"),
        (["--trees", "adaptive-tree:draw=iid,prune=remove"], "Use TargetWalk"),
        (["--seeds", "0"], "--seeds is 0"),
        (["--trees", "sampled-tree:verifier=block"], "leave them out"),
        (["--trees", "adaptive-tree:carry=true"], "leave them out"),
        (["--max-new-tokens", "0"], "--max-new-tokens is 0"),
    ],
)
def test_bad_input_is_one_sentence_before_models_are_loaded(options, sentence, capsys, monkeypatch):
    monkeypatch.setattr("dynatree_suite.cli.arguments.load_pair", lambda *args, **kwargs: pytest.fail("loaded"))
    assert main([*SMALL, *options]) == 2
    shown = capsys.readouterr().err
    assert sentence in shown
    assert len(shown.strip().splitlines()) == 1


def worth(slots, rates):
    """Expected accepted tokens of a shape whose slots' rates are those of their place among their siblings."""
    values, levels = [1.0], [0]
    for slot, parent in enumerate(slots, 1):
        rank = sum(other == parent for other in slots[: slot - 1])
        values.append(values[parent] * rates[min(levels[parent], len(rates) - 1)][rank])
        levels.append(levels[parent] + 1)
    return sum(values[1:])


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("rates", [((0.6, 0.3, 0.05), (0.8, 0.15, 0.0)), ((0.1, 0.3, 0.5), (0.2, 0.1, 0.65))])
def test_no_shape_is_worth_more_than_the_one_from_rates(nodes, rates):
    slots = RankAcceptance(rates, (100, 100)).slots(nodes)
    assert len(slots) == nodes
    shapes = [
        (0, *(parents)) for parents in combinations([p for p in range(nodes) for _ in range(3)], nodes - 1)
    ]  # ascending parents: breadth-first order
    shapes = [one for one in shapes if all(parent <= place for place, parent in enumerate(one))]
    assert worth(slots, rates) == pytest.approx(
        max(worth(one, rates) for one in shapes if max(map(one.count, one)) <= 3)
    )


def test_shapes_keep_to_a_depth_and_to_possible_ranks():
    acceptance = RankAcceptance(((0.9, 0.0),), (100,))
    assert acceptance.slots(4) == (0, 1, 2, 3)
    assert acceptance.slots(2, depth=1) == (0, 0)
    with pytest.raises(ValueError, match="nodes is 0"):
        acceptance.slots(0)
