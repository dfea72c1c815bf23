"""Engines: transformers' own forward, the lean one and the packed one give the same logits; which is chosen when."""

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from models import CONTEXT, hf_greedy, noisy_copy, prompt, random_model, raw_model
from transformers import LlamaForCausalLM

from dynatree_cpu import compiled, kernels, linears, native
from dynatree_cpu.gpt_neox import PackedGPTNeoX
from dynatree_cpu.products import packed
from dynatree_lib import Chain, FixedTree, Sampling, autoregressive, generate, generate_batch, load_pair
from dynatree_lib.engines.plain import autoregressive_fast
from dynatree_lib.engines.static import StaticModel
from dynatree_lib.masks import additive, ancestor_matrix, laid_out
from dynatree_lib.models import engine as engines
from dynatree_lib.models.cache import TreeCache
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.sampling import RandomSource, Scores, most_probable

TREE = [-1, 0, 0, 1, 1, 3, 2]
NEEDS_BFLOAT16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 on this CPU"
)
NEEDS_AVX512_BFLOAT16 = pytest.mark.skipif(not kernels.BFLOAT16, reason="this CPU does not multiply in bfloat16")


def scored(model: HFModel) -> torch.Tensor:
    """Logits of a tree after a text that was committed along another tree, and of a row and a prefill after it."""
    session, rows = model.session(), []
    session.start(prompt(20)[0].tolist())
    rows.append(session.score([5, *range(1, 7)], TREE, Sampling()).logits)
    session.commit([0, 1, 3])
    rows.append(session.score([7], [-1], Sampling()).logits)
    session.commit([0])
    session.extend(prompt(300)[0].tolist())  # read by a forward of its own, behind what is in the cache
    rows.append(session.score([8, 9, 10], [-1, 0, 0], Sampling()).logits)
    return torch.cat(rows)


@pytest.mark.parametrize(
    ("engine", "kind", "dtype", "close"),
    [
        ("lean", "gpt_neox", torch.float64, 1e-10),
        ("lean", "gpt_neox-serial", torch.float64, 1e-10),
        ("lean", "gpt_neox", torch.float32, 1e-3),
        ("packed", "gpt_neox", torch.float32, 1e-3),
        pytest.param("packed", "gpt_neox", torch.bfloat16, 0.3, marks=NEEDS_BFLOAT16),
        *(("packed", kind, torch.float32, 1e-3) for kind in ("llama", "qwen2", "qwen3")),
        *(
            pytest.param("packed", kind, torch.bfloat16, 0.3, marks=NEEDS_BFLOAT16)
            for kind in ("llama", "qwen2", "qwen3")
        ),
        *(
            ("linears", kind, torch.float32, 1e-3)
            for kind in ("gpt2", "opt", "phi3", "olmo2", "falcon", "mistral-window")
        ),
        pytest.param("linears", "gpt2", torch.bfloat16, 0.3, marks=NEEDS_BFLOAT16),
        *(("compiled", kind, torch.float32, 1e-3) for kind in ("llama", "qwen2", "qwen3")),
        pytest.param("compiled", "llama", torch.bfloat16, 0.3, marks=NEEDS_AVX512_BFLOAT16),
    ],
)
def test_an_engine_gives_the_models_own_logits(engine, kind, dtype, close):
    raw = raw_model(kind, dtype=dtype)
    made = HFModel(raw, engine=engine)
    assert made.engine.name == engine
    torch.testing.assert_close(
        scored(made), scored(HFModel(raw, engine="eager")), rtol=0, atol=close, check_dtype=False
    )


def test_auto_takes_the_fastest_that_serves():
    names = {
        (kind, dtype): HFModel(raw_model(kind, dtype=dtype)).engine.name
        for kind, dtype in (
            ("gpt_neox", torch.float32), ("gpt_neox", torch.float64), ("gpt_neox-serial", torch.float32),
            ("llama", torch.float32), ("llama", torch.float64), ("mistral-window", torch.float32),
            ("gpt2", torch.float32),
        )
    }  # fmt: skip
    assert list(names.values()) == ["packed", "lean", "lean", "compiled", "eager", "linears", "linears"]
    assert HFModel(raw_model("gpt_neox", attention="eager", dtype=torch.float32)).engine.name == "linears"


def test_auto_does_not_copy_large_weights(monkeypatch):
    monkeypatch.setattr(engines, "LARGEST_COPY", 1000)
    assert HFModel(raw_model("gpt_neox", dtype=torch.float32)).engine.name == "lean"
    assert HFModel(raw_model("gpt_neox", dtype=torch.float32), engine="packed").engine.name == "packed"


def test_without_onednn_there_is_no_packed_engine(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert PackedGPTNeoX.of(raw_model("gpt_neox", dtype=torch.float32)) is None
    assert HFModel(raw_model("gpt_neox", dtype=torch.float32)).engine.name == "lean"


def test_without_numba_the_packed_engine_serves(monkeypatch):
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    assert HFModel(raw_model("llama", dtype=torch.float32)).engine.name == "packed"
    with pytest.raises(ValueError, match="where numba is installed"):
        HFModel(raw_model("llama", dtype=torch.float32), engine="compiled")


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_compiled_forwards_are_the_same_on_any_number_of_threads_and_in_any_order(threads):
    """Forwards of 1 to 64 tokens behind texts of several lengths, each of a chain and of a random tree."""
    raw, before = raw_model("qwen3", dtype=torch.float32), torch.get_num_threads()
    own, other = HFModel(raw, engine="compiled"), HFModel(raw, engine="eager")
    random = np.random.default_rng(threads)
    torch.set_num_threads(threads)
    try:
        for count in random.permutation([1, 2, 7, 8, 9, 16, 17, 33, native.FEW, native.FEW + 1]).tolist():
            text = prompt(int(random.integers(1, 200)), count)[0].tolist()
            tokens = random.integers(0, 97, count)
            parents = [-1, *(int(random.integers(-1, node)) for node in range(1, count))]
            found, expected = (scores_after(model, text, tokens, parents) for model in (own, other))
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_forward_finds_what_a_look_at_its_logits_finds(threads):
    """The twin is torch's, on logits with ties; the last rows of the packed head are no tokens."""
    raw, before = raw_model("llama", dtype=torch.float32), torch.get_num_threads()
    with torch.no_grad():
        raw.lm_head.weight[40:60] = raw.lm_head.weight[7]
    model, random = HFModel(raw, engine="compiled"), np.random.default_rng(threads)
    torch.set_num_threads(threads)
    try:
        for count in (1, 3, 17, native.FEW - 20, native.FEW):  # behind 20 tokens that were not read
            session = model.session()
            session.start(prompt(20, count)[0].tolist())
            scores = session.score(random.integers(0, 97, count), np.arange(-1, count - 1), Sampling())
            assert scores.looked_through == (count + 20 <= native.FEW)
            tokens, shares, _ = most_probable(scores.logits, kernels.BEST)
            found = scores.ranked(kernels.BEST)
            np.testing.assert_array_equal(found[0], tokens)
            np.testing.assert_allclose(found[1], shares, atol=1e-5)
            np.testing.assert_array_equal(scores.argmax, scores.logits.argmax(-1))
            session.rollback()
            level = random.integers(0, 97, min(count, 9)), np.full(min(count, 9), -1)
            for breadth, sharpness in ((3, 1.0), (4, 0.7), (kernels.BEST + 1, 2.5)):
                best = session.best(*level, breadth, sharpness)
                session.rollback()
                for one, other in zip(best, most_probable(session.level(*level), breadth, sharpness), strict=True):
                    np.testing.assert_allclose(one, other, atol=1e-5)
                session.rollback()
    finally:
        torch.set_num_threads(before)


def test_what_a_forward_finds_is_not_asked_where_its_logits_are_changed():
    model = HFModel(raw_model("llama", dtype=torch.float32), engine="compiled")
    other = model.observed(lambda run, *arguments: -run(*arguments))
    found, expected = (scores_of(each, [1, 2, 3], [4, 5], [-1, 0]) for each in (other, model))
    assert not found.looked_through
    np.testing.assert_array_equal(found.argmax, (-expected.logits).argmax(-1))
    assert not replace(expected, logits=-expected.logits).looked_through


def test_a_worker_that_is_still_away_is_not_waited_for(monkeypatch):
    """The caller then computes alone, with the same result, and the worker's counters stay as they are."""
    raw = raw_model("llama", dtype=torch.float32)
    model, other = HFModel(raw, engine="compiled"), HFModel(raw, engine="eager")
    used = {alone: model.engine.taken[int(alone)].copy() for alone in (False, True)}
    monkeypatch.setattr(native.Team, "ready", lambda members: False)
    found, expected = (scores_after(each, [1, 2, 3], [4, 5, 6], [-1, 0, 0]) for each in (model, other))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    assert (model.engine.taken[0] == used[False]).all()
    assert not (model.engine.taken[1] == used[True]).all()
    monkeypatch.undo()  # before the engine goes, which waits for workers


def test_a_worker_that_has_not_come_by_the_end_of_a_forward_is_called_back(monkeypatch):
    """So it is ready for the next one, which would otherwise run without it."""
    model, other = (HFModel(raw_model("llama", dtype=torch.float32), engine=name) for name in ("compiled", "eager"))
    monkeypatch.setattr(native, "_teams", {})
    with monkeypatch.context() as asleep:
        asleep.setattr(native.threading.Thread, "start", lambda thread: None)
        members = native.team(torch.get_num_threads() + 2, kernels.FLOAT32)
    monkeypatch.setattr(model.engine, "_members", lambda: members)
    for _ in range(2):
        found, expected = (scores_after(each, [1, 2, 3], [4, 5, 6], [-1, 0, 0]) for each in (model, other))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
        assert members.ready()
    assert members.used


@pytest.mark.parametrize("sharpness", [1.0, 0.7, 2.5])
@pytest.mark.parametrize("width", [1, 5, 31, 8192])
def test_the_most_probable_tokens_are_those_that_torch_finds(width, sharpness):
    """Of rows without and with many equal logits, of which the lower ids come first."""
    random = torch.Generator().manual_seed(width)
    rows = torch.randn(6, width, generator=random) * torch.tensor([0.0, 0.1, 1.0, 5.0, 20.0, 3.0])[:, None]
    rows[3:] = rows[3:].round()
    for breadth in (1, 2, 5, 40):
        found, expected = (each(rows, breadth, sharpness) for each in (native.most_probable, most_probable))
        assert (found[0] == expected[0]).all()
        for own, other in zip(found[1:], expected[1:], strict=True):
            np.testing.assert_allclose(own, other, atol=1e-5)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_give_no_probabilities(broken):
    rows = torch.zeros(2, 100)
    rows[1, 70] = broken
    _, logprobs, sharp = native.most_probable(rows, 3)
    assert np.isfinite(logprobs[0]).all()
    assert np.isnan(logprobs[1]).all()
    assert np.isnan(sharp[1]).all()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("width", [1, 5, 31, 700, 8192])
def test_a_token_is_drawn_as_from_its_distribution(width, temperature):
    """The twin cumulates a distribution that torch computes. Only a coin at the edge of two tokens may differ."""
    random = torch.Generator().manual_seed(width)
    rows = torch.randn(4, width, generator=random) * torch.tensor([0.0, 1.0, 5.0, 30.0])[:, None]
    scores = Scores(rows, Sampling(temperature), invert=native.invert)
    coins = [0.0, 1 - 2**-53, *torch.rand(400, generator=random, dtype=torch.float64).tolist()]
    for node in range(len(rows)):
        reached = torch.cat([torch.zeros(1), scores.distribution(node)]).double().cumsum(0)
        for coin in coins:
            token = native.invert(rows, node, 1 / temperature, coin)
            assert reached[token] - 1e-5 <= coin <= reached[token + 1] + 1e-5
        ours, torchs = RandomSource(node), RandomSource(node)
        pairs = [(scores.next_token(node, ours), torchs.draw(scores.distribution(node))) for _ in range(200)]
        assert sum(one != other for one, other in pairs) <= 1
        assert ours.accept_lazily(1.0, lambda: 0.5) == torchs.accept_lazily(1.0, lambda: 0.5), "as many coins were used"


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("width", [1, 5, 31, 700, 8192])
def test_distributions_are_those_that_torch_computes(width, temperature):
    rows = (
        torch.randn(3, width, generator=torch.Generator().manual_seed(width)) * torch.tensor([0.0, 1.0, 9.0])[:, None]
    )
    ours = Scores(rows, Sampling(temperature), softmax=native.softmax)
    for node in range(3):
        torch.testing.assert_close(ours.distribution(node), Scores(rows, Sampling(temperature)).distribution(node))


@pytest.mark.parametrize("softmax", [native.softmax, None], ids=["machine code", "torch"])
def test_probabilities_are_told_from_what_the_forward_found_out(softmax):
    """Where it looked through the logits; rows that are not finite are left to torch."""
    rows = torch.randn(3, 500, generator=torch.Generator().manual_seed(1))
    rows[2, 7] = -torch.inf
    for sampling in (Sampling(1.0), Sampling(0.5), Sampling(1.0, top_k=3)):
        known = Scores(rows, sampling, softmax=softmax, most_probable=native.most_probable)
        known.ranked(2)
        twin = Scores(rows, sampling)
        for node, token in ((0, 3), (1, 499), (2, 7), (2, 8)):
            assert known.prob(node, token) == pytest.approx(twin.prob(node, token), abs=1e-6)


def test_tokens_that_cannot_occur_are_never_drawn_and_broken_logits_say_so():
    rows = torch.full((3, 300), -torch.inf)
    rows[0, [7, 250]] = torch.tensor([0.0, 1.0])
    rows[1], rows[1, 40] = 0.0, torch.nan
    given = {"invert": native.invert, "softmax": native.softmax}
    scores, random = Scores(rows, Sampling(1.0), "some-model", **given), RandomSource()
    assert {scores.next_token(0, random) for _ in range(50)} == {7, 250}
    for node in (1, 2):
        for ask in (lambda node: scores.next_token(node, random), scores.distribution):
            with pytest.raises(ValueError, match=f"some-model at tree node {node}"):
                ask(node)


@pytest.mark.parametrize("sampling", [Sampling(0.7), Sampling(1.0, top_k=20), Sampling(1.3, top_p=0.8)], ids=str)
def test_texts_are_drawn_alike_with_and_without_machine_code(sampling):
    model, ids = HFModel(raw_model("llama", dtype=torch.float32), engine="compiled"), prompt(12)[0].tolist()
    assert model.arrays is not None
    options = {"max_new_tokens": 40, "sampling": sampling, "eos_token_ids": (), "seed": 5}
    with_it = [autoregressive(model, ids, **options), generate(model, ids, FixedTree(noisy_copy(model)), **options)]
    model.arrays.invert = model.arrays.softmax = None
    assert {tuple(each.tokens) for each in (*with_it, autoregressive(model, ids, **options))} == {
        tuple(with_it[0].tokens)
    }


@torch.inference_mode()
def test_a_compiled_forward_takes_tensors_as_well_as_arrays():
    """With and without a mask, and for more tokens than it runs itself."""
    engine = HFModel(raw_model("llama", dtype=torch.float32), engine="compiled").engine
    for count, seen in ((1, None), (7, ancestor_matrix(np.array(TREE))), (native.FEW + 1, None)):
        tokens, places = prompt(count)[0].numpy(), np.arange(3, 3 + count)
        cache, other = (TreeCache(engine.layers) for _ in range(2))
        for each in (cache, other):
            engine.read(prompt(3)[0].numpy(), np.arange(3), None, each, 1)
        seen = np.tri(count, dtype=bool) if count > native.FEW else seen
        mask = None if seen is None else additive(seen, torch.float32, base=3)[None, None]
        found = engine.read(tokens, places, seen, cache, count)
        ids, positions = torch.from_numpy(tokens)[None], torch.from_numpy(places)[None]
        torch.testing.assert_close(engine(ids, positions, mask, other, count)[0], found, rtol=0, atol=1e-5)


def test_a_first_forward_that_has_to_be_compiled_says_so(monkeypatch, caplog):
    """And one that has not says nothing, and stops the clock."""
    run = native.kernels.run
    model = HFModel(raw_model("llama", dtype=torch.float32), engine="compiled")
    autoregressive(model, [1, 2], max_new_tokens=2)  # compiled by now, whatever the cache held

    def slow(*job):
        until = time.monotonic() + 30
        while "Compiling" not in caplog.text and time.monotonic() < until:
            time.sleep(0.01)
        return run(*job)

    for patience, first in ((60.0, run), (0.01, slow)):
        caplog.clear()
        native._say_compiling.cache_clear()
        monkeypatch.setattr(native, "PATIENCE", patience)
        monkeypatch.setattr(native, "_teams", {})
        monkeypatch.setattr(model.engine, "usual", None)
        monkeypatch.setattr(native.kernels, "run", first)
        autoregressive(model, [1, 2], max_new_tokens=2)
        assert native._teams
        assert all(team.patience.finished.is_set() for team in native._teams.values())
        assert ("Compiling" in caplog.text) == (first is slow)


def test_broken_weights_are_noticed():
    raw = raw_model("llama", dtype=torch.float32)
    model = HFModel(raw, engine="compiled")
    model.engine.weights.view(torch.float32)[5] = torch.nan
    with pytest.raises(ValueError, match="hold NaN"):
        autoregressive(model, [1, 2, 3], max_new_tokens=4)


def scores_of(model, text, tokens, parents):
    session = model.session()
    session.start(text)
    return session.score(tokens, parents, Sampling())


def scores_after(model, text, tokens, parents):
    return scores_of(model, text, tokens, parents).logits


def test_two_texts_at_once_do_not_disturb_each_other():
    """The threads of a team serve one forward at a time."""
    model = HFModel(raw_model("llama", dtype=torch.float32), engine="compiled")
    expected = [autoregressive(model, prompt(size), max_new_tokens=60).tokens for size in (5, 9)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda size: autoregressive(model, prompt(size), max_new_tokens=60).tokens, (5, 9)))
    assert found == expected


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        ("packed", "llama"),
        ("compiled", "llama"),
        ("compiled", "gpt2"),
        ("lean", "gpt2"),
        ("packed", "gpt_neox"),
        ("packed", "gpt_neox-serial"),
    ],
)
def test_an_engine_that_cannot_serve_is_refused(engine, kind):
    with pytest.raises(ValueError, match=f"Engine '{engine}' cannot run this {kind[:4]}.*engine='auto'"):
        HFModel(raw_model(kind), engine=engine)  # float64


# ------------------------------------------------------------------------------- what only a model's own forward runs
class Doubled(torch.nn.Linear):
    """A linear layer of another package, which gives another text once it is switched on."""

    on = False

    def forward(self, inputs):
        return super().forward(inputs) * (2 if Doubled.on else 1)


class Derived(LlamaForCausalLM):
    """A model of its own author's code, under the type of a family."""

    def forward(self, *args, **options):
        out = super().forward(*args, **options)
        out.logits = out.logits.roll(1, -1) if Doubled.on else out.logits
        return out


def twice(output):
    return 2 * output if Doubled.on else output


def hook(model):
    return model.model.layers[1].mlp.register_forward_hook(lambda _, inputs, output: twice(output)).remove


def hook_before(model):
    return model.model.layers[1].mlp.register_forward_pre_hook(lambda _, inputs: (twice(inputs[0]),)).remove


def hook_on_all(model):
    part = model.model.layers[1].mlp
    register = torch.nn.modules.module.register_module_forward_hook
    return register(lambda module, _, output: twice(output) if module is part else output).remove


def own_forward(model):
    part = model.model.layers[1].mlp
    part.forward = lambda inputs: twice(type(part).forward(part, inputs))
    return lambda: vars(part).pop("forward")


def other_module(model):
    """As libraries of adapters put one in."""
    mlp = model.model.layers[1].mlp
    layer = mlp.down_proj
    mlp.down_proj = Doubled(layer.in_features, layer.out_features, bias=False)
    mlp.down_proj.weight = layer.weight
    return lambda: setattr(mlp, "down_proj", layer)


ADDITIONS = [hook, hook_before, hook_on_all, own_forward, other_module]


@pytest.fixture
def switch(monkeypatch):
    return lambda on: monkeypatch.setattr(Doubled, "on", on)


@pytest.mark.parametrize("added", ADDITIONS)
def test_a_model_with_hooks_or_other_modules_runs_its_own_forward(added, switch):
    raw, ids = raw_model("llama", dtype=torch.float32), prompt(9)
    remove = added(raw)
    try:
        model = HFModel(raw)
        assert model.engine.name == "eager"
        assert generate(model, ids, Chain(model), max_new_tokens=20).tokens == hf_greedy(model, ids, 20)
        switch(True)
        assert generate(model, ids, Chain(model), max_new_tokens=20).tokens == hf_greedy(model, ids, 20)
        with pytest.raises(ValueError, match=r"'packed' cannot run this llama model: .*would leave out"):
            HFModel(raw, engine="packed")
    finally:
        remove()
    assert HFModel(raw).engine.name == "compiled"


LOOPS = {
    "plain": lambda model, ids: autoregressive(model, ids, max_new_tokens=20).tokens,
    "fast": lambda model, ids: autoregressive_fast(model, ids, max_new_tokens=20).tokens,
    "tree": lambda model, ids: generate(model, ids, FixedTree(model), max_new_tokens=20).tokens,
    "batch": lambda model, ids: generate_batch(model, [ids[0].tolist()], Chain(model), max_new_tokens=20)[0].tokens,
}


@pytest.mark.parametrize(
    ("loop", "added"), [*(("tree", added) for added in ADDITIONS), *((loop, hook) for loop in LOOPS if loop != "tree")]
)
def test_hooks_and_modules_that_are_added_later_are_run_too(loop, added, switch, caplog):
    """With one warning, and without the engine's weights; the engine is back when they are gone."""
    raw, ids = raw_model("llama", dtype=torch.float32), prompt(9)
    model, decode = HFModel(raw), LOOPS[loop]
    text = decode(model, ids)
    switch(True)
    assert model.engine.name == "compiled"
    assert text == decode(model, ids) == hf_greedy(model, ids, 20)
    remove = added(raw)
    try:
        assert text != decode(model, ids) == decode(model, ids) == hf_greedy(model, ids, 20)
        assert model.engine.name == "eager"
    finally:
        remove()
    assert decode(model, ids) == text
    assert model.engine.name == "compiled"
    assert caplog.text.count("has changed since it was loaded") == 1


def test_transformers_own_hooks_change_nothing(caplog):
    raw = raw_model("llama", dtype=torch.float32)
    model = HFModel(raw)
    raw.model(prompt(3), output_hidden_states=True)  # leaves hooks behind that hand out hidden states
    assert any(part._forward_hooks for part in raw.modules())
    autoregressive(model, prompt(3), max_new_tokens=2)
    assert model.engine.name == HFModel(raw).engine.name == "compiled"
    assert not caplog.text


def test_a_class_of_its_own_is_no_model_of_the_family(switch):
    raw = raw_model("llama", dtype=torch.float32)
    raw.__class__ = Derived
    model = HFModel(raw)
    assert model.engine.name == "linears"  # which runs the forward that it has
    switch(True)
    assert autoregressive(model, prompt(9), max_new_tokens=20).tokens == hf_greedy(model, prompt(9), 20)
    with pytest.raises(ValueError, match="Engine 'compiled' cannot run this llama model"):
        HFModel(raw, engine="compiled")


@pytest.mark.parametrize("broken", ["wrong", "raises"])
def test_a_model_whose_engine_fails_is_left_to_its_own_forward(broken, monkeypatch, caplog):
    def forward(self, inputs):
        if broken == "raises":
            raise RuntimeError("no such kernel")
        return self.product(inputs) * 1.1

    monkeypatch.setattr(linears._Packed, "forward", forward)
    model = HFModel(raw_model("gpt2", dtype=torch.float32))
    assert model.engine.name == "eager"
    assert caplog.text.count("engine 'linears'") == caplog.text.count("own forward runs it (engine 'eager')") == 1
    assert autoregressive(model, prompt(9), max_new_tokens=20).tokens == hf_greedy(model, prompt(9), 20)
    with pytest.raises(ValueError, match="engine 'linears' (differs|raised)"):
        HFModel(raw_model("gpt2", dtype=torch.float32), engine="linears")


def test_static_buffers_are_refused_where_hooks_would_not_run():
    raw = raw_model("llama", dtype=torch.float32)
    static = StaticModel(HFModel(raw), 64)
    remove = hook(raw)
    with pytest.raises(ValueError, match=r"has changed since its static buffers were made: .* a hook"):
        autoregressive(static, prompt(3), max_new_tokens=2)
    with pytest.raises(ValueError, match=r"^Its module 'model.layers.1.mlp' has a hook"):
        StaticModel(HFModel(raw), 64)
    remove()
    assert len(autoregressive(static, prompt(3), max_new_tokens=2).tokens) == 2


def test_an_unknown_engine_is_refused_before_any_work():
    with pytest.raises(
        ValueError, match="choose from auto, eager, linears, lean, packed, compiled, quantised, rounded, bytes"
    ):
        load_pair("tiny", engine="fast")


def test_the_copy_is_the_matrix():
    generator = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(size, generator=generator) for size in ((40, 24), (40,)))
    for rows in (1, 2, 7, 33):
        x = torch.randn(1, rows, 24, generator=generator)
        for shift in (bias, None):
            torch.testing.assert_close(packed(weight, shift)(x), torch.nn.functional.linear(x, weight, shift))


@pytest.mark.parametrize("engine", ["eager", "lean", "packed"])
def test_texts_are_the_same_whatever_runs_the_forwards(engine):
    """On the bundled pair in float32; every first divergence would be a near-tie, and here there is none."""
    pair, other = load_pair("tiny"), load_pair("tiny", engine=engine)
    ids = pair.tokenizer("def read_lines(path):").input_ids
    text = autoregressive(pair.target, ids, max_new_tokens=24).tokens
    for drafter in (Chain(other.draft, 4), FixedTree(other.draft)):
        assert generate(other.target, ids, drafter, max_new_tokens=24).tokens == text


@pytest.mark.parametrize(
    ("kind", "dtype", "close"), [("gpt_neox", torch.float64, 1e-12), ("llama", torch.float32, 1e-4)]
)
def test_a_batch_of_rows_is_scored_as_its_sequences_alone(kind, dtype, close):
    model = random_model(kind, dtype=dtype)
    ids = torch.stack([prompt(6, seed)[0] for seed in (1, 2, 3)])
    mask = additive(np.tri(6, dtype=bool), dtype)[None, None]
    places = torch.arange(6)[None]
    with torch.inference_mode():
        together = model.engine(ids, places.expand(3, -1), mask, TreeCache(model.layers), 6)
        apart = [model.engine(one[None], places, mask, TreeCache(model.layers), 6) for one in ids]
    torch.testing.assert_close(together, torch.cat(apart), rtol=0, atol=close)


# --------------------------------------------------------------------------------------------------------- the cache
def test_a_forward_counts_when_its_last_layer_is_written():
    """An interrupted forward leaves rows behind that nobody counts."""
    cache, states = TreeCache(3, capacity=4), torch.zeros(1, 2, 5, 8)
    cache.update(states, states, 0)
    cache.update(states, states, 1)
    assert cache.size == 0
    for layer in range(3):
        keys, _ = cache.update(states + 1, states, layer)
        assert keys.shape == (1, 2, 5, 8)
    assert cache.size == 5


def test_growing_keeps_the_rows_and_a_commit_moves_them():
    cache = TreeCache(2, capacity=1)
    rows = torch.arange(40.0).reshape(1, 1, 40, 1)
    for begin in range(0, 40, 8):
        part = rows[:, :, begin : begin + 8]
        for layer in range(2):
            keys, values = cache.update(part + layer, -part, layer)
    assert keys.flatten().tolist() == [place + 1 for place in range(40)]
    assert values.flatten().tolist() == [-place for place in range(40)]
    cache.keep(30, np.array([0, 3, 7]))
    assert cache.size == 33
    assert cache.states[1, 0, 0, 0, 28:33, 0].tolist() == [29, 30, 31, 34, 38]


def test_layers_on_several_devices_have_a_store_on_each():
    devices = [torch.device("cpu"), torch.device("meta"), torch.device("cpu")]
    cache = TreeCache(3, capacity=2, devices=devices)
    for begin in (0, 3, 6):
        rows = torch.arange(begin, begin + 3.0).reshape(1, 1, 3, 1)
        for layer, device in enumerate(devices):
            keys, _ = cache.update((rows + 10 * layer).to(device), rows.to(device), layer)
            assert keys.device == device
    assert keys.flatten().tolist() == [20 + place for place in range(9)]
    assert [store.shape[0] for store in cache.stores] == [2, 1]
    cache.keep(2, np.array([1, 4]))
    assert cache.stores[0][1, 0, 0, 0, :4, 0].tolist() == [20, 21, 23, 26]


# ---------------------------------------------------------------------------------------------------------- the masks
@pytest.mark.parametrize("queued", [0, 1, 4])
def test_queued_tokens_are_a_chain_above_the_tree(queued):
    parents = np.array(TREE)
    tokens, forest, allowed = laid_out([9] * queued, np.arange(len(parents)), parents)
    assert len(tokens) == len(forest)
    expected = np.zeros_like(allowed)
    expected[:queued, :queued] = np.tri(queued, dtype=bool)
    expected[queued:, :queued] = True
    expected[queued:, queued:] = ancestor_matrix(parents)
    np.testing.assert_array_equal(allowed, expected)


def test_columns_before_the_tail_are_open_to_every_row():
    mask = additive(np.eye(2, dtype=bool), torch.float32, 3)
    low = torch.finfo(torch.float32).min
    assert mask.tolist() == [[0, 0, 0, 0, low], [0, 0, 0, low, 0]]


def test_models_can_be_copied_with_their_engine():
    model = random_model("gpt_neox")
    assert copy.copy(model).engine is model.engine
    assert noisy_copy(model).engine is not model.engine
    assert model.context == CONTEXT
