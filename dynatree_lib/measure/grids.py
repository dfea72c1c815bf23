"""Sets of methods to measure together: hyper-parameter grids, and the steps from the published code to this library's.

What is measured how belongs to `protocol`; here are only the lists of variants, and their results as rows for figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from .methods import Variant, variant
from .protocol import Results


def grid(method: str, fixed: Mapping[str, Any] | None = None, **axes: Sequence[Any]) -> list[Variant]:
    """One variant per combination of the axes' values, labelled by them.

    Args:
        method: name of the method.
        fixed: options that all share.
        axes: option name -> values.
    """
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return labelled(method, {_spelled(point): {**(fixed or {}), **point} for point in points})


def text(value: Any) -> str:
    """An option's value as `--methods` spells it: (3, 2, 1) as 3/2/1, None as none."""
    return "/".join(map(str, value)) if isinstance(value, tuple | list) else "none" if value is None else str(value)


def labelled(method: str, options: Mapping[str, Mapping[str, Any]]) -> list[Variant]:
    """Variants of one method under labels of their own: label -> options."""
    return [variant(f"{method}:{_spelled(mine)}", label) for label, mine in options.items()]


def _spelled(options: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={text(value)}" for name, value in options.items())


def rows(results: Results, labels: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """One flat dictionary per method: its summary and its options, for tables and figures.

    `method` is the label; `name` the method's name. Without `labels` all methods, in the order of the run.
    """
    chosen = None if labels is None else set(labels)
    out = []
    for one in results.summaries():
        if chosen is None or one.label in chosen:
            options = {name: tuple(v) if isinstance(v, list) else v for name, v in one.options.items()}
            out.append({**options, **asdict(one), "method": one.label, "name": one.method})
    return out


def fastest(candidates: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The row with the highest speed-up over `hf-generate`."""
    return max(candidates, key=lambda row: row["speedup_hf_generate"])
