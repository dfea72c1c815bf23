"""A hub name where no hub can be reached: an answer at once, and what was downloaded before still loads."""

import socket
import time

import pytest
import transformers

import dynatree_lib as dt
from dynatree_lib.models import hub


@pytest.fixture(autouse=True)
def unknown(monkeypatch):
    """Nothing is known yet, and nothing stands between."""
    hub._answers.cache_clear()
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def unreachable(*args, **kwargs):
    raise OSError("no route to host")


def test_an_unreachable_hub_is_said_in_a_sentence_at_once(monkeypatch):
    monkeypatch.setattr(socket, "create_connection", unreachable)
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"Model 'someone/nothing' could not be loaded .* give a local folder"):
        dt.load_pair(target="someone/nothing", draft="someone/other")
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("answers", [True, False])
def test_the_hub_is_asked_only_where_it_answers(monkeypatch, answers):
    asked = []

    def from_pretrained(source, **options):
        asked.append(options)
        raise OSError("not there")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", from_pretrained)
    monkeypatch.setattr(hub, "_answers", lambda minute: answers)
    with pytest.raises(ValueError, match="not there"):
        dt.load_pair(target="someone/nothing", draft="someone/other")
    assert asked == [{"trust_remote_code": False, **({} if answers else {"local_files_only": True})}]


def test_it_is_asked_once_a_minute_and_not_through_a_proxy(monkeypatch):
    asked = []

    def refused(*address, **options):
        asked.append(address)
        raise OSError("no route to host")

    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setattr(time, "monotonic", lambda: 90.0)
    assert [hub.reachable(), hub.reachable()] == [False, False]
    assert len(asked) == 1
    monkeypatch.setattr(time, "monotonic", lambda: 90.0 + hub.VALID)
    assert not hub.reachable()
    assert len(asked) == 2
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert hub.reachable()
    assert len(asked) == 2


def test_a_port_is_tried_that_the_endpoint_names(monkeypatch):
    from huggingface_hub import constants

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert hub._answers(0)
    assert not hub._answers(1)


def test_a_name_that_is_never_resolved_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(hub, "PATIENCE", 0.2)

    def slow(*address, **options):
        time.sleep(1)
        raise OSError("no such host")

    monkeypatch.setattr(socket, "create_connection", slow)
    began = time.monotonic()
    assert not hub._answers(0)
    assert time.monotonic() - began < 0.9


def test_a_model_file_that_is_cut_off_is_refused_in_a_sentence(tmp_path):
    import shutil

    from dynatree_lib.paths import data_path

    shutil.copytree(data_path("tiny"), tmp_path / "pair")
    file = tmp_path / "pair" / "target" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100_000])
    with pytest.raises(ValueError, match=r"target' could not be loaded, because one of its .* is damaged"):
        dt.load_pair(tmp_path / "pair")
