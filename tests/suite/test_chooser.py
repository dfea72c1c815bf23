"""The map of methods: where each stands, the front, and which one to take."""

from dataclasses import replace

import pytest

from dynatree_suite import charts
from dynatree_suite.bench.chooser import EVERYTHING, KINDS, advice, choose, front, map_rows
from dynatree_suite.bench.methods import variants
from dynatree_suite.bench.records import Header, Records, Run
from dynatree_suite.explore import Choice

SPECS = (
    "hf-generate,ar-fast,prompt-lookup,chain,union-tree:first=suffix-tree,second=token-recycling,union-tree,"
    "auto:alone=true,auto,chain:skip=1/2"
)


def planted(speeds, tasks=("writing", "coding", "rag"), prompts=6):
    """Runs of 100 tokens after the first, which takes 9 s: method -> (tokens per second, iterations)."""
    methods = [
        {"label": one.label, "name": one.name, "options": one.options, "draft": one.method.draft}
        for one in variants(SPECS)
        if one.label in speeds
    ]
    listed = [{"id": f"{task}-{number}", "task": task} for task in tasks for number in range(prompts)]
    setup = {"methods": methods, "prompts": listed, "target": {"engine": "compiled"}, "sampling": {"temperature": 0.0}}
    records = Records(Header({}, setup))
    for label, (rate, iterations) in speeds.items():
        for prompt in listed:
            end = 9 + 100 / rate[prompt["task"]] if isinstance(rate, dict) else 9 + 100 / rate
            committed = [1, *[100 // iterations] * iterations]
            records.add(Run(label, prompt["id"], 0, end, [1] * 101, [[9, 1], [end, 100]], len(committed), "length"))
    return records


def found(**speeds):
    return map_rows({"now": planted({"ar-fast": (10, 100), **speeds})})


def test_a_method_stands_at_tokens_and_cost_of_its_iterations():
    rows = found(chain=(20, 25), **{"hf-generate": (5, 100)})
    assert {row["method"] for row in rows} == {"ar-fast", "chain"}  # hf-generate shows no iterations
    assert [row["kind"] for row in rows if row["method"] == "chain"] == [EVERYTHING, *KINDS]
    for row in rows:
        if row["method"] == "chain":  # 101 tokens in 26 iterations at twice the speed
            assert row["speed"] == pytest.approx(2)
            assert row["tokens"] == pytest.approx(101 / 26)
            assert row["cost"] == pytest.approx(2)  # 25 iterations in 5 s, where plain decoding takes 0.1 s a token
            assert row["prompts"] == (18 if row["kind"] == EVERYTHING else 6)
        else:
            assert (row["tokens"], row["cost"], row["speed"]) == pytest.approx((1, 1, 1))


def test_the_cost_is_that_of_iterations_after_the_first_on_undisturbed_prompts():
    records = planted({"ar-fast": (10, 100), "chain": (20, 25), "prompt-lookup": (20, 25)})
    key = "chain", "coding-0", 0
    run = records.runs[key]
    times = [[9, 5], [9 + 5000 / 20, 96]]  # a thousand times as slow, and five tokens come first
    records.runs[key] = replace(run, seconds=times[1][0], emissions=times)
    rows = {row["method"]: row for row in map_rows({"now": records}) if row["kind"] == EVERYTHING}
    assert records.frame()["disturbed"].sum() == 1
    assert rows["chain"]["cost"] == rows["prompt-lookup"]["cost"] == pytest.approx(2)


def test_what_a_method_needs():
    labels = {
        "chain": "draft model", "prompt-lookup": "no draft model", "union-tree": "draft model",
        "union-tree:first=suffix-tree,second=token-recycling": "no draft model",
        "auto:alone=true": "no draft model", "auto": "draft model",
        "chain:skip=1/2": "no draft model",
    }  # fmt: skip
    rows = found(**dict.fromkeys(labels, (20, 50)))
    assert {row["method"]: row["group"] for row in rows} == {"ar-fast": "plain", **labels}


def test_the_front_has_what_no_other_beats():
    points = {
        "plain": (1, 1),
        "worse": (1, 1.2),
        "chain": (2, 1.3),
        "same cost": (1.9, 1.3),
        "tree": (3, 2),
        "dear": (3, 3),
    }
    rows = [{"method": name, "tokens": tokens, "cost": cost} for name, (tokens, cost) in points.items()]
    assert [row["method"] for row in front(rows)] == ["plain", "chain", "tree"]
    assert front([]) == []


def test_the_answer_depends_on_the_kind_of_task_and_on_what_there_is():
    copies = {"writing": 8, "coding": 9, "rag": 30}
    rows = found(chain=(20, 25), **{"prompt-lookup": (copies, 30)})
    chosen = choose(rows, run="now", kind="open-ended")
    assert [row["method"] for row in chosen] == ["chain", "ar-fast", "prompt-lookup"]
    assert advice(chosen) == "Take `chain`: 2.00 [2.00, 2.00] times plain decoding."
    assert choose(rows, run="now", kind="from a given text")[0]["method"] == "prompt-lookup"
    alone = choose(rows, run="now", kind="open-ended", draft=False)
    assert [row["method"] for row in alone] == ["ar-fast", "prompt-lookup"]
    assert advice(alone).startswith("Decode plainly")


def test_methods_that_the_interval_does_not_tell_apart_are_named():
    rows = [
        {"run": "r", "kind": EVERYTHING, "method": name, "group": "draft model", "speed": speed, "interval": interval}
        for name, speed, interval in (("a", 1.5, [1.3, 1.7]), ("b", 1.4, [1.2, 1.6]), ("c", 1.3, [1.2, 1.4]))
    ]
    chosen = choose(rows, run="r")
    assert [row["level"] for row in chosen] == [True, True, False]
    assert advice(chosen) == "Take `a`: 1.50 [1.30, 1.70] times plain decoding; not told from it: `b`."
    doubtful = [{**rows[0], "interval": [0.9, 1.7]}]
    assert advice(choose(doubtful, run="r")).startswith("Decode plainly")


def test_advice_to_decode_plainly_names_the_methods_that_it_is_about():
    rows = found(**{"chain": (20, 25), "prompt-lookup": (8, 30)})
    alone = advice(choose(rows, run="now", draft=False))
    assert alone.endswith("of `prompt-lookup`, the fastest is not faster beyond doubt.")
    nothing = advice(choose(found(chain=(20, 25)), run="now", draft=False))
    assert nothing.startswith("No method of this run comes into question but plain decoding")


@pytest.mark.parametrize(("asked", "said"), [({"run": "x"}, "run 'x'"), ({"run": "now", "kind": "poems"}, "'poems'")])
def test_what_is_not_on_the_map_is_refused_with_what_is(asked, said):
    with pytest.raises(ValueError, match=said) as error:
        choose(found(), **asked)
    assert "runs are now, kinds are all tasks, open-ended" in str(error.value)


def test_a_run_without_plain_decoding_is_refused():
    with pytest.raises(ValueError, match="has no method 'ar-fast' to compare with; it has chain"):
        map_rows({"now": planted({"chain": (20, 25)})})


def test_figures_have_every_method():
    rows = found(chain=(20, 25), **{"prompt-lookup": (12, 70)})
    drawn = charts.method_plane(choose(rows, run="now"))
    named = {text.strip() for trace in drawn.data if trace.text for text in trace.text}
    assert named == {"ar-fast", "chain", "prompt-lookup"}
    drawn = charts.method_speeds(rows)
    assert {text for trace in drawn.data for text in trace.y} == named
    assert [note.text for note in drawn.layout.annotations[:4]] == [EVERYTHING, *KINDS]


def test_the_choice_answers_anew():
    choice = Choice(found(chain=(20, 25), **{"prompt-lookup": ({"writing": 8, "coding": 9, "rag": 30}, 30)}))
    assert "Take chain" in choice.answer.value
    choice.kind.value = "from a given text"
    assert "Take prompt-lookup" in choice.answer.value
    choice.kind.value, choice.draft.value = "open-ended", False
    assert "Decode plainly" in choice.answer.value
    assert "chain" not in choice.table.value
    assert choice.figure.outputs
    with pytest.raises(ValueError, match="no row to choose from"):
        Choice([])


def test_labels_of_close_points_stand_apart_and_inside():
    from dynatree_suite.charts.methods import label_places, short_names

    def row(method, cost, tokens):
        return {"method": method, "cost": cost, "tokens": tokens}

    rows = [row("ar-fast", 1, 1), row("union-tree:max_nodes=64", 4.2, 3.4), row("token-recycling", 4.0, 2.25),
            row("token-recycling:context=1", 4.3, 2.07), row("suffix-tree", 4.6, 2.06),
            row("union-tree:first=a,second=b", 7.4, 2.7)]  # fmt: skip
    names = short_names([one["method"] for one in rows])
    assert names["ar-fast"] == "ar-fast"
    assert names["union-tree:first=a,second=b"] == "union-tree: first=a,secon…"
    places = label_places(rows, names, {"ar-fast", "union-tree:max_nodes=64"}, (9.6, 4.6))
    assert places["ar-fast"] == "middle left"
    assert places["union-tree:first=a,second=b"] != "middle right"  # it would leave the figure
    assert places["token-recycling:context=1"] != "middle right"  # the next point is there
    assert places["suffix-tree"] != "middle left"
