"""Whether the model hub can be reached: asked in a moment, where its own client tries for half a minute."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from threading import Thread
from urllib.parse import urlsplit

PATIENCE = 3.0
"""Seconds to wait for an answer."""
VALID = 60.0
"""Seconds for which an answer is taken again."""
_last: tuple[float, bool] = (-VALID, True)


def reachable() -> bool:
    """Return whether the hub answers; True behind a proxy and in offline mode, without asking."""
    global _last
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if HF_HUB_OFFLINE or any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    if time.monotonic() - _last[0] > VALID:
        _last = (time.monotonic(), _answers())
    return _last[1]


@contextlib.contextmanager
def asked_if_reachable() -> Iterator[None]:
    """Let the hub's client take what was downloaded before, or fail at once, where the hub does not answer."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not reachable()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _answers() -> bool:
    found: list[bool] = []
    thread = Thread(target=lambda: found.append(_connects()), daemon=True)
    thread.start()
    thread.join(PATIENCE)  # looking up a name has no time-out of its own
    return any(found)


def _connects() -> bool:
    from huggingface_hub.constants import ENDPOINT

    address = urlsplit(ENDPOINT)
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        with socket.create_connection((address.hostname or "", port), timeout=PATIENCE):
            return True
    except OSError:
        return False
