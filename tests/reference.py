"""Slow, obvious versions that every fast path is checked against. Nothing here is fast or shared with the library."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

from dynatree_lib import TokenTree
from dynatree_lib.tree import DISTINCT, POINT


def tree_mask_loop(parents: Sequence[int], prefix: int) -> np.ndarray:
    """The paper's A (DynaTree, section 3.4), entry by entry."""
    n = len(parents)
    mask = np.zeros((n, prefix + n), bool)
    for i in range(n):
        for j in range(prefix + n):
            mask[i, j] = j < prefix or (j - prefix) in ancestors_or_self(parents, i)
    return mask


def subtree(tree: TokenTree, nodes: Sequence[int]) -> TokenTree:
    """The tree of these nodes, ascending, node 0 and the parents of all of them included."""
    index = {node: number for number, node in enumerate(nodes)}
    parents = [-1, *(index[int(tree.parents[node])] for node in nodes[1:])]
    return TokenTree.build(tree.tokens[nodes], parents, tree.logprobs[nodes], tree.draws[nodes])


def ancestors_or_self(parents: Sequence[int], node: int) -> set[int]:
    """Follow parents up to the root."""
    found = {node}
    while parents[node] >= 0:
        node = parents[node]
        found.add(node)
    return found


def longest_greedy_path(tree: TokenTree, argmax: Sequence[int]) -> tuple[list[int], int]:
    """SELECTCOMMIT by trying every node: the deepest whose whole path is the target's argmax, then the bonus token."""
    best: list[int] = []
    for node in range(1, len(tree)):
        path = tree.path(node)
        follows = all(tree.tokens[v] == argmax[tree.parents[v]] for v in path)
        if follows and len(path) > len(best):
            best = path
    return best, int(argmax[best[-1] if best else 0])


def paths_one_by_one(model: torch.nn.Module, text: Sequence[int], tree: TokenTree) -> torch.Tensor:
    """(n, V) logits of every node from a plain forward over the text and the node's path, without cache or mask."""
    rows = []
    for node in range(len(tree)):
        path = [int(tree.tokens[v]) for v in [0, *tree.path(node)]]
        rows.append(model(torch.tensor([[*text, *path]]), use_cache=False).logits[0, -1])
    return torch.stack(rows)


def feature_logits(
    target: torch.nn.Module, draft: torch.nn.Module, text: Sequence[int], path: Sequence[int], first: int = 0
):
    """(k + 1, V) logits of a draft on features after a text and after each token of a path below it, without a cache.

    All of the text is read again for every token; each token comes with the feature of the place before it: made of the
    target's states in the text, the draft's own state below it. The draft sees nothing before the token numbered
    `first`.
    """
    states = target(torch.tensor([text]), output_hidden_states=True).hidden_states
    given = states[-1][0, first:-1]
    if len(draft.feature_layers) > 1:
        others = zip(draft.fusion.norms, draft.feature_layers, strict=False)
        given = given + draft.fusion.map(torch.cat([norm(states[layer][0, first:-1]) for norm, layer in others], -1))
    tokens, out = list(text[first + 1 :]), []
    for following in (*path, None):
        inputs = draft.joint(draft.get_input_embeddings()(torch.tensor(tokens)), given)
        state = draft.model(inputs_embeds=inputs[None], use_cache=False).last_hidden_state[0, -1]
        out.append(draft.lm_head(state))
        tokens, given = [*tokens, following], torch.cat([given, state[None]])
    return torch.stack(out)


def draft_tree(
    distribution: Callable[[tuple[int, ...]], Sequence[float]],
    text: Sequence[int],
    depth: int,
    branching: int,
    tau: float,
    max_nodes: int,
    remove: bool = False,
) -> list[tuple[int, int, float]]:
    """DRAFTTREE of DynaTree's Algorithm 1, line by line; nodes as (token, parent, path log-probability).

    Node 0 is the paper's root u_0, the draft's top-1 token after the text, with its own log-probability; D, B, tau and
    N_max as in the paper. `remove` is the reading of section 3.3: a leaf below tau is pruned, not kept unexpanded.
    """

    def top(path: list[int], count: int) -> list[tuple[int, float]]:
        p = distribution((*text, *path))
        order = sorted(range(len(p)), key=lambda token: (-p[token], token))[:count]
        return [(token, math.log(p[token]) if p[token] > 0 else -math.inf) for token in order]

    def path_to(node: int) -> list[int]:
        tokens = []
        while node >= 0:
            tokens.append(nodes[node][0])
            node = nodes[node][1]
        return tokens[::-1]

    token, logprob = top([], 1)[0]  # line 9
    nodes: list[tuple[int, int, float]] = [(token, -1, logprob)]
    active = [0]  # line 10
    for _ in range(depth):  # line 11
        if not active or len(nodes) >= max_nodes:  # lines 12-14
            break
        fresh = []  # line 15
        for u in active:  # line 16
            if nodes[u][2] < math.log(tau):  # lines 17-19
                continue
            for candidate, logprob in top(path_to(u), branching):  # lines 20-21
                if remove and nodes[u][2] + logprob < math.log(tau):
                    continue
                if len(nodes) >= max_nodes:  # lines 22-24
                    break
                nodes.append((candidate, u, nodes[u][2] + logprob))  # line 25
                fresh.append(len(nodes) - 1)
        active = fresh  # line 28
    return nodes


def adaptive_tree(
    distribution: Callable[[tuple[int, ...]], Sequence[float]],
    text: Sequence[int],
    b_min: int,
    b_mid: int,
    b_max: int,
    tau_l: float,
    tau_h: float,
    d_0: int,
    d_max: int,
    rho_stop: float,
    rho_deep: float,
    tau: float | None,
    n_max: int,
    *,
    breadth: bool = True,
    gate: bool = True,
    deep: str = ">",
    remove: bool = False,
    root: str = "draft",
) -> list[tuple[int, int, float]]:
    """DRAFTTREE of DynaTree adaptive's Algorithm 1, line by line; nodes as (token, parent, path log-probability).

    With `root="draft"` node 0 is the paper's u_0, the draft's top-1 token after the text, with its own log-probability
    and depth 1, as section 3.3 (a tree rooted at the prefix) and the authors' code count. With `root="target"` it is
    the last token of the text, with probability 1 and depth 0. `n_max` counts all nodes returned. `breadth=False` takes
    B_mid everywhere; `gate=False` expands every node above depth D_0, as far as tau lets it; `deep=">="` is line 23 of
    the earlier draft; `remove` is section 3.3's pruning: a leaf below tau is not in the tree. Ties go by token id.
    """

    def q_after(u: int | None) -> Sequence[float]:
        path: list[int] = []
        while u is not None and u >= first:
            path.insert(0, tree[u][0])
            u = tree[u][1]
        return distribution((*text, *path))

    def log(p: float) -> float:
        return math.log(p) if p > 0 else -math.inf

    tree: list[tuple[int, int, float]] = []
    first = 0 if root == "draft" else 1  # nodes before this one are part of the text
    if root == "draft":  # line 10: run M_D, u_0 is the top-1 token
        q = q_after(None)
        token = min(range(len(q)), key=lambda v: (-q[v], v))
        if remove and tau is not None and q[token] < tau:
            return []
        tree.append((token, -1, log(q[token])))
        depth = [1]
    else:
        tree.append((text[-1], -1, 0.0))
        depth = [0]
    active = [0]  # line 11
    while len(active) > 0 and len(tree) < n_max:  # line 12
        u = active.pop(0)  # line 13: first in, first out
        p = math.exp(tree[u][2])
        if tau is not None and p < tau:  # lines 14-16: probability-threshold pruning
            continue
        if depth[u] >= d_max:  # lines 17-19
            continue
        if gate and p < rho_stop:  # lines 20-22: early stopping
            continue
        likely = p > rho_deep if deep == ">" else p >= rho_deep
        if depth[u] >= d_0 and not (gate and likely):  # lines 23-25: depth gating
            continue
        q = q_after(u)  # line 26: one step of M_D from u
        c = max(q)
        if not breadth:  # line 27
            b = b_mid
        elif c >= tau_h:
            b = b_min
        elif c < tau_l:
            b = b_max
        else:
            b = b_mid
        for v in sorted(range(len(q)), key=lambda v: (-q[v], v))[:b]:  # line 28
            logprob = tree[u][2] + log(q[v])
            if remove and tau is not None and math.exp(logprob) < tau:
                continue
            if len(tree) >= n_max:
                break
            tree.append((v, u, logprob))
            depth.append(depth[u] + 1)
            active.append(len(tree) - 1)
    return tree  # line 30


def best_first_tree(
    distribution: Callable[[tuple[int, ...]], Sequence[float]],
    text: Sequence[int],
    max_nodes: int,
    depth: int,
    branching: int,
) -> list[tuple[int, int, float]]:
    """The complete tree of top-`branching` children, and of that the most probable nodes, ties in breadth-first order.

    Nodes as (token, parent, path log-probability); node 0 is the last token of the text and counts in `max_nodes`.
    """
    everything: list[tuple[int, int, float]] = [(text[-1], -1, 0.0)]
    paths: list[tuple[int, ...]] = [()]
    for node, path in enumerate(paths):  # grows while it is walked through: breadth-first order
        if len(path) < depth:
            p = distribution((*text, *path))
            for token in sorted(range(len(p)), key=lambda token: (-p[token], token))[:branching]:
                logprob = math.log(p[token]) if p[token] > 0 else -math.inf
                everything.append((token, node, everything[node][2] + logprob))
                paths.append((*path, token))
    ranked = sorted(range(len(everything)), key=lambda node: (-everything[node][2], node))
    kept = sorted(ranked[:max_nodes])
    chosen = [everything[node] for node in kept]
    return [(token, kept.index(parent) if parent >= 0 else -1, logprob) for token, parent, logprob in chosen]


Path = tuple[int, ...]
"""Tokens from below node 0 down to a node; node 0 is ()."""


def next_cost(nodes: dict[Path, float], verify: Callable[[int], float]) -> float:
    """What one node more costs; two rows are the smallest tree."""
    rows = max(len(nodes), 2)
    return verify(rows + 1) - verify(rows)


def paying_nodes(
    nodes: dict[Path, float],
    level: list[Path],
    verify: Callable[[int], float],
    draft: Callable[[int], float],
    rate: float,
    child: float,
    depth: int,
    overhead: float,
) -> list[Path]:
    """The nodes of a level that a cost-aware tree reads next: as many of the most probable as gain the most."""
    marginal_cost = next_cost(nodes, verify)
    if level == [()]:  # a tree at all pays if some number of levels does, with what is paid once
        once = overhead + max(verify(2) - verify(1) - marginal_cost, 0.0)
        plans = [
            sum(child**d for d in range(1, n + 1)) - rate * (n * (marginal_cost + draft(1)) + once)
            for n in range(1, depth + 1)
        ]
        return level if max(plans) > 0 else []
    ranked = sorted(level, key=lambda path: -nodes[path])
    best, count = 0.0, 0
    for k in range(1, len(ranked) + 1):
        gain = sum(nodes[path] for path in ranked[:k]) * child - rate * (k * marginal_cost + draft(k))
        if gain > best:
            best, count = gain, k
    return [path for path in level if path in ranked[:count]]


def cost_aware_tree(
    distribution: Callable[[tuple[int, ...]], Sequence[float]],
    text: Sequence[int],
    verify: Callable[[int], float],
    draft: Callable[[int], float],
    rate: float,
    sharpness: float,
    child: float,
    branching: int,
    depth: int,
    max_nodes: int,
    overhead: float = 0.0,
) -> list[tuple[int, int, float]]:
    """The rule of `CostAwareTree`, one comparison at a time; `verify` and `draft` are convex costs by rows.

    Nodes as (token, parent, estimated acceptance); node 0 is the last token of the text.
    """

    def sharp(path: tuple[int, ...]) -> list[tuple[int, float]]:
        p = distribution((*text, *path))
        total = sum(q**sharpness for q in p)
        order = sorted(range(len(p)), key=lambda token: (-p[token], token))[:branching]
        return [(token, p[token] ** sharpness / total) for token in order]

    nodes: dict[Path, float] = {(): 1.0}  # path -> a(u), in the order they were added
    level: list[Path] = [()]
    for _ in range(depth):
        read = paying_nodes(nodes, level, verify, draft, rate, child, depth, overhead)
        if not read:
            break
        marginal_cost = next_cost(nodes, verify)
        fresh = {
            (*path, token): nodes[path] * share
            for path in read
            for token, share in sharp(path)
            if nodes[path] * share > rate * marginal_cost
        }
        nodes |= fresh
        order = list(nodes)
        top = sorted(order, key=lambda path: (-nodes[path], order.index(path)))[:max_nodes]
        nodes = {path: nodes[path] for path in order if path in top}
        level = [path for path in nodes if path in fresh]
    order = list(nodes)
    top = sorted(order, key=lambda path: (-nodes[path], order.index(path)))
    size = max(range(1, len(top) + 1), key=lambda n: sum(nodes[path] for path in top[:n]) - rate * verify(n))
    kept = [path for path in order if path in top[:size]]
    return [(path[-1] if path else text[-1], kept.index(path[:-1]) if path else -1, nodes[path]) for path in kept]


def cost_aware_sampled_tree(
    distribution: Callable[[tuple[int, ...]], Sequence[float]],
    text: Sequence[int],
    drawn: Callable[[tuple[int, ...]], Sequence[int]],
    verify: Callable[[int], float],
    draft: Callable[[int], float],
    rate: float,
    accepted: Callable[[float, bool], float],
    child: float,
    branching: int,
    depth: int,
    max_nodes: int,
    overhead: float,
) -> dict[tuple[int, ...], float]:
    """The rule of `CostAwareSampledTree`, one place at a time: paths and their estimated acceptance, in order.

    `drawn` gives the tokens drawn below a path, in order; the rule must ask for as many. `accepted(q, later)` is the
    counted probability that a token of draft probability q is accepted if tested, after siblings or not.
    """
    nodes: dict[Path, float] = {(): 1.0}
    level: list[Path] = [()]
    for _ in range(depth):
        marginal_cost = next_cost(nodes, verify)
        read = paying_nodes(nodes, level, verify, draft, rate, child, depth, overhead)
        space, level = max_nodes - len(nodes), []
        fresh: dict[tuple[int, ...], float] = {}
        for path in read:
            p = distribution((*text, *path))
            first, later = (sum(q * accepted(q, after) for q in p) for after in (False, True))
            wanted, open_share = 0, nodes[path]  # of a(u) that no earlier sibling took
            for place in range(branching):
                chance = later if place else first
                if open_share * chance <= rate * marginal_cost or len(fresh) + wanted >= space:
                    break
                wanted, open_share = wanted + 1, open_share * (1 - chance)
            tokens = drawn(path)
            assert len(tokens) == min(wanted, sum(q > 0 for q in p))
            left = nodes[path]
            for place, token in enumerate(tokens):
                chance = accepted(p[token], place > 0)
                fresh[(*path, token)] = left * chance
                left *= 1 - chance
        nodes |= fresh
        level = list(fresh)
        if not level or len(nodes) >= max_nodes:
            break
    return nodes


VerdictLaw = dict[tuple[tuple[int, ...], int], Fraction]
"""Probability of every verdict on one given tree, by kept nodes from the top down and the extra token; no zeros."""


@dataclass(frozen=True)
class Drafted:
    """One drafted tree in exact fractions, node 0 first; parents come before children, siblings stand in draw order.

    Attributes:
        tokens: token of each node.
        parents: parent of each node, -1 for node 0.
        codes: how each token was drawn: `POINT`, `IID` or `DISTINCT`.
        target: the target's law after each node, V entries.
        draft: the draft's law after each node that has drawn children; may be shorter than V.
    """

    tokens: list[int]
    parents: list[int]
    codes: list[int]
    target: list[list[Fraction]]
    draft: dict[int, list[Fraction]]

    def children(self, u: int) -> list[int]:
        """Children of u in draw order."""
        return [c for c, parent in enumerate(self.parents) if parent == u]

    def path(self, u: int) -> tuple[int, ...]:
        """Nodes from below node 0 down to u."""
        return () if u == 0 else (*self.path(self.parents[u]), u)

    def text(self, u: int) -> tuple[int, ...]:
        """Tokens of the path to u."""
        return tuple(self.tokens[v] for v in self.path(u))

    def whole(self, u: int) -> list[Fraction]:
        """The draft's law after u, with zeros for the tokens it does not know."""
        short = self.draft.get(u, [])
        return short + [Fraction(0)] * (len(self.target[0]) - len(short))

    def drawn(self, c: int) -> list[Fraction]:
        """q_c, the law the token of c was drawn from given all that was drawn before it."""
        if self.codes[c] == POINT:
            return one_hot(self.tokens[c], len(self.target[0]))
        q = self.whole(self.parents[c])
        if self.codes[c] == DISTINCT:
            for sibling in self.children(self.parents[c]):
                if sibling < c:
                    q[self.tokens[sibling]] = Fraction(0)
        return normalised(q)


def one_hot(token: int, size: int) -> list[Fraction]:
    """All mass on one token."""
    return [Fraction(int(x == token)) for x in range(size)]


def normalised(weights: list[Fraction]) -> list[Fraction]:
    """The weights as a law; as they are where all are zero."""
    total = sum(weights)
    return [weight / total for weight in weights] if total else weights


def above(r: list[Fraction], q: list[Fraction]) -> list[Fraction]:
    """[r - q]_+ entry by entry."""
    return [max(Fraction(0), x - y) for x, y in zip(r, q, strict=True)]


def token_level_law(tree: Drafted) -> VerdictLaw:
    """RRS and RRSw: one row per node, tried against its children in draw order."""
    distribution: VerdictLaw = {}

    def visit(u: int, reached: Fraction) -> None:
        r = tree.target[u]
        for c in tree.children(u):
            q, x = tree.drawn(c), tree.tokens[c]
            accept = min(Fraction(1), r[x] / q[x])
            visit(c, reached * accept)
            reached *= 1 - accept
            r = normalised(above(r, q))
        for x, share in enumerate(r):
            if reached * share:
                distribution[tree.path(u), x] = reached * share

    visit(0, Fraction(1))
    return distribution


def target_walk_law(tree: Drafted) -> VerdictLaw:
    """Sample from the target until the text is no path of the tree; of copies of the last path, the first counts."""
    distribution: VerdictLaw = {}
    nodes = range(len(tree.tokens))

    def visit(text: tuple[int, ...], reached: Fraction) -> None:
        u = next(u for u in nodes if tree.text(u) == text)
        for x, share in enumerate(tree.target[u]):
            if any(tree.text(v) == (*text, x) for v in nodes):
                visit((*text, x), reached * share)
            elif reached * share:
                distribution[tree.path(u), x] = reached * share

    visit((), Fraction(1))
    return distribution


def block_law(tree: Drafted) -> VerdictLaw:
    """Block Verification of a chain of nodes 0, 1, ..., g: its weights w, residual masses S and coins h."""
    g = len(tree.tokens) - 1
    w = [Fraction(1)]
    for i in range(1, g + 1):
        w.append(min(Fraction(1), w[-1] * tree.target[i - 1][tree.tokens[i]] / tree.drawn(i)[tree.tokens[i]]))
    rows, h = [], []
    for i in range(g):
        rows.append(above([w[i] * share for share in tree.target[i]], tree.drawn(i + 1)))
        s = sum(rows[i])
        h.append(Fraction(1) if i == 0 else s / (s + 1 - w[i]) if s else Fraction(0))
    rows.append(tree.target[g])
    h.append(w[g] if g else Fraction(1))
    distribution: VerdictLaw = {}
    failed = Fraction(1)  # probability that the coins of all longer prefixes failed
    for i in range(g, -1, -1):
        for x, share in enumerate(normalised(rows[i])):
            if failed * h[i] * share:
                distribution[tuple(range(1, i + 1)), x] = failed * h[i] * share
        failed *= 1 - h[i]
    return distribution


def traversal_law_as_published(tree: Drafted) -> VerdictLaw:
    """Traversal with the paper's alpha, p' and q', one leaf at a time; tested nodes are deleted from the tree."""
    nodes = range(len(tree.tokens))
    alive = {u: tree.children(u) for u in nodes}
    alpha = {0: Fraction(1)}
    p = dict(enumerate(tree.target))
    q_rest = {u: tree.whole(u) for u in nodes}  # q' for a sibling drawn without replacement

    def q_of_next(u: int, c: int) -> list[Fraction]:
        if tree.codes[c] == POINT:
            return one_hot(tree.tokens[c], len(tree.target[0]))
        return q_rest[u] if tree.codes[c] == DISTINCT else tree.whole(u)

    distribution: VerdictLaw = {}
    reached = Fraction(1)
    while True:
        u = 0
        while alive[u]:  # the first child's first child ...
            c = alive[u][0]
            if c not in alpha:
                x = tree.tokens[c]
                alpha[c] = min(Fraction(1), alpha[u] * p[u][x] / q_of_next(u, c)[x])
            u = c
        keep = alpha[u] if u else Fraction(1)
        for x, share in enumerate(p[u]):
            if reached * keep * share:
                distribution[tree.path(u), x] = reached * keep * share
        reached *= 1 - keep
        if not reached:
            return distribution
        parent = tree.parents[u]
        rest = above([alpha[parent] * share for share in p[parent]], q_of_next(parent, u))
        s = sum(rest)
        p[parent] = normalised(rest)
        alpha[parent] = s / (s + 1 - alpha[parent])
        q_rest[parent] = [Fraction(0) if x == tree.tokens[u] else share for x, share in enumerate(q_rest[parent])]
        q_rest[parent] = normalised(q_rest[parent])
        alive[parent].remove(u)


def traversal_law(tree: Drafted) -> VerdictLaw:
    """Traversal as a recursion over sub-probability rows r and the mass s that leaves a node."""
    distribution: VerdictLaw = {}

    def visit(u: int, accepted: Fraction, reached: Fraction) -> Fraction:
        """Probability that u was reached, and neither it nor anything below it was kept."""
        r, s = [accepted * share for share in tree.target[u]], 1 - accepted
        for c in tree.children(u):
            q, x = tree.drawn(c), tree.tokens[c]
            reached = visit(c, min(Fraction(1), r[x] / q[x]), reached)
            rest = above(r, q)
            z = sum(rest) + s
            if z:
                r, s = [share / z for share in rest], s / z
        keep = sum(r) if u else Fraction(1)
        for x, share in enumerate(normalised(r)):
            if reached * keep * share:
                distribution[tree.path(u), x] = reached * keep * share
        return reached * (1 - keep)

    visit(0, Fraction(1), Fraction(1))
    return distribution


def tempered(distribution, sampling):
    """A law under temperature, then top-k, then top-p; no ties at the edges."""
    row = [share ** (1 / sampling.temperature) for share in distribution]
    best = sorted(range(len(row)), key=lambda token: -row[token])[: sampling.top_k]
    row = [share if token in best else 0.0 for token, share in enumerate(row)]
    row = [share / sum(row) for share in row]
    if sampling.top_p is not None:
        kept = [token for place, token in enumerate(best) if sum(row[t] for t in best[:place]) < sampling.top_p]
        row = [share if token in kept else 0.0 for token, share in enumerate(row)]
    return [share / sum(row) for share in row]


def probability_of_tree(tree, prompt, distribution, sampling):
    """Probability that a drafter draws exactly this tree: q_c of every node given its earlier siblings, multiplied."""
    total = 1.0
    for node in range(1, len(tree)):
        parent = int(tree.parents[node])
        context = (*prompt[:-1], *(int(tree.tokens[v]) for v in [0, *tree.path(parent)]))
        row = tempered(distribution(context), sampling)
        if tree.draws[node] == POINT:
            continue
        earlier = [int(tree.tokens[v]) for v in tree.children(parent) if v < node]
        if tree.draws[node] == DISTINCT:
            row = [0.0 if token in earlier else share for token, share in enumerate(row)]
        total *= row[int(tree.tokens[node])] / sum(row)
    return total


# ------------------------------------------------------------------------------------------- drafters without a model
Predict = Callable[[tuple[int, ...]], int]
"""The token a model predicts after a context."""


def greedy_of(distribution: Callable[[tuple[int, ...]], Sequence[float]]) -> Predict:
    """The most probable token of a law, ties to the lowest id."""
    return lambda context: max(
        range(len(distribution(context))), key=lambda token: (distribution(context)[token], -token)
    )


def merged(cached: dict, tree: dict) -> dict:
    """M(T, T') of Progressive Tree Drafting (section 3.2); a tree is a nested dict token -> tree below it."""
    fresh = [v for v in tree if v not in cached]
    return {v: merged(cached.get(v, {}), tree.get(v, {})) for v in [*cached, *fresh]}


def expanded(branch: list, context: tuple[int, ...], predict: Predict, children: int) -> list:
    """V^i and E^i below one node of T^(i-1), as [token, branches]: d_v is a child of v, unless v has its children."""
    token, below = branch
    here = (*context, token)
    drafted = predict(here)
    grown = [expanded(child, here, predict, children) for child in below]
    if drafted not in [child[0] for child in below] and len(below) < children:
        grown.append([drafted, []])
    return [token, grown]


def levels_below(branch: list) -> int:
    """Height of [token, branches]."""
    return max([0, *(1 + levels_below(child) for child in branch[1])])


def stepped(branch: list, depth: int) -> list:
    """STEPANDPRUNE for one subtree T_s: the earliest child and its descendants take its place if it is too deep."""
    return branch[1][0] if levels_below(branch) > depth else branch


def capped(branches: list[list], most: int) -> list[list]:
    """The `most` nodes with the smallest sum of birth ranks on their path, by subtree, there breadth first."""
    keys: list[tuple[int, ...]] = []

    def visit(branch: list, key: tuple[int, ...]) -> None:
        keys.append(key)
        for rank, child in enumerate(branch[1]):
            visit(child, (*key, rank))

    def kept(branch: list, key: tuple[int, ...]) -> list:
        below = [(child, (*key, rank)) for rank, child in enumerate(branch[1])]
        return [branch[0], [kept(child, its) for child, its in below if its in chosen]]

    for number, branch in enumerate(branches):
        visit(branch, (number,))
    chosen = sorted(keys, key=lambda key: (sum(key[1:]), key[0], len(key), key))[:most]
    return [kept(branch, (number,)) for number, branch in enumerate(branches) if (number,) in chosen]


def depth_first(branches: list[list], token: int) -> tuple[list[int], list[int]]:
    """Tokens and parents of node 0 = `token` and the branches below it, in the order of Figure 3's mask."""
    tokens, parents = [token], [-1]

    def visit(branch: list, parent: int) -> None:
        tokens.append(branch[0])
        parents.append(parent)
        index = len(tokens) - 1
        for child in branch[1]:
            visit(child, index)

    for branch in branches:
        visit(branch, 0)
    return tokens, parents


def branches_of(tree: TokenTree, node: int = 0) -> list[list]:
    """What hangs below a node, as [token, branches]."""
    return [[int(tree.tokens[child]), branches_of(tree, child)] for child in tree.children(node)]


class PathPool:
    """A pool of candidate trees as a flat table: path from a root token down -> [time merged last, times merged]."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.paths: dict[tuple[int, ...], list[int]] = {}
        self.now = 0

    def touch(self, path: tuple[int, ...]) -> None:
        """One edge of M, or a root."""
        for stop in range(1, len(path)):  # M keeps whole trees
            self.paths.setdefault(path[:stop], [self.now, 0])
        times = self.paths.get(path, [0, 0])[1]
        self.paths[path] = [self.now, times + 1]

    def merge(self, branches: list[list]) -> None:
        """Every subtree with children: breadth first, each node in all the subtrees that hold it, the largest first."""
        level = [(branch, ()) for branch in branches]
        while level:
            for branch, above in level:
                path = (*above, branch[0])
                for start in range(len(path) - 1):
                    self.touch(path[start:])
                if branch[1]:
                    self.touch(path[-1:])
            level = [(child, (*above, branch[0])) for branch, above in level for child in branch[1]]

    def read(self, text: Sequence[int], fresh: int, depth: int) -> None:
        """Token by token of the last `fresh`, the paths of up to `depth` levels that it completes, the longest first,
        each from its root down.
        """
        for end in range(len(text) - fresh + 1, len(text) + 1):
            for length in range(min(depth + 1, end), 1, -1):
                path = tuple(text[end - length : end])
                for stop in range(1, len(path) + 1):
                    self.touch(path[:stop])
            self.settle()

    def settle(self) -> None:
        """Where there are more than `size`, those merged as late as number 3/4 `size` + 1, or earlier, go."""
        if len(self.paths) > self.size:
            latest = sorted((time for time, _ in self.paths.values()), reverse=True)
            last = latest[3 * self.size // 4]
            gone = [path for path, (time, _) in self.paths.items() if time <= last]
            self.paths = {
                path: merged_at
                for path, merged_at in self.paths.items()
                if not any(path[:stop] in gone for stop in range(1, len(path) + 1))
            }
        self.now += 1

    def below(self, path: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The children of a path: merged last first, then merged most often, then the oldest."""
        children = [one for one in self.paths if one[:-1] == path]
        return sorted(children, key=lambda one: (-self.paths[one][0], -self.paths[one][1]))

    def trees(self) -> dict:
        """The same as nested dicts."""
        out: dict = {}
        for path in self.paths:
            here = out
            for token in path:
                here = here.setdefault(token, {})
        return out

    def candidates(
        self, token: int, random: Callable[[int], float], max_depth: int, worth: Sequence[float]
    ) -> list[tuple[int, int, int]]:
        """The likeliest paths after a token, one at a time: (token, parent, rank), parent 0 being the token.

        `chance` is that of a rank; candidate number k must exceed `worth[k]`. Equally likely ones go in the order in
        which they could first be taken.
        """
        taken: list[tuple[tuple[int, ...], int, int, float]] = [((token,), -1, 0, 1.0)]
        while len(taken) <= len(worth):
            best = None
            for place, (path, _, _, above) in enumerate(taken):
                for rank, one in enumerate(self.below(path) if len(path) <= max_depth else []):
                    if one not in [path for path, *_ in taken] and (best is None or above * random(rank) > best[3]):
                        best = (one, place, rank, above * random(rank))
            if best is None or not best[3] > worth[len(taken) - 1]:
                break
            taken.append(best)
        return [(path[-1], place, rank) for path, place, rank, _ in taken[1:]]


@dataclass
class ProgressiveTwin:
    """Algorithm 1 of Progressive Tree Drafting, line by line and greedy, with the choices `ProgressiveTree` names.

    Attributes:
        predict: the target's prediction.
        drafted: the prediction that expands a node of the draft tree.
        text: X.
        tree: T^(i-1), its subtrees T_s as [token, branches].
        right, tried: by rank, outcomes of the candidates, with forgetting.
        verify: cost of a forward by rows, convex, in greedy steps; None verifies all candidates.
    """

    predict: Predict
    drafted: Predict
    text: list[int]
    tree: list[list]
    depth: int
    children: int
    max_draft: int
    max_candidates: int
    pool: PathPool
    text_depth: int
    prune_first: bool
    right: list[float]
    tried: list[float]
    verify: Callable[[int], float] | None = None
    committed: float = 0.0
    spent: float = 0.0

    def __post_init__(self) -> None:
        self.read(len(self.text))

    def read(self, fresh: int) -> None:
        """What the text's last `fresh` tokens followed."""
        if self.text_depth:
            self.pool.read(self.text, fresh, self.text_depth)

    def random(self, rank: int) -> float:
        """Of a candidate of this rank among its siblings."""
        rank = min(rank, len(self.right) - 1)
        return self.right[rank] / self.tried[rank]

    def marginal_cost(self, rows: int) -> float:
        """What one row more costs, in tokens."""
        if self.verify is None:
            return 0.0
        rows = max(rows, 2)
        return self.committed / self.spent * (self.verify(rows + 1) - self.verify(rows))

    def iteration(self, max_depth: int) -> tuple[tuple, tuple, list[int]]:
        """One pass of the loop: the draft tree and the candidate tree as (tokens, parents), and X'."""
        draft = depth_first(self.tree, self.text[-1])
        rows = len(draft[0]) - 1
        worth = [self.marginal_cost(1 + rows + count) for count in range(self.max_candidates)]
        found = self.pool.candidates(self.text[-1], self.random, max_depth, worth)  # step 1
        candidates = ([self.text[-1], *(one[0] for one in found)], [-1, *(one[1] for one in found)])
        accepted: list[int] = []
        node: int | None = 0
        while node is not None:  # steps 2, 5 and 6: E and X'
            below = [place for place, one in enumerate(found, 1) if one[1] == node]
            token = self.predict((*self.text, *accepted))
            node = next((place for place in below if found[place - 1][0] == token), None)
            accepted.append(token)
        for place in range(len(accepted)):  # all that was cached on the way is a lesson, verified or not
            siblings = self.pool.below((self.text[-1], *accepted[:place]))[: self.max_candidates]
            for number, path in enumerate(siblings):
                rank = min(number, len(self.right) - 1)
                self.tried[rank] = 0.98 * self.tried[rank] + 1
                self.right[rank] = 0.98 * self.right[rank] + (path[-1] == accepted[place])
        self.committed += len(accepted)
        if self.verify is not None:
            self.spent += self.verify(1 + rows + len(found))
        context = tuple(self.text)
        self.tree = [expanded(one, context, self.drafted, self.children) for one in self.tree]  # step 3
        if not self.prune_first:
            self.pool.merge(self.tree)
        self.tree = capped([stepped(one, self.depth) for one in self.tree], self.max_draft)
        if self.prune_first:
            self.pool.merge(self.tree)  # step 4
        self.pool.settle()
        self.text += accepted
        self.read(len(accepted))
        return draft, candidates, accepted


@dataclass
class NgramTwin:
    """What Lookahead and Self-Draft share: lists of n-grams by the token before them, latest last, and verification.

    Attributes:
        predict: the target's prediction.
        text: all tokens.
        known: token -> n-grams.
        most: n-grams kept per token.
        ngram: N.
        pool_text: whether the text's own n-grams are kept.
    """

    predict: Predict
    text: list[int]
    known: dict[int, list[tuple[int, ...]]]
    most: int
    ngram: int
    pool_text: bool

    def __post_init__(self) -> None:
        self.read(len(self.text))

    def add(self, gram: Sequence[int]) -> None:
        """N tokens that followed each other."""
        key, after = gram[0], tuple(gram[1:])
        kept = [one for one in self.known.get(key, []) if one != after]
        self.known[key] = [*kept, after][-self.most :]

    def read(self, fresh: int) -> None:
        """The n-grams of the text that its last `fresh` tokens complete."""
        for end in range(len(self.text) - fresh + 1, len(self.text) + 1):
            if self.pool_text and end >= self.ngram:
                self.add(self.text[end - self.ngram : end])

    def verified(self, max_depth: int) -> tuple[set[tuple[int, ...]], list[int]]:
        """Every path of the candidates after the last token, cut to `room`, and what is committed."""
        guesses = [one[:max_depth] for one in self.known.get(self.text[-1], [])]
        paths = {one[:stop] for one in guesses for stop in range(1, len(one) + 1)}
        accepted = [self.predict(tuple(self.text))]
        while tuple(accepted) in paths:
            accepted.append(self.predict((*self.text, *accepted)))
        return paths, accepted


@dataclass
class LookaheadTwin(NgramTwin):
    """Lookahead decoding (Fu et al. 2024), with `past` as in the authors' code: level by level, None where not filled.

    Level 0 begins with W + N - 3 guesses and has W - 1 once all are filled; the other levels have W.
    """

    past: list = None  # type: ignore[assignment]
    window: int = 1

    def lines(self) -> list[tuple[int, ...]]:
        """The path below the last token to every guess in the window."""
        first, *others = [level for level in self.past if level is not None]
        out = [tuple(first[: column + 1]) for column in range(len(first))]
        for count in range(1, len(others) + 1):
            for column in range(len(others[0])):
                out.append((*first[:column], *(level[column] for level in others[:count])))
        return out

    def after(self, column: int, levels: int) -> int:
        """What the target predicts after a column of levels 1 to `levels`; it hangs below level 0's place before it."""
        above = self.past[0][:column]
        return self.predict((*self.text, *above, *(self.past[level][column] for level in range(1, levels + 1))))

    def iteration(self, max_depth: int) -> tuple[list, set[tuple[int, ...]], list[int]]:
        """The window's lines, the candidates' paths and the committed tokens."""
        paths, accepted = self.verified(max_depth)
        lines = self.lines()
        self.step()
        self.text += accepted
        self.read(len(accepted))
        return lines, paths, accepted

    def step(self) -> None:
        """One Jacobi iteration of the window."""
        filled = sum(level is not None for level in self.past)
        if filled == self.ngram - 1:
            fresh = [self.after(column, self.ngram - 2) for column in range(self.window)]
            keys = [self.text[-1], *self.past[0]]
            for column in range(self.window):
                self.add([keys[column], *(level[column] for level in self.past[1:]), fresh[column]])
            self.past = [*self.past[1:], fresh]
            self.past[0] = self.past[0][1:]
        elif filled == 1:
            self.past[1] = [
                self.predict((*self.text, *self.past[0][: column + 1])) for column in range(len(self.past[0]))
            ]
            self.past[0] = self.past[0][1:]
        else:
            fresh = [self.after(column, filled - 1) for column in range(len(self.past[filled - 1]))]
            self.past[:filled] = [level[1:] for level in self.past[:filled]]
            self.past[filled] = fresh[1:]


@dataclass
class SelfDraftTwin(NgramTwin):
    """Self-Draft's branches: each grows by its last prediction, a full one loses its first token."""

    branches: list[list[int]] = None  # type: ignore[assignment]
    full: list[int] = None  # type: ignore[assignment]

    def iteration(self, max_depth: int) -> tuple[list, set[tuple[int, ...]], list[int]]:
        """Every prefix of a branch, the candidates' paths and the committed tokens."""
        paths, accepted = self.verified(max_depth)
        lines = [tuple(branch[:stop]) for branch in self.branches for stop in range(1, len(branch) + 1)]
        for number, branch in enumerate(self.branches):
            whole = [*([] if number else self.text[-1:]), *branch]  # the last token belongs to the first line
            before = self.text if number else self.text[:-1]
            for stop in range(self.ngram - 1, len(whole) + 1):
                fresh = self.predict((*before, *whole[:stop]))
                self.add([*whole[stop - self.ngram + 1 : stop], fresh])
            grown = [*branch, self.predict((*self.text, *branch))]
            self.branches[number] = grown[-self.full[number] :]
        self.text += accepted
        self.read(len(accepted))
        return lines, paths, accepted


def logits_in_bytes(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """(n, V) products of (n, h) states and a (V, h) head, both rounded to 255 steps a row (`kernels.project_bytes`)."""

    def rounded(rows: torch.Tensor) -> torch.Tensor:
        step = rows.double().abs().amax(1, keepdim=True) / 127
        return (rows.double() / step).round() * step

    return rounded(hidden) @ rounded(head).T


# ------------------------------------------------------------------------------------------- what followed before
def longest_earlier_suffix(text: Sequence[int]) -> list[int]:
    """The longest suffix of a text that ends somewhere before its end, by trying all."""
    for start in range(1, len(text)):
        suffix = list(text[start:])
        if any(list(text[end - len(suffix) : end]) == suffix for end in range(len(suffix), len(text))):
            return suffix
    return []


def followers(text: Sequence[int], string: Sequence[int]) -> dict[int, int]:
    """How often each token followed a string in a text."""
    found: dict[int, int] = {}
    for end in range(len(string), len(text)):
        if list(text[end - len(string) : end]) == list(string):
            found[text[end]] = found.get(text[end], 0) + 1
    return found


def suffix_paths(text: Sequence[int], known, depth: int, shortest: int) -> dict[tuple[int, ...], float]:
    """The probability of every path below a text by `SuffixTree`'s estimate, from counts of substrings.

    A path's context is the longest suffix of text and path, ending at its last token, that occurs in the text.
    """
    from dynatree_lib.drafters.suffix_tree import LENGTHS

    def matches(context: list[int]) -> list[list[int]]:
        """The suffixes with a place of their own in the text, longest first: each ends at more places."""
        found, places = [], 0
        for start in range(len(context)):
            suffix = context[start:]
            ends = sum(list(text[end - len(suffix) : end]) == suffix for end in range(len(suffix), len(text) + 1))
            if ends > places:
                found.append(suffix)
                places = ends
        return found

    out: dict[tuple[int, ...], float] = {}
    waiting = [((), 1.0, longest_earlier_suffix(text))]
    for path, probability, context in waiting:  # grows while it is read
        left, shorter, shares, handles = 1.0, 0, {}, {}
        for suffix in [*matches(context), []]:
            after = followers(text, suffix)
            if len(suffix) < shortest or not after:
                continue
            share = left * known[shorter][sum(length <= len(suffix) for length in LENGTHS)]
            for token, count in after.items():
                shares[token] = shares.get(token, 0.0) + share * count / sum(after.values())
                handles.setdefault(token, [*suffix, token])
            left, shorter = left - share, 1
        for token, share in shares.items():
            out[(*path, token)] = probability * share
            if len(path) + 1 < depth:
                waiting.append(((*path, token), probability * share, handles[token]))
    return out


def dyspec_values(tree, distribution, prompt: Sequence[int]) -> tuple[list[float], list[float]]:
    """The values of the places that drew a node, in the order of drawing, and of those left (DySpec, Algorithm 1)."""
    values, out, rest = {0: 1.0}, [], {0: 1.0}
    for node in range(1, len(tree)):
        parent = int(tree.parents[node])
        above = tree.tokens[tree.path(parent)].tolist()
        left = np.array(distribution((*prompt, *above)))
        value = values[parent]
        for sibling in tree.children(parent).tolist():
            share = left[tree.tokens[sibling]] / left.sum()
            if sibling == node:
                break
            value *= 1 - share
            left[tree.tokens[sibling]] = 0
        out.append(value)
        values[node] = rest[node] = value * share
        rest[parent] = value * (1 - share)
    return out, [*rest.values()]


# Drafts with another tokenizer (Timor et al. 2025), read anew for every node


def path_to(parents, node):
    """Nodes from the top down to a node of a forest."""
    path = []
    while node >= 0:
        path.append(node)
        node = int(parents[node])
    return path[::-1]


def translated_text(translation, text):
    """A text of target tokens in the draft's: runs with bytes split into the longest tokens, other tokens left out."""
    out, run = [], []
    for token in [*text, None]:
        data = None if token is None else translation.target.tokens[token]
        if data is not None:
            run.append(data)
            continue
        whole = longest_tokens(b"".join(run), translation.draft.tokens)
        parts = [longest_tokens(data, translation.draft.tokens) for data in run]
        out += whole if whole is not None else [each for part in parts for each in part or []]
        run = []
    return out


def longest_tokens(data, tokens):
    """The longest token that the data begin with, again and again; None where there is none."""
    out = []
    while data:
        fits = [number for number, token in enumerate(tokens) if token and data.startswith(token)]
        if not fits:
            return None
        out.append(max(fits, key=lambda number: len(tokens[number])))
        data = data[len(tokens[out[-1]]) :]
    return out


def translated_distribution(draft, translation, text, path):
    """A toy draft's distribution of the shared tokens after a text of draft tokens and a path of target tokens."""
    for token in path:
        data = translation.target.tokens[token]
        text = [*text, *(longest_tokens(data, translation.draft.tokens) or [0] if data else [0])]
    whole = draft.distribution(tuple(text))
    shares = [whole[column] for column in translation.columns]
    return [share / sum(shares) for share in shares]


def without_layers(model, layers):
    """A transformers model without some layers, made anew: another configuration, and the weights under other names."""
    config = copy.deepcopy(model.config)
    text = config.get_text_config(decoder=True)
    kept = [layer for layer in range(text.num_hidden_layers) if layer not in layers]
    text.num_hidden_layers = len(kept)
    for name in ("layer_types", "layer_rope_theta"):
        if getattr(text, name, None):
            setattr(text, name, [getattr(text, name)[layer] for layer in kept])
    other = type(model)(config).to(model.dtype).eval()
    weights = {}
    for name, weight in model.state_dict().items():
        found = re.match(r"(.*?\.(?:layers|h)\.)(\d+)(\..*)", name)
        if found is None or "vision" in name:
            weights[name] = weight
        elif int(found[2]) in kept:
            weights[f"{found[1]}{kept.index(int(found[2]))}{found[3]}"] = weight
    other.load_state_dict(weights)
    return other
