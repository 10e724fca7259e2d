"""Colours and layout of timelines. Light and dark follow the reader's setting; nothing is loaded."""

from __future__ import annotations

PALETTE = (  # light, dark
    ("#4338ca", "#818cf8"),
    ("#b45309", "#f59e0b"),
    ("#0f766e", "#2dd4bf"),
    ("#be185d", "#f472b6"),
    ("#1d4ed8", "#60a5fa"),
    ("#4d7c0f", "#a3e635"),
    ("#7e22ce", "#c084fc"),
)
CODE = ("#475569", "#94a3b8")
"""Of what is no component."""


def _colours(which: int) -> str:
    return "".join(f";--c{i}:{pair[which]}" for i, pair in enumerate((*PALETTE, CODE)))


STYLE = (
    "*{box-sizing:border-box}:root{color-scheme:light dark;--ink:#1e293b;--dim:#5b6b81;--paper:#fff;--grid:#e2e8f0;"
    f"--lane:#f8fafc;--end:#dc2626{_colours(0)}}}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e2e8f0;--dim:#94a3b8;--paper:#0f172a;--grid:#263349;"
    f"--lane:#131d33;--end:#f87171{_colours(1)}}}}}"
    "html{overflow-x:hidden}"
    "body{font:14px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;margin:0;padding:22px 26px 150px;"
    "color:var(--ink);background:var(--paper)}"
    "h1{font-size:15px;font-weight:600;margin:0 0 2px;color:var(--dim);overflow-wrap:anywhere}"
    ".lead{font-size:21px;line-height:1.3;font-weight:600;margin:0 0 8px;max-width:56em;overflow-wrap:anywhere}"
    "p{margin:0 0 6px;color:var(--dim);max-width:90ch}p.lead{color:var(--ink)}"
    "h2{font-size:15px;margin:20px 0 6px;overflow-wrap:anywhere}h2 small{font-weight:400;color:var(--dim);"
    "margin-left:8px}"
    ".keys{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:12.5px;color:var(--dim);align-items:center}"
    ".key{display:inline-flex;gap:6px;align-items:center}.key i{display:inline-block;width:26px;height:11px;"
    "border-radius:3px;position:relative}.key .thin{height:4px;opacity:.45;border-radius:0}"
    ".key .mark{width:2px;height:14px;border-radius:0;background:var(--end)}"
    # Zooming widens what scrolls; without it nothing does.
    ".zoom{position:absolute;opacity:0}.zooms{display:flex;gap:2px;font-size:12.5px;margin:10px 0 0;color:var(--dim);"
    "align-items:center}.zooms label{padding:3px 10px;border:1px solid var(--grid);border-radius:5px;cursor:pointer}"
    "#z1:checked~.zooms [for=z1],#z4:checked~.zooms [for=z4],#z16:checked~.zooms [for=z16]{color:var(--paper);"
    "background:var(--ink);border-color:var(--ink)}"
    ".zoom:focus-visible~.zooms{outline:2px solid var(--c0);outline-offset:2px}"
    "#z4:checked~section .wide{width:400%}#z16:checked~section .wide{width:1600%}"
    "#z4:checked~section .scroll,#z16:checked~section .scroll{overflow-x:auto}"
    ".row{display:grid;grid-template-columns:150px minmax(0,1fr);column-gap:10px}"
    ".lane{font-size:12.5px;color:var(--dim);text-align:right;overflow-wrap:anywhere;padding-top:2px;position:sticky;"
    "left:0;z-index:4;background:var(--paper)}"
    ".plot{position:relative;background-color:var(--lane);margin-bottom:3px}"
    ".grid{position:absolute;top:0;bottom:0;width:1px;background:var(--grid)}"
    ".end{position:absolute;top:0;bottom:-3px;width:2px;background:var(--end)}"
    ".axis{height:20px;position:relative;font-size:11.5px;color:var(--dim);overflow:hidden}"
    ".axis span{position:absolute;transform:translateX(-50%)}.axis span:first-child{transform:none}"
    ".axis b{position:absolute;white-space:nowrap;color:var(--end);transform:translateX(-100%);padding-right:4px;"
    "background:var(--paper);z-index:1}.axis b.near{transform:none;padding-left:4px}"
    ".bar{position:absolute;outline-offset:1px}.bar:hover,.bar:focus{z-index:3}"
    ".wait,.run,.path{position:absolute;top:0;bottom:0}"
    ".wait{top:38%;bottom:38%;opacity:.45;background:var(--c)}"
    # A name is cut at its end, where it is read last. <bdi> keeps it in its own direction.
    ".run{right:0;min-width:2px;overflow:hidden;border-radius:3px;font-size:11.5px;color:var(--ink);"
    "background:color-mix(in srgb,var(--c) 26%,var(--lane));box-shadow:inset 0 0 0 1px "
    "color-mix(in srgb,var(--c) 45%,var(--lane));container-type:inline-size}"
    ".run span{display:block;padding:0 4px;overflow:hidden;white-space:nowrap;"
    "text-overflow:ellipsis}"
    # In the narrowest bars the dots would take the place of a letter.
    "@container(max-width:44px){.run span{text-overflow:clip;padding:0 2px}}"
    "@container(max-width:11px){.run span{display:none}}"
    # Behind a bar there is more room than in it.
    ".behind{position:absolute;padding:0 3px;font-size:11.5px;color:var(--dim);"
    "overflow:hidden;white-space:nowrap;text-overflow:ellipsis;pointer-events:none}.named .run span{display:none}"
    ".small .behind{font-size:9.5px}.thin .behind{display:none}"
    ".path{top:auto;height:4px;background:var(--c);border-radius:0 0 3px 3px}"
    ".all .run{background:var(--c);color:var(--paper);box-shadow:none}.all .path{display:none}"
    ".small .run{font-size:9.5px;border-radius:2px}.small .run span{padding:0 3px}"
    ".thin .run{border-radius:1px}.thin .run span{display:none}"
    ".small .path,.thin .path{height:2px}"
    ".bar:hover .run,.bar:focus .run{outline:2px solid var(--ink);outline-offset:0}"
    ".bar:focus{outline:none}"
    # Details are at the bottom of the window, where no bar is too near an edge for them.
    ".tip{display:none;position:fixed;left:12px;right:12px;bottom:12px;max-width:640px;margin:0 auto;z-index:9;"
    "background:var(--paper);border:1px solid var(--dim);border-left:6px solid var(--c);border-radius:6px;"
    "padding:8px 12px;font-size:13px;box-shadow:0 6px 24px #0005;pointer-events:none;overflow-wrap:anywhere}"
    ".tip b{display:block;font-size:14px}.tip span{display:block;color:var(--dim)}"
    ".bar:focus .tip{display:block}.bar:hover .tip{display:block;z-index:10}"
    "details{margin:4px 0 0}summary{cursor:pointer;color:var(--dim);font-size:12.5px}"
    "table{border-collapse:collapse;font-size:12.5px;margin:6px 0;width:100%;max-width:900px}"
    "td,th{text-align:left;padding:2px 12px 2px 0;vertical-align:top;border-bottom:1px solid var(--grid);"
    "overflow-wrap:anywhere}th{color:var(--dim);font-weight:500}.n{white-space:nowrap;text-align:right}"
    "td.crit{font-weight:600}"
    "@media(max-width:640px){body{padding:14px 12px 150px}.lead{font-size:18px}"
    ".row{grid-template-columns:minmax(0,1fr)}.lane{text-align:left;padding-top:4px;font-size:11.5px;width:max-content;"
    "max-width:calc(100vw - 24px)}.axis span:nth-child(even){display:none}td,th{padding-right:8px}.far{display:none}}"
    "@media print{body{padding-bottom:22px}.zooms{display:none}}"
)
