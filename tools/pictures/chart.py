"""The chart of measured gains: figures of ``benchmarks.public.community_apps --json FILE``, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from tools.pictures.svg import Drawing, Palette

LABELS = {
    "draft_and_judge": "drafts from several searches, each judged",
    "summary_loop": "map-reduce summary in a comprehension",
    "llm_reranking": "a retriever that rates documents by a model",
    "summary_map_reduce": "load_summarize_chain, map_reduce",
    "contextual_retrieval": "a model situates each chunk of a document",
    "article_analysis": "independent chains in a service class",
    "retrieval_qa_extractor": "RetrievalQA with an LLMChainExtractor",
    "corrective_rag": "corrective RAG: documents graded in a loop",
    "decomposition_individual": "sub-questions answered one by one",
    "self_rag": "self-RAG: graded documents, checked answer",
    "guarded_router": "a topic check in front of the search",
    "decomposition_recursive": "sub-questions that build on each other",
}
"""What each app does; apps that gain less than 2 % are one row together and need no label."""

WIDTH, LEFT, ROW, BAR, TOP = 860, 318, 30, 10, 62
SCALE = 56  # pixels for a second
TIMES = "\N{MULTIPLICATION SIGN}"


def chart(seconds: Mapping[str, Mapping[str, float]], palette: Palette) -> str:
    """Returns the SVG. seconds: of stock and of fineflow, by "app, method"; the sync method is drawn."""
    apps = {name.removesuffix(", invoke"): each for name, each in seconds.items() if name.endswith(", invoke")}
    times = {name: each["stock"] / each["fineflow"] for name, each in apps.items()}
    gaining = sorted((name for name in apps if times[name] >= 1.02), key=lambda name: (-times[name], name))
    even = [apps[name]["stock"] for name in apps if name not in gaining]
    height = TOP + ROW * (len(gaining) + bool(even)) + 40
    title = f"Seconds of invoke, stock and fineflow, of {len(apps)} LangChain apps: {len(gaining)} of them gain."
    drawing = Drawing(WIDTH, height, title, palette)
    _legend(drawing, len(apps))
    for second in range(8):
        x = LEFT + second * SCALE
        drawing.line([(x, TOP - 8), (x, height - 34)], palette.faint)
        drawing.text(x, height - 18, f"{second} s", size=11, colour=palette.muted, anchor="middle")
    for place, name in enumerate(gaining):
        y = TOP + place * ROW
        stock, ours = apps[name]["stock"], apps[name]["fineflow"]
        drawing.text(LEFT - 12, y + 14, LABELS[name], anchor="end")
        drawing.box(LEFT, y, stock * SCALE, BAR, palette.stock, round=2)
        drawing.box(LEFT, y + BAR + 1, ours * SCALE, BAR, palette.ours, round=2)
        drawing.text(LEFT + stock * SCALE + 8, y + 8, f"{stock:.2f} s", size=11, colour=palette.muted)
        drawing.text(LEFT + ours * SCALE + 8, y + 21, f"{ours:.2f} s", size=11, colour=palette.ours, bold=True)
        drawing.text(
            WIDTH - 8, y + 15, f"{times[name]:.1f}{TIMES}", size=15, colour=palette.ours, bold=True, anchor="end"
        )
    if even:
        y = TOP + len(gaining) * ROW
        drawing.text(LEFT - 12, y + 14, f"{len(even)} more apps, most of them linear", anchor="end")
        span = f"{min(even):.2f} to {max(even):.2f} s, as long as without fineflow"
        drawing.text(LEFT + 8, y + 14, span, colour=palette.muted)
        drawing.text(WIDTH - 8, y + 15, f"1.0{TIMES}", size=15, colour=palette.muted, bold=True, anchor="end")
    return drawing.svg()


def _legend(drawing: Drawing, apps: int) -> None:
    palette = drawing.palette
    drawing.text(0, 16, f"{apps} LangChain apps as people write them, unchanged", size=15, bold=True)
    about = "Seconds of invoke. A model call takes 1 s, a search 0.25 s, on an emulated network in virtual time."
    drawing.text(0, 36, about, size=12, colour=palette.muted)
    for x, colour, name in ((686, palette.stock, "LangChain"), (774, palette.ours, "fineflow")):
        drawing.box(x, 7, 10, 10, colour, round=2)
        drawing.text(x + 16, 16, name, size=12)
