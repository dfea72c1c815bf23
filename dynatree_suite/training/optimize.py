"""Gradient descent for all models: Muon and AdamW, warm-up-stable-decay, checkpoints, exact resumption.

What is learnt belongs to other modules: a caller hands in batches and a loss. Checkpoints are safetensors, with what is
no tensor as JSON in the metadata; nothing is pickled.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ..files import whole_file
from .recipe import ModelRecipe, Phase

Log = Callable[[str], None]
CHECKPOINT_SECONDS = 300.0
LOG_SECONDS = 15.0
MEASURED_STEPS = 3
FUSED_ATTENTION_FROM = 1024  # positions; below, plain attention under the compiler is faster on a CPU


Batches = Callable[[int, Phase], Iterator[np.ndarray]]
"""Makes the endless batches, (count, ...) each, of a phase, which is given with its number. The same every time."""
Loss = Callable[[Tensor], Tensor]
"""Mean loss over the tokens of a batch."""


@dataclass(frozen=True)
class Runtime:
    """Device, bf16 autocast and compiler: they decide how fast the steps run, and change results by rounding alone."""

    device: str = "cpu"
    autocast: bool = True
    compile: bool = False

    def precision(self) -> torch.autocast:
        """Return the autocast context of a forward."""
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.autocast)

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


def read_checkpoint(path: Path, device: str = "cpu") -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what is no tensor of a checkpoint, and its tensors on a device.

    Raises:
        ValueError: for a file that is truncated, or no checkpoint.
    """
    try:
        with safe_open(path, framework="pt", device=device) as file:
            return json.loads((file.metadata() or {})["progress"]), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (KeyError, ValueError, OSError, SafetensorError) as error:
        raise ValueError(
            f"{path} is no checkpoint that can be read ({error}); remove it, and training begins anew."
        ) from error


@dataclass
class Run:
    """The optimization of a model, with checkpoints; an interrupted and resumed run ends with the same weights.

    Attributes:
        model, recipe: what is trained, and how.
        batches: of each phase.
        loss: of a batch.
        runtime: how the steps run.
        log: takes a line of progress.
        checkpoint: file of the checkpoint; the caller sees to it that it is of this recipe and these texts.
        step, seconds: steps taken, and seconds of training, over all resumptions.
        about: what the checkpoint says that it is of.
        evaluate: called at every checkpoint and at the end; its figures, with step and seconds, make up `curve`.
    """

    model: Any
    recipe: ModelRecipe
    batches: Batches
    loss: Loss
    runtime: Runtime
    log: Log
    checkpoint: Path
    step: int = 0
    seconds: float = 0.0
    evaluate: Callable[[], dict[str, float]] | None = None
    about: dict[str, Any] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizers = optimizers(self.model, self.recipe)

    def save(self) -> None:
        """Write the checkpoint."""
        if self.evaluate:
            self.curve.append({"step": self.step, "seconds": round(self.seconds), **self.evaluate()})
            self.log(", ".join(f"{name} {value:.4g}" for name, value in self.curve[-1].items()))
        tensors = {f"model//{name}": weight for name, weight in self.model.state_dict().items()}
        for place, optimizer in enumerate(self.optimizers):
            for number, state in optimizer.state_dict()["state"].items():
                tensors |= {f"{place}/{number}/{name}": value for name, value in state.items()}
        copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}  # also tied ones
        progress = {"step": self.step, "seconds": self.seconds, "curve": self.curve, "about": self.about}
        with whole_file(self.checkpoint) as file:
            file.write(save(copies, {"progress": json.dumps(progress)}))

    def resume(self) -> None:
        """Read the checkpoint."""
        progress, tensors = read_checkpoint(self.checkpoint, self.runtime.device)
        self.step, self.seconds, self.curve = progress["step"], progress["seconds"], progress["curve"]
        stored: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
        for key, value in tensors.items():
            owner, number, name = key.split("/")
            stored[owner][number][name] = value
        self.model.load_state_dict(stored["model"][""])
        for place, optimizer in enumerate(self.optimizers):
            state = {int(number): found for number, found in stored[str(place)].items()}
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})

    def train(self) -> None:
        """Take every step that the checkpoint, if there is one, does not have."""
        if self.checkpoint.is_file():
            self.resume()
        self.model.train()
        first = 0
        for index, phase in enumerate(self.recipe.phases):
            last = first + phase.steps
            if self.step < last:
                self._phase(phase, islice(self.batches(index, phase), self.step - first, None), last)
            first = last
        self.save()

    def predicted_seconds(self) -> float:
        """Predict the seconds of all steps from a few steps of every phase; this spoils the model's weights."""
        self.model.train()
        predicted = 0.0
        for index, phase in enumerate(self.recipe.phases):
            batches, loss = self.batches(index, phase), self._prepared(phase)
            self._step(phase, next(batches), loss).item()  # compiling and first touches are not steady speed
            begun = time.monotonic()
            for _ in range(MEASURED_STEPS):
                self._step(phase, next(batches), loss).item()
            predicted += (time.monotonic() - begun) / MEASURED_STEPS * phase.steps
        return predicted

    def _prepared(self, phase: Phase) -> Loss:
        plain = self.runtime.device == "cpu" and self.runtime.compile and phase.length < FUSED_ATTENTION_FROM
        self.model.set_attn_implementation("eager" if plain else "sdpa")
        torch._dynamo.reset()  # another length: do not let the compiler generalise to slower dynamic shapes
        # The fused kernel leaves the compiler little to gain, and long shapes take it minutes on a CPU.
        compiling = self.runtime.compile and (plain or self.runtime.device != "cpu")
        return torch.compile(self.loss) if compiling else self.loss

    def _phase(self, phase: Phase, batches: Iterator[np.ndarray], last: int) -> None:
        loss, saved = self._prepared(phase), time.monotonic()
        noted, losses = saved, list[Tensor]()
        for batch in islice(batches, last - self.step):
            begun = time.monotonic()
            losses.append(self._step(phase, batch, loss))
            now = time.monotonic()
            self.seconds += now - begun
            self.step += 1
            if now - noted > LOG_SECONDS or self.step == last:
                speed = len(losses) * phase.batch * phase.length / (now - noted)
                reached = f"step {self.step}/{self.recipe.steps}  loss {torch.stack(losses).mean().item():.4f}"
                self.log(f"{reached}  {speed:,.0f} tokens/s  length {phase.length}")
                noted, losses = now, []
            if now - saved > CHECKPOINT_SECONDS:
                self.save()
                saved = now

    def _step(self, phase: Phase, batch: np.ndarray, loss: Loss) -> Tensor:
        factor = learning_rate_factor(self.step, self.recipe)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base"] * factor
            optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.runtime.device)
        micro = self.runtime.place(batch).split(phase.micro_batch)
        for ids in micro:
            value = loss(ids) / len(micro)
            value.backward()
            total += value.detach()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        return total
