"""From texts to a finished pair, stage by stage; every stage leaves a file, so that an interrupted run goes on.

corpus -> tokenizer -> target -> the target's own text -> draft -> held-out losses -> card.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dynatree_suite.files import sole_run, whole_folder, write_atomically
from dynatree_suite.training.card import BEGUN, check_folders
from dynatree_suite.training.optimize import Log, Run, Runtime
from dynatree_suite.training.texts import kept

from . import card as cards
from . import distil
from .corpus import Part, encode_parts, load_corpus, train_tokenizer
from .evaluate import held_out_figures
from .recipe import Recipe

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

    def mark(self) -> list[Any]:
        """Return what a working folder of this recipe on this corpus is recognised by."""
        recipe = {name: value for name, value in self.recipe.as_json().items() if name not in ("name", "about")}
        return [self.corpus_record(), recipe]

    def write_begun(self, mark: list[Any]) -> None:
        """Write what is trained in the working folder, and with which steps."""
        begun = {"mark": mark, "recipe": self.recipe.as_json()}
        write_atomically(self.work / BEGUN, json.dumps(begun, indent=2, ensure_ascii=False) + "\n")

    def target_run(self, tokens: Tokens, end: int) -> Run:
        """Return the optimization of a fresh target; `end` is the id of the end-of-text token."""
        recipe, runtime = self.recipe, self.runtime
        model = distil.build_model(recipe.target, recipe.model_vocab_size, recipe.seed, end).to(runtime.device)
        batches, loss = distil.target_batches(tokens, recipe), distil.target_loss(model, runtime)
        return Run(model, recipe.target, batches, loss, runtime, self.log, self.work / "target.checkpoint")

    def draft_run(self, target: Any, tokens: Tokens, own: np.ndarray, end: int) -> Run:
        """Return the optimization of a fresh draft on the corpus and on the target's own text (rows, width)."""
        recipe, runtime = self.recipe, self.runtime
        model = distil.build_model(recipe.draft, recipe.model_vocab_size, recipe.seed + 1, end).to(runtime.device)
        distil.inherit_embeddings(model, target)
        batches, loss = distil.draft_batches(tokens, own, recipe), distil.draft_loss(model, target, runtime)
        return Run(model, recipe.draft, batches, loss, runtime, self.log, self.work / "draft.checkpoint")


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

    `force` replaces a finished pair and an unfinished run, nothing else.

    Raises:
        FileExistsError: when `out` holds a finished pair, `work` an unfinished run, or either of them other things; the
            sentence says the way out.
        FileNotFoundError: for a missing text part.
        ValueError: when `work` belongs to another recipe or corpus, or when one folder lies in the other.
        RuntimeError: where another training works in `work`.
    """
    work, out = work.resolve(), out.resolve()
    begun = check_folders(work, out, force)
    training = Training(recipe, load_corpus(recipe.parts, data, library), work, out, runtime, log)
    mark = training.mark()
    if begun is not None and resume:
        if begun.get("mark") != mark:
            raise ValueError(f"{work} was begun with other texts or another recipe; pass --force to start anew.")
        return replace(training, recipe=Recipe.from_json(begun["recipe"]))
    if begun is not None and not force:
        raise FileExistsError(
            f"{work} holds an unfinished run; pass --resume to go on with it, or --force to start anew."
        )
    with sole_run(work):
        shutil.rmtree(work)
    work.mkdir()
    training.write_begun(mark)
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
    tokens, held_out = (
        encode_parts(tokenizer, training.parts, training.work, split) for split in ("train", "held_out")
    )
    training.log("training tokens: " + ", ".join(f"{name} {len(array):,}" for name, array in tokens.items()))
    end = tokenizer.eos_token_id
    if max_minutes is not None:
        training = _shortened(training, tokens, end, max_minutes)
    recipe = training.recipe
    target = training.target_run(tokens, end)
    target.train()
    cards.round_weights(target.model)  # the draft learns from the target as it will be stored
    write = partial(distil.write_on_policy, target.model, tokens, recipe, training.runtime, training.log)
    draft = training.draft_run(target.model, tokens, kept(training.work / "on-policy.npy", write), end)
    draft.train()
    cards.round_weights(draft.model)
    models = {"target": target.model, "draft": draft.model}
    lengths = cards.byte_lengths(tokenizer, recipe.model_vocab_size)
    figures = held_out_figures(models, held_out, lengths, max(phase.length for phase in recipe.target.phases))
    for name, losses in figures["held_out"].items():
        training.log(f"held out, {name}: " + ", ".join(f"{key} {loss:.3f}" for key, loss in losses.items()))
    training.log(f"nats per token by position: {figures['nats_per_token_by_position']}")
    card = cards.make_card(recipe, training.corpus_record(), tokens, figures, {"target": target, "draft": draft})
    return cards.write_pair(training.out, models, tokenizer, card)


def _tokenizer(training: Training) -> Any:
    from transformers import AutoTokenizer

    folder, recipe = training.work / "tokenizer", training.recipe
    if not folder.is_dir():
        training.log("training the tokenizer")
        with whole_folder(folder) as place:
            tokenizer = train_tokenizer(training.parts, recipe.parts, recipe.vocab_size, recipe.tokenizer_bytes)
            tokenizer.save_pretrained(place)
    return AutoTokenizer.from_pretrained(folder)


def _shortened(training: Training, tokens: Tokens, end: int, max_minutes: float) -> Training:
    """The training with as many steps as fit into `max_minutes`, by measuring every phase; kept for --resume."""
    if (training.work / "target.checkpoint").is_file():
        training.log("--max-minutes is not applied again: the steps were fixed when this run began")
        return training
    own = np.stack([next(iter(tokens.values()))[: sum(training.recipe.on_policy.prefix)]])
    target = training.target_run(tokens, end)
    draft = training.draft_run(target.model, tokens, own, end)
    minutes = [run.predicted_seconds() / 60 for run in (target, draft)]
    shares = (TARGET_SHARE, 1 - TARGET_SHARE)
    factors = [min(1.0, max_minutes * share / whole) for share, whole in zip(shares, minutes, strict=True)]
    training.log(
        f"predicted minutes: target {minutes[0]:.1f}, draft {minutes[1]:.1f}; "
        f"steps multiplied by {factors[0]:.3f} and {factors[1]:.3f} for --max-minutes {max_minutes:g}"
    )
    planned = replace(training, recipe=training.recipe.rescaled(*factors))
    planned.write_begun(training.mark())
    return planned
