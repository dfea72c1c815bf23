"""Plain decoding by the depth of the text: what llama-bench is asked, the record, and the table of it."""

import json
from types import SimpleNamespace

import pytest
import torch
from models import random_model

from tools import peers_by_depth
from tools.fill_tables import over_llama_cpp, quote_depths
from tools.llama_cpp import FOLDER
from tools.peers_by_depth import FLASH, OURS, better, depths_record

OFF, ON = FLASH
BODY = {
    "environment": {"cpu": "A processor", "threads": 2},
    "tokens": 64,
    "rows": [
        {"method": method, "depth": depth, "speeds": speeds}
        for method, depth, speeds in (
            (OURS, 0, [30.0, 33.0, 36.0]), (OFF, 0, [10.0, 11.0, 90.0]), (ON, 0, [12.0, 15.0, 18.0]),
            (OURS, 128, [20.0] * 3), (OFF, 128, [10.0] * 3), (ON, 128, [5.0] * 3),
        )
    ],
}  # fmt: skip


def test_ours_is_compared_with_the_better_setting_of_each_depth():
    assert [better(BODY["rows"], depth)["method"] for depth in (0, 128)] == [ON, OFF]
    over = [over_llama_cpp(BODY, depth) for depth in (0, 128)]
    assert [found.value for found in over] == [pytest.approx(33 / 15), 2.0]
    assert over[0].low <= 2.2 <= over[0].high


def test_a_table_has_a_column_for_each_depth():
    lines = [line for line in quote_depths(BODY, "x/depths.json").splitlines() if line]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    rows = {row[0]: row[1:] for row in cells}
    assert rows["method"] == ["0", "128"]
    assert (rows[f"`{OURS}`"], rows[OFF], rows[ON]) == (["33", "20"], ["11", "10"], ["15", "5"])
    assert rows["over the better setting"] == [str(over_llama_cpp(BODY, depth)) for depth in (0, 128)]
    assert "medians of 3 turns; A processor, 2 threads." in lines[-2]
    assert lines[-1] == "Record: [depths.json](x/depths.json)."


def test_the_record_has_every_turn_of_every_method(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(ValueError, match=r"There is no llama-bench; run tools/llama_cpp_peer.sh once"):
        depths_record(1)
    (tmp_path / "bin").mkdir()
    bench = tmp_path / "bin" / "llama-bench"
    bench.write_text(f"""#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho '[{{"avg_ts": 12.5}}]'\n""")
    bench.chmod(0o755)
    target = random_model("llama", dtype=torch.float32)
    monkeypatch.setattr(peers_by_depth, "load_pair", lambda name: SimpleNamespace(target=target))
    for name, value in (("DEPTHS", (0, 9)), ("TOKENS", 3)):
        monkeypatch.setattr(peers_by_depth, name, value)
    record = depths_record(2)
    assert json.loads(json.dumps(record)) == record
    speeds = {(row["method"], row["depth"]): row["speeds"] for row in record["rows"]}
    assert set(speeds) == {(method, depth) for method in (OURS, OFF, ON) for depth in (0, 9)}
    assert all(len(found) == 2 for found in speeds.values())
    assert speeds[OFF, 9] == speeds[ON, 0] == [12.5, 12.5]
    assert min(speeds[OURS, 9]) > 0
    asked = (tmp_path / "asked").read_text().splitlines()
    assert sorted({line.partition("-n ")[2] for line in asked}) == sorted(
        f"3 -d {depth} -fa {flash} -r 1 -o json" for depth in (0, 9) for flash in (0, 1)
    )
