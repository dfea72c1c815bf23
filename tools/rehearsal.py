"""Rehearse the notebooks: every profile that needs a GPU or a model hub, whole, on stand-ins and the CPU.

    python3 -m tools.rehearsal --out outputs/rehearsal           # all notebooks x paper, colab x three dtypes
    python3 -m tools.rehearsal --only '2*' --profiles paper --dtypes float16

The models and data sets are those of `tools.stand_ins`; in `colab` and float32 the pair is SmolLM2 itself, with its
draft on features, where that has been fetched. Amounts of work are divided by `--divide`, and every setting is
taken. In 16 bits the device is a GPU in name: models are asked for on "cuda", run over static buffers, and lie on the
CPU. A rehearsal fails where a cell raises an error, a model is asked for on another device or in another dtype than the
run's, a table is not run as its paper says (`tools.as_the_papers`), or a branch that depends on how a notebook is run
was taken by no rehearsal.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROFILES = ("paper", "colab")
DTYPES = ("float32", "float16", "bfloat16")
GPU = "cuda"
DIVIDE = 1000
LIMIT = 900
"""Seconds after which a rehearsal is ended."""
REAL = "HuggingFaceTB/SmolLM2-360M-Instruct + HuggingFaceTB/SmolLM2-135M-Instruct"
"""The pair of the profile `colab` here: two hub ids, as a user may name them."""
OWN_PAIR, OWN_DTYPE = "smollm2", "float32"
"""The profile's own pair, and the dtype in which it takes the place of those two."""
SEEN = "__branches_seen__"
OF_A_RUN = {"profile", "device", "dtype", "exact", "decides", "divide", "pair", "pairs", "models", "source", "data",
            "where", "workload", "bundled", "measure", "wanted"}  # fmt: skip
"""Names by which a condition depends on how a notebook is run."""
UNTAKEN = {
    "if nb.decides": "claims are decided by a whole run alone",
    "20_ptd c18 8 if bundled": "the profile laptop, on the bundled pair",
    "20_ptd c18 9 if bundled": "the same",
    "30_traversal c04 2 if isinstance(pairs, str)": "a user's wish",
    "51_beyond_this_machine c07 3 unless measure is None": "a user's wish",
    "51_beyond_this_machine c07 4 if wanted": "the profile laptop measures this machine, too",
    "51_beyond_this_machine c44 12 unless not wanted": "the same",
}
"""Part of a branch's id -> why no rehearsal takes it."""
OTHER_DTYPES = {"40_speed": "bfloat16"}
"""A notebook -> a dtype that it compares the run's with (its audit of 16 bits)."""


@dataclass
class Rehearsal:
    """One notebook in one profile and dtype.

    Attributes:
        notebook, profile, dtype, device: what was run.
        errors: of cells: section, cell and error.
        loaded: models asked for: source, device, dtype.
        branches: ids of the branches taken.
        usual: dtype that the notebook has in this profile where none is given; "" where that was not looked at.
        unsound: runs and checks that failed, which end no notebook.
        seconds: it took.
    """

    notebook: str
    profile: str
    dtype: str
    device: str
    errors: list[str] = field(default_factory=list)
    loaded: list[list[str]] = field(default_factory=list)
    branches: list[str] = field(default_factory=list)
    usual: str = ""
    unsound: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def problems(self) -> list[str]:
        """Everything that is wrong, in words."""
        return [*self.errors, *self.misplaced, *self.unsound]

    @property
    def misplaced(self) -> list[str]:
        """Models that were asked for on another device or in another dtype than the run's, in words."""
        dtypes = (self.dtype, OTHER_DTYPES.get(self.notebook))
        return [
            f"{source} was asked for on {device} in {dtype}"
            for source, device, dtype in self.loaded
            if not (device == self.device and dtype in dtypes) and "tiny" not in source
        ]


class Marks(ast.NodeTransformer):
    """Marks the branches of a cell, so that running it notes which were taken: "NOTEBOOK CELL LINE KIND"."""

    def __init__(self, where: str) -> None:
        self.where, self.ids = where, []  # type: tuple[str, list[str]]

    def _mark(self, node: ast.AST, kind: str) -> ast.expr:
        name = f"{self.where} {node.lineno} {kind}"  # type: ignore[attr-defined]
        self.ids.append(name)
        call: ast.expr = ast.parse(f"{SEEN}({name!r})", mode="eval").body
        return call

    def visit_If(self, node: ast.If) -> ast.If:
        """Mark both ends of a statement; one without else is left by its second end, too."""
        test = ast.unparse(node.test)
        taken, other = self._mark(node, f"if {test}"), self._mark(node, f"unless {test}")
        self.generic_visit(node)
        node.body = [ast.Expr(taken), *node.body]
        node.orelse = [ast.Expr(other), *node.orelse]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        """Mark both values of a conditional expression."""
        test = ast.unparse(node.test)
        taken, other = self._mark(node, f"if {test}"), self._mark(node, f"unless {test}")
        self.generic_visit(node)
        node.body = _after(taken, node.body)
        node.orelse = _after(other, node.orelse)
        return node


def _after(mark: ast.expr, value: ast.expr) -> ast.expr:
    """An expression that calls the mark and is the value."""
    return ast.Subscript(ast.Tuple([mark, value], ast.Load()), ast.Constant(1), ast.Load())


def code_cells(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield section, id and source of the code cells of a notebook, but for the one that installs the library."""
    from dynatree_suite.runs.sections import heading

    section = ""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        section = heading(cell) or section
        if cell["cell_type"] == "code" and "install" not in cell["metadata"].get("tags", ()):
            yield section, cell["id"], "".join(cell["source"])


def branches_of(path: Path) -> list[str]:
    """Return the ids of all branches of a notebook."""
    found: list[str] = []
    for _, cell, source in code_cells(path):
        marks = Marks(f"{path.stem} {cell}")
        with suppress(SyntaxError):  # an exercise may be unfinished on purpose
            marks.visit(ast.parse(source))
        found += marks.ids
    return list(dict.fromkeys(found))


@contextmanager
def spied(rehearsal: Rehearsal) -> Iterator[None]:
    """Note which models are asked for, and let "cuda" be the CPU where the rehearsal's device is that in name."""
    import torch
    from torch.nn import functional

    from dynatree_lib.engines import static
    from dynatree_lib.models import pairs
    from dynatree_suite.runs import notebook

    def load(source: Any, *, device: Any = "cpu", dtype: Any = None, **options: Any) -> Any:
        rehearsal.loaded.append([str(source), str(device), str(dtype).removeprefix("torch.")])
        return pairs_load(source, device="cpu" if device == GPU else device, dtype=dtype, **options)

    def linear(hidden: Any, weight: Any, bias: Any = None) -> Any:
        """A product in float16, which a CPU does not compute in: ten times as fast in float32."""
        if hidden.dtype != torch.float16:
            return plain_linear(hidden, weight, bias)
        return plain_linear(hidden.float(), weight.float(), None if bias is None else bias.float()).half()

    plain_linear = functional.linear
    functional.linear = linear
    pairs_load, checked, warm = pairs.load_model, notebook.checked_device, static.StaticModel.warm
    pairs_device = pairs._device
    pairs.load_model = load
    if rehearsal.device == GPU:
        notebook.checked_device = lambda device: device
        pairs._device = lambda device: device or "cpu"
        static.StaticModel.warm = lambda model, trees=True: model  # nothing is captured on a CPU
    try:
        yield
    finally:
        pairs.load_model, notebook.checked_device, static.StaticModel.warm = pairs_load, checked, warm
        pairs._device, functional.linear = pairs_device, plain_linear


def rehearse(path: Path, rehearsal: Rehearsal, parameters: Mapping[str, Any]) -> Rehearsal:
    """Run the cells of a notebook in this process, section by section as `runs.sections` does.

    The environment must name folder, models, data and divisor. A process rehearses one notebook.
    """
    from IPython.core.interactiveshell import InteractiveShell

    from dynatree_suite.runs.sections import assigned

    shell = InteractiveShell.instance()
    seen: dict[str, None] = {}
    setattr(builtins, SEEN, seen.setdefault)
    clock, broken, lost = time.perf_counter(), None, set()  # type: float, str | None, set[str]
    with spied(rehearsal):
        for section, cell, source in code_cells(path):
            if broken is not None and section == broken:
                lost.update(assigned(source, imports=False))
                continue
            for name in lost:
                shell.user_ns.pop(name, None)
            broken, lost = None, set()
            shell.ast_transformers[:] = [Marks(f"{path.stem} {cell}")]
            if "= begin(" in source and rehearsal.profile == "paper":  # once as whoever gives no dtype has it
                shell.push({**parameters, "dtype": None})
                shell.run_cell(source)
                rehearsal.usual = getattr(shell.user_ns.get("nb"), "dtype", "")
                rehearsal.loaded.clear()  # of models that this cell loads, too, in that dtype
                shell.push(dict(parameters))
            result = shell.run_cell(source, store_history=True)
            if "profile = " in source:  # the parameters cell: papermill's parameters come behind it
                shell.push(dict(parameters))
            error = result.error_before_exec or result.error_in_exec
            if error is not None:
                line = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(line.filename).name}:{line.lineno}" if line else ""
                rehearsal.errors.append(f"{section or 'before the first section'}, cell {cell}: "
                                        f"{type(error).__name__}: {error} ({place})")  # fmt: skip
                broken = section
                lost.update(assigned(source, imports=False))
                if not section:
                    break
    rehearsal.branches, rehearsal.seconds = [*seen], round(time.perf_counter() - clock, 1)
    return rehearsal


@dataclass(frozen=True)
class Child:
    """A forked process that rehearses a notebook: where it writes what it noted, and what it prints."""

    rehearsal: Rehearsal
    noted: Path
    log: Path

    def ended(self, status: int) -> Rehearsal:
        """Return what the child has noted."""
        if self.noted.is_file():
            return Rehearsal(**json.loads(self.noted.read_text()))
        code = os.waitstatus_to_exitcode(status)
        self.rehearsal.errors.append(f"its process ended with status {code}; see {self.log}")
        return self.rehearsal


def pair_of(profile: str, dtype: str) -> dict[str, str]:
    """Return the pair to ask for, none where it is the profile's own."""
    from dynatree_lib.models.fetch import fetched

    own = profile != "colab" or (dtype == OWN_DTYPE and fetched(OWN_PAIR) is not None)
    return {} if own else {"pair": REAL}


def start(path: Path, profile: str, dtype: str, out: Path, stand_ins: Path, divide: int) -> tuple[int, Child]:
    """Fork a process that rehearses, with its own environment and output; return its id and where it writes."""
    device = "cpu" if dtype == "float32" else GPU
    rehearsal, folder = Rehearsal(path.stem, profile, dtype, device), out / f"{profile}-{dtype}"
    folder.mkdir(parents=True, exist_ok=True)
    child = Child(rehearsal, folder / f"{path.stem}.rehearsal.json", folder / f"{path.stem}.log")
    child.noted.unlink(missing_ok=True)  # nothing of an earlier rehearsal may pass for this one's
    (folder / f"{path.stem}.summary.json").unlink(missing_ok=True)
    shutil.rmtree(folder / "records" / path.stem, ignore_errors=True)
    if process := os.fork():
        return process, child
    from tools.as_the_papers import unsound

    code = 1
    try:
        places = {"MODELS": stand_ins / "models", "DATA": stand_ins / "data", "OUT": folder, "ROOT": ROOT}
        os.environ.update({f"DYNATREE_{name}": str(place) for name, place in places.items()})
        os.environ.update(DYNATREE_PROFILE=profile, DYNATREE_DIVIDE=str(divide), HF_HUB_OFFLINE="1")
        os.environ.update(PLOTLY_RENDERER="plotly_mimetype", TOKENIZERS_PARALLELISM="false")
        os.chdir(ROOT / "notebooks")
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT)  # ends what hangs
        with child.log.open("w") as file, redirect_stdout(file), redirect_stderr(file):
            parameters = {"profile": profile, "device": device, "dtype": dtype, **pair_of(profile, dtype)}
            rehearse(path, rehearsal, parameters)
            rehearsal.unsound = unsound(folder, path.stem)
        child.noted.write_text(json.dumps(asdict(rehearsal), indent=1))
        code = 0
    except BaseException:
        with child.log.open("a") as file:
            traceback.print_exc(file=file)
    finally:
        os._exit(code)


def warm_up() -> None:
    """Import what notebooks import, once, before processes are forked; nothing is computed, so no thread is there."""
    import datasets  # noqa: F401
    import ipywidgets  # noqa: F401
    import pandas  # noqa: F401
    import plotly.express  # noqa: F401
    import transformers.models.auto.modeling_auto  # noqa: F401

    import dynatree_lib as dt
    import dynatree_suite.explore
    import dynatree_suite.runs.real  # noqa: F401

    for name in dir(dt):
        getattr(dt, name)


def untaken(notebooks: Iterable[Path], taken: Iterable[str], known: Mapping[str, str]) -> list[str]:
    """Return the branches that depend on how a notebook is run and that nothing has taken, but for those in `known`.

    An entry of `known` that explains nothing is told, too.
    """
    paths, seen = [*notebooks], set(taken)
    left = [one for path in paths for one in branches_of(path) if one not in seen]
    of_a_run = [one for one in left if OF_A_RUN & set(re.findall(r"\w+", one.split(" ", 3)[3]))]
    names = {path.stem for path in paths}
    stale = [words for words in known if words.split()[0] in names and not any(words in one for one in left)]
    told = [one for one in of_a_run if not any(words in one for words in known)]
    return [*told, *(f"{words}: is taken, or gone; strike it from UNTAKEN." for words in stale)]


def as_the_papers(done: Iterable[Rehearsal], out: Path) -> list[str]:
    """Return in sentences what in the profile `paper`, in its own dtypes, was not run as the papers say."""
    from tools.as_the_papers import not_loaded, problems, wanted_of_the_papers

    told, ran = [], {(one.notebook, one.dtype): one for one in done if one.profile == "paper"}
    for wanted in wanted_of_the_papers():
        dtype = wanted.dtype or DTYPES[1]
        one = ran.get((wanted.notebook, dtype))
        if one is not None:
            told += problems(wanted, out / f"paper-{dtype}")
        if one is not None and one.usual != dtype:
            told.append(f"{wanted.notebook}: by itself it runs in {one.usual or 'no dtype'}, the paper in {dtype}.")
    for one in done:
        if one.profile == "paper":
            told += not_loaded(one.notebook, [source for source, _, _ in one.loaded])
    return list(dict.fromkeys(told))


def taken_by(done: Iterable[Rehearsal]) -> list[str]:
    """Return the branches that rehearsals have taken."""
    return [branch for one in done for branch in one.branches]


def rehearse_all(
    notebooks: Sequence[Path], profiles: Sequence[str], dtypes: Sequence[str], out: Path, stand_ins: Path, divide: int,
    workers: int, say: Any = print,
) -> list[Rehearsal]:  # fmt: skip
    """Rehearse notebooks x profiles x dtypes, so many at a time, and say how each went."""
    warm_up()
    waiting = [*product(notebooks, profiles, dtypes)]
    running: dict[int, Child] = {}
    done = []
    while waiting or running:
        while waiting and len(running) < workers:  # from one thread alone: others would hold locks in the child
            process, child = start(*waiting.pop(0), out=out, stand_ins=stand_ins, divide=divide)
            running[process] = child
        process, status = os.wait()
        one = running.pop(process).ended(status)
        done.append(one)
        told = "whole" if not one.problems else f"{len(one.problems)} problems"
        say(f"{one.notebook:36} {one.profile:6} {one.dtype:9} {one.seconds:6.1f} s  {told}")
        for problem in one.problems:
            say(f"    {problem}")
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse, and return 0 if every notebook ran whole, was placed well and measured what its papers say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "rehearsal", help="folder of the results")
    parser.add_argument("--stand-ins", type=Path, help="folder that tools.stand_ins has made (default: made here)")
    parser.add_argument("--only", action="append", metavar="GLOB", help="only notebooks matching; repeatable")
    parser.add_argument("--profiles", nargs="+", default=PROFILES, choices=PROFILES)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--divide", type=int, default=DIVIDE, help="of amounts (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="at a time (default: %(default)s)")
    args = parser.parse_args(arguments)
    patterns = args.only or ["*"]
    notebooks = [
        path
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
        if any(fnmatchcase(path.stem, pattern.removesuffix(".ipynb")) for pattern in patterns)
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    stand_ins = args.stand_ins or args.out / "stand-ins"
    if args.stand_ins is None:  # in a process of its own: threads that computed here would hold locks in the children
        shutil.rmtree(stand_ins, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "tools.stand_ins", str(stand_ins.resolve())], cwd=ROOT, check=True)
    say = lambda text: print(text, flush=True)  # noqa: E731, T201
    if {"colab", OWN_DTYPE} <= {*args.profiles, *args.dtypes} and pair_of("colab", OWN_DTYPE):
        say("SmolLM2 has not been fetched, so no draft on features is rehearsed; `dynatree fetch smollm2` brings it.")
    done = rehearse_all(
        notebooks, args.profiles, args.dtypes, args.out.resolve(), stand_ins.resolve(), args.divide, args.workers, say
    )
    bad = [one for one in done if one.problems]
    say(f"{len(done) - len(bad)} of {len(done)} rehearsals whole.")
    told = as_the_papers(done, args.out)
    if (set(args.profiles), set(args.dtypes)) == (set(PROFILES), set(DTYPES)):  # fewer cannot take every branch
        told += untaken(notebooks, taken_by(done), UNTAKEN)
    for line in told:
        say(line)
    return int(bool(bad or told))


if __name__ == "__main__":
    sys.exit(main())
