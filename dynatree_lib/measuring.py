"""What an iteration costs on this machine: measured once for a model by the loop itself, and kept on disk.

A probe is a drafter that makes an iteration of a known shape. Its tokens are the last of the vocabulary, which a target
hardly ever chooses. So an iteration commits one token whatever the probe proposes, and probes can take turns in a text.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from .costs import ASSUMED, Costs
from .decoding import Loop, begun
from .drafters.auto import Auto, AutoState
from .drafters.base import Drafter, ModelDrafter, NoDraft, Proposal
from .drafters.builder import TreeBuilder
from .drafters.search import Chosen
from .models.base import LanguageModel
from .models.huggingface import HFModel
from .paths import cache_folder
from .sampling import GREEDY, DraftDistributions, RandomSource, Sampling, Scores
from .stopping import Stopping
from .tree import ROOT, TokenTree
from .verifiers import default_verifier
from .verifiers.base import Verdict, Verifier

SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Tokens of the iterations that are timed."""
WIDTHS = (1, 2, 4, 8, 16)
"""Nodes of the drafted levels that are timed."""
FEW_SIZES, FEW_WIDTHS = (1, 8, 32), (1, 8)
"""The same of a large model; what lies between is interpolated."""
SECONDS = 2.0
"""Timing takes about so long, or as long as the fewest iterations of a large model take."""
LARGEST = (math.inf, 16, 8)
"""Most nodes of trees and levels that are timed in the first turn, in the second, and in each later one: larger ones
take long, and seldom pay."""
ROUNDS = (2, 12)
"""Fewest and most turns of every probe."""
RUN = 4
"""Iterations in a row of a text after another text's; the first one finds the caches cold, and the last one counts."""
PROMPT = 64
"""Tokens of the text before the first timed iteration."""
FEWEST = 12
"""Fewest iterations in which the host's share of guesses, and of drafting, is timed; of a large model one is."""
DEEPEST = 8
"""Deepest level of a probe's tree."""
ROOM = PROMPT + 2 * ROUNDS[1] * (len(WIDTHS) + 1) + DEEPEST + 6
"""Tokens that a context must hold to be timed."""
LEVELS = 4
"""Levels whose time is taken together, below a first level that reads node 0 alone."""
SMALLEST = 1e-4
"""Least cost that is believed, in greedy steps."""
WAITED = 0.05
"""Iterations are disturbed where a thread of this process waited longer for a processor, as a part of their time."""
QUIET, TRIES = 0.7, 3
"""Costs are measured again where fewer iterations were undisturbed, so many times at most; the quietest time counts."""
FORMAT = 4
"""Version of the kept files; another version is measured again."""

Clock = Callable[[], float]
Waits = Callable[[], Mapping[str, float]]


def waits() -> dict[str, float]:
    """Return the seconds that every thread of this process has waited for a processor; {} where that is not told.

    Linux tells it.
    """
    found = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # a thread may end meanwhile
            found[path.parent.name] = int(path.read_text(encoding="ascii").split()[1]) / 1e9
    return found


# ------------------------------------------------------------------------------------------------------------- probes
@dataclass(frozen=True)
class RowsProbe(NoDraft):
    """Has the target score `rows` nodes and drafts nothing: a chain of up to `DEEPEST`, the rest children along it.

    Args:
        rows: nodes of the tree, node 0 included.
        vocab_size: V of the target.
        features: layers whose hidden states the target is to give, as to a draft on features; None for none.
    """

    rows: int
    vocab_size: int
    features: tuple[int, ...] | None = None
    name = "rows-probe"

    @property
    def feature_layers(self) -> tuple[int, ...] | None:
        """Layers whose hidden states the target is to give."""
        return self.features

    @cached_property
    def _tree(self) -> TokenTree:
        spine = min(DEEPEST, max(1, self.rows // 2))
        parents = [ROOT, *(node - 1 if node <= spine else node % spine for node in range(1, self.rows))]
        return TokenTree.build([(self.vocab_size - 1 - node) % self.vocab_size for node in range(self.rows)], parents)

    @override
    def propose(self, state: int, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        tree = self._tree
        return Proposal(TokenTree(np.append(state, tree.tokens[1:]), tree.parents, tree.logprobs, tree.draws))


@dataclass(frozen=True)
class LevelsProbe(ModelDrafter):
    """Drafts levels: the first reads node 0, each of the `LEVELS` others `width` nodes.

    The drafted nodes are thrown away, so that the target's part is the same for all widths.

    Args:
        draft: the draft model.
        width: nodes of a level.
        clock: seconds.
        taken: seconds of a level after the first, for each iteration.
    """

    draft: LanguageModel
    width: int
    clock: Clock = time.perf_counter
    taken: list[float] = field(default_factory=list, compare=False)
    name = "levels-probe"

    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        """Draft all levels whatever `max_depth` is, because next to nothing is accepted."""
        frontier, breadth, start = np.array([0]), self.width, 0.0
        for level in range(1 + LEVELS):
            tokens, logprobs = builder.best(frontier, breadth)
            frontier = builder.add(np.repeat(frontier, tokens.shape[1]), tokens.ravel(), logprobs.ravel())
            breadth = 1
            if level == 0:
                start = self.clock()
        self.taken.append((self.clock() - start) / LEVELS)
        builder.keep(np.array([0]))


def rows_probes(target: LanguageModel, sizes: Sequence[int], draft: LanguageModel | None = None) -> list[Drafter]:
    """Return the probes of iterations that score so many tokens, for a draft that may need the target's states."""
    features = None if draft is None else draft.feature_layers
    probes = [RowsProbe(size, target.vocab_size, features) for size in sizes]
    return [NoDraft() if probe.rows == 1 and not features else probe for probe in probes]


@dataclass(frozen=True)
class GuessesProbe(Auto):
    """Makes guesses and may lose nothing, so that node 0 alone is scored; notes what `propose` and `observe` take.

    `features` is as for `RowsProbe`.
    """

    share: float = 0.0
    features: tuple[int, ...] | None = None
    clock: Clock = time.perf_counter
    taken: list[float] = field(default_factory=list, compare=False)
    name = "guesses-probe"

    @override
    def propose(self, state: Any, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        start = self.clock()
        proposal = super().propose(state, max_depth, sampling)
        self.taken.append(self.clock() - start)
        return proposal

    @override
    def observe(self, state: Any, proposal: Proposal, scores: Scores, verdict: Verdict) -> Any:
        start = self.clock()
        state = super().observe(state, proposal, scores, verdict)
        self.taken[-1] += self.clock() - start
        return state

    def cost(self, step_seconds: float) -> float:
        """Return what this took in an iteration, in greedy steps; the first iteration reads the prompt."""
        return round(float(np.median(self.taken[1:])) / step_seconds, 4)

    @property
    def feature_layers(self) -> tuple[int, ...] | None:
        """Layers whose hidden states the target is to give."""
        return self.features


@dataclass(frozen=True)
class DraftingProbe(GuessesProbe):
    """Makes no guesses, drafts a level in each iteration, whether it pays or not, and has node 0 alone scored."""

    depth: int = 1
    share: float = 0.99
    name = "drafting-probe"

    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> AutoState:
        state = super().start(prompt, random)
        state.trial.rest = sys.maxsize
        return state

    @override
    def cost(self, step_seconds: float) -> float:
        """Return what drafting took besides its level."""
        level = self.costs.reading(1) if isinstance(self.costs, Costs) else 0.0
        return max(round(super().cost(step_seconds) - level, 4), 0.0)

    @override
    def _levels_pay(self, state: AutoState, chosen: Sequence[Chosen], rate: float, sampling: Sampling) -> bool:
        return True

    @override
    def _size(self, gains: Sequence[float], rate: float, left: float) -> int:
        return 1


class CannotMeasure(ValueError):
    """A model of which too few iterations, or iterations of too few shapes, can be timed."""


class TimedRule(Verifier):
    """A verification rule that notes the seconds which it takes.

    Attributes:
        taken: seconds of each iteration.
    """

    def __init__(self, rule: Verifier, clock: Clock) -> None:
        self.rule, self.clock, self.taken = rule, clock, list[float]()

    @property
    def seconds(self) -> float:
        """What an iteration takes; the first reads the prompt."""
        return float(np.median(self.taken[1:]))

    @override
    def verify(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        start = self.clock()
        verdict = self.rule.verify(tree, scores, distributions, random)
        self.taken.append(self.clock() - start)
        return verdict


class ProbedText:
    """A text in which drafters of one kind of state take turns.

    Args:
        target: the model whose text this is.
        prompt: token ids.
        drafter: the first of them, which makes the state.
        sampling: the target's.
        clock: seconds.
        waits: as `waits`.

    Attributes:
        rule: of verification, which notes what it takes.
        waited: of every call of `seconds`, the part of its time in which a thread waited for a processor.
    """

    def __init__(
        self, target: LanguageModel, prompt: Sequence[int], drafter: Drafter, sampling: Sampling, clock: Clock,
        waits: Waits,
    ) -> None:  # fmt: skip
        state = begun(target, drafter, [*prompt], 0, None, drafter)
        self.rule = TimedRule(default_verifier(sampling.greedy, drafter.drawing), clock)
        self.loop, self.clock, self.waits = Loop(state, self.rule, sampling, Stopping(target.context, ())), clock, waits
        self.waited: list[float] = []

    def seconds(self, drafter: Drafter, count: int) -> list[float]:
        """Return the times of `count` iterations of a drafter."""
        self.loop.state.drafting = drafter
        before, times = self.waits(), [self.clock()]
        for _ in range(count):
            if self.loop.step() is not None:
                raise CannotMeasure(f"the context of '{self.loop.state.model.name}' ends before enough iterations")
            times.append(self.clock())
        longest = max((after - before.get(thread, 0.0) for thread, after in self.waits().items()), default=0.0)
        self.waited.append(longest / max(times[-1] - times[0], 1e-9))
        return np.diff(times).tolist()


def prompt_seconds(draft: LanguageModel, clock: Clock) -> float:
    """Return the seconds that a draft takes to read one token of a prompt."""
    tokens, times = [(1 + 7 * place) % draft.vocab_size for place in range(PROMPT)], {0: math.inf, PROMPT: math.inf}
    for _ in range(ROUNDS[0]):
        session = draft.session()
        session.start(tokens[:2])
        session.flush()
        for count in times:
            session.extend(tokens[:count])
            start = clock()
            _ = session.score(tokens[:1], [ROOT], GREEDY).argmax  # which waits for the device
            times[count] = min(times[count], clock() - start)
            session.rollback()
    return max(times[PROMPT] - times[0], 0.0) / PROMPT


# -------------------------------------------------------------------------------------------------- from times to costs
def in_steps(times: np.ndarray, waited: np.ndarray) -> tuple[list[float], float]:
    """Return what probes take in greedy steps, and the seconds of that step.

    Each time is divided by the step of its turn, because a machine's speed drifts. The medians are those of undisturbed
    iterations, or of the quietest quarter where a probe has no such iteration.

    Args:
        times: float64 [turns, probes], seconds; probe 0 is the greedy step. NaN for what was left out.
        waited: float64 [turns, probes], the part of that time in which a thread waited for a processor; NaN as above.

    Returns:
        costs of the probes, and seconds.
    """
    alone = np.where(waited <= np.maximum(np.nanquantile(waited, 0.25, axis=0), WAITED), times, np.nan)
    step = float(np.nanmedian(alone[:, 0]))
    steps = np.where(np.isnan(alone[:, :1]), step, alone[:, :1])
    return np.nanmedian(alone / steps, axis=0).tolist(), step


def assembled(
    verify: Sequence[float], levels: Sequence[float] = (), sizes: Sequence[int] = SIZES,
    widths: Sequence[int] = WIDTHS, prompt: float = 0.0,
) -> Costs:  # fmt: skip
    """Return the costs that times of iterations add up to, in any unit.

    Args:
        verify: times of iterations that score `sizes` tokens.
        levels: times of drafted levels of `widths` nodes; () for no draft.
        sizes, widths: ascending, from 1; what lies between them is interpolated.
        prompt: the time in which the draft reads a token of a prompt.
    """
    step, every = float(verify[0]), [2**power for power in range(int(sizes[-1]).bit_length())]
    curve = np.maximum(np.interp(every, sizes, verify) / step, 1.0)  # a larger forward is never cheaper than one token
    if not len(levels):
        return Costs(_rising(curve))
    level_curve = np.interp([2**power for power in range(int(widths[-1]).bit_length())], widths, levels) / step
    return Costs(_rising(curve), _rising(level_curve), prompt=round(prompt / step, 4))


def _rising(costs: np.ndarray) -> tuple[float, ...]:
    """Return costs that never fall with size: where the measured costs do, the larger forward's cost is the bound."""
    rising = np.minimum.accumulate(np.maximum(costs, SMALLEST)[::-1])[::-1]
    return tuple(round(float(cost), 4) for cost in rising)


# ---------------------------------------------------------------------------------------------------------- measuring
@dataclass(frozen=True)
class Measured:
    """Costs, and how they were measured.

    Attributes:
        costs: of the parts of an iteration.
        step_seconds: of the greedy step that is their unit.
        quiet: the part of the iterations in which no other process took the processors.
        tries: how often they were measured; the quietest counts.
    """

    costs: Costs
    step_seconds: float
    quiet: float = 1.0
    tries: int = 1

    @property
    def settled(self) -> bool:
        """Whether measuring again would find nothing better."""
        return self.quiet >= QUIET or self.tries >= TRIES


UNKNOWN = Measured(ASSUMED, math.nan)
"""Of a model that cannot be measured."""


@torch.inference_mode()
def measured(
    target: LanguageModel,
    draft: LanguageModel | None = None,
    sampling: Sampling = GREEDY,
    *,
    limit: float = SECONDS,
    clock: Clock = time.perf_counter,
    waits: Waits = waits,
) -> Measured:
    """Time iterations of known shapes, probe after probe in turns, for about `limit` seconds.

    Args:
        target: whose iterations are timed.
        draft: whose levels are timed; None for no draft.
        sampling: of the texts.
        limit: seconds; a large model takes longer, with the fewest iterations.
        clock: seconds.
        waits: as `waits`.

    Raises:
        CannotMeasure: for a context, or buffers, without room for the probes.
    """
    prompt = [(1 + 7 * place) % target.vocab_size for place in range(PROMPT)]
    texts: list[ProbedText] = []

    def begun_text(probe: Drafter) -> ProbedText:
        texts.append(ProbedText(target, prompt, probe, sampling, clock, waits))
        texts[-1].seconds(probe, 1)  # reads the prompt
        return texts[-1]

    (plain,) = rows_probes(target, (1,), draft)
    text = begun_text(plain)
    large = min(text.seconds(plain, 2)) * len((*SIZES, *WIDTHS)) * 2 * ROUNDS[0] > limit
    sizes = [size for size in (FEW_SIZES if large else SIZES) if size <= (target.most_pending or size)]
    widths = list(FEW_WIDTHS if large else WIDTHS)
    if len(sizes) < 2:
        raise CannotMeasure(f"'{target.name}' scores no more than {target.most_pending} tokens at once")
    turns: list[tuple[ProbedText, Drafter]] = [(text, probe) for probe in rows_probes(target, sizes, draft)]
    if draft is not None:
        most = draft.most_pending
        widths = [width for width in widths if most is None or 1 + LEVELS * width <= most]
        if len(widths) < 2:
            raise CannotMeasure(f"'{draft.name}' scores no more than {most} tokens at once")
        drafting = [LevelsProbe(draft, width, clock) for width in widths]
        drafted = begun_text(drafting[0])
        turns += [(drafted, probe) for probe in drafting]
    nodes = [*sizes, *widths]
    times, waited = np.full((2, ROUNDS[1], len(turns)), np.nan)
    start = clock()
    for turn in range(ROUNDS[1]):
        last = None
        for number, (where, probe) in enumerate(turns):
            if nodes[number] > LARGEST[min(turn, 2)]:
                continue
            # The first iteration after another probe's finds the caches cold, and several do after another text's.
            # For many tokens that is next to nothing.
            count = RUN if where is not last else 1 if nodes[number] > LARGEST[-1] else 2
            seconds = where.seconds(probe, (count + 1) // 2 if large else count)[-1]
            if isinstance(probe, LevelsProbe):
                seconds = probe.taken[-1]
            times[turn, number] = seconds
            waited[turn, number] = where.waited[-1]
            last = where
        if turn + 1 >= (1 if large else ROUNDS[0]) and (clock() - start) * (turn + 2) / (turn + 1) > limit:
            break
    costs, step = in_steps(times[: turn + 1], waited[: turn + 1])
    reading = 0.0 if draft is None else prompt_seconds(draft, clock)
    known = assembled(costs[: len(sizes)], costs[len(sizes) :], sizes, widths, reading / step)
    # How many guesses are looked for depends on what nodes cost, so these come last.
    features = None if draft is None else draft.feature_layers
    shared: dict[str, Any] = {"costs": known, "max_nodes": sizes[-1], "clock": clock, "features": features}
    host = {"guesses": GuessesProbe(**shared)}
    if draft is not None:
        host["overhead"] = DraftingProbe(draft, **shared)
    for probe in host.values():
        begun_text(probe).seconds(probe, 1 if large else max(2 * (turn + 1), FEWEST))
    shares = {name: probe.cost(step) for name, probe in host.items()}
    if draft is not None and not sampling.greedy:  # a drawn token takes longer to verify than one that is not drafted
        shares["overhead"] += round(max(texts[-1].rule.seconds - text.rule.seconds, 0.0) / step, 4)
    known = replace(known, **shares)  # type: ignore[arg-type]
    quiet = [each <= WAITED for text in texts for each in text.waited]
    return Measured(known, step, round(sum(quiet) / len(quiet), 2))


# ----------------------------------------------------------------------------------------------------------- watching
SLOW, FAST, TEXTS, LEAST = 1.5, 0.8, 3, 32.0
"""Costs are measured again where `TEXTS` texts one after another, each of at least so many greedy steps, took more than
`SLOW` times what the costs predict, or less than `FAST` times: other load can make texts slow, and measuring."""
LONGEST = 1024
"""Most tokens of a text that is watched: with a longer text every forward takes longer."""
AGAIN = 3
"""Most times that a process measures costs again."""


@dataclass
class _Watched:
    """Texts in a row that took another time than predicted, how often that had consequences, and the step before."""

    texts: int = 0
    times: int = 0
    step_seconds: float = 0.0


_watched: dict[str, _Watched] = {}


@torch.inference_mode()
def watched(loop: Loop, clock: Clock = time.perf_counter) -> str:
    """Run a loop whose drafter weighs measured costs, and have these measured again where its time speaks against them.

    The drafter says what it predicts (`Drafter.predicted`); of one that does not, no text is compared.

    Returns:
        why the text ended.
    """
    state, drafter = loop.state, loop.state.drafting
    reason = loop.step()  # reads the prompt, which is not part of any cost
    if reason is not None:
        return reason
    predicted, start = drafter.predicted(state.drafter_state), clock()
    reason = loop.run()
    seconds, steps = clock() - start, drafter.predicted(state.drafter_state) - predicted
    if steps >= LEAST and len(state.text) + len(loop.tokens) <= LONGEST:
        about = _depends_on(state.model, drafter.model, loop.sampling)
        known = None if about is None else _known.get(_key(about))
        if about is not None and known is not None:
            _compare(state.model.name, about, known, seconds / (steps * known.step_seconds))
    return reason


def _compare(name: str, about: dict[str, Any], known: Measured, ratio: float) -> None:
    """Note how a text's time compares with what was predicted; forget the costs after several that were off.

    Where measuring again finds the same step, the costs are not to blame, and stay.
    """
    key = _key(about)
    seen = _watched.setdefault(key, _Watched())
    seen.texts = seen.texts + 1 if not FAST <= ratio <= SLOW else 0
    same = FAST <= seen.step_seconds / known.step_seconds <= SLOW
    if seen.texts < TEXTS or seen.times >= AGAIN or same:
        return
    seen.texts, seen.times, seen.step_seconds = 0, seen.times + 1, known.step_seconds
    with _measuring:
        _known.pop(key, None)
        if _kept(about) == known:  # another process may have measured since
            with suppress(OSError):
                _path(key).unlink(missing_ok=True)
    logging.getLogger(__name__).warning(
        f"Texts of '{name}' take {ratio:.2f} times what its measured costs predict, so they are measured again."
    )


# ------------------------------------------------------------------------------------------------------------ keeping
_known: dict[str, Measured] = {}
"""What this process knows, by the name of its kept file."""
_measuring = threading.RLock()
"""Held while anything is measured: two threads would slow each other."""


def costs_of(
    target: LanguageModel, draft: LanguageModel | None = None, sampling: Sampling = GREEDY, *, patient: bool = False
) -> Costs:
    """Return what the parts of an iteration cost for a model on this machine; see `measured_here`."""
    return measured_here(target, draft, sampling, patient=patient).costs


def measured_here(
    target: LanguageModel, draft: LanguageModel | None = None, sampling: Sampling = GREEDY, *, patient: bool = False
) -> Measured:
    """Return the costs of a model on this machine, measured where they are not known yet; a line in the log says so.

    They are kept in `paths.cache_folder`, by what they depend on: sizes, dtypes, devices and engines of the
    models, the processor or card, threads, and versions. Costs of greedy and of sampled texts are measured apart. A
    model that is no `HFModel`, or has no room for the probes, has `ASSUMED` costs.

    Where other processes took the processors meanwhile, the next text has them measured once more, up to `TRIES` times
    in all; with `patient` that happens at once.
    """
    about = _depends_on(target, draft, sampling)
    if about is None:
        return UNKNOWN
    key = _key(about)
    with _measuring:
        found = _known.get(key) or _kept(about)
        while found is None or not found.settled:
            told = "once: about two seconds, or some fifteen forwards of a large model."
            if found is not None:
                told = f"once more: other processes took the processors in {1 - found.quiet:.0%} of the time."
            logging.getLogger(__name__).warning(f"Measuring what an iteration of '{target.name}' costs here, {told}")
            try:
                found = _quietest(found, measured(target, draft, sampling))
                _keep(_path(key), {"kind": "costs", "format": FORMAT, "of": about, **asdict(found)})
            except CannotMeasure as error:
                logging.getLogger(__name__).warning(
                    f"The costs of an iteration cannot be measured: {error}. Usual ones are assumed; give others as "
                    "costs=Costs(...)."
                )
                found = UNKNOWN
            if not patient:
                break
        _known[key] = found
        return found


def _quietest(before: Measured | None, now: Measured) -> Measured:
    """Return the costs to go on with after another measuring."""
    if before is None:
        return now
    return replace(max(before, now, key=lambda found: found.quiet), tries=before.tries + 1)


def _depends_on(target: LanguageModel, draft: LanguageModel | None, sampling: Sampling) -> dict[str, Any] | None:
    """Return all that costs depend on; None for models that they cannot be measured of."""
    for model in (target, draft):
        if model is not None:
            if not (isinstance(model, HFModel) and model.context >= ROOM):
                return None
            model.check_modules()  # which may choose another engine
            if model.awaited is not None:  # transformers' own forward, on a machine that is compiling
                return None
    return {
        "target": _described(target), "draft": None if draft is None else _described(draft),
        "sampled": not sampling.greedy, "filtered": sampling.top_k is not None or sampling.top_p is not None,
        "machine": _machine(target),
    }  # fmt: skip


def _key(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]


def _path(key: str) -> Path:
    return cache_folder() / "costs" / f"{key}.json"


def _described(model: Any) -> dict[str, Any]:
    """Return what the speed of a model depends on; the values of its weights are not among it."""
    config, engine, buffers = model.config, model.engine, getattr(model, "buffers", None)
    weights = [*model.model.parameters()]
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    return {
        "type": config.model_type, "layers": model.layers, "vocab_size": model.vocab_size,
        "drafted": None if model.drafted is None else len(model.drafted),
        "sizes": [getattr(config, name, None) for name in sizes],
        "parameters": sum(each.numel() for each in weights), "bytes": sum(each.nbytes for each in weights),
        "dtype": str(model.dtype), "quantisation": str(getattr(config, "quantization_config", None)),
        "devices": sorted({str(each.device) for each in weights}),
        "attention": model.model.config._attn_implementation, "engine": engine.name, "way": type(model).__name__,
        "buffers": [getattr(buffers, name, None) for name in ("sizes", "captures")], "features": model.feature_layers,
    }  # fmt: skip


def _machine(model: Any) -> dict[str, Any]:
    device = model.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    packages = ("dynatree-lib", "torch", "transformers", "numba")
    return {
        "device": device.type, "name": name, "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "versions": [_version(package) for package in packages],
    }  # fmt: skip


@cache
def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8", errors="replace").splitlines() if facts.exists() else []
    known = ("model name", "Hardware", "CPU implementer", "CPU part", "CPU variant")  # the others are of ARM
    names = {line.partition(":")[2].strip() for line in lines if line.startswith(known)}
    return ", ".join(sorted(names)) or platform.processor() or platform.machine()


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _kept(about: dict[str, Any]) -> Measured | None:
    """Return the kept costs of a model on this machine; None where no file has them."""
    try:
        body = json.loads(_path(_key(about)).read_text(encoding="utf-8"))
        same = (body["kind"], body["format"], body["of"]) == ("costs", FORMAT, json.loads(json.dumps(about)))
        found = Measured(Costs(**body["costs"]), float(body["step_seconds"]), float(body["quiet"]), int(body["tries"]))
        return found if same and found.costs.verify and 0 < found.step_seconds < math.inf else None
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return None


def _keep(path: Path, body: dict[str, Any]) -> None:
    """Keep costs, where the disk takes them; a reader sees a whole file or none."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(body, indent=1), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        logging.getLogger(__name__).warning(
            f"The costs of an iteration cannot be kept in {path.parent} ({error.strerror}), so every process measures "
            "them; set DYNATREE_CACHE to a folder that can be written to."
        )
