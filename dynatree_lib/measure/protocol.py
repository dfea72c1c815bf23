"""The protocol: every method on the same prompts in one run, interleaved, timed alone, recorded at once.

Prompt by prompt all methods run one after another, and the order rotates from prompt to prompt, so that no method
always goes first and a slow minute of the machine hits all of them. Timed runs are untraced; where time goes is asked
in separate traced runs. What the times amount to is left to `metrics`, how lines are stored to `records`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..decoding import Iteration
from ..models.huggingface import HFModel
from ..models.pairs import Pair
from ..sampling import Sampling
from .bandwidth import forward_bytes, measure_bandwidth
from .clock import known_objects_frozen, quiet_machine, synchronize
from .environment import describe_environment, describe_model, peak_rss_bytes, public_pair_name, public_text
from .methods import Variant, variants
from .metrics import Bound, MethodSummary, reference_label, summarize_records
from .prompts import BenchPrompt, Turns, prepare_prompts
from .records import Divergence, Failure, Header, Key, Line, Records, Run, Split, Writer, check_writable, read_records
from .runner import Completed, DrafterRunner, Runner, quiet
from .trace import Trace

if TYPE_CHECKING:
    import pandas as pd

NEAR_TIE = 1e-4
"""Top-2 margin of the target's logits below which a divergence is rounding (float32)."""
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

    def summaries(self, seed: int = 0) -> list[MethodSummary]:
        """One summary per method; the seed is that of the bootstrap."""
        return summarize_records(self.records, seed)

    def frame(self) -> pd.DataFrame:
        """Return one row per method: the columns of its `MethodSummary`, and its options.

        `method` is the label, `name` the method's name.
        """
        import pandas as pd

        rows = [{**one.options, **asdict(one), "method": one.label, "name": one.method} for one in self.summaries()]
        return pd.DataFrame(rows)

    def summary(self, label: str) -> MethodSummary:
        """The summary of one method; ValueError if it has no run."""
        found = {one.label: one for one in self.summaries()}
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
            "methods": [asdict(one) for one in self.summaries()],
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
        methods: `"ar,chain:length=6"`, or specs and `Variant`s.
        prompts: objects with `id`, `text`, `sha256` (of a `Workload`), plain texts, or `BenchPrompt`s.
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
        ValueError: before any work, for unknown methods or options, no prompts, prompts that with the budget do not fit
            the context, a file that cannot be written, or one of another setup.
    """
    run = _Benchmark(
        pair, variants(methods), prepare_prompts(pair, prompts, max_new_tokens), sampling or Sampling(), max_new_tokens,
        seed, warmup, repeats, ignore_eos, trace, bandwidth, profile, source, turns, clock, progress or quiet,
    )  # fmt: skip
    run.check()
    path = None if records is None else check_writable(Path(records))
    if path is not None and existing == "refuse" and path.exists():
        raise ValueError(
            f"{path} exists; resume it (existing='resume', --resume), replace it (existing='replace', --overwrite), "
            "or give another file."
        )
    if turns != "first":
        run.prompts = prepare_prompts(pair, prompts, max_new_tokens, turns)
    run.open(path, existing)
    try:
        with known_objects_frozen():
            run.measure()
    finally:
        run.close()
    return Results(run.records)


@dataclass
class _Benchmark:
    pair: Pair
    methods: list[Variant]
    prompts: list[BenchPrompt]
    sampling: Sampling
    budget: int
    seed: int
    warmup: int
    repeats: int
    ignore_eos: bool
    trace: int
    bandwidth: bool
    profile: str | None
    source: str
    turns: Turns
    clock: Callable[[], float]
    progress: Callable[[str], None]
    runners: dict[str, Runner] = field(default_factory=dict)
    writer: Writer | None = None

    def check(self) -> None:
        for name, value, least in (("repeats", self.repeats, 1), ("warmup", self.warmup, 0), ("trace", self.trace, 0)):
            if value < least:
                raise ValueError(f"{name} is {value}; give at least {least}.")
        carried = [one.label for one in self.methods if one.carries]
        if carried and self.repeats > 1:
            raise ValueError(
                f"'{carried[0]}' carries what it learns from text to text; with repeats={self.repeats} a text would be "
                "met again; measure it with one repeat."
            )
        self.runners = {one.label: one.runner(self.pair) for one in self.methods}
        for label, runner in self.runners.items():
            if isinstance(runner, DrafterRunner):
                try:
                    runner.check(self.sampling)
                except ValueError as error:
                    raise ValueError(f"'{label}' cannot run: {error}") from error
        self.device = self.pair.target.device

    @property
    def eos(self) -> tuple[int, ...]:
        return () if self.ignore_eos else self.pair.target.eos_token_ids

    # ------------------------------------------------------------------------------------------------------- records
    def open(self, path: Path | None, existing: Existing) -> None:
        header = Header(describe_environment(), self._setup(), datetime.now(UTC).isoformat(timespec="seconds"))
        self.records = Records(header)
        if path is None:
            return
        if path.exists() and existing in ("resume", "reuse"):
            try:
                self.records = _resumable(path, header)
            except ValueError as error:
                if existing == "resume":
                    raise
                self.progress(f"Measuring from the start: {error}")
            for note in self.records.notes:
                self.progress(note)
        self.writer = Writer(path, self.records)

    def close(self) -> None:
        if self.writer:
            self.writer.close()

    def _record(self, line: Line) -> None:
        self.records.add(line)
        if self.writer:
            self.writer.write(line)

    def _setup(self) -> dict[str, Any]:
        entries = [
            {"label": one.label, "name": one.name, "options": _plain(one.options), "lossless": one.method.lossless,
             "draft": one.method.draft}
            for one in self.methods
        ]  # fmt: skip
        setup = {
            "pair": public_pair_name(self.pair),
            "target": {**describe_model(self.pair.target), "forward_bytes": forward_bytes(self.pair.target)},
            "draft": {**describe_model(self.pair.draft), "forward_bytes": forward_bytes(self.pair.draft)},
            "dtype": str(self.pair.target.dtype).removeprefix("torch."),
            "methods": entries,
            "workload": self.source,
            "prompts": [{"id": one.id, "sha256": one.sha256, "tokens": len(one.ids)} for one in self.prompts],
            "max_new_tokens": self.budget,
            "ignore_eos": self.ignore_eos,
            "eos_token_ids": list(self.pair.target.eos_token_ids),
            "turns": _TURNS[self.turns],
            "eos_rule": "EOS is an ordinary token: every run goes to the budget"
            if self.ignore_eos
            else "a text ends at the target's EOS or at the budget",
            "sampling": asdict(self.sampling),
            "seed": self.seed,
            "warmup": self.warmup,
            "warmup_tokens": min(WARMUP_TOKENS, self.budget),
            "repeats": self.repeats,
            "traced_prompts": self.trace,
            "trace": "draft and verify are the models' forwards, host is everything else",
            "order": "interleaved prompt by prompt, first method rotated",
            "near_tie_margin": NEAR_TIE,
            "profile": self.profile,
        }
        names = Header({}, {"methods": entries})
        setup["reference"] = reference_label(names, "hf-generate") or reference_label(names, "ar")
        return setup

    # --------------------------------------------------------------------------------------------------- the protocol
    def measure(self) -> None:
        done = set(self.records.runs)
        anew = {
            item[0].label for item in self._schedule() if item[0].carries and self._key(*item) not in done
        }  # a text begins where the one before it ended
        todo = [item for item in self._schedule() if self._key(*item) not in done or item[0].label in anew]
        self._warm_up({one.label for one, _, _ in todo})
        self._memory("before", bool(todo))
        for number, (one, prompt, repeat) in enumerate(todo, 1):
            line = self._attempt(one, prompt, repeat)
            self._record(line)
            self.progress(f"[{number}/{len(todo)}] {one.label} on {prompt.id}: {_told(line)}")
        self._measure_disturbed_again(todo)
        self._memory("after", bool(todo))
        self._compare()
        self._trace()

    def _measure_disturbed_again(self, measured: Sequence[tuple[Variant, BenchPrompt, int]]) -> None:
        """Repeat the runs that something else on the machine disturbed, in `AGAIN` passes at most; the latest counts.

        Methods that carry what they learn are left as they are, because their texts depend on their order.
        """
        for attempt in range(1, AGAIN + 1):
            frame = self.records.frame()
            if frame.empty or not frame["disturbed"].any():
                return
            keys = set(frame.loc[frame["disturbed"], ["method", "prompt", "repeat"]].itertuples(index=False, name=None))
            todo = [item for item in measured if self._key(*item) in keys and not item[0].carries]
            for variant, prompt, repeat in todo:
                line = self._attempt(variant, prompt, repeat)
                self.progress(f"disturbed, again ({attempt} of {AGAIN}): {variant.label} on {prompt.id}: {_told(line)}")
                if isinstance(line, Run):
                    self._record(line)

    def _memory(self, when: str, wanted: bool) -> None:
        """Measure the bandwidth of memory, which bounds plain decoding."""
        if not (self.bandwidth and wanted):
            return
        self.progress(f"bandwidth of the memory, {when} the runs")
        try:
            with quiet_machine(self.device):
                for line in measure_bandwidth(self.device, forward_bytes(self.pair.target), when):
                    self._record(line)
        except Exception as error:  # the runs stand without a bound
            text = public_text(f"{type(error).__name__}: {error}")
            self.records.notes.append(f"The bandwidth {when} the runs was not measured: {text}")

    def _schedule(self) -> Iterator[tuple[Variant, BenchPrompt, int]]:
        for number, prompt in enumerate(self.prompts):
            for repeat in range(self.repeats):
                first = (number + repeat) % len(self.methods)
                for one in [*self.methods[first:], *self.methods[:first]]:
                    yield one, prompt, repeat

    def _key(self, one: Variant, prompt: BenchPrompt, repeat: int) -> Key:
        return one.label, prompt.id, repeat

    def _warm_up(self, labels: set[str]) -> None:
        for number in range(self.warmup):
            prompt = self.prompts[number % len(self.prompts)]
            for one in self.methods:
                if one.label in labels:
                    self.progress(f"warm-up: {one.label} on {prompt.id}")
                    with contextlib.suppress(Exception):  # the timed run will meet the error again and record it
                        self._call(self.runners[one.label], prompt, 0, min(WARMUP_TOKENS, self.budget), quiet)

    def _attempt(self, one: Variant, prompt: BenchPrompt, repeat: int) -> Run | Failure:
        try:
            return self._timed(one, prompt, repeat)
        except Exception as error:  # whatever one method does, the others are still measured
            text = public_text(f"{type(error).__name__}: {error}")
            return Failure(one.label, prompt.id, repeat, text)

    def _timed(self, one: Variant, prompt: BenchPrompt, repeat: int) -> Run:
        emissions: list[list[float]] = []
        with quiet_machine(self.device):
            start = self.clock()
            done = self._call(
                self.runners[one.label], prompt, repeat, self.budget,
                lambda tokens: emissions.append([self.clock() - start, len(tokens)]),
            )  # fmt: skip
            synchronize(self.device)
            seconds = self.clock() - start
        return Run(
            one.label, prompt.id, repeat, seconds, done.tokens, emissions, done.forwards, done.finish_reason,
            **_shapes(done.iterations), counters=done.counters, kv_entries=done.kv_entries,
            peak_device_bytes=torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None,
            peak_rss_bytes=peak_rss_bytes(),
        )  # fmt: skip

    def _call(
        self, runner: Runner, prompt: BenchPrompt, repeat: int, budget: int, on_tokens: Callable[[list[int]], None]
    ) -> Completed:
        return runner(
            prompt.ids,
            max_new_tokens=budget,
            eos_token_ids=self.eos,
            on_tokens=on_tokens,
            sampling=self.sampling,
            seed=self.seed + repeat,
        )

    # -------------------------------------------------------------------------------------------------- after the runs
    def _compare(self) -> None:
        """Compare every greedy text with the reference's."""
        reference = self.records.header.setup["reference"]
        if reference is None or not self.sampling.greedy:
            return
        prompts = {one.id: one for one in self.prompts}
        for key, run in self.records.runs.items():
            expected = self.records.runs.get((reference, run.prompt, 0))
            if expected is not None and run.tokens != expected.tokens and key not in self.records.divergences:
                self._record(divergence(self.pair.target, prompts[run.prompt].ids, expected, run))

    def _trace(self) -> None:
        for number, prompt in enumerate(self.prompts[: self.trace]):
            for one in self.methods:
                if one.method.traced and not one.carries and (one.label, prompt.id, 0) not in self.records.splits:
                    self.progress(f"traced run: {one.label} on {prompt.id}")
                    try:
                        self._record(self._split(one, prompt, keep_events=number == 0))
                    except Exception as error:  # the timed runs stand, and the note says why there is no split
                        text = public_text(f"{type(error).__name__}: {error}")
                        self.records.notes.append(f"The traced run of {one.label} on {prompt.id} failed: {text}")

    def _split(self, one: Variant, prompt: BenchPrompt, keep_events: bool) -> Split:
        trace = Trace(self.clock, lambda: synchronize(self.device))
        runner = one.runner(self.pair, trace.instrument)
        with quiet_machine(self.device):
            trace.begin()
            done = self._call(runner, prompt, 0, self.budget, trace.on_tokens)
            parts = trace.parts(trace.now())
        events = list(trace.events) if keep_events else []
        return Split(one.label, prompt.id, sum(parts.values()), **parts, iterations=done.forwards, events=events)


def _resumable(path: Path, header: Header) -> Records:
    records = read_records(path)
    differences = records.header.differences(header)
    if differences:
        raise ValueError(
            f"{path} was measured under another setup and cannot be resumed; it differs in {'; '.join(differences)}. "
            "Give another file, or replace it (existing='replace', --overwrite)."
        )
    return records


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}


def _shapes(iterations: list[Iteration] | None) -> dict[str, list[int] | None]:
    if iterations is None:
        return dict.fromkeys(("nodes", "accepted", "depths", "side_nodes"))
    return {
        "nodes": [len(one.tree) - 1 for one in iterations],
        "accepted": [len(one.verdict.path) for one in iterations],
        "depths": [one.tree.depth for one in iterations],
        "side_nodes": [one.side_nodes for one in iterations],
    }


def _told(line: Run | Failure) -> str:
    if isinstance(line, Failure):
        return f"failed ({line.error})"
    return f"{len(line.tokens)} tokens in {line.seconds:.2f} s, {len(line.tokens) / line.seconds:.1f} tokens/s"


@torch.inference_mode()
def divergence(target: HFModel, prompt_ids: Sequence[int], expected: Run, run: Run) -> Divergence:
    """Where a run leaves the reference's text, and the target's top-2 margin there, from one forward."""
    pairs = zip(expected.tokens, run.tokens, strict=False)
    shorter = min(len(expected.tokens), len(run.tokens))
    index = next((place for place, (one, other) in enumerate(pairs) if one != other), shorter)
    ids = torch.tensor([[*prompt_ids, *expected.tokens[:index]]], device=target.device)
    logits = target.model(ids, use_cache=False, logits_to_keep=1).logits[0, -1, : target.vocab_size]
    best, second = logits.double().topk(2).values.tolist()
    at = [run.tokens[index] if index < len(run.tokens) else None for run in (expected, run)]
    behind = [torch.inf if token is None else best - float(logits[token]) for token in at]
    near = max(behind) < NEAR_TIE  # both texts chose a token that is practically the best
    return Divergence(run.method, run.prompt, run.repeat, index, at[0], at[1], best - second, near)
