"""Decode with OpenVINO GenAI for `tools.openvino`, in an environment of its own: a line of JSON in, a line out.

python openvino_worker.py MODEL THREADS PRECISION DRAFTED NGRAM

DRAFTED is the number of tokens that its prompt lookup drafts, 0 for plain decoding. A line has `ids`, `budget` and
`eos`; its answer `tokens`, and `emissions` as [seconds since the start, tokens], or `error`. The first answer is
{"ready": version}.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]
import openvino_genai as genai  # type: ignore[import-not-found]


class Times(genai.StreamerBase):  # type: ignore[misc]
    """Notes when tokens come."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.emissions = time.perf_counter(), list[tuple[float, int]]()

    def write(self, token: Any) -> Any:
        """Note a token, or several."""
        self.emissions.append((time.perf_counter() - self.start, 1 if isinstance(token, int) else len(token)))
        return genai.StreamingStatus.RUNNING

    def end(self) -> None:
        """Do nothing: the last token was noted."""


def decode(pipeline: Any, drafted: int, ngram: int, ids: list[int], budget: int, eos: list[int]) -> dict[str, Any]:
    """Return the answer to one line."""
    config = genai.GenerationConfig()
    config.max_new_tokens, config.do_sample = budget, False
    if eos:
        config.eos_token_id, config.stop_token_ids = eos[0], set(eos)
    else:
        config.ignore_eos = True
    if drafted:
        config.num_assistant_tokens, config.max_ngram_size = drafted, ngram
    times = Times()
    result = pipeline.generate(openvino.Tensor(np.array([ids], np.int64)), config, times)
    return {"tokens": list(map(int, result.tokens[0])), "emissions": times.emissions}


def say(answer: dict[str, Any]) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


def main(model: str, threads: str, precision: str, drafted: str, ngram: str) -> None:
    """Answer line after line until there are no more."""
    asked: dict[str, Any] = {"INFERENCE_NUM_THREADS": int(threads), "INFERENCE_PRECISION_HINT": precision}
    pipeline = genai.LLMPipeline(model, "CPU", **asked, **({"prompt_lookup": True} if int(drafted) else {}))
    for tokens in (8, 64):  # kernels are compiled for shapes when these are met first
        decode(pipeline, int(drafted), int(ngram), [1, *range(5, 5 + tokens)], 32, [])
    say({"ready": openvino.__version__})
    for line in sys.stdin:
        try:
            answer = decode(pipeline, int(drafted), int(ngram), **json.loads(line))
        except Exception as error:  # the caller tells it
            answer = {"error": str(error)}
        say(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
