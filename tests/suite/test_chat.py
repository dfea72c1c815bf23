"""`dynatree chat`, driven by scripted lines: its texts are those of plain decoding, its caches are kept."""

import io
import re
import signal
from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer

import dynatree_lib as dt
from dynatree_lib.paths import data_path
from dynatree_suite.cli import arguments, chat, conversation, main
from dynatree_suite.cli.conversation import Conversation

PAIR = dt.load_pair("tiny")
TURNS = ["Write a function.", "Shorter, please.", "Now with types."]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>\n{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<assistant>{% endif %}"
BARE = TEMPLATE.replace("</s>", "")  # an answer ends with a line end here
FIXED = ("--method", "fixed-tree")  # the default's iterations follow from measured costs
CLIPPED = TEMPLATE.replace("m.content", "m.content[:12]")  # it writes earlier answers otherwise than they were decoded


def templated(template, **changes):
    tokenizer = AutoTokenizer.from_pretrained(data_path("tiny", "target"))
    tokenizer.chat_template = template
    return replace(PAIR, tokenizer=tokenizer, target=PAIR.target.altered(tokenizer=tokenizer, **changes))


def talk(pair=PAIR, method="fixed-tree", budget=24, **options):
    return Conversation(pair, method, max_new_tokens=budget, sampling=dt.Sampling(), seed=0, **options)


def ignored(tokens):
    """Nobody listens."""


@pytest.fixture
def calls(monkeypatch):
    """What `generate` was given, call by call: the prompt, and whether an earlier text went on."""
    seen = []

    def noted(target, prompt, drafter, **options):
        seen.append((prompt, options["state"] is not None))
        return dt.generate(target, prompt, drafter, **options)

    monkeypatch.setattr(conversation, "generate", noted)
    return seen


def plain(pair, ids, budget):
    return dt.autoregressive(pair.target, ids, max_new_tokens=budget).tokens


# ------------------------------------------------------------------------------------------------------- conversations
@pytest.mark.parametrize("template", [TEMPLATE, BARE, CLIPPED], ids=["ended", "bare", "clipped"])
def test_every_answer_is_plain_decoding_after_the_templates_text(template, calls):
    pair, said = templated(template), []
    talked = talk(pair)
    for turn in TURNS:
        said.append({"role": "user", "content": turn})
        text = pair.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        out = talked.answer(turn, ignored)
        before = talked.ids[: len(talked.ids) - len(out.tokens)]
        assert pair.tokenizer.decode(before) == text
        assert out.tokens == plain(pair, before, 24)
        said.append({"role": "assistant", "content": out.text()})
        assert talked.messages == said
    kept = template != CLIPPED
    assert [goes_on for _, goes_on in calls] == [False, kept, kept]


def test_a_turn_reads_what_is_new_alone(calls):
    pair = templated(TEMPLATE)
    talked = talk(pair)
    for turn in TURNS:
        talked.answer(turn, ignored)
    for turn, (prompt, _) in zip(TURNS[1:], calls[1:], strict=True):
        assert pair.tokenizer.decode(prompt) == f"</s>\n<user>{turn}</s>\n<assistant>"


def test_an_answer_that_ended_is_not_ended_twice(calls):
    line_end = PAIR.tokenizer("\n").input_ids[0]
    pair = templated(BARE, eos_token_ids=(line_end,))
    talked = talk(pair)
    first = talked.answer("def f(x): # comment", ignored)
    assert (first.finish_reason, first.tokens[-1]) == ("eos", line_end)
    assert talked.messages[-1]["content"] == pair.tokenizer.decode(first.tokens[:-1])
    talked.answer("Again.", ignored)
    prompt, goes_on = calls[1]
    assert goes_on
    assert pair.tokenizer.decode(prompt) == "<user>Again.\n<assistant>"


def test_without_a_template_the_text_goes_on_line_by_line(calls):
    talked = talk()
    first = talked.answer("def f(x):", ignored)
    second = talked.answer("    return", ignored)
    ids = PAIR.tokenizer("def f(x):").input_ids
    assert first.tokens == plain(PAIR, ids, 24)
    gap = "" if first.text().endswith("\n") else "\n"
    ids += [*first.tokens, *PAIR.tokenizer(gap + "    return").input_ids]
    assert second.tokens == plain(PAIR, ids, 24)
    assert talked.ids == [*ids, *second.tokens]
    assert [goes_on for _, goes_on in calls] == [False, True]
    assert talked.messages == []


@pytest.mark.parametrize("pair", [PAIR, templated(TEMPLATE)], ids=["plain", "template"])
def test_an_empty_line_lets_a_cut_answer_go_on(pair, calls):
    talked, whole = talk(pair, budget=8), talk(pair, budget=16)
    talked.answer("def f(x):", ignored)
    assert talked.cut
    talked.answer("", ignored)
    whole.answer("def f(x):", ignored)
    assert (talked.ids, talked.messages) == (whole.ids, whole.messages)
    assert calls[1] == ([], True)


@pytest.mark.parametrize("pair", [PAIR, templated(TEMPLATE)], ids=["plain", "template"])
def test_another_method_goes_on_with_what_was_said(pair, calls):
    talked, same = talk(pair), talk(pair)
    for one in (talked, same):
        one.answer("def f(x):", ignored)
        if one is talked:
            one.choose("chain:length=3,verifier=greedy")
        one.answer("    return x", ignored)
    assert talked.ids == same.ids
    assert [goes_on for _, goes_on in calls] == [False, False, False, True]
    assert calls[1][0][:5] == same.ids[:5]  # everything is read anew


def test_an_interrupted_answer_is_kept_and_can_go_on(calls):
    talked, whole = talk(budget=40), talk(budget=40)
    whole.answer("def f(x):", ignored)
    answer = []

    def stop(tokens):
        answer.extend(tokens)
        if len(answer) > 6:
            signal.raise_signal(signal.SIGINT)

    out = talked.answer("def f(x):", stop)
    assert out.finish_reason == "interrupted"
    assert out.tokens == answer
    assert talked.cut
    talked.answer("", ignored)
    assert [goes_on for _, goes_on in calls[1:]] == [False, False]
    assert talked.ids[: len(whole.ids)] == whole.ids


def test_a_call_that_does_not_come_back_forgets_the_caches_alone(monkeypatch, calls):
    talked = talk()
    talked.answer("def f(x):", ignored)
    ids = list(talked.ids)

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(conversation, "generate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            talked.answer("more", ignored)
    assert talked.ids == ids
    out = talked.answer("    return", ignored)
    assert out.tokens == plain(PAIR, talked.ids[: -len(out.tokens)], 24)
    assert [goes_on for _, goes_on in calls] == [False, False]


def test_a_system_message_needs_a_template():
    talked = talk(templated(TEMPLATE), system="Be brief.")
    talked.answer("Hello", ignored)
    assert PAIR.tokenizer.decode(talked.ids).startswith("<system>Be brief.</s>\n<user>Hello</s>\n<assistant>")
    talked.reset()
    assert talked.messages == [{"role": "system", "content": "Be brief."}]
    with pytest.raises(ValueError, match="no chat template to put --system into"):
        talk(system="Be brief.")


# -------------------------------------------------------------------------------------------------------- the terminal
class Terminal(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def chatting(monkeypatch, capsys):
    """Run `dynatree chat` with these lines and options; return what it prints."""

    def run(*lines, options=(), pair=PAIR, terminal=None):
        monkeypatch.setattr(arguments, "load_pair", lambda *args, **kwargs: pair)
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        if terminal is not None:
            monkeypatch.setattr("sys.stdout", terminal)
        assert main.main(["chat", "--max-new-tokens", "16", *options]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out if terminal is None else terminal.getvalue()

    return run


def test_an_answer_is_the_plain_text_and_its_figures(chatting):
    printed = chatting("def f(x):", options=FIXED)
    out = dt.generate(PAIR.target, "def f(x):", dt.FixedTree(PAIR.draft), max_new_tokens=16)
    assert printed.partition(chat.PROMPT)[2] == f"{out.text()}\n[{out.counts}]\n{chat.PROMPT}\n"
    assert "no chat template" in printed.partition(chat.PROMPT)[0]
    assert "\033" not in printed


def test_drafted_and_own_tokens_have_their_colours(chatting, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    printed = chatting("def f(x):", "/tree", options=FIXED, terminal=Terminal())
    out = dt.generate(PAIR.target, "def f(x):", dt.FixedTree(PAIR.draft), max_new_tokens=16)
    answer = printed.partition(chat.PROMPT)[2].partition(chat.FAINT)[0]
    runs = re.findall(r"\033\[(\d+)m(.*?)\033\[0m", answer, flags=re.S)
    assert "".join(text for _, text in runs) == out.text()
    kinds = [kind for kind, text in runs]
    assert kinds.count("33") == len(out.iterations)
    assert kinds.count("32") == sum(len(one.verdict.path) for one in out.iterations)
    assert "\033[32m└─" in printed or "\033[32m├─" in printed
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in chatting("def f(x):", "/tree", terminal=Terminal())


def test_commands(chatting):
    printed = chatting(
        "/tree", "/method", "/method chain:length=2", "/method hf-generate", "/method chain:length=0", "/fly", "/help",
        "", "def f(x):", "/tree 1", "/tree 99", "/tree x", "/reset", "/tree", "/quit", "never read",
    )  # fmt: skip
    told = printed.split(chat.PROMPT)
    assert told[1] == told[14] == "There is no answer yet whose tree could be drawn; ask something first.\n"
    assert told[2].startswith("auto answers. Others: ")
    assert "hf-generate" not in told[2]
    assert told[3] == "chain:length=2 answers.\n"
    assert told[4].startswith("'hf-generate' does not decode in this library's loop; choose from ")
    assert "length is 0" in told[5]
    assert told[6] == "There is no command '/fly'; /help lists them.\n"
    assert all(command in told[7] for command in ("/tree", "/method", "/reset", "/help", "/quit", "Ctrl-C"))
    assert told[8] == ""  # an empty line, and nothing to go on with
    assert "tokens per iteration" in told[9]
    assert told[10].startswith("Iteration 1 of ")
    assert told[11].startswith("The latest answer has iterations 1 to ")
    assert told[12].endswith("and no 'x'.\n")
    assert told[13] == "Everything said is forgotten.\n"
    assert told[15] == ""
    assert len(told) == 16


def test_ctrl_c_stops_the_answer_and_not_the_chat(chatting, monkeypatch):
    write, written = chat.Chat.write, []

    def interrupted(self, text, colour):
        written.append(text)
        if len(written) == 5:
            signal.raise_signal(signal.SIGINT)
        write(self, text, colour)

    monkeypatch.setattr(chat.Chat, "write", interrupted)
    printed = chatting("def f(x):", "    return")
    first, second = printed.split(chat.PROMPT)[1:3]
    assert "finish reason 'interrupted'" in first
    assert "finish reason 'length'" in second


def test_ctrl_c_at_the_prompt_says_how_to_leave(chatting, monkeypatch):
    lines = iter([KeyboardInterrupt, "/quit"])

    def asked(prompt):
        line = next(lines)
        if line is KeyboardInterrupt:
            raise line
        return line

    monkeypatch.setattr("builtins.input", asked)
    assert "/quit or Ctrl-D leaves" in chatting()


def test_a_full_context_is_said_and_forgotten_by_reset(chatting):
    pair = replace(PAIR, target=PAIR.target.altered(context=20))
    printed = chatting("def f(x):", "more", "/reset", "def f(x):", pair=pair).split(chat.PROMPT)
    assert "finish reason 'context'" in printed[1]
    assert "the context of" in printed[2]
    assert printed[4] == printed[1]


@pytest.mark.parametrize("pair", [PAIR, templated(TEMPLATE)], ids=["plain", "template"])
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # of standard input: which one is up to the locale
def test_a_line_that_is_no_utf_8_is_refused_and_the_chat_goes_on(monkeypatch, capsys, pair, errors):
    lines = io.BytesIO(b"def f(x):\nh\xff\xfei\n/\xff\ndef f(x):\n/quit\n")
    monkeypatch.setattr(arguments, "load_pair", lambda *args, **kwargs: pair)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(lines, encoding="utf-8", errors=errors))
    assert main.main(["chat", "--max-new-tokens", "8"]) == 0
    printed = capsys.readouterr().out.split(chat.PROMPT)
    assert len(printed) == 6
    assert printed[2].startswith("The text has '\\udcff', which is no character")
    assert "There is no command" in printed[3]
    assert "tokens per iteration" in printed[4]


def test_a_full_memory_is_said_with_sizes_and_the_chat_goes_on(chatting, monkeypatch):
    honest, calls = conversation.generate, []

    def generate(*args, **options):
        calls.append(None)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return honest(*args, **options)

    monkeypatch.setattr(conversation, "generate", generate)
    printed = chatting("def f(x):", "def f(x):").split(chat.PROMPT)
    assert "Tried to allocate 20.00 GiB. The target's weights take 38.9 MB, its cache 22.5 kB a token" in printed[1]
    assert "The draft's weights take" in printed[1]
    assert "Use smaller trees" in printed[1]
    assert "finish reason" in printed[2]


def test_what_cannot_be_run_is_said_before_models_are_loaded(monkeypatch, capsys):
    def loaded(*args, **kwargs):
        raise AssertionError("models were loaded")

    monkeypatch.setattr(arguments, "load_pair", loaded)
    for options, sentence in (
        (["--method", "hf-generate"], "does not decode in this library's loop"),
        (["--method", "chain:depth=3"], "has no option 'depth'"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--max-new-tokens", "0"], "give at least 1"),
    ):
        assert main.main(["chat", *options]) == 2
        assert sentence in capsys.readouterr().err


def test_a_text_sends_the_terminal_no_commands():
    terminal, talked = Terminal(), chat.Chat(talk())
    talked.coloured = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", terminal)
        talked.write("a\x1b[2Jb\r\x9bc\td\n", "")
    assert terminal.getvalue() == "a[2Jbc\td\n"


# --------------------------------------------------------------------------------------------------------------- trees
def test_a_tree_is_drawn_with_its_path():
    tree = dt.TokenTree.build([9, 1, 2, 3, 4], [-1, 0, 0, 1, 1], [0.0, -0.5, -1.5, -0.25, -2.0])
    drawn = chat.tree_lines(dt.Iteration(tree, dt.verifiers.Verdict((1,), 7)))
    assert drawn == [
        ("9", "first"),
        ("├─ 1  0.61 +", "accepted"),
        ("│  ├─ 3  0.78", "rejected"),
        ("│  ├─ 4  0.14", "rejected"),
        ("│  └─ 7  the target's own", "own"),
        ("└─ 2  0.22", "rejected"),
    ]
    ended = chat.tree_lines(dt.Iteration(tree, dt.verifiers.Verdict((1,), 4)))
    assert ("│  └─ 4  0.14 +", "accepted") in ended
    assert all(role != "own" for _, role in ended)
    assert chat.tree_lines(dt.autoregressive(dt.ToyModel.random(6), [1], max_new_tokens=1).iterations[0])[1][1] == "own"
