"""Machine code on disk that is damaged, or that cannot be written, costs time and nothing else."""

from __future__ import annotations

import errno
import importlib.util

import pytest

from dynatree_cpu import machine_code
from dynatree_cpu.machine_code import KeptCode

SOURCE = """from dynatree_cpu.machine_code import machine_code

@machine_code(nogil=True)
def doubled(number):
    return 2 * number

@machine_code(nogil=True)
def more(number):
    return doubled(number) + 1
"""


@pytest.fixture
def numbers(tmp_path, monkeypatch, caplog):
    """A function that imports a module of two compiled functions anew, as another process would, and calls them."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    machine_code._say.cache_clear()
    (tmp_path / "numbers.py").write_text(SOURCE, encoding="utf-8")

    def called():
        caplog.clear()
        spec = importlib.util.spec_from_file_location("numbers", tmp_path / "numbers.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.more(20), sum(module.more.stats.cache_hits.values()), [one.message for one in caplog.records]

    return called


def files(folder, ending):
    return sorted((folder / "__pycache__").glob(f"*.{ending}"))


def test_a_second_process_compiles_nothing(numbers):
    assert numbers() == (41, 0, [])
    assert numbers() == (41, 1, [])


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_a_file_that_was_cut_off_is_compiled_anew(numbers, tmp_path, ending, share):
    numbers()
    for file in files(tmp_path, ending):
        body = file.read_bytes()
        file.write_bytes(body[: int(share * len(body))])
    number, hits, (said, *more) = numbers()
    assert (number, hits) == (41, 0)
    assert said.startswith(f"Machine code in {tmp_path / '__pycache__'} is damaged (")
    assert len(more) <= 1  # of another kind of damage
    assert numbers() == (41, 1, [])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_disk_that_takes_nothing_stops_nothing(numbers, tmp_path, monkeypatch, number):
    def fail(*_):
        raise OSError(number, "the reason")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._open_for_write", fail)
    result, hits, (said,) = numbers()
    assert (result, hits, files(tmp_path, "nbc")) == (41, 0, [])
    assert said.startswith(f"Machine code cannot be kept in {tmp_path / '__pycache__'} (the reason)")
    assert "NUMBA_CACHE_DIR" in said


def test_no_folder_at_all_stops_nothing(numbers, monkeypatch):
    monkeypatch.setattr(KeptCode._impl_class, "_locator_classes", [])
    result, hits, (said,) = numbers()
    assert (result, hits) == (41, 0)
    assert said.startswith("There is no folder in which machine code can be kept")
    assert "NUMBA_CACHE_DIR" in said
