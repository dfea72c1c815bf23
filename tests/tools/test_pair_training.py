"""The training of a pair on a toy recipe: texts written here, models of a few thousand weights, seconds in all."""

import json
import re
import shlex
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from dynatree_lib.paths import data_path
from dynatree_suite.files import sole_run
from dynatree_suite.training import optimize
from dynatree_suite.training.card import write_card
from dynatree_suite.training.optimize import read_checkpoint
from dynatree_suite.training.recipe import Phase
from tools.pair_training import __main__ as command
from tools.pair_training import card as cards
from tools.pair_training import corpus, distil, pipeline
from tools.pair_training.corpus import encode, train_tokenizer, windows
from tools.pair_training.recipe import Recipe, load_recipe

from_json = Recipe.from_json

SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "rotary_pct": 0.5,
    "tie_word_embeddings": True,
}
STEPS = {
    "learning_rate": 0.01,
    "embedding_learning_rate": 0.01,
    "weight_decay": 0.0,
    "warmup": 2,
    "decay": 0.5,
    "phases": [
        {"steps": 4, "length": 16, "batch": 4, "micro_batch": 2},
        {"steps": 2, "length": 48, "batch": 2, "micro_batch": 2},
    ],
}
RECIPE = {
    "name": "toy",
    "about": "A toy.",
    "seed": 3,
    "vocab_size": 320,
    "model_vocab_size": 352,
    "tokenizer_bytes": 20_000,
    "parts": {"code": 0.4, "code-tests": 0.1, "gsm8k": 0.2, "pg19": 0.1, "wikitext-2": 0.1, "mbpp": 0.1},
    "target": {"shape": SHAPE, **STEPS},
    "draft": {"shape": {**SHAPE, "hidden_size": 8}, **STEPS},
    "on_policy": {
        "tokens": 64,
        "batch": 4,
        "prefix": [2, 8],
        "continuation": 8,
        "temperatures": [0.0, 1.0],
        "share": 0.5,
    },
}
RUNTIME = optimize.Runtime(autocast=False)


def quiet(line):
    assert line


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A data folder and a 'standard library' in the layout of the real ones."""
    root = tmp_path_factory.mktemp("texts")
    data, library = root / "data", root / "library"
    for folder in ("wikitext-2-raw", "pg19", "gsm8k", "mbpp"):
        (data / folder).mkdir(parents=True)
    for split in ("valid", "test"):
        article = f" = The {split} lobster = \n \n A lobster of the {split} kind lives in the sea . \n"
        (data / "wikitext-2-raw" / f"wiki.{split}.raw").write_text(article * 4, encoding="utf-8")
    for book in ("16215", "14263"):
        body = f"Book {book} tells of a storm. " * 20
        mark = "OF THIS PROJECT GUTENBERG EBOOK X ***\n"
        book_text = f"Licence\n*** START {mark}{body}\n*** END {mark}Licence"
        (data / "pg19" / f"{book}.txt").write_text(book_text, encoding="utf-8")
    for split in ("train", "test"):
        record = {"question": f"How many {split} apples?", "answer": "2+2 = <<2+2=4>>4.\n#### 4"}
        (data / "gsm8k" / f"{split}.jsonl").write_text((json.dumps(record) + "\n") * 6, encoding="utf-8")
    tasks = [{"task_id": n, "text": f"Write task {n}.", "code": f"def f{n}():\r\n\treturn {n}"} for n in range(1, 700)]
    (data / "mbpp" / "mbpp.jsonl").write_text("\n".join(map(json.dumps, tasks)), encoding="utf-8")
    for folder in ("", "test", "site-packages", "encodings"):
        (library / folder).mkdir(parents=True, exist_ok=True)
        for n in range(120):
            (library / folder / f"m{n}.py").write_text(
                f"def {folder[:4]}f{n}(x):\n    return x + {n}\n", encoding="utf-8"
            )
    (library / "latin.py").write_bytes(b"# caf\xe9\n")
    return data, library


@pytest.fixture(scope="module")
def parts(texts):
    return corpus.load_corpus(RECIPE["parts"], *texts)


@pytest.fixture(scope="module")
def pair(texts, tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    return root, train(texts, root)


def training_at(texts, root, **options):
    data, library = texts
    recipe = options.pop("recipe", from_json(RECIPE))
    return pipeline.open_training(
        recipe, data, root / "work", root / "toy", RUNTIME, quiet, library=library, **options
    )  # fmt: skip


def train(texts, root, **options):
    return pipeline.train_pair(training_at(texts, root, **options))


def test_pair_loads_with_auto_classes_tied_and_in_float32(pair):
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM, AutoTokenizer

    root, card = pair
    tokenizer = AutoTokenizer.from_pretrained(root / "toy" / "target")
    for name in ("target", "draft"):
        model = AutoModelForCausalLM.from_pretrained(root / "toy" / name)
        assert model.dtype == torch.float32
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
        assert model.generation_config.eos_token_id == tokenizer.eos_token_id
        assert sum(p.numel() for p in model.parameters()) == card["models"][name]["parameters"]
        with safe_open(root / "toy" / name / "model.safetensors", "pt") as stored:
            assert {stored.get_tensor(key).dtype for key in stored.keys()} == {torch.float16}  # noqa: SIM118
            assert not any("lm_head" in key for key in stored.keys())  # noqa: SIM118
        out = model.generate(**tokenizer("def f", return_tensors="pt"), max_new_tokens=3, do_sample=False)
        assert out.shape[1] <= 3 + len(tokenizer("def f").input_ids)


def test_card_records_texts_losses_and_no_folder(pair, parts, texts):
    root, card = pair
    assert card == json.loads((root / "toy" / "card.json").read_text(encoding="utf-8"))
    for name, part in parts.items():
        for split in ("train", "held_out"):
            assert card["corpus"][name][split]["sha256"] == part.record()[split]["sha256"]
        assert 0 < card["held_out"][name]["target_nats_per_token"] < 8
        assert card["held_out"][name]["kl_nats_per_token"] >= 0
    assert from_json(card["recipe"]) == from_json(RECIPE)
    written = (root / "toy" / "README.md").read_text(encoding="utf-8")
    assert "# The pair `toy`" in written
    assert str(texts[0].parent) not in written + json.dumps(card)
    card = {**card, "acceptance": {"chain-4": {"code": 3.25}}}
    write_card(root / "toy", card, cards.page(card))
    assert "- chain-4:\n  - code: 3.250\n" in (root / "toy" / "README.md").read_text(encoding="utf-8")


def test_the_page_of_the_bundled_pair_is_drawn_from_its_card():
    card = json.loads(data_path("tiny", "card.json").read_text(encoding="utf-8"))
    assert cards.page(card) == data_path("tiny", "README.md").read_text(encoding="utf-8")


def test_held_out_texts_are_disjoint_and_rules_hold(parts):
    for part in parts.values():
        assert not set(part.train) & set(part.held_out)
    everything = "".join("".join(part.train + part.held_out) for part in parts.values())
    assert "site" not in "".join(parts["code"].train)  # skipped folders
    assert "enco" not in everything
    assert "Licence" not in everything
    assert "<<" not in everything
    assert "Write task 600." not in "".join(parts["mbpp"].train)
    assert "Write task 510." not in everything
    assert all("testf" in text for text in parts["code-tests"].train)


@pytest.mark.parametrize("name", ["target", "draft"])
def test_resumed_run_equals_uninterrupted(pair, texts, tmp_path, monkeypatch, name):
    monkeypatch.setattr(optimize, "CHECKPOINT_SECONDS", -1.0)  # after every step
    real = optimize.Run._step
    for stop in (1, 5):  # inside each phase

        def interrupted(run, *arguments, stop=stop):
            if run.checkpoint.stem == name and run.step == stop:
                raise KeyboardInterrupt
            return real(run, *arguments)

        monkeypatch.setattr(optimize.Run, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(texts, tmp_path, resume=stop > 1)
    monkeypatch.setattr(optimize.Run, "_step", real)
    train(texts, tmp_path, resume=True)
    for role in ("target", "draft"):
        (_, whole), (_, again) = (read_checkpoint(root / "work" / f"{role}.checkpoint") for root in (pair[0], tmp_path))
        assert whole.keys() == again.keys()
        assert all(torch.equal(whole[key], again[key]) for key in whole)  # of the model and of the optimizers


def test_refuses_what_would_overwrite_or_mix(pair, texts, tmp_path):
    root, _ = pair
    with pytest.raises(FileExistsError, match="finished training; pass --force"):
        training_at(texts, root)
    training_at(texts, tmp_path)
    with pytest.raises(FileExistsError, match="unfinished run; pass --resume"):
        training_at(texts, tmp_path)
    other = from_json({**RECIPE, "seed": 4})
    for recipe in (other, from_json({**RECIPE, "tokenizer_bytes": RECIPE["tokenizer_bytes"] + 1})):
        with pytest.raises(ValueError, match="other texts or another recipe"):
            training_at(texts, tmp_path, recipe=recipe, resume=True)
    assert training_at(texts, tmp_path, recipe=other, force=True).recipe.seed == 4


@pytest.mark.parametrize("role", ["work", "toy"])
@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_other_things_is_never_removed(texts, tmp_path, role, force):
    mine = tmp_path / role / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds other things than a training writes \(\w+.json is missing\)"):
        training_at(texts, tmp_path, force=force)
    assert mine.read_text() == "mine"
    mine.unlink()
    assert training_at(texts, tmp_path).work.is_dir()  # an empty folder may be taken


def test_a_working_folder_and_a_pair_do_not_lie_in_each_other(texts, tmp_path):
    for work, out in (("a", "a"), ("a", "a/b"), ("a/b", "a")):
        with pytest.raises(ValueError, match="lie in each other, .*; give two apart"):
            pipeline.open_training(from_json(RECIPE), texts[0], tmp_path / work, tmp_path / out, RUNTIME, quiet)
    assert not list(tmp_path.iterdir())


def test_a_training_that_runs_is_not_removed_by_another(texts, tmp_path):
    training = training_at(texts, tmp_path)
    (training.work / "target.checkpoint").write_text("an hour's work")
    with sole_run(training.work), pytest.raises(RuntimeError, match="Another run works in .*; wait until it has ended"):
        training_at(texts, tmp_path, force=True)
    assert (training.work / "target.checkpoint").is_file()
    assert not list(training_at(texts, tmp_path, force=True).work.glob("*.checkpoint"))


def test_missing_part_is_named_before_any_work(texts, tmp_path):
    data, library = texts
    with pytest.raises(FileNotFoundError, match=r"'gsm8k' was not found.*gsm8k/.*openai/gsm8k"):
        pipeline.open_training(
            from_json(RECIPE), tmp_path, tmp_path / "w", tmp_path / "o", RUNTIME, quiet, library=library
        )  # fmt: skip
    assert not (tmp_path / "w").exists()
    with pytest.raises(ValueError, match="no text part 'poems'"):
        corpus.load_corpus(["poems"], data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "unknown keys"),
        ({"parts": {}}, "has parts={}; give at least one"),
        ({"parts": {"code": 0}}, "has parts={'code': 0}; give numbers from 1e-06"),
        ({"model_vocab_size": 10}, "below the tokenizer"),
        ({"target": {**RECIPE["target"], "phases": []}}, r"target has phases=\[\]; give at least one"),
        ({"target": {**RECIPE["target"], "shape": {**SHAPE, "max_position_embeddings": 8}}}, "only 8"),
        ({"on_policy": {**RECIPE["on_policy"], "share": 1.0}}, "on_policy has share=1.0; give numbers from 0 to 0.99"),
        ({"target": {**RECIPE["target"], "warmup": 0}}, "target has warmup=0; give whole numbers from 1"),
        ({"draft": {**RECIPE["draft"], "decay": 1.5}}, "draft has decay=1.5; give numbers from 0 to 1"),
        ({"draft": {**RECIPE["draft"], "learning_rate": -1}}, "draft has learning_rate=-1"),
        ({"on_policy": {**RECIPE["on_policy"], "continuation": 0}}, "on_policy has continuation=0; give whole"),
        ({"on_policy": {**RECIPE["on_policy"], "prefix": [8, 2]}}, r"on_policy.prefix is \[8, 2\]"),
        ({"on_policy": {**RECIPE["on_policy"], "temperatures": []}}, r"temperatures=\[\]; give at least one"),
        ({"seed": "first"}, "seed='first'; give whole numbers"),
        ({"on_policy": {**RECIPE["on_policy"], "share": True}}, "share=True; give numbers"),
    ],
)
def test_wrong_recipe_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        from_json({**RECIPE, **change})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "holds a list; write a JSON object"),
        ("{", "is damaged or no JSON"),
        ("[" * 100_000, "is damaged or no JSON"),
        (b"\xff", "is damaged or no JSON"),
        (json.dumps({**RECIPE, "parts": 3}), "has an entry that is no recipe's"),
        (json.dumps({**RECIPE, "target": 4}), "has an entry that is no recipe's"),
    ],
)
def test_a_file_that_holds_no_recipe_is_told_in_a_sentence(tmp_path, content, message):
    path = tmp_path / "mine.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        load_recipe(str(path))


@pytest.mark.parametrize(("content", "message"), [("{}", "other texts or another recipe"), ("[", "is damaged or no")])
def test_a_damaged_note_of_what_was_begun_is_told_in_a_sentence(texts, tmp_path, content, message):
    (training_at(texts, tmp_path).work / "begun.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        training_at(texts, tmp_path, resume=True)


def test_shipped_recipes_are_sound():
    with pytest.raises(ValueError, match=r"no recipe 'huge'. Known recipes: .*tiny"):
        load_recipe("huge")
    for name in ("tiny", "pythia-160m-14m", "pythia-2.8b-70m"):
        recipe = load_recipe(name)
        assert recipe.name == name
        assert from_json(recipe.as_json()) == recipe
    tiny = load_recipe("tiny")
    models = [distil.build_model(m, tiny.model_vocab_size, 0) for m in (tiny.target, tiny.draft)]
    sizes = [sum(p.numel() for p in model.parameters()) for model in models]
    assert sum(sizes) <= 11_000_000
    assert 7 < sizes[0] / sizes[1] < 12
    assert all(m.shape["max_position_embeddings"] >= 2560 for m in (tiny.target, tiny.draft))
    assert max(phase.length for phase in tiny.target.phases) >= 2560


@pytest.mark.parametrize("name", ["pythia-160m-14m", "pythia-2.8b-70m"])
def test_gpu_recipes_run_when_shrunk(name, texts, tmp_path):
    recipe = load_recipe(name)
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    phases = (Phase(1, 16, 2, 1), Phase(1, 32, 2, 2))
    shrunk = {
        key: replace(model, shape={**model.shape, **small}, phases=phases)
        for key, model in (("target", recipe.target), ("draft", recipe.draft))
    }
    policy = replace(recipe.on_policy, tokens=16, batch=4, prefix=(2, 4), continuation=8)
    training = training_at(
        texts, tmp_path, recipe=replace(recipe, vocab_size=300, model_vocab_size=304, on_policy=policy, **shrunk)
    )
    card = pipeline.train_pair(replace(training, runtime=optimize.Runtime()))  # with bfloat16 autocast
    assert card["models"]["draft"]["steps"] == 2
    assert (tmp_path / "toy" / "draft" / "model.safetensors").is_file()


def test_max_minutes_takes_fewer_steps_and_records_them(texts, tmp_path):
    recipe = from_json(RECIPE)
    long = replace(recipe, target=recipe.target.rescaled(100_000), draft=recipe.draft.rescaled(100_000))
    card = pipeline.train_pair(training_at(texts, tmp_path, recipe=long), max_minutes=0.005)
    assert card["models"]["target"]["steps"] < 1000
    assert from_json(card["recipe"]).target.steps == card["models"]["target"]["steps"]


def test_command_line(texts, tmp_path, monkeypatch, capsys):
    path = tmp_path / "toy.json"
    path.write_text(json.dumps({**RECIPE, "parts": {"gsm8k": 0.5, "mbpp": 0.5}}))
    given = [
        "--recipe",
        str(path),
        "--data",
        str(texts[0]),
        "--work",
        str(tmp_path / "w"),
        "--out",
        str(tmp_path / "o"),
    ]
    plain = ["--device", "cpu", "--no-compile", "--no-autocast"]
    with pytest.raises(ValueError, match="--steps is 0"):
        command.main([*given, *plain, "--steps", "0"])
    assert command.main([*given, *plain, "--steps", "2"]) == 0
    assert json.loads((tmp_path / "o" / "card.json").read_text())["models"]["target"]["steps"] == 2
    assert "the pair is in" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="torch sees no GPU"):
        command.main([*given, "--device", "cuda"])


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ("--recipe large", "large"),
        ("--recipe smollm2", "dynatree train"),
        ("--data no/such/place", "no/such/place"),
        ("--steps 0", "0"),
        ("--max-minutes 0", "0"),
        ("--device gpu", "gpu"),
        ("--out FILE", "FILE"),
    ],
)
def test_a_wrong_command_names_the_value_before_any_work(options, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("not what was asked for: [")
    with pytest.raises((ValueError, OSError), match=rf"(?<!\w){re.escape(value)}(?!\w)"):
        command.main(shlex.split(options))
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]


def test_tokenizer_gives_back_every_text(parts):
    tokenizer = train_tokenizer(parts, RECIPE["parts"], 320, 20_000)
    for text in ("def f(x):\n\treturn 'é — 中' , x . y  !  it 's 1234\n\n    \n", " leading", "naïve\r\n"):
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids) == text
        assert sum(cards.byte_lengths(tokenizer, 320)[i] for i in ids) == len(text.encode())
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == tokenizer.bos_token_id
    ids = encode(tokenizer, ("a", "b"))
    assert (ids == tokenizer.eos_token_id).sum() == 2


def test_windows_cover_an_epoch_once_and_depend_on_the_seed_alone():
    tokens = {"a": np.arange(1000, dtype=np.int32), "b": np.arange(5000, 5003, dtype=np.int32)}
    batches, same = (list(islice(windows(tokens, {"a": 0.9, "b": 0.1}, 10, 8, (1,)), 12)) for _ in range(2))
    assert all(map(np.array_equal, batches, same))
    assert batches[0].shape == (8, 10)
    firsts = [row[0] for batch in batches for row in batch if row[0] < 5000]
    assert len(set(firsts[:98])) == min(98, len(firsts))  # no window twice within an epoch
    aligned = next(windows({"a": tokens["a"]}, {"a": 1.0}, 10, 50, (1,), aligned=("a",)))
    assert (aligned[:, 0] % 10 == 0).all()


def test_draft_loss_is_the_divergence_of_the_definition():
    recipe = from_json(RECIPE)
    target, draft = (distil.build_model(m, 30, seed) for seed, m in enumerate((recipe.target, recipe.draft)))
    ids = torch.randint(0, 30, (2, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        p, q = (model(input_ids=ids).logits.double().softmax(-1) for model in (target, draft))
        slow = sum((p[b, t] * (p[b, t] / q[b, t]).log()).sum() for b in range(2) for t in range(7)) / 14
        assert distil.draft_loss(draft, target, RUNTIME)(ids).item() == pytest.approx(slow.item(), abs=1e-6)


def test_own_text_continues_prefixes_greedily_where_asked():
    model = distil.build_model(from_json(RECIPE).target, 30, 0).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # away from the flat start, so that greedy choices have margins
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
        prefixes = torch.tensor([[1, 2, 3], [4, 5, 6]])
        rows = distil.continue_text(model, prefixes, torch.tensor([0.0, 1.0]), 9, torch.Generator().manual_seed(0))
        assert rows.shape == (2, 9)
        assert torch.equal(rows[:, :3], prefixes)
        for end in range(3, 9):
            assert model(input_ids=rows[:1, :end]).logits[0, -1].argmax() == rows[0, end]


def test_writing_text_in_bfloat16_leaves_the_target_as_it_is():
    recipe = from_json(RECIPE)
    target = distil.build_model(recipe.target, recipe.model_vocab_size, 0)
    before = {name: value.clone() for name, value in (*target.named_parameters(), *target.named_buffers())}
    tokens = {name: np.arange(300) for name in recipe.parts}
    text = distil.write_on_policy(target, tokens, recipe, optimize.Runtime(), quiet)
    assert text.shape == (8, 16)
    assert any("inv_freq" in name for name in before)
    for name, value in (*target.named_parameters(), *target.named_buffers()):
        assert value.dtype == torch.float32
        assert torch.equal(value, before[name]), name


def test_a_truncated_checkpoint_is_refused(pair, tmp_path):
    path = tmp_path / "x.checkpoint"
    path.write_bytes((pair[0] / "work" / "draft.checkpoint").read_bytes()[:-7])
    with pytest.raises(ValueError, match="is no checkpoint that can be read"):
        read_checkpoint(path)
