"""That the verification rules are lossless, optimal and refused where they should be: proofs by enumeration.

The production verifiers are held against slow twins in exact fractions, against a linear programme, and against the
mistakes that are natural to make, each planted into the production code and caught.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest
import reference
import torch
from examples import examples
from models import noisy_copy, prompt, random_model
from scipy import stats
from scipy.optimize import linprog

import dynatree_lib.decoding as decoding
from dynatree_lib import (
    AdaptiveTree,
    Block,
    FixedTree,
    Greedy,
    SampledTree,
    Sampling,
    TargetWalk,
    TokenLevel,
    TokenTree,
    ToyModel,
    Traversal,
    autoregressive,
    generate,
    load_pair,
)
from dynatree_lib.drafters import ModelDrafter
from dynatree_lib.drafters.base import Proposal
from dynatree_lib.models.toy import ToySession
from dynatree_lib.sampling import GREEDY, DraftDistributions, RandomSource, Scores, probabilities
from dynatree_lib.tree import DISTINCT, IID, POINT
from dynatree_lib.verifiers import Drawing, Verdict
from dynatree_lib.verifiers.residual import Recorded, Residual
from dynatree_suite.drafters import ALL_DRAFTERS
from dynatree_suite.proofs import exact

ONE = Sampling(1.0)
TINY = 1e-12
SAMPLING_RULES = (TargetWalk, TokenLevel, Block, Traversal)


def constant(*distribution):
    """A model with the same law everywhere."""
    return ToyModel(lambda context: distribution, len(distribution))


def drafted_tokens(target, drafter, rule):
    """Exact expectation of the drafted tokens an iteration keeps, E[tau]."""
    return exact.iteration(target, drafter, rule, [0], ONE).tokens - 1


# The verdict on one given tree, against the twins in fractions


def random_law(rng, size):
    """Small whole numbers as a law, with zeros half of the time."""
    weights = [int(w) for w in rng.integers(0, 5, size) + rng.integers(0, 2)]
    return [Fraction(w, sum(weights)) for w in weights] if sum(weights) else random_law(rng, size)


def random_token(rng, tree, u, code):
    """A token for the next child of u as its code says, or None where nothing is left to draw."""
    q = tree.whole(u)
    if code == POINT:
        # A deterministic token that the draft does not know, beside drawn siblings, has a test of its own.
        return int(rng.integers(len(tree.draft[u])))
    if code == DISTINCT:
        q = [Fraction(0) if any(tree.tokens[c] == x for c in tree.children(u)) else share for x, share in enumerate(q)]
    return int(rng.choice(len(q), p=np.array(reference.normalised(q), float))) if sum(q) else None


def random_drafted(seed, chain=False, codes=(POINT, IID, DISTINCT), distinct=False):
    """A random tree of up to 8 nodes: irregular, codes mixed among siblings, zeros, a draft with fewer tokens.

    Nodes on copies of one path of tokens have one law of the target, as a model would give them.
    """
    rng = np.random.default_rng(seed)
    size, wanted = int(rng.integers(2, 6)), int(rng.integers(2, 9))
    tree = reference.Drafted([0], [-1], [POINT], [random_law(rng, size)], {})
    distributions = {}
    for _ in range(1, wanted):
        u = len(tree.tokens) - 1 if chain else int(rng.integers(len(tree.tokens)))
        tree.draft.setdefault(u, random_law(rng, size - int(size > 2 and rng.random() < 0.3)))
        code = int(rng.choice(codes))
        token = random_token(rng, tree, u, code)
        if token is None or (distinct and any(tree.tokens[c] == token for c in tree.children(u))):
            continue
        for values, value in zip((tree.tokens, tree.parents, tree.codes), (token, u, code), strict=True):
            values.append(value)
        tree.target.append(distributions.setdefault(tree.text(len(tree.tokens) - 1), random_law(rng, size)))
    return tree


def in_production(tree):
    """The same tree as a proposal and the target's rows."""
    distributions = DraftDistributions("toy")
    for u, distribution in tree.draft.items():
        distributions.record(u, torch.tensor([float(share) for share in distribution], dtype=torch.float64))
    logits = torch.tensor(
        [[float(share) for share in distribution] for distribution in tree.target], dtype=torch.float64
    ).log()
    return Proposal(TokenTree.build(tree.tokens, tree.parents, draws=tree.codes), distributions), Scores(
        logits, ONE, "toy"
    )


def verdict_law(rule, tree):
    """Law of the production verdict, by kept nodes and extra token."""
    found = defaultdict(float)
    for verdict, probability in exact.verdicts(rule, *in_production(tree)):
        found[verdict.path, verdict.next_token] += probability
    return found


def close(found, expected):
    return exact.distance(found, {key: float(share) for key, share in expected.items()}) < TINY


FIXED = {"codes": (POINT,), "distinct": True}
TWINS = {
    "traversal": (Traversal, reference.traversal_law, {}),
    "traversal as published": (Traversal, reference.traversal_law_as_published, {}),
    "recursive rejection": (TokenLevel, reference.token_level_law, {}),
    "target walk": (TargetWalk, reference.target_walk_law, {}),
    "block": (Block, reference.block_law, {"chain": True}),
    "traversal of a chain is block": (Traversal, reference.block_law, {"chain": True}),
    "traversal of a deterministic tree is the walk": (Traversal, reference.target_walk_law, FIXED),
    "token level of a deterministic tree is the walk": (TokenLevel, reference.target_walk_law, FIXED),
}


@pytest.mark.parametrize("name", TWINS)
def test_the_verdict_on_a_given_tree_has_the_twins_law(name):
    rule, twin, options = TWINS[name]
    for seed in range(250):
        tree = random_drafted(seed, **options)
        assert close(verdict_law(rule(), tree), twin(tree)), seed


def test_the_two_forms_of_traversal_are_one_rule_without_any_rounding():
    for seed in range(500):
        tree = random_drafted(seed)
        distribution = reference.traversal_law(tree)
        assert distribution == reference.traversal_law_as_published(tree), seed
        assert sum(distribution.values()) == sum(reference.token_level_law(tree).values()) == 1


def test_the_random_trees_have_what_makes_rules_fail():
    trees = [random_drafted(seed) for seed in range(250)]
    families = [(tree, tree.children(u)) for tree in trees for u in range(len(tree.tokens))]
    drawn = [[tree.tokens[c] for c in siblings if tree.codes[c] == IID] for tree, siblings in families]
    assert sum(len(set(tokens)) < len(tokens) for tokens in drawn) > 25
    assert sum(len({tree.codes[c] for c in siblings}) == 3 for tree, siblings in families) > 20
    assert sum(len(distribution) < len(tree.target[0]) for tree in trees for distribution in tree.draft.values()) > 100
    assert sum(0 in distribution for tree in trees for distribution in tree.draft.values()) > 100
    assert sum(0 in distribution for tree in trees for distribution in tree.target) > 100
    assert {len(tree.target[0]) for tree in trees} == {2, 3, 4, 5}


@pytest.mark.parametrize("rule", SAMPLING_RULES, ids=lambda rule: rule.name)
def test_a_target_that_is_certain_is_followed_like_the_greedy_one(rule):
    for seed in range(60):
        tree = random_drafted(seed, chain=rule is Block, distinct=rule is not TargetWalk)
        certain = replace(
            tree,
            target=[
                reference.one_hot(distribution.index(max(distribution)), len(distribution))
                for distribution in tree.target
            ],
        )
        proposal, rows = in_production(certain)
        greedy = Greedy().verify(proposal.tree, Scores(rows.logits, GREEDY), None, RandomSource())
        assert close(verdict_law(rule(), certain), {(greedy.path, greedy.next_token): 1})


@pytest.mark.parametrize("rule", [TokenLevel, Traversal], ids=lambda rule: rule.name)
def test_a_first_chain_that_is_drawn_from_the_targets_own_law_is_kept_whole(rule):
    for seed in range(100):
        tree = random_drafted(seed)
        leaf = first_chain(tree.children)[-1]
        chain = [0, *tree.path(leaf)]
        agreed = [
            tree.drawn(chain[chain.index(u) + 1]) if u in chain[:-1] else distribution
            for u, distribution in enumerate(tree.target)
        ]
        found = verdict_law(rule(), replace(tree, target=agreed))
        assert sum(share for (path, _), share in found.items() if path == tree.path(leaf)) == pytest.approx(1, abs=TINY)


def first_chain(children):
    """Nodes of the chain of first children below node 0; node 0 where there is none."""
    chain = [0]
    while len(children(chain[-1])):
        chain.append(int(children(chain[-1])[0]))
    return chain[1:] or [0]


def test_a_deterministic_sibling_may_be_a_token_the_draft_does_not_know():
    half = Fraction(1, 2)
    target = [[half, Fraction(1, 4), Fraction(1, 4)]] * 3
    tree = reference.Drafted([0, 2, 0], [-1, 0, 0], [POINT, POINT, DISTINCT], target, {0: [half, half]})
    assert close(verdict_law(TokenLevel(), tree), reference.token_level_law(tree))


# Drafters and rules together, over every tree that may be drawn


A, B, C = range(3)
PAPER_TARGET, PAPER_DRAFT = constant(0.3, 0.4, 0.3), constant(0.6, 0.3, 0.1)
PAPER_SHAPE = {"shape": (0, 0, 1, 1, 2)}


def random_toy(seed, size=3):
    return ToyModel.random(size, seed=seed, sharpness=1.0)


def sparse_toy(seed, size, zeros):
    """Random laws of an order-1 model, with `zeros` tokens impossible after each context."""

    def distribution(context):
        rng = np.random.default_rng([seed, context[-1]])
        weights = rng.random(size) + 0.1
        weights[rng.permutation(size)[:zeros]] = 0
        return (weights / weights.sum()).tolist()

    return ToyModel(distribution, size)


PAIRS_OF_LAWS = {
    "generic": (random_toy(1), random_toy(2)),
    "two tokens": (random_toy(1, 2), random_toy(2, 2)),
    "four tokens": (random_toy(3, 4), random_toy(4, 4)),
    "the same law": (random_toy(1), random_toy(1)),
    "the target excludes tokens": (sparse_toy(1, 3, 1), random_toy(2)),
    "the draft excludes tokens": (random_toy(1), sparse_toy(2, 3, 1)),
    "both exclude tokens": (sparse_toy(3, 4, 2), sparse_toy(4, 4, 2)),
    "nothing in common": (constant(0.3, 0.7, 0, 0), constant(0, 0, 0.6, 0.4)),
    "a draft that is certain": (random_toy(1), constant(0, 1, 0)),
}
SHAPES = {
    "two by two": {"depth": 2},
    "irregular": {"shape": (0, 0, 1, 1, 3)},
    "chain": {"depth": 3, "branching": 1},
    "copies": {"depth": 2, "branching": (2, 1), "draw": "iid"},
    "top and one drawn": {"depth": 2, "draw": "hybrid"},
}


CORNERS = [(distributions, shape) for distributions in PAIRS_OF_LAWS for shape in SHAPES]
CORNERS.remove(("four tokens", "two by two"))  # 1,728 trees; the irregular shape has the four tokens too


@pytest.mark.parametrize(("distributions", "shape"), CORNERS)
def test_every_rule_is_lossless_at_the_corners_of_the_laws_and_keeps_a_first_token_as_often(distributions, shape):
    """P(tau >= 1) is the same for all rules; what traversal gains it gains below the first level."""
    target, draft = PAIRS_OF_LAWS[distributions]
    drafter = SampledTree(draft, **SHAPES[shape])
    firsts = []
    for rule in (TokenLevel, Traversal, *((Block,) if drafter.chain else ())):
        bias, found = exact.bias(target, drafter, rule(), [0], ONE)
        assert bias < TINY
        firsts.append(sum(share for text, share in found.emitted.items() if len(text) > 1))
    assert firsts == pytest.approx([firsts[0]] * len(firsts), abs=TINY)


@pytest.mark.parametrize("shape", [{"depth": 2}, {"depth": 2, "draw": "iid"}, {"shape": (0, 0, 1, 1, 2, 3)}], ids=str)
@pytest.mark.parametrize(
    "distributions", ["generic", "two tokens", "the target excludes tokens", "both exclude tokens"]
)
def test_a_subtree_is_entered_with_the_acceptance_of_its_path_and_leaves_the_targets_law(distributions, shape):
    """Lemma A.2: given X_1 .. X_i of the first chain, X_i or a node below it is kept with probability alpha(X_i)."""
    target, draft = PAIRS_OF_LAWS[distributions]
    drawn, kept = defaultdict(float), defaultdict(lambda: defaultdict(float))
    for proposal, mass in exact.proposals(SampledTree(draft, **shape), [0], ONE):
        tree = proposal.tree
        chain = first_chain(tree.children)
        scores = exact.target_scores(target, [0], tree, ONE)
        outcomes = list(exact.verdicts(Traversal(), proposal, scores))
        for node in chain:
            path = texts_of(tree, tree.path(node))
            drawn[path] += mass
            for verdict, decided in outcomes:
                if node in verdict.path:
                    kept[path][(*texts_of(tree, verdict.path), verdict.next_token)] += mass * decided
    assert len(drawn) >= 4
    for path, mass in drawn.items():
        accepted = first_acceptance(target, draft, path)
        assert sum(kept[path].values()) / mass == pytest.approx(accepted, abs=TINY)
        if accepted:
            given = exact.ExactIteration({text: share / mass / accepted for text, share in kept[path].items()}, 0, 0)
            length = max(map(len, given.emitted))
            expected = exact.text_distribution(target, (0, *path), length - len(path), ONE)
            whole = {(*path, *rest): share for rest, share in expected.items()}
            assert exact.distance(given.completed(target, [0], length, ONE), whole) < TINY


def texts_of(tree, nodes):
    """The tokens of these nodes."""
    return tuple(int(tree.tokens[node]) for node in nodes)


def first_acceptance(target, draft, path):
    """The alpha of the last token of a first chain before anything was rejected."""
    accepted = 1.0
    for depth, token in enumerate(path):
        context = (0, *path[:depth])
        accepted = min(1.0, accepted * target.distribution(context)[token] / draft.distribution(context)[token])
    return accepted


# Mistakes that are natural to make, planted into the production code one at a time

sound_reject, sound_ratio = Residual.reject, Residual.ratio
sound_children, sound_init = Recorded.children.func, Recorded.__init__


class WithoutExtra(RandomSource):
    """Passes coins on and leaves the extra token to the caller."""

    def __init__(self, random):
        self.accept, self.accept_lazily = random.accept, random.accept_lazily

    def draw(self, weights):
        return 0


def extra_from_the_target(rule):
    sound = rule.sample

    def sample(self, tree, rows, distributions, random):
        path = sound(self, tree, rows, distributions, WithoutExtra(random)).path
        return Verdict(path, random.draw(rows.distribution(path[-1] if path else 0)))

    return sample


def nothing(self, recorded, child):
    pass


def nothing_after_the_last_child(self, recorded, child):
    if child != siblings_of(recorded, child)[-1]:
        sound_reject(self, recorded, child)


def siblings_of(recorded, child):
    return recorded.children[int(recorded.tree.parents[child])]


def rejecting(change):
    """`Residual.reject` with another state: change(mass of the rest, acceptance, stop) gives scale, mass and stop."""

    def reject(self, recorded, child):
        rest = recorded.rest(self.weights * self.scale, child)
        mass = float(rest.sum())
        if mass > 0:
            self.scale, self.mass, self.stop = change(mass, self.mass, self.stop)
            self.weights = rest
        elif self._node:
            sound_reject(self, recorded, child)

    return reject


residual_mass_as_acceptance = rejecting(lambda mass, alpha, stop: (1.0, mass, 1 - mass))
acceptance_kept = rejecting(lambda mass, alpha, stop: (alpha / mass, alpha, stop))
always_kept = rejecting(lambda mass, alpha, stop: (1 / mass, 1.0, 0.0))
stop_not_raised = rejecting(lambda mass, alpha, stop: (1 / (mass + stop), mass / (mass + stop), stop))


def only_the_token_leaves(self, recorded, child):
    rest = self.weights * self.scale
    rest[int(recorded.tree.tokens[child])] = 0
    total = float(rest.sum()) + self.stop
    if total > 0:
        self.weights, self.scale, self.mass, self.stop = rest, 1 / total, float(rest.sum()) / total, self.stop / total


def copies_take_nothing(self, recorded, child):
    if sound_ratio(self, recorded, child) > 0:
        sound_reject(self, recorded, child)


def against_the_targets_row(self, recorded, child):
    token = int(recorded.tree.tokens[child])
    return min(1.0, self.mass * self._scores.prob(self._node, token) / recorded.prob(child))


def first_pass(self, recorded, child):
    """The alpha of a node from the target's rows alone, before anything was rejected."""
    if child == 0:
        return 1.0
    parent, token = int(recorded.tree.parents[child]), int(recorded.tree.tokens[child])
    above = first_pass(self, recorded, parent)
    return min(1.0, above * self._scores.prob(parent, token) / recorded.prob(child))


def first_children_from_the_first_pass(self, recorded, child):
    first = child == siblings_of(recorded, child)[0]
    return first_pass(self, recorded, child) if first else sound_ratio(self, recorded, child)


def path_forgotten(self, recorded, child):
    token = int(recorded.tree.tokens[child])
    return min(1.0, self.scale / max(self.mass, 1e-300) * float(self.weights[token]) / recorded.prob(child))


def among_the_trees_own_children(self, node):
    row = self.distributions.distribution(int(self.tree.parents[node]))
    tokens = self.tree.tokens[siblings_of(self, node)]
    kept = torch.zeros_like(row).index_copy_(0, torch.from_numpy(tokens), row[tokens])
    return kept / kept.sum()


def earlier_siblings_forgotten(self, node):
    return self.distributions.distribution(int(self.tree.parents[node]))


def in_order_of_tokens(self):
    return [sorted(nodes, key=lambda node: self.tree.tokens[node]) for nodes in sound_children(self)]


def in_reverse_order(self):
    return [nodes[::-1] for nodes in sound_children(self)]


def points_as_drawn(self, tree, distributions):
    """Where a sibling was drawn, so that a law was recorded, the deterministic ones are taken for drawn, too."""
    drawn = np.isin(tree.parents, tree.parents[tree.draws != POINT])
    sound_init(self, replace(tree, draws=np.where(drawn & (tree.draws == POINT), IID, tree.draws)), distributions)


def traversal_in_order(choose):
    """Traversal, but the next leaf to test is `choose`(leaves, tree); its rule is that of the first children."""

    def sample(self, tree, rows, distributions, random):
        recorded = Recorded(tree, distributions)
        left = [list(children) for children in recorded.children]
        residuals = {0: Residual(rows, 0)}
        while True:
            leaves = [node for node in range(len(tree)) if not left[node] and alive(tree, left, node)]
            node = choose(leaves, tree)
            for step in tree.path(node):
                if step not in residuals:
                    above = residuals[int(tree.parents[step])]
                    residuals[step] = Residual(rows, step, above.ratio(recorded, step))
            now = residuals[node]
            if node == 0 or (now.mass > 0 and random.accept(now.acceptance)):
                return Verdict(tuple(tree.path(node)), random.draw(now.weights))
            parent = int(tree.parents[node])
            residuals[parent].reject(recorded, node)
            left[parent].remove(node)

    return sample


def alive(tree, left, node):
    return all(step in left[int(tree.parents[step])] for step in tree.path(node))


def first_leaf(leaves, tree):
    """The leaf that comes first when children are walked in draw order."""
    return min(leaves, key=lambda node: [*tree.path(node), math.inf])


def deepest_leaf(leaves, tree):
    return max(leaves, key=lambda node: (tree.depths[node], -node))


def shallowest_leaf(leaves, tree):
    return min((node for node in leaves if node), key=lambda node: (tree.depths[node], node), default=0)


def block_with(weight=lambda w, ratio: min(1.0, w * ratio), coin=None, first_failure=False):
    """Block with one thing changed: how weights follow each other, a node's coin, or where the search ends."""

    def sample(self, tree, rows, distributions, random):
        recorded, last = Recorded(tree, distributions), len(tree) - 1
        w, rest, keep = [1.0], [], []
        for node in range(1, last + 1):
            w.append(weight(w[-1], rows.prob(node - 1, int(tree.tokens[node])) / recorded.prob(node)))
        for node in range(last + 1):
            rest.append(
                rows.distribution(node) if node == last else recorded.rest(rows.distribution(node) * w[node], node + 1)
            )
            mass = float(rest[-1].sum())
            sound = mass / (mass + 1 - w[node]) if mass > 0 else 0.0
            keep.append(w[node] if node == last else coin(mass, w[node]) if coin else sound)
        if first_failure:
            tau = next((node - 1 for node in range(1, last + 1) if not random.accept(keep[node])), last)
        else:
            tau = next((node for node in range(last, 0, -1) if random.accept(keep[node])), 0)
        return Verdict(tuple(range(1, tau + 1)), random.draw(rest[tau] if rest[tau].any() else rows.distribution(tau)))

    return sample


@dataclass(frozen=True)
class Fault:
    """What is put in place of which attribute, the rules that suffer, and the bias known for the chain of two."""

    place: type
    name: str
    mutant: object
    rules: tuple[type, ...] = (Traversal,)
    known: float | None = None


BOTH = (Traversal, TokenLevel)
FAULTS = {
    "traversal draws the extra token from the target's row": Fault(
        Traversal, "sample", extra_from_the_target(Traversal), known=0.15
    ),
    "token level draws the extra token from the target's row": Fault(
        TokenLevel, "sample", extra_from_the_target(TokenLevel), (TokenLevel,)
    ),
    "a parent is not updated after its last child": Fault(
        Residual, "reject", nothing_after_the_last_child, BOTH, known=0.227
    ),
    "the residual mass is taken for the acceptance": Fault(
        Residual, "reject", residual_mass_as_acceptance, known=0.046
    ),
    "the acceptance stays and only the row is updated": Fault(Residual, "reject", acceptance_kept, known=0.154),
    "a node is kept for certain once a child was rejected": Fault(Residual, "reject", always_kept),
    "what leaves a node is not raised with its rest": Fault(Residual, "reject", stop_not_raised),
    "acceptances below later siblings are those of the first pass": Fault(
        Residual, "ratio", first_children_from_the_first_pass
    ),
    "the deepest leaf goes first": Fault(Traversal, "sample", traversal_in_order(deepest_leaf)),
    "the shallowest leaf goes first": Fault(Traversal, "sample", traversal_in_order(shallowest_leaf)),
    "no residual at all, back off along products of ratios": Fault(Residual, "reject", nothing, BOTH),
    "children are tried against the target's row": Fault(Residual, "ratio", against_the_targets_row, BOTH),
    "a child is tried without the acceptance of its path": Fault(Residual, "ratio", path_forgotten),
    "the draft's law is restricted to the tree's own children": Fault(
        Recorded, "distribution", among_the_trees_own_children, BOTH
    ),
    "later siblings are tried against the law of the first": Fault(
        Recorded, "distribution", earlier_siblings_forgotten, BOTH
    ),
    "copies of rejected siblings take nothing": Fault(Residual, "reject", copies_take_nothing, BOTH),
    "only the rejected token leaves the row": Fault(Residual, "reject", only_the_token_leaves, BOTH),
    "siblings are tried in order of their tokens": Fault(Recorded, "children", property(in_order_of_tokens), BOTH),
    "siblings are tried from the last to the first": Fault(Recorded, "children", property(in_reverse_order), BOTH),
    "deterministic tokens are divided by the draft's probability": Fault(Recorded, "__init__", points_as_drawn, BOTH),
    "block draws the extra token from the target's row": Fault(
        Block, "sample", extra_from_the_target(Block), (Block,), known=0.15
    ),
    "block ends at the first failure": Fault(Block, "sample", block_with(first_failure=True), (Block,)),
    "block multiplies clipped ratios": Fault(
        Block, "sample", block_with(weight=lambda w, ratio: w * min(1.0, ratio)), (Block,)
    ),
    "block flips the weights as coins": Fault(
        Block, "sample", block_with(coin=lambda mass, w: w), (Block,), known=0.154
    ),
    "block flips the residual masses as coins": Fault(
        Block, "sample", block_with(coin=lambda mass, w: mass), (Block,), known=0.046
    ),
}


@cache
def battery():
    """Small instances, the chain of two first; together they show every mistake and take a moment."""
    p, q = random_toy(1), random_toy(2)
    return {
        "chain of two": (constant(0.5, 0.5), SampledTree(constant(0.8, 0.2), depth=2, branching=1)),
        "pair": (constant(0.2, 0.5, 0.3), SampledTree(constant(0.6, 0.2, 0.2), depth=1)),
        "candidates": (constant(0.2, 0.3, 0.5), SampledTree(constant(0.5, 0.4, 0.1), depth=1, draw="top")),
        "chain of three": (p, SampledTree(q, depth=3, branching=1)),
        "irregular": (p, SampledTree(q, **PAPER_SHAPE)),
        "the paper's example": (PAPER_TARGET, SampledTree(PAPER_DRAFT, **PAPER_SHAPE)),
        "leaf beside a branch": (p, SampledTree(q, shape=(0, 0, 1))),
        "copies": (constant(0.2, 0.5, 0.3), SampledTree(constant(0.6, 0.2, 0.2), depth=1, draw="iid")),
        "copies below copies": (random_toy(1, 2), SampledTree(random_toy(2, 2), depth=2, draw="iid")),
        "top and one drawn": (p, SampledTree(q, depth=2, draw="hybrid")),
    }


def biases(rule):
    """Bias of a rule on the instances of the battery that it serves, one after the other."""
    for target, drafter in battery().values():
        if rule is not Block or drafter.chain:
            yield exact.bias(target, drafter, rule(), [0], ONE)[0]


@pytest.mark.parametrize("rule", [TokenLevel, Block, Traversal], ids=lambda rule: rule.name)
def test_sound_code_shows_no_bias_on_the_battery(rule):
    assert max(biases(rule)) < TINY


@pytest.mark.parametrize(
    ("place", "mutant"),
    [(Traversal, traversal_in_order(first_leaf)), (Block, block_with())],
    ids=["traversal", "block"],
)
def test_the_rewritten_rules_are_sound_before_a_mistake_is_put_in(place, mutant, monkeypatch):
    monkeypatch.setattr(place, "sample", mutant)
    assert max(biases(place)) < TINY


@pytest.mark.parametrize(("fault", "rule"), [(name, rule) for name in FAULTS for rule in FAULTS[name].rules])
def test_every_planted_mistake_is_caught(fault, rule, monkeypatch):
    planted = FAULTS[fault]
    monkeypatch.setattr(planted.place, planted.name, planted.mutant)
    if planted.known and rule is not TokenLevel:
        assert next(biases(rule)) == pytest.approx(planted.known, abs=5e-4)  # the chain of two
    assert any(bias > 1e-9 for bias in biases(rule))


# The worked example of Traversal Verification


def paper_tree(second, below):
    """X0 -> X1 = a -> (X3 = b, X4 = c), X0 -> X2 -> X5, as the production drafter draws it."""
    wanted = [0, A, second, B, C, below]
    drawn = exact.proposals(SampledTree(PAPER_DRAFT, **PAPER_SHAPE), [0], ONE)
    proposal = next(proposal for proposal, _ in drawn if proposal.tree.tokens.tolist() == wanted)
    return proposal, exact.target_scores(PAPER_TARGET, [0], proposal.tree, ONE)


class Refusing(exact.Replay):
    """Rejects every node it is asked about, and remembers with which probability it was to be kept."""

    def __init__(self):
        super().__init__(())
        self.coins = []

    def accept(self, probability):
        self.coins.append(probability)
        return False


def watched(monkeypatch):
    """Every acceptance a node has had, in order, by node."""
    seen, enter = defaultdict(list), Residual.__init__

    def entered(self, rows, node, acceptance=1.0):
        enter(self, rows, node, acceptance)
        seen[node].append(acceptance)

    def rejected(self, recorded, child):
        sound_reject(self, recorded, child)
        seen[self._node].append(self.acceptance)

    monkeypatch.setattr(Residual, "__init__", entered)
    monkeypatch.setattr(Residual, "reject", rejected)
    return seen


@pytest.mark.parametrize(
    ("second", "below", "x2", "x5"),
    [(B, B, "4/9", "16/27"), (B, C, "4/9", "1"), (B, A, "4/9", "2/9"), (C, A, "1", "1/2")],
)
def test_every_acceptance_of_the_papers_example(second, below, x2, x5, monkeypatch):
    proposal, rows = paper_tree(second, below)
    seen, random = watched(monkeypatch), Refusing()
    Traversal().verify(proposal.tree, rows, proposal.distributions, random)

    def fractions(*values):
        return pytest.approx([float(Fraction(value)) for value in values], abs=TINY)

    assert seen[1] == fractions("1/2", "1/11", 0)
    assert [seen[node][0] for node in (3, 4, 2, 5)] == fractions("2/3", "7/11", x2, x5)
    assert random.coins[:4] == fractions("2/3", "7/11", 0, x5)  # X3, X4, X1 that has nothing left, X5
    assert set(seen[0]) == {1.0}


@pytest.mark.parametrize(("rule", "given"), [(Traversal(), "29/33"), (TokenLevel(), "1/2")], ids=str)
def test_the_first_node_of_the_papers_example_is_kept_as_computed_by_hand(rule, given):
    proposal, scores = paper_tree(B, B)
    kept = sum(share for verdict, share in exact.verdicts(rule, proposal, scores) if verdict.path[:1] == (1,))
    assert kept == pytest.approx(float(Fraction(given)), abs=TINY)
    drawn = total = 0.0
    for proposal, mass in exact.proposals(SampledTree(PAPER_DRAFT, **PAPER_SHAPE), [0], ONE):
        if proposal.tree.tokens[1] == A:
            scores = exact.target_scores(PAPER_TARGET, [0], proposal.tree, ONE)
            drawn += mass
            total += mass * sum(share for v, share in exact.verdicts(rule, proposal, scores) if v.path[:1] == (1,))
    assert total / drawn == pytest.approx(0.5, abs=TINY)


def test_the_residuals_of_the_papers_table_1():
    proposal, rows = paper_tree(B, B)
    recorded, root = Recorded(proposal.tree, proposal.distributions), Residual(rows, 0)
    assert root.ratio(recorded, 1) == pytest.approx(0.5, abs=TINY)
    root.reject(recorded, 1)
    assert (root.weights * root.scale).tolist() == pytest.approx([0, 1 / 3, 2 / 3], abs=TINY)
    assert recorded.distribution(2).tolist() == pytest.approx([0, 3 / 4, 1 / 4], abs=TINY)
    assert root.ratio(recorded, 2) == pytest.approx(4 / 9, abs=TINY)


EXPECTED_TOKENS = {
    "the paper's shape": (PAPER_SHAPE, {TokenLevel: "161/100", Traversal: "167/100"}),
    "two by two": ({"depth": 2}, {TokenLevel: "105/64", Traversal: "541/320"}),
    "chain of 1": ({"depth": 1, "branching": 1}, {TokenLevel: "0.7", Block: "0.7", Traversal: "0.7"}),
    "chain of 2": ({"depth": 2, "branching": 1}, {TokenLevel: "1.19", Block: "1.25", Traversal: "1.25"}),
    "chain of 3": ({"depth": 3, "branching": 1}, {TokenLevel: "1.533", Block: "1.704", Traversal: "1.704"}),
    "chain of 4": ({"depth": 4, "branching": 1}, {TokenLevel: "1.7731", Block: "2.0887", Traversal: "2.0887"}),
}


@pytest.mark.parametrize("name", EXPECTED_TOKENS)
def test_expected_drafted_tokens_of_the_papers_example(name):
    shape, expected = EXPECTED_TOKENS[name]
    for rule, value in expected.items():
        found = drafted_tokens(PAPER_TARGET, SampledTree(PAPER_DRAFT, **shape), rule())
        assert found == pytest.approx(float(Fraction(value)), abs=1e-10)


def test_a_tree_on_which_token_level_verification_keeps_more_than_traversal():
    """Both are lossless; so "traversal keeps more" is no theorem on trees."""
    target = ToyModel(lambda context: (0.7, 0.3, 0, 0) if len(context) == 1 else (0.4, 0.5, 0, 0.1), 4)
    draft = ToyModel(lambda context: (1, 0, 0, 0) if len(context) == 1 else (0, 0.1, 0.8, 0.1), 4)
    drafter = SampledTree(draft, shape=(0, 1, 1))
    for rule, expected in ((TokenLevel(), Fraction(28, 25)), (Traversal(), Fraction(13873, 12450))):
        bias, found = exact.bias(target, drafter, rule, [0], ONE)
        assert bias < TINY
        assert found.tokens - 1 == pytest.approx(float(expected), abs=TINY)


# Block is optimal on chains (Theorem 3.4)


def best_possible(target, draft, depth):
    """Largest E[tau] of any lossless rule for a drafted chain: a linear programme over its decisions given the chain.

    A variable is the probability of keeping tau tokens and adding y, given a chain; the law of the kept text, completed
    by the target, has to be the target's.
    """
    size = target.vocab_size
    chains = exact.text_distribution(draft, [0], depth, ONE)
    texts = exact.text_distribution(target, [0], depth + 1, ONE)
    order = {text: row for row, text in enumerate(product(range(size), repeat=depth + 1))}
    columns = [(chain, tau, y) for chain in chains for tau in range(depth + 1) for y in range(size)]
    lossless = np.zeros((len(order), len(columns)))
    given = np.zeros((len(chains), len(columns)))
    for column, (chain, tau, y) in enumerate(columns):
        given[list(chains).index(chain), column] = 1
        for text, share in completed(target, (*chain[:tau], y), depth + 1).items():
            lossless[order[text], column] = chains[chain] * share
    gain = np.array([chains[chain] * tau for chain, tau, _ in columns])
    right = np.array([*(texts.get(text, 0.0) for text in order), *np.ones(len(chains))])
    found = linprog(-gain, A_eq=np.vstack([lossless, given]), b_eq=right, method="highs")
    assert found.status == 0, found.message
    return -found.fun


def completed(target, text, length):
    return exact.ExactIteration({text: 1.0}, 0, 0).completed(target, [0], length, ONE)


CHAINS = {
    "the paper's": (PAPER_TARGET, PAPER_DRAFT),
    "constant, two tokens": (constant(0.5, 0.5), constant(0.8, 0.2)),
    **{name: PAIRS_OF_LAWS[name] for name in ("generic", "two tokens", "the same law", "a draft that is certain")},
    "zeros in the target": (sparse_toy(1, 3, 1), random_toy(2)),
    "zeros in the draft": (random_toy(1), sparse_toy(2, 3, 1)),
    "zeros in both": (sparse_toy(3, 3, 1), sparse_toy(4, 3, 1)),
    "disjoint": (constant(0.4, 0.6, 0), constant(0, 0, 1)),
    **{f"random {seed}": (random_toy(seed, 2), random_toy(seed + 50, 2)) for seed in range(10, 14)},
}


@pytest.mark.parametrize("distributions", CHAINS)
@pytest.mark.parametrize("depth", [2, 3])
def test_no_lossless_rule_keeps_more_of_a_chain_than_block_and_traversal(distributions, depth):
    target, draft = CHAINS[distributions]
    chain = SampledTree(draft, depth=depth, branching=1)
    best = best_possible(target, draft, depth)
    for rule in (Block(), Traversal()):
        assert drafted_tokens(target, chain, rule) == pytest.approx(best, abs=1e-8)
    assert drafted_tokens(target, chain, TokenLevel()) < best + 1e-8


def test_token_level_verification_is_below_the_optimum_where_laws_differ():
    below = [
        drafted_tokens(target, chain, Block()) - drafted_tokens(target, chain, TokenLevel())
        for target, draft in CHAINS.values()
        for chain in [SampledTree(draft, depth=3, branching=1)]
    ]
    assert sum(gap > 1e-3 for gap in below) >= len(below) // 2
    assert min(below) > -TINY


# The same text as plain sampling, token by token


class Keyed(RandomSource):
    """Gumbel-max: the k-th draw takes noise that depends on the seed and on k alone."""

    def __init__(self, seed):
        self.seed, self.count = seed, 0

    def draw(self, weights):
        noise = np.random.default_rng([self.seed, self.count]).gumbel(size=len(weights))
        self.count += 1
        with np.errstate(divide="ignore"):
            return int(np.argmax(np.log(weights.double().numpy()) + noise))


@cache
def sampled_pair(kind):
    """Target, draft, prompt and budget."""
    if kind == "toy":
        target = ToyModel.random(5, seed=3)
        return target, target.mixed(ToyModel.random(5, seed=4), 0.3), [0, 1], 80
    target = random_model(kind)
    return target, noisy_copy(target), prompt(12), 20


FILTERS = [Sampling(0.3), ONE, Sampling(1.7), Sampling(0.8, top_k=4), Sampling(1.2, top_p=0.7)]


@pytest.mark.parametrize("noise", ["keyed by position", "the library's own"])
@pytest.mark.parametrize("sampling", FILTERS, ids=str)
@pytest.mark.parametrize("kind", ["toy", "gpt_neox"])
def test_the_walks_text_is_that_of_plain_sampling_with_the_same_noise(kind, sampling, noise, monkeypatch):
    target, draft, ids, budget = sampled_pair(kind)
    if noise == "keyed by position":
        own = {"draft": RandomSource, "verify": lambda seed, stream: Keyed(seed)}
        monkeypatch.setattr(decoding, "RandomSource", lambda seed, stream: own[stream](seed, stream))
    options = {"sampling": sampling, "max_new_tokens": budget, "eos_token_ids": ()}
    kept = 0
    for seed in range(2 if kind == "toy" else 1):
        plain = autoregressive(target, ids, seed=seed, **options)
        for drafter in (FixedTree(draft), SampledTree(draft, depth=3), AdaptiveTree(draft)):
            walked = generate(target, ids, drafter, verifier=TargetWalk(), seed=seed, **options)
            assert walked.tokens == plain.tokens
            kept += budget - len(walked.iterations)
        assert len(set(plain.tokens)) > 2
    assert kept > 0


# Real laws: a sample from the bundled pair, tested against the exact law


class Table(ToyModel):
    """A model's logits, kept by context, so that the production code runs on them in half a millisecond."""

    def __init__(self, model):
        super().__init__(lambda context: (), model.vocab_size)
        self.model, self.rows = model, {}

    def logits(self, context):
        """(V,) logits after the context, as the model's own forward gives them."""
        if context not in self.rows:
            session = self.model.session()
            session.start(context[:-1])
            with torch.inference_mode():
                self.rows[context] = session.score([context[-1]], [-1], ONE).logits[0].clone()
        return self.rows[context]

    def session(self):
        return TableSession(self)


class TableSession(ToySession):
    """A session that looks logits up, in the model's own precision."""

    def _read(self, queue, tokens, parents):
        self._text += queue
        self._nodes += tokens.tolist()
        first = len(parents) - len(tokens)
        return torch.stack([self.model.logits(self._context(node, parents)) for node in range(first, len(parents))])


TOP = Sampling(1.0, top_k=8)
FLOOR = 0.03
"""Pairs of tokens less probable than this share a bin."""
LEVEL = 1e-3


@cache
def tiny_tables():
    """Target, draft, and a prompt after which the two differ much."""
    pair = load_pair("tiny")
    return Table(pair.target), Table(pair.draft), tuple(pair.tokenizer("In the year 1900 the").input_ids)


def law_of_two(model):
    """Exact law of the first two tokens after the prompt."""
    ids, distribution = tiny_tables()[2], {}
    first = probabilities(model.logits(ids).double(), TOP)
    for one in first.nonzero()[:, 0].tolist():
        second = probabilities(model.logits((*ids, one)).double(), TOP)
        distribution |= {(one, two): float(first[one] * second[two]) for two in second.nonzero()[:, 0].tolist()}
    return distribution


@cache
def bins():
    """The bin of each pair of tokens, and the probability of each bin."""
    distribution = law_of_two(tiny_tables()[0])
    large = sorted(text for text, share in distribution.items() if share >= FLOOR)
    where = {text: large.index(text) if text in large else len(large) for text in distribution}
    expected = np.zeros(len(large) + 1)
    for text, share in distribution.items():
        expected[where[text]] += share
    return where, expected


def p_value(counts):
    """The G-test of counts per bin against the exact law."""
    expected = bins()[1] * counts.sum()
    seen = counts > 0
    statistic = 2 * (counts[seen] * np.log(counts[seen] / expected[seen])).sum()
    return stats.chi2.sf(statistic, len(counts) - 1)


def sample_counts(rule, size, **shape):
    """First two tokens of `size` iterations of the production code, by bin."""
    target, draft, ids = tiny_tables()
    drafter, drafting, verifying = SampledTree(draft, **shape), RandomSource(1, "draft"), RandomSource(1, "verify")
    where, counts = bins()[0], np.zeros(len(bins()[1]))
    for _ in range(size):
        proposal = drafter.propose(drafter.start(ids, drafting), 2, TOP)
        scores = exact.target_scores(target, ids, proposal.tree, TOP)
        verdict = rule.verify(proposal.tree, scores, proposal.distributions, verifying)
        text = (*texts_of(proposal.tree, verdict.path), verdict.next_token)
        if len(text) < 2:
            text = (*text, verifying.draw(probabilities(target.logits((*ids, *text)), TOP)))
        counts[where[text[:2]]] += 1  # a token the target excludes is an error here
    return counts


METHODS = {
    "tree and traversal": (Traversal(), {"depth": 2}),
    "tree and token level": (TokenLevel(), {"depth": 2}),
    "chain and block": (Block(), {"depth": 2, "branching": 1}),
}
SAMPLE, ENOUGH_FOR_MISTAKES = 10_000, 4_000


def at_distance(distance, towards):
    """Law of the bins at a total variation from the target's, in the direction of another law of the bins."""
    expected = bins()[1]
    away = np.abs(towards - expected).sum() / 2
    return expected + (towards - expected) * distance / away


def draft_bins():
    """The draft's own law of two tokens, as far as the target can emit them: where faulty rules drift to."""
    where, expected = bins()
    distribution = np.zeros(len(expected))
    for text, share in law_of_two(tiny_tables()[1]).items():
        if text in where:
            distribution[where[text]] += share
    return distribution / distribution.sum()


def rejected(distribution, size, trials=300):
    """Share of samples from a law of the bins that the test rejects."""
    rng = np.random.default_rng(0)
    return np.mean([p_value(rng.multinomial(size, distribution)) < LEVEL for _ in range(trials)])


def test_the_sample_is_large_enough_to_see_a_deviation_of_two_percent_towards_the_draft():
    assert rejected(bins()[1], SAMPLE) < 0.01
    assert rejected(at_distance(0.02, draft_bins()), SAMPLE) > 0.98
    target, draft, ids = tiny_tables()
    distributions = [probabilities(model.logits(ids), TOP) for model in (target, draft)]
    assert (
        float((distributions[0] - distributions[1]).abs().sum()) / 2 > 0.3
    )  # without verification the text would be far off


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_tiny_pairs_text_has_the_targets_law(name):
    rule, shape = METHODS[name]
    assert p_value(sample_counts(rule, SAMPLE, **shape)) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("fault", [name for name, fault in FAULTS.items() if fault.known])
def test_planted_mistakes_are_seen_in_the_tiny_pairs_text(fault, monkeypatch):
    planted = FAULTS[fault]
    monkeypatch.setattr(planted.place, planted.name, planted.mutant)
    rule = planted.rules[0]()
    shape = {"depth": 2, "branching": 1} if isinstance(rule, Block) else {"depth": 2}
    assert p_value(sample_counts(rule, ENOUGH_FOR_MISTAKES, **shape)) < LEVEL


# Invariants and rounding


def wide_drafted(seed, size=4096):
    """A tree of 14 nodes over a real vocabulary: peaked float32 laws, codes mixed."""
    rng = np.random.default_rng(seed)
    rows = torch.tensor(rng.normal(size=(15, size)) * 3, dtype=torch.float32)
    draft = (rows + torch.tensor(rng.normal(size=(15, size)), dtype=torch.float32)).softmax(-1)
    distributions, tokens, parents, codes = DraftDistributions("toy"), [0], [-1], [POINT]
    for u in range(7):
        distributions.record(u, draft[u])
        code = int(rng.choice([IID, DISTINCT]))
        drawn = torch.multinomial(draft[u], 2, code == IID, generator=torch.Generator().manual_seed(100 * seed + u))
        tokens, parents, codes = [*tokens, *drawn.tolist()], [*parents, u, u], [*codes, code, code]
    return Proposal(TokenTree.build(tokens, parents, draws=codes), distributions), Scores(rows, ONE)


def test_row_and_stop_sum_to_one_after_every_rejection_in_float32(monkeypatch):
    count = 0

    def checked(self, recorded, child):
        nonlocal count
        sound_reject(self, recorded, child)
        row = self.weights * self.scale
        assert row.dtype == torch.float32
        assert all(type(number) is float for number in (self.scale, self.mass, self.stop))
        assert abs(float(row.sum(dtype=torch.float64)) - self.mass) < 1e-5
        assert abs(self.mass + self.stop - 1) < 1e-5
        assert self.stop == 0 or self._node != 0
        assert float(row.min()) >= 0
        assert recorded.prob(child) > 0
        count += 1

    monkeypatch.setattr(Residual, "reject", checked)
    for seed in range(150):
        proposal, rows = wide_drafted(seed)
        for rule in (TokenLevel(), Traversal()):
            rule.verify(proposal.tree, rows, proposal.distributions, RandomSource(seed))
    assert count > 500


class Single(ToyModel):
    """A toy whose logits are float32, as a real model's are."""

    def session(self):
        return SingleSession(self)


class SingleSession(ToySession):
    def _read(self, queue, tokens, parents):
        return super()._read(queue, tokens, parents).float()


@pytest.mark.parametrize("rule", [TokenLevel, Block, Traversal], ids=lambda rule: rule.name)
def test_float32_rows_bias_a_text_by_less_than_a_millionth(rule):
    off = []
    for target, drafter in battery().values():
        if rule is not Block or drafter.chain:
            single = replace(drafter, draft=Single(drafter.draft.distribution, drafter.draft.vocab_size))
            found = exact.iteration(Single(target.distribution, target.vocab_size), single, rule(), [0], ONE)
            length = max(map(len, found.emitted))
            distribution = found.completed(target, [0], length, ONE)
            off.append(exact.distance(distribution, exact.text_distribution(target, [0], length, ONE)))
    assert 1e-12 < max(off) < 1e-6


# Bad input, and trees a rule does not serve

TOY = ToyModel.random(3, seed=1)
TOY_DRAFT = TOY.mixed(ToyModel.random(3, seed=2), 0.5)
CHAIN = SampledTree(TOY_DRAFT, depth=2, branching=1)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "options", [{"temperature": -0.1}, {"temperature": INF}, {"top_p": 1.01}, {"top_p": -0.5}, {"top_p": NAN}], ids=str
)
def test_sampling_options_outside_their_range_are_named_with_their_value(options):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=rf"{name} is {value}"):
        Sampling(**options)


@pytest.mark.parametrize("bad", [(NAN, 0.5, 0.5), (0, 0, 0), (INF, 0, 0)], ids=["NaN", "all -inf", "+inf"])
@pytest.mark.parametrize("rule", SAMPLING_RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("node", [0, 1, 2])
def test_target_logits_that_are_no_law_are_named_by_node_and_model(rule, bad, node):
    """Target and draft agree, so the whole chain is kept and every node is looked at."""
    proposal = next(exact.proposals(SampledTree(TOY, depth=2, branching=1), [0], ONE))[0]
    scores = exact.target_scores(TOY, [0], proposal.tree, ONE)
    scores.logits[node] = torch.tensor(bad, dtype=torch.float64).log()
    walked = Proposal(proposal.tree, proposal.distributions)
    with pytest.raises(ValueError, match=rf"The logits of toy at tree node {node} hold NaN"):
        for _ in exact.verdicts(rule(), walked, scores):
            pass


def broken_toy(*distribution):
    """A toy whose law is no law."""
    model = constant(*distribution)
    model.name = "broken"
    return model


@pytest.mark.parametrize("verifier", [Greedy(), *(rule() for rule in SAMPLING_RULES)], ids=lambda rule: rule.name)
def test_a_broken_target_is_named_by_generate(verifier):
    sampling = GREEDY if isinstance(verifier, Greedy) else ONE
    with pytest.raises(ValueError, match="The logits of broken at tree node 0 hold NaN"):
        generate(broken_toy(NAN, 0.5, 0.5), [0], CHAIN, verifier=verifier, sampling=sampling)


@pytest.mark.parametrize("distribution", [(NAN, 0.5, 0.5), (0, 0, 0)], ids=["NaN", "all -inf"])
def test_a_broken_draft_is_refused(distribution):
    with pytest.raises(ValueError, match=r"NaN, \+inf, or nothing but -inf"):
        generate(TOY, [0], SampledTree(broken_toy(*distribution)), sampling=ONE)


@pytest.mark.parametrize(
    "kind", [kind for kind in ALL_DRAFTERS if issubclass(kind, ModelDrafter)], ids=lambda kind: kind.name
)
def test_a_broken_draft_is_named(kind):
    sound, broken = (examples(kind, draft) for draft in (constant(0.2, 0.4, 0.4), broken_toy(NAN, 0.5, 0.5)))
    reads = [len(one.propose(one.start([0], RandomSource()), 4, ONE).tree) > 1 for one in sound]
    assert any(reads)  # where drafting is too dear, a drafter reads nothing
    for drafter in (one for one, reading in zip(broken, reads, strict=True) if reading):
        with pytest.raises(ValueError, match="broken at tree node 0"):
            generate(TOY, [0], drafter, sampling=ONE)


class Meddling(SampledTree):
    """A sampled chain whose first token is another one than was drawn; `code` says how it pretends to be drawn."""

    code = DISTINCT

    def propose(self, state, max_depth, sampling=GREEDY):
        proposal = super().propose(state, max_depth, sampling)
        if max_depth > 0:
            proposal.tree.tokens[1] = int(proposal.distributions.distribution(0).argmin())
            proposal.tree.draws[1] = self.code
        return proposal


class Pointing(Meddling):
    code = POINT


class Forgetful(SampledTree):
    """Draws and keeps no record."""

    def propose(self, state, max_depth, sampling=GREEDY):
        return replace(super().propose(state, max_depth, sampling), distributions=None)


@pytest.mark.parametrize("verifier", [TokenLevel(), Block(), Traversal()], ids=lambda rule: rule.name)
def test_a_token_that_its_recorded_law_excludes_is_named(verifier):
    draft = constant(0.4, 0.6, 0)
    options = {"verifier": verifier, "sampling": ONE, "max_new_tokens": 8}
    with pytest.raises(
        ValueError, match="Tree node 1 holds token 2, to which the distribution recorded for it by toy gives"
    ):
        generate(TOY, [0], Meddling(draft, depth=2, branching=1), **options)
    assert len(generate(TOY, [0], Pointing(draft, depth=2, branching=1), **options).tokens) == 8


@pytest.mark.parametrize("verifier", [TokenLevel(), Block(), Traversal()], ids=lambda rule: rule.name)
def test_drawn_nodes_without_a_recorded_law_are_named(verifier):
    with pytest.raises(ValueError, match="drew children of tree node 0 and recorded no distribution"):
        generate(TOY, [0], Forgetful(TOY_DRAFT, depth=2, branching=1), verifier=verifier, sampling=ONE)
    assert generate(TOY, [0], Forgetful(TOY_DRAFT, depth=2), verifier=TargetWalk(), sampling=ONE).tokens


class Counting(ToyModel):
    """A toy that counts its forwards."""

    def session(self):
        self.sessions.append(super().session())
        return self.sessions[-1]

    @property
    def forwards(self):
        return sum(session.forwards for session in self.sessions)


def counting():
    model = Counting(TOY.distribution, TOY.vocab_size)
    model.sessions = []
    return model


class BySelection(SampledTree):
    drawing = Drawing.SELECTED


class ByPath(SampledTree):
    drawing = Drawing.BY_PATH


REFUSED = {
    "block and branches": (Block(), SampledTree, 2, "rule for chains"),
    "block and branches, unsafe": (Block(unsafe=True), SampledTree, 2, "rule for chains"),
    "block and selected tokens": (Block(), BySelection, 1, "would not sample from the target"),
    "token level and selected tokens": (TokenLevel(), BySelection, 2, "would not sample from the target"),
    "traversal and selected tokens": (Traversal(), BySelection, 2, "would not sample from the target"),
    "traversal and shared numbers": (Traversal(), ByPath, 2, "branches share random numbers"),
    "greedy": (Greedy(), SampledTree, 2, "would not sample from the target"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_rule_does_not_serve_is_refused_before_any_forward(case):
    verifier, kind, branching, reason = REFUSED[case]
    target, draft = counting(), counting()
    with pytest.raises(ValueError, match=reason):
        generate(target, [0], kind(draft, branching=branching), verifier=verifier, sampling=ONE)
    assert (target.forwards, draft.forwards) == (0, 0)


@pytest.mark.parametrize(
    ("verifier", "kind", "branching"),
    [
        (Traversal(unsafe=True), BySelection, 2),
        (Traversal(unsafe=True), ByPath, 2),
        (TokenLevel(unsafe=True), BySelection, 2),
        (Block(unsafe=True), BySelection, 1),
        (TokenLevel(), ByPath, 2),
        (Traversal(), ByPath, 1),
        (Block(), ByPath, 1),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_unsafe_rules_and_harmless_drawings_are_served(verifier, kind, branching):
    target, draft = counting(), counting()
    out = generate(target, [0], kind(draft, branching=branching), verifier=verifier, sampling=ONE, max_new_tokens=20)
    assert len(out.tokens) == 20
    assert target.forwards == len(out.iterations)
    assert draft.forwards > 0


def test_a_block_handed_branches_by_a_drafter_that_denies_them_says_so():
    tree = TokenTree.build([0, 1, 2], [-1, 0, 0])
    with pytest.raises(ValueError, match="3 nodes that branches"):
        Block().verify(tree, Scores(torch.zeros(3, 3), ONE), None, RandomSource())


@pytest.mark.parametrize("rule", [TokenLevel, Traversal], ids=lambda rule: rule.name)
@pytest.mark.parametrize("gap", [17.8, 9.0, 88.0])
def test_what_float32_can_hardly_hold_is_still_drawn_from_its_law(rule, gap):
    """After the first sibling, all that is left of the draft's law may be smaller than float32's smallest normal."""
    scale = {17.8: 0.2, 9.0: 0.1, 88.0: 1.0}[gap]
    draft = Logits(torch.tensor([gap, 0.0, 0.3]))
    target = Logits(torch.tensor([-gap, 1.0, 0.0]) * scale)
    sampling = Sampling(scale)
    drafter = SampledTree(draft, depth=1, branching=2)
    found = exact.iteration(target, drafter, rule(), [0], sampling)
    first = defaultdict(float)
    for text, mass in found.emitted.items():
        first[text[0]] += mass
    expected = probabilities(target.logits.double(), sampling)
    assert sum(abs(first[token] - float(share)) for token, share in enumerate(expected)) / 2 < 1e-6


class Logits(ToyModel):
    """A toy whose float32 logits are the same after every text."""

    def __init__(self, logits):
        super().__init__(lambda context: logits.double().softmax(-1).tolist(), len(logits))
        self.logits = logits

    def session(self):
        session = ToySession(self)
        session._read = lambda queue, tokens, parents: self.logits.repeat(len(tokens), 1)
        return session
