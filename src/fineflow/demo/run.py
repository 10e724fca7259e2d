"""``fineflow demo``: compares the same app, stock and optimized, on the same models."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

import fineflow
from fineflow.demo import data, report
from fineflow.demo.components import Components, Progress, load
from fineflow.demo.frameworks import FRAMEWORKS, Framework
from fineflow.demo.inputs import Settings, one_line
from fineflow.demo.measure import FINEFLOW, SIDES, STOCK, Measured, measure
from fineflow.errors import UsageError
from fineflow.observe import Track, timeline_html
from fineflow.observe.critical_intervals import critical

Say = Callable[[str], None]


def run(settings: Settings, load: Callable[[Settings, Progress], Components] = load) -> int:
    """Runs the demo and prints the results. Returns 0 if all results are equal; 1 if some differ, or the app failed.

    Raises UsageError for errors that the user can fix. ``load`` creates the components.
    """
    framework = FRAMEWORKS[settings.framework]
    say: Say = partial(print, file=sys.stderr) if settings.json else print
    with ExitStack() as stack:
        folder, expected = _corpus(settings, stack)
        passages, files = _read(folder, framework.app)
        components = stack.enter_context(closing(load(settings, _bar("loading models"))))
        store, seconds = _index(passages, components, framework.app)
        about: dict[str, Any] = {
            "framework": framework.title,
            "models": components.about,
            "documents": {
                "folder": str(settings.docs or "bundled"),
                "files": files,
                "passages": len(passages),
                "index_seconds": seconds,
            },
            "hardware": report.hardware(),
        }
        say(report.header(about))

        app = framework.app.build(components.llm, store, components.reranker)
        rag = fineflow.optimize(app)  # the one line
        measured = _ask({STOCK: app, FINEFLOW: rag}, framework, settings, components, expected, say)
        plan = str(fineflow.explain(app))
    if len(measured) > 1:
        say(report.summary(measured))
    say(f"{report.method(settings.repeat)}\n")
    if settings.plan:
        say(f"The plan\n\n{plan}\n")
    _write_timeline(settings.timeline, measured)
    say(f"timeline: {settings.timeline}" + ("" if settings.plan else " (the plan: --plan)"))
    if settings.json:
        about["timeline"] = str(settings.timeline)
        found = report.record(measured, expected, repeat=settings.repeat, plan=plan, **about)
        print(json.dumps(found, indent=2, ensure_ascii=False, default=str))
    return 0 if all(item.equal and item.reference.error is None for item in measured) else 1


def _corpus(settings: Settings, stack: ExitStack) -> tuple[Path, dict[str, str]]:
    """Returns the folder of documents, and the known answers by question (only for the bundled ones)."""
    if settings.docs is not None:
        return settings.docs, {}
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fineflow-demo-")))
    return folder, {question.text: question.answer for question in data.write_corpus(folder)}


def _read(folder: Path, app: Any) -> tuple[list[Any], int]:
    """Returns the passages of all documents below a folder, and their number of files."""
    try:
        documents = app.load_documents(folder)
    except OSError as error:
        raise UsageError(
            f"--docs {folder}: {one_line(error)}; make the files readable, or give another folder"
        ) from None
    if not documents:
        suffixes = ", ".join(app.SUFFIXES)
        raise UsageError(f"--docs {folder}: no readable text; expected files ending in {suffixes} that are not blank")
    return app.split_documents(documents), len(documents)


def _index(passages: list[Any], components: Components, app: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    store = app.index(passages, components.embeddings, _bar("indexing"))
    return store, time.perf_counter() - start


def _ask(
    apps: dict[str, Any],
    framework: Framework,
    settings: Settings,
    components: Components,
    expected: dict[str, str],
    say: Say,
) -> list[Measured]:
    questions = settings.questions or data.QUESTIONS
    found = []
    for number, question in enumerate(questions, 1):
        place = f"[{number}/{len(questions)}]"
        item = measure(
            apps,
            question,
            framework,
            reset=components.reset,
            repeat=settings.repeat,
            progress=_bar(f"{place} running both"),
        )
        say(report.question(item, place, expected.get(question)) + "\n")
        found.append(item)
    return found


def _bar(title: str) -> Progress:
    """Returns a wrapper that shows a progress bar on stderr, if that is a terminal."""

    def wrap(items: Iterable[Any]) -> Iterable[Any]:
        bar: Iterable[Any] = tqdm(items, desc=title, file=sys.stderr, disable=None, leave=False)
        return bar

    return wrap


def _write_timeline(file: Path, measured: list[Measured]) -> None:
    """Writes the timeline: for each question and entry point stock above fineflow, each by its run of median time."""
    tracks: list[Track] = []
    for item in measured:
        for entry in item.entries:
            for side in SIDES:
                typical = item.typical(side, entry)
                name = f"{side} {entry}: {item.question}"
                against = "" if side == STOCK else tracks[-1].name
                ends = typical.start, typical.start + typical.seconds
                path = critical(typical.intervals, *ends, typical.traces)
                tracks.append(Track(name, typical.intervals, *ends, against, path))
    try:
        file.write_text(timeline_html(tracks, title="fineflow demo: stock above, fineflow below"), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--timeline {file}: {one_line(error)}; give a file that can be written") from None
