"""The browser of tests that look at pages."""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def found_browser():
    """Return the path of Chromium or Chrome; without one skip the test, or fail it in CI, which has to run it."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        words = "no Chromium or Chrome is installed; install one, on Debian by: apt-get install chromium"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(words)
    return found
