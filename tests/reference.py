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
