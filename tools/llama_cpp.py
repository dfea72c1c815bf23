"""Measure llama.cpp as a method of the benchmark (`python3 -m tools.peers`): its example programs, on the same weights,
prompts and threads.

`tools/llama_cpp_peer.sh` builds the programs and writes the models. Each text is a process of its own, whose start and
loading do not count: its own clock is read, from its report. A text comes back as characters, so that its tokens are
those of the tokenizer; a text that differs shows where. Where EOS is ignored, llama.cpp never writes EOS
(`--ignore-eos`), while for the other methods it is an ordinary token.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from dynatree_lib.models.pairs import Pair
from dynatree_lib.stopping import Stopping
from dynatree_suite.bench.methods import Method, baseline
from dynatree_suite.bench.runner import Completed, Instrument, OnTokens, Runner

FOLDER = "DYNATREE_LLAMA_CPP"
"""Environment variable: the folder with llama.cpp's programs in `bin/`, and target and draft as GGUF files."""
Tool = Literal["plain", "lookup", "lookahead", "speculative", "tree"]
PROGRAMS = {
    "plain": "llama-completion",
    "lookup": "llama-lookup",
    "lookahead": "llama-lookahead",
    "speculative": "llama-speculative-simple",
    "tree": "llama-speculative",
}
DRAFTING = ("speculative", "tree")
"""Tools that draft with a model."""
PROMPT_AND_REST = re.compile(r"(encoded|decoded) +(\d+) tokens in +([\d.]+) seconds")
EVALUATIONS = re.compile(r"(prompt eval|eval) time = +([\d.]+) ms / +(\d+) (?:tokens|runs)")
ACCEPTED = re.compile(r"n_accept *= *(\d+)")
END_OF_TEXT = " [end of text]\n"
"""What plain decoding prints after a text that ends at EOS, in place of EOS."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
TIMEOUT = 600.0


@dataclass(frozen=True)
class LlamaCpp:
    """llama.cpp on the pair's weights in GGUF files of the pair's dtype (or `weights`), greedy.

    Attributes:
        tool: "plain" decoding; "lookup", its prompt lookup; "lookahead"; "speculative", a chain by the draft; "tree", a
            tree by the draft of `branches` sequences.
        drafted: most tokens drafted per iteration.
        branches: sequences of the tree.
        split: probability of a draft's token above which a branch splits.
        weights: "same" as the pair's dtype, or the file's own "q4_1".
    """

    tool: Tool = "plain"
    drafted: int = 4
    branches: int = 4
    split: float = 0.1
    weights: Literal["same", "q4_1"] = "same"

    def __post_init__(self) -> None:
        if self.tool not in get_args(Tool):
            raise ValueError(f"tool is {self.tool!r}; choose from {', '.join(get_args(Tool))}.")
        if self.drafted < 1 or self.branches < 1:
            raise ValueError(f"drafted is {self.drafted} and branches is {self.branches}; both need to be at least 1.")

    def runner(self, pair: Pair, instrument: Instrument) -> Runner:
        """The method on this pair.

        Raises:
            ValueError: where the programs or models are missing, or the pair's dtype has no file.
        """
        dtypes = {torch.float32: "f32", torch.bfloat16: "bf16"}
        if pair.target.dtype not in dtypes:
            raise ValueError(f"llama.cpp is measured in float32 and bfloat16, not in {pair.target.dtype}.")
        kind = dtypes[pair.target.dtype] if self.weights == "same" else self.weights
        folder = Path(os.environ.get(FOLDER, ""))
        files = {
            "program": folder / "bin" / PROGRAMS[self.tool],
            "target": folder / f"target-{kind}.gguf",
            "draft": folder / f"draft-{kind}.gguf",
        }
        needed = ["program", "target", *(["draft"] if self.tool in DRAFTING else [])]
        missing = [files[name].name for name in needed if not os.environ.get(FOLDER) or not files[name].is_file()]
        if missing:
            raise ValueError(
                f"llama.cpp's {', '.join(missing)} were not found; run tools/llama_cpp_peer.sh once, and set {FOLDER} "
                "to the folder that it names."
            )
        return _Process(self, pair, files)

    def command(
        self, files: dict[str, Path], prompt: Path, tokens: int, budget: int, ignore_eos: bool = False
    ) -> list[str]:
        """The command line for a prompt of so many tokens in a file."""
        guesses = 256 if self.tool == "lookahead" else 64  # its guesses take KV entries, too
        sequences = self.branches if self.tool == "tree" else 1  # each has a part of the context
        context = (tokens + budget + guesses) * sequences
        shared = [
            str(files["program"]), "-m", str(files["target"]), "-f", str(prompt), "-n", str(budget), "--temp", "0",
            "-t", str(torch.get_num_threads()), "-c", str(context), "--no-escape",
        ]  # fmt: skip
        if ignore_eos:
            shared.append("--ignore-eos")
        if files["target"].stem.endswith("f32"):  # its cache is float16 by default, which rounds more than weights do
            shared += ["-ctk", "f32", "-ctv", "f32"]
        if self.weights == "q4_1":  # with AMX, its kernel for these blocks crashes on more than one token at a time
            shared += ["-ub", "1"] if self.tool == "plain" else ["--no-repack"]
        chain = ["-md", str(files["draft"]), "--spec-draft-n-max", str(self.drafted)]
        own: dict[str, list[str]] = {
            "plain": ["-no-cnv", "--no-display-prompt"],
            "lookup": ["--spec-draft-n-max", str(self.drafted)],
            "lookahead": [],
            "speculative": [*chain, "--spec-type", "draft-simple"],
            "tree": [*chain, "-np", str(self.branches), "--spec-draft-p-split", str(self.split)],
        }
        return [*shared, *own[self.tool]]


@dataclass(frozen=True)
class _Process:
    method: LlamaCpp
    pair: Pair
    files: dict[str, Path]

    def check(self, sampling: Any) -> None:
        """Refuse temperatures above 0: the programs divide drafted top tokens by their draft probability."""
        if not sampling.greedy:
            raise ValueError(
                "llama.cpp is compared in greedy decoding only: above temperature 0 its speculative rule is biased."
            )

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
        text = self.pair.tokenizer.decode(list(prompt_ids))
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.write(f"{text}\n")  # it takes one line end away
            file.flush()
            command = self.method.command(
                self.files, Path(file.name), len(prompt_ids), max_new_tokens, ignore_eos=not eos_token_ids
            )
            done = subprocess.run(  # its coloured guesses may end inside a letter
                command, capture_output=True, encoding="utf-8", errors="replace", timeout=TIMEOUT,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise RuntimeError(f"{command[0]} ended with {done.returncode}: {said[-1] if said else 'nothing was said'}")
        read, wrote, first, rest = reported(done.stdout + done.stderr)
        if read != len(prompt_ids):
            raise RuntimeError(f"llama.cpp read the prompt as {read} tokens, not {len(prompt_ids)}.")
        written, ended = continuation(done.stdout, text, self.method.tool)
        if self.method.tool != "plain":
            ended = wrote <= max_new_tokens  # without EOS they go on past the budget
        tokens = list(self.pair.tokenizer(written, add_special_tokens=False).input_ids)
        tokens += eos_token_ids[:1] if ended else ()  # most print EOS, too, and some print more after it
        count, reason = Stopping(max_new_tokens, eos_token_ids).cut((), tokens)
        tokens = tokens[:count]
        on_tokens(tokens)
        emissions = [[first, 1.0], [first + rest, float(len(tokens) - 1)]]
        accepted = ACCEPTED.search(done.stdout + done.stderr)
        forwards = max(1, wrote - int(accepted[1])) if accepted else wrote
        return Completed(
            tokens, forwards, None, reason or "length", len(prompt_ids) + wrote, seconds=first + rest,
            emissions=emissions,
        )  # fmt: skip


def reported(output: str) -> tuple[int, int, float, float]:
    """Read a program's report: tokens of the prompt, tokens written, and the seconds of both.

    Raises:
        RuntimeError: where it holds none.
    """
    found = {kind: (int(count), float(seconds)) for kind, count, seconds in PROMPT_AND_REST.findall(output)}
    if not found:
        spent = {
            kind: (int(count), float(milliseconds) / 1000) for kind, milliseconds, count in EVALUATIONS.findall(output)
        }
        found = {"encoded": spent.get("prompt eval", (0, 0.0)), "decoded": spent.get("eval", (0, 0.0))} if spent else {}
        if found:  # the first token comes with the prompt
            found["decoded"] = (found["decoded"][0] + 1, found["decoded"][1])
    if not found:
        raise RuntimeError("llama.cpp reported no times; is it a build of another version?")
    (read, first), (wrote, rest) = found["encoded"], found["decoded"]
    return read, wrote, first, rest


def continuation(output: str, prompt: str, tool: Tool) -> tuple[str, bool]:
    """Return what a program wrote after the prompt, which most repeat, and whether it says that the text ended at EOS.

    Colours are left out, and so is what a program prints after a text: empty lines, by plain decoding `END_OF_TEXT`.
    """
    output = COLOUR.sub("", output)
    start = output.find(prompt)
    text = output[start + len(prompt) :] if start >= 0 else output
    if tool != "plain":
        return text.rstrip("\n"), False
    text = text.removesuffix("\n\n")  # further line ends are the model's
    return text.removesuffix(END_OF_TEXT), text.endswith(END_OF_TEXT)


class _Outside(Method):
    def needs_draft(self, options: Mapping[str, Any]) -> bool:
        return options["tool"] in DRAFTING


NAME = "llama-cpp"
METHOD = _Outside(**vars(baseline(LlamaCpp, traced=False, common=True)))
