"""From a model to a draft for it, stage by stage; every stage leaves files, so that a stopped run goes on.

prompts and the user turns that the model writes -> its answers -> the draft -> agreement -> card.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..models.fetch import ORIGIN, fetch
from ..models.huggingface import HFModel
from ..models.pairs import load_model
from ..models.pruned import LAYERS, TOKENS, WEIGHTS, pruned, store_pruned
from ..paths import write_atomically
from .answers import ask, requests, write_answers, written_turns
from .card import hardware, versions
from .optimize import Log, Run, Runtime
from .pruned import Batches, Texts, agreement, answers_loss, frequent, read_texts
from .recipe import DraftRecipe

HELD_OUT_FILES = 1
"""Files of answers, the first ones, that the draft does not learn from."""
EVALUATED = 64
"""Held-out texts that are compared at every checkpoint; the card compares all."""


@dataclass(frozen=True)
class DraftTraining:
    """The training of a draft: recipe, texts to ask about, working folder `work` and the pair's folder `out`."""

    recipe: DraftRecipe
    data: Path
    work: Path
    out: Path
    runtime: Runtime
    log: Log

    def mark(self) -> str:
        """Return what the answers of a working folder are recognised by."""
        recipe = self.recipe
        of_answers = recipe.target, recipe.seed, recipe.own_turns, recipe.temperatures, recipe.limit, recipe.batch
        return hashlib.sha256(repr(of_answers).encode()).hexdigest()


def open_draft_training(
    recipe: DraftRecipe, data: Path | None, work: Path, out: Path, runtime: Runtime, log: Log, force: bool = False
) -> DraftTraining:
    """Check what can be wrong before any work. Answers are kept between runs; `force` forgets them and the checkpoint.

    Raises:
        FileExistsError: when `out` holds a finished draft.
        ValueError: without a folder of data sets, or when `work` belongs to another recipe's answers.
    """
    if (out / "draft" / LAYERS).is_file() and not force:
        raise FileExistsError(f"{out} already holds a draft; pass --force to replace it, or another --out.")
    if data is None:
        raise ValueError("Prompts come from local data sets: give --data DIR with wikitext-2-raw/, gsm8k/ and mbpp/.")
    training = DraftTraining(recipe, data, work, out, runtime, log)
    begun = work / "begun.json"
    if force:
        shutil.rmtree(work, ignore_errors=True)
    if begun.is_file() and json.loads(begun.read_text(encoding="utf-8"))["mark"] != training.mark():
        raise ValueError(f"{work} holds the answers of another recipe; pass --force to start anew, or another --work.")
    work.mkdir(parents=True, exist_ok=True)
    write_atomically(begun, json.dumps({"mark": training.mark(), "recipe": recipe.as_json()}, indent=2) + "\n")
    return training


def train_draft(training: DraftTraining, max_minutes: float | None = None) -> dict[str, Any]:
    """Run every stage that is not done yet and write the draft.

    Args:
        training: from `open_draft_training`.
        max_minutes: shortens the optimization, by the speed measured here; answers are written in any case.

    Returns:
        the draft's card.
    """
    recipe, log = training.recipe, training.log
    folder = fetch(recipe.target, log=log)
    files = _answered(training, folder)
    held_out, texts = read_texts(files[:HELD_OUT_FILES]), read_texts(files[HELD_OUT_FILES:])
    log(f"{len(texts):,} texts with {len(texts.answers):,} answer tokens; {len(held_out):,} texts are held out")
    target = load_model(folder, engine="eager")
    tokens = frequent(texts, recipe.tokens, target.eos_token_ids)
    run = _run(training, target, texts, held_out.spread(EVALUATED), tokens)
    if max_minutes is not None and not run.checkpoint.is_file():
        factor = min(1.0, max_minutes * 60 / run.predicted_seconds())
        log(f"steps multiplied by {factor:.3f} for --max-minutes {max_minutes:g}")
        run = _run(training, target, texts, held_out.spread(EVALUATED), tokens, factor)
    run.train()
    draft = run.model.eval()
    figures = {
        "agreement": agreement(draft, held_out, tokens, training.runtime),
        "agreement_full_head": agreement(draft, held_out, None, training.runtime)["all"],
        "head_covers": float(np.isin(held_out.top[:, 0], tokens).mean()),
    }
    out = training.out / "draft"
    partial = out.with_name("draft.partial")
    shutil.rmtree(partial, ignore_errors=True)
    store_pruned(draft, recipe.layers, tokens, partial)
    card = {
        "recipe": recipe.as_json(),
        "target": json.loads((folder / ORIGIN).read_text(encoding="utf-8")),
        "texts": {
            name: {"texts": len(part), "answer_tokens": len(part.answers), "by_kind": part.by_kind()}
            for name, part in (("training", texts), ("held_out", held_out))
        },
        "parameters": sum(weight.numel() for weight in draft.parameters() if weight.requires_grad),
        "steps": run.step,
        "minutes": round(run.seconds / 60, 1),
        "tokens_seen": round(run.step * run.recipe.phases[0].batch * len(texts.answers) / len(texts)),
        "curve": run.curve,
        **figures,
        "files": {name: hashlib.sha256((partial / name).read_bytes()).hexdigest() for name in (WEIGHTS, TOKENS)},
        "hardware": hardware(training.runtime.device),
        "versions": versions(),
    }
    write_atomically(partial / "card.json", json.dumps(card, indent=2, ensure_ascii=False) + "\n")
    shutil.rmtree(out, ignore_errors=True)
    partial.replace(out)
    return card


def _answered(training: DraftTraining, folder: Path) -> list[Path]:
    """Write what answers are missing; return their files."""
    recipe, log = training.recipe, training.log
    dtype = torch.bfloat16 if training.runtime.autocast else torch.float32
    model = load_model(folder, dtype=dtype, engine="auto", device=training.runtime.device)
    model = HFModel(model.model, model.tokenizer, engine="eager")
    path = training.work / "turns.json"
    if not path.is_file():
        log(f"writing {recipe.own_turns:,} user turns")
        own = written_turns(model, model.tokenizer, recipe.own_turns, recipe.seed, recipe.batch)
        write_atomically(path, json.dumps(own, ensure_ascii=False) + "\n")
    turns = [*requests(training.data), *(tuple(turn) for turn in json.loads(path.read_text(encoding="utf-8")))]
    asked = ask(model.tokenizer, turns)
    log(f"{len(asked):,} prompts")
    answers = training.work / "answers"
    write_answers(
        model, asked, answers, temperatures=recipe.temperatures, batch=recipe.batch, limit=recipe.limit,
        seed=recipe.seed, log=log,
    )  # fmt: skip
    return sorted(answers.glob("*.npz"))


def _run(
    training: DraftTraining, target: HFModel, texts: Texts, held_out: Texts, tokens: np.ndarray, factor: float = 1.0
) -> Run:
    """The optimization of a fresh draft."""
    recipe, runtime = training.recipe, training.runtime
    draft: Any = pruned(target.model, recipe.layers)
    draft.requires_grad_(True)
    for shared in (draft.model.embed_tokens, draft.lm_head):
        shared.requires_grad_(False)
    loss = answers_loss(draft, texts, tokens, recipe.variation, runtime)

    def evaluate() -> dict[str, float]:
        return agreement(draft, held_out, tokens, runtime)["all"]

    return Run(
        draft, recipe.draft.rescaled(factor), lambda index, phase: Batches(texts.lengths, (recipe.seed, index)), loss,
        runtime, training.log, training.work / "draft.pt", evaluate=evaluate,
    )  # fmt: skip
