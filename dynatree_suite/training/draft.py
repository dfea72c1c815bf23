"""From a model to a draft for it, stage by stage; every stage leaves files, so that a stopped run goes on.

prompts and the user turns that the model writes -> its answers -> its features -> the draft -> agreement -> card.
Drafts of one target learn from the same answers, in one working folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynatree_lib.models.engine import engine_of
from dynatree_lib.models.fetch import ORIGIN
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import load_model
from dynatree_lib.models.pruned import TOKENS, WEIGHTS, untrained
from dynatree_lib.paths import sha256_of

from ..fetching import fetch
from ..files import sole_run, whole_folder, write_atomically
from ..papers.workloads import load_workload
from .answers import SOURCES, ask, continued, requests, sequences, write_answers
from .card import BEGUN, check_folders, hardware, readme, store_pruned, versions, write_card
from .losses import chain_agreement, windows_loss
from .optimize import Log, Run, Runtime, read_checkpoint
from .recipe import DraftRecipe
from .texts import Windows, frequent, read_texts, store_texts, write_features

HELD_OUT_FILES = 1
"""Files of answers, the first ones, that the draft does not learn from."""
EVALUATED = 64
"""Held-out texts that are compared at every checkpoint; the card compares all."""
FADING = 0.8
"""Weight of a step over a draft's own features relative to the step before."""
JUDGED, JUDGED_TOKENS = 39, 128
"""Prompts of Spec-Bench, of all its categories in turn, whose answers of so many tokens the card judges a draft on."""


@dataclass(frozen=True)
class DraftTraining:
    """The training of a draft: recipe, texts to ask about, working folder `work` and the draft's folder `out`."""

    recipe: DraftRecipe
    data: Path
    work: Path
    out: Path
    runtime: Runtime
    log: Log

    def mark(self) -> dict[str, Any]:
        """Return what the answers of a working folder are recognised by."""
        recipe = self.recipe.as_json()
        return {name: recipe[name] for name in ("target", "seed", "own", "temperatures", "limit", "batch")}

    @property
    def checkpoint(self) -> Path:
        """File of the optimization, which a stopped run goes on with."""
        return self.work / f"{self.recipe.kind}.checkpoint"

    def begun(self, **found: Any) -> dict[str, Any]:
        """Return what the checkpoint is of, {} without one; ValueError where that is something else than `found`."""
        if not self.checkpoint.is_file():
            return {}
        stored: dict[str, Any] = read_checkpoint(self.checkpoint)[0]["about"]
        changed = [name for name, value in found.items() if stored.get(name) != value]
        if changed:
            raise ValueError(
                f"{self.checkpoint} is of another recipe or other texts (what differs: {', '.join(changed)}), so this "
                "run cannot go on with it; pass --force to train anew from the same answers."
            )
        return stored


def open_draft_training(
    recipe: DraftRecipe, data: Path | None, work: Path, out: Path, runtime: Runtime, log: Log, force: bool = False
) -> DraftTraining:
    """Check what can be wrong before any work. Answers are kept between runs; `force` forgets the draft's checkpoint.

    `out` is the pair's folder, in which the draft gets one of its own.

    Raises:
        FileExistsError: when that holds a finished draft, or either folder other things.
        ValueError: for a GPU, without a folder of data sets, or when `work` has another recipe's answers or checkpoint.
        RuntimeError: where another training works in `work`.
    """
    if runtime.device != "cpu":
        raise ValueError(f"The runtime's device is {runtime.device}, but a draft is trained on a CPU; leave it out.")
    work, out = work.resolve(), out.resolve() / recipe.kind
    begun = check_folders(work, out, force)
    if data is None or not data.is_dir():
        raise ValueError(
            f"Prompts come from local data sets, and there is no folder {data or 'of them'}: give --data DIR with "
            "wikitext-2-raw/, gsm8k/, mbpp/ and spec_bench/."
        )
    training = DraftTraining(recipe, data, work, out, runtime, log)
    if begun is not None and begun.get("mark") != training.mark():
        raise ValueError(f"{work} holds the answers of another recipe; remove it, or give another --work.")
    if not force:
        training.begun(recipe=recipe.as_json())
    with sole_run(work):
        if force:
            training.checkpoint.unlink(missing_ok=True)
        write_atomically(work / BEGUN, json.dumps({"mark": training.mark()}, indent=2) + "\n")
    return training


def train_draft(training: DraftTraining, max_minutes: float | None = None) -> dict[str, Any]:
    """Run every stage that is not done yet and write the draft.

    Args:
        training: from `open_draft_training`.
        max_minutes: shortens the optimization, by the speed measured here; answers are written in any case. A run
            that goes on keeps its steps.

    Returns:
        the draft's card.

    Raises:
        ValueError: where the checkpoint is of other texts.
    """
    recipe, log = training.recipe, training.log
    folder = fetch(recipe.target, log=log)
    reader = _reader(training, folder)
    files = _answered(training, reader)
    held_out, texts = (_windows(training, reader, part) for part in (files[:HELD_OUT_FILES], files[HELD_OUT_FILES:]))
    log(f"{len(texts.texts):,} texts with {len(texts.texts.answers):,} answer tokens; {len(held_out.texts):,} held out")
    target = load_model(folder, engine="eager")
    tokens = frequent(texts.texts, recipe.tokens, target.eos_token_ids)
    about = {"recipe": recipe.as_json(), "texts": [sha256_of(file) for file in files]}
    begun = training.begun(**about)
    factor = begun.get("factor", 1.0)
    if max_minutes is not None and begun:
        log("--max-minutes is not applied again: the steps were fixed when this run began")
    elif max_minutes is not None:
        tried = _run(training, target, texts, held_out, tokens, about)
        factor = min(1.0, max_minutes * 60 / tried.predicted_seconds())
        log(f"steps multiplied by {factor:.3f} for --max-minutes {max_minutes:g}")
    run = _run(training, target, texts, held_out, tokens, {**about, "factor": factor})
    run.train()
    draft = run.model.eval()
    card = {
        "recipe": recipe.as_json(),
        "target": json.loads((folder / ORIGIN).read_text(encoding="utf-8")),
        "texts": {"training": texts.texts.figures(), "held_out": held_out.texts.figures()},
        "parameters": sum(weight.numel() for weight in draft.parameters() if weight.requires_grad),
        "steps": run.step,
        "minutes": round(run.seconds / 60, 1),
        "tokens_seen": run.recipe.tokens,
        "curve": run.curve,
        "curve_texts": EVALUATED,
        "sources": SOURCES,
        "agreement": chain_agreement(draft, held_out, tokens, training.runtime),
        "spec_bench": judged_agreement(training, reader, draft, tokens),
        "head_covers": float(np.isin(held_out.texts.answers, tokens).mean()),
        "hardware": hardware(),
        "versions": versions(),
    }
    with whole_folder(training.out) as place:
        store_pruned(draft, recipe.layers, tokens, place)
        card["files"] = {name: sha256_of(place / name) for name in (WEIGHTS, TOKENS)}
        write_card(place, card, readme(card))
    return card


def _answered(training: DraftTraining, model: HFModel) -> list[Path]:
    """Write what answers are missing; return their files."""
    recipe, log = training.recipe, training.log
    asked = ask(model.tokenizer, requests(training.data))
    judged = load_workload("spec-bench", source=training.data)
    known = set[str]().union(*(sequences(turn) for prompt in judged for turn in prompt.turns))
    log(f"{len(asked):,} prompts from data sets; what overlaps with Spec-Bench is left out")
    return write_answers(model, asked, training.work / "answers", recipe, known, log)


def _windows(training: DraftTraining, reader: HFModel, files: Sequence[Path]) -> Windows:
    """Texts with the states that the draft reads; a draft on tokens learns from the last alone."""
    layers = training.recipe.feature_layers or (-1,)
    folder = training.work / "-".join(["features", *map(str, layers[:-1])])
    return Windows(
        read_texts(files), write_features(reader.model, files, folder, training.log, layers), training.recipe.length
    )


def judged_agreement(training: DraftTraining, reader: HFModel, draft: Any, tokens: np.ndarray) -> dict[str, Any]:
    """Compare a draft with its target on Spec-Bench, from which it learnt nothing.

    Returns:
        `texts`, what was compared; `kinds`: category -> the figures of `chain_agreement`, and `covered`, the share of
        the answers' tokens that the draft drafts.
    """
    path = training.work / "spec-bench.npz"
    if not path.is_file():
        workload = load_workload("spec-bench/categories", source=training.data, limit=JUDGED)
        turns = [(prompt.task, prompt.text) for prompt in workload]
        asked = 2 * ask(reader.tokenizer, turns, reader.context - JUDGED_TOKENS)
        heats = [float(number >= len(asked) // 2) for number in range(len(asked))]
        random = np.random.default_rng(training.recipe.seed)
        answers = continued(reader, [one.ids for one in asked], heats, JUDGED_TOKENS, random, training.recipe.batch)
        store_texts(path, asked, answers, heats)
    windows = _windows(training, reader, [path])
    texts = windows.texts
    kinds = chain_agreement(draft, windows, tokens, training.runtime)
    for kind, found in kinds.items():
        chosen = np.flatnonzero((texts.kinds == kind) | (kind == "all"))
        found["covered"] = float(np.isin(texts.chosen(chosen).answers, tokens).mean())
    about = f"the target's answers of at most {JUDGED_TOKENS} tokens to {len(texts) // 2} prompts of all categories"
    return {"texts": f"{about}, greedy and at temperature 1", "kinds": kinds}


def _reader(training: DraftTraining, folder: Path) -> HFModel:
    """The target, to write and to read texts in batches."""
    dtype = torch.bfloat16 if training.runtime.autocast else torch.float32
    model = load_model(folder, dtype=dtype, engine="eager")
    try:
        return model.altered(engine=engine_of(model.model, "packed"))  # the fastest one that takes batches
    except ValueError:  # which serves no model of this kind, or none here
        return model


def _run(
    training: DraftTraining,
    target: HFModel,
    texts: Windows,
    held_out: Windows,
    tokens: np.ndarray,
    about: dict[str, Any],
) -> Run:
    """The optimization of a fresh draft; `about` goes into its checkpoint, and its "factor" multiplies the steps."""
    recipe, runtime = training.recipe, training.runtime
    draft = untrained(target.model, recipe.layers, recipe.feature_layers).requires_grad_(True)
    for shared in (draft.model.embed_tokens, draft.lm_head):
        shared.requires_grad_(False)
    few = held_out.spread(EVALUATED)

    def evaluate() -> dict[str, float]:
        found = chain_agreement(draft, few, tokens, runtime)["all"]
        return {"first": found["first"][0], "last": found["first"][-1], **{k: found[k] for k in ("loss", "greedy")}}

    return Run(
        draft, recipe.draft.rescaled(about.get("factor", 1.0)),
        lambda index, phase: texts.batches(phase.batch, (recipe.seed, index)),
        windows_loss(draft, texts, tokens, max(recipe.unrolled, 1), FADING, recipe.variation, runtime), runtime,
        training.log, training.checkpoint, evaluate=evaluate, about=about,
    )  # fmt: skip
