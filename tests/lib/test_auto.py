"""Auto: what it may lose by construction, when it drafts nothing, what it takes from text, predictions and draft."""

from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
from models import feature_draft, prompt, random_model
from test_forward_drafters import counting, driven, shifting

import dynatree_lib as dt
from dynatree_lib.drafters.auto import AGAIN, AT_ONCE, CREDIT, FEW, LUCK, MEMORY, SPAN, Growing, Trial
from dynatree_lib.drafters.base import Proposal, renumbered
from dynatree_lib.drafters.cost_aware_sampled_tree import EDGES
from dynatree_lib.drafters.search import Chosen
from dynatree_lib.models.eagle import EagleSession
from dynatree_lib.sampling import Scores
from dynatree_lib.verifiers.base import Verdict
from dynatree_suite.proofs import exact

COSTS = dt.Costs((1.0, 1.2, 1.9, 3.2, 5.9, 11.3, 22.1), (0.14, 0.16, 0.16, 0.26, 0.44), 0.12)
CHEAP = dt.Costs((1.0, 1.01, 1.02, 1.04, 1.08), (0.01, 0.01), 0.0)
DEAR = replace(CHEAP, prompt=1.2, guesses=1000)
"""The draft reads as little of a prompt as it ever does, and nothing is guessed."""
TARGET = dt.ToyModel.random(60, 3, sharpness=3.0)
FRIEND, FOE = TARGET.mixed(dt.ToyModel.random(60, 4, sharpness=3.0), 0.1), dt.ToyModel.random(60, 9, sharpness=3.0)
PROMPT = [1, 4, 2, 9]
PROMPT_OF_EIGHT = [1, 4, 2]


def ledger(target, prompt, drafter, budget, seed=0):
    """Tokens and predicted greedy steps after each iteration, counted beside the drafter."""
    tokens, spent, work = 0, 0.0, (0, 0)
    for proposal, _, verdict, state, _ in driven(target, prompt, drafter, budget, seed):
        done = drafter.drafting_work(state)
        levels = done[0] - work[0]
        width = (done[1] - work[1]) / levels if levels else 1.0
        spent += drafter.prices.scoring(len(proposal.tree)) + levels * drafter.prices.reading(width)
        spent += drafter.prices.overhead * (levels > 0) + drafter.prices.guesses * (not state.missed)
        tokens, work = tokens + len(verdict.path) + 1, done
        yield tokens, spent, proposal, state


@pytest.mark.parametrize("share", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("draft", [None, FRIEND, FOE], ids=["alone", "friend", "foe"])
def test_a_text_loses_no_more_than_its_share(draft, share):
    worst = 0.0
    for seed in range(6):
        target = shifting(60, seed) if draft is None else TARGET
        drafter = dt.Auto(draft, costs=COSTS, share=share)
        before = 0, 0.0
        for tokens, spent, _, state in ledger(target, [*PROMPT, seed], drafter, 160, seed):
            assert spent - tokens <= share * max(tokens, SPAN) + 1e-6
            left = share * max(before[0], SPAN) - (before[1] - before[0])
            assert spent - before[1] - 1 <= AT_ONCE * left + 0.05  # a few bad iterations leave something to try with
            before = tokens, spent
            assert state.owed == pytest.approx(spent - tokens, abs=0.05)  # levels of several widths are averaged here
            worst = max(worst, spent - tokens)
    assert worst > 0.5 or share == 0 or draft is FRIEND


def test_a_text_that_may_lose_nothing_and_gains_nothing_is_decoded_plainly():
    out = dt.generate(TARGET, PROMPT, dt.Auto(FOE, costs=COSTS, share=0.0), max_new_tokens=60)
    assert all(len(one.tree) == 1 for one in out.iterations)


def test_a_foe_is_asked_seldom_and_a_friend_often():
    asked = {}
    for name, draft in (("friend", FRIEND), ("foe", FOE)):
        out = dt.generate(TARGET, PROMPT, dt.Auto(draft, costs=COSTS), max_new_tokens=200)
        assert out.tokens == dt.autoregressive(TARGET, PROMPT, max_new_tokens=200).tokens
        asked[name] = out.state.drafter_state.drafting.session.forwards / len(out.iterations)
    assert asked["foe"] < 0.1 < 1 < asked["friend"]


def test_where_tokens_are_drawn_less_is_expected_of_the_draft():
    """What is expected of it for temperature 0, times how often the token drawn was the most probable one."""
    dear = replace(COSTS, overhead=0.2)
    drafter = dt.Auto(FRIEND, costs=dear, draws=False)
    begun = drafter.start(PROMPT, dt.RandomSource(0, "draft"))
    assert len(drafter.propose(begun, 16).tree) > 1
    assert len(drafter.propose(begun, 16, dt.Sampling(1.0)).tree) == 1
    shares = {}
    for temperature in (0.0, 0.2, 3.0):
        sampling = dt.Sampling(temperature)
        drafter = dt.Auto(FRIEND, costs=CHEAP, draws=False)
        out = dt.generate(TARGET, PROMPT, drafter, max_new_tokens=400, sampling=sampling)
        state, text = out.state.drafter_state, [*PROMPT, *out.tokens]
        best = [int(np.argmax(TARGET.distribution(tuple(text[:end])))) for end in range(len(text) - 150, len(text))]
        shares[temperature] = np.mean([token == top for token, top in zip(text[-150:], best, strict=True)])
        if temperature:
            assert state.drawn[0] == pytest.approx(shares[temperature], abs=0.15)
        tried = drafter._child(state, sampling)
        assert tried == pytest.approx(state.child[0] * (state.drawn[0] if temperature else 1.0))
    assert shares[0.0] == 1 > shares[0.2] > shares[3.0] + 0.3


def test_the_draft_is_told_of_all_that_was_scored(monkeypatch):
    """Scores may hold more nodes than the tree, those of a side tree; features of the queue come before them all."""
    drafter, told = dt.Auto(FRIEND, costs=COSTS), []
    monkeypatch.setattr(dt.CostAwareTree, "follow", lambda self, state, *given: told.append(given) or state)
    state = drafter.start(PROMPT, dt.RandomSource(0, "draft"))
    scores = Scores(torch.zeros(5, 60), dt.Sampling(), features=torch.zeros(7, 4))
    proposal = Proposal(dt.TokenTree.build([PROMPT[-1]], [-1]))
    state = drafter.observe(state, proposal, scores, Verdict((), 3))
    drafter._tell(state)
    ((of, seen, verdict),) = told
    assert (of, len(seen), len(seen.features), verdict) == (proposal, 5, 7, Verdict((), 3))


def test_a_text_that_repeats_itself_is_copied_without_the_draft():
    foe = dt.ToyModel.random(30, 9, sharpness=3.0)
    out = dt.generate(counting(30), [*range(30), *range(5)], dt.Auto(foe, costs=COSTS), max_new_tokens=90)
    assert len(out.tokens) / len(out.iterations) > 2
    assert out.state.drafter_state.drafting.session.forwards < 6


def test_what_the_target_predicted_is_drafted_though_it_never_followed():
    """After a text's first half the second one begins: the tokens follow in an order that only predictions know."""
    out = dt.generate(shifting(12, 3), PROMPT, dt.Auto(costs=CHEAP), max_new_tokens=120)
    alone = dt.generate(shifting(12, 3), PROMPT, dt.SuffixTree(costs=CHEAP), max_new_tokens=120)
    assert out.tokens == alone.tokens
    assert len(out.iterations) < len(alone.iterations)


def test_with_a_draft_and_guesses_a_tree_holds_both():
    """Nodes that the draft alone proposes, nodes that the text alone knows, and shared ones, in one tree."""
    iterations = np.zeros(3, int)
    for seed in range(3):
        target = shifting(12, seed, sharpness=1.5)
        draft = target.mixed(dt.ToyModel.random(12, 8), 0.8)
        drafters = [dt.Auto(draft, costs=CHEAP, max_nodes=40, share=0.9), dt.Auto(costs=CHEAP, max_nodes=40, share=0.9),
                    dt.CostAwareTree(draft, costs=CHEAP, max_nodes=40)]  # fmt: skip
        both, text, alone = (dt.generate(target, PROMPT, each, max_new_tokens=120) for each in drafters)
        assert both.tokens == text.tokens == alone.tokens
        assert max(len(one.tree) for one in both.iterations) <= 40
        assert both.state.drafter_state.drafting.session.forwards > 10
        iterations += [len(out.iterations) for out in (both, text, alone)]
    assert iterations[0] < 0.9 * iterations[1:].min()  # the text knows what the draft does not


def test_guesses_rest_while_they_gain_nothing_and_catch_up_afterwards():
    """A text of few repetitions, whose guesses cost a tenth of a step."""
    drafter, rested, made = dt.Auto(costs=replace(COSTS, guesses=0.1)), 0, 0
    text = [*PROMPT, *dt.autoregressive(TARGET, PROMPT, max_new_tokens=140).tokens]
    for tokens, spent, _, state in ledger(TARGET, PROMPT, drafter, 130):
        assert spent - tokens <= 0.02 * max(tokens, SPAN) + 1e-6
        rested, made = rested + bool(state.missed), made + (not state.missed)
        known = [*state.guesses.text, *state.missed]
        assert known == text[: len(known)]
    assert rested > made > 9


def test_a_trial_by_hand():
    trial = Trial()
    assert (trial.worth, trial.rest) == (CREDIT, 0)
    trial.add(-1.0)
    assert trial.worth == pytest.approx(0.9 * CREDIT - 0.1)
    trial.add(-1.0)
    assert (trial.worth, trial.rest, trial.further) == (AGAIN, 16, 32)
    for _ in range(3):
        trial.add(-1.0)
    assert (trial.rest, trial.further) == (64, 64)
    trial.add(2.0)
    assert trial.further == 16


@pytest.mark.parametrize(
    ("prompt", "share", "read"), [(0.0, 0.02, 300), (0.01, 0.02, 42), (0.04, 0.02, 16), (0.01, 0, 16)]
)
def test_of_a_long_prompt_the_draft_reads_what_half_of_an_iterations_loss_buys(prompt, share, read):
    drafter = dt.Auto(FRIEND, costs=replace(CHEAP, prompt=prompt), share=share)
    state = drafter.start([1] * 300, dt.RandomSource())
    assert state.drafting.session.queued == read - 1  # node 0 is read with the tree


def test_what_the_draft_reads_of_a_prompt_is_in_the_ledger():
    drafter = dt.Auto(FRIEND, costs=replace(CHEAP, prompt=0.01), share=0.02)
    state = drafter.start(np.random.default_rng(1).integers(0, 60, 300).tolist(), dt.RandomSource())
    drafter.propose(state, 9)
    assert state.cost == pytest.approx(0.41 + 0.01 * state.drafting.session.forwards)


@torch.inference_mode()
def test_after_a_long_rest_the_draft_begins_with_the_last_tokens(monkeypatch):
    """A draft on features, too, reads no more than of a prompt; its levels are counted over both beginnings."""
    target = random_model("llama")
    draft, ids = feature_draft(target), prompt(FEW)[0].tolist()
    rests = range(8, 60)
    monkeypatch.setattr(dt.Auto, "_levels_pay", lambda self, state, *_: state.tokens not in rests)
    drafter, forwards, have_read = dt.Auto(draft, costs=DEAR, share=0.9), [], EagleSession._have_read
    monkeypatch.setattr(EagleSession, "_have_read", lambda *given: forwards.append(1) or have_read(*given))
    out = dt.generate(target, ids, drafter, max_new_tokens=100)
    text, first, compared, resting = ids, 0, [0, 0], []
    for iteration in out.iterations:
        tree = iteration.tree
        if len(tree) > 1 and len(resting) > FEW:
            kept = next(count for count in range(1, 99) if sum(resting[-count:]) >= FEW)
            first = len(text) - 1 - sum(resting[-kept:])
        for node in range(1, len(tree)):
            above = [*map(tree.tokens.item, tree.path(node)[:-1])]
            expected = reference.feature_logits(target.model, draft.model, text, above, first)[-1].log_softmax(-1)
            assert float(expected[tree.tokens[node]]) == pytest.approx(tree.logprobs[node], abs=1e-9)
            compared[first > 0] += 1
        resting = [] if len(tree) > 1 else [*resting, iteration.committed]
        text = text + iteration.verdict.tokens(tree)
    assert min(compared) > 4
    assert drafter.drafting_work(out.state.drafter_state)[0] == len(forwards)


def test_no_node_is_more_probable_than_its_parent():
    for seed in range(20):
        target = shifting(9, seed)
        draft = target.mixed(dt.ToyModel.random(9, seed + 1), 0.3)
        drafter = dt.Auto(draft, costs=CHEAP, max_nodes=12, share=0.9)
        state = drafter.start([*PROMPT[:3], 1, 4, 2, 8, 1, 4], dt.RandomSource(seed))
        tree = drafter.propose(state, 9).tree
        estimate = np.array(state.estimate)
        assert (estimate[1:] <= estimate[tree.parents[1:]] + 1e-9).all()
        assert len(state.estimate) == len(tree) == len(state.read)


def test_what_is_fresh_by_hand():
    guesses = [Chosen(1, 0, 0.5, 0.5), Chosen(2, 0, 0.2, 0.2), Chosen(3, 1, 0.6, 0.3)]
    nodes = Growing(0, guesses)
    nodes.add([3], [0.3], [[4]], [[-1.0]], [[1 / 3]], 0.0)
    assert nodes.estimate == pytest.approx([1.0, 0.5, 0.2, 0.3, 0.1])
    assert nodes.fresh(range(5)) == pytest.approx([0.5, 0.2, 0.2, 0.3, 0.1])


def test_renumbering_keeps_what_is_known_of_nodes():
    drafter = dt.Auto(FRIEND, costs=CHEAP, max_nodes=8, share=0.9)
    state = drafter.start(PROMPT, dt.RandomSource())
    tree = drafter.propose(state, 5).tree
    before = np.array(state.estimate)
    nodes = np.append(0, np.arange(2, len(tree) + 1))
    drafter.renumber(state, nodes, len(tree) + 1)
    assert state.estimate == renumbered(before, nodes, len(tree) + 1, 0.0).tolist()


@pytest.mark.parametrize("draft", [False, True], ids=["alone", "with a draft"])
@pytest.mark.parametrize("draws", [False, True], ids=["fixed", "drawn"])
@pytest.mark.parametrize("rule", [dt.TargetWalk, dt.TokenLevel, dt.Traversal], ids=lambda rule: rule.name)
def test_sampled_texts_have_the_targets_distribution(draft, draws, rule):
    """Enumerated; what is drafted follows what was drawn before, not the draw itself."""
    target = dt.ToyModel.random(3, 1, sharpness=1.5)
    model = dt.ToyModel.random(3, 2) if draft else None
    drafter = dt.Auto(model, costs=CHEAP, max_nodes=4, depth=2, branching=2, share=0.9, draws=draws)
    sampling, text = dt.Sampling(1.0), [0, 1, 0, 1, 0]
    assert any(one.tree.draws.any() for one, _ in exact.proposals(drafter, text, sampling)) == (draft and draws)
    bias, _ = exact.bias(target, drafter, rule(), text, sampling)
    assert bias < 1e-12


def test_the_text_of_a_seed_is_that_of_plain_decoding_where_nothing_is_drawn():
    options = {"max_new_tokens": 60, "sampling": dt.Sampling(0.8), "seed": 4}
    plain = dt.autoregressive(TARGET, PROMPT, **options).tokens
    for drafter in (dt.Auto(FRIEND, costs=CHEAP, draws=False), dt.Auto(costs=CHEAP)):
        assert dt.generate(TARGET, PROMPT, drafter, **options).tokens == plain
    drawn = dt.generate(TARGET, PROMPT, dt.Auto(FRIEND, costs=CHEAP), **options)
    assert any(one.tree.draws.any() for one in drawn.iterations)


@pytest.mark.parametrize(("temperature", "drawn"), [(0.0, 0.0), (0.1, 0.0), (1.5, 1.0)])
def test_the_draft_draws_where_that_is_accepted_more_often_than_its_best(temperature, drawn):
    """At low temperatures its most probable tokens are, at high ones those that it draws."""
    target = dt.ToyModel.random(60, 3, sharpness=2.0)
    drafter = dt.Auto(target.mixed(dt.ToyModel.random(60, 4), 0.3), costs=CHEAP)
    out = dt.generate(target, PROMPT, drafter, max_new_tokens=300, sampling=dt.Sampling(temperature))
    trees = [one.tree for one in out.iterations[5:] if len(one.tree) > 1]
    assert len(trees) > 9
    assert np.mean([tree.draws.any() for tree in trees]) == pytest.approx(drawn, abs=0.1)


def test_a_drawn_chain_by_hand():
    """Its tokens, their log-probabilities and distributions, and what it learns."""
    target, sampling = dt.ToyModel.random(8, 5), dt.Sampling(1.0)
    drafter = dt.Auto(target.mixed(dt.ToyModel.random(8, 6), 0.3), costs=replace(CHEAP, guesses=1000))
    state = drafter.start(PROMPT_OF_EIGHT, dt.RandomSource(7, "draft"))
    proposal = drafter.propose(state, 16, sampling)
    tree, text = proposal.tree, [*PROMPT_OF_EIGHT]
    assert len(tree) > 2
    assert tree.parents.tolist() == [*range(-1, len(tree) - 1)]
    assert tree.draws.tolist() == [0, *[2] * (len(tree) - 1)]
    for node in range(1, len(tree)):
        given, token = drafter.draft.distribution(tuple(text)), int(tree.tokens[node])
        np.testing.assert_allclose(proposal.distributions.distribution(node - 1).numpy(), given, atol=1e-12)
        assert tree.logprobs[node] == pytest.approx(np.log(given[token]))
        assert state.classes[node - 1] == np.searchsorted(EDGES, given[token], side="right")
        text.append(token)
    before = state.taken[0]
    scores = exact.target_scores(target, PROMPT_OF_EIGHT, tree, sampling)
    state = drafter.observe(state, proposal, scores, Verdict((1,), 3))
    assert state.taken.tried[0] == pytest.approx(MEMORY * (MEMORY * 5 + 1) + 1)  # the first was taken, the second not
    assert state.taken[0] != before
    assert (state.classes, state.nodes) == ((), 1)


def test_while_tokens_are_drawn_a_text_loses_no_more_than_luck_allows():
    sampling, most = dt.Sampling(2.0), []
    for draft in (FOE, None):
        drafter, owed = dt.Auto(draft, costs=COSTS), []
        for seed in range(6):
            out = dt.generate(TARGET, [*PROMPT, seed], drafter, max_new_tokens=160, sampling=sampling, seed=seed)
            owed.append(out.state.drafter_state.owed)
        most.append(max(owed) / (drafter.share * 160))
    assert 1 < most[0] <= LUCK
    assert most[1] <= 1


def test_an_earlier_text_is_of_use():
    target = shifting(40, 4)
    drafter = dt.Auto(costs=CHEAP)
    first = dt.generate(target, PROMPT, drafter, max_new_tokens=100)
    again = dt.generate(target, PROMPT, drafter, max_new_tokens=100, warm=first.state)
    assert again.tokens == first.tokens
    assert len(again.iterations) < 0.5 * len(first.iterations)


def test_it_is_the_default():
    out = dt.generate(TARGET, PROMPT, max_new_tokens=20)
    assert out.state.drafter.name == "auto"
    assert out.tokens == dt.autoregressive(TARGET, PROMPT, max_new_tokens=20).tokens


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"share": 1.0}, "share is 1.0; the rule is 0 <= share < 1"),
        ({"share": -0.1}, "share is -0.1"),
        ({"max_nodes": 1}, "counts node 0"),
        ({"depth": 0}, "depth is 0"),
        ({"branching": 0}, "branching is 0"),
        ({"pool": -1}, "pool is -1"),
        ({"costs": "dear"}, "costs is 'dear'; give Costs"),
    ],
)
def test_bad_options_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        dt.Auto(**options)
    with pytest.raises(TypeError, match="The draft is"):
        dt.Auto("a draft")
