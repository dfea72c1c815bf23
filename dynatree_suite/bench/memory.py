"""What is said where the memory of the machine or of a device runs out: what fills it, and what needs less."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .environment import cache_bytes_per_row, weight_bytes

if TYPE_CHECKING:
    from dynatree_lib.models.huggingface import HFModel
    from dynatree_lib.models.pairs import Pair

LESS = (
    "Use smaller trees (max_nodes), a shorter text (max_new_tokens), static buffers of a smaller capacity, or a "
    "narrower dtype (bfloat16)."
)


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out, of the machine or of a device."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


def out_of_memory(error: BaseException, pair: Pair | None = None) -> str:
    """Return what is said of an error of memory: its first line, what a pair's models take, and the way out."""
    first = (str(error).strip().splitlines() or ["The memory does not suffice."])[0]
    models = () if pair is None else (("target", pair.target), ("draft", pair.draft))
    return " ".join([f"{first.rstrip('.')}.", *(_taken(role, model) for role, model in models), LESS])


def _taken(role: str, model: HFModel) -> str:
    """Return a sentence on the bytes of a model's weights and of its KV cache."""
    weights = f"The {role}'s weights take {size(weight_bytes(model))}"
    try:
        each = cache_bytes_per_row(model)
    except Exception as error:
        if not ran_out(error):
            raise
        return f"{weights}."
    return f"{weights}, its cache {size(each)} a token and {size(each * model.context)} for {model.context} tokens."


def size(count: int) -> str:
    """Return a number of bytes with a unit that suits it."""
    number, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:.3g} {unit}"
