"""LlamaIndex's span handler: predictions against measurements, on apps as people write them; it changes nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.handler import CLOSE, predicted_index
from benchmarks.public.llamaindex_apps import APPS
from benchmarks.public.llamaindex_kit import Kit
from llama_index.core.instrumentation import get_dispatcher

from fineflow.adapters.inner_calls.dry_calls import inside, predicting
from fineflow.llamaindex import FineflowSpanHandler
from fineflow.testing import virtual_threads
from fineflow.watching.watcher import watched

needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")


@pytest.fixture
def handler() -> Iterator[FineflowSpanHandler]:
    made, dispatcher = FineflowSpanHandler(), get_dispatcher()
    dispatcher.add_span_handler(made)
    yield made
    dispatcher.span_handlers.remove(made)


@needs_virtual_threads
@pytest.mark.parametrize("name", APPS)
def test_predicts_what_apps_take(name: str) -> None:
    now, guess, took = predicted_index(APPS[name])
    assert guess == pytest.approx(took, rel=CLOSE)
    assert now >= took


def _graded() -> Any:
    return APPS["graded"].make(Kit(0))


def _seen(answer: Any) -> Any:
    return str(answer), [(each.text, each.score) for each in answer.source_nodes]


def test_changes_nothing_and_leaves_nothing(handler: FineflowSpanHandler) -> None:
    found = _seen(_graded().query("What is the capital of France?"))
    get_dispatcher().span_handlers.remove(handler)
    assert found == _seen(_graded().query("What is the capital of France?"))
    get_dispatcher().add_span_handler(handler)
    assert not predicting() and not watched() and inside.get() is None
    assert not handler._watcher._open and not handler._watcher._inner
    assert not handler.open_spans and not handler.completed_spans


def test_reports_each_app_and_what_it_does_not_take(handler: FineflowSpanHandler) -> None:
    app = _graded()
    for _ in range(3):
        app.query("What is the capital of France?")
    [report] = [each for each in handler.report().apps if each.name == "RetrieverQueryEngine"]
    assert (report.calls, report.failed, report.counted) == (3, 0, 2)


def test_errors_are_the_users_and_are_counted(handler: FineflowSpanHandler) -> None:
    app = _graded()

    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("the store is gone")

    app.retriever._retrieve = fails
    with pytest.raises(ValueError, match="the store is gone"):
        app.query("What is the capital of France?")
    [report] = [each for each in handler.report().apps if each.failed]
    assert (report.calls, report.failed, report.counted) == (1, 1, 0)
    assert not predicting() and not watched()


def test_keeps_no_objects(handler: FineflowSpanHandler) -> None:
    app = _graded()
    app.query("What is the capital of France?")
    gone = weakref.ref(app)
    del app
    gc.collect()
    assert gone() is None
    handler.clear()
    assert not handler.report().apps
