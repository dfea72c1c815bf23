"""The command line: help, lazy commands, and errors as one sentence."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dynatree_suite.bench import bandwidth
from dynatree_suite.bench.memory import LESS
from dynatree_suite.cli import arguments
from dynatree_suite.cli import main as cli


@pytest.fixture
def command(monkeypatch):
    """Put a command `probe` into the table whose main raises, or returns, what it is given."""

    def install(action):
        def configure(parser):
            """A test's command."""

        monkeypatch.setitem(cli.COMMANDS, "probe", configure)
        monkeypatch.setitem(sys.modules, "dynatree_suite.cli.probe", SimpleNamespace(main=action))

    return install


def raising(error):
    def action(args):
        raise error

    return action


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(f" {name} " in text for name in cli.COMMANDS)


@pytest.mark.parametrize(("command", "option"), [("run", "--dry-run"), ("tune", "--no-check")])
def test_help_of_one_command(command, option, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0
    assert option in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["fly"], ["run", "--profile", "big"]])
def test_wrong_usage_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2


def test_the_exit_code_is_the_commands(command):
    command(lambda args: 1)
    assert cli.main(["probe"]) == 1


@pytest.mark.parametrize("error", [ValueError("depth=0 must be positive."), RuntimeError("No."), OSError("Gone.")])
def test_errors_from_elsewhere_keep_their_type(command, capsys, monkeypatch, error):
    monkeypatch.delenv("DYNATREE_DEBUG", raising=False)
    command(raising(error))
    assert cli.main(["probe"]) == 2
    text = capsys.readouterr().err
    assert text == f"dynatree: {type(error).__name__}: {error} (DYNATREE_DEBUG=1 shows where)\n"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 9 TiB"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes.\nframes"),
    ],
)
def test_a_full_memory_has_a_way_out(command, capsys, error):
    command(raising(error))
    assert cli.main(["probe"]) == 2
    first = str(error).splitlines()[0].rstrip(".")
    assert capsys.readouterr().err == f"dynatree: {first}. {LESS}\n"


def test_errors_of_the_library_are_its_sentence(capsys, tmp_path):
    assert cli.main(["run", "--notebooks", str(tmp_path / "none")]) == 2
    text = capsys.readouterr().err
    assert text.startswith("dynatree: There is no notebooks folder at ")
    assert "Traceback" not in text


PROBE = """
import sys
from types import SimpleNamespace
from dynatree_suite.cli import main as cli

def configure(parser):
    "A command."

cli.COMMANDS["probe"] = configure
sys.modules["dynatree_suite.cli.probe"] = SimpleNamespace(main=lambda args: print("told") or int(sys.stdin is None))
sys.exit(cli.main(["probe"]))
"""
"""A process with a command that prints, and ends with 1 where it has no standard input."""
FULL = "dynatree: The operating system refuses: No space left on device; give another place, or make room there.\n"
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")


@needs_full
@pytest.mark.parametrize("arguments", [["fetch"], ["run", "--dry-run", "--profile", "smoke"]])
def test_a_full_disk_behind_standard_output_is_said_in_words(arguments, capsys, monkeypatch):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(arguments) == 2
        monkeypatch.undo()
    assert capsys.readouterr().err == FULL


@needs_full
def test_a_process_ends_quietly_after_a_full_disk():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, FULL)


def test_debug_shows_the_traceback(command, monkeypatch):
    command(raising(ValueError("x")))
    monkeypatch.setenv("DYNATREE_DEBUG", "1")
    with pytest.raises(ValueError, match="x"):
        cli.main(["probe"])


def test_ctrl_c_ends_with_130(command, capsys):
    command(raising(KeyboardInterrupt()))
    assert cli.main(["probe"]) == 130


def test_a_bug_is_not_hidden(command):
    command(raising(KeyError("x")))
    with pytest.raises(KeyError):
        cli.main(["probe"])


@pytest.mark.parametrize("broken", ["disk", "output"])
def test_what_was_measured_is_printed_and_saved_even_if_one_of_both_fails(broken, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bandwidth, "STREAM", {"cpu": 2**20})
    file = tmp_path / "record.json"

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    if broken == "disk":
        monkeypatch.setattr(arguments, "write_atomically", fail)
    else:
        monkeypatch.setattr("builtins.print", fail)
    monkeypatch.setattr(arguments, "progress", lambda line: None)
    options = ["--methods", "ar", "--limit", "1", "--max-new-tokens", "2", "--json", str(file)]
    assert cli.main(["bench", *options]) == 2
    shown = capsys.readouterr()
    assert "No space left on device" in shown.err
    assert file.exists() == (broken == "output")
    assert ("tokens/s" in shown.out) == (broken == "disk")


@pytest.mark.parametrize(("record", "text"), [({"a": [1]}, '{\n "a": [\n  1\n ]\n}\n'), ("as it is", "as it is")])
def test_a_record_is_saved_after_it_was_printed(tmp_path, capsys, record, text):
    file = tmp_path / "record"
    with arguments.saving(file, lambda: record):
        print("A table.")
        assert not file.exists()
    assert file.read_text() == text
    assert capsys.readouterr().out == f"A table.\nSaved in {file}.\n"
    with arguments.saving(None, lambda: record):
        pass


def test_a_name_that_standard_output_cannot_show_ends_no_command(command, capsys):
    command(lambda args: print("\udcff") or 0)
    assert cli.main(["probe"]) == 0
    assert capsys.readouterr().out == "\\udcff\n"


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"], ["tune", "--no-such-option"]])
def test_help_and_misspelled_options_load_nothing_slow(arguments):
    code = f"import sys, dynatree_suite.__main__ as m\ntry: m.main({arguments})\nexcept SystemExit: pass\n"
    code += "slow = ('torch', 'numpy', 'transformers', 'pandas', 'papermill', 'plotly', 'datasets', 'yaml')\n"
    code += "print([n for n in slow if n in sys.modules])"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert text.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("closed", "code"), [(">&-", 0), ("<&-", 1)])
def test_a_closed_stream_is_no_traceback(closed, code):
    line = shlex.join([sys.executable, "-c", PROBE])
    done = subprocess.run(["sh", "-c", f"{line} {closed}"], capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (code, "")


def test_commands_without_standard_output_or_input(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert cli.main(["chat"]) == 2
    assert "Standard input is closed" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["fetch"]) == 0
    sys.stdout.close()
    monkeypatch.undo()
    assert capsys.readouterr().err == ""


def test_a_pair_is_listed_loaded_and_described(capsys):
    assert cli.main(["fetch"]) == 0
    assert {"tiny", "smollm2"} <= {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert cli.main(["fetch", "tiny", "--dtype", "bfloat16"]) == 0
    target, _, draft, _, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"target: gpt_neox, [\d.]+ M parameters, \d+ layers, bfloat16", target)
    assert draft.startswith("draft: gpt_neox")
    assert last == "tree attention: checked on both models"
