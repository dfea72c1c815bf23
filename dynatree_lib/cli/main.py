"""The command line: `dynatree COMMAND` with the commands below, also as `python -m dynatree_lib`.

It looks a subcommand up and turns errors into one sentence; the work and the options belong to the module that the
table names. A module is imported only when its command is asked for, so that `dynatree --help` starts at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

# name -> (module with configure(parser) and main(args) -> exit code, one line of help)
COMMANDS = {
    "run": ("dynatree_lib.cli.run", "run notebooks of the suite, each with a receipt"),
    "report": ("dynatree_lib.cli.report", "build the report of a run's folder"),
    "bench": ("dynatree_lib.cli.bench", "measure decoding methods against each other"),
    "tune": ("dynatree_lib.cli.tune", "choose the configuration for a pair on this machine"),
    "audit": ("dynatree_lib.cli.audit", "check by enumeration that every rule keeps the target's distribution"),
    "judge": ("dynatree_lib.cli.judge", "compare verification rules on the same drafted trees"),
    "precision": ("dynatree_lib.cli.precision", "find where rounding changes greedy texts, by dtype"),
    "growth": ("dynatree_lib.cli.growth", "measure how an iteration's cost grows with text and tree"),
    "gpu": ("dynatree_lib.cli.gpu", "measure speed on a large GPU, in one folder"),
    "pairs": ("dynatree_lib.cli.pairs", "list the target/draft pairs and check one"),
    "train": ("dynatree_lib.cli.train", "train a target, distil a draft"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 2 and one sentence on standard error for bad input, 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        args = parser_for(arguments).parse_args(arguments)
        return int(import_module(COMMANDS[args.command][0]).main(args))
    except KeyboardInterrupt:
        sys.stderr.write("dynatree: stopped by Ctrl-C.\n")
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `dynatree pairs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        if os.environ.get("DYNATREE_DEBUG") == "1":
            raise
        sys.stderr.write(f"dynatree: {sentence(error)}\n")
        return 2


def parser_for(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser with every command listed, and the options of the one that was asked for."""
    parser = argparse.ArgumentParser(
        prog="dynatree", description="Tree speculative decoding, measured and reproduced.",
        # argparse computes the width for names without their indent, which pushes the longest name's line down.
        formatter_class=lambda prog: argparse.HelpFormatter(prog, indent_increment=1),
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, line) in COMMANDS.items():
        command = commands.add_parser(name, help=line, description=line.capitalize() + ".")
        if arguments and arguments[0] == name:
            import_module(module).configure(command)
    return parser


def sentence(error: Exception) -> str:
    """What a user should read of an error. One from outside the library keeps its type and points to the traceback."""
    if raised_by_library(error):
        return str(error)
    return f"{type(error).__name__}: {error} (DYNATREE_DEBUG=1 shows where)"


def raised_by_library(error: BaseException) -> bool:
    """Whether the error was raised in this package, where messages are full sentences."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    home = Path(__file__).resolve().parents[1]
    return trace is not None and Path(trace.tb_frame.f_code.co_filename).resolve().is_relative_to(home)


if __name__ == "__main__":
    sys.exit(main())
