"""The figure of how a call runs: stock above, the graph that runs ahead below it, the engines at the bottom."""

from __future__ import annotations

from tools.pictures.svg import Drawing, Palette

WIDTH, HEIGHT = 860, 386
STEPS = ("expand question", "search", "rerank", "answer")  # of the app; stock goes through them in this order
STEP, GAP, FIRST = 130, 24, 250
TITLE = (
    "Your app calls the optimized object. Stock, the framework's own code, runs every step and claims its result. "
    "The graph of primitives runs ahead on engines that all calls share."
)


def architecture(palette: Palette) -> str:
    """Returns the SVG."""
    drawing = Drawing(WIDTH, HEIGHT, TITLE, palette)
    _lane(
        drawing,
        8,
        92,
        "Stock runs the call",
        "rag.invoke(question) arrives here:",
        "the own code of LangChain, LlamaIndex",
        "with callbacks, traces, streams, errors",
    )
    _lane(drawing, 132, 138, "The graph runs ahead", "each primitive starts", "when its inputs are ready")
    _lane(drawing, 302, 76, "Engines and services", "each with one queue for all calls", "of the process, or remote")
    for place, step in enumerate(STEPS):
        x = _x(place)
        drawing.box(x, 34, STEP, 34, palette.stock if palette.name == "light" else palette.faint, round=5)
        drawing.text(x + STEP / 2, 56, step, anchor="middle", bold=True)
        if place:
            drawing.line([(x - GAP + 2, 51), (x - 2, 51)], palette.muted, head=True)
        drawing.line([(x + STEP / 2, 148), (x + STEP / 2, 71)], palette.ours, dashed=True, head=True)
    drawing.text(_x(0) + STEP / 2 + 8, 120, "claims the result", size=12, colour=palette.ours)
    _graph(drawing)
    for place, name in enumerate(("LLM", "embedding model", "vector store", "reranker")):
        x = _x(place)
        drawing.box(x, 322, STEP, 34, palette.surface, line=palette.muted, round=5)
        drawing.text(x + STEP / 2, 344, name, anchor="middle")
        drawing.line([(x + STEP / 2, 270), (x + STEP / 2, 319)], palette.muted, head=True)
    return drawing.svg()


def _x(place: int) -> float:
    return FIRST + place * (STEP + GAP)


def _lane(drawing: Drawing, y: float, height: float, title: str, *more: str) -> None:
    palette = drawing.palette
    drawing.box(0.5, y + 0.5, WIDTH - 1, height, palette.surface, line=palette.faint, round=8)
    drawing.text(14, y + 26, title, size=14, bold=True)
    for line, words in enumerate(more):
        drawing.text(14, y + 46 + 17 * line, words, size=11, colour=palette.muted)


def _graph(drawing: Drawing) -> None:
    """Queries are searched and their documents scored one by one; the known part of the last prompt is prefilled."""
    palette = drawing.palette

    def primitive(x: float, y: float, name: str, width: float = STEP) -> None:
        drawing.box(x, y, width, 22, palette.ours, round=4)
        drawing.text(x + width / 2, y + 15, name, size=12, colour=palette.on_ours, anchor="middle", bold=True)

    for line, y in enumerate((150, 180, 210)):
        if line == 0:
            primitive(_x(0), y, "decode")
        primitive(_x(1), y, f"embed, search {line + 1}")
        primitive(_x(2), y, f"score {line + 1}")
        drawing.line([(_x(1) + STEP, y + 11), (_x(2) - 2, y + 11)], palette.muted, head=True)
        if line:
            drawing.line(
                [(_x(0) + STEP - 16 * line, 172), (_x(0) + STEP - 16 * line, y + 11), (_x(1) - 2, y + 11)],
                palette.muted,
                head=True,
            )
            drawing.line([(_x(2) + STEP, y + 11), (_x(3) - 14, y + 11), (_x(3) - 14, 161)], palette.muted)
    drawing.line([(_x(0) + STEP, 161), (_x(1) - 2, 161)], palette.muted, head=True)
    drawing.line([(_x(2) + STEP, 161), (_x(3) - 2, 161)], palette.muted, head=True)
    primitive(_x(3), 150, "decode")
    primitive(_x(0), 240, "prefill what is known of the prompt", 2 * STEP + GAP)
    drawing.line([(_x(1) + STEP, 251), (_x(3) + STEP / 2, 251), (_x(3) + STEP / 2, 174)], palette.muted, head=True)
