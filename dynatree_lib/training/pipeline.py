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

from ..paths import whole_file
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
from .optimize import Log, Loss, OpenBatches, Run, Runtime, fingerprint
from .recipe import ModelRecipe, Recipe, from_json
from .tokens import encode_parts, train_tokenizer

EVALUATION_LENGTH = 512
EVALUATION_WINDOWS = 64
POSITION_WINDOWS = 16
LONG_TEXT = "pg19"  # one document much longer than the context
TARGET_SHARE = 0.6  # of --max-minutes; the rest is the draft's, its on-policy text included

Tokens = dict[str, np.ndarray]


@dataclass(frozen=True)
class Training:
    """The training of a pair: recipe, texts, working folder `work` and the pair's folder `out`."""

    recipe: Recipe
    parts: dict[str, Part]
    work: Path
    out: Path
    runtime: Runtime
    log: Log

    def corpus_record(self) -> dict[str, Any]:
        """Return weight, sizes and hashes of every part."""
        return {name: {"weight": self.recipe.parts[name], **part.record()} for name, part in self.parts.items()}

    def mark(self, *recipes: Any) -> str:
        """Return what a checkpoint of these recipes on this corpus is recognised by."""
        return fingerprint(self.corpus_record(), self.recipe.seed, [asdict(recipe) for recipe in recipes])

    def model(self, recipe: ModelRecipe, seed: int, end: int) -> Any:
        """Make a fresh model on the device."""
        return build_model(recipe, self.recipe.model_vocab_size, seed, end).to(self.runtime.device)

    def run(self, model: Any, name: str, mark: str = "") -> Run:
        """Return the optimization of the model `name`, "target" or "draft"."""
        return Run(model, getattr(self.recipe, name), self.work / f"{name}.pt", mark, self.runtime, self.log)


def open_training(
    recipe: Recipe,
    data: Path | None,
    work: Path,
    out: Path,
    runtime: Runtime,
    log: Log,
    resume: bool = False,
    force: bool = False,
    library: Path | None = None,
) -> Training:
    """Check everything that can be wrong before any work, then make the working folder.

    Raises:
        FileExistsError: when `out` holds a finished pair or `work` an unfinished run; the sentence says the way out.
        FileNotFoundError: for a missing text part.
        ValueError: when `work` belongs to another recipe or corpus.
    """
    if (out / cards.CARD).is_file() and not force:
        raise FileExistsError(f"{out} already holds a finished pair; pass --force to replace it, or another --out.")
    training = Training(recipe, load_corpus(recipe.parts, data, library), work, out, runtime, log)
    begun = work / "begun.json"
    mark = training.mark(recipe.target, recipe.draft, recipe.on_policy)
    if begun.is_file() and resume:
        stored = json.loads(begun.read_text(encoding="utf-8"))
        if stored["mark"] != mark:
            raise ValueError(f"{work} was begun with other texts or another recipe; pass --force to start anew.")
        return replace(training, recipe=from_json(stored["recipe"]))
    if begun.is_file() and not force:
        raise FileExistsError(
            f"{work} holds an unfinished run; pass --resume to go on with it, or --force to start anew."
        )
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    _write_json(begun, {"mark": mark, "recipe": recipe.as_json()})
    return training


def train_pair(training: Training, max_minutes: float | None = None) -> dict[str, Any]:
    """Run every stage that is not done yet and write the pair.

    Args:
        training: from `open_training`.
        max_minutes: shortens a recipe that would take longer at the speed measured here; the card records the steps
            that were really taken.

    Returns:
        the pair's card.
    """
    tokenizer = _tokenizer(training)
    tokens, held_out = encode_parts(tokenizer, training.parts, training.work / "tokens.npz")
    training.log("training tokens: " + ", ".join(f"{name} {len(array):,}" for name, array in tokens.items()))
    end = tokenizer.eos_token_id
    if max_minutes is not None:
        training = _shortened(training, tokens, end, max_minutes)
    recipe, runtime, minutes = training.recipe, training.runtime, {}
    target = training.model(recipe.target, recipe.seed, end)
    batches, mark = target_batches(tokens, recipe), training.mark(recipe.target)
    minutes["target"] = _optimize(training.run(target, "target", mark), batches, target_loss(target, runtime))
    own = _own_text(training, tokens, target)
    draft = training.model(recipe.draft, recipe.seed + 1, end)
    inherit_embeddings(draft, target)
    batches, mark = draft_batches(tokens, own, recipe), training.mark(recipe.target, recipe.draft, recipe.on_policy)
    minutes["draft"] = _optimize(training.run(draft, "draft", mark), batches, draft_loss(draft, target, runtime))
    models = {"target": target, "draft": draft}
    figures = _figures(training, models, np.asarray(cards.byte_lengths(tokenizer, recipe.model_vocab_size)), held_out)
    card = cards.make_card(recipe, training.corpus_record(), tokens, figures, minutes, runtime, models)
    return cards.write_pair(training.out, models, tokenizer, card)


def _optimize(run: Run, batches: OpenBatches, loss: Loss) -> float:
    """Train a model to the end and round it as it will be stored; minutes of training."""
    run.resume()
    run.train(batches, loss)
    cards.round_weights(run.model)
    return round(run.progress.seconds / 60, 1)


def _figures(training: Training, models: dict[str, Any], bytes_each: np.ndarray, held_out: Tokens) -> dict[str, Any]:
    """Losses per part, and per position on the longest held-out text for the whole context that was trained."""
    device = training.runtime.device
    losses, windows = {}, (EVALUATION_LENGTH, EVALUATION_WINDOWS)
    for name, text in held_out.items():
        losses[name] = held_out_losses(models["target"], models["draft"], text, bytes_each, *windows, device)
        training.log(f"held out, {name}: " + ", ".join(f"{key} {loss:.3f}" for key, loss in losses[name].items()))
    name = LONG_TEXT if LONG_TEXT in held_out else max(held_out, key=lambda part: len(held_out[part]))
    length = max(phase.length for phase in training.recipe.target.phases)
    spans = {
        key: nats_by_position(model, held_out[name], length, POSITION_WINDOWS, device) for key, model in models.items()
    }
    training.log(f"nats per token by position on {name}: {spans}")
    return {"held_out": losses, "nats_per_token_by_position": {"text": name, **spans}}


def _tokenizer(training: Training) -> Any:
    from transformers import AutoTokenizer

    folder, partial, recipe = training.work / "tokenizer", training.work / "tokenizer.partial", training.recipe
    if not folder.is_dir():
        training.log("training the tokenizer")
        tokenizer = train_tokenizer(training.parts, recipe.parts, recipe.vocab_size, recipe.tokenizer_bytes)
        tokenizer.save_pretrained(partial)
        partial.replace(folder)
    return AutoTokenizer.from_pretrained(folder)


def _own_text(training: Training, tokens: Tokens, target: Any) -> np.ndarray:
    """(rows, width) text on policy, which the target writes unless it has done so already."""
    path = training.work / "on-policy.npy"
    if not path.is_file():
        text = write_on_policy(target, tokens, training.recipe, training.runtime, training.log)
        with whole_file(path) as file:
            np.save(file, text)
    own: np.ndarray = np.load(path)
    return own


def _shortened(training: Training, tokens: Tokens, end: int, max_minutes: float) -> Training:
    """The training with as many steps as fit into `max_minutes`, by measuring every phase; kept for --resume."""
    if (training.work / "target.pt").is_file():
        training.log("--max-minutes is not applied again: the steps were fixed when this run began")
        return training
    recipe, runtime = training.recipe, training.runtime
    target = training.model(recipe.target, recipe.seed, end)
    draft = training.model(recipe.draft, recipe.seed + 1, end)
    own = np.stack([next(iter(tokens.values()))[: sum(recipe.on_policy.prefix)]])
    seconds = (
        training.run(target, "target").predicted_seconds(target_batches(tokens, recipe), target_loss(target, runtime)),
        training.run(draft, "draft").predicted_seconds(
            draft_batches(tokens, own, recipe), draft_loss(draft, target, runtime)
        ),
    )
    budgets = (60 * max_minutes * TARGET_SHARE, 60 * max_minutes * (1 - TARGET_SHARE))
    factors = [min(1.0, budget / predicted) for budget, predicted in zip(budgets, seconds, strict=True)]
    training.log(
        f"predicted minutes: target {seconds[0] / 60:.1f}, draft {seconds[1] / 60:.1f}; "
        f"steps multiplied by {factors[0]:.3f} and {factors[1]:.3f} for --max-minutes {max_minutes:g}"
    )
    planned = recipe.rescaled(*factors)
    begun = training.work / "begun.json"
    _write_json(begun, {**json.loads(begun.read_text(encoding="utf-8")), "recipe": planned.as_json()})
    return replace(training, recipe=planned)


def _write_json(path: Path, value: Any) -> None:
    with whole_file(path) as file:
        file.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())
