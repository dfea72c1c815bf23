"""The engines `quantised` and `rounded`: the compiled forward on weights in the 4 or 8 bits that a file held them in.

A model that was read from quantised weights (GGUF's Q4_0, Q4_1 or Q8_0) has float32 numbers that lie, 32 by 32 inputs
of an output, on 16 or 256 equally spaced values. `Codes` finds those values again and checks every weight to the bit.
So no weight is rounded, and logits of `quantised` are those of `compiled` up to the last bits of inputs and sums, from
less than a sixth of the memory. `rounded` rounds inputs to 16 bits, where that is faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from transformers import PreTrainedModel
from typing_extensions import override

from . import kernels
from .native import CompiledLlama, copied


@dataclass(frozen=True)
class Codes:
    """Quantised weights of a matrix: weight = minimum + code * scale.

    Attributes:
        bits: 4 or 8.
        codes: (out, in) int32, from 0 to 2^bits - 1.
        scales: (out, in / 32) float16.
        minima: (out, in / 32) float16.
    """

    bits: int
    codes: torch.Tensor
    scales: torch.Tensor
    minima: torch.Tensor

    @classmethod
    def of(cls, weight: torch.Tensor, bits: int) -> Self | None:
        """Find the codes of an (out, in) float32 matrix; None where one of its weights would not be met to the bit.

        A group's lowest and highest weight have the first and last code in Q4_1; in Q4_0 the weight furthest from zero
        has the first code, and zero the ninth; in Q8_0 that weight is 127 steps from zero. Eight bits hold four, too.
        """
        if weight.shape[1] % kernels.GROUP:
            return None
        if len(weight) > kernels.WIDTH and cls.of(weight[: kernels.WIDTH], bits) is None:
            return None  # a few rows tell sooner
        groups = weight.reshape(len(weight), -1, kernels.GROUP)
        low, high = groups.amin(-1), groups.amax(-1)
        far = torch.where(-low > high, low, high)
        step = (far.abs() / 127).half()
        ways = [(((high - low) / 15).half(), low.half()), ((far / -8).half(), far.half())]
        ways = [(step, -128 * step), *ways] if bits == 8 else ways
        codes, met = torch.zeros(groups.shape, dtype=torch.int32), torch.zeros(low.shape, dtype=torch.bool)
        scales, minima = torch.zeros(2, *low.shape, dtype=torch.half)
        for scale, minimum in ways:
            wide, least = scale.float()[..., None], minimum.float()[..., None]
            tried = ((groups - least) / wide).round_().nan_to_num_(0).clamp_(0, 2**bits - 1)
            # the kernel rounds once, if what it adds to (2^bits + code) * scale needs no rounding itself
            offset = minimum.double() - 2**bits * scale.double()
            right = (tried * wide + least == groups).all(-1) & (offset.float() == offset) & ~met
            codes[right], scales[right], minima[right] = tried[right].int(), scale[right], minimum[right]
            met |= right
            if bool(met.all()):
                return cls(bits, codes.view(weight.shape), scales, minima)
        return None

    @staticmethod
    def nearest(weight: torch.Tensor, bits: int) -> torch.Tensor:
        """Return the (out, in) matrix whose codes are found, in place of one that has none; a group at a time.

        With 4 bits the lowest and the highest weight of a group stay, as in Q4_1, with 8 bits the one furthest from
        zero, as in Q8_0.
        """
        groups = weight.reshape(len(weight), -1, kernels.GROUP)
        low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
        scale, least, ends = ((high - low) / 15).half().float(), low.half().float(), (0, 15)
        if bits == 8:
            high = torch.maximum(-low, high)
            scale, low, ends = (high / 127).half().float(), -high, (1, 255)
            least = -128 * scale
        codes = ((groups - least) / scale).round().nan_to_num(ends[0]).clamp(*ends)
        for end, weight_there in zip(ends, (low, high), strict=True):  # also where float16 has few digits left
            codes[groups == weight_there] = end
        return (codes * scale + least).view(weight.shape)

    def packed(self) -> torch.Tensor:
        """Lay the codes out as products of `kernels` read them: flat uint8, blocks of `kernels.WIDTH` outputs."""
        fields, rows = 32 // self.bits, len(self.codes)
        short = -rows % kernels.WIDTH

        def blocks(numbers: torch.Tensor) -> torch.Tensor:
            """(out, groups, k) -> (blocks, groups, bytes), outputs side by side."""
            numbers = torch.nn.functional.pad(numbers, (0, 0, 0, 0, 0, short))
            numbers = numbers.view(-1, kernels.WIDTH, *numbers.shape[1:]).permute(0, 2, 3, 1)
            return numbers.reshape(*numbers.shape[:2], -1).contiguous().view(torch.uint8)

        words = torch.zeros(*self.scales.shape, self.bits, dtype=torch.int32)
        for place, codes in zip(
            kernels.places(self.bits), self.codes.view(*words.shape, fields).unbind(-1), strict=True
        ):
            words |= codes << self.bits * place
        return torch.cat([blocks(each) for each in (self.scales[..., None], self.minima[..., None], words)], -1).view(
            -1
        )


class _NotQuantised(Exception):
    pass


class QuantisedLlama(CompiledLlama):
    """The forward of one model of the Llama family whose layers hold quantised weights in float32."""

    name = "quantised"

    @property
    @override
    def parts(self) -> bool:
        return kernels.MATRICES or kernels.DIGITS

    @property
    def forward_bytes(self) -> int:
        """Bytes of weights that a forward reads."""
        return self.weights.nbytes + self.head.nbytes + self.vectors.nbytes

    def _packed(self, matrix: torch.Tensor) -> torch.Tensor:
        codes = Codes.of(matrix, 4 if self.kind == kernels.FOUR_BITS else 8)
        if codes is None:
            raise _NotQuantised
        return codes.packed()

    def _take_head(self, head: torch.Tensor) -> None:
        """Pack the head in 4 or 8 bits where it is quantised, too, else in float32."""
        codes = Codes.of(head, 4) or Codes.of(head, 8)
        if codes is None:
            super()._take_head(head)
            return
        self.head = copied(codes.packed())
        self.job[kernels.HEAD_BITS], self.job[kernels.HEAD_ROW] = codes.bits, len(self.head) // self.rows

    @torch.no_grad()
    def coarsen(self, draft: torch.nn.Module) -> bool:
        """Round a draft's float32 matrices, in place, to as many bits as these layers have; False where that cannot be.

        A draft need not be exact, and its levels take as long as its weights take to read.
        """
        maps = [part for part in draft.modules() if isinstance(part, torch.nn.Linear)]
        if any(each.in_features % kernels.GROUP or each.weight.dtype != torch.float32 for each in maps):
            return False
        for each in maps:
            each.weight.copy_(Codes.nearest(each.weight, 4 if self.kind == kernels.FOUR_BITS else 8))
        return True

    @classmethod
    def made(cls, model: PreTrainedModel) -> Self | None:
        """Make the forward of a model, or None where its layers are not quantised."""
        if model.dtype != torch.float32 or not kernels.QUANTISED:
            return None
        for kind in (kernels.FOUR_BITS, kernels.EIGHT_BITS):
            try:
                return cls(model, kind)
            except _NotQuantised:
                continue
        return None


class RoundedLlama(QuantisedLlama):
    """The same with inputs of 16 bits, of 24 in a group with an outlier, on a processor that multiplies bytes.

    Each node of a forward takes less time. Its logits do not depend on the other nodes either.
    """

    name = "rounded"
    apart: ClassVar[float] = 6.0
    rounding: ClassVar[float] = 0.005

    @classmethod
    @override
    def made(cls, model: PreTrainedModel) -> Self | None:
        return super().made(model) if kernels.DIGITS else None


class BytesLlama(RoundedLlama):
    """The same with inputs of 8 bits, of 16 in a group with an outlier: each node but the first takes less time.

    llama.cpp rounds inputs so, too. Logits may be off by as much as in bfloat16.
    """

    name = "bytes"
    apart: ClassVar[float] = 3.0
    fewest: ClassVar[int] = 1
    rounding: ClassVar[float] = 0.15
