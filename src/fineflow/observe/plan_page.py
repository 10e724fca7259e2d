"""A plan as one self-contained HTML page: both graphs, the rewrites and refusals, and their reasons."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from fineflow.ir.graph import Graph, Note
from fineflow.ir.text import NO_MARKS, Marks, format_graph
from fineflow.observe.plan_svg import STYLE, legend, to_svg
from fineflow.observe.sections import STOCK, Section, sections

_STYLE = (
    STYLE + "*{box-sizing:border-box}html{background:Canvas;color-scheme:light dark}"
    "body.ff{font-size:15px;line-height:1.5;margin:0;padding:24px 28px;color:var(--ink);background:var(--paper)}"
    "h1{font-size:22px;margin:0 0 6px}h2{font-size:16px;margin:28px 0 6px}p{margin:4px 0;max-width:80ch}"
    ".keys{display:flex;flex-wrap:wrap;gap:4px 18px;margin:10px 0;font-size:13px;color:var(--dim)}"
    ".key{display:inline-flex;align-items:center;gap:6px}.key i{width:11px;height:11px;border-radius:3px}"
    "input[name=view]{position:absolute;opacity:0}"
    ".tabs{display:flex;gap:4px;margin-top:18px;border-bottom:1px solid var(--line)}"
    ".tabs label{padding:6px 14px;cursor:pointer;border-radius:6px 6px 0 0;color:var(--dim)}"
    ".tabs label:hover{color:var(--ink)}"
    ".views{display:grid;gap:18px;padding-top:14px}.views>*{display:none;min-width:0}"
    "figure{margin:0;overflow:auto;max-height:max(88vh,900px);border-radius:8px;"
    "border:1px solid color-mix(in srgb,var(--line) 45%,transparent)}"
    "figure svg{display:block;margin:0 auto;max-width:100%;height:auto}"
    "h3{font-size:14px;margin:0 0 6px}h3 small{font-weight:400;color:var(--dim)}"
    "pre{overflow:auto;font:12px/1.5 ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;margin:0}"
    "#both:checked~.views{grid-template-columns:var(--columns)}"
    "#both:checked~.views>.p,#both:checked~.views>.e,#e:checked~.views>.e,#p:checked~.views>.p,"
    "#text:checked~.views>.t{display:block}"
    "#both:checked~.tabs [for=both],#e:checked~.tabs [for=e],#p:checked~.tabs [for=p],#text:checked~.tabs [for=text]"
    "{color:var(--ink);font-weight:600;box-shadow:inset 0 -2px var(--llm)}"
    "input:focus-visible~.tabs{outline:2px solid var(--llm);outline-offset:3px}"
    "table{border-collapse:collapse;font-size:13.5px}td,th{text-align:left;vertical-align:top;padding:4px 18px 4px 0;"
    "border-bottom:1px solid color-mix(in srgb,var(--line) 35%,transparent)}th{color:var(--dim);font-weight:500}"
    ".short{white-space:nowrap}"
    "td code{font:12px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;overflow-wrap:anywhere}"
    "@media(max-width:640px){body.ff{padding:16px 14px}.tabs label{padding:6px 9px}td code{white-space:nowrap}"
    ".wide{overflow-x:auto}}"
    ".stock{border-left:4px solid var(--code);padding:8px 14px;margin:14px 0}"
    "@media(max-width:900px){#both:checked~.views{grid-template-columns:minmax(0,1fr)}.e{order:-1}}"
)
_BESIDE = 60  # maximum primitives in both graphs together to show them side by side initially
AS_RUN = ("As run", "e-graph: each step starts as soon as its inputs are ready")


def to_html(
    p_graph: Graph | None,
    e_graph: Graph | None,
    notes: Iterable[Note] = (),
    *,
    title: str = "",
    summary: Sequence[str] = (),
    fallback: str = "",
    first: Sequence[Section] = (),
    tables: Sequence[Section] = (),
    marks: tuple[Marks, Marks] = (NO_MARKS, NO_MARKS),
    critical: str = "",
    order: str = STOCK,
) -> str:
    """Renders one self-contained page. ``summary``: sentences to show. ``fallback``: why everything runs as stock.

    first, tables: further ones, before and after the pictures. marks: timing marks of both pictures. critical: legend
    of their heavy frames. order: whose order the plan is compared with.
    """
    heading = escape(title or "Plan")
    parts = [f"<h1>{heading}</h1>", *(f"<p>{escape(sentence)}</p>" for sentence in summary)]
    if fallback:
        parts.append(f'<div class="stock"><b>Runs as stock.</b> {escape(fallback)}</div>')
    parts += [_table(*section) for section in first]
    if graphs := [graph for graph in (p_graph, e_graph) if graph is not None]:
        parts += [
            f'<div class="keys">{"".join(legend(graphs, critical=critical))}</div>',
            _views(p_graph, e_graph, marks, order),
        ]
    more_tables = sections(graphs[-1] if graphs else None, notes, gain=not fallback)
    parts += [_table(*section) for section in (*tables, *more_tables)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{heading}</title><style>{_STYLE}</style></head><body class="ff">{"".join(parts)}</body></html>'
    )


def _views(p_graph: Graph | None, e_graph: Graph | None, marks: tuple[Marks, Marks], order: str) -> str:
    written = "As written", f"p-graph: {'the order of the stock framework' if order == STOCK else order}"
    graphs = [("p", written, p_graph, marks[0]), ("e", AS_RUN, e_graph, marks[1])]
    there = [(key, names, graph, mark) for key, names, graph, mark in graphs if graph is not None]
    tabs = [(key, names[0]) for key, names, _, _ in reversed(there)] + [("text", "Text")]
    if len(there) > 1:
        beside = sum(len(graph.primitives) for _, _, graph, _ in there) <= _BESIDE
        tabs.insert(0 if beside else 2, ("both", "Side by side"))
    inputs = "".join(
        f'<input type="radio" name="view" id="{key}"{" checked" if index == 0 else ""}>'
        for index, (key, _) in enumerate(tabs)
    )
    labels = "".join(f'<label for="{key}">{label}</label>' for key, label in tabs)
    drawn = [to_svg(graph, title=name, marks=mark) for _, (name, _), graph, mark in there]
    columns = " ".join(f"minmax(0,{width}fr)" for svg in drawn for width in re.findall(r' width="(\d+)"', svg)[:1])
    views = [
        f'<section class="{key}"><h3>{name} <small>{about}</small></h3><figure>{svg}</figure></section>'
        for (key, (name, about), _, _), svg in zip(there, drawn, strict=True)
    ]
    text = "\n\n".join(format_graph(graph, title=name, marks=mark) for _, (name, _), graph, mark in there)
    views.append(f'<section class="t"><pre>{escape(text)}</pre></section>')
    return (
        f'{inputs}<nav class="tabs">{labels}</nav><div class="views" style="--columns:{columns}">{"".join(views)}</div>'
    )


def _table(heading: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join(
        "<tr>"
        + "".join(_cell(name, text, name == columns[-1]) for name, text in zip(columns, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<h2>{escape(heading)}</h2><div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _cell(column: str, text: str, last: bool) -> str:
    if column == "step":
        return f"<td><code>{escape(text)}</code></td>"
    return f"<td>{escape(text)}</td>" if last else f'<td class="short">{escape(text)}</td>'
