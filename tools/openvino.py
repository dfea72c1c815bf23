"""Measure OpenVINO GenAI as a method of the benchmark (`python3 -m tools.peers`): plain decoding and prompt lookup.

`tools/openvino_peer.sh` installs it and exports the model. A process of its own decodes text after text, so that
neither its start nor its loading counts; it reads the clock itself. It takes and gives token ids.
"""

from __future__ import annotations

import json
import os
import subprocess
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from dynatree_lib.models.pairs import Pair
from dynatree_lib.stopping import Stopping
from dynatree_suite.bench.methods import baseline
from dynatree_suite.bench.runner import Completed, Instrument, OnTokens, Runner

FOLDER = "DYNATREE_OPENVINO"
"""Environment variable: the folder with `env/`, where OpenVINO GenAI is installed, and the exported models."""
Weights = Literal["fp32", "bf16", "int8", "int4"]


@dataclass(frozen=True)
class OpenVINO:
    """OpenVINO GenAI on the pair's target, greedy.

    Attributes:
        weights: of the exported model; "bf16" computes the fp32 model in bfloat16.
        lookup: whether its prompt lookup drafts.
        drafted: most tokens that this drafts per iteration.
        ngram: longest n-gram that it looks for.
    """

    weights: Weights = "int4"
    lookup: bool = False
    drafted: int = 4
    ngram: int = 3

    def __post_init__(self) -> None:
        if self.weights not in get_args(Weights):
            raise ValueError(f"weights is {self.weights!r}; choose from {', '.join(get_args(Weights))}.")
        if self.drafted < 1 or self.ngram < 1:
            raise ValueError(f"drafted is {self.drafted} and ngram is {self.ngram}; both need to be at least 1.")

    def runner(self, pair: Pair, instrument: Instrument) -> Runner:
        """The method on this pair.

        Raises:
            ValueError: where the environment or the model is missing.
        """
        folder = Path(os.environ.get(FOLDER, ""))
        model = folder / ("fp32" if self.weights == "bf16" else self.weights)
        python = folder / "env" / "bin" / "python"
        missing = [path.name for path in (python, model) if not os.environ.get(FOLDER) or not path.exists()]
        if missing:
            raise ValueError(
                f"OpenVINO's {', '.join(missing)} were not found; run tools/openvino_peer.sh once, and set {FOLDER} to "
                "the folder that it names."
            )
        precision = "bf16" if self.weights == "bf16" else "f32"
        worker = Path(__file__).with_name("openvino_worker.py")
        drafted = self.drafted if self.lookup else 0
        # -P: the folder of the worker has a module of OpenVINO's name
        options = map(str, (model, torch.get_num_threads(), precision, drafted, self.ngram))
        return _Process([str(python), "-P", str(worker), *options])


@dataclass
class _Process:
    command: list[str]
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def check(self, sampling: Any) -> None:
        """Refuse temperatures above 0: its random numbers are its own."""
        if not sampling.greedy:
            raise ValueError("OpenVINO is compared in greedy decoding only.")

    def __call__(
        self,
        prompt_ids: Sequence[int],
        *,
        max_new_tokens: int,
        eos_token_ids: tuple[int, ...],
        on_tokens: OnTokens,
        sampling: Any,
        seed: int,
    ) -> Completed:
        self.check(sampling)
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            weakref.finalize(self, _end, self.process)
            self._answer()
        assert self.process.stdin is not None
        asked = {"ids": list(prompt_ids), "budget": max_new_tokens, "eos": list(eos_token_ids)}
        self.process.stdin.write(f"{json.dumps(asked)}\n")
        self.process.stdin.flush()
        answer = self._answer()
        tokens, emissions = answer["tokens"], answer["emissions"]
        count, reason = Stopping(max_new_tokens, eos_token_ids).cut((), tokens)
        on_tokens(tokens[:count])
        return Completed(
            tokens[:count], len(emissions), None, reason or "length", len(prompt_ids) + len(tokens),
            seconds=emissions[-1][0], emissions=emissions,
        )  # fmt: skip

    def _answer(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line.startswith("{") else {"error": "its process ended"}
        if "error" in answer:
            _end(self.process)
            self.process = None
            raise RuntimeError(f"OpenVINO failed: {answer['error']}. Run this to see why: {' '.join(self.command)}")
        return answer


def _end(process: subprocess.Popen[str]) -> None:
    """End a process, and close what leads to it."""
    process.kill()
    with process:
        pass


NAME = "openvino"
METHOD = baseline(OpenVINO, draft=False, traced=False)
