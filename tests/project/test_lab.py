"""Notebooks in a real JupyterLab in a real Chromium: they run, their controls work, nothing outside is asked for."""

import asyncio
import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("jupyterlab")

from tornado.websocket import websocket_connect

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "outputs" / "screenshots"
DRAWN = "[...document.querySelectorAll('.jupyter-widgets .js-plotly-plot')].map(plot => plot.textContent).join()"
NOTEBOOK = "[...window.jupyterapp.shell.widgets('main')].find(widget => widget.sessionContext)"
RUN_ALL = "window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => 'done', String)"
FAILED = "document.querySelectorAll('.jp-OutputArea-output[data-mime-type=\"application/vnd.jupyter.error\"]').length"
MOVE = """(() => {
  const slider = [...document.querySelectorAll('.widget-slider')].find(one => one.textContent.includes('NAME'));
  slider.scrollIntoView();
  const handle = slider.querySelector('.noUi-handle');
  handle.focus();
  handle.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
})()"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def answer(url: str, seconds: float = 90) -> bytes:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return urllib.request.urlopen(url, timeout=5).read()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


class Page:
    """A page of the browser, by its debugging protocol; what went wrong in it and what it asked for is kept."""

    def __init__(self, socket) -> None:
        self.socket, self.number, self.errors, self.requests = socket, 0, [], set()

    async def call(self, method: str, **params):
        self.number += 1
        await self.socket.write_message(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(await self.socket.read_message())
            about = message.get("params", {})
            match message.get("method"):
                case "Runtime.exceptionThrown":
                    self.errors.append(str(about["exceptionDetails"]))
                case "Log.entryAdded" if about["entry"]["level"] == "error":
                    self.errors.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
                case "Network.requestWillBeSent":
                    self.requests.add(about["request"]["url"])
            if message.get("id") == self.number:
                return message["result"]

    async def js(self, code: str):
        result = await self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, code: str, seconds: float = 90):
        deadline = time.monotonic() + seconds
        while not (value := await self.js(code)):
            assert time.monotonic() < deadline, f"waited {seconds} s for {code}"
            await asyncio.sleep(0.3)
        return value

    async def screenshot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        shot = await self.call("Page.captureScreenshot", format="png")
        (SCREENSHOTS / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


@pytest.fixture
def started():
    """Start programs that end with the test."""
    running = []

    def start(*command: str, **options) -> None:
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options))

    yield start
    for one in reversed(running):
        one.terminate()
    for one in reversed(running):
        try:
            one.wait(20)
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()


def set_up(folder: Path, theme: str) -> None:
    """Write settings of JupyterLab: its theme, no news, and all cells of a notebook on the page."""
    settings = {
        "apputils-extension/themes": {"theme": f"JupyterLab {theme}"},
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "notebook-extension/tracker": {"windowingMode": "none"},
    }
    for name, values in settings.items():
        path = folder / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("name", "slider", "theme"),
    [
        ("00_start_here", "iteration", "Light"),
        ("00_start_here", "iteration", "Dark"),
        ("01_speculative_decoding", "iterations before", "Light"),
        ("02_tree_attention_masks", "node", "Dark"),
        ("03_draft_trees", "target forwards", "Dark"),
    ],
)
def test_a_slider_of_a_notebook_changes_its_figure(tmp_path, started, browser, name, slider, theme):
    shutil.copy(ROOT / "notebooks" / f"{name}.ipynb", tmp_path)
    set_up(tmp_path / "settings", theme)
    environment = {
        **os.environ, "DYNATREE_PROFILE": "smoke", "DYNATREE_OUT": str(tmp_path / "out"), "PYTHONPATH": str(ROOT),
        "JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "settings"), "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTER_PLATFORM_DIRS": "1",
    }  # fmt: skip
    lab, debugging = free_port(), free_port()
    started(
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={lab}",
        f"--ServerApp.root_dir={tmp_path}", "--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True",
        env=environment,
    )  # fmt: skip
    started(
        browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--remote-debugging-port={debugging}",
        "--remote-allow-origins=*", "--window-size=1400,1500", f"--user-data-dir={tmp_path / 'browser'}", "about:blank",
    )  # fmt: skip
    answer(f"http://127.0.0.1:{lab}/lab")
    tabs = json.loads(answer(f"http://127.0.0.1:{debugging}/json"))
    (tab,) = (one for one in tabs if one["type"] == "page")

    async def look() -> Page:
        page = Page(await websocket_connect(tab["webSocketDebuggerUrl"], max_message_size=1 << 28))
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        await page.call("Page.navigate", url=f"http://127.0.0.1:{lab}/lab/tree/{name}.ipynb")
        await page.until(f"window.jupyterapp && {NOTEBOOK}?.sessionContext.isReady")
        await page.js(f"window.jupyterapp.shell.activateById({NOTEBOOK}.id)")
        assert await page.js(RUN_ALL) == "done"
        assert await page.js(FAILED) == 0
        before = await page.until(DRAWN)
        await page.js(MOVE.replace("NAME", slider))
        await page.until(f"{DRAWN} && {DRAWN} !== {json.dumps(before)}")
        await page.screenshot(f"{name}-{theme.lower()}")
        page.socket.close()
        while await page.socket.read_message() is not None:
            pass
        await asyncio.sleep(0.5)  # until the connection is gone as well
        return page

    page = asyncio.run(look())
    assert not page.errors
    inside = f"http://127.0.0.1:{lab}/", "data:", "blob:"
    assert not [url for url in page.requests if not url.startswith(inside)]
