"""Drafts with another tokenizer: tokens matched by their bytes (TLI) and texts split again (SLEM)."""

import copy
import json
from functools import partial

import numpy as np
import pytest
import reference
import torch
from examples import examples
from models import VOCABULARY, config, feature_draft, hf_greedy, noisy_copy, prompt, random_model
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers import models as kinds
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import dynatree_lib as dt
from dynatree_lib import Chain, FixedTree, HFModel, LookupTree, Retokenized, SampledTree, Sampling, ToyModel, generate
from dynatree_lib.drafters import ModelDrafter
from dynatree_lib.engines.static import StaticModel
from dynatree_lib.models.translated import TranslatedHFModel, TranslatedModel
from dynatree_lib.models.vocabulary import Translation, Vocabulary
from dynatree_lib.sampling import GREEDY, DraftDistributions
from dynatree_lib.verifiers import VERIFIERS, Drawing, Greedy, TargetWalk, default_verifier
from dynatree_suite.bench.protocol import run_benchmark
from dynatree_suite.drafters import ALL_DRAFTERS
from dynatree_suite.proofs import exact

WORDS = "a bad cab fed a bee; dad added a bead. feed a cab a bed, a fad faded"
DRAFTING = [kind for kind in ALL_DRAFTERS if issubclass(kind, ModelDrafter)]


# ------------------------------------------------------------------------------------------------ tokenizers and models
def metaspace(size: int, begins: bool = False) -> PreTrainedTokenizerFast:
    """As SentencePiece: '▁' for a space and one before a text, bytes as '<0x0A>', and '<s>' before a text if asked."""
    trained = Tokenizer(kinds.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(
        [WORDS], trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    named = ["<unk>", "<s>", "</s>", "<0x0A>", "<0x61>", "<0xC3>"]  # 0x61 is an 'a', which has a token as well
    pieces = [*named, *(piece for piece in sorted(model["vocab"], key=model["vocab"].get) if piece not in named)]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(kinds.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>" if begins else None, eos_token="</s>"
    )


def byte_level(size: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(kinds.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [WORDS],
        trainers.BpeTrainer(vocab_size=size, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False),
    )
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    made.add_tokens(["   "])  # an added token that is no special one, as GPT-NeoX has
    return made


def model_for(tokenizer, kind: str = "llama", seed: int = 0, width: int | None = None) -> HFModel:
    """A random model with a tokenizer; its logits may be wider than the vocabulary, as some families pad them."""
    made = config(kind)
    made.vocab_size = width or len(tokenizer)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(made, attn_implementation="sdpa").double()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.3)
    return HFModel(model, tokenizer)


CODES = [first + second for first in "ABCDEFGHI" for second in "abcdefghi"] + [f"J{second}" for second in "abcdefg"]
OURS = [code.encode() for code in [*CODES, *(f"K{second}" for second in "abcdef")]] + [None] * 3
"""Tokens of the target, which split a text in one way alone; three of its logits belong to no token."""
ORDER = np.random.default_rng(0).permutation(VOCABULARY)
_OTHERS = iter([b"J", b"a", b"b", b"c", b"d", b"e", b"f", b"zz", b"zzz", b"zzzz"])
THEIRS = [next(_OTHERS) if OURS[number] is None or OURS[number][:1] == b"J" else OURS[number] for number in ORDER]
"""Tokens of the draft: the target's under other numbers. It spells those that begin with J, and cannot spell Jg."""
TRANSLATION = Translation(Vocabulary(OURS), Vocabulary(THEIRS))


def shared_prompt(length: int) -> torch.Tensor:
    """A prompt of tokens that both have, so that the draft has read what the target has."""
    return torch.from_numpy(TRANSLATION.shared)[prompt(length) % len(TRANSLATION.shared)]


def renumbered(target: HFModel) -> HFModel:
    """A draft that agrees with a target often, whose token `place` is the target's `ORDER[place]`."""
    model = copy.deepcopy(noisy_copy(target).model)
    tables = {id(table.weight): table for table in (model.get_input_embeddings(), model.get_output_embeddings())}
    with torch.no_grad():
        for table in tables.values():
            table.weight.copy_(table.weight[torch.from_numpy(ORDER)].clone())
    return HFModel(model)


# --------------------------------------------------------------------------------------------------------- vocabularies
@pytest.mark.parametrize(
    "make", [lambda: metaspace(40), lambda: metaspace(40, begins=True), lambda: byte_level(300)],
    ids=["sentencepiece", "with a beginning", "byte-level"],
)  # fmt: skip
def test_a_vocabulary_is_the_bytes_that_tokens_add_to_a_text(make):
    tokenizer = make()
    vocabulary = Vocabulary.of(tokenizer, len(tokenizer) + 3)
    assert len(vocabulary) == len(tokenizer) + 3
    assert None in vocabulary.tokens
    for text in ("a bad cab", " a bead", "bead", "\nfed", "a\n bee", ""):
        ids = vocabulary.encode(text.encode())
        assert vocabulary.joined(ids) == text.encode(), text
    assert vocabulary.joined(vocabulary.encode(b"cab\xc3")) == b"cab\xc3"  # half of a letter
    assert all(vocabulary.tokens[number] is None for number in vocabulary.special.values())
    assert vocabulary.ends == (tokenizer.eos_token_id,)


def test_what_a_tokenizer_writes_is_matched_by_bytes():
    ours, theirs = byte_level(300), metaspace(40, begins=True)
    translation = Translation(Vocabulary.of(ours, len(ours)), Vocabulary.of(theirs, len(theirs)))
    named = dict(zip(translation.shared.tolist(), translation.columns.tolist(), strict=True))
    numbers = ours.get_vocab(), theirs.get_vocab()
    for mine, other in (("a", "a"), ("Ġa", "▁a"), ("Ċ", "<0x0A>"), ("Ġ", "▁"), ("<end>", "</s>")):
        assert named[numbers[0][mine]] == numbers[1][other], mine
    assert (
        len(set(translation.columns.tolist())) == len(translation.shared) == (np.diff(translation.shared) > 0).sum() + 1
    )
    ids = ours("a bad cab faded", add_special_tokens=False).input_ids
    assert translation.of_text(ids, begins=True) == [1, *translation.draft.encode(b"a bad cab faded")]
    assert translation.of_text([*ids, ours.eos_token_id])[-1] == theirs.eos_token_id
    spaces = numbers[0]["   "]
    assert spaces not in named
    assert translation.of_token(spaces) == [numbers[1]["▁"]] * 3  # spelt
    unknown = numbers[0]["!"]
    assert translation.of_token(unknown) == []
    assert translation.of_node(unknown) == [1]
    path = theirs(" bad cab", add_special_tokens=False).input_ids[1:]
    assert translation.back([*path, theirs.eos_token_id])[-1] == ours.eos_token_id
    assert translation.target.joined(translation.back(path)) == translation.draft.joined(path)


def test_tokens_that_do_not_join_to_the_text_are_refused():
    splitting = Tokenizer(kinds.WordLevel({word: place for place, word in enumerate(["the", "quick", "brown", "fox"])}))
    splitting.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match=r"join to b'thequickbrownfox'.*target's tokenizer"):
        Vocabulary.of(PreTrainedTokenizerFast(tokenizer_object=splitting), 4, "x")


# ------------------------------------------------------------------------------------------------------ the session
def test_logits_are_those_of_the_text_read_anew():
    """Trees of tokens that the draft spells, level by level and at once, after commits, against the twin."""
    target, draft = Vocabulary([b"a", b"b", b"ab", b"c", None, b"bb"]), Vocabulary([b"b", b"c", b"a", b"cc"])
    translation, toy = Translation(target, draft), ToyModel.random(4, seed=3)
    model, random, spelt = TranslatedModel(toy, translation), np.random.default_rng(0), 0
    for _ in range(40):
        session, text = model.session(), random.integers(0, 6, 3).tolist()
        session.start(text)
        expected = [*reference.translated_text(translation, text)]
        for _ in range(3):
            count = int(random.integers(1, 6))
            tokens, parents = (
                random.integers(0, 6, count),
                np.array([-1, *(int(random.integers(-1, i)) for i in range(1, count))]),
            )
            cut = int(random.integers(0, count + 1))
            logits = torch.cat(
                [
                    session.score(tokens[part], parents[part], GREEDY).logits
                    for part in (slice(0, cut), slice(cut, count))
                    if part.start != part.stop
                ]
            )
            paths = [reference.path_to(parents, node) for node in range(count)]
            for node, path in enumerate(paths):
                found = logits[node].softmax(-1).tolist()
                twin = reference.translated_distribution(toy, translation, expected, tokens[path].tolist())
                assert found == pytest.approx(twin, abs=1e-12)
            spelt += session.inner.pending > count
            path = paths[int(random.integers(0, count))]
            session.commit(path)
            expected += [each for node in path for each in translation.of_node(int(tokens[node]))]
            assert session.position == session.inner.position == len(expected)
    assert spelt > 20


@pytest.mark.parametrize("drafter", [Chain, FixedTree, LookupTree], ids=lambda kind: kind.name)
def test_a_text_goes_on_past_the_drafts_context(drafter):
    target = ToyModel.random(5, seed=1)
    read = []

    def table(context):
        read.append(len(context))
        return ToyModel.random(2, seed=2).distribution(context)

    vocabularies = Vocabulary([b"a", b"b", b"ab", b"abab", b"bbb"]), Vocabulary([b"b", b"a"])
    for context in range(8, 14):
        model = TranslatedModel(ToyModel(table, 2, context), Translation(*vocabularies))
        plain = dt.autoregressive(target, [0, 2], max_new_tokens=40).tokens
        assert generate(target, [0, 2], drafter(model), max_new_tokens=40).tokens == plain
        assert 2 < max(read) <= context
        read.clear()


# ------------------------------------------------------------------------------------------------------- greedy texts
@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2-window"])
@pytest.mark.parametrize("way", ["intersection", "retokenized"])
def test_greedy_text_is_transformers(kind, way):
    target = random_model(kind)
    draft = renumbered(target)
    drafters = [kind(draft) for kind in (Chain, FixedTree)] if way == "retokenized" else []
    drafters = [Retokenized(one, TRANSLATION) for one in drafters] or [
        kind(TranslatedHFModel(draft, TRANSLATION)) for kind in (Chain, FixedTree, SampledTree)
    ]
    accepted = 0
    for drafter in drafters:
        for ids, budget in ((shared_prompt(20), 24), (prompt(290), 10), (prompt(1), 6)):
            out = generate(target, ids, drafter, max_new_tokens=budget)
            assert out.tokens == hf_greedy(target, ids, budget), (drafter, ids.shape)
            accepted += sum(len(step.verdict.path) for step in out.iterations)
    assert accepted >= 10


@pytest.mark.parametrize("kind", DRAFTING, ids=lambda kind: kind.name)
def test_every_drafter_works_both_ways(kind):
    target = random_model("llama")
    draft = renumbered(target)
    ids = shared_prompt(30)
    expected, known = hf_greedy(target, ids, 20), set(TRANSLATION.shared.tolist())
    drafted, levels = set(), 0
    for drafter in examples(kind, TranslatedHFModel(draft, TRANSLATION)):
        out = generate(target, ids, drafter, max_new_tokens=20)
        assert out.tokens == expected, drafter
        drafted |= {token for step in out.iterations for token in step.tree.tokens[1:].tolist()}
    assert drafted
    assert kind is LookupTree or drafted <= known  # LookupTree copies as well
    for drafter in examples(kind, draft):
        if drafter.drawing is not Drawing.FIXED:
            with pytest.raises(ValueError, match=r"draws its tokens.*vocabularies='intersection'"):
                Retokenized(drafter, TRANSLATION)
            continue
        wrapped = Retokenized(drafter, TRANSLATION)
        out = generate(target, ids, wrapped, max_new_tokens=20, commit="rebuild")
        assert out.tokens == expected, drafter
        levels = max(levels, *(step.tree.depth for step in out.iterations))
    assert levels > 0 or Drawing.FIXED not in {drafter.drawing for drafter in examples(kind, draft)}


def test_a_text_that_is_split_again_drafts_tokens_that_the_draft_lacks():
    """A draft that spells b"ab" as two tokens drafts it as the target's one."""
    target = ToyModel(lambda context: [0.1, 0.1, 0.8], 3)
    draft = ToyModel(lambda context: [0.9, 0.1] if context[-1] else [0.1, 0.9], 2)
    translation = Translation(Vocabulary([b"a", b"b", b"ab"]), Vocabulary([b"a", b"b"]))
    out = generate(target, [2], Retokenized(Chain(draft, 4), translation), max_new_tokens=30)
    assert out.tokens == [2] * 30
    assert len(out.iterations) == 10  # four drafted tokens are two of the target's, and the bonus token
    both = generate(target, [2], Chain(TranslatedModel(draft, translation), 4), max_new_tokens=30)
    assert len(both.iterations) == 30


@pytest.mark.parametrize("sampling", [None, Sampling(1.0)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("drafter", [Chain, FixedTree, partial(SampledTree, depth=2, branching=2)], ids=str)
def test_a_draft_that_has_nothing_for_the_shared_tokens_costs_acceptance_alone(drafter, sampling):
    target, draft = ToyModel(lambda _: (0.5, 0.5), 2), ToyModel(lambda _: (0.0, 0.0, 1.0), 3)
    translation = Translation(Vocabulary([b"a", b"b"]), Vocabulary([b"a", b"b", b"c"]))
    made = drafter(TranslatedModel(draft, translation))
    assert len(generate(target, [0], made, sampling=sampling, max_new_tokens=9).tokens) == 9
    if sampling and made.name == SampledTree.name:
        assert exact.bias(target, made, default_verifier(False, made.drawing), (0,), sampling)[0] < 1e-12


def test_texts_go_on_and_end_inside_a_path():
    target = random_model("llama")
    draft = renumbered(target)
    expected = hf_greedy(target, prompt(20), 40)
    for drafter in (Chain(TranslatedHFModel(draft, TRANSLATION)), Retokenized(Chain(draft), TRANSLATION)):
        first = generate(target, prompt(20), drafter, max_new_tokens=15)
        rest = generate(target, [], drafter, state=first.state, max_new_tokens=25)
        assert first.tokens + rest.tokens == expected
        for token in sorted(set(expected))[:5]:
            out = generate(target, prompt(20), drafter, max_new_tokens=40, eos_token_ids=(token,))
            assert out.tokens == expected[: expected.index(token) + 1]


# ------------------------------------------------------------------------------------------------------ sampled texts
TOYS = {
    "part of each": ([b"a", b"b", b"ab"], [b"b", b"c", b"a"]),
    "one token": ([b"a", b"b", b"c"], [b"x", b"c"]),
    "all of the target's": ([b"a", b"b", b"c"], [b"x", b"c", b"a", b"b"]),
    "none can be spelt": ([b"a", b"q", b"r"], [b"a", b"b"]),
}


def toys(name):
    ours, theirs = TOYS[name]
    target = ToyModel.random(len(ours), seed=1, sharpness=1.0)
    return target, ToyModel.random(len(theirs), seed=2), Translation(Vocabulary(ours), Vocabulary(theirs))


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.6, top_k=2), Sampling(1.5, top_p=0.8)], ids=str)
@pytest.mark.parametrize("name", TOYS)
def test_a_sampled_text_has_the_targets_distribution(name, sampling):
    """Every tree that may be drawn, every decision of every rule."""
    target, draft, translation = toys(name)
    checked = 0
    for kind in (SampledTree, dt.CostAwareSampledTree, dt.AdaptiveTree, FixedTree):
        for drafter in examples(kind, TranslatedModel(draft, translation)):
            for rule in VERIFIERS:
                try:
                    rule().check(sampling, drafter.drawing, drafter.chain)
                except ValueError:
                    continue
                assert exact.bias(target, drafter, rule(), [0], sampling, max_depth=2)[0] < 1e-12, (drafter, rule)
                checked += 1
    assert checked > 20


def test_a_distribution_that_is_not_renormalised_would_be_seen(monkeypatch):
    """The draft's probabilities of the shared tokens as they are, without those of the others."""
    target, draft, translation = toys("part of each")
    record = DraftDistributions.record
    monkeypatch.setattr(
        DraftDistributions, "record", lambda self, node, found, tokens: record(self, node, found * 0.6, tokens)
    )
    drafter = SampledTree(TranslatedModel(draft, translation), depth=1, branching=1)
    assert exact.bias(target, drafter, dt.TokenLevel(), [0], Sampling(1.0))[0] > 1e-3


@pytest.mark.parametrize("name", TOYS)
def test_sampled_texts_of_paths_that_are_split_again_have_the_targets_distribution(name):
    target, draft, translation = toys(name)
    for inner in (Chain(draft, 3), FixedTree(draft, depth=3, branching=2, tau=None)):
        found = exact.texts(target, Retokenized(inner, translation), TargetWalk(), [0], 3, Sampling(1.0))
        expected = exact.text_distribution(target, [0], 3, Sampling(1.0))
        assert exact.distance(found.distribution, expected) < 1e-12
        assert found.nodes > 1 or name in ("one token", "none can be spelt")  # then it has no word for what is drafted
        for rule in (TargetWalk(), Greedy()):
            plain = dt.autoregressive(target, [0], max_new_tokens=20).tokens
            assert (
                generate(target, [0], Retokenized(inner, translation), verifier=rule, max_new_tokens=20).tokens == plain
            )


def test_transformers_generate_takes_such_a_draft():
    target = random_model("llama")
    draft, ids = TranslatedHFModel(renumbered(target), TRANSLATION), shared_prompt(20)
    found = target.model.generate(ids, custom_generate=dt.hf.generate, max_new_tokens=20, draft_model=draft)
    assert found[0, 20:].tolist() == hf_greedy(target, ids, 20)


# ---------------------------------------------------------------------------------------------------------------- pairs
@pytest.fixture(scope="module")
def models():
    return model_for(byte_level(290), width=300), model_for(metaspace(40, begins=True), "gpt_neox", seed=1)


def test_a_pair_of_two_tokenizers_is_measured(models):
    """The benchmark's methods on it, transformers' own among them: every text is the target's."""
    pair = dt.make_pair(*models, vocabularies="intersection")
    assert pair.tokenizer is models[0].tokenizer
    methods = "ar,hf-generate,hf-assisted,chain,fixed-tree,chain:length=3,retokenized=true,sampled-tree"
    results = run_benchmark(pair, methods, ["a bad cab", "fed a bee; dad"], max_new_tokens=12, warmup=0, trace=1)
    assert not results.records.failures
    assert all(one["identical"] in (None, "2/2") for one in results.summaries())
    assert {split.method for split in results.records.splits.values()} >= {"chain", "chain:length=3,retokenized=true"}


def test_folders_make_such_a_pair(models, tmp_path):
    for role, model in zip(("target", "draft"), models, strict=True):
        model.model.save_pretrained(tmp_path / role)
        model.tokenizer.save_pretrained(tmp_path / role)
    sources = {"target": tmp_path / "target", "draft": tmp_path / "draft"}
    with pytest.raises(ValueError, match=r"different vocabularies.*vocabularies='intersection'"):
        dt.load_pair(**sources)
    pair = dt.load_pair(**sources, vocabularies="intersection", dtype="float64")
    ids = pair.tokenizer("a bad cab").input_ids
    plain = dt.autoregressive(pair.target, ids, max_new_tokens=20).tokens
    assert generate(pair.target, ids, Chain(pair.draft), max_new_tokens=20).tokens == plain
    assert dt.load_pair(str(tmp_path), vocabularies="intersection").draft.vocab_size == 300


def test_a_named_pair_lends_its_target_and_its_draft(models, tmp_path):
    models[0].model.save_pretrained(tmp_path)
    models[0].tokenizer.save_pretrained(tmp_path)
    pair = dt.load_pair(target=tmp_path, draft="tiny", vocabularies="intersection", dtype="float32")
    assert len(pair.draft.tokenizer) == 4096
    assert len(pair.draft.drafted) > 260  # all bytes at least
    assert dt.load_pair(target="tiny", draft="tiny").target.vocab_size == 4096


def bad_pair(target, draft, **options):
    return lambda: dt.make_pair(target(), draft(), **options)


NAMED = {"vocabularies": "intersection"}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: dt.make_pair(random_model("llama"), random_model("gpt2"), **NAMED), "has no tokenizer.*HFModel"),
        (
            lambda: dt.make_pair(random_model("llama"), random_model("gpt2"), vocabularies="both"),
            "vocabularies is 'both'",
        ),
        (lambda: Translation(Vocabulary([b"a"]), Vocabulary([b"b"])), "No token is in the vocabularies of both"),
        (lambda: TranslatedModel(feature_draft(random_model("llama")), TRANSLATION), "reads features of its own"),
        (lambda: Retokenized(Chain(feature_draft(random_model("llama"))), TRANSLATION), "reads features of its own"),
        (lambda: TranslatedModel(ToyModel.random(3), TRANSLATION), "vocabulary of 97 tokens and draft 'toy' has 3"),
        (lambda: TranslatedModel("gpt2", TRANSLATION), "The draft is 'gpt2'"),
        (lambda: TranslatedHFModel(ToyModel.random(3), TRANSLATION), "The draft is a ToyModel; wrap other"),
        (lambda: Retokenized(dt.PromptLookup(), TRANSLATION), "give one with a draft model"),
        (lambda: Retokenized(Chain(ToyModel.random(3)), TRANSLATION), "and draft 'toy' has another; make it for this"),
        (
            lambda: generate(ToyModel.random(3), [0], Retokenized(Chain(ToyModel.random(97)), TRANSLATION)),
            "has another",
        ),
        (lambda: StaticModel(TranslatedHFModel(renumbered(random_model("llama")), TRANSLATION)), "translate that"),
        (
            lambda: dt.generate_batch(
                random_model("llama"), [[1]], Chain(TranslatedHFModel(renumbered(random_model("llama")), TRANSLATION))
            ),
            "sessions of its own",
        ),
        (lambda: dt.load_pair(target="tiny", draft="smollm2"), "made of its target's layers"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_a_sentence(make, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        make()


def test_a_method_that_splits_again_needs_two_tokenizers():
    pair = dt.load_pair("tiny")
    with pytest.raises(ValueError, match=r"retokenized=true is for a draft with another tokenizer.*--vocabularies"):
        run_benchmark(pair, "chain:retokenized=true", ["The river"], max_new_tokens=4)
    with pytest.raises(ValueError, match="draws its tokens"):
        run_benchmark(pair, "sampled-tree:retokenized=true", ["The river"], max_new_tokens=4)
