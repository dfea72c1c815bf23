"""Sets of methods to measure together: hyper-parameter grids and labelled options, and their results as rows.

How methods are measured belongs to `protocol`; the steps from the published code to this library's to `experiments`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from .methods import Variant, variant

if TYPE_CHECKING:
    from .protocol import Results


def grid(method: str, fixed: Mapping[str, Any] | None = None, **axes: Sequence[Any]) -> list[Variant]:
    """Return one variant per combination of the axes' values, labelled by them.

    Args:
        method: name of the method.
        fixed: options that all share.
        axes: option name -> values.
    """
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return labelled(method, {_spelled(point): {**(fixed or {}), **point} for point in points})


def text(value: Any) -> str:
    """Spell an option's value as `--methods` does: (3, 2, 1) as 3/2/1, None as none."""
    return "/".join(map(str, value)) if isinstance(value, tuple | list) else "none" if value is None else str(value)


def labelled(method: str, options: Mapping[str, Mapping[str, Any]]) -> list[Variant]:
    """Return variants of one method under given labels: label -> options."""
    return [variant(f"{method}:{_spelled(chosen)}", label) for label, chosen in options.items()]


def _spelled(options: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={text(value)}" for name, value in options.items())


def rows(results: Results, labels: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Return `Results.rows`."""
    return results.rows(labels)


def fastest(candidates: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the row with the highest speed-up over `hf-generate`."""
    return max(candidates, key=lambda row: row["speedup_hf_generate"])
