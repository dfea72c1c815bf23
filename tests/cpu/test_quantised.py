"""The engines `quantised` and `rounded`: weights of 4 or 8 bits are found again to the bit, and read as those bits."""

import copy
import os
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from models import prompt, raw_model
from numba import njit

from dynatree_cpu import kernels, native
from dynatree_cpu.native import aligned
from dynatree_cpu.quantised import Codes
from dynatree_lib import Chain, Sampling, autoregressive, generate
from dynatree_lib.models.eagle import EagleModel
from dynatree_lib.models.engine import Eager
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pruned import on_features
from dynatree_lib.tree import TokenTree
from dynatree_suite.bench.bandwidth import forward_bytes
from dynatree_suite.costs.roofline import Shape

KINDS = {4: kernels.FOUR_BITS, 8: kernels.EIGHT_BITS}
WAYS = {"registers": kernels._quantised}  # and what this processor has
if kernels.MATRICES:
    WAYS["tiles"] = kernels._split
if kernels.DIGITS:
    WAYS["digits"] = kernels._by_digits
    WAYS["few digits"] = WAYS["one digit"] = kernels._by_digits
PRODUCTS = {(way, bits): make(bits) for way, make in WAYS.items() for bits in KINDS}


def quantised(form: str, rows: int, size: int, seed: int = 0) -> torch.Tensor:
    """A matrix as a GGUF file of this form would give it: d q + m, d (q - 8) or d q, with d and m in float16."""
    random = np.random.default_rng(seed)
    groups = (rows, size // 32, 32)
    d = random.uniform(0.001, 0.02, groups[:2]).astype(np.float16).astype(np.float32)[..., None]
    if form == "q8_0":
        codes = random.integers(-127, 128, groups)
        codes[..., 0] = 127 * random.choice([-1, 1], groups[:2])  # the weight furthest from zero
        weight = d * codes.astype(np.float32)
    elif form == "q4_0":
        codes = random.integers(0, 16, groups)
        codes[..., 0] = 0
        weight = d * random.choice([-1, 1], d.shape).astype(np.float32) * (codes.astype(np.float32) - 8)
    else:
        codes = random.integers(0, 16, groups)
        codes[..., 0], codes[..., 1] = 0, 15
        least = random.uniform(-0.2, 0.1, d.shape).astype(np.float16).astype(np.float32)
        weight = d * codes.astype(np.float32) + least
    return torch.from_numpy(weight.reshape(rows, size))


def quantised_model(form: str, head: str | None = None, kind: str = "llama"):
    """A random float32 model with such matrices in its layers, and in its head."""
    raw = raw_model(kind, dtype=torch.float32)
    with torch.no_grad():
        for number, (name, weight) in enumerate(raw.named_parameters()):
            if weight.ndim > 1 and ("layers" in name or (head and "lm_head" in name)):
                weight.copy_(4 * quantised(head if "lm_head" in name else form, *weight.shape, seed=number))
    return raw


def soften(raw) -> None:
    """Make a model's attention less sharp, which would make much of the little that `bytes` rounds."""
    with torch.no_grad():
        for layer in raw.model.layers:
            for matrix in layer.self_attn.q_proj, layer.self_attn.k_proj:
                matrix.weight *= 0.25  # the codes stay, and their scales are a quarter


@pytest.mark.parametrize(("form", "bits"), [("q4_1", 4), ("q4_0", 4), ("q8_0", 8), ("q4_1", 8), ("q4_0", 8)])
def test_codes_are_found_again_to_the_bit(form, bits):
    weight = quantised(form, 40, 96)
    weight[3, 32:64] = 0.0  # a group without a scale
    weight[4, :32] = weight[4, 0]
    found = Codes.of(weight, bits)
    codes, scales, minima = (each.numpy() for each in (found.codes, found.scales, found.minima))
    assert 0 <= codes.min() <= codes.max() < 2**bits
    exact = minima.astype(np.float64)[..., None] + codes.reshape(40, 3, 32) * scales.astype(np.float64)[..., None]
    assert (exact.astype(np.float32).reshape(40, 96) == weight.numpy()).all()


def test_one_weight_beside_its_value_is_noticed():
    weight = quantised("q4_1", 32, 64)
    weight[17, 40] = torch.nextafter(weight[17, 40], torch.tensor(9.0))
    assert Codes.of(weight, 4) is None
    assert Codes.of(weight, 8) is None
    assert Codes.of(quantised("q8_0", 32, 64), 4) is None
    assert Codes.of(quantised("q4_1", 32, 64)[:, :48].contiguous(), 4) is None  # one and a half groups
    assert Codes.of(torch.randn(8, 32), 8) is None


@pytest.mark.parametrize("bits", [4, 8])
def test_a_draft_is_rounded_to_the_nearest_codes(bits):
    """Within half a step of each group, besides the rounding of its scale to float16; what is on the grid stays."""
    random = torch.Generator().manual_seed(bits)
    weight = torch.randn(64, 160, generator=random) * torch.logspace(-4, 1, 64)[:, None]
    weight[3], weight[4, :32], weight[5, 32:64] = 0.0, 0.7, weight[5, 32:64].abs()
    near = Codes.nearest(weight, bits)
    assert Codes.of(near, bits) is not None
    groups, off = weight.view(64, 5, 32), (near - weight).abs().view(64, 5, 32).amax(-1)
    spread = groups.amax(-1) - groups.amin(-1) if bits == 4 else 2 * groups.abs().amax(-1)
    assert (off <= 0.5 * spread / (15 if bits == 4 else 254) + 0.002 * groups.abs().amax(-1) + 128 * 2**-25).all()
    assert torch.equal(Codes.nearest(near, bits), near)


@pytest.mark.parametrize("form", ["q4_1", "q8_0"])
def test_a_draft_on_features_takes_as_many_bits_as_its_target(form):
    """The engine's levels are those of transformers' own forward over the rounded draft."""
    target, engine = HFModel(quantised_model(form)), "rounded" if kernels.DIGITS else "quantised"
    assert target.engine.name == engine
    raw = on_features(raw_model("llama", dtype=torch.float32), (0,), (1, -1))
    raw.fusion.map.weight.data.normal_(0, 0.1)  # of zeros before it is trained
    embedding = raw.model.embed_tokens.weight.clone()
    assert target.engine.coarsen(raw)
    assert torch.equal(raw.model.embed_tokens.weight, embedding)
    draft = EagleModel(raw)
    assert (draft.engine.name, draft.engine.kind) == (engine, target.engine.kind)
    tree, features, rows = TokenTree.build([5, 6, 7, 8], [-1, 0, 0, 1]), torch.randn(6, draft.feature_size), []
    states = torch.randn(3, 2 * draft.feature_size)
    for model in (draft, draft.altered(engine=Eager(raw))):
        session = model.session()
        session.extend([1, 2, 3, 4, 9], features[:5])
        session.feature = features[5]
        parts = slice(0, 1), slice(1, 3), slice(3, 4)
        levels = [session.level(tree.tokens[part], tree.parents[part]) for part in parts]
        rows += [torch.cat(levels), session.fused(states)]
    for own, plain in ((rows[0], rows[2]), (rows[1], rows[3])):
        assert 0 < float((own - plain).abs().max() / plain.std()) < 0.01
    options = {"max_new_tokens": 30, "eos_token_ids": ()}
    assert generate(target, prompt(20)[0].tolist(), Chain(draft, 3), **options).tokens == autoregressive(
        target, prompt(20)[0].tolist(), **options
    ).tokens  # fmt: skip


def test_a_draft_whose_matrices_have_no_whole_groups_is_not_rounded():
    odd = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(48, 32))
    before = [weight.clone() for weight in odd.parameters()]
    engine = HFModel(quantised_model("q4_1"), engine="quantised").engine
    assert not engine.coarsen(odd)
    assert not engine.coarsen(torch.nn.Linear(64, 32).bfloat16())
    assert all(map(torch.equal, before, odd.parameters()))


@cache
def runner(way: str, bits: int):
    """One block's product by this intrinsic, compiled once."""
    product, prepared = PRODUCTS[way, bits], way != "registers"

    @njit
    def run(block, space, inputs, size, count, out, shapes, kind):
        if prepared:
            kernels.begin(shapes, count, kind)
            inputs = kernels.prepared(inputs, count, size, space, kind)
        product(block, space, inputs, size, count, out, block, 0, 0)
        if prepared:
            kernels.end(kind)

    return run


def multiplied(way: str, bits: int, weight: torch.Tensor, rows: torch.Tensor) -> np.ndarray:
    """One block's product by this intrinsic: (n, WIDTH)."""
    packed = Codes.of(weight, bits).packed()
    block, out = aligned(len(packed) + 4096, torch.uint8), aligned(kernels.DEEP * kernels.WIDTH, torch.float32)
    block[: len(packed)] = packed
    inputs, space = aligned(rows.numel(), torch.float32), aligned(1 << 20, torch.uint8)
    precision = [0.0 if way == "digits" else 1e9, 1.0 if way == "one digit" else 2.0]
    space[:8] = torch.tensor(precision, dtype=torch.float32).view(torch.uint8)
    inputs[:] = rows.reshape(-1)
    shapes, kind = kernels.tile_shapes(), np.empty(0, KINDS[bits])
    places = (each.data_ptr() for each in (block, space, inputs))
    runner(way, bits)(*places, rows.shape[1], len(rows), out.data_ptr(), shapes.ctypes.data, kind)
    return out.view(-1, kernels.WIDTH)[: len(rows)].numpy()


@pytest.mark.skipif(not kernels.QUANTISED, reason="this CPU does not widen float16")
@pytest.mark.parametrize(("way", "bits"), PRODUCTS)
def test_a_product_is_that_of_the_weights(way, bits):
    """Of 1 to 16 rows, over odd and even numbers of groups, compared with float64."""
    random = torch.Generator().manual_seed(bits)
    for count, size in (
        (1, 32),
        (2, 64),
        (3, 96),
        (7, 160),
        (8, 576),
        (12, 96),
        *([(16, 1536)] if way != "registers" else []),
    ):
        if count > (kernels.DEEP if way != "registers" else kernels.TILE):
            continue
        weight = quantised("q4_1" if bits == 4 else "q8_0", kernels.WIDTH, size, seed=count)
        rows = torch.randn(count, size, generator=random) * 10.0 ** torch.randint(-3, 4, (count, 1), generator=random)
        found, expected = multiplied(way, bits, weight, rows), (rows.double() @ weight.double().T).numpy()
        size_of_terms = (rows.double().abs() @ weight.double().abs().T).numpy()
        allowed = {"few digits": 3e-5, "one digit": 0.008}.get(way, 1e-6)
        assert (np.abs(found - expected) <= allowed * size_of_terms).all()
        if way == "digits" and size > 64 and count <= kernels.TILE:  # more exact than sums of float32
            error, other = (
                np.square(each - expected).mean() for each in (found, multiplied("registers", bits, weight, rows))
            )
            assert error < other


@pytest.mark.parametrize(
    ("form", "head", "kind"), [("q4_1", "q8_0", "llama"), ("q4_0", "q4_0", "qwen3"), ("q8_0", None, "qwen2")]
)
def test_the_engine_is_as_precise_as_with_float32_weights(form, head, kind):
    raw = quantised_model(form, head, kind)
    own, other = HFModel(raw, engine="quantised"), HFModel(raw, engine="compiled")
    exact = HFModel(copy.deepcopy(raw).double(), engine="eager")
    assert own.engine.weights.nbytes < other.engine.weights.nbytes / (3 if "8" in form else 6)
    assert forward_bytes(own) < forward_bytes(other) / (1.5 if head is None else 3)
    random, errors = np.random.default_rng(0), []
    for count in (1, 2, 8, 13, 17, 33, native.FEW, native.FEW + 1):
        text, tokens = prompt(40, count)[0].tolist(), random.integers(0, 97, count)
        parents = [-1, *(int(random.integers(-1, node)) for node in range(1, count))]
        expected, *found = (scores_after(model, text, tokens, parents) for model in (exact, own, other))
        errors += [*zip(*((each - expected).abs().amax(1) / expected.abs().amax(1) for each in found), strict=True)]
    own_errors, other_errors = np.array(errors).T  # of each node: some logits hang on the last bit of a sum
    assert np.median(own_errors) <= 2 * np.median(other_errors) < 1e-5
    ids = prompt(20)[0].tolist()
    assert (
        generate(own, ids, Chain(other, 4), max_new_tokens=30).tokens
        == autoregressive(other, ids, max_new_tokens=30).tokens
    )


@pytest.mark.skipif(not kernels.DIGITS, reason="this CPU takes all numbers in one way")
@pytest.mark.parametrize(
    ("engine", "outlier", "least", "most"), [("rounded", 1000, 1e-7, 0.01), ("bytes", 10, 1e-3, 0.3)]
)
def test_rounded_inputs_change_logits_by_little_and_other_nodes_change_none(engine, outlier, least, most):
    """Next to outliers so many times as large, too; the engine that rounds less is taken by itself."""
    raw = quantised_model("q4_1", "q8_0")
    with torch.no_grad():
        for layer in raw.model.layers:
            layer.input_layernorm.weight[3] *= outlier
    if engine == "bytes":
        soften(raw)
    own, exact = HFModel(raw, engine=engine), HFModel(raw, engine="quantised")
    assert HFModel(raw).engine.name == "rounded"
    text, tokens = prompt(40)[0].tolist(), list(range(12))
    rows = scores_after(own, text, tokens, [*range(-1, 11)])
    expected = scores_after(exact, text, tokens, [*range(-1, 11)])
    assert least < float((rows - expected).abs().max() / expected.std()) < most
    session = own.session()
    session.start(text)
    for place, token in enumerate(tokens):
        assert torch.equal(session.score([token], [-1], Sampling()).logits[0], rows[place])
        session.commit([0])


@pytest.mark.parametrize("engine", ["compiled", "quantised", "rounded", "bytes"])
def test_logits_of_a_node_are_those_of_its_path_to_the_bit(engine):
    """Wherever its entries lie in the cache; else coarse rounding of inputs would make much of a last bit."""
    if engine in ("rounded", "bytes") and not kernels.DIGITS:
        pytest.skip("this CPU takes all numbers in one way")
    raw = quantised_model("q4_1")
    soften(raw)
    model, random = HFModel(raw, engine=engine), np.random.default_rng(0)
    alone, together = model.session(), model.session()
    for session in (alone, together):
        session.start(prompt(40)[0].tolist())
    for _ in range(12):
        count = int(random.integers(2, 14))
        tokens, parents = random.integers(0, 97, count), [-1, *(int(random.integers(-1, k)) for k in range(1, count))]
        rows, path = together.score(tokens.tolist(), parents, Sampling()).logits, [-1]
        while children := [node for node in range(count) if parents[node] == path[-1]]:
            path.append(int(random.choice(children)))
            found = alone.score([int(tokens[path[-1]])], [-1], Sampling()).logits[0]
            assert torch.equal(found, rows[path[-1]])
            alone.commit([0])
        together.commit(path[1:])


def test_a_shape_counts_the_bytes_that_the_engine_reads():
    model = HFModel(quantised_model("q4_1", "q8_0", "llama"), engine="quantised")
    assert Shape.of(model).bytes == pytest.approx(forward_bytes(model))
    assert Shape.of(model).weight_bytes < 2
    assert Shape.of(model.altered(engine=Eager(model.model))).weight_bytes is None


def test_what_is_not_quantised_is_left_to_others():
    assert HFModel(raw_model("llama", dtype=torch.float32)).engine.name == "compiled"
    if kernels.BFLOAT16:
        assert HFModel(quantised_model("q4_1").to(torch.bfloat16)).engine.name == "compiled"
    with pytest.raises(ValueError, match="every weight of the layers comes from 4 or 8 bits"):
        HFModel(raw_model("llama", dtype=torch.float32), engine="quantised")
    raw = quantised_model("q4_1")
    with torch.no_grad():
        raw.model.layers[2].mlp.down_proj.weight[0, 0] += 0.001
    assert HFModel(raw).engine.name == "compiled"


def scores_after(model, text, tokens, parents):
    session = model.session()
    session.start(text)
    return session.score(tokens, parents, Sampling()).logits


@pytest.mark.parametrize(
    ("dtype", "name", "tolerance"),
    [(torch.float32, "quantised", 1e-4)] + [(torch.bfloat16, "compiled", 0.05)] * kernels.BFLOAT16,
)
def test_a_long_text_is_read_in_parts(dtype, name, tolerance, monkeypatch):
    """With the same logits and hidden states, behind any tree; an interrupted reading leaves nothing behind."""
    raw = quantised_model("q4_1", "q8_0") if name == "quantised" else raw_model("llama", dtype=dtype)
    own, other = HFModel(raw, engine=name), HFModel(raw, engine="eager")
    monkeypatch.setattr(type(own.engine), "parts", True)
    tokens, parents = [5, 6, 7, 8], [-1, 0, 0, 1]
    for length in (native.FEW - 3, native.FEW - 1, native.FEW, 3 * native.FEW + 5, 300):  # trees across an edge, too
        found = []
        for model in (own, other):
            session = model.session()
            session.feature_layers = (1, -1)
            session.start(prompt(length)[0].tolist())
            scores = session.score(tokens, parents, Sampling())
            found.append((scores.logits, scores.features))
        for one, expected in zip(*found, strict=True):
            one, expected = one.float(), expected.float()
            torch.testing.assert_close(one, expected, rtol=0, atol=tolerance * float(expected.abs().max()))
    session, run, calls = own.session(), native.CompiledLlama._forward, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run(*arguments)

    monkeypatch.setattr(native.CompiledLlama, "_forward", interrupted)
    session.start(prompt(220)[0].tolist())
    with pytest.raises(KeyboardInterrupt):
        session.score(tokens, parents, Sampling())
    assert session._cache.size == 0


@pytest.mark.skipif(not kernels.BYTES, reason="this CPU multiplies no bytes")
@pytest.mark.parametrize("bits", [24, 16, 8])
def test_digits_are_numbers_of_so_many_bits(bits):
    random = np.random.default_rng(0)
    values = aligned(4 * kernels.GROUP, torch.float32)
    groups = values.view(4, kernels.GROUP).numpy()
    groups[0] = random.normal(size=kernels.GROUP) * 10.0 ** random.integers(-6, 6, kernels.GROUP)
    groups[1] = 0.0
    groups[2] = np.where(random.random(kernels.GROUP) < 0.5, -3.0, 3.0)  # all at the end of the range
    groups[3], groups[3, 5] = 1.0, np.nan
    out = aligned(4 * kernels.DIGITS_BYTES, torch.uint8)

    @njit
    def write(values, size, centre, limit, fewest, out):
        kernels.digits_of_row(values, size, centre, limit, fewest, out)

    limit, fewest = np.float32(0 if bits == 24 else np.inf), 1 if bits == 8 else 2
    write(values.data_ptr(), values.numel(), 8, limit, fewest, out.data_ptr())
    rows = out.view(4, kernels.DIGITS_BYTES).numpy()
    digits = rows[:, : 3 * kernels.GROUP].view(np.int8).reshape(4, 3, kernels.GROUP).astype(np.int64)
    places = np.array([65536, 256, 1]) >> 24 - bits  # 0 of digits that are left out
    numbers = (digits * places[:, None]).sum(1)
    notes = rows[:, 3 * kernels.GROUP :]
    centres = notes[:, :12].view(np.int32).astype(np.int64) @ places
    assert (digits[:, bits // 8 :] == 0).all()
    assert (notes[:3, 20:24].view(np.int32) == bits // 8).all()
    steps, sums = notes[:, 12:20].view(np.float32).T.astype(np.float64)
    assert (centres[:3] == -8 * numbers.sum(1)[:3]).all()
    for index in range(3):
        largest = np.abs(groups[index]).max()
        assert (np.abs(numbers[index] * steps[index] - groups[index]) <= largest * 2.0 ** (1 - bits)).all()
        assert sums[index] == pytest.approx(numbers[index].sum() * steps[index], rel=1e-6)
    assert np.isnan([steps[3], sums[3]]).all()


WITHOUT_TILES = """
import sys
import threading
import time
import llvmlite.binding as llvm
features = llvm.get_host_cpu_features()
features["amx-bf16"] = False
llvm.get_host_cpu_features = lambda: features
import pytest
from dynatree_cpu import kernels
assert kernels.DIGITS
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(kernels.DIGITS or not kernels.BYTES, reason="the other tests are of digits, or this CPU has none")
def test_digits_are_right_where_this_processor_would_take_tiles(tmp_path):
    there = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", WITHOUT_TILES, __file__, "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, env=there, capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not say what threads take")
def test_threads_of_other_weights_sleep_while_a_forward_runs(monkeypatch):
    """A worker waits awake for the next forward of its kind of weights, and takes no core from those of another."""
    monkeypatch.setattr(native, "_teams", {})
    plain = HFModel(raw_model("llama", dtype=torch.float32), engine="compiled")
    other = HFModel(quantised_model("q4_1"), engine="quantised")
    known = {*threading.enumerate()}
    members = native.team(2, kernels.FLOAT32)
    (worker,) = [each for each in {*threading.enumerate()} - known if not isinstance(each, threading.Timer)]
    monkeypatch.setattr(plain.engine, "_members", lambda: members)
    monkeypatch.setattr(other.engine, "_members", lambda: native.team(2, other.engine.kind))

    def taken(*models):
        """Nanoseconds that the worker runs while these models score a node in turns, and the host does other things."""
        sessions, times = [model.session() for model in models], []
        for _ in range(40):
            for session in sessions:
                session.score([5], [-1], Sampling())
                session.rollback()
            time.sleep(0.002)
            times.append(int(Path(f"/proc/self/task/{worker.native_id}/schedstat").read_text().split()[0]))
        return times[-1] - times[0]

    assert taken(plain, other) < 0.5 * taken(plain)
    monkeypatch.undo()  # before the engines go, which wait for workers
