"""The ends of what can be decoded: contexts, vocabularies, long texts, many texts, several threads."""

import gc
import multiprocessing
import sys
import threading

import pytest
import torch
import transformers
from examples import EVERY, examples, needs_draft

import dynatree_lib as dt
from dynatree_lib.drafters import ModelDrafter
from dynatree_lib.engines.static import static_pair
from dynatree_lib.models.huggingface import HFModel

TARGET = dt.ToyModel.random(5, seed=1)
DRAFT = dt.ToyModel.random(5, seed=2)
kinds = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)


def in_context(model: dt.ToyModel, context: int) -> dt.ToyModel:
    return dt.ToyModel(model.distribution, model.vocab_size, context=context)


@kinds
@pytest.mark.parametrize("context", [4, 9, 14])
def test_a_text_fills_the_context_to_its_last_position(kind, context):
    target, draft = in_context(TARGET, context), in_context(DRAFT, context)
    plain = dt.autoregressive(target, [1, 2, 3], max_new_tokens=99)
    assert (len(plain.tokens), plain.finish_reason) == (context - 3, "context")
    ran = 0
    for drafter in examples(kind, draft):
        try:
            out = dt.generate(target, [1, 2, 3], drafter, max_new_tokens=99)
        except ValueError as error:  # a side tree that the context has no positions for
            refused = str(error)
        else:
            assert (out.tokens, out.finish_reason) == (plain.tokens, "context")
            ran += 1
            continue
        assert f"positions ahead and the context of 'toy' is {context}; make it smaller." in refused
    assert ran or context < 14


@pytest.mark.parametrize("kind", [kind for kind in EVERY if needs_draft(kind)], ids=lambda kind: kind.name)
@pytest.mark.parametrize("context", [2, 5, 8])
def test_a_draft_with_a_shorter_context_drafts_less(kind, context):
    target, draft = in_context(TARGET, 20), in_context(DRAFT, context)
    plain = dt.autoregressive(target, [1, 2, 3], max_new_tokens=17)
    drafted = 0
    for drafter in examples(kind, draft):
        out = dt.generate(target, [1, 2, 3], drafter, max_new_tokens=17)
        assert out.tokens == plain.tokens
        drafted += sum(len(one.tree) - 1 for one in out.iterations)
        length = 3
        for one in out.iterations:
            room = max(0, context - length)
            assert one.tree.depth <= room or not issubclass(kind, ModelDrafter), drafter  # others copy without a model
            length += one.committed
    assert drafted or context < 5


@kinds
def test_a_vocabulary_of_one_token(kind):
    target, draft = dt.ToyModel(lambda text: [1.0], 1), dt.ToyModel(lambda text: [1.0], 1)
    for drafter in examples(kind, draft):
        out = dt.generate(target, [0], drafter, max_new_tokens=12)
        assert out.tokens == [0] * 12


@kinds
def test_a_prompt_and_a_text_of_special_tokens_alone(kind):
    """Every token ends a text: one token is written, wherever it stands in a path."""
    for drafter in examples(kind, DRAFT):
        out = dt.generate(TARGET, [0, 0, 4], drafter, max_new_tokens=12, eos_token_ids=[0, 1, 2, 3, 4])
        assert (len(out.tokens), out.finish_reason) == (1, "eos")
        assert out.tokens == dt.autoregressive(TARGET, [0, 0, 4], max_new_tokens=1).tokens


@kinds
def test_a_budget_of_one_token(kind):
    for drafter in examples(kind, DRAFT):
        out = dt.generate(TARGET, [1, 2], drafter, max_new_tokens=1)
        assert out.tokens == dt.autoregressive(TARGET, [1, 2], max_new_tokens=1).tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [dt.FixedTree, dt.LookupTree, dt.SuffixTree, dt.TokenRecycling], ids=lambda kind: kind.name
)
def test_five_thousand_tokens_in_one_text(kind):
    """More than calls may lie in each other: nothing recurses over a text."""
    target = dt.ToyModel(TARGET.distribution, 5, context=20_000)
    plain = dt.autoregressive(target, [1], max_new_tokens=5_000).tokens
    drafter = examples(kind, dt.ToyModel(DRAFT.distribution, 5, context=20_000))[0]
    assert dt.generate(target, [1], drafter, max_new_tokens=5_000).tokens == plain


@pytest.mark.slow
def test_four_thousand_tokens_over_a_cache_of_keys_and_values():
    """Its capacity doubles from 256 until it holds them all."""
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, max_position_embeddings=5_000)
    torch.manual_seed(0)
    target = HFModel(transformers.LlamaForCausalLM(config).double())
    plain = dt.autoregressive(target, [5], max_new_tokens=4_000, eos_token_ids=()).tokens
    assert len(set(plain[-1000:])) > 1
    for drafter in (dt.PromptLookup(), dt.FixedTree(target), dt.SuffixTree()):
        out = dt.generate(target, [5], drafter, max_new_tokens=4_000, eos_token_ids=())
        assert out.tokens == plain


def resident() -> int:
    import psutil

    gc.collect()
    return psutil.Process().memory_info().rss


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["eager", "packed"])
def test_memory_is_flat_over_many_texts(engine):
    pair = dt.load_pair("tiny", engine=engine)
    drafter = dt.LookupTree(pair.draft)

    def write(count: int) -> None:
        for number in range(count):
            dt.generate(pair.target, [number + 5, 7, 9], drafter, max_new_tokens=60)

    write(20)
    before = resident()
    write(100)
    assert resident() - before < 48 * 2**20  # a text's caches alone are 1 MB; kept, they would be 100


@pytest.mark.slow
def test_memory_is_flat_over_the_iterations_of_a_text():
    """A text of twice the length may take its cache and its tokens, and nothing else."""
    pair = dt.load_pair("tiny")
    drafter = dt.FixedTree(pair.draft)
    dt.generate(pair.target, [5], drafter, max_new_tokens=400, eos_token_ids=(), keep_state=False)
    before = resident()
    dt.generate(pair.target, [5], drafter, max_new_tokens=900, eos_token_ids=(), keep_state=False)
    assert resident() - before < 48 * 2**20


@pytest.mark.parametrize("engine", ["eager", "packed", "static"])
def test_two_threads_on_one_model_write_what_each_would_alone(engine):
    pair = static_pair(dt.load_pair("tiny")) if engine == "static" else dt.load_pair("tiny", engine=engine)
    prompts = [[5, 7, 9], [11, 3], [8, 8, 8, 1], [2]]
    drafter = dt.FixedTree(pair.draft)
    alone = [dt.generate(pair.target, one, drafter, max_new_tokens=24).tokens for one in prompts]
    found: dict[int, list[int]] = {}
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            found[number] = dt.generate(pair.target, prompts[number], drafter, max_new_tokens=24).tokens
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert [found[number] for number in range(len(prompts))] == alone


def _child(place, prompts):
    torch.set_num_threads(1)
    pair = dt.load_pair("tiny")
    drafter = dt.FixedTree(pair.draft)
    place.put([dt.generate(pair.target, one, drafter, max_new_tokens=20).tokens for one in prompts])


@pytest.mark.slow
def test_two_processes_write_what_each_would_alone():
    prompts = [[5, 7, 9], [11, 3]]
    context = multiprocessing.get_context("spawn")
    place = context.Queue()
    processes = [context.Process(target=_child, args=(place, prompts)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [place.get(timeout=100) for _ in processes]
    for process in processes:
        process.join()
    pair = dt.load_pair("tiny")
    drafter = dt.FixedTree(pair.draft)
    assert found == [[dt.generate(pair.target, one, drafter, max_new_tokens=20).tokens for one in prompts]] * 2


def _forked(place, pair, threads):
    torch.set_num_threads(threads)
    drafter = dt.FixedTree(pair.draft)
    try:
        place.put(dt.generate(pair.target, [5, 7, 9], drafter, max_new_tokens=20).tokens)
    except RuntimeError as error:
        place.put(str(error))


@pytest.mark.skipif(sys.platform != "linux", reason="processes are started by fork")
@pytest.mark.parametrize("engine", ["eager", "packed", "static"])
def test_a_fork_that_has_lost_its_threads_is_refused_and_one_without_threads_is_not(engine):
    """In threads, a forward of torch's would wait for ever for those of the process before the fork."""
    pair = static_pair(dt.load_pair("tiny")) if engine == "static" else dt.load_pair("tiny", engine=engine)
    context, found = multiprocessing.get_context("fork"), []
    for threads in (1, 2):
        place = context.Queue()
        process = context.Process(target=_forked, args=(place, pair, threads))
        process.start()
        found.append(place.get(timeout=60))
        process.join()
    assert found[0] == dt.generate(pair.target, [5, 7, 9], dt.FixedTree(pair.draft), max_new_tokens=20).tokens
    assert "is a fork of one that had loaded models" in found[1]
    assert "in 2 threads would wait for them for ever. Call torch.set_num_threads(1) here first" in found[1]


def test_a_vocabulary_that_the_draft_pads_otherwise():
    """Toy models know no tokenizer that could tell padding from tokens, so another size is refused."""
    wide = dt.ToyModel.random(TARGET.vocab_size + 3, seed=2)
    with pytest.raises(ValueError, match="vocabular"):
        dt.generate(TARGET, [1, 2], dt.FixedTree(wide), max_new_tokens=20)
