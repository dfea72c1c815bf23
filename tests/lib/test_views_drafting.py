"""Pictures of drafting inside the target's forward show the trees, masks and pools they are given."""

import re
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("plotly")

import dynatree_lib as dt
from dynatree_lib.decoding import Iteration
from dynatree_lib.drafters.base import Proposal
from dynatree_lib.drafters.pool import CandidatePool
from dynatree_lib.plots import forward_mask, forward_trees
from dynatree_lib.plots.forward import CELLS, joining
from dynatree_lib.verifiers import Greedy
from dynatree_lib.verifiers.base import Verdict
from dynatree_suite.papers.ptd.figures import draft_births, draft_steps, pool_trees, survivors


@pytest.fixture
def one():
    tree = dt.TokenTree.build([9, 1, 2, 3], [-1, 0, 0, 1])
    side_tree = dt.TokenTree.build([9, 5, 6, 7, 8], [-1, 0, 1, 0, 3])
    return Iteration(tree, Verdict((1,), 4), {}, side_tree)


@pytest.fixture(scope="module")
def steps():
    """(iteration, predictions, nodes of the draft tree by their identity) of each iteration, and the drafter."""
    target, drafter = (
        dt.ToyModel.random(9, seed=3),
        dt.ProgressiveTree(depth=3, children=2, start_tree=(2,), max_draft=9),
    )
    prompt, sampling, random = [1, 4, 2, 7, 5], dt.Sampling(), dt.RandomSource(0, "verify")
    session, state, out = target.session(), drafter.start(prompt, dt.RandomSource(0, "draft")), []
    session.start(prompt[:-1])
    for _ in range(9):
        proposal = drafter.propose(state, 50)
        scores = session.score(*proposal.nodes, sampling)
        verdict = Greedy().verify(proposal.tree, scores, None, random)
        order = [*state.order]
        out.append(
            (Iteration(proposal.tree, verdict, {}, proposal.side_tree), scores.argmax[len(proposal.tree) :], order)
        )
        state = drafter.observe(state, proposal, scores, verdict)
        session.commit([0, *verdict.path])
    return out, drafter, state


def legend(figure):
    return {trace.name for trace in figure.data if trace.showlegend is not False and trace.type == "scatter"}


def texts(figure):
    return [re.sub("</?b>", "", note.text) for note in figure.layout.annotations]


def test_both_trees_hang_below_one_last_token(one):
    figure = forward_trees(one, random={1}, predicted=[6, 3, 8, 2], children=2)
    assert texts(figure) == ["9", "1", "2", "3", "4", "5", "6", "7", "8", "3", "2"]  # 6 and 8 are children already
    places = [(note.x, note.y) for note in figure.layout.annotations]
    assert len({*places}) == len(places)
    assert [x for x, _ in places] == [0, 1, 1, 2, 2, 1, 2, 1, 2, 3, 3]
    fills = [note.bgcolor for note in figure.layout.annotations]
    assert fills[5] != fills[7]  # the random token and a prediction
    assert fills[1] != fills[2]  # accepted and not
    assert "4 candidates" not in figure.layout.title.text
    assert "3 candidates, 4 draft nodes; 2 tokens emitted" in figure.layout.title.text
    assert {"accepted by the target", "draft tree: random token", "predicted now, joins the draft tree"} <= legend(
        figure
    )


def test_without_a_draft_tree_the_candidates_are_drawn_alone(one):
    figure = forward_trees(Iteration(one.tree, one.verdict))
    assert texts(figure) == ["9", "1", "2", "3", "4"]
    assert not any("draft tree" in name for name in legend(figure))


def test_where_a_text_ends_inside_an_accepted_path_there_is_no_bonus_token(one):
    figure = forward_trees(Iteration(one.tree, Verdict((1,), 3), {}, one.side_tree))
    assert texts(figure) == ["9", "1", "2", "3", "5", "6", "7", "8"]
    assert "drafted, and the last token of the text" in legend(figure)
    assert "draft tree: for later iterations, never committed" in legend(figure)
    assert not any("bonus" in name for name in legend(figure))


def test_predictions_join_where_they_are_new_and_there_is_room(one):
    assert joining(one.side_tree, [6, 3, 5, 2]) == [(2, 3), (3, 5), (4, 2)]
    assert joining(one.side_tree, [6, 3, 5, 2], children=1) == [(2, 3), (4, 2)]
    with pytest.raises(ValueError, match="There are 1 predictions for 4 nodes"):
        joining(one.side_tree, [6])


@pytest.mark.parametrize("kind", ["iteration", "proposal"])
def test_the_mask_has_three_groups_that_see_the_last_token_and_themselves(one, kind):
    shown = one if kind == "iteration" else Proposal(one.tree, side_tree=one.side_tree)
    figure = forward_mask(shown, prefix=2)
    cells = np.array(figure.data[0].z)[:, 2:]
    names = np.array(CELLS)[cells]
    assert (np.array(figure.data[0].z)[:, :2] == CELLS.index("prefix")).all()
    assert figure.layout.yaxis.ticktext == ("9", "5", "6", "7", "8", "1", "2", "3")
    assert (names[:, 0] == "last token").all()
    assert (names[1:5, 5:] == "not seen: the other tree").all()
    assert (names[5:, 1:5] == "not seen: the other tree").all()
    assert (names[7] == "candidate tree").tolist() == [*[False] * 5, True, False, True]
    assert figure.layout.xaxis.ticktext[2:] == ("0", "1", "2", "1", "2", "1", "1", "2")
    labels = {note.text for note in figure.layout.annotations}
    assert labels == {"draft tree", "candidate tree"}


def test_the_mask_is_the_one_that_is_scored(steps):
    for one, *_ in steps[0]:
        seen = np.array(forward_mask(one, prefix=0).data[0].z) >= CELLS.index("last token")
        first = len(one.side_tree)
        back = [0, *range(first, len(seen)), *range(1, first)]  # the order of the nodes in the forward
        scored = dt.masks.ancestor_matrix(Proposal(one.tree, side_tree=one.side_tree).nodes[1])
        assert (seen[np.ix_(back, back)] == scored).all()


def test_survivors_are_the_very_nodes(steps):
    iterations, drafter, _ = steps
    stepped = 0
    for (before, _, old), (after, _, new) in pairwise(iterations):
        found = survivors(before.side_tree, after.side_tree, drafter.depth)
        was = {id(node): place for place, node in enumerate(old, start=1)}
        assert found.tolist() == [0, *(was.get(id(node), -1) for node in new)]
        stepped += len({*range(1, len(before.side_tree))} - {*found.tolist()}) > 0
    assert stepped > 1


def test_draft_steps_tell_random_tokens_births_and_what_is_dropped(steps):
    iterations, drafter, _ = steps
    trees = [one.side_tree for one, *_ in iterations]
    births = draft_births(trees, drafter.depth)
    assert (births[0] == 0).all()
    assert all(born[1:].max() == step for step, born in enumerate(births) if step)
    assert not (births[-1][1:] == 0).any()  # the random tokens are gone
    figure = draft_steps(trees[:5], drafter.depth)
    boxes = [note for note in figure.layout.annotations if note.bgcolor]
    assert len(boxes) == sum(map(len, trees[:5]))
    assert len({(note.x, note.y) for note in boxes}) == len(boxes)
    assert {"random token", "dropped by the step that follows"} <= legend(figure)
    gone = sum(len(a) - len({*survivors(a, b, drafter.depth).tolist()} - {-1}) for a, b in pairwise(trees[:5]))
    assert sum(note.borderwidth > 2 for note in boxes) == gone
    assert "iteration 1: 2 draft nodes" in texts(figure)


def test_what_joins_is_there_in_the_next_iteration(steps):
    iterations, drafter, _ = steps
    (one, predicted, _), (after, *_) = iterations[:2]
    new = np.flatnonzero(survivors(one.side_tree, after.side_tree, drafter.depth) < 0)
    added = sorted(token for _, token in joining(one.side_tree, predicted.tolist(), drafter.children))
    assert sorted(after.side_tree.tokens[new].tolist()) == added


def test_pool_trees_show_the_latest_first_and_say_what_they_leave_out(steps):
    pool = CandidatePool(100)
    for token in (4, 5, 6, 5):
        pool.settle()
        pool.merge([3, token, 9])
    figure = pool_trees([pool.roots[3]], levels=1, widest=2)
    assert texts(figure) == ["6 nodes, 2 shown", "3", "5 ×2", "6 ×1"]
    assert {"merged in the latest iteration", "merged earlier"} <= legend(figure)
    whole = pool_trees(steps[2].pool.roots.values(), levels=9, widest=99, columns=2)
    assert sum(bool(note.bgcolor) for note in whole.layout.annotations) == steps[2].pool.nodes


def test_figures_are_offline_and_readable(one, steps):
    trees = [step.side_tree for step, *_ in steps[0]]
    roots = [*steps[2].pool.roots.values()][:2]
    for figure in (
        forward_trees(one), forward_mask(one), draft_steps(trees, 3), pool_trees(roots)
    ):  # fmt: skip
        exported = figure.to_html(full_html=False, include_plotlyjs=False)
        assert not re.search(r"https?://|src=", exported)
        sizes = re.findall(r'"size":(\d+(?:\.\d+)?)', figure.to_json())
        assert figure.layout.title.text
        assert all(float(size) >= 12 for size in sizes)
