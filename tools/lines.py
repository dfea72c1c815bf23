"""Print the lines of code of each room of the three packages, without comments, docstrings and blank lines.

python3 -m tools.lines [PACKAGE ...]
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

from dynatree_suite import PACKAGES

QUIET = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Return the number of lines on which code begins."""
    docstrings: set[int] = set()  # of modules, classes, functions, and below constants
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or 0) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return len({token.start[0] for token in tokens if token.type not in QUIET} - docstrings)


def rooms(package: Path) -> Counter[str]:
    """Return the lines of code by room: a folder of the package, or a module that stands alone."""
    out: Counter[str] = Counter()
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        out[parts[0].removesuffix(".py") + "/" * (len(parts) > 1)] += code_lines(path.read_text(encoding="utf-8"))
    return out


if __name__ == "__main__":
    packages = [Path(name) for name in sys.argv[1:] or PACKAGES]
    total = 0
    for package in packages:
        counted, files = rooms(package), sum(1 for _ in package.rglob("*.py"))
        total += counted.total()
        sys.stdout.write(f"{counted.total():7,}  {package.name}, {files} files\n")
        for name, lines in counted.most_common():
            sys.stdout.write(f"{lines:11,}  {name}\n")
    sys.stdout.write(f"{total:7,}  all\n")
