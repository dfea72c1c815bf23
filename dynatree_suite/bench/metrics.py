"""From records to the numbers of a table: speed with intervals, acceptance, latency, memory, equality.

Pure functions of records; nothing is measured here. Sums, ratios and their intervals belong to `statistics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from .methods import METHODS
from .records import Header, Records, Run, Split
from .statistics import Estimate, bootstrap, estimate, quotient, ratio, sums


def summarize_records(records: Records) -> list[dict[str, Any]]:
    """Return a dictionary for every method that has at least one run, in the order of the run.

    Times in seconds, memory in bytes; None where a method does not show a quantity.

    Keys:
        method, label, options, lossless: which method, as configured.
        prompts, runs, failures: how many prompts and runs were measured, and how many runs raised.
        tokens: generated in all runs.
        iterations: target forwards that decided tokens, in all runs.
        tokens_per_second: all tokens / all seconds, with its interval.
        tokens_per_second_mean: mean over prompts of each prompt's tokens per second, with its interval;
            tokens_per_second_std: the standard deviation of the same.
        speedup_hf_generate: `statistics.ratio` of tokens per second over `hf-generate`, with its paired interval.
            speedup_ar, speedup_ar_fast: the same over `ar`, and over `ar-fast`, the strongest plain loop.
        bound_ratio: tokens_per_second over that of `Bound` for the same prompts and lengths; below 1 for plain
            decoding, and above it only where an iteration commits several tokens. None without a bandwidth.
        ttft: time to the first token, mean over runs. tpot: time per token after the first emission, pooled.
        seconds_per_iteration: between the first emission and the last, pooled.
        iteration_cost: seconds_per_iteration in units of `hf-generate`'s tpot, one greedy step.
        tokens_per_iteration: committed tokens per iteration, the bonus token included; DE of PTD's section 4.1.
        accepted_path_length: accepted drafted tokens per iteration, the bonus token not included.
        hit_rate: HR of PTD's section 4.1: share of iterations that accepted at least one drafted token.
        accept_length: AL, tokens of such an iteration, the bonus token included; None where nothing was ever accepted.
            Pooled over all iterations, DE = HR * AL + (1 - HR).
        side_nodes_per_iteration: Dft, nodes of the side tree, for drafting within the target's forward. What a draft
            model reads does not count.
        nodes_per_iteration: Ver, drafted nodes of the tree, node 0 not counted.
        draft_levels: forwards of the draft per iteration; None for methods without a draft, and for Hugging Face's.
        acceptance: accepted drafted tokens / drafted nodes.
        acceptance_published: committed tokens / drafted nodes, what DynaTree's first paper prints as "Accept.".
        depth_use: DynaTree adaptive's "Accept.": tokens per iteration, the bonus token included, over D + 2, D_0 + 2 or
            K of the method as configured (`depth_divisor`). Above 1 where D_max exceeds D_0 and paths are long.
        repeated_4grams: share of a text's 4-grams that occurred in it before, mean over prompts.
        after_eos: share of the tokens that stand after a text's first EOS (0 unless EOS is ignored).
        identical: prompts whose text equals the reference's, "n/N"; None when sampling or without a reference.
        near_ties: divergent runs whose tokens are near-ties (`protocol.divergence`), so that rounding alone decides.
        divergences: every run that left the reference's text.
        disturbed: runs that something else on the machine disturbed (`statistics.disturbed`); ratios of speeds leave
            out their prompts.
        weight_bytes: of the models the method uses; a draft that is layers of the target has none of its own.
            cache_bytes: keys and values of the target at the fullest moment (and of the draft, taken as equally long),
            computed from entries and shapes; buffers may be larger.
        peak_device_bytes: most that was allocated on the GPU in any run, both models included.
        split: shares of draft, verify and host (`records.Split`) in traced runs, and seconds per iteration there.
        iteration_split: the same shares without the first iteration, which reads the prompt, as `iteration_cost` is;
            None where no traced run kept its events.
        counters: further counts, summed.
    """
    frame, entries = records.frame(), records.header.setup["methods"]
    labels = set() if frame.empty else set(frame["method"])
    return [_summary(entry, frame, records) for entry in entries if entry["label"] in labels]


def _summary(entry: dict[str, Any], frame: pd.DataFrame, records: Records) -> dict[str, Any]:
    label, header = entry["label"], records.header
    mine, runs = frame[frame["method"] == label], [run for run in records.runs.values() if run.method == label]
    step = reference_label(header.setup["methods"], "hf-generate")
    greedy_step = seconds_per(frame[frame["method"] == step], "tokens") if step else None
    iteration, bound = seconds_per(mine, "iterations"), Bound.of(records)
    divergences = [one for one in records.divergences.values() if one.method == label]
    splits = [one for one in records.splits.values() if one.method == label]
    trees = acceptance(mine)
    return {
        "method": entry["name"], "label": label, "options": entry["options"], "lossless": entry["lossless"],
        "prompts": mine["prompt"].nunique(), "runs": len(mine),
        "failures": sum(one.method == label for one in records.failures.values()),
        "tokens": int(mine["tokens"].sum()), "iterations": int(mine["iterations"].sum()),
        **throughput(mine),
        **_speedup("hf_generate", frame, label, header), **_speedup("ar", frame, label, header),
        **_speedup("ar_fast", frame, label, header),
        "bound_ratio": bound.ratio(mine) if bound else None,
        "ttft": float(mine["first"].mean()), "tpot": seconds_per(mine, "tokens"), "seconds_per_iteration": iteration,
        "iteration_cost": iteration / greedy_step if iteration and greedy_step else None,
        **trees, "depth_use": depth_use(entry["name"], entry["options"], trees["tokens_per_iteration"]),
        "repeated_4grams": mean_repetition(runs),
        "after_eos": share_after_eos(runs, header.setup.get("eos_token_ids", ())),
        "identical": equality(runs, records),
        "near_ties": sum(one.near_tie for one in divergences),
        "divergences": [asdict(one) for one in divergences],
        "disturbed": int(mine["disturbed"].sum()),
        **memory(mine, entry, header),
        "split": mean_split(splits), "iteration_split": iteration_split(splits),
        "counters": {name: sum(run.counters[name] for run in runs) for name in runs[0].counters},
    }  # fmt: skip


def reference_label(methods: Iterable[Mapping[str, Any]], name: str) -> str | None:
    """Return the label of the first method of this name in the run, or None."""
    return next((entry["label"] for entry in methods if entry["name"] == name), None)


# ------------------------------------------------------------------------------------------------------------- speed
def throughput(frame: pd.DataFrame) -> dict[str, Any]:
    """Return tokens per second over all prompts, and its mean and standard deviation over prompts, with intervals."""
    pooled, groups = quotient(frame), sums(frame, ("tokens", "seconds"))
    speeds = (groups["tokens"] / groups["seconds"]).to_numpy()
    return {
        "tokens_per_second": pooled.value,
        "tokens_per_second_interval": pooled.interval,
        "tokens_per_second_mean": float(speeds.mean()),
        "tokens_per_second_mean_interval": bootstrap(speeds[:, None], lambda drawn: drawn[..., 0].mean(-1)),
        "tokens_per_second_std": float(speeds.std(ddof=1)) if len(speeds) > 1 else 0.0,
    }


def _speedup(name: str, frame: pd.DataFrame, label: str, header: Header) -> dict[str, Any]:
    """Return two fields of a summary; None where no prompt has runs of both methods."""
    baseline = reference_label(header.setup["methods"], name.replace("_", "-"))
    prompts = [set(frame.loc[frame["method"] == each, "prompt"]) for each in (label, baseline)]
    found = ratio(frame, label, over=str(baseline)) if prompts[0] & prompts[1] else None
    return {f"speedup_{name}": found and found.value, f"speedup_{name}_interval": found and found.interval}


@dataclass(frozen=True)
class Bound:
    """The limit that memory sets to plain decoding: a token's forward reads all weights and the cache, once.

    Seconds per token = (weight bytes a forward reads + bytes of the cache it reads, mean over the tokens) / bandwidth.
    Forward t = 0, 1, ... of a text attends to the prompt and t tokens, its own KV entry among them. The first forward,
    which reads the prompt, is charged as if it read one entry, so that no loop of one forward per token can be faster.

    Attributes:
        bytes_per_second: the higher of reading and copying a buffer of the weights' size (or the largest that was
            measured, if smaller), median over the measurements before and after the runs.
        weight_bytes: read by a forward of the target: without embeddings, of which a few are looked up, unless tied.
        entry_bytes: keys and values of one token.
        lengths: prompt id -> tokens.
    """

    bytes_per_second: float
    weight_bytes: int
    entry_bytes: int
    lengths: Mapping[str, int]

    @classmethod
    def of(cls, records: Records) -> Bound | None:
        """Return the bound of a run; None where no bandwidth was measured."""
        if not records.bandwidths:
            return None
        target = records.header.setup["target"]
        size = min(one.size for one in records.bandwidths)
        measured = [one for one in records.bandwidths if one.size == size]
        speed = max(np.median([one.read for one in measured]), np.median([one.copy for one in measured]))
        lengths = {prompt["id"]: prompt["tokens"] for prompt in records.header.setup["prompts"]}
        return cls(float(speed), target["forward_bytes"], target["cache_bytes_per_row"], lengths)

    def seconds(self, prompt: str, tokens: int) -> float:
        """Return the least seconds of plain decoding of so many tokens after a prompt."""
        entries = tokens * self.lengths[prompt] + tokens * (tokens - 1) / 2
        return (tokens * self.weight_bytes + entries * self.entry_bytes) / self.bytes_per_second

    def tokens_per_second(self, tokens: int) -> float:
        """Return the speed of plain decoding at the bound: so many tokens after each prompt, over all seconds."""
        return tokens * len(self.lengths) / sum(self.seconds(prompt, tokens) for prompt in self.lengths)

    def ratio(self, frame: pd.DataFrame) -> float:
        """Return the tokens per second of some runs over those of the bound for texts of the same lengths."""
        least = sum(self.seconds(*run) for run in zip(frame["prompt"], frame["tokens"], strict=True))
        return float(least / frame["seconds"].sum())


def after_first(frame: pd.DataFrame, count: Literal["tokens", "iterations"]) -> pd.Series:
    """Return how many of a run's tokens, or iterations, came after its first emission, for each row."""
    if count == "tokens":
        return frame["further"]
    plain = frame["tokens"] == frame["iterations"]  # whose first emission may hold several steps
    return frame["further"].where(plain, frame["iterations"] - 1)


def seconds_per(frame: pd.DataFrame, count: Literal["tokens", "iterations"]) -> float | None:
    """Return the seconds between first and last emission, per `count` after the first; None if there is but one."""
    counted = int(after_first(frame, count).sum())
    return float(frame["span"].sum()) / counted if counted else None


# -------------------------------------------------------------------------------------------------------- acceptance
DRAFTING = {
    "decoding_efficiency": ("tokens", "iterations"),
    "hit_rate": ("hits", "iterations"),
    "accept_length": ("hit_tokens", "hits"),
    "draft_overhead": ("side_nodes", "iterations"),
    "verify_overhead": ("nodes", "iterations"),
}
"""Column of PTD's Table 4 -> the columns of `Records.frame` whose sums it divides."""


def drafting_metrics(frame: pd.DataFrame, seed: int = 0) -> dict[str, Estimate]:
    """Return DE, HR, AL, Dft and Ver (PTD, section 4.1) of one method, under the column names of the paper's Table 4.

    Each is pooled over all iterations, so that DE = HR * AL + (1 - HR) holds up to rounding. Left out: what the runs do
    not show, and `accept_length` where no drafted token was accepted; in resamples without a hit it counts as 1, the
    bonus token alone.
    """
    out = {}
    for name, columns in DRAFTING.items():
        if not frame[list(columns)].isna().any(axis=None) and frame[columns[1]].any():
            out[name] = estimate(sums(frame, columns)[list(columns)].to_numpy(float), _quotient_or_one, seed)
    return out


def _quotient_or_one(drawn: np.ndarray) -> np.ndarray:
    first, second = np.moveaxis(drawn.sum(-2), -1, 0)
    return np.asarray(np.where(second > 0, first, 1) / np.maximum(second, 1))


def acceptance(frame: pd.DataFrame) -> dict[str, Any]:
    """Return what a summary says of trees: sums of two columns over one another; None where trees are not shown."""
    quotients = {
        "tokens_per_iteration": ("tokens", "iterations"),
        "accepted_path_length": ("accepted", "iterations"),
        "hit_rate": ("hits", "iterations"),
        "accept_length": ("hit_tokens", "hits"),
        "side_nodes_per_iteration": ("side_nodes", "iterations"),
        "nodes_per_iteration": ("nodes", "iterations"),
        "draft_levels": ("draft_forwards", "iterations"),
        "acceptance": ("accepted", "nodes"),
        "acceptance_published": ("tokens", "nodes"),
    }
    columns = dict.fromkeys(column for pair in quotients.values() for column in pair)
    totals = frame.reindex(columns=list(columns)).astype(float).sum(skipna=False)
    known = totals.notna() & (totals != 0)
    return {
        name: float(totals[of] / totals[per]) if pd.notna(totals[of]) and known[per] else None
        for name, (of, per) in quotients.items()
    }


_DIVISORS = {"chain": ("length", 0), "fixed-tree": ("depth", 1), "adaptive-tree": ("base_depth", 2)}


def depth_divisor(method: str, options: Mapping[str, Any]) -> int | None:
    """Return what DynaTree adaptive divides by for its "Accept." (Table 3); None for methods that it does not have.

    K of a chain, D + 2 of a fixed tree (our depth is the paper's D + 1), D_0 + 2 of the adaptive tree, with the values
    it starts from: its code leaves the divisor alone when history adaptation changes D_0, or D_max is deeper.
    """
    if method == "adaptive-tree" and options.get("depth", "confidence") is None:
        return int(options["base_depth"]) + 1  # its tree is a fixed tree
    name, more = _DIVISORS.get(method, ("", 0))
    return options[name] + more if name in options else None


def depth_use(method: str, options: Mapping[str, Any], tokens_per_iteration: float) -> float | None:
    """Return tokens per iteration, the bonus token included, over `depth_divisor`."""
    divisor = depth_divisor(method, options)
    return tokens_per_iteration / divisor if divisor else None


# ------------------------------------------------------------------------------------------------------------- texts
def repeated_ngrams(tokens: Sequence[int], n: int = 4) -> float | None:
    """Return the share of a text's n-grams that occurred in it before; None for a text shorter than n."""
    grams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else None


def mean_repetition(runs: Iterable[Run]) -> float | None:
    """Return the mean share of repeated 4-grams over runs."""
    shares = [share for share in (repeated_ngrams(run.tokens) for run in runs) if share is not None]
    return float(np.mean(shares)) if shares else None


def share_after_eos(runs: Sequence[Run], eos: Sequence[int]) -> float:
    """Return the share of all tokens that stand after the first EOS of their text."""
    ends = [next((i for i, token in enumerate(run.tokens, 1) if token in eos), len(run.tokens)) for run in runs]
    return 1 - sum(ends) / sum(len(run.tokens) for run in runs)


def equality(runs: Iterable[Run], records: Records) -> str | None:
    """Return "n/N": of the reference's N prompts, those whose text was the same in every repeat of these runs.

    Texts are compared, because a run that was stopped has not written its divergences.
    """
    setup, texts = records.header.setup, list(records.runs.values())
    wanted = {run.prompt: run.tokens for run in texts if (run.method, run.repeat) == (setup["reference"], 0)}
    if not wanted or setup["sampling"]["temperature"] > 0:
        return None
    mine = [run for run in runs if run.prompt in wanted]
    same = {run.prompt for run in mine} - {run.prompt for run in mine if run.tokens != wanted[run.prompt]}
    return f"{len(same)}/{len(wanted)}"


# ----------------------------------------------------------------------------------------------------- memory, split
def memory(frame: pd.DataFrame, entry: dict[str, Any], header: Header) -> dict[str, Any]:
    """Return computed bytes of weights and cache of the models the method uses, and the measured peak on a GPU."""
    models = [header.setup["target"], *_drafting(entry, header.setup)]
    peaks = frame["peak_device_bytes"].dropna()
    return {
        "weight_bytes": sum(model["weight_bytes"] for model in models),
        "cache_bytes": int(frame["kv_entries"].max()) * sum(model["cache_bytes_per_row"] for model in models),
        "peak_device_bytes": int(peaks.max()) if len(peaks) else None,
    }


def _drafting(entry: Mapping[str, Any], setup: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a method drafts with, if it is a model: the draft, or layers of the target with a cache of their own.

    Older files describe one draft alone, so there the common draft is taken to be as large.
    """
    if not entry["draft"]:
        return []
    if (skip := entry["options"].get("skip")) is not None:
        layers, size = setup["target"]["layers"], setup["target"]["cache_bytes_per_row"]
        kept = layers - (len(skip) if isinstance(skip, Sequence) else 1)
        return [{"weight_bytes": 0, "cache_bytes_per_row": size * kept // layers}]
    if (method := METHODS.get(entry["name"])) is None:
        return [setup["draft"]]
    role = method.draft_of({**method.defaults, **entry["options"]})
    return [setup.get(role, setup["draft"])] if role else []


def mean_split(splits: Sequence[Split]) -> dict[str, float] | None:
    """Return pooled shares of draft, verify and host, and seconds per iteration of the traced runs."""
    seconds = sum(one.seconds for one in splits)
    if not seconds:
        return None
    shares = {part: sum(getattr(one, part) for one in splits) / seconds for part in ("draft", "verify", "host")}
    return {**shares, "seconds_per_iteration": seconds / sum(one.iterations for one in splits)}


def iteration_split(splits: Iterable[Split]) -> dict[str, float] | None:
    """Return pooled shares of draft, verify and host after the first iteration, of traced runs that kept their events.

    What tracing takes in the first iteration counts as host time there.
    """
    later = dict.fromkeys(("draft", "verify", "host"), 0.0)
    for one in splits:
        end = next((at for role, _, at, _ in one.events if role == "commit"), None)
        if end is None or one.iterations < 2:
            continue
        forwards = [(role, at - start) for role, start, at, _ in one.events if role != "commit" and at <= end]
        draft, verify = (sum(took for of, took in forwards if of == role) for role in ("draft", "target"))
        later["draft"] += one.draft - draft
        later["verify"] += one.verify - verify
        later["host"] += max(one.host - (end - draft - verify), 0.0)
    seconds = sum(later.values())
    return {part: took / seconds for part, took in later.items()} if seconds else None
