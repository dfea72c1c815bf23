"""Decide on a drafted tree by hand: the reader tosses the coins of a rule, and sees what they leave open."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import ipywidgets as widgets
import torch

from dynatree_lib import plots
from dynatree_lib.checks import of_kind
from dynatree_lib.drafters.base import Proposal
from dynatree_lib.sampling import RandomSource, Scores
from dynatree_lib.verifiers.base import Verdict, Verifier

from .. import charts
from ..bench.statistics import share
from ..proofs import exact
from .walk import Explorer, line, put, watch

TRIALS = 1000
"""Decisions on the tree that one press of a button leaves to chance."""


class Coins(Explorer):
    """A rule's decisions on one tree, one after another, taken by the reader or left to chance.

    At each decision all ways in which the rule may still go are enumerated. So the probabilities in the tree are exact:
    those of each node to be accepted, given what was decided so far.

    Args:
        proposal: the drafted tree, and what its tokens were drawn from.
        scores: the target's, of the tree.
        letters: what to call each token of the vocabulary.
        rules: name -> rule.

    Attributes:
        rule: the list of rules; setting `rule.value` begins again with another one.
        taken: branches taken so far: 1 (accept) or 0 at a coin, the token at a draw.
        verdict: what the rule has decided, or None while decisions are left.

    Raises:
        TypeError: for a proposal, scores or rules that are none.
        ValueError: without a rule.
    """

    def __init__(
        self, proposal: Proposal, scores: Scores, letters: Sequence[str], rules: Mapping[str, Verifier]
    ) -> None:
        of_kind("The proposal", proposal, Proposal, "give what a drafter proposes, or Proposal(tree, distributions)")
        of_kind("What scores the tree", scores, Scores, "give the target's, such as proofs.exact.target_scores(...)")
        check_rules(rules, "to decide with")
        self.proposal, self.scores, self.letters, self.rules = proposal, scores, letters, rules
        self.taken, self.random = list[int](), RandomSource(0, "coins")
        self.verdict: Verdict | None = None
        self.rule = widgets.Dropdown(options=tuple(rules), description="rule")
        self.back = _button("back", "take the last decision back", lambda: self.decided(self.taken[:-1]))
        self.again = _button("restart", "begin again", lambda: self.decided([]))
        self.often = _button(f"{TRIALS:,} times", "leave everything to chance, again and again", self.count)
        self.asked, self.answers = widgets.HTML(), line()
        self.tree, self.shares = widgets.Output(), widgets.Output()
        top = line(self.rule, self.back, self.again, self.often)
        super().__init__([top, self.asked, self.answers, self.tree, self.shares])
        watch(self._choose, self.rule)

    def decided(self, taken: Sequence[int]) -> None:
        """Show where the rule stands after these decisions."""
        self.taken, rule = list(taken), self.rules[self.rule.value]
        replay = exact.Replay(taken)
        verdict = exact.decided(rule, self.proposal, self.scores, replay)
        chances = self.chances(rule, taken)
        self.verdict = verdict if len(replay.taken) == len(taken) else None
        if self.verdict is None:
            coin, shares = replay.coins[len(taken)], replay.shares[len(taken)]
            question = "a coin.</b> Is what the rule looks at accepted?" if coin else "a draw.</b> Which token is next?"
            self.asked.value = f"<b>Decision {len(taken) + 1}: {question}"
            self.answers.children = self._answers(coin, shares)
        else:
            path = " ".join(f"X{node}" for node in verdict.path) or "nothing"
            bonus = plots.theme.escaped(self.letters[verdict.next_token])
            self.asked.value = f"<b>Decided.</b> Accepted: {path}. The next token is {bonus}."
            self.answers.children = ()
        self.back.disabled = self.again.disabled = not taken
        count = f"{len(taken)} decision{'' if len(taken) == 1 else 's'}"
        title = f"Probability of being accepted under {self.rule.value}, after {count}"
        put(self.tree, plots.acceptance_tree(self.proposal.tree, chances, self.letters, title=title))

    def chances(self, rule: Verifier, taken: Sequence[int]) -> list[float]:
        """Return the probability of each node to be accepted by a rule, given its first decisions."""
        chances = [1.0] + [0.0] * (len(self.proposal.tree) - 1)
        for verdict, probability in exact.verdicts(rule, self.proposal, self.scores, taken):
            for node in verdict.path:
                chances[node] += probability
        return chances

    def toss(self, shares: Sequence[float]) -> None:
        """Let chance take the branch that is asked for, of which these are the probabilities."""
        self.decided([*self.taken, self.random.draw(torch.tensor(shares, dtype=torch.float64))])

    def count(self) -> None:
        """Let chance decide on the tree `TRIALS` times; compare how often each node came last with the exact number."""
        rule, tree = self.rules[self.rule.value], self.proposal.tree
        ends = defaultdict[int, float](float)
        for verdict, probability in exact.verdicts(rule, self.proposal, self.scores):
            ends[_last(verdict)] += probability
        seen = Counter(_last(exact.decided(rule, self.proposal, self.scores, self.random)) for _ in range(TRIALS))
        rows = []
        for node in range(len(tree)):
            found = share(seen[node], TRIALS)
            name = f"X{node}={self.letters[tree.tokens[node]]}" if node else "X0: nothing accepted"
            rows.append({"node": name, "seen": found.value, "interval": [found.low, found.high], "exact": ends[node]})
        words: dict[str, Any] = {
            "unit": "share, 95 % interval",
            "title": f"The last accepted node under {self.rule.value}",
        }
        names = (f"{TRIALS:,} times", "exact")
        put(self.shares, charts.bars_with_intervals(rows, "seen", "interval", "node", "exact", names=names, **words))

    def _choose(self) -> None:
        self.shares.outputs = ()
        self.decided([])

    def _answers(self, coin: bool, shares: Sequence[float]) -> tuple[widgets.Button, ...]:
        """Return a button for each possible branch, and one for chance."""
        names = {1: "accept", 0: "reject"} if coin else dict(enumerate(self.letters))
        possible = {branch: f"{name}: {plots.fraction(shares[branch])}" for branch, name in names.items()}
        buttons = [
            _button(name, "take this branch", partial(self.decided, [*self.taken, branch]))
            for branch, name in possible.items()
            if shares[branch] > 0
        ]
        return (*buttons, _button("let chance decide", "by these probabilities", partial(self.toss, shares)))


def check_rules(rules: Any, use: str) -> None:
    """Raise a TypeError for what are no named rules, and a ValueError, which names their use, where there is none."""
    of_kind("What decides", rules, Mapping, "give {name: rule, ...}, such as {'traversal': Traversal()}")
    for name, rule in rules.items():
        of_kind(f"The rule {name!r}", rule, Verifier, "give an object, such as Traversal()")
    if not rules:
        raise ValueError(f"There is no rule {use}; give one at least, such as {{'traversal': Traversal()}}.")


def _last(verdict: Verdict) -> int:
    return verdict.path[-1] if verdict.path else 0


def _button(name: str, about: str, press: Callable[[], None]) -> widgets.Button:
    button = widgets.Button(description=name, tooltip=about, layout={"width": "auto"})
    button.on_click(lambda pressed: press())
    return button
