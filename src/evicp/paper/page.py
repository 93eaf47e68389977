"""The whole reproduction as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from evicp.paper.figures import Drawing
from evicp.paper.rankings import Ranking
from evicp.paper.tables import PaperTable
from evicp.paper.trials import DIFFERENCES, LEAKS

_STYLE = """
:root { color-scheme: light; --ink: #1b1f24; --faint: #6a737d; --line: #d8dee4; --own: #fff3ec; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
figure { margin: 1.5rem 0; } figure svg { max-width: 100%; height: auto; } figcaption { color: var(--faint); }
.scroll { overflow: auto; max-height: 34rem; border: 1px solid var(--line); }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; width: 100%; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
th, td { padding: .15rem .5rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead { position: sticky; top: 0; } th { background: #f6f8fa; } th.text, td.text { text-align: left; }
th[colspan] { text-align: center; } .start { border-left: 1px solid var(--line); }
tr.ecp { background: var(--own); } tr.published { color: var(--faint); }
li { margin: .2rem 0; } nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; } .verdict { font-size: 1.05rem; }
"""


def render(
    about: Sequence[str],
    verdict: str,
    tables: Sequence[PaperTable],
    rankings: Sequence[Ranking],
    drawings: Sequence[Drawing],
) -> str:
    """The page: what was run, whether the ranking survives, figures, tables, and what the released protocol leaks."""
    links = "".join(f"<a href='#table{t.settings.number}'>Table {t.settings.number}</a>" for t in tables)
    sections = "".join(
        f"<section id='table{t.settings.number}'><h2>{escape(t.title)}</h2>{_table(t)}</section>" for t in tables
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        "<title>Evidential conformal prediction: the paper, reproduced</title>"
        f"<style>{_STYLE}</style><h1>The paper, reproduced</h1>"
        f"{_list(about)}<nav>{links}</nav>"
        f"<h2>Does the ranking hold under a clean protocol?</h2><p class=verdict>{escape(verdict)}</p>"
        f"{_list([str(r) for r in rankings])}"
        f"<h2>What the released protocol leaks</h2>{_list(LEAKS)}"
        f"<h2>What else the released code does</h2>{_list(DIFFERENCES)}"
        "<p>The clean protocol tunes temperature and lambda on a tenth of the rows, calibrates on three tenths and "
        "tests on the rest; all methods see the same splits.</p>"
        f"<h2>Figures</h2>{''.join(map(_figure, drawings)) or '<p>No figures.</p>'}{sections}</html>\n"
    )


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _table(table: PaperTable) -> str:
    element, _, notes = table.to_html().partition("</table>")
    return f"<div class=scroll tabindex=0>{element}</table></div>{notes}"


def _figure(drawing: Drawing) -> str:
    svg = drawing.svg.decode()
    svg = svg[svg.index("<svg") :].replace("<svg", f"<svg role='img' aria-label='{escape(drawing.title)}'", 1)
    return f"<figure>{svg}<figcaption>{escape(drawing.title)}. {escape(drawing.description)}</figcaption></figure>"
