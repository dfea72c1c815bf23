"""Batches: every text is that of `generate` alone, whatever shares its forwards, and however the others end."""

import itertools
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from examples import EVERY, examples
from models import noisy_copy, prompt, random_model, raw_model

from dynatree_lib import FixedTree, NoDraft, SampledTree, Sampling, TokenTree, ToyModel, generate
from dynatree_lib.costs import ASSUMED
from dynatree_lib.decoding import Interrupted
from dynatree_lib.drafters import Chain
from dynatree_lib.engines import batched
from dynatree_lib.engines.batched import BatchedModel, SlotCache, cheapest_groups, envelope, mask_of
from dynatree_lib.engines.batching import generate_batch
from dynatree_lib.masks import ancestor_matrix
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import Pair
from dynatree_lib.verifiers import VERIFIERS, Greedy, TargetWalk, TokenLevel, Traversal
from dynatree_suite.bench import throughput as measuring
from dynatree_suite.bench.prompts import BenchPrompt
from dynatree_suite.bench.streaming import StreamingModel
from dynatree_suite.bench.throughput import throughput
from dynatree_suite.drafters import Lookahead, UnionTree

LENGTHS = (1, 40, 7, 270, 3)  # one of them is read in two parts
PROMPTS = [prompt(length, seed=length)[0] for length in LENGTHS]
KINDS = ["gpt_neox", "llama", "qwen2", "gpt2", "gpt_neox-serial", "qwen3", "phi3", "olmo2", "opt", "falcon"]


def alone(target, drafter, prompts=PROMPTS, seeds=range(9), **options):
    pairs = zip(prompts, seeds, strict=False)
    return [generate(target, ids, drafter, seed=seed, keep_state=False, **options) for ids, seed in pairs]


def same(found, expected):
    """Tokens, ends, and every tree and path on the way."""
    for one, other in zip(found, expected, strict=True):
        assert (one.tokens, one.finish_reason) == (other.tokens, other.finish_reason)
        assert [each.verdict for each in one.iterations] == [each.verdict for each in other.iterations]
        trees = zip(one.iterations, other.iterations, strict=True)
        assert all(np.array_equal(a.tree.tokens, b.tree.tokens) for a, b in trees)
        assert one.state is None


def check(target, drafter, **options):
    """In a batch measured costs are others, so that trees may be; with given costs they are the same."""
    drafter = drafter.priced(lambda draft: ASSUMED)
    expected = alone(target, drafter, **options)
    same(generate_batch(target, PROMPTS, drafter, seeds=range(len(PROMPTS)), max_batch=3, **options), expected)
    return expected


@pytest.fixture(scope="module")
def pair():
    target = random_model("gpt_neox")
    return target, noisy_copy(target)


# ------------------------------------------------------------------------------------------------------------- texts
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_texts_are_those_of_generate(pair, kind, temperature):
    target, draft = pair
    for drafter in examples(kind, draft)[:2]:
        check(target, drafter, sampling=Sampling(temperature), max_new_tokens=12)


@pytest.mark.parametrize("kind", KINDS)
def test_on_every_architecture(kind):
    """Greedy text and sampled text in turns: what is drawn makes no difference to a forward."""
    target, drawn = random_model(kind), KINDS.index(kind) % 2
    drafter, sampling = (SampledTree, Sampling(1.0)) if drawn else (FixedTree, Sampling())
    found = check(target, drafter(noisy_copy(target)), sampling=sampling, max_new_tokens=12)
    assert any(each.verdict.path for one in found for each in one.iterations)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_through_transformers_own_forward(attention):
    target = HFModel(raw_model("gpt_neox", attention=attention), engine="eager")
    assert target.engine.name == "eager"
    check(target, FixedTree(noisy_copy(target)), max_new_tokens=16)


@pytest.mark.parametrize("rule", VERIFIERS, ids=lambda rule: rule.name)
def test_under_every_rule(pair, rule):
    target, draft = pair
    sampling = Sampling() if rule.name == "greedy" else Sampling(0.8, top_k=20)
    for drafter in (SampledTree(draft), Chain(draft), FixedTree(draft)):
        try:
            rule().check(sampling, drafter.drawing, drafter.chain)
        except ValueError:
            continue
        check(target, drafter, verifier=rule(), sampling=sampling, max_new_tokens=16)


def test_ends_come_at_different_times(pair):
    target, draft = pair
    texts = [one.tokens for one in alone(target, FixedTree(draft), max_new_tokens=30)]
    ends = {texts[0][2], texts[1][9], texts[2][20]}
    expected = check(target, FixedTree(draft), max_new_tokens=30, eos_token_ids=ends, commit="rebuild")
    assert len({len(one.tokens) for one in expected}) > 2
    assert "eos" in {one.finish_reason for one in expected}


class Letters:
    """A tokenizer of one letter per token."""

    def decode(self, tokens):
        return "".join(chr(0x4E00 + int(token)) for token in tokens)


class Penalty:
    """Every token costs a nat for each time it occurred: depends on the whole text."""

    def __call__(self, ids, logits):
        return logits - torch.bincount(ids[0], minlength=logits.shape[1]).to(logits.dtype)


ENDS = {
    "stop strings": {"stop_strings": [Letters().decode([token]) for token in range(0, 97, 9)], "tokenizer": Letters()},
    "criteria": {"stopping_criteria": [lambda ids, scores: int(ids[0].sum()) % 11 == 0]},
    "processors": {"logits_processors": [Penalty()], "eos_token_ids": range(0, 97, 12)},
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("kind", "rule", "temperature"),
    [
        (FixedTree, TargetWalk, 0.0),
        (FixedTree, TargetWalk, 1.0),
        (SampledTree, TokenLevel, 1.0),
        (SampledTree, Traversal, 1.0),
    ],
)
def test_what_ends_or_changes_one_text_leaves_the_others_alone(pair, kind, rule, temperature, end):
    target, draft = pair
    options = {"verifier": rule(), "sampling": Sampling(temperature), "max_new_tokens": 24, **ENDS[end]}
    expected = check(target, kind(draft), **options)
    assert len({len(one.tokens) for one in expected}) > 2
    reason = {"stop strings": "stop", "criteria": "criteria", "processors": "eos"}[end]
    assert reason in {one.finish_reason for one in expected}
    plain = alone(target, kind(draft), verifier=rule(), sampling=Sampling(temperature), max_new_tokens=24)
    changed = [one.tokens != other.tokens[: len(one.tokens)] for one, other in zip(expected, plain, strict=True)]
    assert any(changed) == (end == "processors")


def test_one_text_meets_the_end_of_the_context():
    """GPT-2 has no position 600, and the other texts go on."""
    target = random_model("gpt2")
    prompts = [prompt(590)[0], prompt(5)[0]]
    drafter = FixedTree(noisy_copy(target), depth=6, tau=None)
    expected = alone(target, drafter, prompts, max_new_tokens=30)
    assert [one.finish_reason for one in expected] == ["context", "length"]
    same(generate_batch(target, prompts, drafter, seeds=(0, 1), max_new_tokens=30), expected)


def test_a_model_that_drafts_for_itself_shares_everything(pair):
    target, _ = pair
    roles = []
    found = generate_batch(
        target, PROMPTS, Chain(target, 3), max_new_tokens=12, on_forward=lambda one: roles.append(one.role)
    )
    same(found, alone(target, Chain(target, 3), seeds=[0] * 5, max_new_tokens=12))
    assert set(roles) == {"target"}


def test_seeds_and_callbacks_are_each_texts_own(pair):
    target, _ = pair
    options = {"sampling": Sampling(1.0), "max_new_tokens": 12}
    told = {number: [] for number in range(3)}
    equal = generate_batch(
        target, [PROMPTS[1]] * 3, NoDraft(), on_tokens=lambda number, new: told[number].extend(new), **options
    )
    assert equal[0].tokens == equal[1].tokens == equal[2].tokens == told[0] == told[2]
    same(
        generate_batch(target, [PROMPTS[1]], NoDraft(), seed=7, **options),
        alone(target, NoDraft(), [PROMPTS[1]], [7], **options),
    )
    other = generate_batch(target, [PROMPTS[1]] * 2, NoDraft(), seeds=(0, 1), **options)
    assert other[0].tokens != other[1].tokens
    assert generate_batch(target, [], NoDraft()) == []


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 1e-4), (torch.bfloat16, 0.15)])
def test_every_engine_gives_the_rows_that_transformers_gives(dtype, share):
    """Several sequences through each engine: the same logits up to rounding, and nothing in the cache but numbers."""
    raw = raw_model("gpt_neox", dtype=dtype)
    rows = []
    for engine in ("eager", "lean", "auto"):
        model = BatchedModel(HFModel(raw, engine=engine))
        requests = [_request(model, length) for length in (4, 30, 11)]
        model.serve(requests)
        rows.append(torch.cat([one.logits for one in requests]).float())
        assert torch.isfinite(model.cache.states).all()
    assert max((one - rows[0]).abs().max() for one in rows[1:]) < share * rows[0].abs().max()


# ---------------------------------------------------------------------------------------------------------- forwards
def test_forwards_are_shared_and_a_free_slot_is_taken(pair, monkeypatch):
    target, draft = pair
    seen, made, slots = [], [], set()
    monkeypatch.setattr(batched, "SlotCache", lambda layers: made.append(SlotCache(layers)) or made[-1])

    def on_forward(one):
        seen.append(one)
        slots.update(cache.states.shape[2] for cache in made if cache.states is not None)

    options = {"max_new_tokens": 12, "on_forward": on_forward}
    generate_batch(target, PROMPTS * 2, FixedTree(draft), max_batch=4, **options)
    assert {one.role for one in seen} == {"target", "draft"}
    assert max(one.slots for one in seen) == 4
    assert all(one.tokens <= one.computed for one in seen)
    assert slots == {4}  # ten texts in four slots
    seen.clear()
    generate_batch(target, [prompt(9, seed=seed)[0] for seed in range(6)], FixedTree(draft), **options)
    drafts = [one.slots for one in seen if one.role == "draft"]
    assert min(drafts) < 6  # trees differ in depth, and still the target waits until all are grown
    assert [one.slots for one in seen if one.role == "target"][:2] == [6, 6]
    seen.clear()
    generate_batch(target, [PROMPTS[1]] * 6, NoDraft(), **options)
    assert [(one.slots, one.tokens, one.computed) for one in seen[1:]] == [(6, 6, 6)] * 11


def _request(model, length, session=None):
    """A tree of five nodes below a text of this length, as a request that nobody has served."""
    taken = []
    session = session or model.session()
    tree = TokenTree.from_paths(5, [[1, 2], [3, 4]])

    def take(request):
        taken.append(request)
        return torch.empty(request.keep, model.vocab_size)

    model.ask = take
    if not session.length:
        session.start(prompt(length)[0].tolist())
    session.score(tree.tokens, tree.parents, Sampling())
    return taken[0]


def test_rows_beside_each_other_score_as_they_do_alone(pair):
    """Prompts, grown trees, commits, a closed slot: the logits of every step against sessions of their own."""
    target, _ = pair
    model = BatchedModel(target)
    random = np.random.default_rng(0)
    slots = [(model.session(), target.session()) for _ in range(5)]
    for both, length in zip(slots, (3, 50, 0, 120, 9), strict=True):
        for session in both:
            session.start(prompt(length + 1)[0, :length].tolist())
    for step in range(9):
        asked, expected = [], []
        model.ask = lambda request: asked.append(request) or torch.empty(request.keep, model.vocab_size)  # noqa: B023
        chosen = [slots[number] for number in sorted(random.permutation(len(slots))[: 2 + step % 3])]
        for mine, single in chosen:
            count, known = int(random.integers(1, 9)), mine.pending
            parents = [int(random.integers(-1, known + number)) for number in range(count)]
            tokens = random.integers(0, 97, count)
            mine.score(tokens, parents, Sampling())
            expected.append(single.score(tokens, parents, Sampling()).logits)
        model.serve(asked)
        for request, rows in zip(asked, expected, strict=True):
            assert torch.allclose(request.logits, rows, rtol=0, atol=1e-9)
        for number, both in enumerate(chosen):  # some keep a path, some drop all, some let the tree grow on
            for session in both:
                if (number + step) % 3 == 0:
                    session.commit(_deepest(session._parents))
                elif (number + step) % 3 == 1:
                    session.rollback()
            assert (both[0].length, both[0].position, both[0].pending) == (
                both[1].length, both[1].position, both[1].pending,
            )  # fmt: skip
        if step == 4:
            model.close(slots.pop(0)[0])
            assert [one.slot for one in model.sessions] == [0, 1, 2, 3]


def _deepest(parents):
    node = max(range(len(parents)), key=lambda one: ancestor_matrix(parents)[one].sum())
    return np.flatnonzero(ancestor_matrix(parents)[node]).tolist()


def test_padding_touches_nothing_that_is_in_use(pair):
    target, _ = pair
    model = BatchedModel(target)
    requests = [_request(model, length) for length in (30, 5, 60)]
    model.serve(requests)
    before = model.cache.states.clone()
    used = [one.session.entries for one in requests]
    sizes = []
    model.on_forward = sizes.append
    again = _request(model, 0, requests[0].session), _request(model, 0, requests[2].session)
    model.serve(again)
    assert (sizes[0].slots, sizes[0].computed) == (2, 15)  # the slot between them came along
    for slot, rows in enumerate(used):
        assert torch.equal(model.cache.states[:, :, slot, :, :rows], before[:, :, slot, :, :rows])
    assert torch.isfinite(model.cache.states).all()
    assert [one.session.entries for one in requests] == [used[0] + 5, used[1], used[2] + 5]


def test_the_mask_is_its_definition(pair):
    """Row by row, column by column: what a row of the envelope sees."""
    model = BatchedModel(pair[0])
    slots = [_request(model, 12), None, _request(model, 3)]
    slots[0].session.entries = 0
    length = max(len(one.tokens) for one in slots if one)
    inputs, bases, tails = envelope(slots, [0, 9, 0], length)
    mask = mask_of(bases, tails, torch.float64, torch.device("cpu"))
    assert mask.shape[-1] % 8 == 0
    barred = torch.finfo(torch.float64).min
    for slot, row, column in itertools.product(range(3), range(length), range(mask.shape[-1])):
        request = slots[slot]
        padding = length - (len(request.tokens) if request else 0)
        base = request.base if request else 0
        if row < padding:
            sees = column <= base
        else:
            tail = request.tail[row - padding]
            sees = column < base or (column - base < len(tail) and tail[column - base])
        assert mask[slot, 0, row, column] == (0 if sees else barred)
    own = [sorted(slots.tolist()) for slots in inputs[2]]
    assert own == [list(range(start, start + length)) for start in (0, 9, 0)]


@pytest.mark.parametrize("worth", [0, 3, 24])
def test_groups_cost_as_little_as_any(worth):
    def cost(sizes, groups):
        ends = np.cumsum([0, *groups])
        return sum(worth + count * sizes[at] for at, count in zip(ends, groups, strict=False))

    random = np.random.default_rng(worth)
    for _ in range(60):
        sizes = sorted(random.integers(1, 40, random.integers(1, 7)).tolist(), reverse=True)
        ways = [
            [len(list(run)) for _, run in itertools.groupby(np.cumsum([0, *cuts]).tolist())]
            for cuts in itertools.product((0, 1), repeat=len(sizes) - 1)
        ]
        found = cheapest_groups(sizes, worth)
        assert sum(found) == len(sizes)
        assert cost(sizes, found) == min(cost(sizes, way) for way in ways)


# -------------------------------------------------------------------------------------------------------------- ends
def test_an_error_in_one_text_ends_all_and_says_whose_it_was(pair):
    target, draft = pair
    threads, told = threading.active_count(), []

    def on_tokens(number, tokens):
        told.append(number)
        if number == 1 and told.count(1) == 2:
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="disk is full") as caught:
        generate_batch(target, PROMPTS, FixedTree(draft), max_new_tokens=60, max_batch=3, on_tokens=on_tokens)
    assert caught.value.__notes__ == ["It was raised while decoding prompts[1]."]
    assert set(told) == {0, 1, 2}
    assert threading.active_count() == threads
    check(target, FixedTree(draft), max_new_tokens=8)


def test_an_error_in_a_shared_forward_is_raised_once_all_have_stopped():
    raw = raw_model("gpt_neox")
    target = HFModel(raw)
    engine, calls = target.engine, []

    def failing(*arguments):
        calls.append(1)
        if len(calls) == 6:
            raise MemoryError("out of memory")
        return engine(*arguments)

    target.engine = failing
    threads = threading.active_count()
    with pytest.raises(MemoryError, match="out of memory"):
        generate_batch(target, PROMPTS, NoDraft(), max_new_tokens=30)
    assert (threading.active_count(), len(calls)) == (threads, 6)


@pytest.mark.parametrize("how", ["signal", "raised"])
@pytest.mark.parametrize("handler", ["python", "own"])
@pytest.mark.parametrize("interrupt", ["raise", "return"])
def test_ctrl_c_ends_all_with_what_they_have(pair, interrupt, how, handler):
    target, draft = pair
    whole = alone(target, FixedTree(draft), seeds=[0] * 5, max_new_tokens=40)

    def raising(*_):
        raise KeyboardInterrupt

    own = raising if handler == "own" else signal.default_int_handler
    before = signal.signal(signal.SIGINT, own)
    told = []

    def on_tokens(number, tokens):
        told.append(number)
        if len(told) == 8:
            if how == "signal":
                signal.raise_signal(signal.SIGINT)
            else:
                raise KeyboardInterrupt

    threads = threading.active_count()
    options = {"max_new_tokens": 40, "max_batch": 3, "on_tokens": on_tokens}
    try:
        if interrupt == "return":
            found = generate_batch(target, PROMPTS, FixedTree(draft), interrupt="return", **options)
        else:
            with pytest.raises(Interrupted, match="attribute `generations`") as caught:
                generate_batch(target, PROMPTS, FixedTree(draft), **options)
            found = caught.value.generations
            assert caught.value.generation is found[0]
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)
    assert threading.active_count() == threads
    assert {one.finish_reason for one in found} == {"interrupted"}
    assert all(full.tokens[: len(one.tokens)] == one.tokens for one, full in zip(found, whole, strict=True))
    assert [bool(one.tokens) for one in found] == [True, True, True, False, False]


def test_caches_are_freed_at_once(pair, monkeypatch):
    made = []
    monkeypatch.setattr(batched, "SlotCache", lambda layers: made.append(SlotCache(layers)) or made[-1])
    generate_batch(pair[0], PROMPTS[:2], FixedTree(pair[1]), max_new_tokens=3)
    assert [one.states for one in made] == [None, None]


def test_torch_keeps_its_threads(pair):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        generate_batch(pair[0], PROMPTS[:2], NoDraft(), max_new_tokens=3)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# ---------------------------------------------------------------------------------------------------------- refusals
def test_models_that_cannot_share_a_forward_are_refused(pair):
    target, draft = pair
    with pytest.raises(TypeError, match="StreamingModel.*one by one"):
        generate_batch(StreamingModel(target, 64), PROMPTS, NoDraft())
    with pytest.raises(TypeError, match="ToyModel"):
        generate_batch(ToyModel(lambda text: torch.ones(5), 5), PROMPTS, NoDraft())
    with pytest.raises(ValueError, match="sliding-window layers \\(window 8\\)"):
        generate_batch(random_model("mistral-window"), PROMPTS, NoDraft())
    with pytest.raises(ValueError, match="sessions of its own"):
        generate_batch(target.altered(session_class=type("Other", (target.session_class,), {})), PROMPTS, NoDraft())
    with pytest.raises(TypeError, match="StreamingModel"):
        generate_batch(target, PROMPTS, FixedTree(StreamingModel(draft, 64)))

    class Hidden(FixedTree):
        @property
        def models(self):
            return (draft,)

    with pytest.raises(TypeError, match="dataclass field"):
        generate_batch(target, PROMPTS, Hidden(None))


def test_what_a_batch_cannot_do_is_said_before_any_work(pair):
    target, draft = pair
    forwards = []

    def refused(message, prompts=PROMPTS, **options):
        with pytest.raises(ValueError, match=message):
            generate_batch(target, prompts, FixedTree(draft), on_forward=forwards.append, **options)

    refused("5 prompts; give one each", seeds=(1, 2))
    refused("max_batch is 0", max_batch=0)
    refused("keep_state", keep_state=True)
    refused("prompt is empty", prompts=[*PROMPTS, []], max_batch=1)
    refused("whole number", max_new_tokens=0)
    refused("[Tt]emperature", verifier=Greedy(), sampling=Sampling(1.0))
    warm = generate(target, PROMPTS[0], Lookahead(), max_new_tokens=2).state
    refused("warm", warm=warm)
    refused("state", state=warm)
    assert not forwards


# -------------------------------------------------------------------------------------------------------- throughput
def test_two_drafts_of_a_union_are_both_shared(pair):
    target, draft = pair
    for second in (draft, noisy_copy(target, 0.02)):
        check(target, UnionTree(Chain(draft, 3), FixedTree(second, depth=2)), max_new_tokens=12)


def test_throughput_counts_what_batches_did(pair):
    """Three methods at two sizes: every text its own, forwards shared, times from the clock that is given."""
    ticks, told = itertools.count(), []
    prompts = [BenchPrompt.from_ids(f"p{number}", ids.tolist()) for number, ids in enumerate(PROMPTS[:4])]
    found = throughput(
        Pair("made", *pair, None), "hf-generate,ar,fixed-tree", prompts, (1, 3),
        max_new_tokens=10, repeats=2, clock=lambda: float(next(ticks)), progress=told.append,
    )  # fmt: skip
    rows = [SimpleNamespace(**row) for row in found]
    assert [(one.batch, one.method) for one in rows] == [
        *itertools.product((1, 3), ("hf-generate", "ar", "fixed-tree"))
    ]
    assert len(told) == 2 * 3 * (4 + 2)
    for one in rows:
        assert (one.tokens, one.identical, one.prompts, one.divergences) == (40, 4, 4, [])
        assert one.seconds == {1: 4, 3: 2}[one.batch]  # a tick for each group
        assert one.tokens_per_second == one.tokens / one.seconds
        assert (one.interval is None) == (one.batch == 3)
        assert (one.draft_forwards > 0) == (one.method == "fixed-tree")
    plain, shared = (next(one for one in rows if (one.method, one.batch) == ("ar", size)) for size in (1, 3))
    assert (plain.forwards, plain.padded, plain.iterations) == (41, 0, 40)  # the longest prompt is read in two forwards
    assert shared.iterations == 40 > shared.forwards
    assert 0 < next(one for one in rows if (one.method, one.batch) == ("hf-generate", 3)).padded < 1


def test_throughput_tells_a_wrong_text_and_where(pair, monkeypatch):
    """A text that is not the prompt's own counts as divergent, with the margin where it leaves it."""

    def wrong(*arguments, **options):
        found = generate_batch(*arguments, **options)
        found[1].tokens[4] = (found[1].tokens[4] + 1) % 97
        return found

    monkeypatch.setattr(measuring, "generate_batch", wrong)
    prompts = [BenchPrompt.from_ids(f"p{number}", ids.tolist()) for number, ids in enumerate(PROMPTS[:2])]
    (row,) = throughput(Pair("made", *pair, None), "ar", prompts, (2,), max_new_tokens=8, repeats=1)
    assert (row["identical"], row["prompts"], row["near_ties"]) == (1, 2, 0)
    (divergence,) = row["divergences"]
    assert (divergence["prompt"], divergence["index"]) == ("p1", 4)
    assert divergence["margin"] > 0


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        ("hf-assisted", {}, "decodes no batches"),
        ("streaming-llm:cache=64", {}, "decodes no batches"),
        ("adaptive-tree:carry=true", {}, "without carry"),
        ("ar", {"batch_sizes": (0,)}, "a batch size is 0"),
        ("ar", {"repeats": 0}, "repeats is 0"),
        ("ar", {"max_new_tokens": 600}, "exceeds the context"),
    ],
)
def test_throughput_refuses_what_it_cannot_measure(pair, methods, options, message):
    with pytest.raises(ValueError, match=message):
        throughput(Pair("made", *pair, None), methods, [BenchPrompt.from_ids("p", [1, 2])], **options)
