"""The decoding loop: draft a tree, score it with the target in one forward, accept a path, repeat.

The loop knows no drafting or verification rule, measures nothing and prints nothing. Several sequences at once:
`engines.batching`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Literal

import numpy as np
import torch

from .checks import as_tuple, chosen, decodes, described, is_whole, of_kind, whole
from .costs import Costs
from .drafters.auto import Auto
from .drafters.base import Drafter, NoDraft, Proposal
from .models.base import LanguageModel, Session, check_model
from .models.texts import Prompt, prompt_ids
from .processing import LogitsProcessor, Processing, StoppingCriterion
from .sampling import RandomSource, Sampling, one_thread
from .stopping import Stopping
from .tree import TokenTree
from .verifiers import default_verifier
from .verifiers.base import Drawing, Verdict, Verifier

TAIL = 64
"""Tokens before a text that stop strings may begin in."""


@dataclass(frozen=True, eq=False, repr=False)
class Iteration:
    """One iteration: the tree, the verdict, and the numbers that the drafter reported before it.

    Attributes:
        tree: the verified tree.
        verdict: accepted path and next token, cut where the text ended.
        report: the drafter's numbers before the iteration (`Drafter.report`): adaptation, pool sizes.
        side_tree: the side tree that was scored in the same forward, for the drafter (`Proposal.side_tree`).
    """

    tree: TokenTree
    verdict: Verdict
    report: dict[str, float] = field(default_factory=dict)
    side_tree: TokenTree | None = None

    @property
    def committed(self) -> int:
        """Number of tokens that the iteration added to the text: the accepted path and the bonus token."""
        return len(self.verdict.path) + 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Iteration):
            return NotImplemented
        ours, theirs = self.report, other.report
        same = (self.tree, self.verdict, self.side_tree) == (other.tree, other.verdict, other.side_tree)
        # A drafter reports NaN of what it does not know yet, and NaN is not equal to itself.
        reports = np.array_equal([*ours.values()], [*theirs.values()], equal_nan=True)
        return same and [*ours] == [*theirs] and reports

    def __repr__(self) -> str:
        drafted = f"{len(self.tree) - 1} nodes drafted in {self.tree.depth} levels"
        return f"Iteration({drafted}, {len(self.verdict.path)} accepted, {self.committed} tokens added)"

    @property
    def side_nodes(self) -> int:
        """Nodes of the side tree, node 0 not counted: PTD's drafting overhead (its section 4.1)."""
        return 0 if self.side_tree is None else len(self.side_tree) - 1


@dataclass
class DecodingState:
    """The state of a text: hand it to the next `generate`, which goes on without reading the text again.

    A state serves once, because the caches move on: continue from the latest Generation. `spent` says that it has.
    `text` holds all token ids so far, prompts included; the models have read, or queued, all but the last.
    `drafter` is as it was given; `drafting` is the same with the costs that the text began with.
    """

    model: LanguageModel
    target: Session
    drafter: Drafter
    drafting: Drafter
    drafter_state: Any
    random: RandomSource
    text: list[int]
    spent: bool = False


MEASURING = f"{__package__}.measuring"
"""Module that measures costs; imported late, because it decodes."""
VIEW = f"{__package__}.plots.iterations"
"""Module that shows a `Generation` in a notebook; imported late, because pictures stand above the decoder."""


@dataclass(frozen=True, repr=False)
class Generation:
    """The result of `generate`.

    Two are equal if their tokens, iterations and finish reasons are. A notebook shows the text, coloured by iteration.
    Pickles and copies hold everything but `state`, which belongs to the models of this process.

    Attributes:
        tokens: generated token ids, without the prompt; an EOS token that ended the text is the last one.
        iterations: one entry per iteration.
        finish_reason: "eos", "stop" (a stop string), "criteria", "length" (max_new_tokens), "context", or
            "interrupted".
        state: continues the text, with both models' caches inside; None after an interruption or with
            `keep_state=False`.
        tokenizer: decodes the tokens; None where neither the target nor `generate` was given a tokenizer.
    """

    tokens: list[int]
    iterations: list[Iteration]
    finish_reason: str
    state: DecodingState | None = field(default=None, compare=False)
    tokenizer: Any = field(default=None, compare=False)

    def text(self, tokenizer: Any = None) -> str:
        """Return the generated text.

        Args:
            tokenizer: decodes it; the generation's own by default.

        Raises:
            TypeError: for a tokenizer that does not decode.
            ValueError: where there is no tokenizer.
        """
        tokenizer = self.tokenizer if tokenizer is None else tokenizer
        if tokenizer is None:
            raise ValueError("This text has no tokenizer to decode it; give it: text(tokenizer).")
        decodes(tokenizer)
        decoded: str = tokenizer.decode(self.tokens)
        return decoded

    @property
    def counts(self) -> str:
        """Counts of the text, on a line: tokens, iterations, tokens per iteration, finish reason."""
        line = f"{len(self.tokens)} token{'s' * (len(self.tokens) != 1)}"
        if self.iterations:
            count = len(self.iterations)
            line += f" in {count} iteration{'s' * (count != 1)}, {len(self.tokens) / count:.2f} tokens per iteration"
        return f"{line}, finish reason '{self.finish_reason}'"

    def __repr__(self) -> str:
        return f"Generation({self.counts})"

    def _repr_html_(self) -> str | None:
        """Return the text coloured by iteration; None, so that a notebook shows the line, where plots cannot draw."""
        try:
            view = import_module(VIEW).generation_view
        except ImportError:  # plots need what decoding does not
            return None
        shown: str = view(self)
        return shown

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "state": None}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during decoding.

    Attributes:
        generation: the text so far, with finish reason "interrupted".
    """

    def __init__(self, generation: Generation) -> None:
        super().__init__("Decoding was interrupted; the text so far is in the attribute `generation`.")
        self.generation = generation


def generate(
    target: LanguageModel,
    prompt: Prompt,
    drafter: Drafter | None = None,
    *,
    verifier: Verifier | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
    max_new_tokens: int = 128,
    eos_token_ids: int | Sequence[int] | None = None,
    stop_strings: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    logits_processors: Sequence[LogitsProcessor] = (),
    stopping_criteria: Sequence[StoppingCriterion] = (),
    on_tokens: Callable[[list[int]], None] | None = None,
    state: DecodingState | None = None,
    warm: DecodingState | None = None,
    commit: Literal["gather", "rebuild"] = "gather",
    keep_state: bool = True,
    interrupt: Literal["raise", "return"] = "raise",
) -> Generation:
    """Decode with a drafted tree per iteration.

    The text has the target's own distribution; at temperature 0 it is the target's greedy text.

    Args:
        target: the model whose text this is.
        prompt: a text, which the tokenizer encodes as it stands, without a chat template; a conversation, a list of
            {"role": ..., "content": ...}, which the chat template turns into ids; (L,) or (1, L) token ids; or what a
            tokenizer returns for one text, from which padding is dropped. With `state`, what follows the earlier text
            (may be empty): ids, or a text, which then gets no special tokens.
        drafter: proposes the trees; by default `Auto()`, which drafts from the text itself, as far as it pays. With a
            draft model give `Auto(draft)`.
        verifier: the verification rule; by default that of `verifiers.default_verifier`: `Greedy` at temperature 0,
            above it `TargetWalk` for deterministic trees and `Traversal` for sampled trees.
        sampling: the target's sampling; greedy by default.
        seed: any whole number, for all random decisions; a continued text keeps its own.
        max_new_tokens: token budget; never exceeded.
        eos_token_ids: tokens that end the text; the model's own by default, () for none.
        stop_strings: the text ends with the token that completes one of these; needs `tokenizer`.
        tokenizer: encodes a text as prompt and decodes tokens for `stop_strings`; the target's own by default.
        logits_processors: functions that change the target's distribution, as transformers' `LogitsProcessor`: of
            (1, L) int64 ids of a text and the (1, V) logits after it, a copy of their own, in float32 or the logits'
            dtype if that is higher, they return (1, V) logits. They are called in order, for every text that the rule
            asks about. Rules that go top down (`Greedy`, `TargetWalk`, `TokenLevel`) ask token after token, as plain
            decoding does. `Traversal` and `Block` need functions that depend on their arguments alone.
        stopping_criteria: functions of (1, L) ids of the text and None that return whether it ends with its last token,
            as transformers' `StoppingCriteria`. Each is asked after each token, in order.
        on_tokens: called with the new tokens of each iteration, as they are committed.
        state: `Generation.state` of an earlier call with the same target and drafter, whose text goes on.
        warm: `Generation.state` of an earlier text with the same drafter: a new text begins, with what the drafter
            learnt in that one (`Drafter.inherit`). None, also from `keep_state=False`, begins with nothing learnt.
        commit: "gather" keeps the accepted KV entries; "rebuild" drops them and reads the accepted tokens again in a
            second forward, as published.
        keep_state: whether `Generation.state` keeps the caches; False frees their memory.
        interrupt: what Ctrl-C does. "raise" raises `Interrupted`, a KeyboardInterrupt with the text so far in
            `generation`; "return" returns that text with finish reason "interrupted".

    What a checkpoint's generation config asks for (a repetition penalty, say) is applied by `hf.generate`. Here a
    warning names it, once for a model, unless arguments stand for it; `hf.options` makes arguments of it.
    Drafters and verifiers run in torch's inference mode; processors, criteria and `on_tokens` do not.

    Raises:
        Interrupted: on Ctrl-C, unless `interrupt` is "return".
        TypeError: before any work, for an argument of another kind, such as a transformers model that is not wrapped,
            a class in place of an object, a drafter's name, or processors or criteria that cannot be called; later, for
            a processor that returns no floating tensor.
        ValueError: where processors leave no token or return another shape; before any work, for an empty prompt, a
            prompt that fills the context, token ids outside the vocabulary, a text without a tokenizer, a budget below
            1, a draft of another vocabulary, a drafter that the target cannot serve, or a verifier that cannot serve
            `sampling` or would be biased for this drafter's trees.
    """
    check_request(target, sampling, on_tokens)
    drafter = Auto() if drafter is None else drafter
    check_drafter(drafter)
    chosen("commit", commit, ("gather", "rebuild"))
    chosen("interrupt", interrupt, ("raise", "return"))
    seed, given, sampling = whole("seed", seed), sampling, sampling or Sampling()
    if verifier is None:
        verifier = default_verifier(sampling.greedy, drafter.drawing)
    of_kind("The verifier", verifier, Verifier, "give an object, such as verifier=Greedy(), or None for the default")
    verifier.check(sampling, drafter.drawing, drafter.chain)
    for draft in drafter.models:
        _check_vocabulary(target, draft)
    drafter.check(target)
    _check_states(target, warm, state, drafter)
    if tokenizer is None:
        tokenizer = getattr(target, "tokenizer", None)
    else:
        decodes(tokenizer)
    ids = checked_prompt(target, prompt, state, max_new_tokens, tokenizer)
    strings = () if stop_strings is None else as_tuple(stop_strings)
    stopping = Stopping(max_new_tokens, checked_ends(target, eos_token_ids), strings, tokenizer)
    processing = Processing.of(logits_processors, stopping_criteria)
    target.warn_of_config(given, bool(logits_processors), bool(stopping_criteria or strings))
    loop: Loop | None = None
    try:
        if state is None:
            drafting = priced(drafter, target, sampling)
            state = begun(target, drafter, ids, seed, warm, drafting)
            # other code's time, and that of a second forward, would be taken for the costs'
            timed = drafting is not drafter and commit == "gather" and not (processing or on_tokens or strings)
        else:
            state, timed = _resume(state, target, drafter, ids), False
        if processing is not None:
            processing.start(state.text)
        loop = Loop(state, verifier, sampling, stopping, processing, on_tokens, commit)
        reason = import_module(MEASURING).watched(loop) if timed else loop.run()
    except KeyboardInterrupt as error:
        done = (loop.tokens, loop.iterations) if loop else ([], [])
        generation = Generation(*done, "interrupted", tokenizer=tokenizer)
        if interrupt == "raise":
            raise Interrupted(generation) from error
        return generation
    state.text = [*state.text, *loop.tokens]
    return Generation(loop.tokens, loop.iterations, reason, state if keep_state else None, tokenizer)


def autoregressive(target: LanguageModel, prompt: Prompt, **options: Any) -> Generation:
    """Decode one token per forward through the same loop; options as for `generate`."""
    return generate(target, prompt, NoDraft(), **options)


def priced(drafter: Drafter, target: LanguageModel, sampling: Sampling, texts: int = 1) -> Drafter:
    """Return the drafter with the costs of this target on this machine where it asks for measured ones.

    Args:
        drafter: any.
        target: the model whose texts these are.
        sampling: of the texts.
        texts: that share a forward.
    """

    def measure(draft: LanguageModel | None) -> Costs:
        costs: Costs = import_module(MEASURING).costs_of(target, draft, sampling)
        return costs.shared(texts)

    return drafter.priced(measure)


@dataclass
class Loop:
    """The iterations of a text: its state, its rules, and what it has decoded so far."""

    state: DecodingState
    verifier: Verifier
    sampling: Sampling
    stopping: Stopping
    processing: Processing | None = None
    on_tokens: Callable[[list[int]], None] | None = None
    commit: str = "gather"
    tokens: list[int] = field(default_factory=list)
    iterations: list[Iteration] = field(default_factory=list)

    @torch.inference_mode()
    def run(self) -> str:
        """Decode until the text ends and return the finish reason."""
        while (reason := self.step()) is None:
            pass
        return reason

    def step(self) -> str | None:
        """Add an iteration; return why the text has ended, or None where it goes on."""
        state, drafter = self.state, self.state.drafting
        positions = state.model.context - state.target.position - 1  # for drafted tokens and the bonus token
        if positions < 1:
            return "context"
        max_depth = min(positions, self.stopping.remaining(self.tokens)) - 1
        report = drafter.report(state.drafter_state)
        proposal = drafter.propose(state.drafter_state, max_depth, self.sampling)
        self._check(proposal)
        tree = proposal.tree
        if proposal.side_tree is not None and proposal.side_tree.depth >= positions:
            proposal = replace(proposal, side_tree=None)  # the target has no positions for it
        scores = state.target.score(*proposal.nodes, self.sampling)
        if self.processing is not None:
            scores = self.processing.scores(scores, tree, self._ends_in)
        with nullcontext() if self.sampling.greedy and scores.looked_through else one_thread():
            if proposal.ranked and self.sampling.greedy:
                scores.ranked(proposal.ranked)
            verdict = self.verifier.verify(tree, scores, proposal.distributions, state.random)
            fresh = verdict.tokens(tree)
            count, reason = self._cut(fresh)
            if count < len(fresh):
                verdict = Verdict(verdict.path[: count - 1], fresh[count - 1])
            state.drafter_state = drafter.observe(state.drafter_state, proposal, scores, verdict)
            if self.commit == "gather":
                state.target.commit([0, *verdict.path])
        if self.commit == "rebuild":
            self._read_again(tree, verdict)
        if self.processing is not None:
            self.processing.commit(fresh[:count])
        self.tokens += fresh[:count]
        self.iterations.append(Iteration(tree, verdict, report, proposal.side_tree))
        if self.on_tokens:
            with torch.inference_mode(False):  # the caller's code
                self.on_tokens(fresh[:count])
        return reason

    def _check(self, proposal: Proposal) -> None:
        """Raise TypeError or ValueError for a proposal after which the text would not be the target's."""
        drafter = self.state.drafting
        of_kind(f"What '{drafter.name}' proposes", proposal, Proposal, "return Proposal(tree)")
        last, root = (self.tokens or self.state.text)[-1], int(proposal.tree.tokens[0])
        if root != last:
            raise ValueError(
                f"'{drafter.name}' proposed a tree below token {root}, and the text ends with {last}. Node 0 is the "
                "last token of the text, so `observe` has to take in `verdict.next_token` too."
            )
        if len(proposal.tree) > 1 and drafter.drawing is Drawing.FIXED and any(proposal.tree.draws.tolist()):
            raise ValueError(
                f"'{drafter.name}' proposed sampled tokens and declares deterministic ones, so no rule can be chosen "
                "for it; override `drawing` (Drawing.RECORDED where every token follows its recorded distribution)."
            )

    def _cut(self, fresh: Sequence[int]) -> tuple[int, str | None]:
        met = None if self.processing is None else self.processing.met
        return self.stopping.cut(self.tokens, fresh, self.state.text[-TAIL:], met)

    def _ends_in(self, path: Sequence[int]) -> bool:
        """Return whether the text ends with one of these fresh tokens."""
        return bool(path) and self._cut(path)[1] is not None

    def _read_again(self, tree: TokenTree, verdict: Verdict) -> None:
        """Commit by a second forward over the accepted tokens."""
        target = self.state.target
        target.rollback()
        target.extend(tree.tokens[[0, *verdict.path]].tolist())
        target.flush()


def begun(
    target: LanguageModel, drafter: Drafter, ids: list[int], seed: int, warm: DecodingState | None, drafting: Drafter
) -> DecodingState:
    """Return the state of a new text; arguments as for `generate`, and the drafter with its costs."""
    session = target.session()
    session.feature_layers = drafter.feature_layers
    session.start(ids[:-1])
    learnt = drafting.start(ids, RandomSource(seed, "draft"))
    if warm is not None:
        learnt = drafting.inherit(learnt, warm.drafter_state)
    return DecodingState(target, session, drafter, drafting, learnt, RandomSource(seed, "verify"), ids)


def _resume(state: DecodingState, target: LanguageModel, drafter: Drafter, ids: list[int]) -> DecodingState:
    if state.spent:
        raise ValueError(
            "This state was already continued, or its text interrupted; use the latest Generation's state."
        )
    if state.model is not target or state.drafter != drafter:
        raise ValueError("This state belongs to another target or drafter; continue with the same, or from the tokens.")
    state.spent = True
    state = replace(state, spent=False)
    if ids:
        state.target.extend([state.text[-1], *ids[:-1]])
        state.drafter_state = state.drafting.extend(state.drafter_state, ids)
        state.text = [*state.text, *ids]
    return state


def _check_states(
    target: LanguageModel, warm: DecodingState | None, state: DecodingState | None, drafter: Drafter
) -> None:
    """Raise TypeError for a value that is no state; ValueError for both states, or a warm state that does not fit."""
    for name, value in (("state", state), ("warm", warm)):
        if value is not None:
            of_kind(name, value, DecodingState, "give the attribute `state` of an earlier Generation, or None")
    if warm is None:
        return
    if state is not None:
        raise ValueError("Both state and warm were given; state goes on with a text, warm begins another one.")
    if warm.spent:
        raise ValueError("The warm state was continued, so it has learnt of another text; use the latest Generation's.")
    if warm.drafter != drafter:
        raise ValueError("The warm state belongs to another drafter; give a state of the same one, or none.")
    if not _same_vocabulary(target, warm.model):
        raise ValueError(
            f"The warm state is of a text by '{warm.model.name}', whose token ids mean other words than those of "
            f"'{target.name}'; give a state of a text by the same model, or none."
        )


def check_request(target: object, sampling: object, on_tokens: object) -> None:
    """Raise TypeError for a target, a sampling or a callback of another kind."""
    check_model("target", target)
    if sampling is not None:
        of_kind("sampling", sampling, Sampling, "give Sampling(temperature=..., top_k=..., top_p=...), or None")
    if on_tokens is not None and not callable(on_tokens):
        raise TypeError(f"on_tokens is {described(on_tokens)}; give a function that takes a list of new token ids.")


def check_drafter(drafter: object) -> None:
    """Raise TypeError unless this is a drafter whose drafts are models."""
    way_out = "give a drafter, such as FixedTree(draft), or decode without one by autoregressive()"
    of_kind("The drafter", drafter, Drafter, way_out)
    for draft in drafter.models:  # type: ignore[attr-defined]
        check_model("draft", draft)


def checked_ends(target: LanguageModel, eos_token_ids: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the tokens that end a text, the target's own for None.

    Raises:
        ValueError: for values that are no token ids of the target.
    """
    if eos_token_ids is None:
        return target.eos_token_ids
    several = as_tuple(eos_token_ids)
    for token in several:
        if not is_whole(token):
            raise ValueError(
                f"eos_token_ids holds {described(token)}; give token ids, such as "
                "tokenizer.convert_tokens_to_ids('</s>'), or () to end at none."
            )
        if not 0 <= token < target.vocab_size:
            raise ValueError(
                f"eos_token_ids holds {token}; '{target.name}' has tokens 0 to {target.vocab_size - 1}. Give () to end "
                "at none."
            )
    return tuple(map(int, several))


def _check_vocabulary(target: LanguageModel, draft: LanguageModel) -> None:
    """Raise ValueError unless a draft numbers its tokens as the target does."""
    same = _same_vocabulary(target, draft)
    if same and draft.vocab_size > target.vocab_size:
        raise ValueError(
            f"Draft '{draft.name}' has {draft.vocab_size} logits and target '{target.name}' {target.vocab_size}; make "
            "them a pair with make_pair(target, draft), which cuts the surplus columns."
        )
    if not same:
        raise ValueError(
            f"Draft '{draft.name}' ({draft.vocab_size} tokens) and target '{target.name}' ({target.vocab_size} tokens) "
            "have different vocabularies, so drafted token ids would mean other words; make them a pair with "
            "make_pair(target, draft, vocabularies='intersection'), or use a draft with the target's tokenizer."
        )


def _same_vocabulary(one: LanguageModel, other: LanguageModel) -> bool:
    known = one.vocabulary is not None and other.vocabulary is not None
    return one.vocabulary == other.vocabulary if known else one.vocab_size == other.vocab_size


def checked_prompt(
    target: LanguageModel, prompt: Prompt, state: DecodingState | None, max_new_tokens: int, tokenizer: Any = None
) -> list[int]:
    """Return the prompt as a list of ids; errors as for `generate`."""
    ids = prompt_ids(prompt, tokenizer, target.name, begins=state is None)
    if not ids and state is None:
        raise ValueError("The prompt is empty; give at least one token, for example the tokenizer's BOS token.")
    outside = [token for token in ids if not 0 <= token < target.vocab_size]
    if outside:
        raise ValueError(
            f"The prompt holds token id {outside[0]}; '{target.name}' has tokens 0 to {target.vocab_size - 1}."
        )
    whole("max_new_tokens", max_new_tokens, 1)
    length = len(ids) + (0 if state is None else state.target.position + 1)
    if length >= target.context:
        raise ValueError(
            f"The prompt has {length} tokens and the context of '{target.name}' is {target.context}; shorten the "
            "prompt so that new tokens fit."
        )
    return ids
