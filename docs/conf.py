"""docs/, the README, the cards of models and the API as a site (`make site`), to be read without a network too."""

import re
from pathlib import Path

from dynatree_suite import PACKAGES

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s:]+)\)")
CHAPTERS = {
    "Results": ["smollm2", "gpu", "results", "papers", "architectures"],
    "Use": ["cli", "cluster", "huggingface", "extending", "beyond", "teaching"],
    "How it works": ["design", "glossary"],
}
CONTENTS = "\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"

project = author = "DynaTree suite"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.apidoc"]
root_doc = "README"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/*.md",
    "data/*/README.md",
    "data/*/*/README.md",
    "outputs/api/*/*",
]
html_theme = "furo"
html_title = "DynaTree suite"
html_show_copyright = False
myst_heading_anchors = 3
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_custom_sections = [("Keys", "params_style")]  # of a dictionary
autodoc_default_options = {"ignore-module-all": True}  # each name once, where it is made
exclude_patterns = ["outputs/api/*/modules.rst"]
apidoc_modules = [
    {
        "path": f"../{package}",
        "destination": f"outputs/api/{package}",
        "exclude_patterns": [f"../{package}/papers", f"../{package}/__main__.py"],
        "separate_modules": True,
        "module_first": True,
        "automodule_options": {"members", "show-inheritance"},
    }
    for package in PACKAGES
]


def prepare(app, docname: str, source: list[str]) -> None:
    """Give the front page its table of contents; links to folders, which a site has not, become their names."""
    here = (ROOT / docname).parent

    def reachable(link: re.Match[str]) -> str:
        return link[1] if (here / link[2]).is_dir() else link[0]

    source[0] = LINK.sub(reachable, source[0])
    if docname == root_doc:
        pages = {caption: [f"/docs/{name}" for name in names] for caption, names in CHAPTERS.items()}
        folders = sorted(path.parent.relative_to(ROOT) for path in (ROOT / "data").rglob("README.md"))
        pages["Models and data"] = [f"{folder} </{folder}/README>" for folder in folders]
        pages["Code"] = [
            *(f"/outputs/api/{name}/{name}" for name in PACKAGES),
            "/CONTRIBUTING",
            "/SECURITY",
            "/CHANGELOG",
        ]
        source[0] += "".join(
            CONTENTS.format(caption=caption, pages="\n".join(names)) for caption, names in pages.items()
        )


def lead_in(app, error: Exception | None) -> None:
    """Let the folder open at its front page."""
    if error is None:
        page = f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={root_doc}.html"><title>{project}</title>'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app) -> None:
    """Register the two steps above."""
    app.connect("source-read", prepare)
    app.connect("build-finished", lead_in)
