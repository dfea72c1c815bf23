"""Static execution writes the texts of the plain cache; CUDA graphs are played by a recorder of tensor operations."""

from __future__ import annotations

import contextlib
import types

import numpy as np
import pytest
import reference
import torch
from examples import EVERY, examples
from models import CONFIGS, hf_greedy, noisy_copy, prompt, random_model, raw_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dynatree_lib import Chain, FixedTree, NoDraft, Sampling, TokenTree, autoregressive, generate
from dynatree_lib.engines.plain import autoregressive_fast
from dynatree_lib.engines.static import StaticModel, static_pair, why_not_static
from dynatree_lib.masks import ancestor_matrix
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import Pair
from dynatree_lib.models.proof import _Trial
from dynatree_lib.verifiers import VERIFIERS, Drawing, Greedy
from dynatree_suite.bench.environment import describe_model
from dynatree_suite.bench.protocol import run_benchmark
from dynatree_suite.bench.trace import Trace
from tools import try_architectures
from tools.gpu_speed import buffer_bytes

EXPERTS = ("mixtral", "qwen3_moe", "olmoe", "deepseek_v3")
FULL = [kind for kind in CONFIGS if "window" not in kind and kind not in EXPERTS]
SIZES = [(1, 12), (2, 1), (40, 12), (290, 6)]


@pytest.fixture(scope="module", params=["gpt_neox", "llama"])
def trial(request):
    """A pair, the same pair on static buffers, and transformers' greedy text for every size."""
    target = random_model(request.param)
    pair = Pair("random", target, noisy_copy(target), None)
    return pair, static_pair(pair), [(prompt(n), hf_greedy(target, prompt(n), budget)) for n, budget in SIZES]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_greedy_text_is_transformers(trial, kind):
    """Every example on one architecture, and the first on another."""
    pair, static, cases = trial
    first = None if pair.target is random_model("gpt_neox") else 1
    for number, drafter in enumerate(examples(kind, static.draft)[:first]):
        commit = ("gather", "rebuild")[number % 2]
        for ids, expected in cases if number < 2 else cases[2:3]:
            assert generate(static.target, ids, drafter, max_new_tokens=len(expected), commit=commit).tokens == expected


@pytest.mark.parametrize("trial", ["gpt_neox"], indirect=True)
@pytest.mark.parametrize("rule", [rule for rule in VERIFIERS if rule is not Greedy], ids=lambda rule: rule.name)
def test_sampled_text_is_that_of_the_plain_cache(trial, rule):
    """Of every drafter that draws, and of the first example of those that do not."""
    (pair, static, _), compared = trial, 0
    for kind in EVERY:
        pairs = zip(examples(kind, pair.draft), examples(kind, static.draft), strict=True)
        for number, (plain, other) in enumerate(pairs):
            if number and plain.drawing is Drawing.FIXED:
                continue
            try:
                rule().check(Sampling(1.0), plain.drawing, plain.chain)
            except ValueError:
                continue
            options = {"sampling": Sampling(1.0), "seed": 3, "verifier": rule(), "max_new_tokens": 12}
            expected = generate(pair.target, prompt(30), plain, **options).tokens
            assert generate(static.target, prompt(30), other, **options).tokens == expected, plain
            compared += 1
    assert compared


@pytest.mark.parametrize("kind", EXPERTS)
def test_a_mixture_of_experts_is_refused(kind):
    with pytest.raises(ValueError, match="is a mixture of experts, which waits for the device"):
        StaticModel(random_model(kind))


@pytest.mark.parametrize("kind", ["dbrx", "qwen3_vl_moe"])
def test_experts_that_a_nested_configuration_counts_are_seen(kind):
    options = try_architectures.PICTURES.get(kind, {})
    target = HFModel(try_architectures.random_model(kind, options, torch.float32), check=False)
    assert why_not_static(target).startswith(f"'{target.name}' is a mixture of experts")
    assert _Trial.of(target, 20, routed=True).routing is not None


@pytest.mark.parametrize("kind", FULL)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_tree_scores_equal_plain_forwards(kind, attention):
    """Every node's logits in a padded forward equal a plain forward over its path; again after a commit, by levels."""
    target = StaticModel(HFModel(raw_model(kind, attention=attention), check=False), 60, check=False)
    close = {"rtol": 0, "atol": 1e-9 if attention == "sdpa" else 1e-4}  # eager attention rounds its softmax to float32
    text = prompt(20)[0].tolist()
    tree = TokenTree.from_paths(5, [[1, 2, 3], [1, 4], [6, 2], [6, 7, 8, 9]])
    session = target.session()
    session.start(text)
    with torch.inference_mode():
        found = session.score(tree.tokens, tree.parents, Sampling()).logits
        assert torch.allclose(found, reference.paths_one_by_one(target.model, text, tree), **close)
        session.commit([0, *tree.path(5)])
        text += [5, *tree.tokens[tree.path(5)].tolist()]
        halves = [session.score(tree.tokens[s], tree.parents[s], Sampling()) for s in (slice(0, 4), slice(4, 10))]
        expected = reference.paths_one_by_one(target.model, text, tree)
    assert torch.allclose(torch.cat([rows.logits for rows in halves]), expected, **close)
    assert session.length == session.position == len(text)


def test_a_text_that_breaks_down_leaves_nothing_behind():
    """A hidden column has a weight of 0, which does not hide a NaN."""
    model = HFModel(raw_model("gpt_neox", seed=3))
    static, table = StaticModel(model, 100), model.model.get_input_embeddings().weight
    expected = hf_greedy(model, prompt(8), 20)
    healthy = table[90].clone()
    with torch.no_grad():
        table[90] = torch.nan
    with pytest.raises(ValueError, match="hold NaN"):
        autoregressive(static, [*[1] * 30, 90], max_new_tokens=4)
    with torch.no_grad():
        table[90] = healthy
    for decode in (autoregressive, autoregressive_fast):
        assert decode(static, prompt(8), max_new_tokens=20).tokens == expected


def test_rows_stay_what_they_were(trial):
    """A later forward does not change the logits of an earlier one, nor does another session's."""
    _, static, _ = trial
    first, second = static.target.session(), static.target.session()
    first.start([5, 6, 7])
    scores = first.score([1, 2], [-1, 0], Sampling())
    before = scores.logits.clone()
    first.score([3], [1], Sampling())
    second.start([9, 9])
    second.score([4], [-1], Sampling())
    assert torch.equal(scores.logits, before)


def test_sessions_may_take_turns(trial):
    """Two texts decoded in turns on one set of buffers, with nodes pending when the other's turn comes."""
    pair, static, _ = trial
    logits = []
    for model in (pair.target, static.target):
        sessions = [model.session(), model.session()]
        for number, session in enumerate(sessions):
            session.start(prompt(10 + number, seed=number)[0].tolist())
        for step in range(4):
            for session in sessions:
                session.score([step, 7, 8], [-1, 0, 0], Sampling())
            for session in sessions:
                logits.append(session.score([9], [2], Sampling()).logits)
                session.commit([0, 2, 3])
    half = len(logits) // 2
    assert torch.allclose(torch.cat(logits[:half]), torch.cat(logits[half:]), rtol=0, atol=1e-11)


def slow_mask(base, seen, rows, width):
    """The definition: committed columns, then those that the row sees; padding sees column 0."""
    out = np.zeros((rows, width), bool)
    new, tail = seen.shape
    for row in range(rows):
        for column in range(width):
            if row >= new:
                out[row, column] = column == 0
            elif 1 <= column <= base:
                out[row, column] = True
            elif base < column <= base + tail:
                out[row, column] = seen[row, column - base - 1]
    return out


@pytest.mark.parametrize(("base", "earlier", "new"), [(0, 0, 1), (7, 0, 5), (3, 60, 9), (0, 100, 30), (50, 1, 64)])
def test_the_mask_made_on_the_device_is_the_definition(base, earlier, new):
    static = StaticModel(random_model("gpt_neox"), 60, sizes=(1, 16, 64, 130), check=False)
    buffers, random = static.buffers, np.random.default_rng(base)
    nodes = earlier + new
    parents = np.array([random.integers(-1, node) if node else -1 for node in range(nodes)])
    seen = ancestor_matrix(parents)[-new:]
    size, width = buffers.send(base, np.zeros(new), np.zeros(new), seen)
    table = buffers.integers[1 : 1 + size * (3 + buffers.words)].view(3 + buffers.words, size)
    found = buffers._seen(buffers.integers[0], table[2], table[3:], width)
    assert (found.numpy() == slow_mask(base, seen, size, width)).all()
    assert table[2].tolist() == [*range(1 + base + earlier, 1 + base + nodes), *[0] * (size - new)]


def test_padding_is_finite_and_touches_no_row():
    static = StaticModel(random_model("gpt_neox"), 60, sizes=(8,), check=False)
    session = static.session()
    session.start([1, 2, 3])
    session.score([4], [-1], Sampling())
    states = static.buffers.cache.states
    with torch.inference_mode():
        assert torch.isfinite(static.buffers.forward(8, static.buffers.widths[-1])).all()
    assert torch.isfinite(states).all()
    assert (states[..., 1:5, :] != 0).any()
    assert (states[..., 5:, :] == 0).all()


def test_a_text_ends_where_the_capacity_does(trial):
    pair, _, _ = trial
    static = StaticModel(pair.target, 50)
    for drafter in (NoDraft(), FixedTree(StaticModel(pair.draft, 50)), FixedTree(StaticModel(pair.draft, 45))):
        out = generate(static, prompt(40), drafter, max_new_tokens=30)
        assert (out.tokens, out.finish_reason) == (hf_greedy(pair.target, prompt(40), 10), "context")
    with pytest.raises(ValueError, match="prompt has 60 tokens"):
        generate(static, prompt(60), NoDraft())


def test_what_does_not_fit_is_refused_in_a_sentence(trial):
    pair, _, _ = trial
    with pytest.raises(ValueError, match="sliding-window layers"):
        StaticModel(random_model("qwen2-window"))
    with pytest.raises(ValueError, match="capacity is 1"):
        StaticModel(pair.target, 1)
    with pytest.raises(ValueError, match=r"sizes \(4, 2\)"):
        StaticModel(pair.target, sizes=(4, 2))
    static = StaticModel(pair.target, 30, sizes=(1, 8))
    session = static.session()
    session.start([1])
    with pytest.raises(ValueError, match="9 tokens to score at once or pending do not fit static buffers for 8"):
        session.score(list(range(9)), [-1] * 9, Sampling())
    session.start(range(31))
    with pytest.raises(ValueError, match="text of 31 tokens does not fit static buffers of 30"):
        session.flush()


def test_an_interrupted_forward_leaves_the_session_as_it_was(trial, monkeypatch):
    _, static, _ = trial
    session = static.target.session()
    session.start(prompt(12)[0].tolist())
    expected = session.score([5], [-1], Sampling()).logits
    session.rollback()
    with monkeypatch.context() as patch:
        patch.setattr(static.target.buffers, "engine", _interrupting)
        with pytest.raises(KeyboardInterrupt):
            session.score([6, 7], [-1, 0], Sampling())
    session.rollback()
    assert torch.allclose(session.score([5], [-1], Sampling()).logits, expected, rtol=0, atol=1e-12)


def _interrupting(*args):
    raise KeyboardInterrupt


def test_it_is_the_model_to_everything_else(trial):
    pair, static, _ = trial
    described = describe_model(static.target)
    assert described == {**describe_model(pair.target), "context": described["context"]}
    narrow = static.target.altered(vocab_size=50)
    assert narrow.session().score([3], [-1], Sampling()).logits.shape == (1, 50)
    texts = [decode(narrow, [3], max_new_tokens=9).tokens for decode in (autoregressive_fast, autoregressive)]
    assert texts[0] == texts[1]
    assert static.target.buffers.graph_bytes == 0
    assert buffer_bytes(static.target.buffers) > static.target.buffers.cache.states.nbytes


@pytest.mark.parametrize("trial", ["llama"], indirect=True)
def test_every_kind_of_method_runs_on_a_static_pair(trial):
    _, static, _ = trial
    methods = "hf-generate,hf-assisted,ar,ar-fast,chain,fixed-tree,streaming-llm:cache=60"
    results = run_benchmark(static, methods, _bench_prompts(), max_new_tokens=12, trace=1)
    assert not results.records.failures
    for one in results.summaries():
        assert one["identical"] in ("2/2", None)
    splits = {split.method: split for split in results.records.splits.values()}
    assert splits["chain"].draft > 0
    assert splits["chain"].verify > 0


def _bench_prompts():
    from dynatree_suite.bench.prompts import BenchPrompt

    return [BenchPrompt.from_ids(str(n), prompt(n)[0].tolist()) for n in (8, 30)]


def test_the_trace_sees_every_forward(trial):
    _, static, _ = trial
    trace = Trace(lambda: 0.0, lambda: None)
    trace.begin()
    drafter = Chain(trace.instrument(static.draft, "draft"), length=3)
    out = generate(trace.instrument(static.target, "target"), prompt(20), drafter, max_new_tokens=20, keep_state=False)
    forwards = [rows for role, _, _, rows in trace.events if role == "target"]
    assert forwards == [len(one.tree) for one in out.iterations]
    assert any(role == "draft" for role, *_ in trace.events)


# ------------------------------------------------------------------------------------------------------------- graphs
FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")
"""Operations that would read a value from the device, which a capture does not allow."""


class Recorder(TorchDispatchMode):
    """Records every tensor operation; `replay` runs them again on the same tensors, as a CUDA graph does."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ not in FORBIDDEN, f"{func} waits for the device"
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self):
        for func, args, kwargs, out in self.calls:
            for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class FakeCuda:
    """Plays the part of `torch.cuda` for one `StaticModel` on the CPU, and spoils what a graph must not rely on."""

    def __init__(self, static):
        self.static, self.outputs = static, []
        self.CUDAGraph = lambda: types.SimpleNamespace(replay=None)
        self.current_stream = lambda *args: types.SimpleNamespace(wait_stream=lambda other: None)
        self.Stream = self.current_stream
        self.synchronize = self.empty_cache = lambda: None
        self.graph_pool_handle = object
        self.memory_reserved = lambda: 1000 * len(self.outputs)
        self.device = self.stream = lambda which: contextlib.nullcontext()

    @contextlib.contextmanager
    def graph(self, graph, pool, stream):
        buffers = self.static.buffers
        lasting = [buffers.cache.states, buffers.integers, buffers.state, buffers.chosen]
        before, recorder = [each.clone() for each in lasting], Recorder()
        with recorder:
            yield
        for each, value in zip(lasting, before, strict=True):  # a capture computes nothing
            each.copy_(value)
        self.outputs.append(recorder.calls[-1][3])

        def replay():
            for output in self.outputs:  # graphs share memory: what another left is gone
                if output.is_floating_point():
                    output.fill_(torch.nan)
            recorder.replay()

        graph.replay = replay


@pytest.fixture
def captured(monkeypatch):
    """A function that makes a StaticModel whose steps are captured and replayed."""

    def make(model):
        monkeypatch.setattr("dynatree_lib.engines.static.NARROWEST", 64)
        static = StaticModel(model, 200, sizes=(1, 4, 16, 64), check=False)
        cuda = FakeCuda(static)
        for name in (
            "CUDAGraph", "current_stream", "Stream", "synchronize", "empty_cache", "graph_pool_handle",
            "memory_reserved", "device", "stream", "graph",
        ):  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
        static.buffers.captures = True
        return static

    return make


@pytest.mark.parametrize("kind", FULL)
def test_graphs_replay_every_forward(captured, kind):
    """Nothing of a forward is fixed at its capture but its sizes, and nothing in it waits for the device."""
    model = random_model(kind)
    static = captured(model)
    for size, budget in ((3, 6), (60, 6), (125, 6)):  # the last two grow into the next width
        expected = hf_greedy(model, prompt(size), budget)
        assert generate(static, prompt(size), FixedTree(noisy_copy(model)), max_new_tokens=budget).tokens == expected
        assert autoregressive(static, prompt(size), max_new_tokens=budget).tokens == expected
        assert autoregressive_fast(static, prompt(size), max_new_tokens=budget).tokens == expected
    graphs = static.buffers._graphs
    assert {key[0] for key in graphs} >= {1, 4, 16, 64, "greedy"}
    assert {key[-1] for key in graphs} == {64, 128, 256}


def test_rows_outlive_the_next_replay(captured):
    model = random_model("gpt_neox")
    sessions = [model.session(), captured(model).session()]
    found = []
    for session in sessions:
        session.start([5, 6, 7])
        scores = [session.score([token], [node - 1], Sampling()) for node, token in enumerate((1, 2, 3))]
        found.append(torch.cat([one.logits for one in scores]))
    assert torch.allclose(*found, rtol=0, atol=1e-11)


def test_a_draft_grows_its_levels_from_graphs(captured):
    model = random_model("gpt_neox")
    draft = captured(noisy_copy(model))
    out = generate(model, prompt(30), FixedTree(draft, depth=4, branching=3, tau=None, max_nodes=40), max_new_tokens=60)
    assert out.tokens == hf_greedy(model, prompt(30), 60)
    assert len(draft.buffers._graphs) >= 3


def test_warming_captures_all_of_them_once(captured):
    static = captured(random_model("gpt_neox"))
    assert static.warm() is static
    assert len(static.buffers._graphs) == (4 + 1) * 4
    captures = dict(static.buffers._graphs)
    assert autoregressive(static, prompt(20), max_new_tokens=30).tokens == hf_greedy(static, prompt(20), 30)
    assert static.buffers._graphs == captures
    other = captured(random_model("gpt_neox")).warm(trees=False)
    assert other.buffers.graph_bytes == 4 * 1000
    assert set(other.buffers._graphs) == {("greedy", other.vocab_size, width) for width in other.buffers.widths}


def test_copies_of_a_model_share_one_step_of_plain_decoding(captured):
    """A graph writes to the tensors it was captured with, so a copy must not have others (make_pair copies drafts)."""
    static = captured(random_model("gpt_neox"))
    expected = hf_greedy(static, prompt(20), 12)
    for model in (static, static.altered(), static):
        assert autoregressive_fast(model, prompt(20), max_new_tokens=12).tokens == expected


def test_a_forward_that_cannot_be_captured_says_so(captured, monkeypatch):
    static = captured(random_model("gpt_neox"))

    def refused(*args, **kwargs):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refused)
    with pytest.raises(RuntimeError, match="engine 'lean' could not be captured.*graphs=False"):
        autoregressive(static, [1], max_new_tokens=2)
