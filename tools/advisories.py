"""Ask whether a pinned package has a known security advisory.

python3 -m tools.advisories [FILE]

Reads FILE (default: constraints.txt), asks by pip-audit, and prints a line per advisory; the exit code is 1 if one is
not in ACCEPTED. Packages that could not be asked for are counted; where that is all of them, the check was skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

ACCEPTED: Mapping[str, str] = {}
"""Identifier of an advisory -> why it does not concern this project."""


def asked(file: str) -> subprocess.CompletedProcess[str]:
    """Run pip-audit on a file of pinned packages."""
    options = ["--requirement", file, "--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    return subprocess.run([sys.executable, "-m", "pip_audit", *options], capture_output=True, text=True, check=False)


def main(arguments: list[str], ask: Callable[[str], subprocess.CompletedProcess[str]] = asked) -> int:
    """Print what is known; 1 for an advisory that was not accepted, 2 for wrong usage."""
    if len(arguments) > 1:
        sys.stderr.write("usage: python3 -m tools.advisories [FILE]\n")
        return 2
    file = arguments[0] if arguments else "constraints.txt"
    answer = ask(file)
    try:
        packages = json.loads(answer.stdout)["dependencies"]
    except (json.JSONDecodeError, KeyError):
        packages = []
    known = [package for package in packages if "vulns" in package]
    if not known:
        said = answer.stderr.strip().splitlines()
        reasons = [package.get("skip_reason", "") for package in packages[:1]] or said[-1:]
        reason = (reasons or ["no answer"])[0][:200]
        sys.stdout.write(f"Advisories: skipped, because pip-audit could ask for no package ({reason}).\n")
        return 0
    found = [line for package in known for line in lines(package)]
    sys.stdout.writelines(text + "\n" for _, text in found)
    new, unknown = sum(not accepted for accepted, _ in found), len(packages) - len(known)
    sys.stdout.write(f"Advisories: {len(found)} of {len(known)} packages, {new} not accepted; {unknown} not known.\n")
    return int(new > 0)


def lines(package: Mapping[str, Any]) -> list[tuple[bool, str]]:
    """Return each advisory of a package: whether it was accepted, and its line."""
    out = []
    for one in package.get("vulns", ()):
        why = next((ACCEPTED[name] for name in (one["id"], *one["aliases"]) if name in ACCEPTED), None)
        mended = ", ".join(one["fix_versions"]) or "no release"
        ending = f"accepted: {why}" if why else "take that release, or accept it with a reason in tools/advisories.py"
        out.append((bool(why), f"{package['name']} {package['version']}: {one['id']}, mended in {mended}; {ending}"))
    return out


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
