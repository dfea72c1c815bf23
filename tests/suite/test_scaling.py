"""Shorter budgets, stretches and memory, on runs made by hand and on real runs."""

import numpy as np
import pytest
from models import noisy_copy, random_model

from dynatree_lib.models.pairs import Pair, load_pair
from dynatree_suite import charts
from dynatree_suite.bench.environment import cache_bytes_per_row, weight_bytes
from dynatree_suite.bench.prompts import BenchPrompt
from dynatree_suite.bench.protocol import Results, run_benchmark
from dynatree_suite.bench.records import Divergence, Header, Records, Run
from dynatree_suite.papers.adaptive import footprint, scaling
from dynatree_suite.papers.published import published

TARGET = random_model("gpt_neox")
PAIR = Pair("random", TARGET, noisy_copy(TARGET), None)
PROMPTS = [BenchPrompt.from_ids(str(n), list(range(1, 9 + n))) for n in range(2)]


def run(method="tree", prompt="a", counts=(1, 3, 2, 4), seconds=(0.5, 0.6, 0.8, 1.2), **more):
    tokens = more.pop("tokens", list(range(sum(counts))))
    return Run(
        method, prompt, 0, 1.3, tokens, [[time, count] for time, count in zip(seconds, counts, strict=True)],
        len(counts), "length", nodes=[4] * len(counts), accepted=[count - 1 for count in counts],
        depths=[3] * len(counts), **more,
    )  # fmt: skip


def results(*runs, budget=10, divergences=()):
    methods = [
        {"label": name, "name": "chain", "options": {}, "lossless": True, "draft": True}
        for name in dict.fromkeys(one.method for one in runs)
    ]
    model = {"weight_bytes": 2 * footprint.MIB, "cache_bytes_per_row": 1024, "vocabulary": 512, "dtype": "float16"}
    setup = {"methods": methods, "max_new_tokens": budget, "reference": None, "sampling": {"temperature": 0.0}}
    records = Records(Header({}, {**setup, "target": model, "draft": {**model, "weight_bytes": footprint.MIB}}))
    for one in (*runs, *divergences):
        records.add(one)
    return Results(records)


class TestCutting:
    def test_a_cut_inside_an_iteration_keeps_its_time_and_drops_its_surplus(self):
        short = scaling.cut_run(run(kv_entries=30), 5)
        assert short.tokens == [0, 1, 2, 3, 4]
        assert short.emissions == [[0.5, 1], [0.6, 3], [0.8, 1]]
        assert (short.seconds, short.iterations, short.accepted) == (0.8, 3, [0, 2, 0])
        assert (len(short.nodes), len(short.depths), short.kv_entries) == (3, 3, 25)

    def test_the_whole_length_is_the_run_itself(self):
        assert scaling.cut_run(run(), 10) == run()

    def test_counters_are_shared_out_by_what_they_count(self):
        whole = run(counters={"draft_forwards": 8, "draft_nodes": 20, "evictions": 12})
        whole.depths[:], whole.nodes[:] = [1, 1, 2, 4], [2, 3, 5, 10]
        assert scaling.cut_run(whole, 4).counters == {"draft_forwards": 2, "draft_nodes": 5, "evictions": 6}

    def test_a_run_whose_emissions_are_not_its_iterations_is_refused(self):
        odd = Run("hf", "a", 0, 1.0, [1, 2], [[0.5, 2]], 2, "length")
        with pytest.raises(ValueError, match="1 emissions for 2 iterations"):
            scaling.cut_run(odd, 1)

    @pytest.mark.parametrize("tokens", [0, 11])
    def test_lengths_that_were_not_run_are_refused(self, tokens):
        with pytest.raises(ValueError, match="from 1 to 10"):
            scaling.by_length(results(run()), [tokens])

    def test_divergences_behind_the_cut_do_not_count(self):
        far, near = (Divergence("tree", prompt, 0, at, 1, 2, 0.0, True) for prompt, at in (("a", 7), ("b", 3)))
        short = scaling.shortened(results(run(), run(prompt="b"), divergences=(far, near)), 5)
        assert list(short.records.divergences.values()) == [near]
        assert short.records.header.setup["max_new_tokens"] == 5

    def test_a_real_run_cut_has_the_tokens_and_counts_of_a_shorter_one(self):
        methods = ["hf-generate", "ar", "chain:length=3", "fixed-tree:depth=4,branching=2", "adaptive-tree"]
        long = run_benchmark(PAIR, methods, PROMPTS, max_new_tokens=40)
        short = run_benchmark(PAIR, methods, PROMPTS, max_new_tokens=17)
        for key, cut in scaling.shortened(long, 17).records.runs.items():
            own = short.records.runs[key]
            assert (cut.tokens, cut.iterations, cut.accepted) == (own.tokens, own.iterations, own.accepted)
            if own.nodes:
                assert cut.nodes[:-4] == own.nodes[:-4]  # near its end a run drafts no deeper than it needs
                assert cut.counters.get("draft_forwards", 0) == sum(cut.depths)

    def test_rows_of_every_length_carry_it(self):
        rows = scaling.by_length(results(run(), run("ar")), [4, 10])
        assert [(row["new_tokens"], row["method"]) for row in rows] == [
            (4, "tree"), (4, "ar"), (10, "tree"), (10, "ar"),
        ]  # fmt: skip
        assert [row["tokens_per_iteration"] for row in rows[::2]] == [2.0, 2.5]


class TestStretches:
    def test_an_iteration_belongs_where_it_begins_and_the_first_is_left_out(self):
        first, second = scaling.stretches(results(run()), 5).to_dict("records")
        assert (first["position"], first["iterations"], first["tokens"], first["nodes"]) == (2.5, 2, 5, 8)
        assert first["seconds"] == pytest.approx(0.3)
        assert (second["position"], second["iterations"], second["tokens"]) == (7.5, 1, 4)

    def test_labels_choose(self):
        both = results(run(), run("ar"))
        assert set(scaling.stretches(both, 5, ["ar"])["method"]) == {"ar"}
        with pytest.raises(ValueError, match="at least 1 token"):
            scaling.stretches(both, 0)

    def test_repeats_are_those_that_the_text_had_before(self):
        tokens = [1, 2, 3, 4, 1, 2, 3, 4, 9, 1, 2, 3, 4]
        assert np.flatnonzero(scaling.repeats_before(tokens)).tolist() == [7, 12]
        assert not scaling.repeats_before([1, 1, 1]).any()

    def test_pooling_sums_over_prompts_and_compares_at_the_same_place(self):
        slow = [run("ar", prompt, (1,) * 10, np.arange(1, 11) * 0.1) for prompt in "ab"]
        rows = scaling.stretches(results(run(), run(prompt="b"), *slow), 5)
        tree = [row for row in scaling.pooled(rows, reference="ar") if row["method"] == "tree"]
        assert [row["tokens_per_iteration"] for row in tree] == [2.5, 4.0]
        assert tree[0]["iteration_cost"] == pytest.approx((0.3 / 2) / 0.1)
        assert tree[0]["tokens_per_iteration_interval"] == (2.5, 2.5)
        assert tree[0]["nodes_per_iteration"] == 4
        assert "iteration_cost" not in scaling.pooled(rows)[0]

    def test_growth_and_the_growth_of_a_gain(self):
        flat = [run("flat", prompt, (1, 2, 2, 2, 2, 1), np.arange(1, 7)) for prompt in "ab"]
        rows = scaling.stretches(results(run(), run(prompt="b"), *flat), 5)
        growth = scaling.late_over_early(rows, "tree", 5)
        assert growth.value == growth.low == growth.high == pytest.approx(4 / 2.5)
        assert scaling.late_over_early(rows, "flat", 5).value == pytest.approx((5 / 3) / 2)
        assert scaling.late_over_early(rows, "tree", 5, without="flat").value == pytest.approx(1.6 / (5 / 6))

    def test_a_text_without_late_stretches_gives_no_estimate_and_leaves_claims_open(self):
        rows = scaling.stretches(results(run(), run("flat")), 5)
        for growth in (scaling.late_over_early(rows, "tree", 50), scaling.late_over_early(rows, "tree", 50, "flat")):
            assert (str(growth), growth.compared(), growth.above()) == ("no estimate", "around", None)

    def test_classes_of_repetition(self):
        again = run(tokens=[1, 2, 3, 4, 5, 1, 2, 3, 4, 5])
        rows = scaling.by_repetition(scaling.stretches(results(again), 5), (0.25, 0.5), 5)
        assert [(row["repetition"], row["part"]) for row in rows] == [
            ("0% to 25%", "first 5 tokens"), ("25% to 50%", "after 5 tokens"),
        ]  # fmt: skip


class TestMemory:
    @pytest.mark.parametrize(("layers", "width", "count"), [(6, 512, 70_426_624), (32, 2560, 2_775_208_960)])
    def test_parameters_are_pythias(self, layers, width, count):
        assert footprint.ModelShape(layers, width, 50_304).parameters == count

    def test_a_shape_agrees_with_a_loaded_model(self):
        draft = load_pair("tiny").draft
        config = draft.model.config
        shape = footprint.ModelShape(config.num_hidden_layers, config.hidden_size, config.vocab_size, tied=True)
        assert shape.parameters == draft.parameters
        assert shape.kv_entry(4) * footprint.MIB == cache_bytes_per_row(draft)
        buffers = sum(one.nbytes for one in draft.model.buffers())
        assert shape.weights(4) * footprint.MIB == weight_bytes(draft) - buffers
        assert shape.logits(4) * footprint.MIB == 4 * config.vocab_size

    def test_footprint_adds_up(self):
        tree, plain = footprint.footprint(results(run(kv_entries=1024), run("ar", kv_entries=512)))
        assert (tree["weights"], tree["cache"], tree["logits"]) == (3, 2, 5 * 1024 / footprint.MIB)
        assert tree["computed"] == sum(tree[name] for name in ("weights", "cache", "logits"))
        assert tree["change"] == pytest.approx(100 * (tree["computed"] / plain["computed"] - 1))
        assert tree["peak"] is None

    def test_table_5_has_measured_peaks_over_those_of_plain_decoding(self):
        printed = published("dynatree-adaptive").table(5).rows
        sizes = {"ar": 100, "chain (K=5)": 104, "chain (K=8)": 110, "fixed-tree (D=8, B=3)": 130, "adaptive-tree": 90}
        runs = {
            name: results(
                *(run(label, peak_device_bytes=(7 + size + more) * footprint.MIB) for label, size in sizes.items())
            )
            for name, more in (("pg-19", 2), ("wikitext-2", 0))
        }
        plain, chain, fixed, adaptive = footprint.like_table_5(printed, runs, held=7 * footprint.MIB)
        assert (plain["pg19_mib"], plain["wikitext2_mib"], plain["average_mib"]) == (102, 100, 101)
        assert (chain["pg19_mib"], chain["wikitext2_mib"]) == (106, 110)  # K = 5 on PG-19, 8 on WikiText-2
        assert [row["change_percent"] for row in (plain, fixed)] == [0, pytest.approx(100 * (131 / 101 - 1))]
        assert adaptive["method"] == "adaptive-tree"
        assert adaptive["change_percent"] < 0 <= adaptive["computed_percent"]

    @pytest.mark.parametrize("paper", ["dynatree-adaptive", "dynatree-adaptive-earlier"])
    def test_table_5_on_a_cpu_has_what_shapes_say_alone(self, paper):
        printed = published(paper).table(5).rows
        labels = {footprint.setting(row, name) for row in printed for name in footprint.DATA_SETS}
        runs = dict.fromkeys(footprint.DATA_SETS, results(*map(run, labels)))
        plain, *others = footprint.like_table_5(printed, runs)
        assert [row["method"] for row in others] == ["chain", "fixed-tree", "adaptive-tree"]
        assert all(row["average_mib"] is row["change_percent"] is None for row in (plain, *others))
        assert plain["computed"] == sum(plain[part] for part in ("weights", "cache", "logits"))


def test_panels_share_a_legend_and_show_what_they_have():
    points = [(name, length) for name in ("ar", "chain") for length in (1, 2)]
    rows = [{"method": name, "T": t, "a": t, "a_interval": [t - 1, t + 1], "b": 2 * t} for name, t in points]
    published = [{"method": "chain", "T": 3, "a": 5}]
    figure = charts.line_panels(rows, "T", {"a": "first", "b": "second"}, published=published, references={"a": 1})
    assert [(trace.name, trace.xaxis, trace.showlegend) for trace in figure.data] == [
        ("ar", "x", True), ("chain", "x", True), ("chain (published)", "x", True),
        ("ar", "x2", False), ("chain", "x2", False),
    ]  # fmt: skip
    assert [note.text for note in figure.layout.annotations] == ["first", "second"]
    assert len(figure.layout.shapes) == 1
    assert figure.data[0].error_y.array == (1, 1)


def test_a_crowded_logarithmic_axis_names_round_numbers_and_another_its_values():
    rows = [{"method": "ar", "T": length, "a": 1, "b": 1 if length < 50 else None} for length in range(20, 120, 12)]
    figure = charts.line_panels(rows, "T", {"a": "many", "b": "few"}, log_x=True)
    assert figure.layout.xaxis.tickvals == (20, 50, 100)
    assert figure.layout.xaxis2.tickvals == (20, 32, 44)


def test_methods_that_carry_are_not_read_off_a_longer_run():
    """Their later texts begin with what longer ones taught."""
    whole = results(run())
    assert scaling.shortened(whole, 5).records.runs
    whole.records.header.setup["methods"][0]["options"]["carry"] = True
    with pytest.raises(ValueError, match="carries what it learns"):
        scaling.shortened(whole, 5)
