import numpy as np
import pytest
import reference

from dynatree_lib import TokenTree
from dynatree_lib.masks import additive, ancestor_matrix, depth_positions, sliding_window, tree_mask
from dynatree_lib.tree import depths_of, renumbering


def random_parents(n: int, seed: int, forest: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    low = -1 if forest else 0
    return np.array([-1] + [int(rng.integers(low, i)) for i in range(1, n)])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("forest", [False, True])
def test_mask_equals_the_literal_loop(seed, forest):
    parents = random_parents(1 + seed * 3, seed, forest)
    assert (tree_mask(parents, prefix=seed % 5) == reference.tree_mask_loop(parents.tolist(), seed % 5)).all()
    expected = [len(reference.ancestors_or_self(parents.tolist(), i)) - 1 for i in range(len(parents))]
    assert depths_of(parents).tolist() == expected
    assert depth_positions(parents, 7).tolist() == [7 + d for d in expected]


def test_ancestor_matrix_is_cached_and_read_only():
    first = ancestor_matrix(np.array([-1, 0, 0]))
    assert first is ancestor_matrix(np.array([-1, 0, 0]))
    with pytest.raises(ValueError, match="read-only"):
        first[0, 1] = True


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_additive_mask_is_finite(dtype):
    import torch

    mask = additive(np.array([[True, False]]), getattr(torch, dtype))
    assert mask.tolist()[0] == [0, torch.finfo(getattr(torch, dtype)).min]


def test_sliding_window_counts_depth():
    # Siblings at position 4 both see keys from position 3 on, whatever their index in the tree.
    allowed = np.ones((2, 5), bool)
    narrow = sliding_window(allowed, np.array([4, 4]), np.arange(5), window=2)
    assert narrow.tolist() == [[False, False, False, True, True]] * 2


def test_paths_children_and_cumulative():
    tree = TokenTree.build([5, 6, 7, 8], [-1, 0, 0, 2], [0, -1, -2, -0.5])
    assert tree.path(3) == [2, 3]
    assert tree.children(0).tolist() == [1, 2]
    assert tree.cumulative.tolist() == [0, -1, -2, -2.5]
    assert tree.depth == 2


def test_from_paths_merges_prefixes():
    tree = TokenTree.from_paths(1, [[2, 3], [2, 4], [5]])
    assert tree.tokens.tolist() == [1, 2, 3, 4, 5]
    assert tree.parents.tolist() == [-1, 0, 1, 1, 0]


def test_renumbering_follows_what_stays():
    index = renumbering(4, np.array([0, 2, 3]))
    assert index.tolist() == [0, -1, 1, 2, -1]
    assert index[np.array([-1, 0, 0, 2])].tolist() == [-1, 0, 0, 1]  # of the parents; that of node 0 stays -1


@pytest.mark.parametrize("parents", [[0, 0], [-1, 1], [-1, -1], [-1, 0, 5]])
def test_malformed_trees_are_refused(parents):
    with pytest.raises(ValueError, match="tree"):
        TokenTree.build([1] * len(parents), parents)
