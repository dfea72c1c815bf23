"""Tests of the tests: faults planted in the production code, one at a time, must each be noticed by the battery."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from models import hf_greedy, noisy_copy, prompt, random_model

import dynatree_lib.decoding as decoding
import dynatree_lib.sampling as sampling_module
import dynatree_suite.runs.receipts as receipts_module
import dynatree_suite.runs.run as run_module
from dynatree_cpu import gpt_neox
from dynatree_lib import (
    Chain,
    FixedTree,
    SampledTree,
    Sampling,
    TargetWalk,
    TokenLevel,
    ToyModel,
    Traversal,
    autoregressive,
    generate,
    masks,
)
from dynatree_lib.drafters.base import ModelDrafter
from dynatree_lib.drafters.builder import TreeBuilder
from dynatree_lib.drafters.fixed_tree import FixedTree as FixedTreeClass
from dynatree_lib.models import base, cache, huggingface
from dynatree_lib.stopping import Stopping
from dynatree_lib.verifiers import greedy
from dynatree_lib.verifiers.base import Verdict
from dynatree_lib.verifiers.residual import Recorded, Residual
from dynatree_suite.bench import protocol
from dynatree_suite.proofs import exact

pytestmark = pytest.mark.slow
TOY = ToyModel.random(6, seed=1)


def battery() -> None:
    """What the contract demands, at the smallest size that still shows each fault."""
    target = random_model("gpt_neox")
    draft = noisy_copy(target)
    ids = prompt(40)
    text = hf_greedy(target, ids, 48)
    tree = FixedTree(draft, depth=4, branching=3, tau=None, max_nodes=24)
    for drafter in (Chain(draft, 3), tree):
        assert generate(target, ids, drafter, max_new_tokens=48).tokens == text
    eos = next(token for token in reversed(text) if text.index(token) > 8)
    assert generate(target, ids, tree, max_new_tokens=48, eos_token_ids=eos).tokens == text[: text.index(eos) + 1]
    for drafter in (Chain(TOY, 4), FixedTree(TOY, depth=4, branching=2, tau=None, max_nodes=40)):
        first = generate(TOY, [1, 2], drafter, max_new_tokens=50)
        second = generate(TOY, [3, 4], drafter, max_new_tokens=50, state=first.state)
        assert (len(first.iterations), len(second.iterations)) == (10, 10)
        assert second.tokens == autoregressive(TOY, [1, 2, *first.tokens, 3, 4], max_new_tokens=50).tokens
    assert len(FixedTree(TOY, tau=None, max_nodes=9).propose(tree_state(), 9).tree) == 9


def tree_state():
    from dynatree_lib import RandomSource

    return Chain(TOY, 1).start([1, 2], RandomSource())


def everything_visible(parents: np.ndarray) -> np.ndarray:
    return np.ones((len(parents), len(parents)), bool)


def no_ancestors(parents: np.ndarray) -> np.ndarray:
    return np.eye(len(parents), dtype=bool)


def keep_the_first_rows(self, base_rows: int, rows) -> None:
    self.size = base_rows + len(rows)


def bonus_of_the_root(self, tree, rows, distributions, random) -> Verdict:
    verdict = greedy_verify(self, tree, rows, distributions, random)
    return Verdict(verdict.path, int(rows.argmax[0]))


def no_eos(self, tokens, fresh, before=(), met=None) -> tuple[int, str | None]:
    remaining = self.remaining(tokens)
    return (remaining, "length") if len(fresh) >= remaining else (len(fresh), None)


def forgets_accepted_tokens(self, tokens) -> list[int]:
    return [0 for _ in tokens]


def late_position(self, path) -> None:
    commit(self, path)
    self.position += 1


def wrong_parent(self, frontier):
    self.pending[0] = 0
    self.pending[frontier] = self.state.session.pending + np.arange(len(frontier))
    parents = np.full(len(frontier), -1) if self.state.session.pending == 0 else np.zeros(len(frontier), np.int64)
    return self.tokens[frontier], parents


def one_node_too_many(self, builder, max_depth) -> None:
    object.__setattr__(self, "max_nodes", self.max_nodes + 1)
    grow(self, builder, max_depth)
    object.__setattr__(self, "max_nodes", self.max_nodes - 1)


def residual_battery() -> None:
    """Exact distributions of an iteration, by enumeration, for each rule on each way of drawing."""
    target, draft = ToyModel.random(3, seed=5), ToyModel.random(3, seed=6)
    trees = [
        SampledTree(draft, depth=2, branching=1), SampledTree(draft, depth=2, branching=(2, 1)),
        SampledTree(draft, depth=1, branching=2, draw="iid"), FixedTree(draft, depth=2, branching=2, tau=None),
    ]  # fmt: skip
    for sampling in (Sampling(1.0), Sampling(0.6, top_k=2)):
        for tree in trees:
            for rule in (TokenLevel(), Traversal(), *([TargetWalk()] if isinstance(tree, FixedTree) else [])):
                assert exact.bias(target, tree, rule, [0], sampling)[0] < 1e-9, (rule, tree)


def stopping_battery() -> None:
    """Budgets, stop strings and callbacks inside accepted paths."""
    letters = Letters()
    whole = autoregressive(TOY, [1, 2], max_new_tokens=30).tokens
    stop = letters.decode(whole[4:6])
    first = letters.decode(whole).index(stop) + len(stop)
    for length in (1, 3, 5):
        heard: list[int] = []
        options = {"max_new_tokens": 30, "on_tokens": heard.extend}
        assert generate(TOY, [1, 2], Chain(TOY, length), **options).tokens == whole == heard
        cut = generate(TOY, [1, 2], Chain(TOY, length), max_new_tokens=30, stop_strings=stop, tokenizer=letters)
        assert (cut.tokens, cut.finish_reason) == (whole[:first], "stop")
        begun = generate(TOY, [1, 2], Chain(TOY, length), max_new_tokens=7)
        assert len(begun.tokens) == 7
        for further in ([3], [0], [5]):
            begun = generate(TOY, [1, 2], Chain(TOY, length), max_new_tokens=7)
            rest = generate(TOY, further, Chain(TOY, length), max_new_tokens=7, state=begun.state).tokens
            assert rest == autoregressive(TOY, [1, 2, *begun.tokens, *further], max_new_tokens=7).tokens


class Letters:
    """A tokenizer of one letter a token."""

    def decode(self, tokens) -> str:
        return "".join("abcdef"[token] for token in tokens)


def suite_battery(folder: Path) -> None:
    """A notebook that fails has no receipt, and what its receipt names is compared."""
    from suite_notebooks import records_notebook, write_notebook

    from dynatree_suite.runs import receipts, run
    from dynatree_suite.runs.plan import find_sources, make_jobs

    write_notebook(folder / "notebooks", "10_fails", "1 / 0")
    records_notebook(folder / "notebooks", "20_good")
    jobs, out = make_jobs(find_sources(folder / "notebooks"), "smoke", {}), folder / "out"
    assert run.run_jobs(jobs, out, folder, resume=False, say=lambda line: None) == 1
    assert not receipts.Files(out, "10_fails").receipt.exists()
    good = receipts.Files(out, "20_good")
    assert receipts.why_rerun(good, receipts.fingerprint(jobs[1])) is None
    (good.records / "speed.jsonl").write_text("{}")
    assert receipts.why_rerun(good, receipts.fingerprint(jobs[1]))


def records_battery(folder: Path) -> None:
    """Every run stands under its own prompt, with its own text, and a resumed benchmark repeats none."""
    from dynatree_lib import load_pair
    from dynatree_suite.bench.protocol import run_benchmark

    pair, texts = load_pair("tiny"), ["def read(path):", "The river", "import"]
    path = folder / "records.jsonl"
    options = {"max_new_tokens": 8, "warmup": 0, "records": path}
    first = run_benchmark(pair, "ar-fast,prompt-lookup", texts, **options).records
    for run in first.runs.values():
        (text,) = [
            text for text, row in zip(texts, first.header.setup["prompts"], strict=True) if row["id"] == run.prompt
        ]
        assert (
            list(run.tokens) == autoregressive(pair.target, pair.ids(text), max_new_tokens=8, eos_token_ids=()).tokens
        )
    lines = path.read_text().splitlines()
    again = run_benchmark(pair, "ar-fast,prompt-lookup", texts, **options, existing="resume").records
    assert again.runs == first.runs
    assert sum(json.loads(line).get("kind") == "run" for line in path.read_text().splitlines()) == 6 <= len(lines)


greedy_verify, commit, grow = greedy.Greedy.verify, base.Session.commit, FixedTreeClass.grow


FAULTS: dict[str, tuple[object, str, Callable]] = {
    "siblings see each other": (masks, "ancestor_matrix", everything_visible),
    "nodes do not see their ancestors": (masks, "ancestor_matrix", no_ancestors),
    "positions by index": (
        huggingface,
        "depth_positions",
        lambda parents, position: position + np.arange(len(parents)),
    ),
    "the cache keeps the first rows, not the path": (cache.TreeCache, "keep", keep_the_first_rows),
    "the bonus token comes from the root": (greedy.Greedy, "verify", bonus_of_the_root),
    "EOS inside a path is overlooked": (Stopping, "cut", no_eos),
    "the draft forgets accepted tokens": (ModelDrafter, "_known", forgets_accepted_tokens),
    "positions drift": (base.Session, "commit", late_position),
    "the draft hangs every node below the root": (TreeBuilder, "_read", wrong_parent),
    "the budget is exceeded by one": (FixedTreeClass, "grow", one_node_too_many),
}


ratio, cut, children, resume = Residual.ratio, Stopping.cut, Recorded.children.func, decoding._resume


def not_normalised(self, rest) -> None:
    self.weights, self.scale = rest, 1.0


def not_reduced(self, recorded, child) -> None:
    return None


def upside_down(self, recorded, child) -> float:
    value = ratio(self, recorded, child)
    return 1.0 if value == 0 else min(1.0, 1 / value) * 0.5


def last_drawn_first(self) -> list[list[int]]:
    return [siblings[::-1] for siblings in children(self)]


def one_too_many(self, tokens, fresh, before=(), met=None):
    count, reason = cut(self, tokens, fresh, before, met)
    return (min(len(fresh), count + 1), reason) if reason else (count, reason)


def bonus_token_not_read(state, target, drafter, ids):
    """The target reads the token before it once more."""
    misread = dataclasses.replace(state, text=[*state.text[:-1], state.text[-2]])
    return dataclasses.replace(resume(misread, target, drafter, ids), text=[*state.text, *ids])


def ends_before(self, window, token) -> bool:
    return any(self.tokenizer.decode(window).endswith(text) for text in self.stop_strings)


def top_k_forgotten(logits, sampling):
    return logits.softmax(-1)


def never_damaged(files, receipt):
    return None


def early_receipt(job, files, basis, root, progress, timeout=None):
    files.out.mkdir(parents=True, exist_ok=True)
    files.executed.write_text("{}")
    receipts_module.write_receipt(files, job, basis, {})
    return execute(job, files, basis, root, progress, timeout)


def first_prompt_always(self, one, prompt, *rest):
    return call(self, one, self.prompts[0].id, *rest)


SAMPLED: dict[str, tuple[object, str, Callable]] = {
    "the residual is not normalised": (Residual, "leave", not_normalised),
    "a rejected token keeps its probability": (Residual, "reject", not_reduced),
    "the ratio is upside down": (Residual, "ratio", upside_down),
    "siblings are tried in another order than they were drawn in": (Recorded, "children", property(last_drawn_first)),
    "top-k and temperature are forgotten": (sampling_module, "probabilities", top_k_forgotten),
}
STOPS: dict[str, tuple[object, str, Callable]] = {
    "a token beyond the end": (Stopping, "cut", one_too_many),
    "a stop string is seen one token late": (Stopping, "_completes", ends_before),
    "the bonus token is dropped where a text goes on": (decoding, "_resume", bonus_token_not_read),
}
SUITE: dict[str, tuple[object, str, Callable]] = {
    "a receipt before the notebook has run": (run_module, "execute", early_receipt),
    "damage is not looked for": (receipts_module, "damage", never_damaged),
}
RECORDS: dict[str, tuple[object, str, Callable]] = {
    "all runs are of the first prompt": (protocol._Benchmark, "_call", first_prompt_always)
}
execute, call = run_module.execute, protocol._Benchmark._call


@pytest.fixture(autouse=True)
def models_are_made_first() -> None:
    """The load-time check would refuse a model under some of these faults; here the later tests must notice."""
    noisy_copy(random_model("gpt_neox"))


def test_the_batteries_pass_on_sound_code(tmp_path):
    battery()
    residual_battery()
    stopping_battery()
    suite_battery(tmp_path)
    records_battery(tmp_path)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_noticed(fault, monkeypatch):
    place, name, mutant = FAULTS[fault]
    monkeypatch.setattr(place, name, mutant)
    with pytest.raises((AssertionError, ValueError, IndexError)):
        battery()


@pytest.mark.parametrize(
    ("faults", "fault", "check"),
    [
        pytest.param(faults, fault, check, id=fault)
        for faults, check in (
            (SAMPLED, lambda folder: residual_battery()),
            (STOPS, lambda folder: stopping_battery()),
            (SUITE, suite_battery),
            (RECORDS, records_battery),
        )
        for fault in faults
    ],
)
def test_every_fault_of_sampling_stopping_and_keeping_is_noticed(faults, fault, check, monkeypatch, tmp_path):
    monkeypatch.setattr(*faults[fault])
    with pytest.raises(AssertionError):
        check(tmp_path)


def test_a_wrong_lean_forward_is_refused_at_loading(monkeypatch):
    from models import raw_model

    attend = gpt_neox.LeanGPTNeoX._attend

    def unturned(self, qkv, index, turn, mask, cache_):
        return attend(self, qkv, index, (turn[0].abs(), turn[1]), mask, cache_)

    monkeypatch.setattr(gpt_neox.LeanGPTNeoX, "_attend", unturned)
    with pytest.raises(ValueError, match="does not score a token tree"):
        huggingface.HFModel(raw_model("gpt_neox"), engine="lean")
    assert huggingface.HFModel(raw_model("gpt_neox")).engine.name == "eager"  # of its own choice the library leaves it
