"""From records to the numbers of a table: speed with bootstrap intervals, acceptance, latency, memory, equality.

Pure functions of records; nothing is measured here. Intervals are 95 % percentile bootstrap intervals over prompts,
because prompts, not runs, are what another benchmark would draw anew; the turns of a conversation are drawn together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..summary import repeated_ngrams
from .records import TURN, Divergence, Header, Records, Run, Split

RESAMPLES = 2000
Interval = tuple[float, float]


@dataclass(frozen=True)
class MethodSummary:
    """One method of one benchmark. Times in seconds, memory in bytes; None where a method does not show a quantity.

    Attributes:
        method, label, options, lossless: which method, as configured.
        prompts, runs, failures: how many were measured, and how many runs raised.
        tokens: generated in all runs.
        iterations: target forwards that decided tokens, in all runs.
        tokens_per_second: all tokens / all seconds, so that it agrees with the speedups, with its interval.
        tokens_per_second_mean: mean over prompts of each prompt's tokens per second, with its interval;
            tokens_per_second_std: the standard deviation of the same.
        speedup_hf_generate: tokens_per_second over that of `hf-generate` on the same prompts (with equal token counts:
            the ratio of total times), with its paired interval. speedup_ar, speedup_ar_fast: the same over `ar`, and
            over `ar-fast`, the strongest plain loop.
        bound_ratio: tokens_per_second over those of `Bound` for the same prompts and lengths; below 1 for plain
            decoding, and above it only where an iteration keeps several tokens. None where no bandwidth was measured.
        ttft: time to the first token, mean over runs. tpot: time per token after the first, pooled.
        seconds_per_iteration: between the first emission and the last, pooled.
        iteration_cost: seconds_per_iteration in units of `hf-generate`'s tpot, one greedy step.
        tokens_per_iteration, committed_path_length: committed tokens per iteration, the bonus token included.
        accepted_path_length: accepted drafted tokens per iteration, the bonus token not included.
        hit_rate: HR of PTD's section 4.1: share of iterations that kept at least one drafted token.
        accept_length: AL, tokens of such an iteration, the bonus token included; None where nothing was ever kept.
            Pooled over all iterations, DE = HR * AL + (1 - HR), with tokens_per_iteration as DE.
        draft_rows: Dft, rows scored beside the tree per iteration, for drafting within the target's forward. What a
            draft model reads is not among them.
        verify_rows, nodes_per_iteration: Ver, drafted nodes of the tree per iteration, node 0 not counted.
        draft_levels: forwards of the draft per iteration; None for methods without one, and for Hugging Face's.
        acceptance: accepted drafted tokens / drafted nodes.
        acceptance_published: committed tokens / drafted nodes, what DynaTree's first paper prints as "Accept.".
        depth_use: DynaTree adaptive's "Accept.": tokens per iteration, the bonus token included, over D + 2, D_0 + 2 or
            K of the method as configured (`depth_divisor`). Not a share of anything drafted, and above 1 where D_max
            exceeds D_0 and paths are long.
        repeated_4grams: share of a text's 4-grams that occurred in it before, mean over prompts.
        after_eos: share of the tokens that stand after a text's first EOS (0 unless EOS is ignored).
        identical: prompts whose text equals the reference's, "n/N"; None when sampling or without a reference.
        near_ties: divergent runs where the target's top-2 margin is below the limit.
        divergences: every run that left the reference's text.
        weight_bytes: of the models the method uses. cache_bytes: keys and values of the target at the fullest moment
            (and of the draft, taken as equally long), computed from rows and shapes; buffers may be larger.
        peak_device_bytes: most that was allocated on the GPU in any run, both models included.
        split: shares of draft, verify and host (`records.Split`) in traced runs, and seconds per iteration there.
        counters: further counts, summed.
    """

    method: str
    label: str
    options: dict[str, Any]
    lossless: bool
    prompts: int
    runs: int
    failures: int
    tokens: int
    iterations: int
    tokens_per_second: float
    tokens_per_second_interval: Interval
    tokens_per_second_mean: float
    tokens_per_second_mean_interval: Interval
    tokens_per_second_std: float
    speedup_hf_generate: float | None
    speedup_hf_generate_interval: Interval | None
    speedup_ar: float | None
    speedup_ar_interval: Interval | None
    speedup_ar_fast: float | None
    speedup_ar_fast_interval: Interval | None
    bound_ratio: float | None
    ttft: float
    tpot: float | None
    seconds_per_iteration: float | None
    iteration_cost: float | None
    tokens_per_iteration: float
    committed_path_length: float
    accepted_path_length: float | None
    hit_rate: float | None
    accept_length: float | None
    draft_rows: float | None
    verify_rows: float | None
    nodes_per_iteration: float | None
    draft_levels: float | None
    acceptance: float | None
    acceptance_published: float | None
    depth_use: float | None
    repeated_4grams: float | None
    after_eos: float
    identical: str | None
    near_ties: int
    divergences: list[dict[str, Any]]
    weight_bytes: int
    cache_bytes: int
    peak_device_bytes: int | None
    split: dict[str, float] | None
    counters: dict[str, int] = field(default_factory=dict)


def summarize_records(records: Records, seed: int = 0) -> list[MethodSummary]:
    """A summary for every method that has at least one run, in the order of the run."""
    by_label = {entry["label"]: _of(records.runs.values(), entry["label"]) for entry in records.header.setup["methods"]}
    return [
        _summary(entry, by_label, records, seed)
        for entry in records.header.setup["methods"]
        if by_label[entry["label"]]
    ]


def _of(runs: Iterable[Run], label: str) -> list[Run]:
    return [run for run in runs if run.method == label]


def _summary(entry: dict[str, Any], by_label: dict[str, list[Run]], records: Records, seed: int) -> MethodSummary:
    label, runs = entry["label"], by_label[entry["label"]]
    header = records.header
    hf, ar, fast = (by_label.get(reference_label(header, name) or "", []) for name in ("hf-generate", "ar", "ar-fast"))
    bound = Bound.of(records)
    divergences = [one for one in records.divergences.values() if one.method == label]
    step = seconds_per(hf, lambda run: len(run.tokens)) if hf else None
    iteration = seconds_per(runs, lambda run: run.iterations)
    tokens, iterations = sum(len(run.tokens) for run in runs), sum(run.iterations for run in runs)
    return MethodSummary(
        method=entry["name"], label=label, options=entry["options"], lossless=entry["lossless"],
        prompts=len({run.prompt for run in runs}), runs=len(runs),
        failures=sum(one.method == label for one in records.failures.values()),
        tokens=tokens, iterations=iterations,
        **throughput(runs, seed),
        **speedup_fields("speedup_hf_generate", runs, hf, seed), **speedup_fields("speedup_ar", runs, ar, seed),
        **speedup_fields("speedup_ar_fast", runs, fast, seed),
        bound_ratio=bound.ratio(runs) if bound else None,
        ttft=float(np.mean([run.emissions[0][0] for run in runs])),
        tpot=seconds_per(runs, lambda run: len(run.tokens)),
        seconds_per_iteration=iteration,
        iteration_cost=iteration / step if iteration and step else None,
        tokens_per_iteration=tokens / iterations, committed_path_length=tokens / iterations,
        **acceptance(runs), **drafting(runs),
        depth_use=depth_use(entry["name"], entry["options"], tokens / iterations),
        draft_levels=draft_levels(runs),
        repeated_4grams=mean_repetition(runs),
        after_eos=share_after_eos(runs, header.setup.get("eos_token_ids", ())),
        identical=equality(runs, by_label.get(header.setup["reference"] or "", []), divergences, header),
        near_ties=sum(one.near_tie for one in divergences),
        divergences=[asdict(one) for one in divergences],
        **memory(runs, entry, header),
        split=mean_split([one for one in records.splits.values() if one.method == label]),
        counters={name: sum(run.counters[name] for run in runs) for name in runs[0].counters},
    )  # fmt: skip


def reference_label(header: Header, name: str) -> str | None:
    """Label of the first method of this name in the run, or None."""
    labels = [entry["label"] for entry in header.setup["methods"] if entry["name"] == name]
    return labels[0] if labels else None


# ------------------------------------------------------------------------------------------------------------- speed
def by_prompt(runs: Sequence[Run]) -> dict[str, tuple[int, float]]:
    """Prompt id -> (tokens, seconds), summed over repeats and over the turns of a conversation."""
    out: dict[str, tuple[int, float]] = {}
    for run in runs:
        prompt = conversation(run)
        tokens, seconds = out.get(prompt, (0, 0.0))
        out[prompt] = tokens + len(run.tokens), seconds + run.seconds
    return out


def conversation(run: Run) -> str:
    """Id of the run's prompt; of its first turn where it is a further one."""
    return run.prompt.partition(TURN)[0]


def bootstrap(rows: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], seed: int = 0) -> Interval:
    """95 % percentile interval of a statistic when the rows are drawn anew with replacement.

    Args:
        rows: (n, k), one row per prompt. A single row gives an interval of width zero: there is nothing to draw from.
        statistic: (m, n, k) resampled rows -> (m,) values.
        seed: same seed, same interval.
    """
    chosen = np.random.default_rng(seed).integers(0, len(rows), (RESAMPLES, len(rows)))
    low, high = np.quantile(statistic(rows[chosen]), [0.025, 0.975])
    return float(low), float(high)


def quotient(drawn: np.ndarray) -> np.ndarray:
    """(..., n, 2) rows -> (...) first column over second, each summed over the rows: a statistic for `bootstrap`."""
    first, second = np.moveaxis(drawn.sum(-2), -1, 0)
    value: np.ndarray = first / second
    return value


def double_quotient(drawn: np.ndarray) -> np.ndarray:
    """(..., n, 4) rows -> (...) `quotient` of the first two columns over that of the last two."""
    return quotient(drawn[..., :2]) / quotient(drawn[..., 2:])


def throughput(runs: Sequence[Run], seed: int = 0) -> dict[str, Any]:
    """Tokens per second over all prompts, and its mean and standard deviation over prompts, with intervals."""
    rows = np.array(list(by_prompt(runs).values()), float)
    speeds = rows[:, :1] / rows[:, 1:]
    return {
        "tokens_per_second": float(rows[:, 0].sum() / rows[:, 1].sum()),
        "tokens_per_second_interval": bootstrap(rows, quotient, seed),
        "tokens_per_second_mean": float(speeds.mean()),
        "tokens_per_second_mean_interval": bootstrap(speeds, lambda drawn: drawn[..., 0].mean(-1), seed),
        "tokens_per_second_std": float(speeds.std(ddof=1)) if len(speeds) > 1 else 0.0,
    }


def speedup(runs: Sequence[Run], reference: Sequence[Run], seed: int = 0) -> tuple[float, Interval] | None:
    """Tokens per second over the reference's on the prompts both have, with its paired bootstrap interval."""
    shared = {run.prompt for run in runs} & {run.prompt for run in reference}
    mine, its = (by_prompt([run for run in some if run.prompt in shared]) for some in (runs, reference))
    rows = np.array([[*mine[prompt], *its[prompt]] for prompt in mine], float)
    if not len(rows):
        return None

    return float(double_quotient(rows[None])[0]), bootstrap(rows, double_quotient, seed)


def speedup_fields(name: str, runs: Sequence[Run], reference: Sequence[Run], seed: int) -> dict[str, Any]:
    """`speedup` as the two fields of a summary."""
    value, interval = speedup(runs, reference, seed) or (None, None)
    return {name: value, f"{name}_interval": interval}


@dataclass(frozen=True)
class Bound:
    """The limit that memory sets to plain decoding: a token's forward reads all weights and the cache, once.

    Seconds per token = (weight bytes a forward reads + bytes of the cache it reads, mean over the tokens) / bandwidth.
    Forward t = 0, 1, ... of a text attends to the prompt and t tokens, the row of its own among them; the first, which
    reads the prompt, is charged as if it read one row, so that no loop of one forward per token can be ahead of this.

    Attributes:
        bytes_per_second: the higher of reading and copying a buffer of the weights' size (or the largest that was
            measured, if smaller), median over the measurements before and after the runs.
        weight_bytes: read by a forward of the target: without embeddings, whose rows are looked up, unless tied.
        row_bytes: keys and values of one token.
        lengths: prompt id -> tokens.
    """

    bytes_per_second: float
    weight_bytes: int
    row_bytes: int
    lengths: Mapping[str, int]

    @classmethod
    def of(cls, records: Records) -> Bound | None:
        """The bound of a run; None where no bandwidth was measured."""
        if not records.bandwidths:
            return None
        target = records.header.setup["target"]
        size = min(one.size for one in records.bandwidths)
        mine = [one for one in records.bandwidths if one.size == size]
        speed = max(np.median([one.read for one in mine]), np.median([one.copy for one in mine]))
        lengths = {one["id"]: one["tokens"] for one in records.header.setup["prompts"]}
        return cls(float(speed), target["forward_bytes"], target["cache_bytes_per_row"], lengths)

    def seconds(self, prompt: str, tokens: int) -> float:
        """Least seconds of plain decoding of so many tokens after a prompt."""
        rows = tokens * self.lengths[prompt] + tokens * (tokens - 1) / 2
        return (tokens * self.weight_bytes + rows * self.row_bytes) / self.bytes_per_second

    def tokens_per_second(self, tokens: int) -> float:
        """Of plain decoding at the bound: so many tokens after each prompt, all tokens over all seconds."""
        return tokens * len(self.lengths) / sum(self.seconds(prompt, tokens) for prompt in self.lengths)

    def ratio(self, runs: Sequence[Run]) -> float:
        """Tokens per second of some runs over those of the bound for texts of the same lengths."""
        return sum(self.seconds(run.prompt, len(run.tokens)) for run in runs) / sum(run.seconds for run in runs)


def disturbed(runs: Iterable[Run], factor: float = 2.0) -> dict[str, int]:
    """Label -> runs whose seconds per iteration exceed `factor` times the median of that label's runs.

    Something else had the machine then: no text makes a method's iteration that much dearer. A claim about speed that
    rests on such a run should stay open. Labels without one are left out.
    """
    by_label: dict[str, list[float]] = {}
    for run in runs:
        by_label.setdefault(run.method, []).append(run.seconds / run.iterations)
    counts = {label: sum(one > factor * np.median(times) for one in times) for label, times in by_label.items()}
    return {label: int(count) for label, count in counts.items() if count}


def seconds_per(runs: Sequence[Run], count: Callable[[Run], int]) -> float | None:
    """Seconds between the first emission and the last, per counted thing after the first; None if there is but one."""
    things = sum(count(run) - 1 for run in runs)
    seconds = sum(run.emissions[-1][0] - run.emissions[0][0] for run in runs)
    return seconds / things if things else None


# -------------------------------------------------------------------------------------------------------- acceptance
def acceptance(runs: Sequence[Run]) -> dict[str, Any]:
    """Path length, nodes and acceptance under both definitions; None where trees are not shown or empty."""
    names = ("accepted_path_length", "nodes_per_iteration", "acceptance", "acceptance_published")
    if any(run.nodes is None or run.accepted is None for run in runs):
        return dict.fromkeys(names)
    iterations = sum(run.iterations for run in runs)
    nodes = sum(sum(run.nodes or ()) for run in runs)
    accepted = sum(sum(run.accepted or ()) for run in runs)
    committed = sum(len(run.tokens) for run in runs)
    shares = (accepted / nodes, committed / nodes) if nodes else (None, None)
    return dict(zip(names, (accepted / iterations, nodes / iterations, *shares), strict=True))


_DRAFTING = {  # Table 4 of PTD: (what is counted, per what)
    "decoding_efficiency": ("tokens", "iterations"),
    "hit_rate": ("hits", "iterations"),
    "accept_length": ("hit_tokens", "hits"),
    "draft_overhead": ("side_nodes", "iterations"),
    "verify_overhead": ("nodes", "iterations"),
}


def drafting_metrics(runs: Sequence[Run], seed: int = 0) -> dict[str, tuple[float, Interval]]:
    """DE, HR, AL, Dft and Ver (PTD, section 4.1) of one method's runs, under the column names of the paper's Table 4.

    Each is pooled over all iterations, so that DE = HR * AL + (1 - HR) holds up to rounding, and has its bootstrap
    interval over prompts. Left out: what the runs do not show, and `accept_length` where no drafted token was kept; in
    resamples without a hit it counts as 1, the bonus token alone.
    """
    out = {}
    for name, parts in _DRAFTING.items():
        rows = _pooled(runs, parts)
        if rows is not None and rows[:, 1].any():
            out[name] = float(_quotient_or_one(rows[None])[0]), bootstrap(rows, _quotient_or_one, seed)
    return out


def drafting(runs: Sequence[Run]) -> dict[str, Any]:
    """The same without intervals as the fields of a summary; None where `drafting_metrics` leaves a number out."""
    fields = ("hit_rate", "accept_length", "draft_rows", "verify_rows")
    out: dict[str, Any] = {}
    for name, parts in zip(fields, list(_DRAFTING.values())[1:], strict=True):
        rows = _pooled(runs, parts)
        out[name] = None if rows is None or not rows[:, 1].any() else float(quotient(rows))
    return out


def _pooled(runs: Sequence[Run], parts: tuple[str, str]) -> np.ndarray | None:
    """(n, 2) sums of two counts, one row per prompt; None unless every run has both."""
    sums: dict[str, np.ndarray] = {}
    for run in runs:
        counts = _counts(run)
        if not counts.keys() >= set(parts):
            return None
        sums[conversation(run)] = sums.get(conversation(run), np.zeros(2)) + [counts[name] for name in parts]
    return np.array(list(sums.values()))


def _counts(run: Run) -> dict[str, int]:
    """What a run shows of its iterations, summed."""
    shown = {"nodes": run.nodes, "side_nodes": run.side_nodes}
    out = {"tokens": len(run.tokens), "iterations": run.iterations}
    out |= {name: sum(each) for name, each in shown.items() if each is not None}
    if run.accepted is not None:
        hits = [count + 1 for count in run.accepted if count]
        out |= {"hits": len(hits), "hit_tokens": sum(hits)}
    return out


def _quotient_or_one(drawn: np.ndarray) -> np.ndarray:
    """`quotient`, and 1 where there is nothing to divide by."""
    first, second = np.moveaxis(drawn.sum(-2), -1, 0)
    value: np.ndarray = np.where(second > 0, first, 1) / np.maximum(second, 1)
    return value


_DIVISORS = {"chain": ("length", 0), "fixed-tree": ("depth", 1), "adaptive-tree": ("base_depth", 2)}


def depth_divisor(method: str, options: Mapping[str, Any]) -> int | None:
    """What DynaTree adaptive divides by for its "Accept." (Table 3); None for methods that it does not have.

    K of a chain, D + 2 of a fixed tree (our depth is the paper's D + 1), D_0 + 2 of the adaptive tree, with the values
    it starts from: its code leaves the divisor alone when history adaptation changes D_0, or D_max is deeper.
    """
    if method == "adaptive-tree" and options.get("depth", "confidence") is None:
        return int(options["base_depth"]) + 1  # its tree is a fixed one
    name, more = _DIVISORS.get(method, ("", 0))
    return options[name] + more if name in options else None


def depth_use(method: str, options: Mapping[str, Any], tokens_per_iteration: float) -> float | None:
    """Tokens per iteration, the bonus token included, over `depth_divisor`."""
    divisor = depth_divisor(method, options)
    return tokens_per_iteration / divisor if divisor else None


def draft_levels(runs: Sequence[Run]) -> float | None:
    """Forwards of the draft per iteration, where they were counted."""
    forwards = [run.counters["draft_forwards"] for run in runs if "draft_forwards" in run.counters]
    return sum(forwards) / sum(run.iterations for run in runs) if forwards else None


def mean_repetition(runs: Sequence[Run]) -> float | None:
    """Mean share of repeated 4-grams over runs."""
    shares = [share for share in (repeated_ngrams(run.tokens) for run in runs) if share is not None]
    return float(np.mean(shares)) if shares else None


def share_after_eos(runs: Sequence[Run], eos: Sequence[int]) -> float:
    """Share of all tokens that stand after the first EOS of their text."""
    ends = [next((i for i, token in enumerate(run.tokens, 1) if token in eos), len(run.tokens)) for run in runs]
    return 1 - sum(ends) / sum(len(run.tokens) for run in runs)


def equality(
    runs: Sequence[Run], reference: Sequence[Run], divergences: Sequence[Divergence], header: Header
) -> str | None:
    """ "n/N": of the reference's N prompts, those whose text was the same in every repeat (a failed run is not)."""
    if not reference or header.setup["sampling"]["temperature"] > 0:
        return None
    wanted = {run.prompt for run in reference}
    same = wanted & {run.prompt for run in runs} - {one.prompt for one in divergences}
    return f"{len(same)}/{len(wanted)}"


# ----------------------------------------------------------------------------------------------------- memory, split
def memory(runs: Sequence[Run], entry: dict[str, Any], header: Header) -> dict[str, Any]:
    """Computed bytes of weights and cache of the models the method uses, and the measured peak on a GPU."""
    models = [header.setup["target"], *([header.setup["draft"]] if entry["draft"] else [])]
    rows = max(run.cache_rows for run in runs)
    peaks = [run.peak_device_bytes for run in runs if run.peak_device_bytes is not None]
    return {
        "weight_bytes": sum(model["weight_bytes"] for model in models),
        "cache_bytes": rows * sum(model["cache_bytes_per_row"] for model in models),
        "peak_device_bytes": max(peaks, default=None),
    }


def mean_split(splits: Sequence[Split]) -> dict[str, float] | None:
    """Pooled shares of draft, verify and host, and seconds per iteration of the traced runs."""
    seconds = sum(one.seconds for one in splits)
    if not seconds:
        return None
    shares = {part: sum(getattr(one, part) for one in splits) / seconds for part in ("draft", "verify", "host")}
    return {**shares, "seconds_per_iteration": seconds / sum(one.iterations for one in splits)}
