"""How often an iteration waits for what the device computes: once per draft level and once per verification.

(What it sends is another matter: a plain session uploads ids, masks and commits one by one, a static one in one pinned
copy per forward.) There need be no device: the logits are of a tensor class that stays itself through every operation
of torch and notes where something leaves it for the host.
"""

import pytest
import torch
from models import noisy_copy, prompt, random_model

from dynatree_lib import (
    AdaptiveTree,
    BestFirstTree,
    Chain,
    CostAwareTree,
    FixedTree,
    LookupTree,
    NoDraft,
    PromptLookup,
    SampledTree,
    Sampling,
    TargetWalk,
    TokenLevel,
    Traversal,
    generate,
)
from dynatree_lib.costs import Costs
from dynatree_lib.models.huggingface import HFModel

LEAVING = {"cpu", "numpy", "tolist", "item", "__bool__", "__int__", "__float__", "__index__", "nonzero", "to"}


class Remote(torch.Tensor):
    """A tensor as if it were on a device."""

    waits = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name == "__get__" and function.__self__ is torch.Tensor.device:  # read as a property
            return torch.device("cuda")
        if name == "to" and not any(str(arg) == "cpu" for arg in args[1:]):
            name = ""  # a change of dtype stays on the device
        if name not in LEAVING:
            return super().__torch_function__(function, types, args, kwargs or {})
        Remote.waits += 1
        with torch._C.DisableTorchFunctionSubclass():
            plain = [arg.as_subclass(torch.Tensor) if isinstance(arg, Remote) else arg for arg in args]
            return function(*plain, **(kwargs or {}))


@pytest.fixture
def remote(monkeypatch):
    """The logits of both models are `Remote`; the number of draft forwards is counted."""
    forward, levels = HFModel.forward, []

    def remotely(self, *arguments):
        levels.append(self.name)
        return forward(self, *arguments).as_subclass(Remote)

    target = HFModel(random_model("gpt_neox").model)
    draft = HFModel(noisy_copy(random_model("gpt_neox"), 0.005).model)
    target.name, draft.name = "target", "draft"
    monkeypatch.setattr(HFModel, "forward", remotely)
    return target, draft, levels


def waits(remote, drafter, **options):
    """(waits, draft levels, verifications) of a text."""
    target, _, levels = remote
    levels.clear()
    Remote.waits = 0
    out = generate(target, prompt(12), drafter, max_new_tokens=24, **options)
    assert len(out.tokens) == 24
    return Remote.waits, levels.count("draft"), levels.count("target")


DRAFTERS = {
    "ar": lambda draft: NoDraft(),
    "chain": lambda draft: Chain(draft, 4),
    "fixed-tree": lambda draft: FixedTree(draft, depth=4, branching=2, tau=None),
    "adaptive-tree": AdaptiveTree,
    "best-first-tree": BestFirstTree,
    "cost-aware-tree": lambda draft: CostAwareTree(draft, costs=Costs((1.0, 1.0), (0.01, 0.01), 0.15)),
    "lookup-tree": LookupTree,
    "prompt-lookup": lambda draft: PromptLookup(),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_greedy_iteration_waits_once_per_level_and_once_to_verify(remote, name):
    count, levels, verified = waits(remote, DRAFTERS[name](remote[1]))
    assert count == levels + verified
    assert levels > 0 or name in ("ar", "prompt-lookup")


@pytest.mark.parametrize("rule", [TokenLevel(), Traversal()], ids=lambda rule: rule.name)
def test_a_drawn_tree_too(remote, rule):
    drafter = SampledTree(remote[1], branching=(2, 1), depth=3)
    count, levels, verified = waits(remote, drafter, sampling=Sampling(1.0), verifier=rule)
    assert count == levels + verified


def test_a_deterministic_tree_at_a_temperature_too(remote):
    count, levels, verified = waits(remote, Chain(remote[1], 4), sampling=Sampling(1.0), verifier=TargetWalk())
    assert count == levels + verified


def test_the_counter_sees_a_wait():
    Remote.waits = 0
    logits = torch.rand(2, 3).as_subclass(Remote)
    (logits.softmax(-1) * 2).max(-1).values.float()
    assert Remote.waits == 0
    assert bool((logits >= 0).all())
    assert logits.argmax().item() in range(6)
    assert Remote.waits == 2
