"""`dynatree chat`: talk to a pair in the terminal; drafted tokens in one colour, the target's own in another."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Callable

import numpy as np

from dynatree_lib.decoding import Iteration
from dynatree_lib.models.texts import TextStream, label

from ..bench.memory import out_of_memory, ran_out
from . import arguments
from .conversation import DECODERS, Conversation, decoder

DRAFTED, OWN, FAINT, PLAIN = "\033[32m", "\033[33m", "\033[2m", "\033[0m"
UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, which a text may not send to the terminal."""
PROMPT = "> "
HELP = """\
/tree [N]     draw the tree of the latest answer's last iteration, or of its iteration N
/method NAME  let another method answer, as for `dynatree bench`: chain:length=4; without a name, list them
/reset        forget what was said
/help         these lines
/quit         leave; so does Ctrl-D
An empty line lets an answer that was cut go on. Ctrl-C stops an answer."""


def main(args: argparse.Namespace) -> int:
    """Answer lines until the last one."""
    if sys.stdin is None:
        raise ValueError("Standard input is closed, and chat reads its lines; open it, or call dt.generate.")
    sampling = arguments.sampling_of(args)
    arguments.check_least(args, max_new_tokens=1)
    decoder(args.method)  # before models are loaded
    options = {"max_new_tokens": args.max_new_tokens, "sampling": sampling, "seed": args.seed}
    conversation = Conversation(arguments.pair_of(args, settled=False), args.method, args.system, **options)
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives `input` a history and keys to edit a line
    for stream, unknown in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=unknown)  # where the terminal does not know a character, or sends no UTF-8
    return Chat(conversation).run()


class Chat:
    """Lines from standard input, answers to standard output.

    Args:
        conversation: answers.
    """

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")  # https://no-color.org
        self.commands: dict[str, Callable[[str], object]] = {
            "/tree": self.tree, "/method": self.method, "/reset": self.reset, "/help": self.help
        }  # fmt: skip

    def run(self) -> int:
        """Read and answer until /quit or the end of the input."""
        print(self.greeting(), flush=True)
        while True:
            try:
                line = input(PROMPT)
                if line.strip() == "/quit":
                    return 0
                self.take(line)
            except EOFError:
                print()
                return 0
            except KeyboardInterrupt:
                print()
                self.say("Ctrl-C stops an answer; /quit or Ctrl-D leaves.")
            except ValueError as error:
                self.say(str(error))
            except (RuntimeError, MemoryError) as error:
                if not ran_out(error):
                    raise
                print()
                self.say(f"{out_of_memory(error, self.conversation.pair)} /reset forgets what was said.")

    def greeting(self) -> str:
        """Return what is said first."""
        pair, told = self.conversation.pair, ""
        if not self.conversation.templated:
            told = " Its tokenizer has no chat template, so your lines are continued, not answered."
        keys = f"{self.paint('drafted', DRAFTED)}, {self.paint('own', OWN)}" if self.coloured else "no colours"
        return f"{pair.name}, {self.conversation.method} ({keys}). /help lists the commands.{told}"

    def take(self, line: str) -> None:
        """Run a command, or answer a line."""
        command, _, rest = line.strip().partition(" ")
        if command in self.commands:
            self.commands[command](rest.strip())
        elif command.startswith("/"):
            self.say(f"There is no command '{command}'; /help lists them.")
        elif command or self.conversation.cut:
            self.answer(line if command else "")

    def answer(self, line: str) -> None:
        """Write the answer as it comes, then its figures."""
        stream, ends = TextStream(self.conversation.pair.tokenizer), self.conversation.pair.target.eos_token_ids

        def write(tokens: list[int]) -> None:
            for place, token in enumerate(tokens, start=1):
                if token not in ends:
                    self.write(stream.add(token), OWN if place == len(tokens) else DRAFTED)

        out = self.conversation.answer(line, write)
        self.write(f"{stream.rest()}\n", "")
        self.say(f"[{out.counts}]")

    def tree(self, number: str) -> None:
        """Draw the tree of an iteration."""
        last = self.conversation.last
        count = 0 if last is None else len(last.iterations)
        if last is None or not count:
            raise ValueError("There is no answer yet whose tree could be drawn; ask something first.")
        if number and not (number.isdecimal() and 1 <= int(number) <= count):
            raise ValueError(f"The latest answer has iterations 1 to {count}, and no '{number}'.")
        place = int(number or count)
        self.say(f"Iteration {place} of {count}, with the draft's probability of each token; + was accepted:")
        for text, role in tree_lines(last.iterations[place - 1], self.conversation.pair.tokenizer):
            print(self.paint(text, {"accepted": DRAFTED, "own": OWN}.get(role, "")))

    def method(self, name: str) -> None:
        """Choose another method, or list them."""
        if name:
            self.conversation.choose(name)
        self.say(f"{self.conversation.method} answers." + ("" if name else f" Others: {', '.join(DECODERS)}."))

    def reset(self, _: str) -> None:
        """Forget what was said."""
        self.conversation.reset()
        self.say("Everything said is forgotten.")

    def help(self, _: str) -> None:
        """List the commands."""
        print(HELP)

    def say(self, text: str) -> None:
        """Print a line about the conversation."""
        print(self.paint(text, FAINT), flush=True)

    def write(self, text: str, colour: str) -> None:
        """Print a piece of an answer at once."""
        print(self.paint(UNSEEN.sub("", text), colour), end="", flush=True)

    def paint(self, text: str, colour: str) -> str:
        """Return a text in a colour, where colours are on."""
        return f"{colour}{text}{PLAIN}" if self.coloured and text and colour else text


def tree_lines(iteration: Iteration, tokenizer: object = None) -> list[tuple[str, str]]:
    """Return a drafted tree as lines, each with the role of its token.

    Roles are "first" (node 0), "accepted", "own" (the target's own token, below the last accepted node) and "rejected".
    Where the text ended inside an accepted path, its last token is a drafted node, and no token is the target's own.
    """
    tree, path = iteration.tree, [0, *iteration.verdict.path]
    end = iteration.verdict.next_token
    drafted = next((node for node in tree.children(path[-1]).tolist() if tree.tokens[node] == end), None)

    def shown(token: int) -> str:
        return UNSEEN.sub("", label(token, tokenizer))

    lines = [(shown(int(tree.tokens[0])), "first")]

    def below(node: int, indent: str) -> None:
        under = []
        for child in tree.children(node).tolist():
            role = "accepted" if child in (*path, drafted) else "rejected"
            mark = " +" if role == "accepted" else ""
            under.append((child, f"{shown(int(tree.tokens[child]))}  {np.exp(tree.logprobs[child]):.2f}{mark}", role))
        if node == path[-1] and drafted is None:
            under.append((None, f"{shown(end)}  the target's own", "own"))
        for place, (child, text, role) in enumerate(under, start=1):
            branch, further = ("└─ ", "   ") if place == len(under) else ("├─ ", "│  ")
            lines.append((f"{indent}{branch}{text}", role))
            if child is not None:
                below(child, indent + further)

    below(0, "")
    return lines
