"""The precision audit: up to the first flip its runs are the methods' own greedy runs; and its numbers are right."""

import copy
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from models import CONTEXT, noisy_copy, prompt, random_model, raw_model

from dynatree_lib import autoregressive, generate
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import make_pair
from dynatree_lib.sampling import GREEDY, RandomSource, Scores
from dynatree_lib.tree import TokenTree
from dynatree_suite.bench.methods import variant, variants
from dynatree_suite.bench.prompts import BenchPrompt
from dynatree_suite.bench.statistics import share
from dynatree_suite.cli import precision as precision_command
from dynatree_suite.cli.main import main
from dynatree_suite.proofs import precision
from dynatree_suite.proofs.precision import Followed, Reference, audit_precision, places_of, spacing

METHODS = (
    "ar,chain:length=3,fixed-tree:depth=3,cost-aware-tree,lookup-tree,fixed-tree:depth=2,commit=rebuild,ptd,lookahead"
)
PROMPTS = [BenchPrompt.from_ids(f"p{seed}", prompt(9 + seed, seed)[0].tolist()) for seed in range(4)]


@pytest.fixture(scope="module")
def coarse():
    """A bfloat16 pair in which nearly every token has a twin, so that rounding often decides."""
    model, generator = raw_model("gpt_neox"), torch.Generator().manual_seed(1)
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head[48:96] = head[:48] + 0.002 * torch.randn(48, head.shape[1], generator=generator)
    target = HFModel(model.to(torch.bfloat16))
    return make_pair(target, noisy_copy(target))


@pytest.fixture(scope="module")
def references(coarse):
    return [precision.read_reference(coarse.target, one, 40) for one in PROMPTS]


@pytest.fixture(scope="module")
def audited(coarse):
    methods = variants("hf-generate,ar,fixed-tree:depth=3,lookup-tree")
    lines = []
    found = audit_precision(coarse, methods, PROMPTS, max_new_tokens=40, node_counts=(4, 16), progress=lines.append)
    assert len(lines) == len(found["comparisons"])
    return found


def followed(*texts, label="made", margins=None, nodes=(1.0, 1.0), length=None, dtype=torch.bfloat16):
    """The places of texts whose reference is all zeros, with the tokens chosen in each; float64 knows nothing."""
    out = []
    for number, chosen in enumerate(texts):
        size = length or len(chosen)
        zeros, ones = np.zeros(size, np.int64), np.ones(size)
        reference = Reference(PROMPTS[number], zeros, zeros + 1, 8 * ones, ones)
        own = None if margins is None else np.array(margins[number], float)
        run = Followed(reference, np.array(chosen), own, nodes[number])
        out.append(places_of(label, run, np.zeros((size, 10)), dtype))
    return pd.concat(out)


class TestAlongAText:
    def test_the_reference_is_plain_decoding(self, coarse, references):
        for one in references:
            plain = autoregressive(coarse.target, one.prompt.ids, max_new_tokens=40, eos_token_ids=())
            assert one.tokens.tolist() == plain.tokens
            assert (one.margins >= 0).all()
            assert (one.runners_up != one.tokens).all()

    def test_margins_are_those_of_the_rows(self):
        for values, best, runner_up, margin in (
            ([1.0, 5.0, 3.0, 4.5], 1, 3, 0.5),
            ([1.0, 5.0, 5.0, 5.0], 1, 2, 0.0),  # a tie goes to the lowest id, and so does its runner-up
        ):
            verifier = precision.TopTwo()
            scores = Scores(torch.tensor([values], dtype=torch.bfloat16), GREEDY)
            assert verifier.verify(TokenTree.build([0], [-1]), scores, None, RandomSource()).next_token == best
            assert verifier.recorded == [(best, runner_up, 5.0, margin)]

    def test_it_is_the_method_s_own_run_up_to_the_first_flip(self, coarse, references):
        divergences = 0
        for one in precision.comparisons(coarse, variants(METHODS), (2, 8)):
            if one.group not in ("method", "rows"):
                continue
            for reference in references:
                seen = one.run(reference)
                free = self.free_text(coarse, one, reference)
                flips = np.flatnonzero(seen.chosen != reference.tokens[: len(seen.chosen)])
                end = int(flips[0]) + 1 if len(flips) else len(reference.tokens)
                assert free[:end] == seen.chosen[:end].tolist()
                assert len(seen.chosen) == len(seen.margins) == len(reference.tokens)
                divergences += len(flips) > 0
        assert divergences > 10  # otherwise nothing was shown

    @staticmethod
    def free_text(pair, one, reference):
        if one.group == "rows":
            drafter, options = one.run.keywords["drafter"], {}
        else:
            chosen = variant(one.label)
            drafter, options = chosen.method.drafter(chosen.options, pair.draft), {"commit": chosen.options["commit"]}
        out = generate(pair.target, reference.prompt.ids, drafter, max_new_tokens=40, eos_token_ids=(), **options)
        return out.tokens

    def test_a_method_s_own_text_counts_up_to_its_first_other_token(self, references):
        text = references[0].tokens.tolist()

        def runner(tokens):
            return lambda ids, **options: type("Done", (), {"tokens": tokens})

        assert precision.own_text(runner(text), references[0]).chosen.tolist() == text
        other = [*text[:5], text[5] + 1, *text[6:]]
        seen = precision.own_text(runner(other), references[0])
        assert seen.chosen.tolist() == other[:6]
        assert seen.chosen[5] != text[5]
        assert seen.margins is None

    def test_exact_arithmetic_never_flips(self):
        target = random_model("gpt_neox")
        pair = make_pair(target, noisy_copy(target))
        found = audit_precision(
            pair, variants(f"hf-generate,{METHODS}"), PROMPTS[:2], max_new_tokens=12, node_counts=[5]
        )
        for row in found["comparisons"]:
            assert (row["identical"], row["first_flipped"], row["flips"]) == (2, 0, [])
            assert row["noise_ulps"] is None or row["noise_ulps"] < 1e5  # of 2e-15
        assert found["inexact"] == 0
        assert {row["group"] for row in found["comparisons"]} >= {"rows", "prompt", "mask", "engine", "again", "method"}

    def test_other_engines_and_ways_to_read_a_prompt_are_really_others(self, coarse, references, monkeypatch):
        masks = []
        engine = coarse.target.engine

        def spy(ids, positions, mask, cache, keep):
            masks.append((ids.shape[1], mask is None))
            return engine(ids, positions, mask, cache, keep)

        spy.name = "spy"
        monkeypatch.setattr(coarse.target, "engine", spy)
        ways = {one.label: one for one in precision.comparisons(coarse, [], ())}
        masks.clear()  # static buffers have been made
        precision.follow(coarse.target, references[3], precision.NoDraft())
        assert masks == [(12, False)] + [(1, True)] * 39
        masks.clear()
        ways["ar under a mask"].run(references[3])
        assert masks == [(12, False)] + [(1, False)] * 39
        masks.clear()
        ways["ar, prompt by 1"].run(references[3])
        assert [count for count, _ in masks] == [1] * 51
        assert {"ar, eager engine", "ar, lean engine", "ar, static buffers"} <= ways.keys()

    @pytest.mark.parametrize(
        ("methods", "rows", "sentence"),
        [
            ("ar", (1,), "A node count is 1"),
            ("streaming-llm", (2,), "does not promise the target's own text"),
            ("adaptive-tree:carry=true", (2,), "does not promise the target's own text"),
        ],
    )
    def test_what_says_nothing_about_rounding_is_refused(self, coarse, methods, rows, sentence):
        with pytest.raises(ValueError, match=sentence):
            precision.comparisons(coarse, variants(methods), rows)

    def test_a_text_must_fit_with_the_rows_beside_it(self, coarse):
        with pytest.raises(ValueError, match=f"exceeds the context of {CONTEXT}"):
            precision.read_reference(coarse.target, PROMPTS[0], CONTEXT - len(PROMPTS[0].ids))
        with pytest.raises(ValueError, match="no prompts"):
            audit_precision(coarse, variants("ar"), [])


class TestAudit:
    def test_every_flip_is_told_with_its_margins(self, coarse, references, audited):
        by_prompt = {one.prompt.id: one for one in references}
        wide = copy.deepcopy(coarse.target.model).double()
        flips = [flip for row in audited["comparisons"] for flip in row["flips"]]
        assert len(flips) > 10
        for flip in flips[:20]:
            reference, place = by_prompt[flip["prompt"]], flip["index"]
            assert flip["expected"] == reference.tokens[place] != flip["got"]
            assert flip["margin"] == reference.margins[place]
            ids = torch.tensor([[*reference.prompt.ids, *reference.tokens[:place]]])
            with torch.inference_mode():
                logits = wide(ids).logits[0, -1]
            gap = float(logits[flip["expected"]] - logits[flip["got"]])
            assert flip["exact_margin"] == pytest.approx(gap, abs=1e-9)

    def test_counts_agree_with_the_flips(self, audited):
        assert audited["tokens"] == 160 == len(audited["margins"]) == len(audited["exact_margins"])
        assert audited["ties"] == sum(margin == 0 for margin in audited["margins"])
        for row in audited["comparisons"]:
            firsts = [flip for flip in row["flips"] if flip["first"]]
            assert row["first_flipped"] == len(firsts) == row["prompts"] - row["identical"]
            assert row["first_tokens"] == 40 * row["identical"] + sum(flip["index"] + 1 for flip in firsts)
            assert row["flipped"] in (None, len(row["flips"]))
            assert (row["rate"] is None) == (row["label"] == "hf-generate")

    def test_the_same_again_is_the_same(self, audited):
        same = [row for row in audited["comparisons"] if row["group"] == "again"]
        assert [(row["label"], row["flipped"], row["noise_ulps"]) for row in same] == [("ar", 0, 0.0)]
        assert same[0]["error_ulps"] == audited["error_ulps"] > 0

    def test_it_is_json(self, audited):
        assert json.loads(json.dumps(audited, allow_nan=False))["dtype"] == "bfloat16"

    def test_methods_stand_against_plain_decoding_in_as_many_rows(self, audited):
        rows = {row["label"]: row for row in audited["comparisons"]}
        for row in audited["against"]:
            near = {"ar in 4 rows": 4, "ar in 16 rows": 16}
            nodes = rows[row["label"]]["rows"]
            assert row["against"] == min(near, key=lambda name: abs(math.log(near[name] / nodes)))
            assert row["both"] + row["method_alone"] == rows[row["label"]]["flipped"]
            assert row["both"] + row["other_alone"] == rows[row["against"]]["flipped"]
            ratio = rows[row["label"]]["noise_ulps"] / rows[row["against"]]["noise_ulps"]
            assert row["noise_ratio"] == pytest.approx(ratio, rel=0.5)  # in logits, not in units that vary by place
        assert {row["label"] for row in audited["against"]} == {"fixed-tree:depth=3", "lookup-tree"}

    def test_both_figures_are_drawn(self, audited):
        pytest.importorskip("plotly")
        from dynatree_suite.costs.figures import flip_rates, margin_histograms

        fewer = [row for row in audited["comparisons"] if row["label"] != "ar in 4 rows"]
        figure = flip_rates([{**audited, "dtype": "float16", "comparisons": fewer}, audited])
        assert figure.layout.yaxis.categoryarray[::-1][:2] == ("ar in 4 rows", "ar in 16 rows")
        dots = {label: (x, symbol) for trace in figure.data if trace.x[0] is not None and trace.xaxis == "x2"
                for label, x, symbol in zip(trace.y, trace.x, trace.marker.symbol, strict=True)}  # fmt: skip
        for row in audited["comparisons"]:
            known = row["rate"] is not None
            shown = (row["rate"], "circle") if known else (row["first_rate"], "circle-open")
            assert dots[row["label"]] == shown
        shares = [trace for trace in margin_histograms([audited]).data if trace.type == "bar"]
        assert [trace.name for trace in shares] == ["all places", "flips"]
        assert all(sum(trace.y) == pytest.approx(1) for trace in shares)


class TestNumbers:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    def test_spacing_is_the_step_to_the_next_number(self, dtype):
        for value in (1.0, 1.5, 2.0, 3.0, -7.0, 16.0, 0.1, 100.0):
            here = torch.tensor(abs(value), dtype=dtype)
            step = float(spacing(np.array([float(here)]), dtype)[0])
            assert float((here.double() + step).to(dtype)) == float(here) + step
            assert float((here.double() + 0.4 * step).to(dtype)) == float(here)
        assert spacing(np.array([0.0]), dtype)[0] > 0

    def test_exact_intervals(self):
        assert share(0, 10).interval == pytest.approx((0, 1 - 0.025**0.1))
        assert share(10, 10).interval == pytest.approx((0.025**0.1, 1))
        assert share(3, 20).interval == pytest.approx((0.0321, 0.3789), abs=1e-4)
        low, high = share(7, 2000).interval
        assert sum(math.comb(2000, k) * low**k * (1 - low) ** (2000 - k) for k in range(7)) == pytest.approx(0.975)
        assert sum(math.comb(2000, k) * high**k * (1 - high) ** (2000 - k) for k in range(8)) == pytest.approx(0.025)
        for hits, count in ((1, 0), (3, 2), (-1, 5)):
            with pytest.raises(ValueError, match="are no share"):
                share(hits, count)

    def test_a_hazard_counts_tokens_up_to_the_first_flip(self):
        texts = followed([0, 0, 9, 9], [0, 0, 0, 0], margins=[[1, 1, -1, 3], [1, 1, 1, 1]], nodes=(1.0, 3.0))
        row = precision.summary(texts)
        assert (row["prompts"], row["identical"], row["rows"]) == (2, 1, 2.0)
        assert (row["tokens"], row["flipped"], row["rate"]) == (8, 2, 250)
        assert (row["first_tokens"], row["first_flipped"]) == (7, 1)
        assert row["first_rate"] == pytest.approx(1000 / 7)
        assert row["first_interval"] == pytest.approx([1000 * end for end in share(1, 7).interval])
        assert row["noise_ulps"] == pytest.approx(math.sqrt((4 + 4) / 8) / 0.0625)  # bfloat16 near 8

    def test_a_method_known_by_its_text_has_a_hazard_only(self):
        row = precision.summary(followed([0, 9], [0, 0, 0], length=3, dtype=torch.float32))
        assert (row["first_tokens"], row["first_flipped"], row["identical"]) == (5, 1, 1)
        assert row["flipped"] is row["rate"] is row["noise_ulps"] is None

    def test_places_are_paired(self):
        threes, twos = [[3] * 20] * 2, [[2] * 20] * 2
        tree = followed([9, 9, 9, 0] * 5, [0] * 20, label="tree", margins=threes)
        other = followed([9, 0, 0, 0] * 5, [9] + [0] * 19, label="ar in 4 rows", margins=twos)
        quiet = followed([0] * 20, [0] * 20, label="ar in 64 rows", margins=twos)
        places = pd.concat([tree, other, quiet])
        summaries = [
            {"label": "tree", "group": "method", "rows": 7.0},
            {"label": "ar in 4 rows", "group": "rows", "rows": 4.0},
            {"label": "ar in 64 rows", "group": "rows", "rows": 64.0},
            {"label": "hf-generate", "group": "method", "rows": None},
        ]
        (row,) = precision.rates_against(summaries, places)
        assert (row["label"], row["against"]) == ("tree", "ar in 4 rows")
        assert (row["both"], row["method_alone"], row["other_alone"]) == (5, 10, 1)
        assert row["interval"] == share(10, 11).interval
        assert row["exceeds"]
        assert row["ratio"] == pytest.approx(15 / 3)  # against 6 and 0 flips
        assert row["ratio_interval"] == pytest.approx((0, 6))  # the second prompt alone, and the first
        assert row["noise_ratio"] == pytest.approx(2)
        assert precision.rates_against(summaries[:1], places) == []

    def test_without_flips_nothing_is_said_of_their_rates(self):
        none, other = (followed([0, 0], label=label, margins=[[1, 1]]) for label in "ab")
        summaries = [{"label": "a", "group": "method", "rows": 2.0}, {"label": "b", "group": "rows", "rows": 2.0}]
        (row,) = precision.rates_against(summaries, pd.concat([none, other]))
        assert row["interval"] is row["ratio"] is row["ratio_interval"] is row["noise_ratio"] is None
        assert not row["exceeds"]
        flipped = followed([9, 0], label="a", margins=[[1, 2]])
        (row,) = precision.rates_against(summaries, pd.concat([flipped, other]))
        assert (row["method_alone"], row["ratio"], row["ratio_interval"]) == (1, None, [None, None])


class TestCommand:
    def test_a_ratio_without_a_bound_is_told(self):
        row = {"label": "a", "against": "b", "both": 1, "mine": 2, "its": 0, "exceeds": False}
        sentence = precision_command._sentence({**row, "noise_ratio": 2.0, "noise_interval": [1.0, None]})
        assert "1 flips of both, 2 of the method alone, 0 of the other alone" in sentence  # an older record's columns
        assert sentence.endswith("noise ratio 2.00 [1.00, inf].")
        sentence = precision_command._sentence({**row, "noise_ratio": None, "noise_interval": None})
        assert sentence.endswith("noise ratio -.")

    SMALL = ("precision", "--limit", "2", "--max-new-tokens", "6", "--threads", "1", "--rows", "3")

    def test_it_prints_a_table_per_dtype_and_writes_a_record(self, tmp_path, capsys):
        file = tmp_path / "precision.json"
        options = ["--dtypes", "float32,bfloat16", "--methods", "hf-generate,ar,lookup-tree", "--json", str(file)]
        assert main([*self.SMALL, *options]) == 0
        shown, record = capsys.readouterr().out, json.loads(file.read_text())
        assert [one["dtype"] for one in record["dtypes"]] == ["float32", "bfloat16"]
        assert [one["target"]["dtype"] for one in record["dtypes"]] == ["float32", "bfloat16"]
        assert len(record["setup"]["prompts"]) == 2
        assert "float32, engine" in shown
        assert "bfloat16, engine" in shown
        assert "lookup-tree against ar in 3 rows: " in shown
        for label in ("ar in 3 rows", "ar under a mask", "hf-generate", "lookup-tree"):
            assert sum(line.startswith(f"{label} ") for line in shown.splitlines()) >= 2

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (["--dtypes", "int8"], "There is no dtype 'int8'"),
            (["--dtypes", ","], "No dtype was given"),
            (["--rows", "1,2"], "give numbers from 2 to 4096"),
            (["--rows", "two"], "give whole numbers"),
            (["--threads", "0"], "--threads is 0"),
            (["--methods", "nothing"], "There is no method 'nothing'"),
        ],
    )
    def test_bad_input_is_one_sentence_before_models_are_loaded(self, options, sentence, capsys, monkeypatch):
        monkeypatch.setattr("dynatree_suite.cli.arguments.load_pair", lambda *args, **kwargs: pytest.fail("loaded"))
        assert main([*self.SMALL, *options]) == 2
        shown = capsys.readouterr().err
        assert sentence in shown
        assert len(shown.strip().splitlines()) == 1
