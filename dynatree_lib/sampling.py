"""Logits to probabilities, the one source of randomness, and the lazily read logits of scored nodes.

Verifiers ask `Scores` about single nodes; softmax and filters run for those nodes alone. All random decisions, in
drafting and verifying, go through a `RandomSource`, so that tests can replay every outcome of the production code.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from .checks import is_number, is_whole, whole


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operations of this thread on this thread alone; a context and a decorator, for small operations.

    Torch's other threads keep spinning for milliseconds after they have helped. The next forward has threads of its own
    and waits for those cores: a top-k over four rows made it take a quarter longer.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from logits.

    Attributes:
        temperature: 0 is greedy decoding (ties to the lowest token id); otherwise logits are divided by it.
        top_k: keep the k most probable tokens (ties at the threshold stay), or None.
        top_p: keep the smallest set of most probable tokens with at least this mass, or None.

    Raises:
        ValueError: for a negative temperature, top_k < 1 or top_p outside (0, 1].
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not (is_number(self.temperature) and 0 <= self.temperature < float("inf")):
            raise ValueError(f"temperature is {self.temperature!r}; give 0 for greedy decoding or a positive number.")
        if self.top_k is not None and not is_whole(self.top_k, 1):
            raise ValueError(
                f"top_k is {self.top_k!r}; give a whole number of at least 1, or None to keep every token."
            )
        if self.top_p is not None and not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p is {self.top_p!r}; give a mass in (0, 1], or None to keep every token.")

    @property
    def greedy(self) -> bool:
        """Whether decoding is deterministic."""
        return self.temperature == 0


GREEDY = Sampling()
"""Greedy decoding."""
PLAIN = Sampling(1.0)
"""The model's own distribution."""


def probabilities(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the distribution of the next token, in float32 or the logits' dtype if that is higher.

    Args:
        logits: (..., V), any float dtype; -inf is a token that cannot occur.
        sampling: temperature first, then top-k, then top-p, as transformers applies them.

    Returns:
        (..., V) probabilities that sum to 1 over the last axis; one-hot when greedy.

    Raises:
        ValueError: for logits of a position that hold NaN or nothing but -inf.
    """
    distribution = unchecked(logits, sampling)
    if _softmax_alone(sampling):  # which is NaN everywhere if an entry is NaN or +inf, or all are -inf
        broken = bool(distribution[..., 0].isnan().any())
    else:
        broken = not bool(torch.isfinite(logits.amax(-1)).all())  # max is NaN if any entry is, -inf if all are
    if broken:
        raise ValueError("Logits hold NaN, +inf, or nothing but -inf, so they describe no distribution.")
    return distribution


COOLEST = 0.01
"""Lowest temperature that logits are divided by as they are, because no quotient overflows."""


def _softmax_alone(sampling: Sampling) -> bool:
    """Whether a distribution is the softmax of the logits over the temperature, which few operations compute."""
    return sampling.temperature >= COOLEST and sampling.top_k is None and sampling.top_p in (None, 1)


def unchecked(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return `probabilities` without waiting for the device to check the logits; broken logits give NaN."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if _softmax_alone(sampling):
        return (logits if sampling.temperature == 1 else logits / sampling.temperature).softmax(-1)
    if sampling.greedy:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1)
    least = torch.finfo(logits.dtype).tiny  # below it the distribution stays the same: all on the best token
    logits = (logits - logits.amax(-1, keepdim=True)) / max(sampling.temperature, least)
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    distribution = logits.softmax(-1)
    return distribution if sampling.top_p is None or sampling.top_p == 1 else _nucleus(distribution, sampling.top_p)


MostProbable = Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]]
"""`most_probable`, or a function with the same result."""


Invert = Callable[[torch.Tensor, int, float, float], int]
"""(n, V) float logits on the CPU, a node, one over the temperature, a coin in [0, 1) -> the first token up to which the
node's cumulated probabilities exceed the coin; -1 where its logits are not finite."""

Softmax = Callable[[torch.Tensor, int, float], torch.Tensor | None]
"""(n, V) float logits on the CPU, a node, one over the temperature -> the node's (V,) float32 distribution; None where
its logits are not finite."""


def _nucleus(distribution: torch.Tensor, mass: float) -> torch.Tensor:
    values, order = _holding(distribution, mass)
    outside = values.cumsum(-1) - values >= mass
    outside[..., 0] = False  # the most probable token always stays, whatever rounding does
    kept = torch.zeros_like(distribution).scatter_(-1, order, values.masked_fill(outside, 0))
    return kept / kept.sum(-1, keepdim=True)


def _holding(distribution: torch.Tensor, mass: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values and ids of the most probable tokens, sorted, ties by id, enough of them to hold `mass`."""
    for count in (256, 8192):  # a full sort of 50,000 tokens takes several times as long as finding the largest few
        if count < distribution.shape[-1]:
            ids = distribution.topk(count, -1).indices.sort(-1).values
            values, places = distribution.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
            if bool((values.sum(-1) > mass).all()):
                return values, ids.gather(-1, places)
    return distribution.sort(dim=-1, descending=True, stable=True)


@dataclass
class Ranking:
    """What a forward found out about its logits while it ran, because later they lie in another core's cache.

    Attributes:
        sharpness: as for `most_probable`.
        found: (n, 3, k) float64, the three results of `most_probable` for each row, tokens as bits of int64; None where
            nothing was found out.
        of: V, how many logits of a row were looked through.
    """

    sharpness: float = 1.0
    found: np.ndarray | None = None
    of: int = 0

    def best(self, logits: torch.Tensor, breadth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return what `most_probable` returns, or None where these (n, V) logits were not looked through so far."""
        found, breadth = self.found, min(breadth, self.of)
        if found is None or (*logits.shape,) != (len(found), self.of) or breadth > found.shape[2]:
            return None
        return found.view(np.int64)[:, 0, :breadth], found[:, 1, :breadth], found[:, 2, :breadth]


@one_thread()
def most_probable(
    logits: torch.Tensor, breadth: int, sharpness: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the `breadth` most probable tokens for (f, V) logits.

    Returns:
        tokens (f, breadth) int64, most probable first, equally probable ones by token id; their log-probabilities
        (f, breadth) float64; and those under the distribution raised to `sharpness` and normalised again.
    """
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    breadth = min(breadth, logits.shape[-1])
    indices = logits.topk(min(breadth + 1, logits.shape[-1]), -1).indices  # one more, to see a tie at the edge
    versions = [logits] if sharpness == 1 else [logits, sharpness * logits]
    shares = [version.log_softmax(-1).gather(-1, indices) for version in versions]
    if logits.device.type == "cpu":
        tokens, logprobs = indices.numpy(), [share.numpy().astype(np.float64) for share in shares]
    else:  # one transfer; float32 holds ids below 2^24 exactly, and a device may have no float64
        ids, *logprobs = torch.stack((indices.to(shares[0].dtype), *shares)).cpu().numpy().astype(np.float64)
        tokens = ids.astype(np.int64)
    tokens = _ties_by_id(tokens, logprobs[0], breadth, logits)
    return tokens[:, :breadth], logprobs[0][:, :breadth], logprobs[-1][:, :breadth]


def _ties_by_id(tokens: np.ndarray, logprobs: np.ndarray, breadth: int, logits: torch.Tensor) -> np.ndarray:
    """Order tokens with equal values by id, which topk leaves open; 16-bit logits have many of them."""
    equal = logprobs[:, 1:] == logprobs[:, :-1]
    if not equal.any():
        return tokens
    tokens = np.take_along_axis(tokens, np.lexsort((tokens, -logprobs), axis=-1), -1)
    for node in np.flatnonzero(equal[:, breadth - 1 :].any(-1)):  # the tie may go on among the tokens left out
        tokens[node] = logits[node].sort(stable=True, descending=True).indices[: tokens.shape[1]].cpu().numpy()
    return tokens


BLOCK = 256
"""Weights whose sum is looked at first where a token is drawn."""
COINS = 64
"""Uniform numbers that a `RandomSource` gets at a time."""
NOTHING = "draw() was given no positive weight, or one that is not finite, so there is nothing to draw."


class RandomSource:
    """A seeded source of every random decision; one stream for drafting, another for verifying.

    Args:
        seed: any whole number; the same seed gives the same decisions on the same machine.
        stream: name of the stream; streams of one seed are independent.

    Raises:
        ValueError: for a seed that is no whole number.
    """

    def __init__(self, seed: int = 0, stream: str = "verify") -> None:
        digest = hashlib.sha256(f"{whole('seed', seed)}/{stream}".encode()).digest()
        self._generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        self._coins: list[float] = []  # the next ones, in turn from the end: torch takes long over each call

    def accept(self, probability: float) -> bool:
        """Return True with this probability; never at 0, always at 1."""
        return self._coin() < probability

    def accept_lazily(self, bound: float, probability: Callable[[], float]) -> bool:
        """Return `accept(probability())`; the probability, at most `bound`, is only computed for a coin below it."""
        coin = self._coin()
        return coin < bound and coin < probability()

    def draw(self, weights: torch.Tensor) -> int:
        """Draw an index proportionally to (V,) non-negative weights; zero weights are never drawn.

        One uniform number inverts the cumulated weights. So a rule that draws once per token of the text gives the
        same text for the same seed, however many tokens it decides at a time.

        Raises:
            ValueError: if no weight is positive, or one is negative or not finite.
        """
        return self.draw_distinct(weights, 1)[0]

    def draw_lazily(self, weights: Callable[[], torch.Tensor], invert: Callable[[float], int]) -> int:
        """Draw as `draw(weights())` does; the weights are computed where `invert` says -1 for a coin, not an index."""
        coin = self._coin()
        index = invert(coin)
        if index >= 0:
            return index
        return _inverted(weights().cpu().numpy(), lambda: coin)

    def _coin(self) -> float:
        """Return a uniform number in [0, 1)."""
        if not self._coins:
            self._coins = torch.rand(COINS, generator=self._generator, dtype=torch.float64).tolist()[::-1]
        return self._coins.pop()

    def draw_each(self, weights: torch.Tensor) -> list[int]:
        """Draw as `draw` would for each of (m, V) non-negative weights with a positive sum, on any device."""
        if weights.device.type == "mps":  # which has no float64
            weights = weights.cpu()
        coins = torch.tensor([self._coin() for _ in range(len(weights))], dtype=torch.float64, device=weights.device)
        reached = weights.double().cumsum(-1)
        indices = torch.searchsorted(reached, (coins * reached[:, -1])[:, None], right=True)[:, 0]
        last = (reached < reached[:, -1:]).sum(-1)  # where the product was rounded up to the total
        drawn: list[int] = torch.minimum(indices, last).tolist()
        return drawn

    def draw_distinct(self, weights: torch.Tensor, count: int) -> list[int]:
        """Draw up to `count` indices without replacement; fewer where fewer weights are positive.

        Returns:
            indices in draw order.

        Raises:
            ValueError: if no weight is positive, or one is negative or not finite.
        """
        given, drawn = weights.detach().cpu().numpy(), list[int]()
        if given.size and given.min() < 0:
            raise ValueError(f"draw() was given the weight {given.min():.6g}; give weights of at least 0.")
        if count == 1:
            return [_inverted(given, self._coin)]
        left = given.astype(np.float64)  # a copy
        for _ in range(count):
            reached = left.cumsum()
            total = float(reached[-1])
            if not 0 < total < float("inf"):
                break
            drawn.append(_reached(left, reached, self._coin()))
            left[drawn[-1]] = 0
        if count and not drawn:
            raise ValueError(NOTHING)
        return drawn


def _inverted(weights: np.ndarray, coin: Callable[[], float]) -> int:
    """Return the index at which (V,) weights, cumulated, exceed a coin's share of their sum.

    Sums of blocks come first, because few of the cumulated weights are needed.

    Raises:
        ValueError: if no weight is positive, or the sum is not finite; no coin is used then.
    """
    whole = len(weights) // BLOCK * BLOCK
    sums = weights[:whole].reshape(-1, BLOCK).sum(1, dtype=np.float64)
    blocks = np.append(sums, weights[whole:].sum(dtype=np.float64)).cumsum()
    if not 0 < blocks[-1] < math.inf:
        raise ValueError(NOTHING)
    share = coin()
    wanted = share * float(blocks[-1])
    block = int(blocks.searchsorted(wanted, side="right"))
    first, before = block * BLOCK, float(blocks[block - 1]) if block else 0.0
    reached = weights[first : first + BLOCK].astype(np.float64).cumsum()
    index = int(reached.searchsorted(wanted - before, side="right"))
    if index < len(reached) and weights[first + index] > 0:
        return first + index
    left = weights.astype(np.float64)  # at the edge of a block, or of all
    return _reached(left, left.cumsum(), share)


def _reached(weights: np.ndarray, cumulated: np.ndarray, coin: float) -> int:
    """Return the first index at which (V,) weights, cumulated, exceed a coin's share of their positive, finite sum."""
    index = int(cumulated.searchsorted(coin * float(cumulated[-1]), side="right"))
    if index == len(weights) or not weights[index] > 0:  # the product was rounded up to the sum
        return int(weights.nonzero()[0][-1])
    return index


def spread(distribution: torch.Tensor, tokens: np.ndarray) -> torch.Tensor:
    """Return a (K,) distribution of some tokens, whose ids ascend, as one of all tokens up to the last of them."""
    return distribution.new_zeros(int(tokens[-1]) + 1).index_copy_(0, torch.from_numpy(tokens), distribution)


ONE_TRANSFER = 2**23
"""Bytes that cross to the CPU in a fraction of a millisecond."""


@dataclass(eq=False, repr=False)
class Scores:
    """A lazy view of the logits of n scored nodes under one `Sampling`.

    Attributes:
        logits: (n, V) on any device, or (n, K) of some tokens alone.
        sampling: temperature and filters of the probabilities.
        owner: whose logits these are, for error messages.
        features: (q + n, k h) hidden states after k layers, side by side, of the q queued tokens that were read with
            the nodes, then of the nodes; None from sessions that do not keep them.
        tokens: (K,) ids of the tokens that the logits are of, ascending; None for all.
        most_probable: finds tokens in these logits.
        invert: draws a token from a row of them, without its distribution; None where nothing does.
        softmax: computes the distribution of a row; None where torch does.
    """

    logits: torch.Tensor
    sampling: Sampling
    owner: str = "model"
    features: torch.Tensor | None = None
    tokens: np.ndarray | None = None
    most_probable: MostProbable = field(default_factory=lambda: most_probable)  # as a default it would be a method
    invert: Invert | None = None
    softmax: Softmax | None = None
    _distributions: dict[int, torch.Tensor] = field(default_factory=dict, init=False)
    _ranked: tuple[np.ndarray, np.ndarray] | None = field(default=None, init=False)

    def __len__(self) -> int:
        return self.logits.shape[0]

    @cached_property
    def argmax(self) -> np.ndarray:
        """(n,) int64 greedy next token after each node; ties go to the lowest id. One device synchronisation.

        Raises:
            ValueError: for NaN; the message names the node and the model.
        """
        if self._ranked is not None and all(map(math.isfinite, self._ranked[1][:, 0].tolist())):
            tokens = self._ranked[0][:, 0]
            return tokens if self.tokens is None else self.tokens[tokens]
        tokens, values = self._best()
        if not np.isfinite(values).all():
            raise ValueError(bad_logits(self.owner, int(np.flatnonzero(~np.isfinite(values))[0])))
        return tokens

    def ranked(self, breadth: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (n, breadth) places of the largest logits, ties by id, and their log-probabilities at temperature 1.

        They are found once; `argmax` need not look for the largest then.
        """
        if self._ranked is None or self._ranked[0].shape[1] < min(breadth, self.logits.shape[1]):
            self._ranked = self.most_probable(self.logits, breadth)[:2]
        return self._ranked[0][:, :breadth], self._ranked[1][:, :breadth]

    @property
    def looked_through(self) -> bool:
        """Whether the most probable tokens are known, so that a greedy rule needs nothing of torch."""
        return self._ranked is not None

    def know(self, ranking: Ranking) -> None:
        """Take over what the forward of these logits found out about them."""
        if ranking.found is not None and (found := ranking.best(self.logits, ranking.found.shape[2])) is not None:
            self._ranked = found[:2]

    def _best(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the (n,) tokens with the largest logits and these logits; where one is NaN, any token and NaN."""
        if self.logits.device.type == "cpu" and self.logits.dtype in (torch.float32, torch.float64):
            logits = self.logits.numpy()  # several times as fast as torch for a few nodes
            ids = logits.argmax(-1)
            values = logits[[*range(len(ids))], ids]
        else:
            top = self.logits.max(-1)
            values, ids = torch.stack((top.values.float(), top.indices.float())).cpu().numpy()  # exact below 2^24
        ids = ids.astype(np.int64)
        return (ids if self.tokens is None else self.tokens[ids]), values

    def distribution(self, node: int) -> torch.Tensor:
        """Return the distribution of the next token after `node`, on the CPU: (V,), or shorter where the last are 0.

        Raises:
            ValueError: if the logits of the node are NaN or all -inf; the message names the node and the model.
        """
        if node not in self._distributions:
            found = self.own(node)
            self._distributions[node] = found if self.tokens is None else spread(found, self.tokens)
        return self._distributions[node]

    def own(self, node: int) -> torch.Tensor:
        """Return the distribution of the next token after `node`, on the CPU: (V,), or (K,) of `tokens` alone.

        Raises:
            ValueError: as for `distribution`.
        """
        if self.softmax is not None and _softmax_alone(self.sampling):
            found = self.softmax(self.logits, node, 1 / self.sampling.temperature)
            if found is not None:
                return found
        row = self.row(node)
        try:
            return probabilities(row, self.sampling)
        except ValueError as error:
            raise ValueError(bad_logits(self.owner, node)) from error

    def row(self, node: int) -> torch.Tensor:
        """Return the logits after `node`, (V,) or (K,), on the CPU."""
        return self._near[node].cpu()

    @cached_property
    def _near(self) -> torch.Tensor:
        """The logits: on the CPU if transferring all of them takes no longer than transferring several nodes."""
        return self.logits.cpu() if self.logits.nbytes <= ONE_TRANSFER else self.logits

    def prob(self, node: int, token: int) -> float:
        """Return the probability of `token` after `node`."""
        if self._ranked is not None and self.sampling == PLAIN and self.tokens is None:
            place, logprob = self._ranked[0].item(node, 0), self._ranked[1].item(node, 0)
            if math.isfinite(logprob):
                return math.exp(logprob + self.logits[node, token].item() - self.logits[node, place].item())
        return float(self.distribution(node)[token])

    def next_token(self, node: int, random: RandomSource) -> int:
        """Return a token after `node`: the argmax at temperature 0, else one that is drawn."""
        if self.sampling.greedy:
            return int(self.argmax[node])
        place = self.next_place(node, random)
        return place if self.tokens is None else int(self.tokens[place])

    def next_place(self, node: int, random: RandomSource) -> int:
        """Draw a token after `node`; return its place among the logits."""
        weights, invert = self.own if self.tokens is not None else self.distribution, self.invert
        if invert is None or not _softmax_alone(self.sampling):
            return random.draw(weights(node))
        logits, sharpness = self.logits, 1 / self.sampling.temperature
        return random.draw_lazily(lambda: weights(node), lambda coin: invert(logits, node, sharpness, coin))


def bad_logits(owner: str, node: int) -> str:
    """Return the message for logits that describe no distribution."""
    return (
        f"The logits of {owner} at tree node {node} hold NaN, +inf, or nothing but -inf; no token can be chosen from "
        "them. Load the model in a wider dtype (dtype='float32') or check its weights."
    )


class DraftDistributions:
    """The distributions a drafter drew children from, by parent node: what verifying a sampled tree needs.

    Args:
        owner: whose distributions these are, for error messages.
    """

    def __init__(self, owner: str = "draft") -> None:
        self.owner = owner
        self._recorded: dict[int, tuple[torch.Tensor, np.ndarray | None]] = {}

    def record(self, node: int, distribution: torch.Tensor, tokens: np.ndarray | None = None) -> None:
        """Record that the children of `node` were drawn from this distribution, on the CPU, which sums to 1.

        Args:
            node: the parent.
            distribution: (V,), or (K,) of some tokens alone.
            tokens: (K,) int64 ids of those tokens, ascending; None for all.
        """
        self._recorded[node] = distribution, tokens

    def prob(self, node: int, token: int) -> float:
        """Return the probability of `token` as the first child of `node`; ValueError as for `distribution`."""
        distribution, tokens = self.own(node)
        place = token if tokens is None else int(tokens.searchsorted(token))
        known = place < len(distribution) and (tokens is None or tokens[place] == token)
        return float(distribution[place]) if known else 0.0

    def distribution(self, node: int) -> torch.Tensor:
        """Return the distribution of the first child of `node`, on the CPU: (V,), or shorter where the last are 0.

        Raises:
            ValueError: if none was recorded.
        """
        distribution, tokens = self.own(node)
        if tokens is not None:
            distribution = spread(distribution, tokens)
            self._recorded[node] = distribution, None
        return distribution

    def own(self, node: int) -> tuple[torch.Tensor, np.ndarray | None]:
        """Return what was recorded for a node; ValueError as for `distribution`."""
        if node not in self._recorded:
            raise ValueError(
                f"{self.owner} drew children of tree node {node} and recorded no distribution for them; a drafter that "
                "samples must record what it sampled from (DraftDistributions.record), or mark the tokens as "
                "deterministic (POINT)."
            )
        return self._recorded[node]
