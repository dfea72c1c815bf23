"""The notebooks outside a checkout: what an installed package carries of them, and a folder to work in."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..files import whole_file

PACKAGE = Path(__file__).resolve().parents[1]


def shipped_root() -> Path:
    """Return the folder that has notebooks and records: the package's in an installed wheel, else the checkout.

    Raises:
        ValueError: where there is neither.
    """
    for folder in (PACKAGE / "shipped", PACKAGE.parent):
        if (folder / "notebooks").is_dir():
            return folder
    raise ValueError(
        "This installation carries no notebooks; install dynatree-lib from a wheel, or take a checkout of the project."
    )


def homes(root: Path) -> Iterator[Path]:
    """Go through the folders that may have notebooks and records: the checkout, then the installed package."""
    yield root
    with suppress(ValueError):
        yield shipped_root()


def reference_path(name: str, root: Path) -> Path | None:
    """Return a record of outputs/reference: the checkout's, else the installed package's; None for neither."""
    paths = (folder / "outputs" / "reference" / name for folder in homes(root))
    return next((path for path in paths if path.is_file()), None)


def shipped_names(root: Path) -> list[str]:
    """Return the files and folders that a wheel carries in `shipped/`: notebooks, and the records that they read.

    The project file of a checkout names them; what an installed wheel has are all of them.
    """
    project = root / "pyproject.toml"
    if not project.is_file():
        return [path.name for path in root.iterdir()]
    wheel = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    return [name for name, place in wheel["force-include"].items() if place.startswith("dynatree_suite/shipped/")]


def shipped_files(root: Path) -> Iterator[Path]:
    """Go through the files of `shipped_names`, relative to the root; checkpoints of Jupyter are left out."""
    for name in shipped_names(root):
        place = root / name
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.is_file() and ".ipynb_checkpoints" not in path.parts:
                yield path.relative_to(root)


def copy_notebooks(folder: Path) -> list[Path]:
    """Copy the notebooks and the records that they read into a folder, and return what was new there.

    A file that is there already is left alone where it is the same.

    Raises:
        ValueError: before anything is written, where a file there has been changed, or the folder is the source.
    """
    root, folder = shipped_root(), folder.resolve()
    if folder == root:
        raise ValueError(f"{folder} is where the notebooks come from; name another folder.")
    names = list(shipped_files(root))
    there = {name for name in names if (folder / name).exists()}
    changed = [str(name) for name in names if name in there and not _same(root / name, folder / name)]
    if changed:
        few = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        raise ValueError(f"{folder} has files of these names with other contents ({few}); name another folder.")
    for name in names:
        if name not in there:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with whole_file(folder / name) as file:
                file.write((root / name).read_bytes())
    return [folder / name for name in names if name not in there]


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()
