"""The losslessness audit, its negative controls, and the record it left."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from pandas import DataFrame

from dynatree_lib import SampledTree, Sampling, TargetWalk, TokenLevel, ToyModel, Traversal, autoregressive, generate
from dynatree_lib.verifiers import Block, Drawing, Verdict, default_verifier
from dynatree_suite.bench.records import read_bytes
from dynatree_suite.cli import main as cli
from dynatree_suite.proofs import audit
from dynatree_suite.proofs.audit import CASE, CONTROLS, LIMIT, PAIRS, SAMPLINGS, TABLES, TREES, Audit, read_audit
from dynatree_suite.proofs.exact import bias, distance, outcomes, proposals, text_distribution
from dynatree_suite.proofs.unsound import (
    UNSOUND,
    BaseDistributionRecorded,
    DuplicatesDropped,
    GrownSiblings,
    LosersCut,
    Reranked,
    SharedNoise,
    ShuffledSiblings,
    SortedSiblings,
    TopAsDrawn,
    UnlikelyRemoved,
)
from dynatree_suite.rules import ConditionalTransport, KSequential, MultiPath, Transport

REFERENCE = Path(__file__).resolve().parents[2] / "outputs" / "reference" / "audit.json.gz"
RULES = {rule.name for rule in audit.RULES}
FOR_CHAINS = {rule.name for rule in audit.RULES if getattr(rule, "for_chains", False)}
TOGETHER = {Transport.name, ConditionalTransport.name, MultiPath.name}
"""Rules that look at siblings together."""
T1 = Sampling(1.0)
KINDS = list(UNSOUND)
TARGET = ToyModel.random(3, seed=1)
DRAFT = TARGET.mixed(ToyModel.random(3, seed=2), 0.5)


def always(*distribution):
    return ToyModel(lambda context: distribution, len(distribution))


def audit_of(*cases):
    """An audit of these cases alone."""
    tables = {name: [] for name in TABLES}
    for case in cases:
        for name, rows in audit.check_case(case).items():
            tables[name] += rows
    return Audit.of({}, {}, tables)


def first_token(target, drafter, rule, length=1):
    """Exact distribution of what is emitted first, in order of the texts, and the bias."""
    deviation, found = bias(target, drafter, rule, [0], T1)
    distribution = found.completed(target, [0], length, T1)
    return [distribution[text] for text in sorted(distribution) if distribution[text] > 1e-15], deviation


# ------------------------------------------------------------------------------------------------------ sound instances
@pytest.mark.parametrize("part", range(5))
def test_a_slice_of_the_audit_is_lossless(part):
    """Ten cases each, of a seed that is not the record's: some 350 instances in all."""
    found = audit_of(*islice(audit.cases(seed=7), 10 * part, 10 * (part + 1)))
    assert found.controls.empty
    assert len(found.checks) >= 50
    assert found.failures() == []
    assert found.checks["deviation"].max() < LIMIT


def test_a_turn_of_cases_covers_every_kind_and_three_turns_every_vocabulary():
    turn = len(PAIRS) * len(TREES) * len(SAMPLINGS)
    one, all_three = list(islice(audit.cases(), turn)), list(islice(audit.cases(), 3 * turn))
    assert len({(case.pair, case.tree, case.sampling) for case in one}) == turn
    assert {case.vocabulary for case in all_three if case.tree == "adaptive"} == {2, 3, 4}
    assert len({case.seed for case in all_three}) == 3 * turn
    assert {case.seed for case in one}.isdisjoint(case.seed for case in islice(audit.cases(1), turn))


@pytest.mark.parametrize("vocabulary", [2, 3, 4])
def test_pairs_are_what_they_are_called(vocabulary):
    for seed, context in [(0, (0,)), (5, (0, 1)), (5, (0, 0))]:
        p, q = {}, {}
        for kind in PAIRS:
            p[kind], q[kind] = (model.distribution(context) for model in audit.toy_pair(kind, vocabulary, seed))
            assert sum(p[kind]) == pytest.approx(1)
            assert sum(q[kind]) == pytest.approx(1)
        assert 0 not in p["generic"] + q["generic"] + q["zeros in p"] + p["zeros in q"]
        assert p["p = q"] == q["p = q"]
        assert sorted(p["one-hot p"])[-2:] == [0, 1]
        assert 0 in p["zeros in p"]
        assert all(a * b == 0 for a, b in zip(p["disjoint"], q["disjoint"], strict=True))
        for peaked in (q["peaked q"], q["peaked p and q"], p["peaked p and q"]):
            assert max(peaked) > 0.9
            assert 0 < min(peaked) < 0.1
    generic = audit.toy_pair("generic", vocabulary, 0)[0]
    assert generic.distribution((0,)) != generic.distribution((0, 0))


@pytest.mark.parametrize("rest", [1e-6, 1e-11, 1e-14, 3e-16])
@pytest.mark.parametrize("draw", ["distinct", "iid", "hybrid", "top"])
@pytest.mark.parametrize("rule", audit.RULES, ids=lambda rule: rule.name)
def test_what_a_peaked_draft_leaves_to_the_others_is_not_lost_in_a_difference(rule, draw, rest):
    """MultiPath took sums of what comes before a token by subtraction, and was biased by 0.02 where they are tiny."""
    target, draft = ToyModel(lambda _: (0.6, 0.0, 0.4), 3), ToyModel(lambda _: (1 - 2 * rest, rest, rest), 3)
    drafter = SampledTree(draft, depth=1, branching=2, draw=draw)
    if audit.serves(rule(), drafter, T1):
        assert bias(target, drafter, rule(), (0,), T1)[0] < LIMIT


def test_adaptive_gates_act():
    """Trees differ in shape with what was drawn, so that breadth and depth are under test."""
    shapes = []
    for seed in range(6):
        _, draft = audit.toy_pair("generic", 3, seed)
        found = proposals(TREES["adaptive"][1](draft), [0], T1)
        shapes.append({tuple(one.tree.parents.tolist()) for one, _ in found})
    assert max(map(len, shapes)) > 2
    assert len(set.union(*shapes)) > 6


def test_traversal_may_emit_fewer_tokens_on_a_tree_and_stays_lossless():
    """Verification notes, section 5: the one level below a child kept with probability 0.7."""
    below = ([0.4, 0.5, 0, 0.1], [0, 0.1, 0.8, 0.1])
    target = ToyModel(lambda context: [0.7, 0.3, 0, 0] if len(context) == 1 else below[0], 4)
    draft = ToyModel(lambda context: [1, 0, 0, 0] if len(context) == 1 else below[1], 4)
    drafter = SampledTree(draft, shape=(0, 1, 1))
    (one, level), (other, leaf) = (bias(target, drafter, rule, [0], T1) for rule in (TokenLevel(), Traversal()))
    assert max(one, other) < LIMIT
    assert level.tokens - 1 == pytest.approx(1.12, abs=1e-12)
    assert leaf.tokens - 1 == pytest.approx(13873 / 12450, abs=1e-12)


# ------------------------------------------------------------------------------------------------------------- controls
def test_biased_readings_are_seen_on_a_chain_that_every_rule_serves():
    cases = (case for case in audit.control_cases(seed=3) if case.tree == audit.SOUND)
    found = audit_of(*(case for case in cases if case.seed - 300_000 < 6))
    assert {row["rule"]: row["biased"] > 0 for row in found.control_summary()} == dict.fromkeys(audit.BIASED, True)
    assert set(found.checks["rule"]) == RULES
    assert found.checks["deviation"].max() < LIMIT


@pytest.mark.parametrize("name", [name for name in CONTROLS if name != audit.SOUND])
def test_every_control_is_seen_and_served_by_the_target_walk(name):
    chosen = (case for case in audit.control_cases(seed=3) if case.tree == name)
    found = audit_of(*(case for case in chosen if case.seed - 300_000 in (0, 1, 4, 7)))
    rows = found.control_summary()
    chain, shared = name.endswith("chain"), name.startswith(SharedNoise.name)
    refusing = {"traversal", *TOGETHER} if shared else RULES - {"target-walk"}
    if name.startswith(GrownSiblings.name):
        refusing = {KSequential.name, *TOGETHER}
    assert {row["rule"] for row in rows} == refusing - (set() if chain else FOR_CHAINS)
    blind = {"multi-path"} if name in ("sorted-siblings", "sorted-siblings iid", "shuffled-siblings") else set()
    blind |= {"multi-path", "transport"} if name == "shared-noise" else set()  # they look at siblings on one path
    blind |= {"k-sequential"} if name == GrownSiblings.name else set()  # for draws with replacement alone
    assert {row["rule"] for row in rows if not row["biased"]} == blind
    assert set(found.checks["rule"]) == RULES - refusing - FOR_CHAINS
    assert found.checks["deviation"].max() < LIMIT


@pytest.mark.parametrize("rule", [TokenLevel(unsafe=True), Traversal(unsafe=True)], ids=lambda rule: rule.name)
@pytest.mark.parametrize(
    ("p", "q", "kind", "options", "expected"),
    [
        ((0.3, 0.7), (0.6, 0.4), TopAsDrawn, {"branching": 1}, [0.5, 0.5]),
        ((0.5, 0.5), (0.8, 0.2), SortedSiblings, {}, [0.625, 0.375]),
        ((0.2, 0.5, 0.3), (0.6, 0.2, 0.2), BaseDistributionRecorded, {}, [0.2, 0.4, 0.4]),
        ((0.2, 0.5, 0.3), (0.6, 0.2, 0.2), DuplicatesDropped, {}, [0.2, 0.46, 0.34]),
        ((0.5, 0.5), (0.8, 0.2), UnlikelyRemoved, {"branching": 1, "threshold": 0.3}, [0.6, 0.4]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_hand_examples_of_unsound_drafters(rule, p, q, kind, options, expected):
    """Verification notes, section 3: the smallest example of each mistake, and the target walk on it."""
    drafter = kind(always(*q), depth=1, **options)
    found, deviation = first_token(always(*p), drafter, rule)
    assert found == pytest.approx(expected, abs=1e-12)
    assert deviation == pytest.approx(sum(abs(a - b) for a, b in zip(expected, p, strict=True)) / 2)
    assert first_token(always(*p), drafter, TargetWalk())[0] == pytest.approx(p, abs=1e-12)


def test_hand_example_of_shared_noise():
    """One uniform draws both grandchildren: (00, 10, 11) is (1/4, 1/4, 1/2) instead of (1/4, 3/8, 3/8)."""
    distributions = {(0,): (0.25, 0.75), (0, 0): (1, 0)}
    target = ToyModel(lambda context: distributions.get(context, (0.5, 0.5)), 2)
    drafter = SharedNoise(always(0.5, 0.5), shape=(0, 0, 1, 2))
    assert first_token(target, drafter, Traversal(unsafe=True), 2)[0] == pytest.approx([1 / 4, 1 / 4, 1 / 2])
    for rule in (TokenLevel(), TargetWalk()):
        assert first_token(target, drafter, rule, 2)[0] == pytest.approx([1 / 4, 3 / 8, 3 / 8])


def test_shared_noise_is_shared_and_keeps_each_nodes_distribution():
    """Branches with one distribution draw the same token; every node's own tokens follow its own distribution."""
    draft = ToyModel(lambda context: (0.5, 0.3, 0.2) if context[-1] else (0.1, 0.3, 0.6), 3)
    distribution, pairs = {}, 0
    for proposal, probability in proposals(SharedNoise(draft, shape=(0, 0, 1, 2)), [0], T1):
        first, second, *drawn = proposal.tree.tokens[1:].tolist()
        if 0 not in (first, second):
            assert drawn[0] == drawn[1]
            pairs += 1
        if first == 0:
            distribution[drawn[0]] = distribution.get(drawn[0], 0) + probability / 0.1  # of node 0's own after token 0
    assert pairs
    assert [distribution[token] for token in range(3)] == pytest.approx([0.1, 0.3, 0.6])
    with pytest.raises(ValueError, match="draw is 'iid'; .* choose 'distinct'"):
        SharedNoise(draft, draw="iid")


def test_a_chain_of_shared_noise_has_one_branch_so_every_rule_serves_it():
    drafter = SharedNoise(DRAFT, depth=2, branching=1)
    for rule in (Traversal(), Block(), TokenLevel()):
        rule.check(T1, drafter.drawing, drafter.chain)
        assert bias(TARGET, drafter, rule, [0], T1)[0] < LIMIT


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
class TestUnsoundDrafter:
    def test_is_refused_with_the_reason(self, kind):
        drafter = kind(DRAFT, depth=2)
        refusing = [Traversal()] if kind is SharedNoise else [Traversal(), TokenLevel()]
        for rule in refusing:
            with pytest.raises(ValueError, match=drafter.drawing.value):
                generate(TARGET, [0], drafter, verifier=rule, sampling=T1)
        with pytest.raises(ValueError, match="use Traversal"):
            Block().check(T1, drafter.drawing, drafter.chain)
        chosen = default_verifier(False, drafter.drawing)
        assert type(chosen) is (TokenLevel if kind is SharedNoise else TargetWalk)

    def test_says_what_is_wrong(self, kind):
        assert kind(DRAFT).drawing is (Drawing.BY_PATH if kind is SharedNoise else Drawing.SELECTED)
        assert UNSOUND[kind].count(" ") > 4
        assert kind.name in CONTROLS

    def test_decodes_exactly_with_the_rule_it_gets_by_itself(self, kind, monkeypatch):
        """Several iterations: the draft's cache must follow nodes that moved, or the loop would go wrong."""
        import dynatree_lib.decoding as decoding

        def run(random):
            monkeypatch.setattr(decoding, "RandomSource", lambda seed, stream: random)
            drafter = kind(draft, shape=(0, 0, 1, 2))
            return tuple(generate(target, [0], drafter, sampling=T1, max_new_tokens=4).tokens)

        target, draft = audit.toy_pair("generic", 2, 0)
        distribution = {}
        for text, probability in outcomes(run):
            distribution[text] = distribution.get(text, 0) + probability
        assert distance(distribution, text_distribution(target, [0], 4, T1)) < LIMIT

    def test_is_greedy_at_temperature_zero(self, kind):
        plain = autoregressive(TARGET, [0, 1], max_new_tokens=30).tokens
        out = generate(TARGET, [0, 1], kind(DRAFT, depth=3), max_new_tokens=30)
        assert out.tokens == plain

    def test_reads_the_text_it_is_in(self, kind):
        """After iterations whose nodes were moved or removed, the draft has read the text and nothing else."""
        out = generate(TARGET, [0, 1], kind(DRAFT, depth=3, branching=(2, 2, 1)), sampling=T1, max_new_tokens=40)
        state = out.state.drafter_state
        session = state.session
        session.rollback()
        session.flush()
        assert len(out.iterations) < 40
        assert [*session._text, state.root] == [0, 1, *out.tokens]


def test_what_meddling_does_to_a_tree():
    """One pair of siblings with a likely and an unlikely token, in both draw orders."""
    draft = always(0.7, 0.3)

    def trees(kind, **options):
        found = proposals(kind(draft, **options), [0], T1)
        return {(tuple(one.tree.tokens[1:].tolist()), tuple(one.tree.parents[1:].tolist())) for one, _ in found}

    assert trees(SampledTree, depth=1) == {((0, 1), (0, 0)), ((1, 0), (0, 0))} == trees(ShuffledSiblings, depth=1)
    assert trees(SortedSiblings, depth=1) == {((0, 1), (0, 0))} == trees(TopAsDrawn, depth=1)
    assert trees(UnlikelyRemoved, depth=1, threshold=0.5) == {((0,), (0,))} == trees(Reranked, depth=1, nodes=1)
    assert trees(DuplicatesDropped, depth=1) == {((0, 1), (0, 0)), ((1, 0), (0, 0)), ((0,), (0,)), ((1,), (0,))}
    assert all(len(parents) == 3 for _, parents in trees(LosersCut, shape=(0, 0, 1, 2)))
    assert trees(SortedSiblings, shape=(0, 0, 1)) == {
        ((0, 1, 0), (0, 0, 1)), ((0, 1, 1), (0, 0, 1)), ((0, 1, 0), (0, 0, 2)), ((0, 1, 1), (0, 0, 2)),
    }  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- the record
@pytest.fixture(scope="module")
def record():
    if not REFERENCE.exists():
        pytest.skip("there is no reference audit")
    return read_audit(REFERENCE)


class TestReference:
    def test_is_large_and_lossless(self, record):
        assert record.checks["rule"].value_counts()[list(RULES)].min() >= 300
        assert record.checks["deviation"].max() < 1e-12
        assert record.identities["deviation"].max() < 1e-12
        assert record.failures() == []

    def test_covers_every_rule_tree_pair_sampling_and_vocabulary(self, record):
        found = {(row["rule"], row["tree"]) for row in record.summary()}
        every = {(rule, tree) for rule in RULES - FOR_CHAINS for tree in TREES}
        assert every - found == {(rule, "DySpec") for rule in (KSequential.name, *TOGETHER)}
        assert {(rule, tree) for rule in FOR_CHAINS for tree in audit.CHAINS} <= found
        assert {*record.checks[["pair", "tree", "sampling"]].itertuples(index=False, name=None)} >= {
            (pair, tree, sampling) for pair in PAIRS for tree in TREES for sampling in SAMPLINGS
        }
        assert set(record.checks["vocabulary"]) == {2, 3, 4}
        assert record.identities["identity"].nunique() == 3

    def test_every_control_was_seen(self, record):
        rows = record.control_summary()
        assert all(row["biased"] == 0 or row["bias"] > 1e-3 for row in rows)
        assert {row["control"] for row in rows if row["biased"]} == set(CONTROLS)
        sharing = {row["rule"] for row in rows if row["control"].startswith(SharedNoise.name)}
        assert sharing == {"traversal", *TOGETHER}

    def test_traversal_never_emits_fewer_on_chains(self, record):
        rows = {row["tree"]: row for row in record.comparison()}
        assert rows["chain of 3"]["more"] > 0
        assert rows["chain of 3"]["fewer"] == rows["top chain"]["fewer"] == 0
        assert sum(row["more"] for row in rows.values()) > 100

    def test_a_chain_drawn_from_the_target_itself_is_kept_whole(self, record):
        chains = record.checks.query("pair == 'p = q' and tree == 'chain of 3' and rule != 'target-walk'")
        assert set(chains["rule"]) == RULES - {"target-walk"}
        assert len(chains) >= 9
        assert set(chains["tokens"]) == {4}

    def test_its_summaries_are_those_of_its_rows(self, record):
        text = read_bytes(REFERENCE).decode()
        body = json.loads(text)
        assert body["summary"] == record.summary()
        assert body["control_summary"] == record.control_summary()
        assert body["comparison"] == record.comparison()
        assert record.to_json() == text

    def test_its_rows_can_be_had_again(self, record):
        """A few rows, enumerated now; rounding may differ on another machine."""
        small = record.checks.query("vocabulary < 4")
        for row in small[:: len(small) // 9].to_dict("records"):
            again = audit_of(audit.Case(**{name: row[name] for name in CASE})).checks
            (same,) = again[again["rule"] == row["rule"]].to_dict("records")
            assert same["tokens"] == pytest.approx(row["tokens"], abs=1e-9)
            assert same["deviation"] < LIMIT


# ---------------------------------------------------------------------------------------------------------- the command
@pytest.fixture
def short(monkeypatch):
    """Small trees, and three cases of some controls: the slices above have the others."""
    monkeypatch.setattr(audit, "CONTROL_CASES", 3)
    some = ("top-as-drawn", "shared-noise", "shared-noise siblings", "grown-siblings iid")
    monkeypatch.setattr(audit, "CONTROLS", {name: CONTROLS[name] for name in some})
    small = ("chain of 3", "top chain", "one, then two", "2x2 top")
    monkeypatch.setattr(audit, "TREES", {name: TREES[name] for name in small})


def test_the_command_writes_a_record_that_can_be_read(short, tmp_path, capsys):
    path = tmp_path / "audit.json"
    assert cli.main(["audit", "--instances", "250", "--seed", "2", "--out", str(path)]) == 0
    shown, found = capsys.readouterr(), read_audit(path)
    assert len(found.checks) >= 120
    assert f"All {len(found.checks)} instances are lossless" in shown.out
    assert all(f"{name} " in shown.out for name in (*RULES, *audit.CONTROLS))
    assert f"Saved in {path}." in shown.out
    assert 2 <= shown.err.count("\n") <= 10
    assert found.setup["seed"] == 2
    assert found.environment["library"]
    assert cli.main(["audit", "--instances", "1", "--out", str(path)]) == 2
    assert "exists; replace it with --overwrite" in capsys.readouterr().err


class WrongBonus(TokenLevel):
    """A planted mistake: the bonus token is drawn from the target's distribution also where a child was rejected."""

    name = "wrong-bonus"

    def sample(self, tree, scores, distributions, random):
        path = super().sample(tree, scores, distributions, random).path
        return Verdict(path, random.draw(scores.distribution(path[-1] if path else 0)))


def test_a_biased_rule_makes_the_command_fail(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(audit, "CONTROLS", {})
    monkeypatch.setattr(audit, "RULES", (TargetWalk, TokenLevel, Block, Traversal, WrongBonus))
    path = tmp_path / "audit.json"
    assert cli.main(["audit", "--instances", "60", "--out", str(path)]) == 1
    text = capsys.readouterr().out
    assert "wrong-bonus misses the target's distribution by" in text
    assert "are lossless" not in text
    assert read_audit(path).failures()
    assert not any(" traversal misses" in sentence for sentence in read_audit(path).failures())


@pytest.mark.parametrize("option", [["--instances", "0"], ["--instances", "-5"], ["--seed", "-1"]])
def test_bad_numbers_are_refused_before_any_work(option, capsys):
    assert cli.main(["audit", *option]) == 2
    assert (
        capsys.readouterr().err == f"dynatree: {option[0]} is {option[1]}; give at least {int(option[0][2] == 'i')}.\n"
    )


def test_a_file_that_cannot_be_written_is_refused_before_any_work(tmp_path, capsys):
    assert cli.main(["audit", "--out", str(tmp_path / "none" / "audit.json")]) == 2
    assert "does not exist; make it first." in capsys.readouterr().err
    with pytest.raises(ValueError, match="instances is 0 and seed 0"):
        audit.run_audit(0)


# ------------------------------------------------------------------------------------------------------------- failures
def found(**changes):
    """An audit of one case, to be changed."""
    whole = audit_of(audit.Case("generic", 3, 5, "chain of 3", "T=1"))
    controls = DataFrame([("generic", 3, 5, "reranked", "T=1", "traversal", 0.1)], columns=TABLES["controls"])
    return replace(whole, **{"controls": controls, **changes})


def test_failures_name_the_instance():
    assert found().failures() == []
    (sentence,) = found(checks=found().checks[:1].assign(deviation=1e-9)).failures()
    assert sentence == (
        "On 'generic', V=3, seed 5, T=1, tree 'chain of 3', target-walk misses the target's distribution by 1.00e-09; "
        "the limit is 1e-12."
    )
    (sentence,) = found(identities=found().identities[:1].assign(deviation=float("nan"))).failures()
    assert "'chain: block is traversal' does not hold by nan" in sentence


def test_a_control_that_is_not_seen_is_a_failure_and_one_that_is_refused_is_not():
    (sentence,) = found(controls=found().controls.assign(bias=1e-9)).failures()
    assert sentence == "Control 'reranked' was never seen biased under traversal in 1 instances."
    refused = found(controls=found().controls.assign(bias=float("nan")))
    assert refused.failures() == []
    assert refused.control_summary()[0] == {
        "control": "reranked", "rule": "traversal", "instances": 1, "biased": 0, "refused": 1, "bias": None,
    }  # fmt: skip


def test_traversal_behind_token_level_on_a_chain_is_a_failure():
    checks = found().checks
    (sentence,) = found(
        checks=checks.assign(tokens=checks["tokens"].where(checks["rule"] != "traversal", 1.0))
    ).failures()
    assert sentence == "On 'chain of 3' Traversal emits fewer tokens than TokenLevel in 1 instances."


def test_a_token_without_mass_counts_as_refused(monkeypatch):
    """A deterministic choice recorded as drawn from a distribution that cannot give it."""

    class Elsewhere(TopAsDrawn):
        def propose(self, state, max_depth, sampling):
            out = super().propose(state, max_depth, sampling)
            out.distributions.record(0, out.distributions.distribution(0).new_zeros(3))
            return out

    monkeypatch.setitem(CONTROLS, "elsewhere", lambda draft: Elsewhere(draft, depth=1))
    both = audit_of(audit.Case("generic", 3, 0, "elsewhere", "T=1"))
    assert list(both.checks["rule"]) == ["target-walk"]
    assert len(both.controls) == 6
    assert both.controls["bias"].isna().all()
    assert both.control_summary()[0]["bias"] is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 0}', '{"format": 1}'])
def test_what_is_no_audit_is_refused(tmp_path, text):
    path = tmp_path / "audit.json"
    with pytest.raises(ValueError, match="There is no audit .* writes one."):
        read_audit(path)
    path.write_text(text)
    with pytest.raises(ValueError, match="holds no audit that can be read .*; write it again."):
        read_audit(path)


def test_an_audit_that_checked_too_little_says_so_and_fails(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(audit, "CONTROL_CASES", 2)
    monkeypatch.setattr(audit, "CONTROLS", dict(islice(CONTROLS.items(), 2)))
    assert cli.main(["audit", "--instances", "1", "--out", str(tmp_path / "short.json")]) == 1
    shown = capsys.readouterr().out
    assert "The rule 'traversal' was never checked; ask for more instances." in shown
    assert "every control was seen" not in shown
