"""Machine code on disk that is damaged, or that cannot be written, costs time and nothing else."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from numba.core.caching import IndexDataCacheFile

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
        module = imported(tmp_path)
        return module.more(20), sum(module.more.stats.cache_hits.values()), [one.message for one in caplog.records]

    return called


def imported(folder):
    spec = importlib.util.spec_from_file_location("numbers", folder / "numbers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files(folder, ending):
    return sorted((folder / "__pycache__").glob(f"*.{ending}"))


def test_a_second_process_compiles_nothing(numbers):
    assert numbers() == (41, 0, [])
    assert numbers() == (41, 1, [])


def test_two_that_keep_code_for_other_arguments_at_once_keep_both(numbers, tmp_path, monkeypatch):
    """Without a lock numba gives both files one name, and one entry of the index leads to the other's code."""
    together, load = threading.Barrier(2), IndexDataCacheFile._load_index

    def load_together(self):
        found = load(self)
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.5)  # with a lock the second never comes while the first is here
        return found

    first, second = imported(tmp_path), imported(tmp_path)
    for module, number in ((first, 1), (second, 1.5)):  # compiled, and not kept yet
        with monkeypatch.context() as patch:
            patch.setattr(KeptCode, "save_overload", lambda *_: None)
            module.doubled(number)
    monkeypatch.setattr(IndexDataCacheFile, "_load_index", load_together)
    with ThreadPoolExecutor() as pool:
        kept = [
            pool.submit(module.doubled._cache.save_overload, signature, found)
            for module in (first, second)
            for signature, found in module.doubled.overloads.items()
        ]
        assert [one.result() for one in kept] == [None, None]
    monkeypatch.setattr(IndexDataCacheFile, "_load_index", load)
    later = imported(tmp_path)
    assert (later.doubled(20), later.doubled(0.25)) == (40, 0.5)
    assert sum(later.doubled.stats.cache_hits.values()) == 2


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
