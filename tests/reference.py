"""Slow, obvious versions that every fast path is checked against. Nothing here is fast or shared with the library."""

from __future__ import annotations

import math
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


def draft_tree(
    law: Callable[[tuple[int, ...]], Sequence[float]],
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
        p = law((*text, *path))
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
    law: Callable[[tuple[int, ...]], Sequence[float]],
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
        return law((*text, *path))

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
    law: Callable[[tuple[int, ...]], Sequence[float]], text: Sequence[int], max_nodes: int, depth: int, branching: int
) -> list[tuple[int, int, float]]:
    """The complete tree of top-`branching` children, and of that the most probable nodes, ties in breadth-first order.

    Nodes as (token, parent, path log-probability); node 0 is the last token of the text and counts in `max_nodes`.
    """
    everything: list[tuple[int, int, float]] = [(text[-1], -1, 0.0)]
    paths: list[tuple[int, ...]] = [()]
    for node, path in enumerate(paths):  # grows while it is walked through: breadth-first order
        if len(path) < depth:
            p = law((*text, *path))
            for token in sorted(range(len(p)), key=lambda token: (-p[token], token))[:branching]:
                logprob = math.log(p[token]) if p[token] > 0 else -math.inf
                everything.append((token, node, everything[node][2] + logprob))
                paths.append((*path, token))
    ranked = sorted(range(len(everything)), key=lambda node: (-everything[node][2], node))
    kept = sorted(ranked[:max_nodes])
    chosen = [everything[node] for node in kept]
    return [(token, kept.index(parent) if parent >= 0 else -1, logprob) for token, parent, logprob in chosen]


def cost_aware_tree(
    law: Callable[[tuple[int, ...]], Sequence[float]],
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
        p = law((*text, *path))
        total = sum(q**sharpness for q in p)
        order = sorted(range(len(p)), key=lambda token: (-p[token], token))[:branching]
        return [(token, p[token] ** sharpness / total) for token in order]

    deep = range(1, depth + 1)
    nodes: dict[tuple[int, ...], float] = {(): 1.0}  # path -> a(u), in the order they were added
    level: list[tuple[int, ...]] = [()]
    for _ in range(depth):
        price = verify(max(len(nodes), 2) + 1) - verify(max(len(nodes), 2))  # two rows are the smallest tree
        ranked = sorted(level, key=lambda path: -nodes[path])
        best, count = 0.0, 0
        for k in range(1, len(ranked) + 1):
            gain = sum(nodes[path] for path in ranked[:k]) * child - rate * (k * price + draft(k))
            if gain > best:
                best, count = gain, k
        if level == [()]:  # a tree at all pays if some number of levels does, with what is paid once
            once = overhead + max(verify(2) - verify(1) - price, 0.0)
            plans = [sum(child**d for d in range(1, n + 1)) - rate * (n * (price + draft(1)) + once) for n in deep]
            count = int(max(plans) > 0)
        if not count:
            break
        fresh = {
            (*path, token): nodes[path] * share
            for path in level
            if path in ranked[:count]
            for token, share in sharp(path)
            if nodes[path] * share > rate * price
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
    law: VerdictLaw = {}

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
                law[tree.path(u), x] = reached * share

    visit(0, Fraction(1))
    return law


def target_walk_law(tree: Drafted) -> VerdictLaw:
    """Sample from the target until the text is no path of the tree; of copies of the last path, the first counts."""
    law: VerdictLaw = {}
    nodes = range(len(tree.tokens))

    def visit(text: tuple[int, ...], reached: Fraction) -> None:
        u = next(u for u in nodes if tree.text(u) == text)
        for x, share in enumerate(tree.target[u]):
            if any(tree.text(v) == (*text, x) for v in nodes):
                visit((*text, x), reached * share)
            elif reached * share:
                law[tree.path(u), x] = reached * share

    visit((), Fraction(1))
    return law


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
    law: VerdictLaw = {}
    failed = Fraction(1)  # probability that the coins of all longer prefixes failed
    for i in range(g, -1, -1):
        for x, share in enumerate(normalised(rows[i])):
            if failed * h[i] * share:
                law[tuple(range(1, i + 1)), x] = failed * h[i] * share
        failed *= 1 - h[i]
    return law


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

    law: VerdictLaw = {}
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
                law[tree.path(u), x] = reached * keep * share
        reached *= 1 - keep
        if not reached:
            return law
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
    law: VerdictLaw = {}

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
                law[tree.path(u), x] = reached * keep * share
        return reached * (1 - keep)

    visit(0, Fraction(1), Fraction(1))
    return law


def tempered(law, sampling):
    """A law under temperature, then top-k, then top-p; no ties at the edges."""
    row = [share ** (1 / sampling.temperature) for share in law]
    best = sorted(range(len(row)), key=lambda token: -row[token])[: sampling.top_k]
    row = [share if token in best else 0.0 for token, share in enumerate(row)]
    row = [share / sum(row) for share in row]
    if sampling.top_p is not None:
        kept = [token for place, token in enumerate(best) if sum(row[t] for t in best[:place]) < sampling.top_p]
        row = [share if token in kept else 0.0 for token, share in enumerate(row)]
    return [share / sum(row) for share in row]


def probability_of_tree(tree, prompt, law, sampling):
    """Probability that a drafter draws exactly this tree: q_c of every node given its earlier siblings, multiplied."""
    total = 1.0
    for node in range(1, len(tree)):
        parent = int(tree.parents[node])
        context = (*prompt[:-1], *(int(tree.tokens[v]) for v in [0, *tree.path(parent)]))
        row = tempered(law(context), sampling)
        if tree.law[node] == POINT:
            continue
        earlier = [int(tree.tokens[v]) for v in tree.children(parent) if v < node]
        if tree.law[node] == DISTINCT:
            row = [0.0 if token in earlier else share for token, share in enumerate(row)]
        total *= row[int(tree.tokens[node])] / sum(row)
    return total
