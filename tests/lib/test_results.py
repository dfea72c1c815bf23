"""What `generate` returns: it compares, prints, shows and pickles itself."""

import copy
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

import dynatree_lib as dt
from dynatree_lib import decoding
from dynatree_lib.models.texts import TextStream, pieces
from dynatree_lib.plots import theme

PAIR = dt.load_pair("tiny")
PROMPT = "def read_lines(path):"
DRAFTERS = [dt.FixedTree(PAIR.draft), dt.SampledTree(PAIR.draft), dt.LookupTree(PAIR.draft), dt.ProgressiveTree(),
            dt.NoDraft(), dt.AdaptiveTree(PAIR.draft)]  # fmt: skip
WARM = dt.Sampling(1.0)


def written(drafter=DRAFTERS[0], **options):
    return dt.generate(PAIR.target, PROMPT, drafter, **{"max_new_tokens": 40, **options})


OUT = written()


# ------------------------------------------------------------------------------------------------------------ equality
@pytest.mark.parametrize("drafter", DRAFTERS, ids=lambda drafter: drafter.name)
@pytest.mark.parametrize("sampling", [None, WARM], ids=["greedy", "sampled"])
def test_equal_runs_are_equal(drafter, sampling):
    first, second = (written(drafter, sampling=sampling, seed=3) for _ in range(2))
    assert first == second
    assert first.iterations == second.iterations
    assert [hash(one.tree) for one in first.iterations] == [hash(one.tree) for one in second.iterations]


def test_other_runs_are_not():
    assert written(max_new_tokens=39) != OUT
    assert written(dt.FixedTree(PAIR.draft, depth=2)) != OUT  # the same text by other trees
    assert written(dt.FixedTree(PAIR.draft, depth=2)).tokens == OUT.tokens
    assert OUT.tokens != OUT
    assert written(keep_state=False) == OUT


@pytest.mark.parametrize("name", ["tokens", "parents", "logprobs", "draws"])
def test_trees_differ_in_any_of_their_arrays(name):
    parts = {"tokens": [4, 5, 6], "parents": [-1, 0, 0], "logprobs": [0.0, -1.0, -2.0], "draws": [0, 0, 0]}
    tree = dt.TokenTree.build(**parts)
    assert tree == dt.TokenTree.build(**parts)
    assert tree != dt.TokenTree.build(**{**parts, name: [*parts[name][:2], 1]})
    assert tree != dt.TokenTree.build([4, 5], [-1, 0])
    assert tree != parts
    assert len({tree, dt.TokenTree.build(**parts)}) == 1


# -------------------------------------------------------------------------------------------------------------- a line
def test_results_print_themselves_on_a_line():
    count = len(OUT.iterations)
    rate = f"{len(OUT.tokens) / count:.2f} tokens per iteration"
    assert repr(OUT) == f"Generation(40 tokens in {count} iterations, {rate}, finish reason 'length')"
    one = dt.TokenTree.build([4, 5, 6], [-1, 0, 1])
    assert repr(one) == "TokenTree(2 nodes below node 0, 2 levels)"
    told = repr(decoding.Iteration(one, decoding.Verdict((1,), 9)))
    assert told == "Iteration(2 nodes drafted in 2 levels, 1 accepted, 2 tokens added)"
    assert all(len(repr(thing)) < 120 for thing in (OUT, *OUT.iterations, *(one.tree for one in OUT.iterations)))
    plain = dt.autoregressive_fast(PAIR.target, PROMPT, max_new_tokens=1)
    assert repr(plain) == "Generation(1 token, finish reason 'length')"


def test_a_text_knows_its_tokenizer():
    assert OUT.text() == OUT.text(PAIR.tokenizer) == PAIR.tokenizer.decode(OUT.tokens)
    assert dt.autoregressive_fast(PAIR.target, PROMPT, max_new_tokens=40).text() == OUT.text()
    assert dt.generate_batch(PAIR.target, [PROMPT], DRAFTERS[0], max_new_tokens=40)[0].text() == OUT.text()
    toy = dt.autoregressive(dt.ToyModel.random(6), [1], max_new_tokens=3)
    with pytest.raises(ValueError, match="no tokenizer to decode it; give it"):
        toy.text()


# ----------------------------------------------------------------------------------------------------------- notebooks
def shown_text(page):
    """The text that a browser shows of the coloured part, without the signs of line ends."""
    body = page.partition("<pre")[2].partition(">")[2].partition("</pre>")[0]
    plain = re.sub(r"<[^>]*>", "", body).replace("⏎", "")
    for sign, name in (("<", "lt"), (">", "gt"), ('"', "#34"), ("'", "#39"), ("&", "amp")):
        plain = plain.replace(f"&{name};", sign)
    return plain


def test_a_notebook_shows_the_text_by_iteration_with_its_figures():
    page = OUT._repr_html_()
    assert shown_text(page) == OUT.text()
    assert page.count("bonus token") == len(OUT.iterations) + 1  # and the legend
    assert OUT.counts.replace("'", "&#39;") in page
    assert not re.search(r"https?://|src=|<script", page)


def test_a_text_without_iterations_is_shown_plainly():
    out = dt.autoregressive_fast(PAIR.target, PROMPT, max_new_tokens=30)
    page = out._repr_html_()
    assert shown_text(page) == out.text()
    assert "bonus token" not in page
    assert shown_text(dt.autoregressive(dt.ToyModel.random(6), [1], max_new_tokens=3)._repr_html_()).strip()


def test_the_style_says_what_is_dark_and_repaints_the_text_alone():
    style = OUT._repr_html_().partition("<style>")[2].partition("</style>")[0]
    said, silent = style.split("@media (prefers-color-scheme: dark) {")
    assert "data-jp-theme-light" in said
    assert "prefers-color-scheme" not in said
    assert f"background: {theme.DARK_GROUND}" in silent  # such a page may stay white
    assert style.count("{") == style.count("}")
    assert "plotly" not in style


def test_where_plots_cannot_draw_the_line_is_shown():
    code = "import sys; sys.modules['plotly'] = None\nimport dynatree_lib as dt\n"
    code += "out = dt.autoregressive(dt.ToyModel.random(6), [1], max_new_tokens=3)\nprint(out._repr_html_(), out)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100).stdout
    assert told == "None Generation(3 tokens in 3 iterations, 1.00 tokens per iteration, finish reason 'length')\n"


# ------------------------------------------------------------------------------------------------------------- pickles
def test_a_pickle_holds_everything_but_the_state():
    data = pickle.dumps(OUT)
    again = pickle.loads(data)
    assert again == OUT
    assert again.text() == OUT.text()
    assert again._repr_html_() == OUT._repr_html_()
    assert again.state is None
    assert OUT.state is not None
    assert copy.deepcopy(OUT) == OUT
    assert len(data) < 2**20 < sum(weight.nbytes for weight in PAIR.target.model.parameters())


def test_pickles_of_texts_without_a_tokenizer_are_small():
    out = dt.autoregressive(dt.ToyModel.random(6), [1], max_new_tokens=20)
    assert pickle.loads(pickle.dumps(out)) == out
    assert len(pickle.dumps(out)) < 20_000


# ---------------------------------------------------------------------------------------------------------------- texts
@pytest.mark.parametrize(
    "text", ["naïve — ünïcödé\n" * 30, "def f(x):\n\treturn  x\n" * 20, "日本語のテキスト🙂" * 25, ""]
)
def test_texts_of_tokens_join_to_the_decoded_text(text):
    tokens = PAIR.tokenizer(text).input_ids
    assert "".join(pieces(tokens, PAIR.tokenizer)) == PAIR.tokenizer.decode(tokens) == text
    cut = tokens[: len(tokens) * 2 // 3]  # perhaps inside a character
    assert "".join(pieces(cut, PAIR.tokenizer)) == PAIR.tokenizer.decode(cut)


def test_the_text_of_a_token_takes_no_longer_late_in_a_text():
    class Counting:
        longest = 0

        def decode(self, tokens):
            self.longest = max(self.longest, len(tokens))
            return PAIR.tokenizer.decode(tokens)

    counting, tokens = Counting(), np.random.default_rng(0).integers(5, 500, 400).tolist()
    stream = TextStream(counting)
    assert "".join([*map(stream.add, tokens), stream.rest()]) == PAIR.tokenizer.decode(tokens)
    assert counting.longest <= 64 + 4
