"""Records survive a crash, and a broken line costs one run."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
from dataclasses import replace

import pytest
from models import random_model

from dynatree_suite.bench import environment
from dynatree_suite.bench.environment import describe_environment, public_name, public_text
from dynatree_suite.bench.records import (
    Bandwidth,
    Divergence,
    Failure,
    Header,
    Records,
    Run,
    Split,
    check_writable,
    dumps,
    read_records,
)
from dynatree_suite.files import whole_file, write_atomically
from tools.pack_records import pack

HEADER = Header({"threads": 2}, {"seed": 0, "methods": []}, "2026-01-01T00:00:00+00:00")
LINES = [
    Run("ar", "a", 0, 0.5, [1, 2], [[0.1, 1], [0.5, 1]], 2, "length", [0, 0], [0, 0], [0, 0], {"evictions": 1}, 3),
    Run("ar", "a", 1, 0.25, [1, 2], [[0.25, 2]], 1, "eos"),
    Run("ptd", "a", 0, 0.5, [1, 2, 3], [[0.1, 2], [0.5, 1]], 2, "length", [3, 2], [1, 0], [2, 2], side_nodes=[0, 6]),
    Failure("chain", "a", 0, "ValueError: no"),
    Divergence("ar", "a", 1, 2, 5, None, 0.25, False),
    Split("ar", "a", 1.0, 0.0, 0.75, 0.25, 2, [["target", 0.0, 0.75, 1], ["commit", 1.0, 1.0, 2]]),
    Bandwidth("before", 4096, 2e10, 1.5e10),
    Bandwidth("before", 4096, 2e10, 1.5e10),
]
BY_KIND = sorted(LINES, key=lambda line: ["run", "error", "divergence", "split", "bandwidth"].index(line.kind))


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "records.jsonl"
    records = Records(HEADER)
    with records.kept_in(file):
        for line in LINES:
            records.add(line)
    return file


def test_round_trip(path):
    records = read_records(path)
    assert records.header == HEADER
    assert list(records.lines()) == BY_KIND
    assert records.notes == []


def test_names_that_are_no_utf_8_are_written_and_read_back(tmp_path):
    header = replace(HEADER, setup={**HEADER.setup, "workload": "prompts of \udcff"})
    records, failure = Records(header), Failure("ar", "a", 0, "no \udcff")
    with records.kept_in(tmp_path / "records.jsonl"):
        records.add(failure)
    found = read_records(tmp_path / "records.jsonl")
    assert found.header == header
    assert list(found.lines()) == [failure]


@pytest.mark.parametrize("size", [248, 255])
def test_a_name_without_room_for_that_of_the_partial_file_is_refused_at_once(tmp_path, size):
    with pytest.raises(ValueError, match="partial first: file name too long; give another name"):
        check_writable(tmp_path / ("x" * size))
    assert check_writable(tmp_path / ("x" * 247))
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_finished_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("before")

    def fail():
        with whole_file(tmp_path / "file") as file:
            file.write(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        fail()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "before")]


def test_every_line_is_on_disk_before_the_next(tmp_path):
    records = Records(HEADER)
    with records.kept_in(tmp_path / "records.jsonl"):
        records.add(LINES[0])
        assert list(read_records(tmp_path / "records.jsonl").runs) == [("ar", "a", 0)]


def test_a_cut_off_last_line_is_dropped_with_a_sentence(path):
    path.write_text(path.read_text()[:-20])
    records = read_records(path)
    assert len(records.bandwidths) == 1
    assert len(records.runs) == 3
    assert records.notes == [
        "Line 9 of records.jsonl is cut off, as after a crash; it is left out and counts as not done."
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body | {"kind": "walk"},
        lambda body: body | {"seconds": "fast"},
        lambda body: body | {"seconds": -1.0},
        lambda body: body | {"tokens": [1, "x"]},
        lambda body: body | {"tokens": [1, 2, 3]},
        lambda body: body | {"accepted": [1, 0]},
        lambda body: body | {"nodes": [0]},
        lambda body: body | {"side_nodes": [0.5, 0]},
        lambda body: body | {"unheard": 1},
        lambda body: {key: value for key, value in body.items() if key != "iterations"},
        lambda body: body | {"kind": []},
        lambda body: body | {"counters": 5},
        lambda body: body | {"counters": ["draft_rows"]},
        lambda body: body | {"emissions": [[0.1, float("inf")]]},
        lambda body: [],
    ],
)
def test_a_corrupt_line_costs_its_run_only(path, change):
    lines = path.read_text().splitlines()
    lines[1] = json.dumps(change(json.loads(lines[1])))
    path.write_text("\n".join(lines) + "\n")
    records = read_records(path)
    assert list(records.runs) == [("ar", "a", 1), ("ptd", "a", 0)]
    assert len(records.divergences) == len(records.splits) == len(records.failures) == 1
    assert len(records.notes) == 1
    assert records.notes[0].startswith("Line 2 of records.jsonl is not a record")


def test_a_line_without_an_end_of_brackets_costs_itself_only(path):
    path.write_text(path.read_text() + "[" * 100_000 + "\n")
    records = read_records(path)
    assert list(records.lines()) == BY_KIND
    assert len(records.notes) == 1


def test_a_run_whose_accepted_tokens_do_not_make_its_text_is_refused_with_the_counts():
    with pytest.raises(ValueError, match=r"1 accepted tokens .* 2 iterations are not its 2 tokens, .*HR \* AL"):
        replace(LINES[0], accepted=[1, 0])
    with pytest.raises(ValueError, match="depths has 1 entries for 2 iterations"):
        replace(LINES[0], depths=[0])


def test_a_file_from_before_rows_beside_the_tree_is_read(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in one.items() if k != "side_nodes"}) + "\n" for one in lines))
    records = read_records(path)
    assert records.notes == []
    assert [run.side_nodes for run in records.runs.values()] == [None] * 3


def test_a_bandwidth_is_checked_like_a_run(path):
    lines = path.read_text().splitlines()
    for change in ({"read": 0.0}, {"size": 0.5}, {"when": 3}):
        path.write_text("\n".join([*lines[:-1], json.dumps(json.loads(lines[-1]) | change)]) + "\n")
        records = read_records(path)
        assert len(records.bandwidths) == len(records.notes) == 1


def test_a_run_replaces_its_failure():
    records = Records(HEADER)
    records.add(Failure("ar", "a", 0, "no"))
    records.add(LINES[0])
    assert records.failures == {}


@pytest.mark.parametrize(
    "text", ["", "{}\n", "[1]\n", "no json\n", dumps(LINES[0]), '{"kind": "header", "format": 1}\n']
)
def test_a_file_without_a_header_is_no_records_file(tmp_path, text):
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(ValueError, match="is no records file"):
        read_records(tmp_path / "x.jsonl")


def test_a_later_format_is_refused(tmp_path):
    (tmp_path / "x.jsonl").write_text(dumps(HEADER).replace('"format": 1', '"format": 99'))
    with pytest.raises(ValueError, match="format 99 and this version reads format 1"):
        read_records(tmp_path / "x.jsonl")


def test_a_packed_file_reads_as_the_plain_one(tmp_path):
    text = "".join(map(dumps, [HEADER, *LINES]))
    plain, packed = tmp_path / "x.jsonl", tmp_path / "x.jsonl.gz"
    plain.write_text(text, encoding="utf-8")
    packed.write_bytes(gzip.compress(text.encode()))
    read, expected = read_records(packed), read_records(plain)
    assert (read.header, list(read.lines()), read.notes) == (expected.header, list(expected.lines()), [])
    assert read.runs


@pytest.mark.parametrize(
    "damage", [lambda body: body[:-20], lambda body: body[:20] + b"?" + body[21:], lambda _: b"no"]
)
def test_a_damaged_packed_file_is_refused(tmp_path, damage):
    text = "".join(map(dumps, [HEADER, *LINES]))
    (tmp_path / "x.jsonl.gz").write_bytes(damage(gzip.compress(text.encode())))
    with pytest.raises(ValueError, match="cannot be unpacked"):
        read_records(tmp_path / "x.jsonl.gz")


def test_nothing_is_written_to_a_packed_file(tmp_path):
    with pytest.raises(ValueError, match=r"leave out \.gz"):
        check_writable(tmp_path / "x.jsonl.gz")


def test_packing_keeps_everything_but_the_times_between_a_run_s_first_and_last_emission(path):
    long = Run("ar", "b", 0, 0.5, [1, 2, 3, 4], [[0.1, 1], [0.2, 2], [0.5, 1]], 3, "length")
    before = read_records(path)
    before.add(long)
    with path.open("a", encoding="utf-8") as file:
        file.write(dumps(long))
    place = pack(path)
    assert (place.name, path.exists()) == ("records.jsonl.gz", False)
    after = read_records(place)
    assert after.runs["ar", "b", 0] == replace(long, emissions=[[0.1, 1], [0.5, 3]])
    assert [line for line in after.lines() if line != after.runs["ar", "b", 0]] == BY_KIND
    assert after.frame().equals(before.frame())
    body = place.read_bytes()
    assert (pack(place), place.read_bytes()) == (place, body)


def test_records_that_are_not_whole_are_not_packed(path):
    text = path.read_text(encoding="utf-8")
    path.write_text(text + '{"kind": "run"', encoding="utf-8")
    with pytest.raises(ValueError, match="not whole, so they are not packed: Line 10 of"):
        pack(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match="There is no records file"):
        read_records(tmp_path / "none.jsonl")


def test_headers_say_what_differs():
    other = Header({"threads": 1}, {"seed": 0, "methods": []}, "another time")
    assert HEADER.differences(other) == ["environment.threads (2, now 1)"]
    assert HEADER.differences(HEADER) == []


def test_writing_is_atomic_and_checked(tmp_path):
    write_atomically(tmp_path / "x.json", "old")
    write_atomically(tmp_path / "x.json", "new")
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]
    with pytest.raises(ValueError, match="is a folder"):
        check_writable(tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        check_writable(tmp_path / "missing" / "x.json")


def test_a_file_never_takes_the_place_of_a_device_or_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for write in (check_writable, lambda path: write_atomically(path, "text")):
        with pytest.raises(ValueError, match="pipe is no regular file .*; give another name"):
            write(pipe)
    assert pipe.is_fifo()
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


def test_the_environment_names_no_person_and_no_place(tmp_path, monkeypatch):
    described = describe_environment()
    assert described["torch"]
    assert described["threads"] >= 1
    json.dumps(described)
    (tmp_path / "pair" / "target").mkdir(parents=True)
    assert public_name(str(tmp_path / "pair" / "target")) == "pair/target"
    assert public_name("EleutherAI/pythia-70m") == "EleutherAI/pythia-70m"
    monkeypatch.chdir(tmp_path)
    assert public_text(f"OSError: {tmp_path}/weights") == "OSError: .../weights"


def test_the_commit_of_a_changed_checkout_tells_its_code_from_other_code(monkeypatch, tmp_path):
    def git(*command):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *command], cwd=tmp_path, check=True)

    package = tmp_path / "dynatree_lib"
    package.mkdir()
    (package / "x.py").write_text("1\n")
    (tmp_path / "page.md").write_text("a\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    monkeypatch.setattr(environment, "_HOME", tmp_path)
    commit = environment.git_commit.__wrapped__
    clean, seen = commit(), []
    assert len(clean) == 40
    for place, text in ((package / "x.py", "2\n"), (package / "x.py", "3\n"), (package / "new.py", "1\n"),
                        (tmp_path / "new.txt", "")):  # fmt: skip
        place.write_text(text)
        seen.append(commit())
    assert len({*seen}) == 3
    assert seen[2] == seen[3]  # outside the package
    assert all(re.fullmatch(f"{clean}\\+dirty\\.[0-9a-f]{{12}}", one) for one in seen)
    git("checkout", "-q", "dynatree_lib/x.py")
    (package / "new.py").unlink()
    assert commit() == clean
    (tmp_path / "page.md").write_text("b\n")
    assert commit().startswith(f"{clean}+dirty.")


def test_a_draft_without_files_is_told_from_another_by_its_parameters():
    model, same, other = (random_model("llama", seed=seed) for seed in (0, 0, 1))
    described = [environment.describe_draft(one) for one in (model, same, other)]
    assert described[0] == described[1]
    assert [*described[0]["files"]] == ["parameters"]
    assert described[0]["files"] != described[2]["files"]


def test_what_an_older_file_does_not_tell_of_drafts_is_not_compared():
    old = Header({}, {"draft": {"name": "d", "files": {}}})
    new = Header({}, {"draft": {"name": "d", "files": {"parameters": "1"}}, "common_draft": {"name": "c"}})
    assert old.differences(new) == old.differences(Header({}, {**new.setup, "near_tie_steps": 2})) == []
    assert old.differences(Header({}, {"draft": {"name": "e", "files": {"parameters": "1"}}}))
    other = Header({}, {"draft": {"name": "d", "files": {"parameters": "2"}}, "common_draft": {"name": "c"}})
    assert [one.split(" (")[0] for one in new.differences(other)] == ["setup.draft"]
    assert [one.split(" (")[0] for one in new.differences(old)] == ["setup.draft", "setup.common_draft"]


def test_a_copy_without_history_is_told_its_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "_HOME", tmp_path)
    monkeypatch.delenv(environment.COMMIT, raising=False)
    assert environment.git_commit.__wrapped__() is None
    monkeypatch.setenv(environment.COMMIT, "0123abc")
    assert environment.git_commit.__wrapped__() == "0123abc"
