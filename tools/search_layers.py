"""Which layers a target may leave out to draft for itself: a search on its own greedy texts.

SWIFT (Xia et al. 2024, section 4) searches by the agreement of target and draft; here by what drafting gains. One
forward of a candidate over a text tells where its first choice is the target's. A chain of drafted tokens follows the
target's own text as long as it is accepted, so from this its iterations are known exactly, for every length of chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from dynatree_lib.checks import whole
from dynatree_lib.decoding import autoregressive
from dynatree_lib.models.engine import Eager
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.skipping import without_layers
from dynatree_lib.sampling import GREEDY, RandomSource
from dynatree_suite.bench.bandwidth import forward_bytes
from dynatree_suite.bench.runner import quiet


@dataclass(frozen=True)
class SkippedLayers:
    """Layers to leave out, and what a chain of the remaining ones is predicted to gain on the searched texts.

    Attributes:
        layers: numbers of those left out, ascending.
        agreement: share of the tokens that are the draft's first choice, too.
        length: tokens of the chain that gains most.
        tokens_per_iteration: of that chain.
        draft_cost: of a forward of the draft in forwards of the target, by the bytes of weights that they read.
        gain: tokens per time of plain decoding, where a forward of a few tokens takes as long as one of one token.
    """

    layers: tuple[int, ...]
    agreement: float
    length: int
    tokens_per_iteration: float
    draft_cost: float
    gain: float


@dataclass(frozen=True)
class LayerSearch:
    """The result of `search_layers`.

    Attributes:
        steps: the best candidate of each number of layers left out, from one on.
        forwards: candidates tried.
        tokens: of the texts.
    """

    steps: tuple[SkippedLayers, ...]
    forwards: int
    tokens: int

    @property
    def best(self) -> SkippedLayers:
        """The candidate with the largest gain, of equal ones that with the fewest layers left out."""
        return max(self.steps, key=lambda step: step.gain)

    def to_json(self) -> dict[str, Any]:
        """Return all of it, ready for `json.dump`."""
        best = {**asdict(self.best), "layers": list(self.best.layers)}
        steps = [{**asdict(step), "layers": list(step.layers)} for step in self.steps]
        return {"tokens": self.tokens, "forwards": self.forwards, "best": best, "steps": steps}


def search_layers(
    target: HFModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int = 64,
    most: int | None = None,
    tries: int | None = None,
    longest: int = 8,
    seed: int = 0,
    progress: Callable[[str], None] = quiet,
) -> LayerSearch:
    """Leave out one layer after another, each time the one without which drafting gains most.

    Args:
        target: the model that shall draft for itself.
        prompts: token ids; the texts are the target's greedy answers.
        max_new_tokens: of each answer.
        most: layers to leave out at most; half of them by default.
        tries: candidates of each step, drawn without replacement; None tries all.
        longest: most tokens of a chain.
        seed: of the draws.
        progress: called with a line of text per step.

    Raises:
        ValueError: for no prompts, numbers below 1, more layers than the target can leave out, and answers that end
            at once.
    """
    layers = target.layers
    most = max(1, layers // 2) if most is None else whole("most", most, 1)
    for name, value in (("longest", longest), ("max_new_tokens", max_new_tokens), ("tries", tries)):
        if value is not None:
            whole(name, value, 1)
    if not prompts:
        raise ValueError("No prompts were given; give the token ids of at least one, such as pair.ids(text).")
    if most >= layers:
        raise ValueError(f"most is {most} and '{target.name}' has {layers} layers; keep at least one.")
    texts = [_Text.of(target, prompt, max_new_tokens) for prompt in prompts]
    tokens = sum(len(text.answer) for text in texts)
    random, out, steps, forwards = RandomSource(seed, "layers"), set[int](), list[SkippedLayers](), 0
    costs = _Costs.of(target)
    for _ in range(most):
        left = [layer for layer in range(layers) if layer not in out]
        if tries is not None and tries < len(left):
            left = sorted(left[place] for place in random.draw_distinct(torch.ones(len(left)), tries))
        tried = []
        for layer in left:
            candidate = tuple(sorted({*out, layer}))
            agreeing = [text.agreeing(without_layers(target.model, candidate)) for text in texts]
            tried.append(predicted(candidate, agreeing, costs.without(candidate), longest))
        forwards += len(tried)
        best = max(tried, key=lambda one: (one.gain, one.agreement))
        out = set(best.layers)
        steps.append(best)
        progress(
            f"without layers {', '.join(map(str, best.layers))}: agreement {best.agreement:.2f}, "
            f"{best.tokens_per_iteration:.2f} tokens per iteration, gain {best.gain:.2f}"
        )
    return LayerSearch(tuple(steps), forwards, tokens)


def predicted(
    layers: tuple[int, ...], agreeing: Sequence[Sequence[bool]], draft_cost: float, longest: int
) -> SkippedLayers:
    """Return what the chain of the best length gains.

    Args:
        layers: those left out.
        agreeing: of each text, whether each of its tokens is the draft's first choice after the text before it.
        draft_cost: as in `SkippedLayers`.
        longest: most tokens of a chain.
    """
    tokens = sum(map(len, agreeing))
    rates = [tokens / sum(iterations(text, length) for text in agreeing) for length in range(1, longest + 1)]
    gains = [rate / (1 + length * draft_cost) for length, rate in enumerate(rates, 1)]
    best = max(range(longest), key=gains.__getitem__)
    agreement = sum(map(sum, agreeing)) / tokens
    return SkippedLayers(layers, agreement, best + 1, rates[best], draft_cost, gains[best])


def iterations(agreeing: Sequence[bool], length: int) -> int:
    """Return the iterations in which a chain of `length` drafted tokens writes a text of these tokens."""
    place, count = 0, 0
    while place < len(agreeing):
        accepted = 0
        while accepted < length and place + accepted < len(agreeing) and agreeing[place + accepted]:
            accepted += 1
        place, count = place + accepted + 1, count + 1
    return count


@dataclass(frozen=True)
class _Text:
    """A prompt and the target's answer to it."""

    prompt: list[int]
    answer: list[int]

    @classmethod
    def of(cls, target: HFModel, prompt: Sequence[int], max_new_tokens: int) -> _Text:
        answer = autoregressive(target, prompt, sampling=GREEDY, max_new_tokens=max_new_tokens, keep_state=False).tokens
        if len(answer) < 2:
            raise ValueError("The target's answer to a prompt ends at once; give prompts that it answers at length.")
        return cls([int(token) for token in prompt], answer)

    @torch.inference_mode()
    def agreeing(self, draft: Any) -> list[bool]:
        """Return of each token whether it is the draft's first choice."""
        ids = torch.tensor([[*self.prompt, *self.answer[:-1]]], device=draft.device)
        logits = draft(ids, use_cache=False, logits_to_keep=len(self.answer)).logits[0, -len(self.answer) :]
        chosen: list[bool] = (logits.argmax(-1).cpu() == torch.tensor(self.answer)).tolist()
        return chosen


@dataclass(frozen=True)
class _Costs:
    """Bytes of weights that a forward of the target reads, and those of its layers."""

    whole: int
    layers: list[int]

    @classmethod
    def of(cls, target: HFModel) -> _Costs:
        lists: Iterator[Any] = (
            part for part in target.model.modules()
            if isinstance(part, torch.nn.ModuleList) and len(part) == target.layers
        )  # fmt: skip
        sizes = [sum(weight.nbytes for weight in layer.parameters()) for layer in next(lists)]
        return cls(forward_bytes(target.altered(engine=Eager(target.model))), sizes)

    def without(self, layers: Sequence[int]) -> float:
        return 1 - sum(self.layers[layer] for layer in layers) / self.whole
