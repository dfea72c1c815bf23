"""The precision audit: where rounding alone changes a greedy text, of trees and of plain decoding against itself.

In 32 bits and fewer a logit depends a little on the shape of the forward it was computed in: another number of nodes
is another kernel, and sums are rounded in another order. Where the two best tokens are closer than that, the greedy
text changes, whatever drafted the tree. So the question is not whether a method ever leaves the text of plain decoding,
one node at a time, but whether it leaves it more often than plain decoding leaves itself in forwards of as many nodes.

Every method of this library's loop is led along the reference's text to its end: each token is committed as the
reference has it, and the token that the method itself would have chosen is recorded. Up to the first *flip* this is the
method's own greedy run, so the first flip is its first divergence; a benchmark never sees the later ones, because it
has left the text by then. `rates_against` compares how often trees flip; `figures` draws it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from typing_extensions import override

from dynatree_lib.decoding import Iteration, generate
from dynatree_lib.drafters import Drafter, NoDraft
from dynatree_lib.engines.static import StaticModel, why_not_static
from dynatree_lib.measuring import DEEPEST, RowsProbe
from dynatree_lib.models.engine import engines
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import GREEDY, DraftDistributions, RandomSource, Scores
from dynatree_lib.tree import TokenTree
from dynatree_lib.verifiers.base import Verdict, Verifier, follow_argmax

from ..bench.methods import Variant
from ..bench.prompts import BenchPrompt
from ..bench.runner import Runner, quiet
from ..bench.statistics import estimate, share, sum_quotient, sums

Row = dict[str, Any]
NODES = (2, 4, 8, 16, 32, 64)
"""Nodes of the forwards in which plain decoding is compared with itself."""
CHUNKS: dict[str, int | None] = {"prompt alone": None, "prompt by 16": 16, "prompt by 1": 1}
"""Ways to read a prompt before the first step: most tokens of a forward, None for all. The reference reads up to
`huggingface.LONGEST_JOINT_PREFILL` of them in the forward of its first step."""
SPARE = DEEPEST + 1
"""Positions beyond a text that the nodes beside its last tokens may take."""
OLD_COLUMNS = {"mine": "method_alone", "its": "other_alone"}
"""Columns of `rates_against` in older records -> their present names."""


# ------------------------------------------------------------------------------------------------- along the reference
@dataclass(frozen=True)
class Reference:
    """The text of plain decoding, one node at a time.

    Attributes:
        prompt: what the text continues.
        tokens: (T,) int64 ids.
        runners_up: (T,) int64, the second best token at each place; the lowest id among equals.
        logits: (T,) float64 logits of the tokens.
        margins: (T,) float64 logit of the token minus that of its runner-up; 0 is an exact tie.
    """

    prompt: BenchPrompt
    tokens: np.ndarray
    runners_up: np.ndarray
    logits: np.ndarray
    margins: np.ndarray


@dataclass(frozen=True)
class Followed:
    """The choices of a method along a reference's text.

    Attributes:
        reference: the text.
        chosen: (t,) int64, the greedy token of the method's own scores at each place; t = T, or where only its own text
            is known, up to and with the first place where that differs.
        margins: (T,) float64 logit of the reference's token minus that of its runner-up in the method's own scores;
            None where unknown.
        nodes: mean nodes of its forwards; None where unknown.
    """

    reference: Reference
    chosen: np.ndarray
    margins: np.ndarray | None = None
    nodes: float | None = None


@dataclass
class TopTwo(Verifier):
    """Greedy verification of trees of one node that records the best two tokens after each.

    Attributes:
        recorded: best token, runner-up, logit of the best, margin between the two.
    """

    recorded: list[tuple[int, int, float, float]] = field(default_factory=list)
    name = "top-two"

    @override
    def verify(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        verdict = follow_argmax(tree, scores)
        logits, best = scores.logits[0].cpu().double(), verdict.next_token
        runner_up = int(logits.index_fill(0, torch.tensor([best]), -torch.inf).argmax())
        self.recorded.append((best, runner_up, float(logits[best]), float(logits[best] - logits[runner_up])))
        return verdict


@dataclass
class AlongReference(Verifier):
    """Accepts a reference's text whatever the scores are, and records what greedy verification would have chosen.

    Attributes:
        reference: the text, and the runners-up whose logits are compared.
        chosen: greedy token of each place so far.
        margins: logit of the reference's token minus that of its runner-up, of each place so far.
    """

    reference: Reference
    chosen: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    name = "along-reference"

    @override
    def verify(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        here, text = len(self.chosen), self.reference.tokens
        forced = Scores(scores.logits, scores.sampling, scores.owner)
        forced.argmax = np.append(text, -1)[np.minimum(here + tree.depths, len(text))]  # past its end nothing fits
        verdict = follow_argmax(tree, forced)
        nodes = [0, *verdict.path][: len(text) - here]
        places = slice(here, here + len(nodes))
        pairs = torch.from_numpy(np.stack([text[places], self.reference.runners_up[places]], 1))
        both = scores.logits[nodes].gather(1, pairs.to(scores.logits.device)).double()
        self.margins += (both[:, 0] - both[:, 1]).tolist()
        self.chosen += scores.argmax[nodes].tolist()
        return verdict


def read_reference(target: HFModel, prompt: BenchPrompt, tokens: int) -> Reference:
    """Decode a text of this many tokens plainly, EOS an ordinary token.

    Raises:
        ValueError: if the target's context ends before.
    """
    verifier = TopTwo()
    _decode(target, prompt, NoDraft(), verifier, tokens)
    return Reference(prompt, *map(np.array, zip(*verifier.recorded, strict=True)))


def follow(target: HFModel, reference: Reference, drafter: Drafter, **options: Any) -> Followed:
    """Lead a drafter's trees along a reference's text; options as for `generate`."""
    verifier = AlongReference(reference)
    iterations = _decode(target, reference.prompt, drafter, verifier, len(reference.tokens), **options)
    nodes = float(np.mean([len(iteration.tree) + iteration.side_nodes for iteration in iterations]))
    return Followed(reference, np.array(verifier.chosen), np.array(verifier.margins), nodes)


def _decode(
    target: HFModel, prompt: BenchPrompt, drafter: Drafter, verifier: Verifier, tokens: int, **options: Any
) -> list[Iteration]:
    if len(prompt.ids) + tokens + SPARE > target.context:
        raise ValueError(
            f"Prompt '{prompt.id}' has {len(prompt.ids)} tokens; with {tokens} new ones and {SPARE} for nodes beside "
            f"them it exceeds the context of {target.context}; shorten it, or ask for fewer tokens."
        )
    options |= {"verifier": verifier, "max_new_tokens": tokens, "eos_token_ids": (), "keep_state": False}
    return generate(target, prompt.ids, drafter, **options).iterations


def own_text(runner: Runner, reference: Reference) -> Followed:
    """Return what a method with a loop of its own chose, up to and with the first token that is not the reference's."""
    options: Row = {"max_new_tokens": len(reference.tokens), "eos_token_ids": (), "sampling": GREEDY, "seed": 0}
    chosen = np.array(runner(reference.prompt.ids, on_tokens=quiet, **options).tokens)
    differ = np.flatnonzero(chosen != reference.tokens)
    return Followed(reference, chosen[: differ[0] + 1] if len(differ) else chosen)


# --------------------------------------------------------------------------------------------------------- comparisons
@dataclass(frozen=True)
class Comparison:
    """One way to compute the same text.

    Attributes:
        label: unique in an audit.
        group: "again", "rows" (further nodes), "prompt", "mask", "engine" (plain decoding against itself) or "method".
        run: reference -> choices along it.
    """

    label: str
    group: str
    run: Callable[[Reference], Followed]


def comparisons(pair: Pair, methods: Sequence[Variant], node_counts: Sequence[int] = NODES) -> list[Comparison]:
    """Return plain decoding in every way that changes the shape of a forward and nothing else, then methods.

    Args:
        pair: the reference is its target as loaded.
        methods: lossless ones without options of the loop; a plain `ar` decodes the reference once more.
        node_counts: nodes of the forwards of plain decoding among nodes that are thrown away.

    Raises:
        ValueError: for a node count below 2, or a method that is not lossless or carries what it learns between texts.
    """
    target = pair.target
    if (least := min(node_counts, default=2)) < 2:
        raise ValueError(f"A node count is {least}; one node is the reference itself, so give at least 2.")

    def masked(run: Callable[..., torch.Tensor], tokens: Any, places: Any, mask: Any, *more: Any) -> torch.Tensor:
        """Give a forward of one token a mask that hides nothing, where there would be none."""
        if mask is None and len(tokens) == 1:
            mask = target.mask(more[0].get_seq_length(), np.ones((1, 1), bool), places, places)
        return run(tokens, places, mask, *more)

    ways: list[tuple[str, str, HFModel, Drafter]] = [
        *((f"ar in {count} rows", "rows", target, RowsProbe(count, target.vocab_size)) for count in node_counts),
        *((f"ar, {label}", "prompt", _reading_by(target, size), NoDraft()) for label, size in CHUNKS.items()),
        ("ar under a mask", "mask", target.observed(masked), NoDraft()),
        *((f"ar, {label}", "engine", model, NoDraft()) for label, model in _other_engines(target)),
    ]
    out = [Comparison(label, group, partial(follow, model, drafter=drafter)) for label, group, model, drafter in ways]
    return [*out, *(_method(pair, variant) for variant in methods)]


def _method(pair: Pair, variant: Variant) -> Comparison:
    if not variant.method.lossless or variant.carries:
        raise ValueError(
            f"'{variant.label}' does not promise the target's own text from a prompt alone, so its text says nothing "
            "about rounding; leave it out."
        )
    group = "again" if variant.name == "ar" else "method"
    if variant.method.drafter is None:
        return Comparison(variant.label, group, partial(own_text, variant.runner(pair)))
    drafter, commit = variant.method.drafter(variant.options, pair.draft), variant.options.get("commit", "gather")
    return Comparison(variant.label, group, partial(follow, pair.target, drafter=drafter, commit=commit))


def _reading_by(target: HFModel, size: int | None) -> HFModel:
    """Return the model with sessions that read the prompt when they start, in forwards of at most `size` tokens."""

    class Reading(target.session_class):  # type: ignore[name-defined]
        def start(self, prompt: Sequence[int]) -> None:
            super().start(())
            step = size or max(1, len(prompt))
            for first in range(0, len(prompt), step):
                self.extend(prompt[first : first + step])
                self.flush()

    return target.altered(session_class=Reading)


def _other_engines(target: HFModel) -> Iterator[tuple[str, HFModel]]:
    """Yield the engines that serve the model beside its own, and static buffers where it can have them."""
    for name in engines():
        if name == target.engine.name:
            continue
        try:
            other = HFModel(target.model, target.tokenizer, engine=name, check=False)
        except ValueError:  # it does not serve this model
            continue
        yield f"{name} engine", other.altered(vocab_size=min(other.vocab_size, target.vocab_size))
    if why_not_static(target) is None:
        yield "static buffers", StaticModel(target, check=False)


# ----------------------------------------------------------------------------------------------------------- the audit
def audit_precision(
    pair: Pair,
    methods: Sequence[Variant],
    prompts: Sequence[BenchPrompt],
    *,
    max_new_tokens: int = 64,
    node_counts: Sequence[int] = NODES,
    seed: int = 0,
    progress: Callable[[str], None] = quiet,
) -> Row:
    """Compare the texts of one pair in its dtype.

    Args:
        pair: target and draft.
        methods: as for `comparisons`.
        prompts: each is decoded once per comparison.
        max_new_tokens: tokens of every text.
        node_counts: as for `comparisons`.
        seed: of the bootstraps over prompts.
        progress: called with a line of text per comparison.

    Returns:
        `dtype`, `epsilon` (its relative spacing), `engine`, and what `of_reference` says of the reference's texts;
        `comparisons`, the `label`, `group` and `summary` of each; `against`, the rows of `rates_against`.

    Raises:
        ValueError: as `comparisons`, and for prompts that do not fit the context; no prompts.
    """
    if not prompts:
        raise ValueError("There are no prompts to decode; give at least one.")
    compared = comparisons(pair, methods, node_counts)
    references = [read_reference(pair.target, prompt, max_new_tokens) for prompt in prompts]
    dtype, followed = str(pair.target.dtype).removeprefix("torch."), {}
    for number, comparison in enumerate(compared, 1):
        progress(f"[{number}/{len(compared)}] {dtype}: {comparison.label} on {len(references)} prompts")
        followed[comparison.label] = [comparison.run(reference) for reference in references]
    texts, places = place_tables(pair.target, references, followed)
    by_label = dict(iter(places.groupby("label")))
    rows = [{"label": one.label, "group": one.group, **summary(by_label[one.label], seed)} for one in compared]
    head = {"dtype": dtype, "epsilon": torch.finfo(pair.target.dtype).eps, "engine": pair.target.engine.name}
    return {**head, **of_reference(texts), "comparisons": rows, "against": rates_against(rows, places, seed)}


def spacing(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return the distance from each magnitude to the next larger number of a dtype: its unit in the last place."""
    info = torch.finfo(dtype)
    _, exponents = np.frexp(np.maximum(np.abs(values), info.tiny))
    return np.ldexp(info.eps, exponents - 1)


@torch.inference_mode()
def place_tables(
    target: HFModel, references: Sequence[Reference], followed: Mapping[str, Sequence[Followed]]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return `places_of` the references, and of all comparisons, with the logits of the same weights in float64.

    Of a reference, `got` is the best other token in float64.
    """
    wide = copy.deepcopy(target.model).double()
    texts, places = [], []
    for reference, *runs in zip(references, *followed.values(), strict=True):
        tokens = reference.tokens
        ids = torch.tensor([[*reference.prompt.ids, *tokens[:-1].tolist()]], device=target.device)
        logits = wide(ids, use_cache=False, logits_to_keep=len(tokens)).logits[0, :, : target.vocab_size]
        exact = logits.cpu().numpy()
        others = exact.copy()
        others[np.arange(len(tokens)), tokens] = -np.inf
        plain = Followed(reference, others.argmax(-1), reference.margins, 1.0)
        texts.append(places_of("reference", plain, exact, target.dtype))
        places += [places_of(label, run, exact, target.dtype) for label, run in zip(followed, runs, strict=True)]
    return pd.concat(texts), pd.concat(places)


def places_of(label: str, run: Followed, exact: np.ndarray, dtype: torch.dtype) -> pd.DataFrame:
    """Return one row for each place of a text, as far as the choices of a comparison are known.

    Args:
        label: of the comparison.
        run: its choices.
        exact: (T, V) float64 logits of the same weights in float64.
        dtype: of the model.

    Returns:
        a frame with `label`, `prompt`, `index` in the text; `expected` (the reference's token) and `got` (the chosen
        token); `margin`, the reference's top-2 margin, `own_margin`, that of the same two tokens in the comparison's
        scores (NaN where unknown) and `float64_margin`, in float64; `exact_margin`, how far `expected` is above `got`
        in float64, negative where `got` is the better token; `ulp`, the spacing of the dtype at the reference's logit;
        `nodes`, mean nodes of a forward.
    """
    reference, places = run.reference, np.arange(len(run.chosen))
    expected = reference.tokens[places]
    top = exact[places, expected]
    columns = {
        "label": label, "prompt": reference.prompt.id, "index": places, "expected": expected, "got": run.chosen,
        "margin": reference.margins[places], "own_margin": np.nan if run.margins is None else run.margins,
        "float64_margin": top - exact[places, reference.runners_up[places]],
        "exact_margin": top - exact[places, run.chosen], "ulp": spacing(reference.logits[places], dtype),
        "nodes": np.nan if run.nodes is None else run.nodes,
    }  # fmt: skip
    return pd.DataFrame(columns)


def of_reference(texts: pd.DataFrame) -> Row:
    """Return what rounding did to the reference itself.

    Args:
        texts: of `place_tables`.

    Returns:
        `tokens` of all texts; `ties`, places where the best two logits are equal; for every place `margins`, its top-2
        margin, `margins_ulps`, the same in units of the dtype's spacing at the best logit, and `exact_margins`, those
        of the same weights in float64 (negative where float64 prefers another token: `inexact` of them); `error_ulps`,
        root mean square of the difference between margin and float64's, for the same two tokens.
    """
    shortened = {
        "margins": texts["margin"], "margins_ulps": texts["margin"] / texts["ulp"],
        "exact_margins": texts["exact_margin"],
    }  # fmt: skip
    return {
        "tokens": len(texts),
        "ties": int((texts["margin"] == 0).sum()),
        "inexact": int((texts["exact_margin"] < 0).sum()),
        "error_ulps": _error(texts),
        **{name: [float(f"{value:.4g}") for value in values] for name, values in shortened.items()},
    }


def _error(places: pd.DataFrame) -> float:
    off = (places["own_margin"] - places["float64_margin"]) / places["ulp"]
    return float(np.sqrt((off**2).mean()))


# --------------------------------------------------------------------------------------------------------------- rates
def summary(places: pd.DataFrame, seed: int = 0) -> Row:
    """Return how often a comparison chose another token than the reference.

    Args:
        places: its rows of `place_tables`.
        seed: of the bootstrap over prompts.

    Returns:
        `prompts`; `identical`, texts equal to the reference's; `rows`, mean nodes of a forward. `tokens`, `flipped`,
        `rate` (flips per 1000 tokens of the reference's text), and the same three, prefixed `first_`, up to and with
        the first flip of each text, which is all that decoding sees: its hazard. `interval` and `first_interval`: exact
        (Clopper-Pearson) 95 % intervals, as if tokens were independent. `noise_ulps`: root mean square of the change
        of the margin between the reference's best two tokens, in units of the dtype's spacing, with its bootstrap
        `noise_interval`; `error_ulps`, the same against float64. None where a method shows only its own text.
        `flips`: rows with `prompt`, `index`, `first` (of that text), `expected`, `got`, `margin`, `margin_ulps` and
        `exact_margin` as in `places_of`.
    """
    flip = places["expected"] != places["got"]
    earlier = flip.groupby(places["prompt"]).cumsum() - flip
    flips = places.assign(first=earlier == 0, margin_ulps=places["margin"] / places["ulp"])[flip]
    prompts, diverged = places["prompt"].nunique(), int(flips["first"].sum())
    whole, noise = bool(places["own_margin"].notna().all()), None
    if whole:
        changes = places.assign(square=((places["own_margin"] - places["margin"]) / places["ulp"]) ** 2, places=1)
        noise = estimate(sums(changes, ("square", "places"), "prompt").to_numpy(float), _root, seed)
    columns = ["prompt", "index", "first", "expected", "got", "margin", "margin_ulps", "exact_margin"]
    return {
        "prompts": prompts,
        "identical": prompts - diverged,
        "rows": float(places.groupby("prompt")["nodes"].first().mean()) if places["nodes"].notna().all() else None,
        **_rate("", len(flips) if whole else None, len(places)),
        **_rate("first_", diverged, int((earlier == 0).sum())),
        "noise_ulps": noise and noise.value,
        "noise_interval": noise and noise.interval,
        "error_ulps": _error(places) if whole else None,
        "flips": flips[columns].to_dict("records"),
    }


def _root(drawn: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(sum_quotient(drawn)))


def _rate(prefix: str, flipped: int | None, tokens: int) -> Row:
    names = [f"{prefix}{name}" for name in ("tokens", "flipped", "rate", "interval")]
    if flipped is None:
        return dict.fromkeys(names)
    low, high = share(flipped, tokens).interval
    return dict(zip(names, (tokens, flipped, 1000 * flipped / tokens, (1000 * low, 1000 * high)), strict=True))


# --------------------------------------------------------------------------------------- methods against plain decoding
def rates_against(summaries: Sequence[Row], places: pd.DataFrame, seed: int = 0) -> list[Row]:
    """Compare each method that drafts with plain decoding in forwards of other node counts, along the same texts.

    The rates of two comparisons are not independent, for both flip where two tokens are close; so they are paired.

    Args:
        summaries: with `label`, `group` and `rows`.
        places: of `place_tables`.
        seed: of the bootstraps over prompts.

    Returns:
        One row per method, none without node counts. `label`; `against`, plain decoding in the number of nodes nearest
        to the method's own; `both`, `method_alone`, `other_alone`: places that flip under both, under the method alone,
        under the other alone; `interval`, exact (Clopper-Pearson) 95 % of the method's share of the last two, None
        without any; `exceeds`, whether that lies above one half. `ratio` of the method's rate to the mean over all node
        counts, with its bootstrap `ratio_interval`. `noise_ratio` of the changes of margins, the method's over those of
        `against`, with its bootstrap `noise_interval`. A ratio without any flips or changes is None, and so is an
        infinite number.
    """
    table = places.assign(
        flip=places["expected"] != places["got"], square=(places["own_margin"] - places["margin"]) ** 2
    )
    known = table[table["own_margin"].notna()].set_index(["prompt", "index"]).groupby("label")
    flips, squares = (pd.DataFrame({name: rows[column] for name, rows in known}) for column in ("flip", "square"))
    counts, changes = (wide.groupby(level="prompt", sort=False).sum() for wide in (flips, squares))
    lengths = flips.groupby(level="prompt", sort=False).size()
    probes, out = [row for row in summaries if row["group"] == "rows"], []
    for row in summaries:
        if row["group"] != "method" or row["rows"] is None or not probes:
            continue
        label, distance = row["label"], lambda probe, nodes=row["rows"]: abs(math.log(probe["rows"] / nodes))
        other = min(probes, key=distance)["label"]
        alone, other_alone = (int(one.sum()) for one in (flips[label] & ~flips[other], flips[other] & ~flips[label]))
        interval = share(alone, alone + other_alone).interval if alone + other_alone else None
        rates = np.stack([counts[label], counts[[probe["label"] for probe in probes]].mean(axis=1)], 1)
        noises = np.stack([changes[label], lengths, changes[other], lengths], 1)
        ratio, ratio_interval = _ratio(rates, lambda drawn: (drawn[..., 0].sum(-1), drawn[..., 1].sum(-1)), seed)
        noise_ratio, noise_interval = _ratio(noises, lambda drawn: (_root(drawn[..., :2]), _root(drawn[..., 2:])), seed)
        out.append(
            {"label": label, "against": other, "both": int((flips[label] & flips[other]).sum()),
             "method_alone": alone, "other_alone": other_alone, "interval": interval,
             "exceeds": interval is not None and interval[0] > 0.5, "ratio": ratio, "ratio_interval": ratio_interval,
             "noise_ratio": noise_ratio, "noise_interval": noise_interval}
        )  # fmt: skip
    return out


def _ratio(
    rows: np.ndarray, parts: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], seed: int
) -> tuple[float | None, list[float | None] | None]:
    """Return first over second of the two parts of (n, k) rows, and its bootstrap interval; None where infinite.

    Both are None where both parts are 0. The share of the first in both is what is drawn, because it is bounded.
    """
    if not any(parts(rows)):
        return None, None

    def bounded(drawn: np.ndarray) -> np.ndarray:
        first, second = parts(drawn)
        both = np.asarray(first + second)
        return np.divide(first, both, out=np.full(both.shape, 0.5), where=both > 0)

    drawn_share = estimate(rows, bounded, seed)
    ratio, *interval = (None if part == 1 else part / (1 - part) for part in (drawn_share.value, *drawn_share.interval))
    return ratio, interval
