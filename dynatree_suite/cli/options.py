"""The options of every command.

Nothing slow is imported here, so that `--help` and a misspelled option answer at once. What options mean, and the work,
belong to the module of each command.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..runs.plan import PROFILES

JUDGED = 20
"""The first prompts of the bundled workload are those that results are judged on; nothing is tuned on them."""
TUNED = Path("outputs") / "tuned"
"""Folder of what `dynatree tune` saves."""
Options = argparse.ArgumentParser | argparse._ArgumentGroup  # what an option may be added to


def add_pair(to: Options) -> None:
    """--pair, or --target, --draft and --vocabularies."""
    to.add_argument(
        "--pair", help="a named pair (see `dynatree fetch`), a folder, or 'TARGET + DRAFT'; 'tiny' by default"
    )
    to.add_argument("--target", help="hub name or folder of a target, or the pair whose target it is, with --draft")
    to.add_argument("--draft", help="the same of its draft; or skip:8/9/10, the target without these layers")
    to.add_argument(
        "--vocabularies", choices=("same", "intersection"), default="same",
        help="intersection: the draft has another tokenizer, and drafts the tokens that both have",
    )  # fmt: skip


def add_workload(to: Options, *, which: str = "name of the workload", limit: int | None = None) -> None:
    """--workload, --task, --data, --limit."""
    help_ = f"{which}, or several separated by commas (default: the bundled prompts)"
    to.add_argument("--workload", default="bundled", help=help_)
    to.add_argument("--task", help="only this task of the workload, e.g. code with the bundled prompts")
    to.add_argument("--data", metavar="DIR", help="local folder of the data set, instead of the hub")
    default = "" if limit is None else " (default: %(default)s)"
    to.add_argument(
        "--limit", type=int, default=limit, help=f"at most this many prompts, of each task in turn{default}"
    )


def add_sampling(to: Options, temperature: float = 0.0) -> None:
    """--temperature, --top-k, --top-p, --seed."""
    meaning = "0 is greedy decoding" if temperature == 0 else "above 0"
    to.add_argument("--temperature", type=float, default=temperature, help=f"{meaning} (default: %(default)s)")
    to.add_argument("--top-k", type=int, metavar="K", help="sample from the K most probable tokens")
    to.add_argument("--top-p", type=float, metavar="P", help="sample from the fewest tokens of together this mass")
    to.add_argument("--seed", type=int, default=0)


def add_machine(to: Options, dtypes: str | None = None) -> None:
    """--device, --dtype, --engine, --static, --threads; with a default of --dtypes, that list for --dtype, --static."""
    to.add_argument("--device", help="cpu, cuda, cuda:1, auto (default: cpu)")
    to.add_argument(
        "--engine",
        default="auto",
        help="eager, linears, lean, packed, compiled or quantised forwards (default: the fastest)",
    )
    to.add_argument("--draft-dtype", metavar="DTYPE", help="of the draft (default: the pair's own choice)")
    to.add_argument("--threads", help="torch threads; auto tries how many are fastest (default: torch's own choice)")
    if dtypes is not None:
        to.add_argument("--dtypes", default=dtypes, metavar="LIST", help="one after the other (default: %(default)s)")
        return
    to.add_argument(
        "--dtype", help="float32, bfloat16, float16, float64; fastest times the first two (default: float32 on the CPU)"
    )
    to.add_argument("--static", action="store_true", help="static buffers; on a GPU, CUDA graphs captured beforehand")


def add_workers(to: Options) -> None:
    """--workers, --scheduler."""
    to.add_argument("--workers", type=int, metavar="N", help="N at a time, each on its share of the cores")
    to.add_argument("--scheduler", metavar="ADDRESS", help="on this Dask scheduler's workers, e.g. tcp://host:8786")


# ------------------------------------------------------------------------------------------------------------ commands
def run(parser: argparse.ArgumentParser) -> None:
    """Run notebooks of the suite, each with a receipt."""
    add = parser.add_argument
    add("--profile", choices=PROFILES, default="laptop", help="how large a run (default: laptop)")
    add("--only", action="append", default=[], metavar="GLOB", help="only notebooks matching, e.g. '10_*'; repeatable")
    add("--headline", action="store_true", help="only the headline notebooks")
    add("-p", dest="overrides", action="append", default=[], metavar="NAME=VALUE", help="set a parameter; repeatable")
    add("--out", type=Path, help="folder of this run (default: outputs/<profile>-<time>; with --resume the newest)")
    add("--resume", action="store_true", help="skip notebooks whose receipt is still valid")
    add("--overwrite", action="store_true", help="run notebooks that have finished in this folder once more")
    add("--hours", type=float, metavar="H", help="only what fits, by the plan; headline notebooks first")
    add("--divide", type=int, default=1, metavar="N", help="rehearse: prompts, tokens, repeats divided by N")
    add("--dry-run", action="store_true", help="print what would run, with estimates, and stop")
    add("--notebooks", type=Path, help="folder of the notebooks (default: notebooks/ of the checkout)")
    add("--report", action="store_true", help="build report.html afterwards, also after failures")
    add("--timeout", type=float, metavar="MINUTES", help="a notebook that takes longer fails (default: no limit)")
    add_workers(parser)


def sweep(parser: argparse.ArgumentParser) -> None:
    """Measure every configuration of a grid."""
    add = parser.add_argument
    add("grid", metavar="GRID", help="YAML file, or a grid of the library: dynatree-fixed")
    add("--out", type=Path, help="folder of the sweep (default: outputs/sweeps/<name of the grid>)")
    add("--resume", action="store_true", help="go on with the configurations that have no row yet")
    add("--dry-run", action="store_true", help="list the configurations, and stop")
    add_workers(parser)


def report(parser: argparse.ArgumentParser) -> None:
    """Build the report of a run's folder, or compare two runs."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of a run, as `dynatree run` printed it")
    parser.add_argument("other", type=Path, nargs="?", metavar="DIR2", help="another run: compare both instead")


def notebooks(parser: argparse.ArgumentParser) -> None:
    """Copy the notebooks, and the records that they read, into a folder."""
    parser.add_argument("folder", type=Path, nargs="?", default=Path("dynatree-notebooks"), help="default: %(default)s")


def chat(parser: argparse.ArgumentParser) -> None:
    """Talk to a pair, and see which tokens were drafted."""
    what, how = parser.add_argument_group("who answers"), parser.add_argument_group("how")
    add_pair(what)
    what.add_argument("--method", default="auto", metavar="NAME", help="as for `dynatree bench` (default: %(default)s)")
    what.add_argument("--system", metavar="TEXT", help="message of the system, for models with a chat template")
    how.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="of an answer (default: %(default)s)")
    add_sampling(how)
    add_machine(how)


def bench(parser: argparse.ArgumentParser) -> None:
    """Measure decoding methods against each other."""
    what = parser.add_argument_group("what is measured")
    add_pair(what)
    what.add_argument(
        "--methods", default="hf-generate,hf-assisted,ar,ar-fast,chain,fixed-tree", metavar="LIST",
        help="methods with options, e.g. hf-generate,chain:length=6,fixed-tree:depth=6,branching=3,tau=0.03 "
        "(default: %(default)s); all: every method as it comes; --methods help lists them",
    )  # fmt: skip
    what.add_argument(
        "--tuned", type=Path, metavar="FILE",
        help="add the best configuration of each method that `dynatree tune` saved, as 'chain (tuned)' and so on",
    )  # fmt: skip
    add_workload(what)
    what.add_argument(
        "--turns", choices=("first", "all"), default="first",
        help="all: each further turn of a prompt too, as a prompt of its own after the target's own greedy replies",
    )  # fmt: skip
    how = parser.add_argument_group("how")
    how.add_argument("--max-new-tokens", type=int, default=128, metavar="N")
    add_sampling(how)
    how.add_argument("--repeats", type=int, default=1, help="timed runs per method and prompt")
    how.add_argument("--warmup", type=int, default=1, help="untimed runs per method")
    how.add_argument("--stop-at-eos", action="store_true", help="end texts at EOS; by default all run to the budget")
    how.add_argument(
        "--trace", type=int, nargs="?", const=3, default=0, metavar="PROMPTS",
        help="split the time into draft, verify and host, in extra runs on the first prompts (3)",
    )  # fmt: skip
    add_machine(how)
    out = parser.add_argument_group("where it goes")
    out.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    out.add_argument("--records", type=Path, metavar="FILE", help="write one JSON line per run as it is done")
    out.add_argument("--resume", action="store_true", help="skip the runs that --records has already")
    out.add_argument("--overwrite", action="store_true", help="replace an existing --records file")


def tune(parser: argparse.ArgumentParser) -> None:
    """Choose the configuration for a pair on this machine."""
    what = parser.add_argument_group("what is tuned")
    add_pair(what)
    which = (
        "tune on prompts of this workload: the last ones, or, of the bundled prompts, those after the first "
        f"{JUDGED}, which results are judged on"
    )
    add_workload(what, which=which, limit=9)  # one prompt of each task of the bundled workload
    how = parser.add_argument_group("how")
    how.add_argument("--max-new-tokens", type=int, default=128, metavar="N")
    how.add_argument(
        "--methods", metavar="LIST", help="names of the methods to choose from, e.g. chain,lookup-tree (default: all)"
    )
    how.add_argument("--max-rows", type=int, default=64, metavar="N", help="largest tree (default: %(default)s nodes)")
    add_sampling(how)
    how.add_argument("--no-check", action="store_true", help="choose by prediction alone, without a timed run")
    add_machine(how)
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"where it is saved (default: {TUNED}/<pair>.json)")


def audit(parser: argparse.ArgumentParser) -> None:
    """Check that sampled texts keep the target's distribution: by enumeration on toy models, by tests on a pair."""
    toys, real = parser.add_argument_group("on toy models"), parser.add_argument_group("on a pair, if one is given")
    default = "(default: %(default)s)"
    toys.add_argument(
        "--instances", type=int, default=3000, metavar="N",
        help=f"least number of (models, drafter, rule) to check {default[:-1]}, a few minutes)",
    )  # fmt: skip
    toys.add_argument(
        "--optimum", action="store_true",
        help="also find the best lossless rule of each case by a linear programme, and each rule's share of it",
    )  # fmt: skip
    parser.add_argument(
        "--rounding",
        action="store_true",
        help="instead: how far rounding takes a token's distribution from the target's, against a bound",
    )
    add_pair(real)
    real.add_argument(
        "--methods", metavar="LIST",
        default="ar-fast,sampled-tree,sampled-tree:verifier=token-level,sampled-tree:branching=1,cost-aware-sampled-tree,"
        "fixed-tree,lookup-tree,ptd",
        help=f"as for `dynatree bench` {default}; controls, which must fail, are added",
    )  # fmt: skip
    add_workload(real, limit=20)
    real.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help=f"of every text {default}")
    real.add_argument("--seeds", type=int, default=1, metavar="N", help=f"texts of each prompt and method {default}")
    add_sampling(parser, temperature=1.0)
    add_machine(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="save the record as JSON")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --out file")


def judge(parser: argparse.ArgumentParser) -> None:
    """Compare verification rules on the same drafted trees."""
    what, how = parser.add_argument_group("what is judged"), parser.add_argument_group("how")
    default = "(default: %(default)s)"
    add_pair(what)
    what.add_argument(
        "--trees", default="sampled-tree:branching=1,sampled-tree,sampled-tree:shape=eagle", metavar="LIST",
        help=f"drafters, as for `dynatree bench` {default}",
    )  # fmt: skip
    what.add_argument(
        "--rules", default="token-level,traversal", metavar="LIST",
        help="names of rules, such as target-walk, block, conditional-transport; each is compared with the first "
        f"{default}",
    )  # fmt: skip
    add_workload(what, limit=40)
    how.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help=f"trees up to this place {default}")
    how.add_argument("--seeds", type=int, default=1, metavar="N", help=f"texts of each prompt, tree and rule {default}")
    add_sampling(how, temperature=1.0)
    add_machine(how)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write one JSON line per tree")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --out file")


def precision(parser: argparse.ArgumentParser) -> None:
    """Find where rounding changes greedy texts, by dtype."""
    default = "(default: %(default)s)"
    compared, how = parser.add_argument_group("what is compared"), parser.add_argument_group("how")
    add_pair(compared)
    compared.add_argument(
        "--methods", default="hf-generate,ar,chain:length=4,fixed-tree,cost-aware-tree,lookup-tree", metavar="LIST",
        help=f"as for `dynatree bench`, lossless ones {default}",
    )  # fmt: skip
    compared.add_argument(
        "--rows", default="2,4,8,16,32,64", metavar="LIST",
        help=f"nodes of the forwards in which plain decoding is compared with itself {default}",
    )  # fmt: skip
    add_workload(compared, limit=12)
    how.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help=f"of every text {default}")
    how.add_argument("--seed", type=int, default=0, help=f"of the choice of prompts and the bootstraps {default}")
    add_machine(how, dtypes="float32,bfloat16,float16")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record as JSON")


def train(parser: argparse.ArgumentParser) -> None:
    """Train a draft for a model that exists."""
    add = parser.add_argument
    add("--recipe", required=True, help="smollm2, smollm2-features, or a .json file like theirs in data/recipes")
    add("--data", type=Path, metavar="DIR", help="folder with wikitext-2-raw/, gsm8k/, mbpp/, spec_bench/")
    add("--out", type=Path, metavar="DIR", help="where the draft's folder goes (default: data/TARGET)")
    add("--work", type=Path, metavar="DIR", help="answers and checkpoints (default: in the cache folder)")
    add_training(parser)


def add_training(to: Options) -> None:
    """--force, --steps, --max-minutes, --compile, --autocast."""
    add, switch = to.add_argument, argparse.BooleanOptionalAction
    add("--force", action="store_true", help="replace what is finished and forget an unfinished run")
    add("--steps", type=int, metavar="N", help="steps instead of the recipe's")
    minutes = "take fewer steps than the recipe, as many as fit at the speed measured"
    add("--max-minutes", type=float, metavar="M", help=minutes)
    add("--compile", action=switch, default=None, help="use torch.compile (default: where a compiler is found)")
    add("--autocast", action=switch, default=True, help="bfloat16 forwards (default: yes)")


def fetch(parser: argparse.ArgumentParser) -> None:
    """List the target/draft pairs, or get one and check it."""
    add = parser.add_argument
    add("name", nargs="?", help="a named pair or a folder; without it, all named pairs are listed")
    add("--check", action="store_true", help="load and describe a pair that comes inside a Python package, too")
    add("--wheel", type=Path, metavar="FILE", help="that package's wheel, where it is at hand (default pair: smollm2)")
    add("--device", default="cpu", help="that the pair is loaded on (default: %(default)s)")
    add("--dtype", help="that the pair is loaded in")


_ALL = (run, sweep, report, notebooks, chat, bench, tune, audit, judge, precision, fetch, train)
COMMANDS = {command.__name__: command for command in _ALL}
"""Name of a command -> the function that adds its options; its docstring is the help."""
