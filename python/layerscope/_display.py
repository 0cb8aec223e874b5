"""A run in Jupyter: the answer of its report, without the rest."""

import hashlib
import re
import tempfile
from pathlib import Path

from ._command import call

# The report's classes, within an element of ours. Colours are its own: variables that `of_report` puts in the place of LIGHT and DARK.
# Notebooks say in an attribute or class whether their theme is dark; elsewhere the browser's setting holds.
STYLE = """
.layerscope-run { LIGHT }
@media screen and (prefers-color-scheme: dark) { .layerscope-run { DARK } }
[data-jp-theme-light=true] .layerscope-run, .vscode-light .layerscope-run, html[theme=light] .layerscope-run { LIGHT }
[data-jp-theme-light=false] .layerscope-run, .vscode-dark .layerscope-run, html[theme=dark] .layerscope-run { DARK }
.layerscope-run { box-sizing: border-box; max-width: 60rem; padding: 1rem 1.25rem; border: 1px solid var(--figure-line); border-radius: 8px;
  background: var(--figure-background); color: var(--figure-text); font: 14px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
.layerscope-run p, .layerscope-run dl, .layerscope-run ul { margin: 0 0 .75rem; color: inherit; }
.layerscope-run .headline { margin: 0; font-size: 1.5rem; font-weight: 700; line-height: 1.2; }
.layerscope-run :is(.of, .note, .unit, figcaption span) { color: var(--figure-weak-text); }
.layerscope-run .facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .75rem 1.25rem; }
.layerscope-run .facts :is(dt, dd) { float: none; width: auto; margin: 0; padding: 0; }
.layerscope-run .facts dt { font-size: .85rem; font-weight: 600; }
.layerscope-run .facts .figure { font-size: 1.15rem; font-variant-numeric: tabular-nums; }
.layerscope-run .facts :is(.unit, .note) { font-size: .8rem; line-height: 1.35; }
.layerscope-run figure { margin: 0 0 .75rem; }
.layerscope-run figcaption { font-size: .85rem; line-height: 1.4; margin-bottom: .25rem; }
.layerscope-run svg { display: block; width: 100%; height: auto; }
.layerscope-run .hover:hover { fill: var(--figure-text); fill-opacity: .07; }
.layerscope-run ul { padding-left: 1.25rem; }
.layerscope-run li { margin: .15rem 0; }
.layerscope-run .scroll { overflow-x: auto; margin: 0 0 .75rem; }
.layerscope-run table { border-collapse: collapse; border: 0; margin: 0; font-size: .85rem; }
.layerscope-run caption { text-align: left; color: var(--figure-weak-text); }
.layerscope-run tr { background: none; }
.layerscope-run :is(th, td) { padding: .15rem .75rem .15rem 0; border: 0; border-bottom: 1px solid var(--figure-grid); text-align: left; color: inherit; }
.layerscope-run :is(th, td).number { text-align: right; font-variant-numeric: tabular-nums; }
.layerscope-run summary { cursor: pointer; font-size: .85rem; }
"""


def answer(run: Path) -> str | None:
    """The answer as HTML that loads nothing and changes nothing around it; None where the report has none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.html")
        call(["report", run], {"out": path}, shown=False)
        return of_report(path.read_text(encoding="utf-8"))


def of_report(report: str) -> str | None:
    section = re.search(r'<section id="answer".*?</h2>(.*?)</section>', report, re.DOTALL)
    light = re.search(r":root ?\{(.*?)\}", report)
    dark = re.search(r"prefers-color-scheme: ?dark\) ?\{ ?:root ?\{(.*?)\}", report)
    if not (section and light and dark):
        return None
    # The figure's data are in the run's tables; the narrow drawing is for telephones.
    body = re.sub(r'<details>.*?</details>|<svg class="small".*?</svg>', "", section[1], flags=re.DOTALL)
    # Ids are to be unique in a notebook of several runs. Within HTML, SVG needs no namespace.
    mark = hashlib.sha256(body.encode()).hexdigest()[:8]
    body = re.sub(r' (id|aria-labelledby|aria-describedby)="', rf' \1="layerscope-{mark}-', body)
    body = body.replace(' xmlns="http://www.w3.org/2000/svg"', "")
    style = STYLE.replace("LIGHT", f"color-scheme: light; {light[1]}").replace("DARK", f"color-scheme: dark; {dark[1]}")
    return f'<div class="layerscope-run"><style>{style}</style>{body}</div>'
