"""Slow, obvious versions that every fast path is checked against. Nothing here is fast or shared with the library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from dynatree_lib import TokenTree


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
