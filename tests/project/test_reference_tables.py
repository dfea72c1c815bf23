"""Every table that is computed from the records in outputs/reference says what it said when the records were made."""

import importlib.util
import json
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "reference_tables.py"


spec = importlib.util.spec_from_file_location("reference_tables", TOOL)
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


@pytest.fixture(scope="module")
def stored():
    return json.loads(tool.FILE.read_text(encoding="utf-8"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", tool.GROUPS)
def test_every_table_is_unchanged(stored, group):
    found = {name: json.loads(json.dumps(tool.plain(rows))) for name, rows in tool.GROUPS[group]()}
    assert list(found) == list(stored[group])  # none has gone
    for name, rows in found.items():
        assert rows == stored[group][name], name


def test_the_stored_tables_are_those_of_the_tool(stored):
    assert list(stored) == list(tool.GROUPS)
    tables = [(name, rows) for group in stored.values() for name, rows in group.items()]
    assert len(tables) > 100
    assert all(rows for name, rows in tables if not name.endswith("disturbed"))
