"""Do sampled texts follow the target? Tests on a real pair, which has too many outcomes to enumerate (`audit`).

Each token of a lossless text is a draw from the target's distribution after the tokens before it, wherever iterations
begin and end. So two numbers of a token have a known distribution whatever came before: its surprise -log p, whose mean
is the entropy and whose variance the target's distribution gives; and its place, the mass of the tokens before it in
the order of their probability and a random part of its own, which is uniform on [0, 1]. Over all tokens of many texts
the first makes a z-test and the second a chi-squared test. A rule that accepts too much drifts towards likely tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy import stats

from dynatree_lib.models.base import LanguageModel
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import Sampling, probabilities
from dynatree_lib.verifiers import Traversal

from ..bench.environment import describe_environment, describe_model, public_pair_name
from ..bench.methods import Variant, custom, variants
from ..bench.prompts import prepare_prompts
from ..bench.protocol import SEEDS, checked_runner
from ..bench.runner import DrafterRunner, Instrument, Runner, quiet
from .unsound import Meddled, SortedSiblings, TopAsDrawn

BINS = 20
"""Parts of [0, 1] in which places are counted."""
ALPHA = 0.01
"""Probability that an audit of sound methods fails by chance."""
CONTROLS: dict[str, Callable[[Any], Meddled]] = {
    "top tokens taken for drawn ones": lambda draft: TopAsDrawn(draft, shape=(0, 0, 1, 2)),
    "drawn siblings sorted": lambda draft: SortedSiblings(draft, shape=(0, 0, 0, 1, 1, 2)),
}
"""Drafters under which `Traversal(unsafe=True)` is biased; an audit that does not see it proves nothing."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Fit:
    """The result of `check_texts`.

    Attributes:
        environment: versions, machine, commit.
        setup: pair, sampling, prompts, seeds, budget.
        rows: one per method: `method`, `control` (whether it is meant to be biased), `texts`, `tokens`, `impossible`
            (tokens that the target excludes), `surprise_z` (positive: likelier tokens than the target's), `surprise_p`
            and `place_p` (two p-values), `places` (tokens in each part of [0, 1]).
    """

    environment: Row
    setup: Row
    rows: list[Row] = field(default_factory=list)

    @property
    def limit(self) -> float:
        """The p-value below which a sound method counts as biased: `ALPHA`, shared by all tests of sound methods."""
        return ALPHA / max(1, 2 * sum(not row["control"] for row in self.rows))

    def biased(self, row: Row) -> bool:
        """Whether a method's texts do not follow the target."""
        return row["impossible"] > 0 or min(row["surprise_p"], row["place_p"]) < self.limit

    def failures(self) -> list[str]:
        """What speaks against losslessness, or against the audit itself, in full sentences; empty if nothing does."""
        found = []
        for row in self.rows:
            figures = f"p = {row['surprise_p']:.1e} by surprise, {row['place_p']:.1e} by place, limit {self.limit:.1e}"
            if self.biased(row) and not row["control"]:
                impossible = f"; {row['impossible']} tokens that the target excludes" if row["impossible"] else ""
                found.append(f"Texts of '{row['method']}' do not follow the target ({figures}{impossible}).")
            if row["control"] and not self.biased(row):
                found.append(f"Control '{row['method']}' was not seen biased ({figures}); take more texts.")
        return found

    def to_json(self) -> str:
        """Return the record."""
        return json.dumps(asdict(self), indent=1) + "\n"


def check_texts(
    pair: Pair,
    methods: str | Sequence[str | Variant],
    prompts: Sequence[Any],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    seeds: Iterable[int] = (0,),
    progress: Callable[[str], None] = quiet,
    source: str = "prompts given by the caller",
) -> Fit:
    """Let each method, and the controls, write texts; test whether they follow the target.

    Args:
        pair: target and draft.
        methods: as for `run_benchmark`.
        prompts: as for `run_benchmark`.
        max_new_tokens: budget of a text, which ends at EOS.
        sampling: temperature above 0, and filters.
        seeds: a text of each prompt and method for each; the number of the prompt is added, times `protocol.SEEDS`.
        progress: takes a line of text per method.
        source: sentence on where the prompts come from, for the record.

    Raises:
        ValueError: at temperature 0; as for `run_benchmark`.
    """
    if sampling.greedy:
        raise ValueError(
            "At temperature 0 nothing is drawn, so no test of draws applies; `dynatree bench` compares texts."
        )
    chosen, seeds = variants(methods), list(seeds)
    chosen = [*chosen, *(custom(label, _control(make)) for label, make in CONTROLS.items())]
    ready = prepare_prompts(pair, prompts, max_new_tokens)
    request: dict[str, Any] = {"max_new_tokens": max_new_tokens, "eos_token_ids": pair.target.eos_token_ids}
    setup = {
        "pair": public_pair_name(pair), "target": describe_model(pair.target), "sampling": asdict(sampling),
        "max_new_tokens": max_new_tokens, "seeds": seeds, "seeds_per_prompt": SEEDS, "workload": source, "alpha": ALPHA,
        "prompts": [{"id": prompt.id, "sha256": prompt.sha256} for prompt in ready],
    }  # fmt: skip
    runners = {one.label: checked_runner(pair, one, sampling, 1) for one in chosen}
    out = Fit(describe_environment(), setup)
    for label, run in runners.items():
        found = []
        for number, (seed, prompt) in enumerate(product(seeds, ready)):
            apart = SEEDS * (number % len(ready))  # the tests take texts for independent
            text = run(prompt.ids, sampling=sampling, seed=seed + apart, on_tokens=quiet, **request).tokens
            random = np.random.default_rng([seed, number])
            found.append(token_statistics(pair.target, prompt.ids, text, sampling, random))
        row = {"method": label, "control": label in CONTROLS, "texts": len(found), **p_values(found)}
        out.rows.append(row)
        progress(f"{label}: {row['tokens']} tokens, p = {row['surprise_p']:.2g} and {row['place_p']:.2g}")
    return out


def _control(make: Callable[[Any], Meddled]) -> Callable[[Pair, Instrument], Runner]:
    return lambda pair, instrument: DrafterRunner(pair.target, make(pair.draft), {"verifier": Traversal(unsafe=True)})


@torch.inference_mode()
def token_statistics(
    target: LanguageModel, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling, random: np.random.Generator
) -> np.ndarray:
    """Return what a text's tokens say about the distribution they were drawn from.

    Args:
        target: the model that they should follow.
        prompt: token ids before the text.
        tokens: n ids.
        sampling: temperature and filters.
        random: of the places.

    Returns:
        (n, 3) float64: entropy less surprise in nats, the variance of a surprise, and the place in [0, 1]. A token
        that the target excludes has -inf, and NaN as its place.
    """
    session = target.session()
    session.start(prompt[:-1])
    scores = session.score([prompt[-1], *tokens[:-1]], range(-1, len(tokens) - 1), sampling)
    p = probabilities(scores.logits.double(), sampling)
    every, chosen = torch.arange(p.shape[1], device=p.device), torch.tensor(tokens, device=p.device)[:, None]
    own, logs = p.gather(1, chosen), p.log()
    informed = torch.where(p > 0, p * logs, 0.0)
    entropy = -informed.sum(1)
    variance = torch.where(p > 0, informed * logs, 0.0).sum(1) - entropy**2
    tied = (p == own) & (every < chosen)
    before = torch.where((p > own) | tied, p, 0.0).sum(1)
    place = before + torch.from_numpy(random.random(len(tokens))).to(p) * own[:, 0]
    place[own[:, 0] == 0] = torch.nan
    return torch.stack([entropy + own[:, 0].log(), variance, place], 1).cpu().numpy()


def p_values(statistics: Sequence[np.ndarray]) -> Row:
    """Return both tests of a method's texts, from `token_statistics` of each."""
    joined = np.concatenate(statistics)
    possible = joined[np.isfinite(joined[:, 0])]
    z = float(possible[:, 0].sum() / np.sqrt(max(possible[:, 1].sum(), 1e-12)))
    places, expected = np.histogram(possible[:, 2], BINS, (0, 1))[0], max(len(possible), 1) / BINS
    return {
        "tokens": len(joined),
        "impossible": len(joined) - len(possible),
        "surprise_z": z,
        "surprise_p": float(2 * stats.norm.sf(abs(z))),
        "place_p": float(stats.chi2.sf(((places - expected) ** 2 / expected).sum(), BINS - 1)),
        "places": places.tolist(),
    }
