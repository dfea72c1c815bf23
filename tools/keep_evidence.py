"""Keep what finished runs claim, and the records behind the claims that stand for a paper's table or figure.

    python3 -m tools.keep_evidence RUN [RUN ...]

For every notebook of a run that states such a claim, outputs/reference/evidence/<pair>/<notebook>.json says where and
when it ran and all that it claims, and <notebook>/<record>.jsonl.gz are the records. docs/papers.md and the claims
table are filled from them (`tools.fill_tables`). A run with divided amounts, or of changed files, is not kept.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from dynatree_suite.runs.receipts import RUN_FILE, SUMMARY, Files, damage, read_json

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "outputs" / "reference" / "evidence"
FACTS = ("profile", "pair", "device", "dtype", "parameters")


def evidence(files: Files) -> tuple[dict[str, Any], list[Path]]:
    """Return what is kept of a finished notebook, and the records behind what it shows of the papers.

    Raises:
        SystemExit: where it is not what its receipt says, or its amounts were divided.
    """
    receipt, summary = read_json(files.receipt), read_json(files.summary, SUMMARY)
    harm = damage(files, receipt) or ("its amounts were divided" if summary.get("divide", 1) != 1 else "")
    if harm:
        raise SystemExit(f"{files.name} of {files.out} cannot be kept: {harm}.")
    machine = receipt.get("environment") or read_json(files.out / RUN_FILE)["environment"]
    about = {name: summary[name] for name in FACTS}
    about |= {"commit": receipt["commit"], "finished": receipt["finished"], "seconds": receipt["seconds"]}
    about |= {name: machine[name] for name in ("cpu", "threads", "gpu")}
    shown = [claim["record"] for claim in summary["claims"] if claim["shows"] and claim["record"]]
    records = [files.out / record for record in dict.fromkeys(shown)]
    return {"notebook": files.name, **about, "sizes": summary["sizes"], "claims": summary["claims"]}, records


def place(body: dict[str, Any]) -> Path:
    """Return where the evidence of a notebook lies: by its pair, and the GPU where it ran on one."""
    gpu = body["gpu"]["name"].split()[1].lower() + "-" if body["gpu"] and body["device"] != "cpu" else ""
    return EVIDENCE / f"{gpu}{body['pair'].replace('/', '_')}" / f"{body['notebook']}.json"


def keep(folder: Path) -> list[Path]:
    """Keep the evidence of a run's folder; return the files."""
    made = []
    for name in read_json(folder / RUN_FILE)["notebooks"]:
        body, records = evidence(Files(folder, name))
        if not any(claim["shows"] for claim in body["claims"]):
            continue
        path = place(body)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        made.append(path)
        for record in records:
            kept = path.with_suffix("") / f"{record.name}.gz"
            kept.parent.mkdir(exist_ok=True)
            kept.write_bytes(gzip.compress(record.read_bytes(), mtime=0))
            made.append(kept)
    return made


if __name__ == "__main__":
    for run in map(Path, sys.argv[1:]):
        for path in keep(run):
            print(path.relative_to(ROOT))  # noqa: T201
