"""Keep what finished runs claim, and the records behind the claims that stand for a paper's table or figure.

    python3 -m tools.keep_evidence RUN [RUN ...]

For every notebook of a run that states such a claim, outputs/reference/evidence/<pair>/<notebook>.json says where and
when it ran and all that it claims, and <notebook>/ has the records, those of all its runs and short ones among them.
docs/papers.md and the README's table are filled from them (`tools.fill_tables`). What is not kept,
`tools.keep_notebooks.worth_keeping` says.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dynatree_suite.runs.receipts import RUN_FILE, SUMMARY, Files, read_json
from tools.keep_notebooks import worth_keeping

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "outputs" / "reference" / "evidence"
FACTS = ("profile", "pair", "device", "dtype", "parameters")


def evidence(files: Files) -> tuple[dict[str, Any], list[Path]]:
    """Return what is kept of a finished notebook, its records of runs, and those behind what it shows of the papers.

    Raises:
        SystemExit: as for `worth_keeping`.
    """
    receipt, machine = worth_keeping(files)
    summary = read_json(files.summary, SUMMARY)
    about = {name: summary[name] for name in FACTS}
    about |= {"commit": receipt["commit"], "finished": receipt["finished"], "seconds": receipt["seconds"]}
    about |= {name: machine[name] for name in ("cpu", "threads", "gpu")}
    told = [claim for claim in summary["claims"] if claim["record"]]
    shown = [files.out / one["record"] for one in told if one["shows"] or one["record"].endswith(".json")]
    runs = [path for path in sorted(files.records.glob("*.jsonl")) if '"environment": {' in path.read_text()[:80]]
    records = [*dict.fromkeys([*shown, *runs])]
    return {"notebook": files.name, **about, "sizes": summary["sizes"], "claims": summary["claims"]}, records


def place(body: dict[str, Any]) -> Path:
    """Return where the evidence of a notebook lies: by its pair, and by card and dtype where it ran on a GPU."""
    folder = re.sub(r"[^\w.+-]+", "_", body["pair"])
    if body["device"] != "cpu":
        folder = re.sub(r"[^\w.+-]+", "-", f"{body['gpu']['name']} {body['dtype']} {folder}".lower())
    return EVIDENCE / folder / f"{body['notebook']}.json"


def keep(folders: Iterable[Path]) -> list[Path]:
    """Keep the evidence of runs' folders, nothing where one notebook cannot be kept; return the files."""
    found = [evidence(Files(run, name)) for run in folders for name in read_json(run / RUN_FILE)["notebooks"]]
    made = []
    for body, records in found:
        if not any(claim["shows"] for claim in body["claims"]):
            continue
        path = place(body)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)  # of an earlier time, perhaps under other names
        path.with_suffix("").mkdir()
        made.append(path)
        for record in records:
            kept = path.with_suffix("") / f"{record.name}.gz"
            kept.write_bytes(gzip.compress(record.read_bytes(), mtime=0))
            made.append(kept)
    return made


if __name__ == "__main__":
    for path in keep(map(Path, sys.argv[1:])):
        print(path.relative_to(ROOT))  # noqa: T201
