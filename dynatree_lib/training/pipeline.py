"""From texts to a finished pair, stage by stage; every stage leaves a file, so that an interrupted run goes on.

corpus -> tokenizer -> target -> the target's own text -> draft -> held-out losses -> card.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import card as cards
from .corpus import Part, load_corpus
from .distil import (
    build_model,
    draft_batches,
    draft_loss,
    inherit_embeddings,
    target_batches,
    target_loss,
    write_on_policy,
)
from .evaluate import held_out_losses, nats_by_position
from .optimize import Log, Run, Runtime, fingerprint
from .recipe import ModelRecipe, Recipe, from_json
from .tokens import encode_parts, train_tokenizer

EVALUATION_LENGTH = 512
EVALUATION_WINDOWS = 64
POSITION_WINDOWS = 16
LONG_TEXT = "pg19"  # one document much longer than the context
TARGET_SHARE = 0.6  # of --max-minutes; the rest is the draft's, its on-policy text included

Tokens = dict[str, np.ndarray]


@dataclass(frozen=True)
class Workshop:
    """One training run: recipe, texts, where it works and where the pair goes."""

    recipe: Recipe
    parts: dict[str, Part]
    work: Path
    out: Path
    runtime: Runtime
    log: Log

    def corpus_record(self) -> dict[str, Any]:
        """Weight, sizes and hashes of every part."""
        return {name: {"weight": self.recipe.parts[name], **part.record()} for name, part in self.parts.items()}

    def mark(self, *recipes: Any) -> str:
        """What a checkpoint of these recipes on this corpus is recognised by."""
        return fingerprint(self.corpus_record(), self.recipe.seed, [asdict(recipe) for recipe in recipes])

    def model(self, recipe: ModelRecipe, seed: int, end: int) -> Any:
        """A fresh model of this run on its device."""
        return build_model(recipe, self.recipe.model_vocab_size, seed, end).to(self.runtime.device)


def open_workshop(
    recipe: Recipe,
    data: Path | None,
    work: Path,
    out: Path,
    runtime: Runtime,
    log: Log,
    resume: bool = False,
    force: bool = False,
    library: Path | None = None,
) -> Workshop:
    """Check everything that can be wrong before any work, then make the working folder.

    Raises FileExistsError when `out` holds a finished pair or `work` an unfinished run (the way out is in the
    sentence), FileNotFoundError for a missing text part, ValueError when `work` belongs to another recipe or corpus.
    """
    if (out / cards.CARD).is_file() and not force:
        raise FileExistsError(f"{out} already holds a finished pair; pass --force to replace it, or another --out.")
    shop = Workshop(recipe, load_corpus(recipe.parts, data, library), work, out, runtime, log)
    begun = work / "begun.json"
    mark = shop.mark(recipe.target, recipe.draft, recipe.on_policy)
    if begun.is_file() and resume:
        if json.loads(begun.read_text(encoding="utf-8"))["mark"] != mark:
            raise ValueError(f"{work} was begun with other texts or another recipe; pass --force to start anew.")
        planned = json.loads(begun.read_text(encoding="utf-8"))["recipe"]
        return replace(shop, recipe=from_json(planned))
    if begun.is_file() and not force:
        raise FileExistsError(
            f"{work} holds an unfinished run; pass --resume to go on with it, or --force to start anew."
        )
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    _write_json(begun, {"mark": mark, "recipe": recipe.as_json()})
    return shop


def train_pair(shop: Workshop, max_minutes: float | None = None) -> dict[str, Any]:
    """Run every stage that is not done yet and write the pair; returns its card.

    `max_minutes` shortens a recipe that would take longer at the speed measured here; the card records the steps that
    were really taken.
    """
    tokenizer = _tokenizer(shop)
    tokens, held_out = encode_parts(tokenizer, shop.parts, shop.work / "tokens.npz")
    shop.log("training tokens: " + ", ".join(f"{name} {len(array):,}" for name, array in tokens.items()))
    end = tokenizer.eos_token_id
    if max_minutes is not None:
        shop = _shortened(shop, tokens, end, max_minutes)
    target, target_minutes = _target(shop, tokens, end)
    draft, draft_minutes = _draft(shop, tokens, target, end)
    models = {"target": target, "draft": draft}
    figures = _figures(shop, models, np.asarray(cards.byte_lengths(tokenizer, shop.recipe.model_vocab_size)), held_out)
    minutes = {"target": round(target_minutes, 1), "draft": round(draft_minutes, 1)}
    card = cards.make_card(shop.recipe, shop.corpus_record(), tokens, figures, minutes, shop.runtime, models)
    return cards.write_pair(shop.out, models, tokenizer, card)


def _figures(shop: Workshop, models: dict[str, Any], bytes_each: np.ndarray, held_out: Tokens) -> dict[str, Any]:
    """Losses per part, and per position on the longest held-out text for the whole context that was trained."""
    device = shop.runtime.device
    target, draft = models["target"], models["draft"]
    losses = held_out_losses(target, draft, held_out, bytes_each, EVALUATION_LENGTH, EVALUATION_WINDOWS, device)
    for name, values in losses.items():
        shop.log(f"held out, {name}: " + ", ".join(f"{key} {value:.3f}" for key, value in values.items()))
    name = LONG_TEXT if LONG_TEXT in held_out else max(held_out, key=lambda part: len(held_out[part]))
    length = max(phase.length for phase in shop.recipe.target.phases)
    spans = {
        key: nats_by_position(model, held_out[name], length, POSITION_WINDOWS, device) for key, model in models.items()
    }
    shop.log(f"nats per token by position on {name}: {spans}")
    return {"held_out": losses, "nats_per_token_by_position": {"text": name, **spans}}


def _tokenizer(shop: Workshop) -> Any:
    from transformers import AutoTokenizer

    folder, partial = shop.work / "tokenizer", shop.work / "tokenizer.partial"
    if not folder.is_dir():
        shop.log("training the tokenizer")
        recipe = shop.recipe
        train_tokenizer(shop.parts, recipe.parts, recipe.vocab_size, recipe.tokenizer_bytes).save_pretrained(partial)
        partial.replace(folder)
    return AutoTokenizer.from_pretrained(folder)


def _target(shop: Workshop, tokens: Tokens, end: int) -> tuple[Any, float]:
    """The trained target, rounded as it will be stored, and the minutes of its training."""
    recipe, runtime = shop.recipe, shop.runtime
    model = shop.model(recipe.target, recipe.seed, end)
    run = Run(model, recipe.target, shop.work / "target.pt", shop.mark(recipe.target), runtime, shop.log)
    run.resume()
    run.train(target_batches(tokens, recipe), target_loss(model, runtime))
    return cards.rounded(model), run.progress.seconds / 60


def _draft(shop: Workshop, tokens: Tokens, target: Any, end: int) -> tuple[Any, float]:
    """The distilled draft, rounded as it will be stored, and the minutes of its training."""
    recipe, runtime = shop.recipe, shop.runtime
    own = _own_text(shop, tokens, target)
    model = shop.model(recipe.draft, recipe.seed + 1, end)
    inherit_embeddings(model, target)
    mark = shop.mark(recipe.target, recipe.draft, recipe.on_policy)
    run = Run(model, recipe.draft, shop.work / "draft.pt", mark, runtime, shop.log)
    run.resume()
    run.train(draft_batches(tokens, own, recipe), draft_loss(model, target, runtime))
    return cards.rounded(model), run.progress.seconds / 60


def _own_text(shop: Workshop, tokens: Tokens, target: Any) -> np.ndarray:
    path = shop.work / "on-policy.npy"
    if not path.is_file():
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.save(file, write_on_policy(target, tokens, shop.recipe, shop.runtime, shop.log))
        partial.replace(path)
    own: np.ndarray = np.load(path)
    return own


def _shortened(shop: Workshop, tokens: Tokens, end: int, max_minutes: float) -> Workshop:
    """The run with as many steps as fit into `max_minutes`, by measuring every phase; remembered for --resume."""
    if (shop.work / "target.pt").is_file():
        shop.log("--max-minutes is not applied again: the steps were fixed when this run began")
        return shop
    recipe, runtime = shop.recipe, shop.runtime
    target = shop.model(recipe.target, recipe.seed, end)
    draft = shop.model(recipe.draft, recipe.seed + 1, end)
    own = np.stack([next(iter(tokens.values()))[: sum(recipe.on_policy.prefix)]])
    seconds = [
        Run(target, recipe.target, shop.work / "none", "", runtime, shop.log).predicted_seconds(
            target_batches(tokens, recipe), target_loss(target, runtime)
        ),
        Run(draft, recipe.draft, shop.work / "none", "", runtime, shop.log).predicted_seconds(
            draft_batches(tokens, own, recipe), draft_loss(draft, target, runtime)
        ),
    ]
    budgets = (60 * max_minutes * TARGET_SHARE, 60 * max_minutes * (1 - TARGET_SHARE))
    factors = [min(1.0, budget / predicted) for budget, predicted in zip(budgets, seconds, strict=True)]
    shop.log(
        f"predicted minutes: target {seconds[0] / 60:.1f}, draft {seconds[1] / 60:.1f}; "
        f"steps multiplied by {factors[0]:.3f} and {factors[1]:.3f} for --max-minutes {max_minutes:g}"
    )
    planned = recipe.rescaled(factors[0], factors[1])
    begun = json.loads((shop.work / "begun.json").read_text(encoding="utf-8"))
    _write_json(shop.work / "begun.json", {**begun, "recipe": planned.as_json()})
    return replace(shop, recipe=planned)


def _write_json(path: Path, value: Any) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)
