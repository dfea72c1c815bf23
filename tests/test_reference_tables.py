"""Every table that is computed from the records in outputs/reference says what it said when the records were made."""

import importlib.util
import json
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[1] / "tools" / "reference_tables.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("reference_tables", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", ["run_tables", "length_tables", "ptd_tables", "judged_tables", "other_tables"])
def test_every_table_is_unchanged(tool, group):
    stored = json.loads(tool.FILE.read_text(encoding="utf-8"))
    found = {name: json.loads(json.dumps(tool.plain(rows))) for name, rows in getattr(tool, group)()}
    assert found
    for name, rows in found.items():
        assert rows == stored[name], name


def test_the_stored_tables_are_those_of_the_tool(tool):
    stored = json.loads(tool.FILE.read_text(encoding="utf-8"))
    assert len(stored) > 100
    assert all(rows for name, rows in stored.items() if not name.endswith("disturbed"))
