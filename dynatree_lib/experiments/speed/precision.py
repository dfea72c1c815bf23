"""The precision audit: where rounding alone changes a greedy text, of trees and of plain decoding against itself.

In 32 bits and fewer a logit depends a little on the shape of the forward it was computed in: another number of rows is
another kernel, and sums are rounded in another order. Where the two best tokens are closer than that, the greedy text
changes, whatever drafted the tree. So a method is not asked whether it ever leaves the text of plain decoding, one row
at a time, but whether it leaves it more often than plain decoding leaves itself in forwards of as many rows.

Every method of this library's loop is led along the reference's text to its end: each token is committed as the
reference has it, and what the method itself would have chosen is noted. Up to the first *flip* this is the method's
own greedy run, so the first flip is its first divergence; the later ones are what a benchmark never sees, because it
has left the text by then. How often trees flip is compared by `rates_against`, drawn by `views.precision`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from ...decoding import generate
from ...drafters import Drafter, NoDraft
from ...fast.static import StaticModel, why_not_static
from ...measure.methods import Variant
from ...measure.metrics import Interval, bootstrap, quotient
from ...measure.probes import DEEPEST, RowsProbe
from ...measure.prompts import BenchPrompt
from ...measure.runner import Runner
from ...models.engines import ENGINES
from ...models.huggingface import HFModel, HFSession
from ...models.pairs import Pair
from ...sampling import GREEDY, DraftDistributions, RandomSource, Scores
from ...tree import TokenTree
from ...verifiers.base import Verdict, Verifier, follow_argmax

Row = dict[str, Any]
ROWS = (2, 4, 8, 16, 32, 64)
"""Rows of the forwards in which plain decoding is compared with itself."""
CHUNKS: dict[str, int | None] = {"prompt alone": None, "prompt by 16": 16, "prompt by 1": 1}
"""Ways to read a prompt before the first step: most tokens of a forward, None for all. The reference reads up to
`huggingface.LONGEST_JOINT_PREFILL` of them in the forward of its first step."""
SPARE = DEEPEST + 1
"""Positions beyond a text that the rows beside its last tokens may take."""


# ------------------------------------------------------------------------------------------------- along the reference
@dataclass(frozen=True)
class Reference:
    """The text of plain decoding, one row at a time.

    Attributes:
        prompt: what it continues.
        tokens: (T,) int64 ids.
        rivals: (T,) int64, the second best token at each place; the lowest id among equals.
        tops: (T,) float64 logits of the tokens.
        leads: (T,) float64 top-2 margins: logit of the token minus that of its rival; 0 is an exact tie.
    """

    prompt: BenchPrompt
    tokens: np.ndarray
    runners_up: np.ndarray
    tops: np.ndarray
    leads: np.ndarray


@dataclass(frozen=True)
class Followed:
    """What a method saw along a reference's text.

    Attributes:
        reference: the text.
        chosen: (t,) int64, the greedy token of its own rows at each place; t = T, or where only its own text is known,
            up to and with the first place where that differs.
        leads: (T,) float64 logit of the reference's token minus that of its rival in its own rows; None where unknown.
        rows: mean rows of its forwards; None where unknown.
    """

    reference: Reference
    chosen: np.ndarray
    leads: np.ndarray | None = None
    rows: float | None = None

    @property
    def flips(self) -> np.ndarray:
        """(t,) bool: where its token is not the reference's."""
        differ: np.ndarray = self.chosen != self.reference.tokens[: len(self.chosen)]
        return differ

    def squares(self, units: np.ndarray | float = 1.0) -> tuple[float, int]:
        """Sum over all places of the squared change of the margin, in these units, and the number of places."""
        assert self.leads is not None
        return float(np.sum(((self.leads - self.reference.leads) / units) ** 2)), len(self.leads)


@dataclass
class Noting(Verifier):
    """Greedy verification of trees of one node that notes the best two tokens of each row."""

    noted: list[tuple[int, int, float, float]] = field(default_factory=list)
    name = "noting"

    def verify(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """See `Verifier.verify`."""
        verdict = follow_argmax(tree, scores)
        row, best = scores.logits[0].cpu().double(), verdict.next_token
        others = row.index_fill(0, torch.tensor([best]), -torch.inf)
        runner_up = int(others.argmax())
        self.noted.append((best, runner_up, float(row[best]), float(row[best] - row[runner_up])))
        return verdict

    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """Not asked for: `verify` is all there is."""
        return self.verify(tree, scores, distributions, random)


@dataclass
class Following(Verifier):
    """Keeps a reference's text whatever the rows say, and notes what greedy verification would have chosen.

    Attributes:
        reference: the text, and the rivals whose logits are compared.
        chosen: greedy token of each place so far.
        leads: logit of the reference's token minus that of its rival, of each place so far.
    """

    reference: Reference
    chosen: list[int] = field(default_factory=list)
    leads: list[float] = field(default_factory=list)
    name = "following"

    def verify(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """See `Verifier.verify`."""
        here, text = len(self.chosen), self.reference.tokens
        told = Scores(scores.logits, scores.sampling, scores.owner)
        told.argmax = np.append(text, -1)[np.minimum(here + tree.depths, len(text))]  # past its end nothing fits
        verdict = follow_argmax(tree, told)
        nodes = [0, *verdict.path][: len(text) - here]
        places = slice(here, here + len(nodes))
        pairs = np.stack([text[places], self.reference.runners_up[places]], 1)
        device = scores.logits.device
        both = scores.logits[torch.tensor(nodes, device=device)].gather(1, torch.from_numpy(pairs).to(device))
        self.leads += (both[:, 0].double() - both[:, 1].double()).tolist()
        self.chosen += scores.argmax[nodes].tolist()
        return verdict

    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """Not asked for: `verify` is all there is."""
        return self.verify(tree, scores, distributions, random)


def read_reference(target: HFModel, prompt: BenchPrompt, tokens: int) -> Reference:
    """Plain decoding of a text of this many tokens, EOS an ordinary one.

    Raises:
        ValueError: if the target's context ends before.
    """
    noting = Noting()
    _decode(target, prompt, NoDraft(), noting, tokens)
    best, runners_up, tops, leads = zip(*noting.noted, strict=True)
    return Reference(prompt, np.array(best), np.array(runners_up), np.array(tops), np.array(leads))


def follow(target: HFModel, reference: Reference, drafter: Drafter, **options: Any) -> Followed:
    """Lead a drafter's trees along a reference's text; options as for `generate`."""
    following = Following(reference)
    iterations = _decode(target, reference.prompt, drafter, following, len(reference.tokens), **options)
    rows = float(np.mean([len(one.tree) + one.side_nodes for one in iterations]))
    return Followed(reference, np.array(following.chosen), np.array(following.leads), rows)


def _decode(
    target: HFModel, prompt: BenchPrompt, drafter: Drafter, verifier: Verifier, tokens: int, **options: Any
) -> list[Any]:
    if len(prompt.ids) + tokens + SPARE > target.context:
        raise ValueError(
            f"Prompt '{prompt.id}' has {len(prompt.ids)} tokens; with {tokens} new ones and {SPARE} for rows beside "
            f"them it exceeds the context of {target.context}; shorten it, or ask for fewer tokens."
        )
    out = generate(
        target, prompt.ids, drafter, verifier=verifier, max_new_tokens=tokens, eos_token_ids=(), keep_state=False,
        **options,
    )  # fmt: skip
    if out.finish_reason == "interrupted":  # the loop swallows Ctrl-C to save the text
        raise KeyboardInterrupt
    return out.iterations


def own_text(runner: Runner, reference: Reference) -> Followed:
    """What a method with a loop of its own chose, up to and with the first token that is not the reference's."""
    text = reference.tokens.tolist()
    done = runner(
        reference.prompt.ids, max_new_tokens=len(text), eos_token_ids=(), on_tokens=lambda tokens: None,
        sampling=GREEDY, seed=0,
    )  # fmt: skip
    differ = (place for place, (own, its) in enumerate(zip(done.tokens, text, strict=True), 1) if own != its)
    return Followed(reference, np.array(done.tokens[: next(differ, len(text))]))


# --------------------------------------------------------------------------------------------------------- comparisons
@dataclass(frozen=True)
class Comparison:
    """One way to compute the same text.

    Attributes:
        label: unique in an audit.
        group: "again", "rows", "prompt", "mask", "engine" (plain decoding against itself) or "method".
        run: what it saw along a reference's text.
    """

    label: str
    group: str
    run: Callable[[Reference], Followed]


def comparisons(pair: Pair, methods: Sequence[Variant], row_counts: Sequence[int] = ROWS) -> list[Comparison]:
    """Plain decoding against itself in every way that changes the shape of a forward and nothing else; then methods.

    Args:
        pair: the reference is its target as loaded.
        methods: lossless ones without options of the loop; a plain `ar` decodes the reference once more.
        row_counts: rows of the forwards of plain decoding among rows that are thrown away.

    Raises:
        ValueError: for a row count below 2, or a method that is not lossless or carries what it learns between texts.
    """
    for count in row_counts:
        if count < 2:
            raise ValueError(f"A row count is {count}; one row is the reference itself, so give at least 2.")
    plain = NoDraft()
    out = [Comparison(f"ar in {k} rows", "rows", partial(_probed, pair.target, k)) for k in row_counts]
    for label, size in CHUNKS.items():
        model = pair.target.with_sessions(_reading_by(pair.target.session_class, size))
        out.append(Comparison(f"ar, {label}", "prompt", partial(follow, model, drafter=plain)))
    out.append(Comparison("ar under a mask", "mask", partial(follow, _masked(pair.target), drafter=plain)))
    for label, model in _other_engines(pair.target):
        out.append(Comparison(f"ar, {label}", "engine", partial(follow, model, drafter=plain)))
    return [*out, *(_method(pair, one) for one in methods)]


def _probed(target: HFModel, rows: int, reference: Reference) -> Followed:
    return follow(target, reference, RowsProbe(rows, target.vocab_size))


def _method(pair: Pair, one: Variant) -> Comparison:
    if not one.method.lossless or one.carries:
        raise ValueError(
            f"'{one.label}' does not promise the target's own text from a prompt alone, so its text says nothing about "
            "rounding; leave it out."
        )
    group = "again" if one.name == "ar" else "method"
    if one.method.drafter is None:
        return Comparison(one.label, group, partial(own_text, one.runner(pair)))
    drafter = one.method.drafter(one.options, pair.draft)
    return Comparison(
        one.label, group, partial(follow, pair.target, drafter=drafter, commit=one.options.get("commit", "gather"))
    )


def _reading_by(base: type[HFSession], size: int | None) -> type[HFSession]:
    """Sessions that read the prompt when they start, in forwards of at most `size` tokens."""

    class Reading(base):  # type: ignore[valid-type, misc]
        def start(self, prompt: Sequence[int]) -> None:
            super().start(())
            step = size or max(1, len(prompt))
            for first in range(0, len(prompt), step):
                self.extend(prompt[first : first + step])
                self.flush()

    return Reading


def _masked(target: HFModel) -> HFModel:
    """The same model, whose forwards of one row are told in a mask that they see everything."""
    engine, other = target.engine, copy.copy(target)

    def masked(ids: torch.Tensor, positions: torch.Tensor, mask: Any, cache: Any, keep: int) -> torch.Tensor:
        if mask is None and ids.shape[1] == 1:
            mask = torch.zeros(1, 1, 1, cache.get_seq_length() + 1, dtype=target.dtype, device=ids.device)
        return engine(ids, positions, mask, cache, keep)

    masked.name = engine.name  # type: ignore[attr-defined]
    other.engine = masked  # type: ignore[assignment]
    return other


def _other_engines(target: HFModel) -> Iterator[tuple[str, HFModel]]:
    """The engines that serve the model beside its own, and static buffers where it can have them."""
    for name in ENGINES:
        if name == target.engine.name:
            continue
        try:
            other = HFModel(target.model, target.tokenizer, engine=name, check=False)
        except ValueError:  # it does not serve this model
            continue
        yield f"{name} engine", other.narrowed(target.vocab_size)
    if why_not_static(target) is None:
        yield "static buffers", StaticModel(target, check=False)


# ----------------------------------------------------------------------------------------------------------- the audit
def audit_precision(
    pair: Pair,
    methods: Sequence[Variant],
    prompts: Sequence[BenchPrompt],
    *,
    max_new_tokens: int = 64,
    row_counts: Sequence[int] = ROWS,
    seed: int = 0,
    progress: Callable[[str], None] = lambda line: None,
) -> Row:
    """Compare the texts of one pair in its dtype.

    Args:
        pair: target and draft.
        methods: as for `comparisons`.
        prompts: each is decoded once per comparison.
        max_new_tokens: tokens of every text.
        row_counts: as for `comparisons`.
        seed: of the bootstraps over prompts.
        progress: called with a line of text per comparison.

    Returns:
        `dtype`, `epsilon` (its relative spacing), `engine`, and what `of_reference` says of the reference's texts;
        `comparisons`, for each its `label` and `group`, its `summary`, `error_ulps` as for the reference, and its
        `flips`; `against`, the rows of `rates_against`. A flip has `prompt`, `index` in the text, `first` (of that
        text), `expected` and `got` (tokens), `margin`, the reference's top-2 margin there in logits, `margin_ulps`, and
        `exact_margin`: how far `expected` is above `got` for the same weights in float64, negative where `got` is the
        better one.

    Raises:
        ValueError: as `comparisons`, and for prompts that do not fit the context; no prompts.
    """
    if not prompts:
        raise ValueError("There are no prompts to decode; give at least one.")
    found = comparisons(pair, methods, row_counts)
    references = [read_reference(pair.target, prompt, max_new_tokens) for prompt in prompts]
    dtype = dtype_name(pair.target)
    followed: dict[str, list[Followed]] = {}
    for number, one in enumerate(found, 1):
        progress(f"[{number}/{len(found)}] {dtype}: {one.label} on {len(references)} prompts")
        followed[one.label] = [one.run(reference) for reference in references]
    exact = [_Exact(*each, pair.target) for each in zip(references, zip(*followed.values(), strict=True), strict=True)]
    _compute(exact, pair.target)
    rows = [
        {"label": one.label, "group": one.group, **summary(followed[one.label], pair.target.dtype, seed),
         **_told(followed[one.label], exact)}
        for one in found
    ]  # fmt: skip
    return {
        "dtype": dtype,
        "epsilon": torch.finfo(pair.target.dtype).eps,
        "engine": pair.target.engine.name,
        **of_reference(exact),
        "comparisons": rows,
        "against": rates_against(rows, followed, seed),
    }


def dtype_name(model: HFModel) -> str:
    """ "bfloat16" and so on."""
    return str(model.dtype).removeprefix("torch.")


def spacing(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Distance from each magnitude to the next larger number of a dtype: its unit in the last place. float64."""
    info = torch.finfo(dtype)
    _, exponents = np.frexp(np.maximum(np.abs(values), info.tiny))
    return np.ldexp(info.eps, exponents - 1)


# ------------------------------------------------------------------------------------------------------------- exactly
class _Exact:
    """What the same weights in float64 say of a reference's text.

    Attributes:
        reference: the text.
        ulps: (T,) spacing of the model's dtype at the logits of the text's tokens.
        leads: (T,) logit of each token minus that of the best other one, negative where another is better.
        same: (T,) logit of each token minus that of the reference's rival.
        gaps: (place, token) of every flip -> logit of the reference's token minus that of the other.
    """

    def __init__(self, reference: Reference, followed: Sequence[Followed], target: HFModel) -> None:
        self.reference, self.ulps = reference, spacing(reference.tops, target.dtype)
        self.gaps = {
            (int(place), int(one.chosen[place])): math.nan for one in followed for place in np.flatnonzero(one.flips)
        }
        self.leads = self.same = np.empty(0)

    def read(self, logits: torch.Tensor) -> None:
        """Take what is needed from the (T, V) float64 logits of the text, which are changed."""
        text, places = self.reference.tokens, np.arange(len(self.reference.tokens))
        own = logits[places, text]
        self.same = (own - logits[places, self.reference.runners_up]).numpy()
        self.gaps = {(place, token): float(own[place] - logits[place, token]) for place, token in self.gaps}
        logits[places, text] = -torch.inf
        self.leads = (own - logits.amax(-1)).numpy()

    def error(self, leads: np.ndarray) -> np.ndarray:
        """(T,) how far margins between the reference's best two tokens are from float64's, in `ulps`."""
        off: np.ndarray = (leads - self.same) / self.ulps
        return off

    def described(self, one: Followed) -> Iterator[Row]:
        """The flips of one comparison along this text."""
        for order, place in enumerate(np.flatnonzero(one.flips).tolist()):
            margin, got = float(self.reference.leads[place]), int(one.chosen[place])
            yield {
                "prompt": self.reference.prompt.id,
                "index": place,
                "first": order == 0,
                "expected": int(self.reference.tokens[place]),
                "got": got,
                "margin": margin,
                "margin_ulps": margin / float(self.ulps[place]),
                "exact_margin": self.gaps[place, got],
            }


@torch.inference_mode()
def _compute(exact: Sequence[_Exact], target: HFModel) -> None:
    wide = copy.deepcopy(target.model).double()
    for one in exact:
        text = one.reference.tokens.tolist()
        ids = torch.tensor([[*one.reference.prompt.ids, *text[:-1]]], device=target.device)
        one.read(wide(ids, use_cache=False, logits_to_keep=len(text)).logits[0, :, : target.vocab_size].cpu())


def _told(followed: Sequence[Followed], exact: Sequence[_Exact]) -> Row:
    """What float64 says of one comparison."""
    pairs = list(zip(followed, exact, strict=True))
    off = [its.error(one.leads) for one, its in pairs if one.leads is not None]
    flips = [row for one, its in pairs for row in its.described(one)]
    return {"error_ulps": _root_mean_square(off) if off else None, "flips": flips}


def _root_mean_square(parts: Sequence[np.ndarray]) -> float:
    return float(np.sqrt(np.mean(np.concatenate(parts) ** 2)))


def of_reference(exact: Sequence[_Exact]) -> Row:
    """What rounding did to the reference itself.

    Returns:
        `tokens` of all texts; `ties`, places where the best two logits are equal; for every place `margins`, its top-2
        margin, `margins_ulps`, the same in units of the dtype's spacing at the best logit, and `exact_margins`, those
        of the same weights in float64 (negative where float64 prefers another token: `inexact` of them); `error_ulps`,
        root mean square of the difference between margin and float64's, for the same two tokens.
    """
    margins, ulps, leads = (
        np.concatenate(each)
        for each in zip(*((one.reference.leads, one.ulps, one.leads) for one in exact), strict=True)
    )
    return {
        "tokens": len(margins),
        "ties": int((margins == 0).sum()),
        "inexact": int((leads < 0).sum()),
        "error_ulps": _root_mean_square([one.error(one.reference.leads) for one in exact]),
        "margins": _short(margins),
        "margins_ulps": _short(margins / ulps),
        "exact_margins": _short(leads),
    }


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


# --------------------------------------------------------------------------------------------------------------- rates
def summary(followed: Sequence[Followed], dtype: torch.dtype, seed: int = 0) -> Row:
    """How often a comparison chose another token than the reference.

    Args:
        followed: what it saw along each prompt's text.
        dtype: of the models.
        seed: of the bootstrap over prompts.

    Returns:
        `prompts`; `identical`, texts equal to the reference's; `rows`, mean rows of a forward. `tokens`, `flipped`,
        `rate` (flips per 1000 tokens of the reference's text), and the same three, prefixed `first_`, up to and with
        the first flip of each text, which is what decoding sees: its hazard. `interval` and `first_interval`: exact
        (Clopper-Pearson) 95 % intervals, as if tokens were independent. `noise_ulps`: root mean square of the change
        of the margin between the reference's best two tokens, in units of the dtype's spacing, with its bootstrap
        `noise_interval`. None where a method shows only its own text.
    """
    flips = [one.flips for one in followed]
    whole = all(one.leads is not None for one in followed)
    first = [int(each.argmax()) + 1 if each.any() else len(each) for each in flips]
    diverged = sum(bool(each.any()) for each in flips)
    rows = [one.rows for one in followed if one.rows is not None]
    out = {
        "prompts": len(flips),
        "identical": len(flips) - diverged,
        "rows": float(np.mean(rows)) if rows else None,
        **_rate("", sum(int(each.sum()) for each in flips) if whole else None, sum(map(len, flips))),
        **_rate("first_", diverged, sum(first)),
        "noise_ulps": None,
        "noise_interval": None,
    }
    if whole:
        squares = np.array([one.squares(spacing(one.reference.tops, dtype)) for one in followed])
        out |= {"noise_ulps": float(_root(squares[None])[0]), "noise_interval": bootstrap(squares, _root, seed)}
    return out


def _rate(prefix: str, flipped: int | None, tokens: int) -> Row:
    names = [f"{prefix}{name}" for name in ("tokens", "flipped", "rate", "interval")]
    if flipped is None:
        return dict.fromkeys(names)
    low, high = clopper_pearson(flipped, tokens)
    return dict(zip(names, (tokens, flipped, 1000 * flipped / tokens, (1000 * low, 1000 * high)), strict=True))


def _root(drawn: np.ndarray) -> np.ndarray:
    value: np.ndarray = np.sqrt(quotient(drawn))
    return value


def clopper_pearson(hits: int, count: int, level: float = 0.95) -> Interval:
    """Exact interval of a share: the shares under which so few, or so many, hits in so many trials are not rare.

    Raises:
        ValueError: for no trial, or more hits than trials.
    """
    if not 0 <= hits <= count or count < 1:
        raise ValueError(f"{hits} hits in {count} trials are no share; give at least one trial, and no more hits.")
    rare = (1 - level) / 2
    low = 0.0 if hits == 0 else _from_where(lambda share: 1 - at_most(hits - 1, count, share) > rare)
    high = 1.0 if hits == count else _from_where(lambda share: at_most(hits, count, share) < rare)
    return low, high


def _from_where(holds: Callable[[float], bool]) -> float:
    """The share from which on something holds, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return (low + high) / 2


def at_most(hits: int, count: int, share: float) -> float:
    """Probability of at most `hits` in `count` independent trials of this share, 0 < share < 1."""
    ways = math.lgamma(count + 1)
    return math.fsum(
        math.exp(
            ways - math.lgamma(k + 1) - math.lgamma(count - k + 1)
            + k * math.log(share) + (count - k) * math.log1p(-share)
        )
        for k in range(hits + 1)
    )  # fmt: skip


# --------------------------------------------------------------------------------------- methods against plain decoding
def rates_against(summaries: Sequence[Row], followed: Mapping[str, Sequence[Followed]], seed: int = 0) -> list[Row]:
    """Each method that drafts against plain decoding in forwards of other row counts, along the same texts.

    The rates of two comparisons are not independent, for both flip where two tokens are close; so they are paired.

    Args:
        summaries: with `label`, `group` and `rows`.
        followed: label -> what it saw along each text.
        seed: of the bootstraps over prompts.

    Returns:
        One row per method, none without row counts. `label`; `against`, plain decoding in the number of rows nearest
        to the method's own; `both`, `mine`, `its`: places that flip under both, under the method alone, under the other
        alone; `interval`, exact (Clopper-Pearson) 95 % of the method's share of the last two, None without any;
        `exceeds`, whether that lies above one half. `ratio` of the method's rate to the mean over all row counts, with
        its bootstrap `ratio_interval`. `noise_ratio` of the changes of margins, the method's over those of `against`,
        with its bootstrap `noise_interval`. A ratio without any flips or changes is None, and so is an infinite number.
    """
    probes = [row for row in summaries if row["group"] == "rows"]
    out = []
    for row in summaries:
        if row["group"] == "method" and row["rows"] is not None and probes:
            nearest = min(probes, key=lambda probe: abs(math.log(probe["rows"] / row["rows"])))
            mine, its = followed[row["label"]], followed[nearest["label"]]
            every = [followed[probe["label"]] for probe in probes]
            out.append(
                {"label": row["label"], "against": nearest["label"], **_paired(mine, its),
                 **_rate_ratio(mine, every, seed), **_noise_ratio(mine, its, seed)}
            )  # fmt: skip
    return out


def _paired(mine: Sequence[Followed], its: Sequence[Followed]) -> Row:
    one, other = (np.concatenate([each.flips for each in some]) for some in (mine, its))
    alone, its_alone = int((one & ~other).sum()), int((other & ~one).sum())
    interval = clopper_pearson(alone, alone + its_alone) if alone + its_alone else None
    exceeds = interval is not None and interval[0] > 0.5
    return {"both": int((one & other).sum()), "mine": alone, "its": its_alone, "interval": interval, "exceeds": exceeds}


def _rate_ratio(mine: Sequence[Followed], others: Sequence[Sequence[Followed]], seed: int) -> Row:
    counts = np.array(
        [
            [one.flips.sum(), np.mean([each.flips.sum() for each in its])]
            for one, *its in zip(mine, *others, strict=True)
        ]
    )
    ratio, interval = _ratio(counts, lambda drawn: (drawn[..., 0].sum(-1), drawn[..., 1].sum(-1)), seed)
    return {"ratio": ratio, "ratio_interval": interval}


def _noise_ratio(mine: Sequence[Followed], its: Sequence[Followed], seed: int) -> Row:
    squares = np.array([[*one.squares(), *other.squares()] for one, other in zip(mine, its, strict=True)])
    ratio, interval = _ratio(squares, lambda drawn: (_root(drawn[..., :2]), _root(drawn[..., 2:])), seed)
    return {"noise_ratio": ratio, "noise_interval": interval}


def _ratio(
    rows: np.ndarray, parts: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], seed: int
) -> tuple[float | None, list[float | None] | None]:
    """First over second of the two parts of (n, k) rows, and its bootstrap interval over the rows; None if infinite.

    Both None where both parts are 0. The first's share of the two is what is drawn, for it is bounded.
    """
    if not any(parts(rows)):
        return None, None

    def share(drawn: np.ndarray) -> np.ndarray:
        first, second = parts(drawn)
        both = first + second
        value: np.ndarray = np.where(both > 0, first / np.where(both > 0, both, 1), 0.5)
        return value

    ratio, *interval = (
        None if one == 1 else one / (1 - one) for one in (float(share(rows)), *bootstrap(rows, share, seed))
    )
    return ratio, interval
