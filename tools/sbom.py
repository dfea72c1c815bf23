"""Write what is installed here as a software bill of materials (CycloneDX 1.5, JSON).

python3 -m tools.sbom FILE
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any


def main(arguments: list[str]) -> int:
    """Write the bill and say how many components it has."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python3 -m tools.sbom FILE\n")
        return 2
    body = bill(distributions())
    Path(arguments[0]).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{len(body['components'])} components in {arguments[0]}\n")
    return 0


def bill(installed: Any) -> dict[str, Any]:
    """Return the bill of these distributions, by name, without the time, so that equal ones have equal bills."""
    found = {normalised(one.metadata["Name"]): one for one in installed if one.metadata["Name"]}
    references = {name: f"pkg:pypi/{name}@{one.version}" for name, one in found.items()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "components": [component(name, found[name], references[name]) for name in sorted(found)],
        "dependencies": [
            {"ref": references[name],
             "dependsOn": sorted({references[need] for need in needs(found[name]) if need in references})}
            for name in sorted(found)
        ],
    }  # fmt: skip


def component(name: str, one: Distribution, reference: str) -> dict[str, Any]:
    """Return one component, with the licence that its metadata names."""
    meta = one.metadata
    licence = meta.get("License-Expression") or next(
        (text.rpartition(" :: ")[2] for text in meta.get_all("Classifier") or [] if text.startswith("License")), None
    )
    out = {"type": "library", "bom-ref": reference, "name": name, "version": one.version, "purl": reference}
    return out | ({"licenses": [{"license": {"name": licence}}]} if licence else {})


def needs(one: Distribution) -> set[str]:
    """Return the names of what a distribution requires, extras left out."""
    lines = [line for line in one.requires or [] if "extra ==" not in line]
    return {normalised(re.split(r"[\s;<>=!~\[(]", line, maxsplit=1)[0]) for line in lines}


def normalised(name: str) -> str:
    """Return a name as the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
