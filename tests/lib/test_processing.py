"""Logits processors and stopping criteria inside trees: greedy texts, exact distributions, and what they are asked."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
import torch
from examples import EVERY, examples
from models import noisy_copy, prompt, random_model
from transformers import (
    InfNanRemoveLogitsProcessor,
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

import dynatree_lib as dt
from dynatree_lib.processing import ProcessedScores, Processing
from dynatree_lib.verifiers import Drawing
from dynatree_suite.drafters import Lookahead, SelfDraft
from dynatree_suite.proofs import exact

WARM = dt.Sampling(temperature=1.0)
TARGET = dt.ToyModel.random(vocab_size=4, seed=0)
DRAFT = TARGET.mixed(dt.ToyModel.random(vocab_size=4, seed=1), share=0.4)
END = 3


def penalty(ids, logits):
    """Every token costs one nat for each time it occurred: depends on the whole history."""
    counts = torch.bincount(ids[0], minlength=logits.shape[1]).to(logits.dtype)
    return logits - counts


class Grammar:
    """After 0 only 1, 2 or the end, after 1 only 0 or 2, after 2 anything; asked about another text, it complains."""

    def __init__(self):
        self.after, self.asked = {0: (1, 2, END), 1: (0, 2), 2: (0, 1, 2, END)}, []

    def __call__(self, ids, logits):
        text = ids[0].tolist()
        self.asked.append(text)
        for token, following in pairwise(text):
            assert following in self.after[token], f"{text} is not in the language"
        allowed = torch.full_like(logits, -torch.inf)
        allowed[0, list(self.after[text[-1]])] = 0
        return logits + allowed


def processed(target, *processors):
    """The table of a target with these processors, for enumeration."""

    def distribution(context):
        logits = torch.tensor(target.distribution(context), dtype=torch.float64).log()[None]
        for processor in processors:
            logits = processor(torch.tensor([context]), logits)
        return logits[0].softmax(0).tolist()

    return dt.ToyModel(distribution, target.vocab_size)


# ------------------------------------------------------------------------------------------------------ greedy text
@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_greedy_text_of_every_drafter_is_transformers(kind):
    target, ids = random_model("llama"), prompt(20)
    options = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3}
    mask, asked = torch.ones_like(ids), {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
    expected = target.model.generate(ids, attention_mask=mask, **asked, **options)[0, 20:].tolist()
    assert expected != dt.autoregressive(target, ids, max_new_tokens=20).tokens
    processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.3), NoRepeatNGramLogitsProcessor(3)])
    for drafter in examples(kind, noisy_copy(target)):
        out = dt.generate(target, ids, drafter, max_new_tokens=20, logits_processors=processors)
        assert out.tokens == expected, drafter


@pytest.mark.parametrize("commit", ["gather", "rebuild"])
def test_a_text_that_goes_on_is_processed_with_all_of_it(commit):
    tree = dt.FixedTree(DRAFT, depth=3, branching=2, tau=None)
    options = {"logits_processors": [penalty], "commit": commit}
    whole = dt.generate(TARGET, [0, 1], tree, max_new_tokens=30, **options)
    assert whole.tokens == dt.autoregressive(processed(TARGET, penalty), [0, 1], max_new_tokens=30).tokens
    first = dt.generate(TARGET, [0, 1], tree, max_new_tokens=11, **options)
    second = dt.generate(TARGET, [], tree, max_new_tokens=19, state=first.state, **options)
    assert first.tokens + second.tokens == whole.tokens
    third = dt.generate(TARGET, [2, 2], tree, max_new_tokens=5, state=second.state, **options)
    text = [0, 1, *whole.tokens, 2, 2]
    assert third.tokens == dt.autoregressive(processed(TARGET, penalty), text, max_new_tokens=5).tokens


def test_a_batch_is_processed_like_its_texts_alone():
    target = random_model("llama")
    prompts, processors = [prompt(9)[0], prompt(17)[0]], [RepetitionPenaltyLogitsProcessor(1.5)]
    drafter, options = dt.FixedTree(noisy_copy(target)), {"max_new_tokens": 15, "logits_processors": processors}
    alone = [dt.generate(target, ids, drafter, **options).tokens for ids in prompts]
    assert [out.tokens for out in dt.generate_batch(target, prompts, drafter, **options)] == alone


# ----------------------------------------------------------------------------------------------- exact distributions
@pytest.mark.parametrize("sampling", [WARM, dt.Sampling(temperature=0.7, top_k=3, top_p=0.9)], ids=["warm", "filtered"])
@pytest.mark.parametrize(
    "drafter",
    [
        dt.FixedTree(DRAFT, depth=3, branching=2, tau=None),
        dt.PromptLookup(ngram=1),
        dt.ProgressiveTree(depth=3, start_tree=(2,), children=2),
        Lookahead(window=2, ngram=3, guesses=2),
        SelfDraft(branches=1, length=2, ngram=3, candidates=2),
    ],
    ids=lambda drafter: drafter.name,
)
@pytest.mark.parametrize("verifier", [dt.TargetWalk(), dt.Traversal(), dt.TokenLevel()], ids=lambda rule: rule.name)
def test_texts_of_deterministic_trees_have_the_processed_distribution(drafter, verifier, sampling):
    found = exact.texts(TARGET, drafter, verifier, [0, 1, 0, 1], 3, sampling, logits_processors=[penalty])
    expected = exact.text_distribution(processed(TARGET, penalty), [0, 1, 0, 1], 3, sampling)
    assert exact.distance(found.distribution, expected) < 1e-12
    plain = exact.text_distribution(TARGET, [0, 1, 0, 1], 3, sampling)
    assert exact.distance(plain, expected) > 0.1


RULES = [dt.TargetWalk(), dt.TokenLevel(), dt.Traversal(), dt.Block()]


@pytest.mark.parametrize("branching", [1, (2, 1)], ids=["chain", "tree"])
@pytest.mark.parametrize("draw", ["iid", "distinct"])
@pytest.mark.parametrize("verifier", RULES, ids=lambda rule: rule.name)
def test_an_iteration_of_drawn_trees_has_the_processed_distribution(verifier, draw, branching):
    """Of every tree that may be drawn, and every verdict on it; the grammar sees texts of its language alone."""
    if branching != 1 and isinstance(verifier, dt.Block):
        pytest.skip("Block is a rule for chains")
    drafter = dt.SampledTree(DRAFT, depth=2, branching=branching, draw=draw)
    verifier.check(WARM, Drawing.RECORDED, drafter.chain)
    prompt, grammar = [0, 2], Grammar()
    emitted, outcomes = defaultdict(float), 0
    for proposal, drawn in exact.proposals(drafter, prompt, WARM):
        scores = exact.target_scores(TARGET, prompt, proposal.tree, WARM)
        for verdict, decided in verdicts_of(verifier, proposal, scores, prompt, [grammar, penalty]):
            text = tuple(verdict.tokens(proposal.tree))
            emitted[cut(text)] += drawn * decided
            outcomes += 1
    assert outcomes > 20
    assert any(len(text) > 3 for text in grammar.asked)

    target, expected = processed(TARGET, Grammar(), penalty), defaultdict(float)
    for text, mass in completed_until(target, prompt, emitted, 3).items():
        expected[text] -= mass
    for text, mass in completed_until(target, prompt, {(): 1.0}, 3).items():
        expected[text] += mass
    assert max(abs(mass) for mass in expected.values()) < 1e-12


def verdicts_of(verifier, proposal, scores, prompt, processors):
    processing = Processing.of(processors, [])
    processing.start(prompt)

    def decide(random):
        lazy = processing.scores(scores, proposal.tree, lambda path: END in path)
        return verifier.verify(proposal.tree, lazy, proposal.distributions, random)

    return exact.outcomes(decide)


def cut(text):
    return text[: text.index(END) + 1] if END in text else text


def completed_until(target, prompt, texts, length):
    """Continue texts with the target, token by token, to a length or to the end."""
    out = defaultdict(float)
    for text, mass in texts.items():
        if len(text) >= length or END in text:
            out[text[:length]] += mass
            continue
        shares = enumerate(exact.next_token(target, (*prompt, *text), WARM).tolist())
        further = {(*text, token): mass * share for token, share in shares if share > 0}
        for longer, share in completed_until(target, prompt, further, length).items():
            out[longer] += share
    return out


# --------------------------------------------------------------------------------------------------- what is asked
@pytest.mark.parametrize(
    ("verifier", "sampling"),
    [(dt.Greedy(), dt.Sampling()), (dt.TargetWalk(), WARM), (dt.TokenLevel(), WARM)],
    ids=("greedy", "target-walk", "token-level"),
)
@pytest.mark.parametrize(
    "drafter",
    [dt.FixedTree(DRAFT), dt.SampledTree(DRAFT, branching=2, draw="iid"), Lookahead(window=2, ngram=3)],
    ids=lambda drafter: drafter.name,
)
def test_rules_that_go_top_down_ask_token_after_token(drafter, verifier, sampling):
    """A processor that counts its calls, or keeps what it saw, works as in plain decoding."""
    grammar = Grammar()
    out = dt.generate(
        TARGET, [0, 2], drafter, verifier=verifier, sampling=sampling, seed=5, max_new_tokens=40,
        logits_processors=[grammar], eos_token_ids=(),
        stopping_criteria=[lambda ids, _: ids[0, -1] == END],
    )  # fmt: skip
    text = [0, 2, *out.tokens]
    assert grammar.asked == [text[:length] for length in range(2, len(text))]
    assert len(out.iterations) < len(out.tokens) or len(out.tokens) < 4


@pytest.mark.parametrize("verifier", [dt.TargetWalk(), dt.TokenLevel(), dt.Traversal()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("ending", [{"eos_token_ids": END}, {"stopping_criteria": [lambda ids, _: ids[0, -1] == END]}])
def test_nothing_is_asked_after_the_end_of_a_text(verifier, ending):
    """The grammar complains of texts that go on after their end; paths of the tree do."""
    beyond = 0
    for seed in range(60):
        drafter = dt.SampledTree(DRAFT, depth=4, branching=2)
        out = dt.generate(
            TARGET, [0, 2], drafter, verifier=verifier, sampling=WARM, seed=seed, max_new_tokens=60,
            logits_processors=[Grammar()], **ending,
        )  # fmt: skip
        assert out.tokens[-1] == END or len(out.tokens) == 60
        tree = out.iterations[-1].tree
        beyond += any(tree.tokens[node] == END and len(tree.children(node)) for node in range(1, len(tree)))
    assert beyond > 20


def test_a_processor_sees_a_copy_of_the_logits_and_its_answer_is_their_only_change():
    def spoil(ids, logits):
        assert (ids.dtype, ids.shape[0], logits.dtype) == (torch.int64, 1, torch.float64)
        assert not torch.is_inference_mode_enabled()
        kept = logits.clone()
        logits.fill_(0)
        return kept

    tree = dt.FixedTree(DRAFT)
    plain = dt.generate(TARGET, [0, 1], tree, max_new_tokens=30)
    assert dt.generate(TARGET, [0, 1], tree, max_new_tokens=30, logits_processors=[spoil]).tokens == plain.tokens


def test_scores_off_the_text_are_the_targets_own():
    tree = dt.TokenTree.from_paths(0, [[1, 2], [2, 3]])
    scores = exact.target_scores(TARGET, [2, 0], tree, dt.Sampling())
    plain = scores.argmax.copy()
    forced = {(): 1, (1,): 3}
    lazy = ProcessedScores(scores, tree, lambda path, logits: torch.eye(4, dtype=torch.float64)[forced[path]])
    reached = [0, int(np.flatnonzero((tree.parents == 0) & (tree.tokens == 1))[0])]
    assert lazy.argmax[reached].tolist() == [1, 3]
    others = [node for node in range(len(tree)) if node not in reached]
    assert lazy.argmax[others].tolist() == plain[others].tolist()


@pytest.mark.parametrize("sampling", [dt.Sampling(), WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize(
    "drafter", [dt.FixedTree(DRAFT), Lookahead(window=2, ngram=3), dt.ProgressiveTree(depth=2, start_tree=(2,))],
    ids=lambda drafter: drafter.name,
)  # fmt: skip
def test_a_processor_may_remove_values_that_are_not_finite(drafter, sampling):
    """Of nodes that the text reaches and of the others, whose logits no processor sees."""

    def distribution(context):
        found = TARGET.distribution(context)
        return [*found[:2], float("nan"), found[3]] if context[-1] == 1 else found

    broken, repair = dt.ToyModel(distribution, 4), InfNanRemoveLogitsProcessor()
    options = {"sampling": sampling, "max_new_tokens": 30}
    text = dt.generate(broken, [0, 1], drafter, logits_processors=[repair], **options).tokens
    assert len(text) == 30
    if sampling.greedy:
        assert text == dt.autoregressive(processed(broken, repair), [0, 1], max_new_tokens=30).tokens
    with pytest.raises(ValueError, match="hold NaN"):
        dt.generate(broken, [0, 1], drafter, **options)
    with pytest.raises(ValueError, match="a logit that is NaN"):
        dt.generate(broken, [0, 1], drafter, logits_processors=[penalty], **options)


def test_siblings_with_one_token_are_processed_once():
    tree = dt.TokenTree.build([0, 1, 1, 2], [-1, 0, 0, 2])
    scores, asked = exact.target_scores(TARGET, [2, 0], tree, dt.Sampling()), []

    def process(path, logits):
        asked.append(path)
        return torch.eye(4, dtype=torch.float64)[{(): 1, (1,): 2, (1, 2): 3}[path]]

    verdict = dt.Greedy().verify(tree, ProcessedScores(scores, tree, process), None, dt.RandomSource())
    assert (verdict.path, verdict.next_token) == ((2, 3), 3)
    assert asked == [(), (1,), (1, 2)]


def test_criteria_are_asked_once_a_token_also_by_processing():
    asked = []
    watching = [lambda ids, _: asked.append(ids[0].tolist())]
    out = dt.generate(TARGET, [0, 1], dt.FixedTree(DRAFT), max_new_tokens=30, logits_processors=[penalty],
                      stopping_criteria=watching)  # fmt: skip
    assert asked == [[0, 1, *out.tokens[:length]] for length in range(1, 31)]


# --------------------------------------------------------------------------------------------------------- criteria
def test_criteria_end_the_text_inside_a_path_and_are_asked_once_a_token():
    plain = dt.autoregressive(TARGET, [0, 1], max_new_tokens=40).tokens
    for size in range(1, 12):
        asked = []

        def enough(ids, scores, asked=asked, size=size):
            assert scores is None
            asked.append(ids[0].tolist())
            return torch.tensor([ids.shape[1] >= 2 + size])

        out = dt.generate(TARGET, [0, 1], dt.Chain(TARGET, 5), max_new_tokens=40, stopping_criteria=[enough])
        assert (out.tokens, out.finish_reason) == (plain[:size], "criteria")
        assert asked == [[0, 1, *plain[:length]] for length in range(1, size + 1)]
        assert len(out.iterations) == -(-size // 6)  # a perfect draft: five accepted and the bonus token


def test_a_criterion_comes_after_eos_and_before_the_budget():
    plain = dt.autoregressive(TARGET, [0, 1], max_new_tokens=3).tokens
    always, tree = [lambda ids, _: True], dt.FixedTree(DRAFT)
    ends = {"eos_token_ids": plain[0], "max_new_tokens": 1, "stopping_criteria": always}
    assert dt.generate(TARGET, [0, 1], tree, **ends).finish_reason == "eos"
    ends["eos_token_ids"] = ()
    assert dt.generate(TARGET, [0, 1], tree, **ends).finish_reason == "criteria"


# ---------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize("option", ["logits_processors", "stopping_criteria"])
@pytest.mark.parametrize("given", [penalty, ["greedy"], None], ids=["function", "string", "None"])
def test_what_is_no_list_of_functions_is_refused(option, given):
    with pytest.raises(TypeError, match=f"{option} is .*; give a list of functions"):
        dt.generate(TARGET, [0], dt.Chain(DRAFT), **{option: given})


@pytest.mark.parametrize("sampling", [dt.Sampling(), WARM], ids=["greedy", "warm"])
def test_processors_that_leave_no_token_are_named(sampling):
    nothing = [lambda ids, logits: torch.full_like(logits, -torch.inf)]
    with pytest.raises(ValueError, match="logits processors left no token"):
        dt.generate(TARGET, [0], dt.Chain(DRAFT), sampling=sampling, logits_processors=nothing)


class Malformed:
    """Its answer is what a function of the logits makes of them."""

    def __init__(self, made):
        self.made = made

    def __call__(self, ids, logits):
        return self.made(logits)


MALFORMED = {
    "None": (lambda logits: None, TypeError, "returned None"),
    "list": (lambda logits: logits.tolist(), TypeError, "returned a list"),
    "whole numbers": (lambda logits: logits.long(), TypeError, r"a tensor of shape \(1, \d+\) and torch.int64"),
    "row": (lambda logits: logits[0], ValueError, r"shape \(\d+,\) "),
    "fewer tokens": (lambda logits: logits[:, :2], ValueError, r"shape \(1, 2\) "),
    "batch": (lambda logits: logits.expand(2, -1), ValueError, r"shape \(2, \d+\) "),
}


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("sampling", [dt.Sampling(), WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_answer_of_a_processor_is_refused(name, sampling, place):
    made, kind, words = MALFORMED[name]
    processors = [penalty, penalty]
    processors[place] = Malformed(made)
    with pytest.raises(kind, match=f"processor Malformed .*{words}.* return a floating tensor of that shape"):
        dt.generate(TARGET, [0, 1], dt.Chain(DRAFT), sampling=sampling, logits_processors=processors)


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_answer_of_a_processor_is_refused_by_transformers_generate(name, record):
    made, kind, words = MALFORMED[name]
    ids = prompt(6)
    asked = {"return_dict_in_generate": record, "output_scores": record, "do_sample": False, "max_new_tokens": 4}
    with pytest.raises(kind, match=f"processor Malformed .*{words}.* return a floating tensor of that shape"):
        random_model("llama").model.generate(
            ids, attention_mask=torch.ones_like(ids), logits_processor=LogitsProcessorList([Malformed(made)]),
            custom_generate=dt.hf.generate, **asked,
        )  # fmt: skip


def test_without_processors_scores_stay_as_they_are():
    assert Processing.of([], []) is None
    criteria_alone = Processing.of([], [lambda ids, _: False])
    scores = exact.target_scores(TARGET, [0], dt.TokenTree.build([0], [-1]), WARM)
    assert criteria_alone.scores(scores, dt.TokenTree.build([0], [-1]), lambda path: False) is scores
