"""Prefills ahead only where an engine would have nothing else to do for the program.

While an engine writes one text, prefilling the beginning of another prompt slows the writing by about as much as it
saves later, and the blocks may be evicted before they are used. A program consists of little else than such waits, so
only what waits for another engine, or for the user's functions, is prefilled ahead.
"""

from __future__ import annotations

from fineflow.ir import Graph, Op
from fineflow.passes import prefill
from fineflow.passes.beginnings import Prompt, Ready, prompts_of


def spare_prefills(graph: Graph) -> Graph:
    """Runs the pass ``prefill`` without the prompts all of whose late variables their own engine writes."""
    ready = Ready(graph)
    busy = {prompt.prefill.name: prompt.prefill for prompt in prompts_of(graph) if _competes(prompt, graph, ready)}
    hidden = graph.with_primitives(
        p.with_(meta={"whole_prompts": _why(p.engine)}) if p.name in busy else p for p in graph
    )
    return (done := prefill(hidden)).with_primitives(busy.get(p.name, p) for p in done)


def _why(engine: str | None) -> str:
    return f"{engine} itself writes what it waits for, and would be slowed by as much"


def _competes(prompt: Prompt, graph: Graph, ready: Ready) -> bool:
    """Returns True if a prompt waits, and for nothing but texts of its own engine."""
    late = ready.waits(prompt.rendered.name)
    return bool(late) and all(graph[n].op is Op.DECODE and graph[n].engine == prompt.prefill.engine for n in late)
