"""The command line: `dynatree COMMAND` with the commands below, also as `python -m dynatree_suite`.

Options are in `options`. A command's work is `main(args)` of the module of its name, imported only when it runs. Errors
are turned into one sentence here.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from .. import PACKAGES
from .options import COMMANDS


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 2 and one sentence on standard error for bad input, 130 after Ctrl-C."""
    if sys.stdout is None:  # closed, as by `>&-`
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that the terminal cannot show must not end a command
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        args = parser().parse_args(argv)
        code = int(import_module(f"dynatree_suite.cli.{args.command}").main(args))
        sys.stdout.flush()  # here, where what it meets can be said
        return code
    except KeyboardInterrupt:
        sys.stderr.write("dynatree: stopped by Ctrl-C.\n")
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `dynatree fetch | head`
        _drop_output()
        return 1
    except (ValueError, RuntimeError, OSError, ImportError, MemoryError, ArithmeticError) as error:
        if os.environ.get("DYNATREE_DEBUG") == "1":
            raise
        sys.stderr.write(f"dynatree: {sentence(error)}\n")
        try:
            sys.stdout.flush()
        except OSError:  # it is what failed, and Python would say so again at the end
            _drop_output()
        return 2


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    out = argparse.ArgumentParser(
        prog="dynatree", description="Tree speculative decoding, measured and reproduced.",
        # argparse computes the width for names without their indent, which pushes the longest name's line down.
        formatter_class=lambda prog: argparse.HelpFormatter(prog, indent_increment=1),
    )  # fmt: skip
    commands = out.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, configure in COMMANDS.items():
        line = str(configure.__doc__)
        configure(commands.add_parser(name, help=line[0].lower() + line[1:-1], description=line))
    return out


def sentence(error: Exception) -> str:
    """What a user should read of an error. One from outside the library keeps its type and points to the traceback."""
    if isinstance(error, RuntimeError | MemoryError):
        from ..bench.memory import out_of_memory, ran_out  # here, because it loads torch

        if ran_out(error):
            return out_of_memory(error)
    if isinstance(error, OSError) and error.strerror:  # the library's own have sentences alone
        if error.filename is None:
            return f"The operating system refuses: {error.strerror}; give another place, or make room there."
        name = str(error.filename)
        return f"{name if len(name) <= 200 else name[:199] + '…'}: {error.strerror}; give another name or place."
    if raised_by_library(error):
        return str(error)
    return f"{type(error).__name__}: {error} (DYNATREE_DEBUG=1 shows where)"


def raised_by_library(error: BaseException) -> bool:
    """Whether the error was raised in one of the project's packages, where messages are full sentences."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    if trace is None:
        return False
    home, file = Path(__file__).resolve().parents[2], Path(trace.tb_frame.f_code.co_filename).resolve()
    return any(file.is_relative_to(home / name) for name in PACKAGES)
