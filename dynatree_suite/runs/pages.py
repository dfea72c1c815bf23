"""Executed notebooks as HTML pages that open without a network.

Plotly figures are stored in the notebooks as data; the pages of notebooks draw them with one plotly.min.js in
their folder, the report with its own copy. The content of the pages comes from the notebooks; `report` links them.
"""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from ..files import write_atomically

try:
    import nbformat
    from jinja2 import DictLoader
    from latex2mathml.converter import convert
    from nbconvert import HTMLExporter
    from plotly.offline import get_plotlyjs

    from dynatree_lib.plots.theme import FIGURE_TYPE
except ImportError as error:
    raise ImportError("The report needs nbconvert: pip install 'dynatree-lib[notebooks]'.") from error

WIDGET_TYPE = "application/vnd.jupyter.widget-view+json"
WIDGET_NOTE = "<p><em>Here are controls, where the notebook runs in JupyterLab, Colab or VS Code.</em></p>"
SCRIPT = "plotly.min.js"

# Code is matched first and left alone; a formula touches its dollar signs, so that prices are not formulas.
FORMULA = re.compile(r"```.*?```|`[^`]*`|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^\s$](?:[^$`]*[^\s$`])?)\$", re.DOTALL)

# nbconvert's own template loads RequireJS and MathJax from the internet: those blocks are replaced.
TEMPLATE = """{%% extends 'lab/index.html.j2' %%}
{%% block html_head_js %%}%s{%% endblock %%}
{%% block jupyter_widgets %%}{%% endblock %%}
{%% block html_head_js_mathjax %%}{%% endblock %%}
{%% block html_head_js_mermaidjs %%}{%% endblock %%}
"""


def asset(name: str) -> str:
    """Return the content of a text file beside this module."""
    return resources.files("dynatree_suite.runs").joinpath(name).read_text(encoding="utf-8")


def figure_scripts(inline: bool = False) -> str:
    """Return the script tags that a page needs in its head to draw figures, plotly inside the page or in its folder."""
    plotly = f"<script>{get_plotlyjs()}</script>" if inline else f'<script src="{SCRIPT}"></script>'
    return f"{plotly}\n<script>\n{asset('report.js')}</script>"


def figure_html(figure_json: str) -> str:
    """Return a figure as an element that the script fills.

    Every `<` is escaped, as JSON can: `</script>` would end the script, and `<!--<script>` keep it from ending.
    """
    safe = figure_json.replace("<", "\\u003c")
    return f'<div class="dynatree-figure"><script type="application/json">{safe}</script></div>'


def make_exporter(folder: Path) -> Any:
    """Return an nbconvert exporter for pages without external references; plotly's script is put into their folder."""
    write_atomically(folder / SCRIPT, get_plotlyjs())
    template = TEMPLATE % ("{% raw %}" + figure_scripts() + "{% endraw %}")
    return HTMLExporter(extra_loaders=[DictLoader({"dynatree.html.j2": template})], template_file="dynatree.html.j2")


def export_page(exporter: Any, notebook: Path, page: Path) -> None:
    """Write an executed notebook as a page."""
    content = nbformat.read(notebook, as_version=4)
    content.metadata.pop("widgets", None)  # widgets are not drawn here; each has a static figure beside it
    for cell in content.cells:
        if cell.cell_type == "markdown":
            cell.source = draw_formulas(cell.source)
        for output in cell.get("outputs", []):
            figure = output.get("data", {}).get(FIGURE_TYPE)
            if figure is not None:
                output["data"] = {"text/html": figure_html(json.dumps(figure))}
            elif WIDGET_TYPE in output.get("data", {}):
                output["data"] = {"text/html": WIDGET_NOTE}
    html, _ = exporter.from_notebook_node(content, resources={"metadata": {"name": page.stem}})
    write_atomically(page, html)


def draw_formulas(markdown: str) -> str:
    """Return a text with LaTeX formulas as MathML, which browsers draw; a formula that cannot be converted stays."""

    def drawn(match: re.Match[str]) -> str:
        formula = match["block"] or match["inline"]
        if not formula:
            return match[0]
        try:
            return str(convert(formula, display="block" if match["block"] else "inline"))
        except Exception:  # of any kind: the reader still gets the LaTeX
            return match[0]

    return FORMULA.sub(drawn, markdown)
