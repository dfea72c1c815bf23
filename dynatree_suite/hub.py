"""The hub's client for data sets, where the hub may not answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dynatree_lib.models.hub import reachable


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
