"""The model hub: whether it can be reached, asked in a moment, where its own client tries for half a minute."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from functools import lru_cache
from threading import Thread
from urllib.parse import urlsplit

PATIENCE = 3.0
"""Seconds to wait for an answer."""
VALID = 60.0
"""Seconds for which an answer is taken again."""
NO_CONVERSION = "DISABLE_SAFETENSORS_CONVERSION"
"""Environment variable of transformers."""


def reachable() -> bool:
    """Return whether the hub answers; True behind a proxy and in offline mode, without asking."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if HF_HUB_OFFLINE or any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    return _answers(int(time.monotonic() // VALID))


@lru_cache(maxsize=1)
def _answers(_minute: int) -> bool:
    from huggingface_hub.constants import ENDPOINT

    address, found = urlsplit(ENDPOINT), list[bool]()

    def connect() -> None:
        port = address.port or (80 if address.scheme == "http" else 443)
        with contextlib.suppress(OSError), socket.create_connection((address.hostname or "", port), timeout=PATIENCE):
            found.append(True)

    thread = Thread(target=connect, daemon=True)
    thread.start()
    thread.join(PATIENCE)  # looking up a name has no time-out of its own
    return bool(found)


@contextlib.contextmanager
def without_conversion() -> Iterator[None]:
    """Keep transformers from asking the hub to convert a repository whose weights are only in `.bin` files.

    It does so in a thread of its own, which asks others for a change of their repository and may end in an error later.
    """
    before = os.environ.get(NO_CONVERSION)
    os.environ[NO_CONVERSION] = "1"
    try:
        yield
    finally:
        os.environ.pop(NO_CONVERSION)
        if before is not None:
            os.environ[NO_CONVERSION] = before
