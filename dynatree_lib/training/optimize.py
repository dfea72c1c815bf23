"""Gradient descent for both models: Muon and AdamW, warm-up-stable-decay, checkpoints, exact resumption.

Texts and distillation belong to other modules: a caller hands in batches and a loss.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..paths import whole_file
from .recipe import ModelRecipe, Phase

Log = Callable[[str], None]
CHECKPOINT_SECONDS = 300.0
LOG_SECONDS = 15.0
MEASURED_STEPS = 3
FUSED_ATTENTION_FROM = 1024  # positions; below, plain attention under the compiler is faster on a CPU


class Batches(Protocol):
    """Source of token batches for one phase."""

    def skip(self, batches: int, count: int) -> None:
        """Forget the next `batches` batches of `count` sequences."""

    def batch(self, count: int) -> np.ndarray:
        """Return the next batch, int64 (count, length)."""


OpenBatches = Callable[[int, Phase], Batches]
"""Opens the batches of a phase, which is given with its index."""
Loss = Callable[[Tensor], Tensor]
"""Mean loss over the tokens of a batch."""


@dataclass(frozen=True)
class Runtime:
    """Device, bf16 autocast and compiler: they decide how fast the steps run, and change results by rounding alone."""

    device: str = "cpu"
    autocast: bool = True
    compile: bool = False
    checkpoint_seconds: float = CHECKPOINT_SECONDS

    def precision(self) -> AbstractContextManager[Any]:
        """Return the autocast context of a forward."""
        return torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16) if self.autocast else nullcontext()

    def place(self, batch: np.ndarray) -> Tensor:
        """Copy a batch to the device, through pinned memory when that is a GPU."""
        ids = torch.from_numpy(batch)
        return ids.pin_memory().to(self.device, non_blocking=True) if self.device.startswith("cuda") else ids


def compiler_found(device: str) -> bool:
    """Return whether torch.compile can work: with a C++ compiler on a CPU, with Triton and a C compiler on a GPU."""
    if device.startswith("cuda"):
        return find_spec("triton") is not None and shutil.which("gcc") is not None
    return shutil.which("g++") is not None or shutil.which("clang++") is not None


def learning_rate_factor(step: int, recipe: ModelRecipe) -> float:
    """Return the factor of the base learning rates at `step` (from 0): warm-up, stable, linear decay."""
    falling = max(1, round(recipe.steps * recipe.decay))
    return min((step + 1) / recipe.warmup, 1.0, (recipe.steps - step) / falling)


def optimizers(model: nn.Module, recipe: ModelRecipe) -> list[torch.optim.Optimizer]:
    """Make Muon for the hidden matrices, AdamW for embeddings, norms and biases (weight decay on matrices only)."""
    hidden, tables, vectors = list[Any](), list[Any](), list[Any]()
    for name, weight in model.named_parameters():
        table = "embed" in name or "lm_head" in name
        (vectors if weight.ndim != 2 else tables if table else hidden).append(weight)
    decay = recipe.weight_decay
    muon = torch.optim.Muon(hidden, lr=recipe.learning_rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    groups = [{"params": tables, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=recipe.embedding_learning_rate, betas=(0.9, 0.95), fused=True)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["base"] = group["lr"]
    return [muon, adam]


def fingerprint(*values: Any) -> str:
    """Return the sha256 of the JSON of everything a checkpoint depends on."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


@dataclass
class Progress:
    """Steps taken, and seconds of training over all resumptions."""

    step: int = 0
    seconds: float = 0.0


class Run:
    """The optimization of a model, with checkpoints; an interrupted and resumed run ends with the same weights."""

    def __init__(self, model: nn.Module, recipe: ModelRecipe, checkpoint: Path, mark: str, runtime: Runtime, log: Log):
        self.model, self.recipe, self.checkpoint, self.mark = model, recipe, checkpoint, mark
        self.runtime, self.log = runtime, log
        self.optimizers = optimizers(model, recipe)
        self.progress = Progress()

    def save(self) -> None:
        """Write the checkpoint."""
        state = {
            "mark": self.mark,
            "progress": asdict(self.progress),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        with whole_file(self.checkpoint) as file:
            torch.save(state, file)

    def resume(self) -> bool:
        """Read the checkpoint, if there is one; ValueError when it belongs to another recipe or corpus."""
        if not self.checkpoint.is_file():
            return False
        state = torch.load(self.checkpoint, map_location=self.runtime.device, weights_only=True)
        if state["mark"] != self.mark:
            raise ValueError(
                f"The checkpoint {self.checkpoint.name} was made with another recipe or other texts; "
                "pass --force to start anew."
            )
        self.model.load_state_dict(state["model"])
        for optimizer, stored in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(stored)
        self.progress = Progress(**state["progress"])
        return True

    def train(self, batches: OpenBatches, loss: Loss, stop_after: int | None = None) -> None:
        """Run every remaining step.

        Args:
            batches: opens the text of a phase.
            loss: mean over tokens.
            stop_after: ends the run (with a checkpoint) at that step, as an interruption would.
        """
        self.model.train()
        first = 0
        for index, phase in enumerate(self.recipe.phases):
            last = first + phase.steps
            if self.progress.step < last:
                source = batches(index, phase)
                source.skip(self.progress.step - first, phase.batch)
                self._phase(phase, source, self._prepared(phase, loss), min(last, stop_after or last))
            first = last
            if stop_after is not None and self.progress.step >= stop_after:
                break
        self.save()

    def predicted_seconds(self, batches: OpenBatches, loss: Loss) -> float:
        """Predict the seconds of all steps from a few steps of every phase; this spoils the model's weights."""
        self.model.train()
        predicted = 0.0
        for index, phase in enumerate(self.recipe.phases):
            source, prepared = batches(index, phase), self._prepared(phase, loss)
            self._step(phase, source, prepared).item()  # compiling and first touches are not steady speed
            begun = time.monotonic()
            for _ in range(MEASURED_STEPS):
                self._step(phase, source, prepared).item()
            predicted += (time.monotonic() - begun) / MEASURED_STEPS * phase.steps
        return predicted

    def _prepared(self, phase: Phase, loss: Loss) -> Loss:
        plain = self.runtime.device == "cpu" and self.runtime.compile and phase.length < FUSED_ATTENTION_FROM
        self.model.set_attn_implementation("eager" if plain else "sdpa")  # type: ignore[operator]
        torch._dynamo.reset()  # another length: do not let the compiler generalise to slower dynamic shapes
        # The fused kernel leaves the compiler little to gain, and long shapes take it minutes on a CPU.
        compiling = self.runtime.compile and (plain or self.runtime.device != "cpu")
        return torch.compile(loss) if compiling else loss

    def _phase(self, phase: Phase, source: Batches, loss: Loss, until: int) -> None:
        saved = noted = time.monotonic()
        noted_step, total = self.progress.step, torch.zeros((), device=self.runtime.device)
        while self.progress.step < until:
            begun = time.monotonic()
            total += self._step(phase, source, loss)
            now = time.monotonic()
            self.progress.seconds += now - begun
            self.progress.step += 1
            if now - noted > LOG_SECONDS or self.progress.step == until:
                count = self.progress.step - noted_step
                speed = count * phase.batch * phase.length / (now - noted)
                self.log(
                    f"step {self.progress.step}/{self.recipe.steps}  loss {total.item() / count:.4f}  "
                    f"{speed:,.0f} tokens/s  length {phase.length}"
                )
                noted, noted_step, total = now, self.progress.step, torch.zeros_like(total)
            if now - saved > self.runtime.checkpoint_seconds:
                self.save()
                saved = now

    def _step(self, phase: Phase, source: Batches, loss: Loss) -> Tensor:
        factor = learning_rate_factor(self.progress.step, self.recipe)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base"] * factor
            optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.runtime.device)
        micro = self.runtime.place(source.batch(phase.batch)).split(phase.micro_batch)
        for ids in micro:
            value = loss(ids) / len(micro)
            value.backward()
            total += value.detach()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        return total
