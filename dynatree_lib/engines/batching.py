"""`generate_batch`: several texts at a time, each decoded by the ordinary loop, their forwards shared.

Drafters and the loop ask for one forward after another and know nothing of each other. So each sequence runs in its own
thread, up to its next forward; when all of them wait, one forward serves those that want the same model, and they go
on. Only one thread runs at a time, in a fixed order, so that results do not depend on the scheduler.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any, Literal, cast

import torch

from ..checks import as_tuple, chosen, whole
from ..decoding import Generation, Interrupted, check_drafter, check_request, checked_prompt, generate, priced
from ..drafters.auto import Auto
from ..drafters.base import Drafter
from ..models.base import LanguageModel
from ..models.texts import Prompt, each_prompt
from ..sampling import GREEDY
from .batched import BatchedModel, Request, SharedForward, SlotSession


class BatchInterrupted(Interrupted):
    """Ctrl-C during `generate_batch`.

    Attributes:
        generations: a text per prompt, as far as it came; nothing for prompts whose turn had not come.
        generation: the first of them.
    """

    def __init__(self, generations: list[Generation]) -> None:
        super().__init__(generations[0])
        self.args = ("Decoding was interrupted; the texts so far are in the attribute `generations`.",)
        self.generations = generations


def generate_batch(
    target: LanguageModel,
    prompts: Sequence[Prompt] | Mapping[str, Any],
    drafter: Drafter | None = None,
    *,
    seeds: Sequence[int] | None = None,
    max_batch: int | None = None,
    on_tokens: Callable[[int, list[int]], None] | None = None,
    on_forward: Callable[[SharedForward], None] | None = None,
    interrupt: Literal["raise", "return"] = "raise",
    **options: Any,
) -> list[Generation]:
    """Decode several texts; each has the trees, accepted paths and end that `generate` alone would give it.

    In float64 the texts are those of `generate` with the same seeds. With shorter floats a forward of other shapes
    rounds differently, so that a near-tie may fall otherwise. Where a drafter has measured costs, trees are smaller
    than for a text alone, because nodes of several texts cost more; greedy texts are the same, and drawn trees then
    give other draws of the same distribution. A text that ends leaves the batch, and the next prompt
    takes its place.

    Args:
        target: an `HFModel` without sliding windows.
        prompts: a list of prompts, each as for `generate`, or what a tokenizer returns for several texts.
        drafter: for all of them, by default as for `generate`; a dataclass, with its draft model, an `HFModel` as
            well, in the field `draft`.
        seeds: one per prompt; by default all have `seed` of the options, 0 if it is not given, as a loop over
            `generate` would. (Equal prompts then give equal texts.)
        max_batch: most texts at a time; by default all.
        on_tokens: called with the number of a prompt and its new tokens, as they are committed.
        on_forward: called with every forward of target and draft.
        interrupt: what Ctrl-C does. It ends all texts at their next forward. "raise" raises `BatchInterrupted` with the
            texts so far in `generations`; "return" returns them, with finish reason "interrupted".
        options: of `generate`, for all texts. The caches are freed at the end, so there is no `state` to go on from.

    Returns:
        one `Generation` per prompt, in order, without state.

    An error in one text stops the others as well. It is raised with a note that names the text's prompt.

    Raises:
        BatchInterrupted: on Ctrl-C, unless `interrupt` is "return".
        TypeError, ValueError: before any work, for models that cannot share forwards, a drafter whose model cannot be
            replaced, another number of seeds than of prompts, `max_batch` below 1, options that keep or take a state,
            and whatever `generate` refuses.
    """
    check_request(target, options.get("sampling"), on_tokens)
    drafter = Auto() if drafter is None else drafter
    check_drafter(drafter)
    shared = BatchedModel(target)
    batched = {id(target): shared}
    _on_shared(drafter, batched)  # which refuses what cannot be replaced, before anything is measured
    seed, prompts = options.pop("seed", 0), each_prompt(prompts)
    seeds = [whole("seed", seed) for seed in ([seed] * len(prompts) if seeds is None else as_tuple(seeds))]
    if len(seeds) != len(prompts):
        raise ValueError(f"There are {len(seeds)} seeds for {len(prompts)} prompts; give one each.")
    if max_batch is not None:
        whole("max_batch", max_batch, 1)
    chosen("interrupt", interrupt, ("raise", "return"))
    refused = [name for name in ("state", "warm", "keep_state") if options.get(name)]
    if refused:
        raise ValueError(
            f"Batches do not support {refused[0]}=, because slots of a shared cache do not outlive the call; use "
            "generate() for texts that go on or begin where another one ended."
        )
    tokenizer, budget = options.get("tokenizer") or shared.tokenizer, options.get("max_new_tokens", 1)
    texts = [checked_prompt(shared, prompt, None, budget, tokenizer) for prompt in prompts]
    together = max(1, min(max_batch or len(texts), len(texts)))
    drafter = priced(drafter, target, options.get("sampling") or GREEDY, together) if texts else drafter
    drafter = _on_shared(drafter, batched)
    drafts = [model for model in batched.values() if model is not shared]
    one = partial(generate, shared, drafter=drafter, **{**options, "keep_state": False, "interrupt": "return"})
    jobs = [
        partial(one, ids, seed=seed, on_tokens=on_tokens and partial(on_tokens, number))
        for number, (ids, seed) in enumerate(zip(texts, seeds, strict=True))
    ]
    processed, ended = options.get("logits_processors"), options.get("stopping_criteria") or options.get("stop_strings")
    target.warn_of_config(options.get("sampling"), bool(processed), bool(ended))
    generations = _Batch([*drafts, shared], jobs, max_batch or len(jobs), on_forward).run()
    if interrupt == "raise" and any(generation.finish_reason == "interrupted" for generation in generations):
        raise BatchInterrupted(generations)
    return generations


Answer = torch.Tensor | BaseException | None
"""What a sequence goes on with: logits, an error to raise, None at its start."""


class _Stop(BaseException):
    """Ends a sequence from outside; no handler of errors catches it."""


@dataclass(eq=False)
class _Slot:
    """One sequence: its thread's result, the request it waits for, and what it goes on with."""

    number: int
    job: Callable[[], Generation]
    future: Future[Generation] | None = None
    inbox: SimpleQueue[Answer] = field(default_factory=SimpleQueue)
    request: Request | None = None
    sessions: set[SlotSession] = field(default_factory=set)


class _Batch:
    """The sequences of one call, and the order in which they run.

    Args:
        models: in the order in which they are served: the draft as long as any sequence drafts, so that the target's
            forwards are full.
        jobs: each decodes one text and asks `models` for its forwards.
        width: most sequences at a time.
        on_forward: called with every forward.
    """

    def __init__(
        self,
        models: Sequence[BatchedModel],
        jobs: Sequence[Callable[[], Generation]],
        width: int,
        on_forward: Callable[[SharedForward], None] | None,
    ) -> None:
        self.models, self.width, self.pool = models, width, ThreadPoolExecutor(max(width, 1))
        self.slots = [_Slot(number, job) for number, job in enumerate(jobs)]
        self.waiting, self.live = iter(self.slots), list[_Slot]()
        self.turns: deque[tuple[_Slot, Answer]] = deque()
        self.running: _Slot | None = None
        self.done = SimpleQueue[None]()
        self.stop: type[BaseException] | None = None
        self.error: BaseException | None = None
        for model in models:
            model.ask, model.on_forward = self._ask, on_forward

    def run(self) -> list[Generation]:
        """Decode everything."""
        threads = torch.get_num_threads()
        with _interrupts_held(self._interrupt):
            try:
                self._admit()
                while self.live:
                    self._step()
                    self._admit()
            except BaseException as error:
                self.error = self.error or error
            finally:
                self.stop = self.stop or _Stop
                while self.live:
                    self._step()
                self.pool.shutdown()
                for model in self.models:  # memory is given back now, not when the garbage is collected
                    model.cache.states = None
                torch.set_num_threads(threads)  # setting it in one thread sets what later threads begin with
        if self.error is not None:
            raise self.error
        empty = Generation([], [], "interrupted")
        return [slot.future.result() if slot.future else empty for slot in self.slots]

    def _interrupt(self, *_: Any) -> None:
        self.stop = self.stop or KeyboardInterrupt

    # --------------------------------------------------------------------------------------- in the caller's thread
    def _admit(self) -> None:
        """Start as many sequences as may run at a time."""
        while self.stop is None and (fresh := list(islice(self.waiting, self.width - len(self.live)))):
            for slot in fresh:
                slot.future = self.pool.submit(self._decode, slot)
            self.live += fresh
            self._take_turns([(slot, None) for slot in fresh])

    def _step(self) -> None:
        """Serve the sequences that wait for the first of the wanted models, and let them go on."""
        if self.stop is not None:
            self._take_turns([(slot, self.stop()) for slot in self.live])
            return
        wanted = {slot: slot.request for slot in self.live if slot.request is not None}
        asked = {request.session.model for request in wanted.values()}
        model = next(model for model in self.models if model in asked)
        served = {slot: request for slot, request in wanted.items() if request.session.model is model}
        model.serve([*served.values()])
        self._take_turns([(slot, request.logits) for slot, request in served.items()])

    def _take_turns(self, turns: Sequence[tuple[_Slot, Answer]]) -> None:
        """Let sequences run one after another, each until it waits again or has ended."""
        self.turns.extend(turns)
        self._pass_on()
        while self.running is not None:
            try:
                self.done.get()
            except KeyboardInterrupt:  # from a handler of the caller's own, before or after the queue was read
                self._interrupt()
        for slot, _ in turns:
            if slot.request is None:
                self._finish(slot)

    def _finish(self, slot: _Slot) -> None:
        """Take the result or error of a sequence that has ended, and free its slots."""
        assert slot.future is not None
        error = slot.future.exception()
        self.live.remove(slot)
        for session in slot.sessions:
            session.model.close(session)
        if error is None and slot.future.result().finish_reason == "interrupted":
            self._interrupt()
        elif error is not None and not isinstance(error, _Stop):
            error.add_note(f"It was raised while decoding prompts[{slot.number}].")
            self.error, self.stop = self.error or error, self.stop or _Stop

    # ------------------------------------------------------------------------------------------ in a sequence's thread
    def _decode(self, slot: _Slot) -> Generation:
        # There is little work between forwards; a pool of workers for each sequence would only be in the way.
        torch.set_num_threads(1)
        try:
            self._wait(slot)
            return slot.job()
        finally:
            self._pass_on()

    def _ask(self, request: Request) -> torch.Tensor:
        slot = self.running
        assert slot is not None
        slot.request = request
        slot.sessions.add(request.session)
        self._pass_on()
        logits = self._wait(slot)
        assert logits is not None
        return logits

    def _wait(self, slot: _Slot) -> torch.Tensor | None:
        answer = slot.inbox.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    # ------------------------------------------------------------------------------------------------- in any of them
    def _pass_on(self) -> None:
        """Let the next sequence run, or the caller's thread after the last turn; the calling thread must then wait."""
        if not self.turns:
            self.running = None
            self.done.put(None)
            return
        self.running, answer = self.turns.popleft()
        self.running.request = None
        self.running.inbox.put(answer)


@contextlib.contextmanager
def _interrupts_held(handler: Callable[..., None]) -> Iterator[None]:
    """Call `handler` on Ctrl-C instead of raising KeyboardInterrupt anywhere in the program.

    Only Python's own reaction is replaced, and only in the main thread, where alone it can be replaced.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _on_shared(drafter: Drafter, batched: dict[int, BatchedModel]) -> Drafter:
    """The drafter with a batched model in place of each draft model.

    Args:
        drafter: as it was given.
        batched: the id of each model that has a batched model already -> that; the others are added.
    """
    draft = drafter.model
    if draft is None:
        return drafter
    made: Any = drafter
    held = {one.name: getattr(made, one.name) for one in fields(made)} if is_dataclass(made) else {}
    changed = {name: _on_shared(part, batched) for name, part in held.items() if isinstance(part, Drafter)}
    if changed:  # a drafter made of others
        return cast(Drafter, replace(made, **changed))
    replaceable = held.get("draft") is draft
    if not replaceable:
        raise TypeError(
            f"'{drafter.name}' does not hold its draft model in a dataclass field, so that no batched model can take "
            "its place; make the drafter a dataclass with a field `draft`."
        )
    if id(draft) not in batched:
        batched[id(draft)] = BatchedModel(draft, "draft")
    return cast(Drafter, replace(made, draft=batched[id(draft)]))
