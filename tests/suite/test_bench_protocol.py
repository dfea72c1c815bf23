"""The protocol with fake methods and a fake clock, and once with real ones."""

from __future__ import annotations

import copy
import gc
import itertools
import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
from models import hf_greedy, noisy_copy, prompt, random_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dynatree_lib import Chain, Costs, NoDraft, ToyModel, generate, measuring
from dynatree_lib.models.base import Session
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import Sampling
from dynatree_suite.bench import bandwidth, protocol
from dynatree_suite.bench.memory import LESS, size
from dynatree_suite.bench.methods import custom
from dynatree_suite.bench.prompts import BenchPrompt, prepare_prompts
from dynatree_suite.bench.protocol import NEAR_TIE, divergence, read_results, run_benchmark
from dynatree_suite.bench.records import Run
from dynatree_suite.bench.runner import Completed
from dynatree_suite.bench.streaming import StreamingModel
from dynatree_suite.bench.trace import Trace
from dynatree_suite.costs.cost_model import count, counts_of
from dynatree_suite.papers.workloads import WorkloadPrompt

PROMPTS = [BenchPrompt.from_ids(name, prompt(5, seed)[0].tolist()) for seed, name in enumerate("abc")]
TOYS = Pair("toys", ToyModel.random(5), ToyModel.random(5), None)


@pytest.fixture(scope="module")
def pair() -> Pair:
    target = random_model("gpt_neox")
    return Pair("random", target, noisy_copy(target), None)


@dataclass
class Fake:
    """Writes 1, 2, 3, ... in chunks of two, one second apart; fails where told."""

    label: str
    time: list[float]
    log: list[tuple]
    fails: set = field(default_factory=set)
    tokens: tuple = (1, 2, 3, 4)
    stalls: dict = field(default_factory=dict)  # prompt -> how many of its runs something else disturbs

    def __call__(self, prompt_ids, *, max_new_tokens, eos_token_ids, on_tokens, sampling, seed):
        name = next(one.id for one in PROMPTS if one.ids == tuple(prompt_ids))
        self.log.append((self.label, name, max_new_tokens, eos_token_ids, seed, gc.isenabled()))
        if name in self.fails:
            raise RuntimeError("no luck")
        stalled = self.stalls.get(name, 0) > 0
        self.stalls[name] = self.stalls.get(name, 0) - 1
        for start in range(0, len(self.tokens), 2):
            self.time[0] += 9.0 if stalled else 1.0
            on_tokens(list(self.tokens[start : start + 2]))
        return Completed(list(self.tokens), 2, None, "length", 9)

    def method(self, **facts):
        return custom(self.label, lambda pair, instrument: self, traced=False, **facts)


@pytest.fixture
def world():
    return [0.0], []


def bench(pair, fakes, world, **options):
    return run_benchmark(
        pair, [one.method() for one in fakes], PROMPTS, max_new_tokens=4, clock=lambda: world[0][0], **options
    )


def test_methods_are_interleaved_and_the_first_one_rotates(pair, world):
    fakes = [Fake(name, *world) for name in ("x", "y", "z")]
    bench(pair, fakes, world, warmup=0)
    assert [(label, name) for label, name, *_ in world[1]] == [
        ("x", "a"), ("y", "a"), ("z", "a"), ("y", "b"), ("z", "b"), ("x", "b"), ("z", "c"), ("x", "c"), ("y", "c"),
    ]  # fmt: skip


def test_repeats_rotate_too_and_have_seeds_of_their_own(pair, world):
    fakes = [Fake(name, *world) for name in ("x", "y")]
    results = bench(pair, fakes, world, warmup=0, repeats=2, seed=10, sampling=Sampling(1.0))
    order = [(label, name, seed) for label, name, _, _, seed, _ in world[1]]
    apart = protocol.SEEDS  # and so do prompts; the methods of a prompt share its seeds
    assert order[:5] == [("x", "a", 10), ("y", "a", 10), ("y", "a", 11), ("x", "a", 11), ("y", "b", 10 + apart)]
    assert len({(name, seed) for _, name, seed in order}) == len({seed for *_, seed in order}) == 6
    assert len(results.records.runs) == 12


def test_an_older_file_is_resumed_with_its_own_seeds(pair, world, tmp_path):
    path, options = tmp_path / "r.jsonl", {"warmup": 0, "seed": 10, "sampling": Sampling(1.0)}
    bench(pair, [Fake("x", *world)], world, records=path, **options)
    header, *lines = path.read_text().splitlines()
    body = json.loads(header)
    del body["setup"]["seeds_per_prompt"]
    path.write_text("\n".join([json.dumps(body), lines[0]]) + "\n")
    world[1].clear()
    bench(pair, [Fake("x", *world)], world, records=path, existing="resume", **options)
    assert [(name, seed) for _, name, _, _, seed, _ in world[1]] == [("b", 10), ("c", 10)]
    assert "seeds_per_prompt" not in read_results(path).records.header.setup


def test_warm_up_is_not_recorded_and_times_are_the_clocks(pair, world):
    results = bench(pair, [Fake("x", *world)], world, warmup=2)
    assert [name for _, name, *_ in world[1]] == ["a", "b", "a", "b", "c"]
    runs = list(results.records.runs.values())
    assert [run.prompt for run in runs] == ["a", "b", "c"]
    assert all((run.seconds, run.emissions) == (2.0, [[1.0, 2], [2.0, 2]]) for run in runs)
    assert results.summary("x")["tokens_per_second"] == 2.0


def test_a_disturbed_run_is_measured_again_and_the_latest_counts(pair, world):
    fakes = [Fake("x", *world, stalls={"b": 1}), Fake("y", *world)]
    results = bench(pair, fakes, world, warmup=0)
    assert [(label, name) for label, name, *_ in world[1]][6:] == [("x", "b")]
    assert not results.records.frame()["disturbed"].any()
    assert results.summary("x")["tokens_per_second"] == 2.0


def test_a_run_is_measured_again_twice_at_most_and_then_stays_disturbed(pair, world):
    results = bench(pair, [Fake("x", *world, stalls={"b": 99}), Fake("y", *world)], world, warmup=0)
    assert [(label, name) for label, name, *_ in world[1]][6:] == [("x", "b"), ("x", "b")]
    frame = results.records.frame()
    assert frame.loc[frame["disturbed"], ["method", "prompt"]].values.tolist() == [["x", "b"]]


def test_nothing_collects_garbage_while_the_clock_runs(pair, world):
    bench(pair, [Fake("x", *world)], world, warmup=0)
    assert not any(collecting for *_, collecting in world[1])
    assert gc.isenabled()


def test_an_exception_leaves_an_error_and_no_numbers(pair, world):
    fakes = [Fake("good", *world), Fake("bad", *world, fails={"b"})]
    results = bench(pair, fakes, world, warmup=1)
    assert [key for key in results.records.runs if key[0] == "bad"] == [("bad", "a", 0), ("bad", "c", 0)]
    failure = results.records.failures["bad", "b", 0]
    assert failure.error == "RuntimeError: no luck"
    assert results.summary("bad")["failures"] == 1
    assert len([key for key in results.records.runs if key[0] == "good"]) == 3
    assert results.to_json()["errors"][0]["prompt"] == "b"


def test_resuming_does_only_what_is_missing(pair, world, tmp_path):
    path = tmp_path / "records.jsonl"
    fakes = [Fake("x", *world), Fake("y", *world, fails={"b"})]
    bench(pair, fakes, world, warmup=0, records=path)
    lines = path.read_text().splitlines()
    assert len(lines) == 1 + 6
    assert json.loads(lines[0])["setup"]["prompts"][0]["sha256"] == PROMPTS[0].sha256
    path.write_text("\n".join(lines[:-2]) + "\n" + lines[-1][:30])  # one line lost, one cut off: both of prompt c
    world[1].clear()
    said: list[str] = []
    again = [Fake("x", *world), Fake("y", *world)]
    results = bench(pair, again, world, warmup=0, records=path, existing="resume", progress=said.append)
    assert {(label, name) for label, name, *_ in world[1]} == {("y", "b"), ("x", "c"), ("y", "c")}
    assert "is cut off, as after a crash" in said[0]
    assert read_results(path).records.runs == results.records.runs
    assert len(results.records.runs) == 6
    assert results.records.failures == {}
    world[1].clear()
    bench(pair, again, world, warmup=0, records=path, existing="resume")
    assert world[1] == []


def test_the_common_draft_is_described_where_a_method_uses_it(pair):
    both = replace(pair, independent=random_model("gpt_neox", seed=5))
    for methods, described in (("ar,chain", False), ("ar,chain:independent=true", True)):
        records = run_benchmark(both, methods, PROMPTS[:1], max_new_tokens=2, warmup=0).records
        assert ("common_draft" in records.header.setup) == described
    hashes = {records.header.setup[name]["files"]["parameters"] for name in ("draft", "common_draft")}
    assert len(hashes) == 2


def test_an_interrupted_benchmark_keeps_what_is_finished(pair, world, tmp_path):
    path = tmp_path / "records.jsonl"
    counter = itertools.count()

    def stop(line: str) -> None:
        if next(counter) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench(pair, [Fake("x", *world)], world, warmup=0, records=path, progress=stop)
    assert len(read_results(path).records.runs) == 3


def test_an_existing_file_is_not_lost_by_accident(pair, world, tmp_path):
    path = tmp_path / "records.jsonl"
    bench(pair, [Fake("x", *world)], world, records=path)
    with pytest.raises(ValueError, match="exists; resume it"):
        bench(pair, [Fake("x", *world)], world, records=path)
    with pytest.raises(ValueError, match=r"cannot be resumed; it differs in setup.seed \(0, now 1\)"):
        bench(pair, [Fake("x", *world)], world, records=path, existing="resume", seed=1)
    bench(pair, [Fake("z", *world)], world, records=path, existing="replace")
    assert {label for label, *_ in read_results(path).records.runs} == {"z"}
    for label, calls in (("z", 0), ("y", 4), ("y", 0)):  # the same setup is kept, another one replaces it
        world[1].clear()
        bench(pair, [Fake(label, *world)], world, records=path, existing="reuse")
        assert len(world[1]) == calls
    path.write_text("broken\n")
    bench(pair, [Fake("y", *world)], world, records=path, existing="reuse")
    assert len(read_results(path).records.runs) == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"repeats": 0}, "repeats is 0"),
        ({"warmup": -1}, "warmup is -1"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": 600}, "exceeds the context of 600"),
        ({"prompts": []}, "There are no prompts"),
        ({"prompts": [PROMPTS[0], PROMPTS[0]]}, "Two prompts have the id 'a'"),
        ({"prompts": ["text"]}, "has no tokenizer"),
        ({"methods": "streaming-llm:cache=9000"}, "give a smaller one"),
        ({"records": "no/such/folder/x.jsonl"}, "does not exist"),
        ({"repeats": 1.5}, "repeats is 1.5; give a whole number of at least 1"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5; give a whole number of at least 1"),
        ({"seed": "x"}, "seed is 'x'; give a whole number"),
        ({"existing": "resumee"}, "existing is 'resumee'; choose from 'refuse', 'resume', 'replace', 'reuse'"),
        ({"turns": "some"}, "turns is 'some'; choose"),
        ({"prompts": [None]}, "Prompt 0 is None; give a text"),
        ({"prompts": "a text"}, "prompts is 'a text'; give a list"),
        ({"sampling": "greedy"}, "sampling is 'greedy'; give Sampling"),
        ({"pair": TOYS}, "The pair's target is a ToyModel; a benchmark takes"),
        ({"pair": None}, "The pair is None; load one with load_pair"),
    ],
)
def test_bad_input_is_refused_before_any_work(pair, options, sentence):
    def progress(line: str) -> None:
        raise AssertionError("work was begun")

    given = {"pair": pair, "methods": "ar", "prompts": PROMPTS, "progress": progress, **options}
    with pytest.raises((ValueError, TypeError), match=sentence):
        run_benchmark(given.pop("pair"), given.pop("methods"), given.pop("prompts"), **given)


def test_a_misspelled_choice_leaves_the_records_as_they_were(pair, tmp_path):
    path = tmp_path / "r.jsonl"
    run_benchmark(pair, "ar", PROMPTS[:1], max_new_tokens=2, records=path)
    before = path.read_bytes()
    for options in ({"existing": "resumee"}, {"existing": "replace", "turns": "some"}):
        with pytest.raises(ValueError, match="choose"):
            run_benchmark(pair, "ar", PROMPTS[1:], max_new_tokens=2, records=path, **options)
        assert path.read_bytes() == before


# ----------------------------------------------------------------------------------------------------- real methods
def test_real_methods_end_to_end(pair, tmp_path):
    results = run_benchmark(
        pair, "hf-generate,ar,streaming-llm:cache=16,chain,fixed-tree", PROMPTS, max_new_tokens=24, trace=2,
        records=tmp_path / "r.jsonl",
    )  # fmt: skip
    summaries = {one["label"]: one for one in results.summaries()}
    for label in ("hf-generate", "ar", "chain", "fixed-tree"):
        assert summaries[label]["identical"] == "3/3"
        assert summaries[label]["divergences"] == []
    streaming = summaries["streaming-llm:cache=16"]
    assert not streaming["lossless"]
    assert streaming["counters"]["evictions"] > 0
    assert summaries["fixed-tree"]["tokens_per_iteration"] > 1
    assert summaries["chain"]["nodes_per_iteration"] <= 4
    for label in ("ar", "chain", "fixed-tree"):
        split = summaries[label]["split"]
        assert split["draft"] + split["verify"] + split["host"] == pytest.approx(1)
    assert summaries["ar"]["split"]["draft"] == 0
    assert summaries["chain"]["split"]["draft"] > 0
    assert summaries["hf-generate"]["split"] is None
    assert read_results(tmp_path / "r.jsonl").to_json()["methods"] == results.to_json()["methods"]


def test_rows_beside_the_tree_are_recorded_and_counted_as_rows_of_the_target(pair, tmp_path):
    methods, path = "ar,hf-generate,prompt-lookup,ptd,ptd:commit=rebuild,lookahead,self-draft", tmp_path / "r.jsonl"
    results = run_benchmark(pair, methods, PROMPTS[:2], max_new_tokens=24, records=path)
    assert results.records.failures == {}
    assert read_results(path).records.runs == results.records.runs
    counted = count(pair, ["ptd", "ptd:commit=rebuild", "lookahead"], PROMPTS[:2], 24)
    for label, counts in counted.items():
        runs = [run for run in results.records.runs.values() if run.method == label]
        assert all(len(run.side_nodes) == run.iterations and sum(run.side_nodes) > 0 for run in runs)
        rows = sum(sum(run.nodes) + sum(run.side_nodes) for run in runs)
        again = sum(sum(run.accepted) for run in runs) if "rebuild" in label else 0
        assert sum(counts.nodes) == sum(counts_of(runs, results.records.header).nodes) == rows + again
        summary = results.summary(label)
        assert summary["identical"] == "2/2"
        assert summary["side_nodes_per_iteration"] == sum(sum(run.side_nodes) for run in runs) / summary["iterations"]
        drafted = sum(sum(run.nodes) for run in runs)
        assert summary["nodes_per_iteration"] == pytest.approx(drafted / summary["iterations"])
        kept = summary["hit_rate"] * (summary["accept_length"] or 0)
        assert summary["tokens_per_iteration"] == pytest.approx(kept + 1 - summary["hit_rate"])
    assert (results.summary("ar")["side_nodes_per_iteration"], results.summary("ar")["hit_rate"]) == (0, 0)
    assert (
        results.summary("hf-generate")["side_nodes_per_iteration"] is results.summary("hf-generate")["hit_rate"] is None
    )


def test_a_run_that_breaks_the_identity_is_a_failure_of_its_method(pair):
    def wrong(pair, instrument):
        def runner(prompt_ids, *, max_new_tokens, eos_token_ids, on_tokens, sampling, seed):
            out = generate(pair.target, prompt_ids, NoDraft(), max_new_tokens=max_new_tokens, on_tokens=on_tokens)
            return Completed(out.tokens, len(out.iterations) - 1, out.iterations[1:], "length", 9)

        return runner

    results = run_benchmark(pair, [custom("wrong", wrong)], PROMPTS[:1], max_new_tokens=4)
    assert "HR * AL" in results.records.failures["wrong", "a", 0].error


# ------------------------------------------------------------------------------------------------------ further turns
@pytest.fixture(scope="module")
def spoken(pair) -> Pair:
    """The random pair with a tokenizer of one token per character."""
    letters = {chr(32 + index): index for index in range(95)} | {"[UNK]": 95, "\n": 96}
    made = Tokenizer(models.WordLevel(letters, unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    return replace(pair, tokenizer=PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]"))


ASKED = [WorkloadPrompt("q", "chat", ("hello", "and?", "so?")), WorkloadPrompt("one", "chat", ("single",))]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_a_further_turn_follows_the_targets_own_replies(spoken, template):
    pair = replace(spoken, tokenizer=copy.deepcopy(spoken.tokenizer))
    pair.tokenizer.chat_template = template
    found = prepare_prompts(pair, ASKED, 12, "all")
    assert [one.id for one in found] == ["q", "q/turn-2", "q/turn-3", "one"]
    assert prepare_prompts(pair, ASKED, 12) == [found[0], found[3]]
    texts = [pair.tokenizer.decode(one.ids) for one in found]
    asked, answered, last, single = texts
    reply = pair.tokenizer.decode(hf_greedy(pair.target, torch.tensor([found[0].ids]), 12), skip_special_tokens=True)
    again = pair.tokenizer.decode(hf_greedy(pair.target, torch.tensor([found[1].ids]), 12), skip_special_tokens=True)
    assert (asked, single) == (("<user>hello", "<user>single") if template else ("hello", "single"))
    assert answered == (f"{asked}<assistant>{reply}<user>and?" if template else f"hello\n\n{reply}\n\nand?")
    assert last == (f"{answered}<assistant>{again}<user>so?" if template else f"{answered}\n\n{again}\n\nso?")
    assert len({one.sha256 for one in found}) == 4
    assert found[0].sha256 == ASKED[0].sha256


def test_a_reply_ends_at_eos(spoken, monkeypatch):
    whole = prepare_prompts(spoken, ASKED[:1], 12, "all")[1]
    tokens = hf_greedy(spoken.target, torch.tensor([[*spoken.tokenizer("hello")["input_ids"]]]), 12)
    monkeypatch.setattr(spoken.target, "eos_token_ids", (tokens[3],))
    short = prepare_prompts(spoken, ASKED[:1], 12, "all")[1]
    assert len(whole.ids) - len(short.ids) == 12 - 1 - tokens.index(tokens[3])
    with pytest.raises(ValueError, match="turns is 'second'"):
        prepare_prompts(spoken, ASKED, 12, "second")


def test_a_second_turn_that_does_not_fit_is_named(spoken):
    long = [WorkloadPrompt("long", "chat", ("x" * 290, "y" * 100))]
    with pytest.raises(ValueError, match=r"'long/turn-2' has \d+ tokens .* exceeds the context of 600"):
        run_benchmark(spoken, "ar", long, max_new_tokens=120, turns="all")
    run_benchmark(spoken, "ar", long, max_new_tokens=4)


def test_a_record_names_the_costs_in_use_and_a_resumed_run_goes_on_with_them(spoken, tmp_path, monkeypatch):
    dear, asked = Costs((1.0, 9.0), (5.0, 5.0)), []
    monkeypatch.setattr(measuring, "costs_of", lambda *given, **options: asked.append(given[:2]) or dear)
    warm = {"max_new_tokens": 8, "warmup": 0, "records": tmp_path / "r.jsonl"}
    first = run_benchmark(spoken, "ar,auto,auto:alone=true", ASKED[:1], **warm)
    draft = f"{spoken.target.name} + {spoken.draft.name}"
    assert first.records.header.setup["costs"] == {draft: str(dear), spoken.target.name: str(dear)}
    assert asked == [(spoken.target, spoken.draft), (spoken.target, None)]
    del first.records.runs["auto", "q", 0]
    with first.records.kept_in(tmp_path / "r.jsonl"):
        pass
    monkeypatch.setattr(measuring, "costs_of", None)
    again = run_benchmark(spoken, "ar,auto,auto:alone=true", ASKED[:1], **warm, existing="resume")
    assert again.records.header == first.records.header
    assert set(again.records.runs["auto", "q", 0].nodes) == {0}  # at these costs no node pays


def test_both_turns_are_measured_alike_and_the_header_says_so(spoken, tmp_path):
    path = tmp_path / "r.jsonl"
    warm = {"max_new_tokens": 8, "sampling": Sampling(1.0), "seed": 3, "warmup": 0, "records": path, "turns": "all"}
    results = run_benchmark(spoken, "ar,chain", ASKED, **warm)
    assert {prompt for _, prompt, _ in results.records.runs} == {"q", "q/turn-2", "q/turn-3", "one"}
    setup = results.records.header.setup
    assert setup["turns"].startswith("all turns; ")
    assert [one["id"] for one in setup["prompts"]] == ["q", "q/turn-2", "q/turn-3", "one"]
    said: list[str] = []
    run_benchmark(spoken, "ar,chain", ASKED, **warm, existing="resume", progress=said.append)
    assert said == []  # the replies are the same again, so nothing is missing
    with pytest.raises(ValueError, match=r"differs in .*setup.turns"):
        run_benchmark(spoken, "ar,chain", ASKED, **{**warm, "turns": "first"}, existing="resume")
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patched:  # a file that exists is refused before any reply is decoded
        patched.setattr("dynatree_suite.bench.prompts.autoregressive", None)
        with pytest.raises(ValueError, match="exists; resume it"):
            run_benchmark(spoken, "ar,chain", ASKED, **warm)


def test_a_traced_run_shows_the_events_of_each_iteration(pair):
    results = run_benchmark(pair, "chain:length=3", PROMPTS, max_new_tokens=8, trace=1)
    split = results.records.splits["chain:length=3", "a", 0]
    run = results.records.runs["chain:length=3", "a", 0]
    roles = [role for role, *_ in split.events]
    assert roles[:5] == ["draft", "draft", "draft", "target", "commit"]
    assert roles.count("commit") == roles.count("target") == run.iterations == split.iterations
    assert [rows for role, _, _, rows in split.events if role == "target"] == [nodes + 1 for nodes in run.nodes]
    assert all(start <= end for _, start, end, _ in split.events)


def timed_engine(model, time, seconds):
    """The model with an engine that moves a clock on."""
    engine, other = model.engine, copy.copy(model)

    def slow(*arguments):
        time[0] += seconds
        return engine(*arguments)

    slow.name = engine.name
    other.engine = slow
    return other


def test_host_is_everything_outside_the_models_forwards(pair, monkeypatch):
    time, score = [0.0], Session.score

    def slower(self, *arguments):
        time[0] += 1.0  # a mask being built, say
        return score(self, *arguments)

    monkeypatch.setattr(Session, "score", slower)
    slow = replace(pair, target=timed_engine(pair.target, time, 10.0), draft=timed_engine(pair.draft, time, 3.0))
    results = run_benchmark(slow, "chain:length=2", PROMPTS[:1], max_new_tokens=8, trace=1, clock=lambda: time[0])
    split = results.records.splits["chain:length=2", "a", 0]
    levels = sum(role == "draft" for role, *_ in split.events)
    assert levels > split.iterations
    assert (split.verify, split.draft, split.host) == (10.0 * split.iterations, 3.0 * levels, levels + split.iterations)
    assert (
        split.seconds
        == split.verify + split.draft + split.host
        == results.records.runs["chain:length=2", "a", 0].seconds
    )


def test_what_tracing_takes_is_no_time_of_the_host(pair):
    time = [0.0]

    def clock():
        time[0] += 0.5  # every look at the clock takes half a second, and nothing else takes any
        return time[0]

    trace = Trace(clock, lambda: None)
    trace.begin()
    out = generate(
        trace.instrument(pair.target, "target"), PROMPTS[0].ids, Chain(trace.instrument(pair.draft, "draft"), 2),
        max_new_tokens=12, on_tokens=trace.on_tokens,
    )  # fmt: skip
    assert trace.overhead == 0.5
    parts = trace.parts(trace.now())
    assert parts["verify"] == 0.5 * len(out.iterations)  # a forward ends one look after it begins
    assert parts["host"] <= 0.5  # the last look of all


def test_what_is_traced_is_a_copy_and_the_text_is_the_same(pair):
    trace = Trace(lambda: 0.0, lambda: None)
    trace.begin()
    streaming = StreamingModel(pair.target, 64)
    plain = generate(pair.target, PROMPTS[0].ids, NoDraft(), max_new_tokens=12).tokens
    for model in (pair.target, streaming):
        traced = trace.instrument(model, "target")
        assert type(traced) is type(model)
        trace.events.clear()
        out = generate(traced, PROMPTS[0].ids, Chain(pair.draft, 2), max_new_tokens=12, commit="rebuild")
        assert out.tokens == plain
        nodes = [rows for _, _, _, rows in trace.events]
        assert nodes[::2] == [len(one.tree) for one in out.iterations]
        assert nodes[1::2] == [1] * len(out.iterations)  # each second forward reads text for its last row
    assert "forward" not in vars(pair.target)
    assert streaming.base is pair.target


# -------------------------------------------------------------------------------------------------------- the bandwidth
@pytest.fixture
def small_buffers(monkeypatch):
    monkeypatch.setattr(bandwidth, "STREAM", {"cpu": 2**20})


def test_the_bandwidth_is_measured_before_and_after_the_runs(pair, world, tmp_path, small_buffers):
    path = tmp_path / "r.jsonl"
    results = bench(pair, [Fake("x", *world)], world, records=path, bandwidth=True)
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["header", "bandwidth", "bandwidth", "run", "run", "run", "bandwidth", "bandwidth"]
    assert read_results(path).to_json()["bandwidth"] == results.to_json()["bandwidth"]
    assert results.summary("x")["bound_ratio"] > 0
    said: list[str] = []
    again = [Fake("x", *world)]
    resumed = bench(pair, again, world, records=path, bandwidth=True, existing="resume", progress=said.append)
    assert said == []
    assert resumed.records.bandwidths == results.records.bandwidths
    assert bench(pair, again, world).to_json()["bandwidth"] is None


def test_runs_stand_without_a_bandwidth(pair, world, monkeypatch):
    def fails(*arguments):
        raise MemoryError("no room")

    monkeypatch.setattr("dynatree_suite.bench.protocol.measure_bandwidth", fails)
    results = bench(pair, [Fake("x", *world)], world, bandwidth=True)
    assert len(results.records.runs) == 3
    assert results.records.notes[0] == "The bandwidth before the runs was not measured: MemoryError: no room"
    assert results.summary("x")["bound_ratio"] is None


def test_a_full_memory_is_recorded_with_what_fills_it_and_the_way_out(pair):
    def fails(pair, instrument):
        def runner(*args, **options):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

        return runner

    results = run_benchmark(pair, ["ar", custom("large", fails)], PROMPTS[:1], max_new_tokens=2)
    (failure,) = results.records.failures.values()
    setup = results.records.header.setup["target"]
    assert failure.error.startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. The target's ")
    assert f"weights take {size(setup['weight_bytes'])}, its cache {size(setup['cache_bytes_per_row'])} a token" in (
        failure.error
    )
    assert failure.error.endswith(LESS)


def test_a_divergence_has_its_place_and_margin(pair):
    def wrong(pair, instrument):
        def runner(prompt_ids, *, max_new_tokens, eos_token_ids, on_tokens, sampling, seed):
            tokens = hf_greedy(pair.target, torch.tensor([list(prompt_ids)]), max_new_tokens)
            tokens[5] = (tokens[5] + 1) % 97
            on_tokens(tokens)
            return Completed(tokens, 1, None, "length", 9)

        return runner

    results = run_benchmark(pair, ["ar", custom("wrong", wrong)], PROMPTS[:2], max_new_tokens=12)
    summary = results.summary("wrong")
    assert summary["identical"] == "0/2"
    for one, start in zip(summary["divergences"], PROMPTS, strict=False):
        text = results.records.runs["ar", start.id, 0].tokens
        assert one["index"] == 5
        assert (one["expected"], one["found"]) == (text[5], (text[5] + 1) % 97)
        logits = pair.target.model(torch.tensor([[*start.ids, *text[:5]]])).logits[0, -1].detach().topk(2).values
        assert one["margin"] == pytest.approx(float(logits[0] - logits[1]))
        assert one["near_tie"] == (one["margin"] < NEAR_TIE)


@pytest.mark.parametrize(
    ("dtype", "behind", "near"),
    [
        (torch.bfloat16, 0.25, True), (torch.bfloat16, 0.375, False),  # a step at 20 is 0.125
        (torch.float32, 0.9e-4, True), (torch.float32, 1.1e-4, False),
    ],
)  # fmt: skip
def test_a_near_tie_is_two_steps_of_the_dtype_at_the_best_logit(dtype, behind, near):
    logits = torch.zeros(1, 1, 97, dtype=torch.float64)
    logits[..., 3], logits[..., 4] = 20, 20 - behind
    target = SimpleNamespace(
        model=lambda ids, **_: SimpleNamespace(logits=logits), device=torch.device("cpu"), dtype=dtype, vocab_size=97
    )
    expected, run = (Run(name, "a", 0, 1.0, [token], [[1.0, 1]], 1, "length") for name, token in (("ar", 3), ("x", 4)))
    assert divergence(target, [1], expected, run).near_tie == near
    assert divergence(target, [1], expected, run, 0).near_tie == (behind < NEAR_TIE)  # as an older file says


def test_a_run_that_was_stopped_before_it_compared_its_texts_does_not_call_them_identical(pair, tmp_path):
    def other(_, instrument):
        def runner(prompt_ids, *, max_new_tokens, eos_token_ids, on_tokens, sampling, seed):
            on_tokens([1] * max_new_tokens)
            return Completed([1] * max_new_tokens, 1, None, "length", 9)

        return runner

    file = tmp_path / "runs.jsonl"
    run_benchmark(pair, ["ar", custom("other", other)], PROMPTS[:2], max_new_tokens=12, records=file)
    lines = [line for line in file.read_text().splitlines() if json.loads(line)["kind"] in ("header", "run")]
    assert len(lines) == 5
    file.write_text("\n".join(lines) + "\n")
    assert {row["label"]: row["identical"] for row in read_results(file).summaries()} == {"ar": "2/2", "other": "0/2"}


def test_eos_ends_texts_only_when_asked(pair, world):
    bench(pair, [Fake("x", *world)], world, warmup=0)
    assert {eos for _, _, _, eos, *_ in world[1]} == {()}
    world[1].clear()
    pair.target.eos_token_ids = (7,)
    try:
        results = bench(pair, [Fake("x", *world)], world, warmup=0, ignore_eos=False)
    finally:
        pair.target.eos_token_ids = ()
    assert {eos for _, _, _, eos, *_ in world[1]} == {(7,)}
    assert results.records.header.setup["eos_rule"] == "a text ends at the target's EOS or at the budget"


CARRIED = "cost-aware-tree:carry=true,learning=0.2"


def test_a_carried_method_is_measured_anew_when_one_of_its_texts_is_missing(pair, tmp_path):
    """Its texts depend on those before, so a resumed run must give what an uninterrupted one gives."""
    path = tmp_path / "r.jsonl"
    whole = run_benchmark(pair, f"chain,{CARRIED}", PROMPTS, max_new_tokens=24, records=path)
    lines = path.read_text().splitlines()
    last = max(number for number, line in enumerate(lines) if json.loads(line).get("method") == CARRIED)
    path.write_text("\n".join(lines[:last] + lines[last + 1 :]) + "\n")
    said: list[str] = []
    resumed = run_benchmark(
        pair, f"chain,{CARRIED}", PROMPTS, max_new_tokens=24, records=path, existing="resume", progress=said.append
    )
    assert [run.nodes for run in resumed.records.runs.values()] == [run.nodes for run in whole.records.runs.values()]
    assert sum(line.startswith("[") and "cost-aware" in line for line in said) == len(PROMPTS)
    alone = run_benchmark(pair, "cost-aware-tree:learning=0.2", PROMPTS[-1:], max_new_tokens=24)
    carried = whole.records.runs[CARRIED, PROMPTS[-1].id, 0]
    assert [run.nodes for run in alone.records.runs.values()] != [carried.nodes]  # or there would be nothing to see


def test_a_warm_up_teaches_a_carried_method_nothing(pair):
    """Its first text would be met again, and a drafter that pools the text would copy it."""

    def nodes(warmup):
        found = run_benchmark(pair, "suffix-tree:carry=true", PROMPTS, max_new_tokens=24, warmup=warmup)
        return [run.nodes for run in found.records.runs.values()]

    assert nodes(warmup=1) == nodes(warmup=0)


def test_a_carried_method_is_not_repeated_or_traced(pair):
    with pytest.raises(ValueError, match=r"carries what it learns .* repeats=2"):
        run_benchmark(pair, CARRIED, PROMPTS, max_new_tokens=8, repeats=2)
    traced = run_benchmark(pair, f"chain,{CARRIED}", PROMPTS[:1], max_new_tokens=8, trace=1)
    assert {label for label, *_ in traced.records.splits} == {"chain"}
