"""Which architectures are served: faults are noticed when a model is loaded, and no sound model is refused."""

import json
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from models import CONFIGS, REFUSED, config, hf_greedy, noisy_copy, prompt, random_model, raw_model
from torch import nn

from dynatree_lib import Chain, FixedTree, PromptLookup, generate, generate_batch
from dynatree_lib.engines.static import StaticModel
from dynatree_lib.masks import sliding_window
from dynatree_lib.models import architecture, cache, huggingface, pairs, proof
from dynatree_lib.models import engine as engines
from dynatree_lib.models.engine import Eager
from dynatree_lib.models.huggingface import HFModel
from dynatree_suite.bench.streaming import StreamingModel
from tools import try_architectures

ROOT = Path(__file__).resolve().parents[2]
RECORD = json.loads((ROOT / "outputs" / "reference" / "architectures.json").read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------------ faults in the library
def sees(change):
    """A fault of what sliding layers see: (what may be seen, positions, positions of keys, window) -> what is seen."""
    return lambda patch: patch.setitem(huggingface.SIGHT, "sliding_attention", change)


def by_places(allowed, queries, keys, window):
    places = np.arange(allowed.shape[1])
    return allowed & (places[len(places) - len(allowed) :, None] - places < window)


def masks(change):
    """A fault of the masks of all types of layers."""
    mask = HFModel.mask

    def changed(self, *args):
        made = mask(self, *args)
        return change(made) if isinstance(made, dict) else made

    return lambda patch: patch.setattr(HFModel, "mask", changed)


def positions(change):
    return lambda patch: patch.setattr(huggingface, "depth_positions", change)


def kept(change):
    """A fault of what the cache keeps: called with its stores and size, base and entries."""

    def keep(self, base, entries):
        change(self, base, entries)
        self.size, self.unchanged = base + len(entries), min(self.unchanged, base)

    return lambda patch: patch.setattr(cache.TreeCache, "keep", keep)


def moved(self, base, entries, parts=slice(None), shift=0):
    for store in self.stores:
        index = torch.from_numpy(base + entries + shift).clamp(0, store.shape[4] - 1)
        store[:, parts, ..., base : base + len(entries), :] = store.index_select(4, index)[:, parts]


def heads_of_keys(self, base, entries):
    """Moves as many components of keys as values have."""
    value = self.widths[1]
    for store in self.stores:
        index = torch.from_numpy(base + entries)
        store[..., base : base + len(entries), :value] = store.index_select(4, index)[..., :value]


def shared_views(patch):
    """Values are written where the keys are."""
    look = cache.TreeCache.look

    def shared(self):
        look(self)
        self._views = [(keys, keys[..., : self.widths[1]]) for keys, _ in self._views]

    patch.setattr(cache.TreeCache, "look", shared)


def whole_views(patch):
    """Values come back with the width of the keys."""
    look = cache.TreeCache.look

    def whole(self):
        look(self)
        self._views = [(keys, torch.cat([values, values], -1)[..., : keys.shape[-1]]) for keys, values in self._views]

    patch.setattr(cache.TreeCache, "look", whole)


# -------------------------------------------------------------------------------------------------- faults in the model
def module(path):
    """A class of transformers' model code, as "family.Class"."""
    family, name = path.split(".")
    return getattr(getattr(transformers.models, family), f"modeling_{family}").__dict__[name]


def rotary(path, change):
    """A fault of rotary angles: called with positions, and the type of layers where there are several."""
    kind = module(path)
    forward = kind.forward
    return lambda patch: patch.setattr(
        kind, "forward", lambda self, x, position_ids, layer=None, **more: forward(
            self, x, change(position_ids, more.get("layer_type", layer)), *[one for one in (layer,) if one], **more
        )
    )  # fmt: skip


def by_order(places):
    return places[:, :1] + torch.arange(places.shape[1], device=places.device)


def only(kind, change):
    return lambda places, layer: change(places) if layer == kind else places


def by_longest(places):
    return places * (1 + places.max() / 64)


def without_positions(patch):
    """The model takes no positions, and makes its own of the length of the cache."""
    forward = transformers.GPT2LMHeadModel.forward
    patch.setattr(
        transformers.GPT2LMHeadModel,
        "forward",
        lambda self, *inputs, position_ids=None, **options: forward(self, *inputs, **options),
    )


def unread(patch):
    """Nothing is read from the configuration: the proof has to notice by itself."""
    patch.setattr(architecture, "why_not", lambda config: None)
    for kind in REFUSED:
        if not hasattr(config(kind), "max_position_embeddings"):
            patch.setattr(type(config(kind)), "max_position_embeddings", 600, raising=False)


def remembers(lag):
    """A layer that adds what it made of a token before, if the same forward reads it: a convolution without a state."""

    def fault(patch):
        kind = module("llama.LlamaMLP")
        forward = kind.forward

        def mixed(self, x):
            out = forward(self, x)
            return out + nn.functional.pad(out, (0, 0, lag, 0))[:, : out.shape[1]]

        patch.setattr(kind, "forward", mixed)

    return fault


def keeps_a_state(decay):
    """Attention reads, of what it is given, a sum that goes on from forward to forward over one cache.

    As linear attention and state-space models: token t's sum is `decay` times that of the token before, plus its own.
    """

    def fault(patch):
        kind = module("llama.LlamaAttention")
        forward = kind.forward
        states = weakref.WeakKeyDictionary()

        def summed(self, hidden_states, *inputs, past_key_values=None, **options):
            kept = {} if past_key_values is None else states.setdefault(past_key_values, {})
            state, sums = kept.get(self.layer_idx, 0.0), []
            for token in hidden_states.unbind(1):
                sums.append(state := decay * state + token)
            kept[self.layer_idx] = state
            return forward(self, torch.stack(sums, 1), *inputs, past_key_values=past_key_values, **options)

        patch.setattr(kind, "forward", summed)

    return fault


def every_layer_slides(patch):
    """The model's own masks are those of sliding layers, whatever the configuration says of its layers."""
    home = transformers.models.qwen2.modeling_qwen2
    patch.setattr(home, "create_causal_mask", home.create_sliding_window_causal_mask)


def no_layer_slides(family):
    def fault(patch):
        home = getattr(getattr(transformers.models, family), f"modeling_{family}")
        patch.setattr(home, "create_sliding_window_causal_mask", home.create_causal_mask)

    return fault


def attended(change):
    """A fault of attention over a whole text in one forward; over a given mask there is none.

    Called with (n, n) distances from key to query, and what may be seen; returns the additive mask.
    """

    def fault(patch):
        kernel = nn.functional.scaled_dot_product_attention

        def changed(query, key, value, attn_mask=None, **options):
            count = query.shape[2]
            if options.get("is_causal") and count > 1:
                distance = torch.arange(count)[:, None] - torch.arange(count)
                bias = change(distance).to(query.dtype).masked_fill(distance < 0, -torch.inf)
                return kernel(query, key, value, bias, **{**options, "is_causal": False})
            return kernel(query, key, value, attn_mask, **options)

        patch.setattr(nn.functional, "scaled_dot_product_attention", changed)

    return fault


def sees_alone(window, stride=None):
    def change(distance):
        seen = distance < window
        seen = seen | (distance % stride == 0) if stride else seen
        return torch.where(seen, 0.0, -torch.inf)

    return attended(change)


def scales(patch):
    """Attention is sharper by the logarithm of the number of keys, from 129 of them on."""
    kernel = nn.functional.scaled_dot_product_attention

    def changed(query, key, *inputs, **options):
        return kernel(query * max(1.0, np.log(key.shape[2]) / np.log(128)), key, *inputs, **options)

    patch.setattr(nn.functional, "scaled_dot_product_attention", changed)


def steps_by_entries(patch):
    """Llama 4's temperature changes at every eighth entry of the cache, which a tree adds to."""
    kind = module("llama4.Llama4TextAttention")
    made = kind.__init__

    def init(self, *args):
        made(self, *args)
        self.floor_scale = 64

    patch.setattr(kind, "__init__", init)


def nothing(patch):
    pass


SWAPPED = {"sliding_attention": "full_attention", "full_attention": "sliding_attention"}
FAULTS = {
    "windows": {
        "one too long": ("mistral-window", sees(lambda a, q, k, w: sliding_window(a, q, k, w + 1))),
        "one too short": ("qwen2-window", sees(lambda a, q, k, w: sliding_window(a, q, k, w - 1))),
        "counted in places": ("gemma3-window", sees(by_places)),
        "not applied": ("gpt_oss-window", sees(lambda a, q, k, w: a)),
        "configured and not applied by the model": ("mistral-window", no_layer_slides("mistral")),
        "a chunk taken for a window": (
            "llama4-window",
            lambda patch: patch.setitem(huggingface.SIGHT, "chunked_attention", sliding_window),
        ),
    },
    "types of layers": {
        "swapped": ("gemma3-window", masks(lambda mask: {kind: mask[SWAPPED[kind]] for kind in mask})),
        "all full": ("cohere2-window", masks(lambda mask: dict.fromkeys(mask, mask["full_attention"]))),
        "all sliding": ("qwen2-window", masks(lambda mask: dict.fromkeys(mask, mask["sliding_attention"]))),
        "not those of the model": ("qwen2-window", every_layer_slides),
    },
    "rotary by layer": {
        "sliding layers by order": (
            "gemma3-window", rotary("gemma3.Gemma3RotaryEmbedding", only("sliding_attention", by_order))
        ),
        "full layers by order": (
            "gemma3-window", rotary("gemma3.Gemma3RotaryEmbedding", only("full_attention", by_order))
        ),
        "full layers by the longest position": (
            "gemma3-window", rotary("gemma3.Gemma3RotaryEmbedding", only("full_attention", by_longest))
        ),
    },
    "states": {
        **{f"of {kind}": (kind, unread) for kind in ("lfm2", "mamba", "qwen3_next", "recurrent_gemma")},
        "a layer that mixes neighbours": ("llama", remembers(1)),
        "a sum that forgets": ("llama", keeps_a_state(0.3)),
        "a sum that hardly forgets": ("llama", keeps_a_state(0.95)),
    },
    "values of another width": {
        "half of the keys is moved": ("deepseek_v3", kept(heads_of_keys)),
        "in the place of the keys": ("deepseek_v3", shared_views),
        "as wide as keys": ("deepseek_v3", whole_views),
    },
    "positions": {
        "by order": ("gpt_neox", positions(lambda parents, first: first + np.arange(len(parents)))),
        "one too far": ("llama", positions(lambda parents, first: first + 1 + huggingface_positions(parents, 0))),
        "not taken by the model": ("gpt2", without_positions),
        **{f"of {kind}": (kind, unread) for kind in ("mpt", "bloom", "falcon-alibi")},
    },
    "scaling with the length": {
        "by the longest position": ("llama", rotary("llama.LlamaRotaryEmbedding", lambda at, _: by_longest(at))),
        "by entries of the cache": ("llama4-window", steps_by_entries),
        "by the width of the mask": ("mpt", unread),
    },
    "what begins late": {
        **{f"a memory of {lag} tokens ago": ("llama", remembers(lag)) for lag in (24, 40, 64, 512)},
        **{f"a window of {size} tokens": ("llama", sees_alone(size)) for size in (20, 64, 512)},
        "a stride in what is seen": ("llama", sees_alone(64, stride=64)),
        "a bias by distance beyond 100 tokens": ("gpt_neox", attended(lambda far: -0.1 * (far - 100).clamp_min(0))),
        "a scale by the number of keys beyond 128": ("llama", scales),
        "positions by the width of the forward": (
            "llama", rotary("llama.LlamaRotaryEmbedding", lambda at, _: at * (1 + at.shape[1] // 48))
        ),
    },
    "the cache": {
        "keeps the first entries": ("llama", kept(lambda self, base, entries: None)),
        "moves keys alone": ("gpt2", kept(lambda self, base, entries: moved(self, base, entries, slice(0, 1)))),
        "moves values alone": ("phi3", kept(lambda self, base, entries: moved(self, base, entries, slice(1, 2)))),
        "moves the next entries": ("opt", kept(lambda self, base, entries: moved(self, base, entries, shift=1))),
    },
}  # fmt: skip
huggingface_positions = huggingface.depth_positions
CASES = [pytest.param(*FAULTS[kind][name], id=f"{kind}-{name}") for kind in FAULTS for name in FAULTS[kind]]


FAILS = {"lfm2", "mamba", "qwen3_next", "recurrent_gemma", "bloom", "falcon-alibi"}
"""Models whose own code raises an error over the library's cache, mask and positions."""


@pytest.mark.parametrize(("kind", "fault"), CASES)
def test_a_fault_is_noticed_at_loading(kind, fault, monkeypatch):
    if fault is not unread:
        HFModel(raw_model(kind))  # without the fault it is served
    fault(monkeypatch)
    if kind in FAILS or fault in (whole_views, without_positions):
        said = "cannot score token trees: its forward over the library's cache, mask and positions raised"
    else:
        said = "does not score a token tree as it scores"
    with pytest.raises(ValueError, match=said):
        HFModel(raw_model(kind))


def test_a_window_of_one_token_is_refused():
    """Transformers' cache keeps all entries of it, so its own texts with and without a cache differ."""
    model = raw_model("mistral-window")
    model.config.sliding_window = 1
    with pytest.raises(ValueError, match="has a window of one token, which transformers' own cache does not keep to"):
        HFModel(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "fault",
    [
        "windows-one too long", "types of layers-swapped", "rotary by layer-full layers by order", "positions-by order",
        "what begins late-a window of 64 tokens", "what begins late-a memory of 512 tokens ago",
    ],
)  # fmt: skip
def test_a_fault_is_noticed_in_short_numbers_too(fault, dtype, monkeypatch):
    kind, _, name = fault.partition("-")
    model, plant = FAULTS[kind][name]
    HFModel(raw_model(model, dtype=dtype), engine="eager")
    plant(monkeypatch)
    with pytest.raises(ValueError, match="does not score a token tree"):
        HFModel(raw_model(model, dtype=dtype), engine="eager")


@pytest.mark.parametrize(
    ("kind", "fault", "sentence"),
    [
        ("mistral-window", no_layer_slides("mistral"), r"what the configuration says of windows \(sliding_window\)"),
        ("llama4-window", steps_by_entries, "positions from the number of entries in the cache"),
        ("gpt_neox", FAULTS["positions"]["by order"][1], r"order of the tokens \(siblings off by .* allowed .*64"),
        ("llama", FAULTS["the cache"]["keeps the first entries"][1], r"it keeps .*\(a token after a commit off"),
        ("llama", remembers(512), r"in a long text, .* which tokens one forward reads \(a tree after 592 tokens off"),
    ],
)  # fmt: skip
def test_the_refusal_says_what_differs(kind, fault, sentence, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(ValueError, match=sentence):
        HFModel(raw_model(kind))


def token_masked(value):
    """A model that never says one token (Chameleon's image tokens)."""

    def fault(patch):
        forward = transformers.LlamaForCausalLM.forward

        def masked(self, *args, **options):
            out = forward(self, *args, **options)
            out.logits[..., 5] = value
            return out

        patch.setattr(transformers.LlamaForCausalLM, "forward", masked)

    return fault


LEAST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("value", [-100.0, -1e4, -1e9, LEAST, -np.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_masked_token_hides_no_fault(value, dtype, monkeypatch):
    token_masked(value)(monkeypatch)
    HFModel(raw_model("llama", dtype=dtype))
    FAULTS["positions"]["by order"][1](monkeypatch)
    with pytest.raises(
        ValueError, match=r"does not score a token tree .*siblings off by [0-9.]+ of the logits' spread"
    ):
        HFModel(raw_model("llama", dtype=dtype))


@pytest.mark.parametrize("value", [-1e9, -np.inf])
def test_a_model_that_masks_a_token_is_served(value, monkeypatch):
    token_masked(value)(monkeypatch)
    target = HFModel(raw_model("llama"))
    for drafter in (Chain(target), FixedTree(noisy_copy(target), tau=None)):
        assert generate(target, prompt(9), drafter, max_new_tokens=20).tokens == hf_greedy(target, prompt(9), 20)


def test_what_differences_are_shares_of():
    expected = torch.tensor([[0.0, 1.0, 2.0, -torch.inf], [0.0, 1.0, 2.0, -1e9]])
    assert proof.difference(expected, expected).tolist() == [0, 0]
    for place, value, share in ((0, 0.5, 0.5), (3, 0.0, torch.inf)):
        found = expected.clone()
        found[:, place] = value
        assert proof.difference(found, expected)[0] == share
    assert proof.difference(found, expected)[1] > 1e8
    for broken in (torch.nan, torch.inf):
        assert not proof.difference(expected, torch.full_like(expected, broken)).isfinite().any()


# ----------------------------------------------------------------------------------- what the configuration alone tells
@pytest.mark.parametrize(
    ("kind", "changes", "sentence"),
    [
        ("mpt", {}, "type 'mpt' cannot score token trees: its ALiBi attention"),
        ("bloom", {}, "ALiBi attention .* does not take a 4-D mask"),
        ("falcon-alibi", {}, "uses ALiBi.*use a rotary one"),
        ("gpt_neo", {}, "local attention counts places"),
        ("lfm2", {}, "type 'conv' keep a state, of a convolution"),
        ("qwen3_next", {}, "type 'linear_attention' keep a state, of linear attention"),
        ("recurrent_gemma", {}, "type 'linear_attention' keep a state"),
        ("mamba", {}, "keep a state"),
        ("llama", {"layer_types": ["full_attention", "brand_new", "full_attention"]}, "type 'brand_new' keep a state,"),
        ("llama", {"rope_parameters": {"rope_type": "brand_new", "rope_theta": 1e4}}, "scaling 'brand_new' is unknown"),
        ("gemma3-window", {"rope_parameters": {"full_attention": {"rope_type": "stretched"}}}, "scaling 'stretched'"),
        ("llama", {"max_position_embeddings": None}, "does not say how long"),
        ("llama", {"is_encoder_decoder": True}, "an encoder"),
        ("gpt_neox", {"_attn_implementation": "flash_attention_2"}, "'flash_attention_2' takes no tree mask"),
    ],
)
def test_what_a_configuration_rules_out_is_refused_before_any_work(kind, changes, sentence):
    made = config(kind)
    for name, value in changes.items():
        if name == "_attn_implementation":
            made._attn_implementation = value
        else:
            made.__dict__[name] = value
    with pytest.raises(ValueError, match=sentence):
        architecture.check_architecture(made)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("keep_window_size", 2048, "keep_window_size = 2048"),
        ("keep_window_sizes", [0, 2048], "keep_window_sizes = 2048"),
        ("attn_config", {"window_size": 2048}, "attn_config.window_size = 2048"),
        ("use_alibi", True, "use_alibi = True"),
        ("max_lookback", 2048, "max_lookback = 2048"),
        ("dilation", 2, "dilation = 2"),
        ("sparse_stride", 64, "sparse_stride = 64"),
        ("mem_len", 4000, "mem_len = 4000"),
    ],
)
def test_a_setting_that_may_act_in_longer_texts_is_refused(name, value, told):
    Wider = type("Wider", (transformers.LlamaConfig,), {"__annotations__": {name: object}, name: None})
    made = Wider()
    architecture.check_architecture(made)
    setattr(made, name, value)
    with pytest.raises(ValueError, match=f"its setting {told} may act in texts that are longer"):
        architecture.check_architecture(made)


def test_a_setting_that_no_code_reads_is_no_reason():
    architecture.check_architecture(transformers.LlamaConfig(keep_window_size=2048))


def test_layers_may_differ_in_what_is_not_cached():
    """A configuration that differs by layer raises where it is asked for what differs."""
    model = raw_model("llama", dtype=torch.float32)
    model.config.per_layer_config = {1: {"num_attention_heads": 2, "intermediate_size": 32}}
    architecture.check_architecture(model.config)
    assert engines.engine_of(model).name not in ("packed", "compiled")
    Wider = type("Wider", (transformers.LlamaConfig,), {"__annotations__": {"max_lookback": object}, "max_lookback": 0})
    for name, sentence in (
        ("num_key_value_heads", "layers differ one by one in num_key_value_heads"),
        ("max_lookback", "setting max_lookback = 2048 may act in texts that are longer"),
    ):
        made = Wider()
        made.per_layer_config = {2: {name: 2048}}
        with pytest.raises(ValueError, match=f"its {sentence}"):
            architecture.check_architecture(made)


def test_a_type_that_no_list_knows_is_served():
    model = raw_model("gpt_neox")
    model.config.model_type = "something_new"
    assert HFModel(model).name


def test_where_entries_count_the_text_ends_before_they_matter():
    target = random_model("llama4-window")
    assert target.context == 600
    made = config("llama4-window")
    made.max_position_embeddings = 10**6
    assert architecture.reach(made) == made.floor_scale - architecture.LARGEST_TREE == 7168


ROTARY = {
    "dynamic": ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 6.0}, 64, 64),
    "longrope": (
        {
            "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
            "original_max_position_embeddings": 64,
        },
        600, 64,
    ),
}  # fmt: skip
"""Rotary scaling by the length of the text -> its parameters, the configuration's longest text, and the one served."""


def scaled(scaling, kind="llama", dtype=torch.float64):
    """A random model with such rotary positions."""
    rope, longest, _ = ROTARY[scaling]
    made = config(kind)
    made.rope_parameters, made.max_position_embeddings = rope, longest
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(made).to(dtype).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.3)
    return model


@pytest.mark.parametrize("scaling", ROTARY)
def test_rotary_scaling_by_length_is_served_while_it_does_not_act(scaling):
    target = HFModel(scaled(scaling))
    assert target.context == ROTARY[scaling][2]
    room = target.context - 30
    for drafter in (Chain(target), FixedTree(noisy_copy(target), tau=None), PromptLookup()):
        out = generate(target, prompt(30), drafter, max_new_tokens=room + 9)
        assert (out.tokens, out.finish_reason) == (hf_greedy(target, prompt(30), room), "context")


def test_static_buffers_leave_out_what_asks_for_the_longest_position():
    with pytest.raises(ValueError, match="has dynamic rotary scaling, which asks the device"):
        StaticModel(HFModel(scaled("dynamic")), capacity=32)
    StaticModel(HFModel(scaled("longrope")), capacity=32)


@pytest.mark.parametrize(("kind", "engine"), [("llama", "packed"), ("llama", "compiled"), ("gpt_neox", "lean")])
def test_an_engine_has_the_angles_of_texts_that_are_served(kind, engine):
    """A table up to the configuration's longest text would have those of longer ones."""
    assert HFModel(scaled("longrope", kind, torch.float32), engine=engine).engine.name == engine


def test_a_layer_with_two_caches_has_both_on_its_device():
    """LongCat-Flash's layers attend twice."""
    model = try_architectures.random_model("longcat_flash", {}, torch.float32)
    target = HFModel(model, check=False)
    assert target.layer_devices is None
    del target.layer_devices
    model.model.layers[1:].to("meta")
    assert [device.type for device in target.layer_devices] == ["cpu"] * 2 + ["meta"] * 6


def test_windows_are_put_back_after_the_proof():
    model = raw_model("gemma3-window")
    before = [part.config.sliding_window for part in model.modules() if hasattr(part, "config")]
    target = HFModel(model)
    assert before == [part.config.sliding_window for part in model.modules() if hasattr(part, "config")]
    assert (target.window, target.windows) == (8, {"sliding_attention": 8})
    with pytest.raises(ZeroDivisionError), proof.windows_of(4, model):
        raise ZeroDivisionError
    assert before[0] == 8 == model.config.sliding_window


# -------------------------------------------------------------------------------------------- no sound model is refused
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", CONFIGS)
def test_sound_models_are_served_in_short_numbers_too(kind, dtype):
    model = raw_model(kind, dtype=dtype)
    assert HFModel(model, engine="eager").engine.name == "eager"
    HFModel(model)


@pytest.mark.parametrize("kind", ["llama", "mistral-window", "mixtral"])
def test_what_rounding_blurs_is_proved_in_float32(kind, monkeypatch):
    """A GPU may round more in 16 bits than is allowed; here nothing is."""
    monkeypatch.setattr(proof, "MARGIN", 0)
    monkeypatch.setitem(proof.LEAST, torch.bfloat16, 0.0)
    HFModel(raw_model(kind, dtype=torch.bfloat16), engine="eager")
    monkeypatch.setattr(proof, "free_memory", lambda: 10**4)
    with pytest.raises(ValueError, match="use float32, which could not be tried here .* GB of weights, and 1e-05 GB"):
        HFModel(raw_model(kind, dtype=torch.bfloat16), engine="eager")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_a_float32_copy_that_a_gpu_has_no_room_for_is_made_on_the_cpu(error, monkeypatch):
    monkeypatch.setattr(proof, "MARGIN", 0)
    monkeypatch.setitem(proof.LEAST, torch.bfloat16, 0.0)
    made, asked = proof._in_float32, []

    def full(model, device):
        asked.append(device)
        if len(asked) == 1:
            raise error
        return made(model, device)

    monkeypatch.setattr(proof, "_in_float32", full)
    model = raw_model("llama", dtype=torch.bfloat16)
    if isinstance(error, torch.OutOfMemoryError):
        assert HFModel(model, engine="eager").dtype == torch.bfloat16
        assert asked[1] == torch.device("cpu")
    else:
        with pytest.raises(ValueError, match=r"which could not be tried here .*\(can't allocate memory\)"):
            HFModel(model, engine="eager")


def test_a_float32_copy_keeps_what_is_tied_and_leaves_the_model_alone():
    model = raw_model("gpt2", dtype=torch.bfloat16)
    wide = proof._in_float32(HFModel(model, check=False), torch.device("cpu"))
    assert wide.model.lm_head.weight is wide.model.transformer.wte.weight
    assert {weight.dtype for weight in wide.model.parameters()} == {torch.float32}
    assert (wide.dtype, model.dtype) == (torch.float32, torch.bfloat16)


def test_a_long_read_on_a_cpu_is_announced(monkeypatch, caplog):
    HFModel(raw_model("llama"))
    assert not caplog.text
    monkeypatch.setattr(proof, "SAID", 0)
    HFModel(raw_model("llama"))
    assert "it reads 592 tokens to prove that it scores token trees, which takes about 0 seconds" in caplog.text


def test_a_kernel_without_float64_is_tried_in_float32():
    """XGLM's says that float64's smallest number overflows."""
    model = try_architectures.random_model("xglm", {}, torch.float64)
    with pytest.raises(RuntimeError, match="overflow") as error:
        model(prompt(3))
    assert try_architectures._lacks_float64(error.value)


@pytest.mark.parametrize("shift", [1, 3])
def test_a_fault_that_looks_like_rounding_is_none_in_float32(shift, monkeypatch):
    monkeypatch.setitem(proof.LEAST, torch.bfloat16, 0.0)
    monkeypatch.setitem(proof.TOLERANCE, torch.bfloat16, 10.0)
    monkeypatch.setattr(huggingface, "depth_positions", lambda *given: huggingface_positions(*given) + shift)
    with pytest.raises(ValueError, match="does not score a token tree"):
        HFModel(raw_model("gpt2", dtype=torch.bfloat16), engine="eager")


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "olmoe", "gpt_oss-window", "deepseek_v3"])
def test_undecided_routers_are_no_fault(kind, monkeypatch):
    """Scores of a router that are tied but for rounding: other experts in the tree than in a plain forward."""
    model = raw_model(kind, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "router" in name or name.endswith("gate.weight"):
                weight[1:] = weight[:1] * (1 + 0.01 * torch.randn(len(weight) - 1, *[1] * (weight.ndim - 1)))
    HFModel(model, engine="eager")
    monkeypatch.setattr(proof, "SameExperts", lambda share: None)
    if kind == "mixtral":  # the others round alike here, whatever the shape of a forward
        with pytest.raises(ValueError, match="does not score a token tree"):
            HFModel(model, engine="eager")


def test_experts_are_followed_only_where_scores_tie():
    routing = proof.SameExperts(0.1)
    first, tied, other = (
        torch.tensor([[3.0, 2.0, 1.9]]),
        torch.tensor([[3.0, 1.9, 2.0]]),
        torch.tensor([[1.0, 0.1, 2.0]]),
    )
    with routing:
        chosen = []
        for scores in (first, tied, other):
            routing.begin([(7,)])
            chosen.append(torch.topk(scores, 2))
    assert [one.indices.tolist() for one in chosen] == [[[0, 1]], [[0, 1]], [[2, 0]]]
    assert torch.equal(chosen[1].values, torch.tensor([[3.0, 1.9]]))
    assert torch.topk(tied, 2).indices.tolist() == [[0, 2]]


@pytest.mark.parametrize("kind", ["mixtral", "deepseek_v3"])
def test_batches_serve_them_too(kind):
    target = random_model(kind)
    drafter, ids = FixedTree(noisy_copy(target), tau=None), [prompt(n)[0].tolist() for n in (3, 30)]
    expected = [hf_greedy(target, torch.tensor([each]), 12) for each in ids]
    found = generate_batch(target, ids, drafter, max_new_tokens=12)
    assert [one.tokens for one in found] == expected


class Eight(torch.Tensor):
    """A weight in 8 bits, as a quantisation library keeps it: a class of tensors of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
        return found.as_subclass(cls) if func in (torch.Tensor.detach, torch.Tensor.requires_grad_) else found


def test_quantised_weights_are_proved_and_multiplied_by_their_own_modules():
    model = raw_model("llama", dtype=torch.float32)
    for part in model.modules():
        if isinstance(part, nn.Linear):
            step = part.weight.detach().abs().amax(1, keepdim=True) / 127
            part.weight = nn.Parameter(
                ((part.weight.detach() / step).round() * step).as_subclass(Eight), requires_grad=False
            )
    target = HFModel(model)
    assert type(target.engine) is Eager
    assert generate(target, prompt(9), Chain(target), max_new_tokens=20).tokens == hf_greedy(target, prompt(9), 20)


@pytest.mark.parametrize("kind", ["deepseek_v3", "cohere2-window", "olmo2"])
def test_streaming_moves_only_keys_that_turn_in_halves(kind):
    target = random_model(kind)
    if kind == "olmo2":
        StreamingModel(target, cache=100)
        return
    with pytest.raises(ValueError, match="turn in another way|sliding-window"):
        StreamingModel(target, cache=100)


@pytest.mark.parametrize(
    ("kind", "kernel"), [("GptOssConfig", "eager"), ("Gemma2Config", "eager"), ("LlamaConfig", "sdpa")]
)
def test_architectures_without_sdpa_are_loaded_eager(kind, kernel):
    loader, made = pairs.loader_of(getattr(transformers, kind)())
    assert loader == "AutoModelForCausalLM"
    assert pairs._attention(made, "sdpa") == kernel
    assert pairs._attention(made, "eager") == "eager"


@pytest.mark.parametrize("kind", ["llava", "qwen2_vl"])
def test_a_model_that_also_reads_pictures_is_loaded_by_name_and_reads_text(kind, tmp_path):
    options = {**try_architectures.PICTURES[kind], "vocab_size": 384}
    made = try_architectures.random_model(kind, options, torch.float32)
    made.save_pretrained(tmp_path)
    target = pairs.load_model(tmp_path, tokenizer=pairs.load_pair("tiny").tokenizer)
    assert type(target.model) is type(made)
    ids = torch.arange(40)[None]
    out = generate(target, ids, PromptLookup(), max_new_tokens=20, eos_token_ids=())
    assert out.tokens == hf_greedy(target, ids, 20)


# ----------------------------------------------------------------------------------------------------------- the record
def test_the_record_has_many_architectures_and_none_is_served_and_wrong():
    results = {row["architecture"]: row["result"] for row in RECORD["rows"]}
    served = [name for name, result in results.items() if result == "served"]
    assert len(served) >= 40
    assert "wrong" not in results.values()
    assert {"llama", "qwen3", "gemma3_text", "gpt_oss", "mixtral", "deepseek_v3", "llama4_text"} <= {*served}
    assert all(row["texts"] == 30 and row["distinct"] > 3 for row in RECORD["rows"] if row["result"] == "served")
    assert {row["float32"] for row in RECORD["rows"] if row["result"] == "served"} <= {*engines.engines()}
    assert len([row for row in RECORD["rows"] if row.get("with eager attention") == "3 of 3"]) >= 40
    in_half = {row["architecture"] for row in RECORD["rows"] if row.get("bfloat16") in engines.engines()}
    assert {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss"} <= in_half
    assert all(row["reason"] for row in RECORD["rows"] if row["result"] == "refused")
    assert {"mpt", "bloom", "mamba", "gpt_neo"} <= {name for name, result in results.items() if result == "refused"}


@pytest.mark.parametrize("name", ["gpt_oss", "lfm2"])
def test_the_tool_finds_what_is_in_the_record(name, monkeypatch):
    monkeypatch.setattr(try_architectures, "BUDGET", 8)
    (found,) = try_architectures.rows([name])
    (recorded,) = (row for row in RECORD["rows"] if row["architecture"] == name)
    assert (found["result"], found.get("reason")) == (recorded["result"], recorded.get("reason"))


def test_the_tool_notices_a_model_that_is_served_and_wrong(monkeypatch):
    monkeypatch.setattr(try_architectures, "BUDGET", 8)
    monkeypatch.setattr(huggingface, "check_tree_attention", lambda model, **_: None)
    FAULTS["positions"]["by order"][1](monkeypatch)
    (found,) = try_architectures.rows(["qwen2"])
    assert found["result"] == "wrong"


def test_a_proof_that_can_read_no_long_text_says_so(monkeypatch, caplog):
    model = random_model("llama")
    read = proof._Trial.read

    def short_alone(trial, of):
        if max(map(len, trial.texts)) > 2 * proof.PREFIX:
            raise RuntimeError("no room")
        return read(trial, of)

    monkeypatch.setattr(proof._Trial, "read", short_alone)
    HFModel(model.model)
    assert "(RuntimeError: no room), so what shows in long texts alone was not tried." in caplog.text


def test_a_model_whose_own_forwards_disagree_is_refused_for_that(monkeypatch):
    """Activations rounded by the largest of all tokens in a forward, as some quantised weights have them."""
    raw = raw_model("llama", dtype=torch.float32)

    def rounded(module, inputs):
        scale = inputs[0].abs().amax() / 127
        return ((inputs[0] / scale).round() * scale,)

    for layer in raw.model.layers:
        layer.mlp.down_proj.register_forward_pre_hook(rounded)
    with pytest.raises(ValueError, match="own forwards disagree about a text read at once and in two parts"):
        HFModel(raw)
