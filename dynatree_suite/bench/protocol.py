"""The protocol: every method on the same prompts in one run, interleaved, timed alone, recorded at once.

Prompt by prompt all methods run one after another, and the order rotates from prompt to prompt, so that no method
always goes first and a slow minute of the machine hits all of them. Timed runs are untraced; where time goes is asked
in separate traced runs. What the times amount to is left to `metrics`, how lines are stored to `records`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args

import pandas as pd
import torch

from dynatree_lib import measuring
from dynatree_lib.checks import chosen, of_kind, whole
from dynatree_lib.costs import Costs
from dynatree_lib.models.base import LanguageModel
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import Sampling

from ..files import sole_writer
from .bandwidth import forward_bytes, measure_bandwidth
from .clock import known_objects_frozen, quiet_machine, rotated, synchronize
from .environment import (
    describe_draft,
    describe_environment,
    describe_model,
    peak_rss_bytes,
    public_pair_name,
    public_text,
)
from .memory import out_of_memory, ran_out
from .methods import Variant, variants
from .metrics import Bound, reference_label, summarize_records
from .prompts import BenchPrompt, Turns, prepare_prompts
from .records import Divergence, Failure, Header, Key, Records, Run, Split, check_writable, read_records
from .runner import Completed, DrafterRunner, OnTokens, Runner, quiet
from .trace import Trace

NEAR_TIE = 1e-4
"""Margin of the target's logits up to which a divergence is rounding (float32)."""
NEAR_STEPS = 2
"""Steps of the target's dtype at its best logit up to which it is, too: each of two logits is off by half a step or
more in each of two runs."""
SEEDS = 1009
"""How far the seeds of a prompt lie from those of the prompt before it: texts of one seed draw the same numbers at the
same places, and intervals over prompts take prompts for independent."""
AGAIN = 2
"""Passes in which disturbed runs (`statistics.disturbed`) are measured again."""
WARMUP_TOKENS = 32
"""Most tokens of an untimed run."""

_TURNS = {
    "first": "the first of each prompt",
    "all": "all turns; each further turn is a prompt of its own, after the target's greedy replies to those before it "
    "(plain decoding, to EOS or the budget), the same for every method",
}
Existing = Literal["refuse", "resume", "replace", "reuse"]


@dataclass
class Results:
    """What a benchmark found: its records, and how to read them.

    Attributes:
        records: header and lines; `read_results` gives the same from a file.
    """

    records: Records

    @cached_property
    def _summaries(self) -> list[dict[str, Any]]:
        return summarize_records(self.records)

    def summaries(self) -> list[dict[str, Any]]:
        """One dictionary per method (`metrics.summarize_records`), of the records as they are at the first call."""
        return [dict(one) for one in self._summaries]

    def rows(self, labels: Collection[str] | None = None) -> list[dict[str, Any]]:
        """Return one dictionary per method, its summary and its options, whose values keep their types.

        `method` is the label; `name` the method's name. Without `labels` all methods, in the order of the run.
        """
        return [
            {**{name: tuple(v) if isinstance(v, list) else v for name, v in one["options"].items()},
             **one, "method": one["label"], "name": one["method"]}
            for one in self.summaries() if labels is None or one["label"] in labels
        ]  # fmt: skip

    def frame(self) -> pd.DataFrame:
        """Return the `rows` of all methods."""
        return pd.DataFrame(self.rows())

    def summary(self, label: str) -> dict[str, Any]:
        """The summary of one method; ValueError if it has no run."""
        found = {one["label"]: one for one in self.summaries()}
        if label not in found:
            raise ValueError(f"There is no run of '{label}'; methods with runs: {', '.join(found) or 'none'}.")
        return found[label]

    def to_json(self) -> dict[str, Any]:
        """Environment, setup, one object per method, bandwidth, failures and notes; ready for `json.dump`."""
        records = self.records
        return {
            "environment": records.header.environment,
            "setup": records.header.setup,
            "started": records.header.started,
            "methods": self.summaries(),
            "bandwidth": self.bandwidth,
            "errors": [asdict(one) for one in records.failures.values()],
            "notes": records.notes,
            "process_peak_rss_bytes": max((run.peak_rss_bytes or 0 for run in records.runs.values()), default=0),
        }

    @property
    def bandwidth(self) -> dict[str, Any] | None:
        """What bounds plain decoding (`metrics.Bound`) and what was measured for it; None where nothing was."""
        bound = Bound.of(self.records)
        if bound is None:
            return None
        return {
            "bytes_per_second": bound.bytes_per_second,
            "weight_bytes": bound.weight_bytes,
            "cache_bytes_per_row": bound.entry_bytes,
            "tokens_per_second": bound.tokens_per_second(self.records.header.setup["max_new_tokens"]),
            "measured": [asdict(one) for one in self.records.bandwidths],
        }


def read_results(path: str | Path) -> Results:
    """Results from a records file; errors as for `records.read_records`."""
    return Results(read_records(path))


def run_benchmark(
    pair: Pair,
    methods: str | Sequence[str | Variant],
    prompts: Sequence[Any],
    *,
    max_new_tokens: int = 128,
    sampling: Sampling | None = None,
    seed: int = 0,
    warmup: int = 1,
    repeats: int = 1,
    ignore_eos: bool = True,
    trace: int = 0,
    bandwidth: bool = False,
    records: str | Path | None = None,
    existing: Existing = "refuse",
    progress: Callable[[str], None] | None = None,
    profile: str | None = None,
    source: str = "prompts given by the caller",
    turns: Turns = "first",
    clock: Callable[[], float] = time.perf_counter,
) -> Results:
    """Measure methods against each other on one pair.

    Args:
        pair: target and draft.
        methods: `"ar,chain:length=6"`, or a list whose items are specs or of type `Variant`.
        prompts: objects with `id`, `text`, `sha256` (of a `Workload`), plain texts, or items of type `BenchPrompt`.
        max_new_tokens: budget of every run.
        sampling: greedy by default; otherwise texts are not compared.
        seed: of sampling; run r uses seed + r. Greedy runs draw nothing.
        warmup: untimed runs per method, on the first prompts, of at most `WARMUP_TOKENS` tokens.
        repeats: timed runs per method and prompt.
        ignore_eos: run every method to the budget, so that all generate equally much; otherwise the target's EOS ends
            a text.
        trace: number of first prompts on which a further, traced run splits the time of the methods that allow it.
        bandwidth: measure the memory's speed before and after the timed runs, for the bound on plain decoding
            (`metrics.Bound`); takes a second, and up to 2 GiB on a GPU.
        records: file that gets a line per run as soon as it is done.
        existing: what to do if that file exists: "refuse", "resume" (skip what is in it; header must match),
            "replace", or "reuse" (resume where the header matches, replace otherwise: what a notebook wants).
        progress: called with a line of text per run.
        profile: name of the profile, for the record.
        source: sentence on where the prompts come from, for the record.
        turns: "all" measures each further turn of a prompt too, as a prompt of its own after the target's own greedy
            replies (`prepare_prompts`), which are decoded untimed before anything is measured, also on resuming.
        clock: seconds.

    Raises:
        TypeError: before any work, for a pair or a sampling of another kind.
        ValueError: before any work, for unknown methods or options, no prompts, prompts that with the budget do not fit
            the context, a file that cannot be written, or one of another setup.
        RuntimeError: before any work, where another run writes to that file.
    """
    of_kind("The pair", pair, Pair, "load one with load_pair")
    for role in ("target", "draft"):
        of_kind(f"The pair's {role}", getattr(pair, role), HFModel, "a benchmark takes transformers models, as HFModel")
    of_kind("sampling", sampling, (Sampling, NoneType), "give Sampling(temperature=...), or None for greedy decoding")
    for name, value, least in (("repeats", repeats, 1), ("warmup", warmup, 0), ("trace", trace, 0)):
        whole(name, value, least)
    whole("seed", seed)
    chosen("existing", existing, get_args(Existing))
    compared, ready = variants(methods), prepare_prompts(pair, prompts, max_new_tokens)
    sampling, progress = sampling or Sampling(), progress or quiet
    runners = {one.label: checked_runner(pair, one, sampling, repeats) for one in compared}
    path = None if records is None else check_writable(Path(records))
    _check_new(path, existing)
    if turns != "first":
        ready = prepare_prompts(pair, prompts, max_new_tokens, turns)
    entries = [
        {"label": one.label, "name": one.name, "options": plain(one.options), "lossless": one.method.lossless,
         "draft": one.method.draft}
        for one in compared
    ]  # fmt: skip
    setup = {
        "pair": public_pair_name(pair),
        "target": {**describe_model(pair.target), "forward_bytes": forward_bytes(pair.target)},
        "draft": {**describe_draft(pair.draft), "forward_bytes": forward_bytes(pair.draft)},
        "dtype": str(pair.target.dtype).removeprefix("torch."),
        "methods": entries,
        "reference": reference_label(entries, "hf-generate") or reference_label(entries, "ar"),
        "workload": source,
        "prompts": [one.row for one in ready],
        "max_new_tokens": max_new_tokens,
        "ignore_eos": ignore_eos,
        "eos_token_ids": list(pair.target.eos_token_ids),
        "turns": _TURNS[turns],
        "eos_rule": "EOS is an ordinary token: every run goes to the budget"
        if ignore_eos
        else "a text ends at the target's EOS or at the budget",
        "sampling": asdict(sampling),
        "seed": seed,
        "seeds_per_prompt": SEEDS,
        "warmup": warmup,
        "warmup_tokens": min(WARMUP_TOKENS, max_new_tokens),
        "repeats": repeats,
        "traced_prompts": trace,
        "trace": "draft and verify are the models' forwards, host is everything else",
        "order": "interleaved prompt by prompt, first method rotated",
        "near_tie_margin": NEAR_TIE,
        "near_tie_steps": NEAR_STEPS,
        "profile": profile,
    }
    if pair.independent is not None and any(one.method.draft_of(one.options) == "common_draft" for one in compared):
        setup["common_draft"] = describe_draft(pair.independent)
    header = Header(describe_environment(), setup, datetime.now(UTC).isoformat(timespec="seconds"))
    with sole_writer(path), known_objects_frozen():
        found = _begun(path, header, existing, progress)
        _price(runners, sampling, found.header.setup.setdefault("costs", {}))
        with found.kept_in(path):
            _Benchmark(pair, compared, runners, ready, sampling, found, clock, progress).measure(bandwidth)
    return Results(found)


def checked_runner(pair: Pair, one: Variant, sampling: Sampling, repeats: int) -> Runner:
    """Return the method, ready to run; raise ValueError if it cannot run under these settings."""
    if one.carries and repeats > 1:
        raise ValueError(
            f"'{one.label}' carries what it learns from text to text; with repeats={repeats} a text would be met "
            "again; measure it with one repeat."
        )
    runner = one.runner(pair)
    check = getattr(runner, "check", None)
    if check is not None:
        try:
            check(sampling)
        except ValueError as error:
            raise ValueError(f"'{one.label}' cannot run: {error}") from error
    return runner


def _price(runners: Mapping[str, Runner], sampling: Sampling, known: dict[str, str]) -> None:
    """Give drafters that ask for measured costs those that are `known`, by target and draft; add what is measured."""

    def measure(target: LanguageModel, draft: LanguageModel | None) -> Costs:
        key = " + ".join(Path(model.name).name for model in (target, draft) if model is not None)
        if key not in known:
            known[key] = str(measuring.costs_of(target, draft, sampling, patient=True))
        return Costs.read(known[key])

    for runner in runners.values():
        if isinstance(runner, DrafterRunner):
            runner.drafter = runner.drafter.priced(partial(measure, runner.target))


def _check_new(path: Path | None, existing: Existing) -> None:
    if path is not None and existing == "refuse" and path.exists():
        raise ValueError(
            f"{path} exists; resume it (existing='resume', --resume), replace it (existing='replace', --overwrite), "
            "or give another file."
        )


def _begun(path: Path | None, header: Header, existing: Existing, progress: Callable[[str], None]) -> Records:
    """Return what an earlier run left in the file, if it is to be resumed; otherwise records without a line."""
    _check_new(path, existing)  # once more: another run may have made the file since
    if path is None or not path.exists() or existing not in ("resume", "reuse"):
        return Records(header)
    try:
        records = read_records(path)
        if differences := records.header.differences(header):
            raise ValueError(
                f"{path} was measured under another setup and cannot be resumed; it differs in "
                f"{'; '.join(differences)}. Give another file, or replace it (existing='replace', --overwrite)."
            )
    except ValueError as error:
        if existing == "resume":
            raise
        progress(f"Measuring from the start: {error}")
        return Records(header)
    for note in records.notes:
        progress(note)
    return records


@dataclass
class _Benchmark:
    """A run under way; its settings are those of the records' header."""

    pair: Pair
    methods: list[Variant]
    runners: dict[str, Runner]
    prompts: list[BenchPrompt]
    sampling: Sampling
    records: Records
    clock: Callable[[], float]
    progress: Callable[[str], None]

    def __post_init__(self) -> None:
        self.setup, self.device = self.records.header.setup, self.pair.target.device
        self.prompt_ids = {one.id: one.ids for one in self.prompts}
        apart = self.setup.get("seeds_per_prompt", 0)  # older files go on with one seed for all prompts
        self.seeds = {one.id: self.setup["seed"] + apart * number for number, one in enumerate(self.prompts)}

    def measure(self, bandwidth: bool) -> None:
        schedule, done = list(self._schedule()), set(self.records.runs)
        carrying = {one.label for one in self.methods if one.carries}
        anew = {key[0] for key in schedule if key not in done} & carrying  # a text begins where the one before it ended
        todo = [key for key in schedule if key not in done or key[0] in anew]
        self._warm_up({label for label, _, _ in todo})
        if bandwidth and todo:
            self._memory("before")
        for number, key in enumerate(todo, 1):
            line = self._attempt(key)
            self.records.add(line)
            self._tell(line, f"[{number}/{len(todo)}]")
        self._measure_disturbed_again([key for key in todo if key[0] not in carrying])
        if bandwidth and todo:
            self._memory("after")
        self._compare()
        self._trace()

    def _schedule(self) -> Iterator[Key]:
        for number, prompt in enumerate(self.prompts):
            for repeat in range(self.setup["repeats"]):
                for one in rotated(self.methods, number + repeat):
                    yield one.label, prompt.id, repeat

    def _warm_up(self, labels: set[str]) -> None:
        for number in range(self.setup["warmup"]):
            prompt = self.prompts[number % len(self.prompts)].id
            for one in (one for one in self.methods if one.label in labels):
                # What a carrying method learns here is dropped: it would meet this text again.
                runner = one.runner(self.pair) if one.carries else self.runners[one.label]
                self.progress(f"warm-up: {one.label} on {prompt}")
                with contextlib.suppress(Exception):  # the timed run will meet the error again and record it
                    self._call(runner, prompt, 0, quiet, self.setup["warmup_tokens"])

    def _memory(self, when: str) -> None:
        """Measure the bandwidth of memory, which bounds plain decoding."""
        self.progress(f"bandwidth of the memory, {when} the runs")
        with self._noted(f"The bandwidth {when} the runs was not measured"), quiet_machine(self.device):
            for line in measure_bandwidth(self.device, forward_bytes(self.pair.target), when):
                self.records.add(line)

    @contextlib.contextmanager
    def _noted(self, sentence: str) -> Iterator[None]:
        """Go on without what fails, and note why: the timed runs stand."""
        try:
            yield
        except Exception as error:
            self.records.notes.append(f"{sentence}: {_said(error, str(error))}")

    def _tell(self, line: Run | Failure, place: str) -> None:
        if isinstance(line, Failure):
            told = f"failed ({line.error})"
        else:
            speed = len(line.tokens) / line.seconds
            told = f"{len(line.tokens)} tokens in {line.seconds:.2f} s, {speed:.1f} tokens/s"
        self.progress(f"{place} {line.method} on {line.prompt}: {told}")

    def _measure_disturbed_again(self, measured: Sequence[Key]) -> None:
        """Repeat the runs that something else on the machine disturbed, in `AGAIN` passes at most; the latest counts.

        Methods that carry what they learn are left as they are, because their texts depend on their order.
        """
        for attempt in range(1, AGAIN + 1):
            frame = self.records.frame()
            if frame.empty or not frame["disturbed"].any():
                return
            keys = set(frame.loc[frame["disturbed"], ["method", "prompt", "repeat"]].itertuples(index=False, name=None))
            for key in (key for key in measured if key in keys):
                line = self._attempt(key)
                self._tell(line, f"disturbed, again ({attempt} of {AGAIN}):")
                if isinstance(line, Run):
                    self.records.add(line)

    def _attempt(self, key: Key) -> Run | Failure:
        label, prompt, repeat = key
        emissions: list[list[float]] = []
        try:
            with quiet_machine(self.device):
                start = self.clock()
                done = self._call(
                    self.runners[label], prompt, repeat,
                    lambda tokens: emissions.append([self.clock() - start, len(tokens)]),
                )  # fmt: skip
                synchronize(self.device)
                seconds = self.clock() - start if done.seconds is None else done.seconds
            on_device = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None
            peaks = {"peak_device_bytes": on_device, "peak_rss_bytes": peak_rss_bytes()}
            return done.run(key, seconds, done.emissions or emissions, **peaks)
        except Exception as error:  # whatever one method does, the others are still measured
            return Failure(*key, _said(error, out_of_memory(error, self.pair) if ran_out(error) else str(error)))

    def _call(
        self, runner: Runner, prompt: str, repeat: int, on_tokens: OnTokens, budget: int | None = None
    ) -> Completed:
        eos = () if self.setup["ignore_eos"] else self.pair.target.eos_token_ids
        return runner(
            self.prompt_ids[prompt], max_new_tokens=budget or self.setup["max_new_tokens"], eos_token_ids=eos,
            on_tokens=on_tokens, sampling=self.sampling, seed=self.seeds[prompt] + repeat,
        )  # fmt: skip

    # -------------------------------------------------------------------------------------------------- after the runs
    def _compare(self) -> None:
        """Compare every greedy text with the reference's."""
        reference = self.setup["reference"]
        if reference is None or not self.sampling.greedy:
            return
        for key, run in self.records.runs.items():
            expected = self.records.runs.get((reference, run.prompt, 0))
            if expected is not None and run.tokens != expected.tokens and key not in self.records.divergences:
                steps = self.setup.get("near_tie_steps", 0)  # older files go on with their own rule
                self.records.add(divergence(self.pair.target, self.prompt_ids[run.prompt], expected, run, steps))

    def _trace(self) -> None:
        for number, prompt in enumerate(self.prompts[: self.setup["traced_prompts"]]):
            for one in self.methods:
                if one.method.traced and not one.carries and (one.label, prompt.id, 0) not in self.records.splits:
                    self.progress(f"traced run: {one.label} on {prompt.id}")
                    with self._noted(f"The traced run of {one.label} on {prompt.id} failed"):
                        self.records.add(self._split(one, prompt.id, keep_events=number == 0))

    def _split(self, one: Variant, prompt: str, keep_events: bool) -> Split:
        trace = Trace(self.clock, lambda: synchronize(self.device))
        runner = one.runner(self.pair, trace.instrument)
        with quiet_machine(self.device):
            trace.begin()
            done = self._call(runner, prompt, 0, trace.on_tokens)
            parts = trace.parts(trace.now())
        events = list(trace.events) if keep_events else []
        return Split(one.label, prompt, sum(parts.values()), **parts, iterations=done.forwards, events=events)


def _said(error: Exception, told: str) -> str:
    return public_text(f"{type(error).__name__}: {told}")


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON has them."""
    told = {name: str(value) if isinstance(value, Costs) else value for name, value in options.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}


def divergence(
    target: HFModel, prompt_ids: Sequence[int], expected: Run, run: Run, steps: int = NEAR_STEPS
) -> Divergence:
    """Where a run leaves the reference's text (`parting`)."""
    place = parting(target, prompt_ids, expected.tokens, run.tokens, steps)
    return Divergence(run.method, run.prompt, run.repeat, **asdict(place))


@dataclass(frozen=True)
class Parting:
    """Where a text leaves another; fields as those of `records.Divergence`."""

    index: int
    expected: int | None
    found: int | None
    margin: float
    near_tie: bool


@torch.inference_mode()
def parting(
    target: HFModel, prompt_ids: Sequence[int], expected: Sequence[int], text: Sequence[int], steps: int = NEAR_STEPS
) -> Parting:
    """Where a text leaves another one, and the target's top-2 margin there, from one forward.

    It is a near-tie where both texts go on with a token whose logit is at most `NEAR_TIE`, or so many steps of the
    target's dtype, below the best.
    """
    pairs = zip(expected, text, strict=False)
    shorter = min(len(expected), len(text))
    index = next((place for place, (one, other) in enumerate(pairs) if one != other), shorter)
    ids = torch.tensor([[*prompt_ids, *expected[:index]]], device=target.device)
    logits = target.model(ids, use_cache=False, logits_to_keep=1).logits[0, -1, : target.vocab_size]
    best, second = logits.cpu().double().topk(2).values.tolist()
    at = [tokens[index] if index < len(tokens) else None for tokens in (expected, text)]
    behind = [torch.inf if token is None else best - float(logits[token]) for token in at]
    step = torch.finfo(target.dtype).eps * 2.0 ** (math.frexp(best)[1] - 1)
    near = max(behind) <= max(NEAR_TIE, steps * step)
    return Parting(index, at[0], at[1], best - second, near)
