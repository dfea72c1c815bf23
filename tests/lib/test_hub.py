"""A hub name where no hub can be reached: an answer at once, and what was downloaded before still loads."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
import transformers
from safetensors.torch import load_file

import dynatree_lib as dt
from dynatree_lib.models import hub
from dynatree_lib.paths import data_path


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
    shutil.copytree(data_path("tiny"), tmp_path / "pair")
    file = tmp_path / "pair" / "target" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100_000])
    with pytest.raises(ValueError, match=r"target' could not be loaded, because one of its .* is damaged"):
        dt.load_pair(tmp_path / "pair")


# ---------------------------------------------------------------------------------------------- a hub on this machine
class Hub(BaseHTTPRequestHandler):
    """Serves the files of a folder as the hub does and notes what it was asked for."""

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        self.server.asked.append(self.path)
        file = self.server.folder / re.sub("/resolve/[^/]+/", "/", self.path).lstrip("/")
        content = file.read_bytes() if file.is_file() else None
        if about := re.fullmatch("/api/models/(org/[^/]+)", self.path):
            content = json.dumps({"id": about[1], "private": False}).encode()
        self.send_response(404 if content is None else 200)
        self.send_header("X-Repo-Commit", "0" * 40)
        if content is None:
            self.send_header("X-Error-Code", "EntryNotFound")
            content = b""
        self.send_header("ETag", sha256(content).hexdigest())
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *args):
        pass


LOAD = """
import os, threading
import dynatree_lib as dt
from dynatree_lib.models import hub

def load():
    pair = dt.load_pair(target="org/safe", draft="org/pickled", engine="eager")
    assert dt.autoregressive(pair.draft, [5, 6, 7], max_new_tokens=4).tokens
    assert not [thread.name for thread in threading.enumerate() if "conversion" in thread.name]
    assert hub.NO_CONVERSION not in os.environ

load()
hub._answers = lambda minute: False
load()  # what was downloaded before
"""


def test_a_repository_with_bin_files_alone_is_loaded_and_not_converted(tmp_path):
    for name, role in (("safe", "target"), ("pickled", "draft")):
        shutil.copytree(data_path("tiny", "target"), tmp_path / "hub/org" / name)
        shutil.copytree(data_path("tiny", role), tmp_path / "hub/org" / name, dirs_exist_ok=True)
    weights = tmp_path / "hub/org/pickled/model.safetensors"
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.folder, server.asked = tmp_path / "hub", []
        Thread(target=server.serve_forever, daemon=True).start()
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        environment |= {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "cache"),
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "HF_HUB_OFFLINE": "0",
        }  # fmt: skip
        subprocess.run([sys.executable, "-c", LOAD], env=environment, check=True, cwd=tmp_path, timeout=100)
    assert any(re.fullmatch(r"/org/pickled/resolve/\w+/pytorch_model\.bin", path) for path in server.asked)
    assert not any("/commits/" in path for path in server.asked)  # the first step of a conversion
