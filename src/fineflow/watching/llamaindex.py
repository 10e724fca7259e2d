"""LlamaIndex's span handler: measures an app that runs as it is, and says what ``optimize`` would save."""

from __future__ import annotations

import inspect
from typing import Any

from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.workflow import Workflow
from llama_index_instrumentation.span import BaseSpan
from pydantic import PrivateAttr

from fineflow.adapters.llamaindex.dry_run import DryRuns, side_by_side
from fineflow.runtime.events import now
from fineflow.watching.report import Report
from fineflow.watching.runs import Run
from fineflow.watching.watcher import Predictions, Watcher


class SpanWatcher(Watcher):
    """Collects the runs of spans; those of an object's own inner methods belong to its run."""

    def _predictions(self) -> Predictions:
        return DryRuns(self._saved)

    def _at_once(self, run: Run) -> tuple[float, int]:
        return side_by_side(run.obj, [(each.obj, each.seconds) for each in run.children])

    def __init__(self) -> None:
        super().__init__()
        self._inner: dict[str, Run] = {}  # spans of an object's own inner methods, and the run that they belong to

    def _run(self, key: Any) -> Run | None:
        return self._inner.get(key) or super()._run(key)

    def enter(self, key: str, parent: str | None, obj: Any, given: inspect.BoundArguments) -> None:
        around = self._run(parent)
        # llama-index-instrumentation 0.4.2 names spans "Class.method-uuid"; those of steps come without the workflow.
        name, _, method = key[:-37].partition(".")
        if obj is None and around is not None and isinstance(around.obj, Workflow):
            self._begin(key, Run("step", method, None, (), now(), entry=method), around, (method, given), around.obj)
        elif around is not None and (obj is None or _inside(around, obj)):
            self._inner[key] = around
        else:
            self._begin(key, Run("chain", name, obj, (), now(), entry=method.lstrip("_")), around, None, obj)

    def leave(self, key: str, *, failed: bool) -> None:
        if self._inner.pop(key, None) is None:
            self._end(key, failed=failed)


def _inside(run: Run | None, obj: Any) -> bool:
    while run is not None:
        if run.obj is obj:
            return True
        run = run.parent
    return False


class FineflowSpanHandler(BaseSpanHandler[BaseSpan]):
    """Measures apps that run as they are, and reports what ``fineflow.optimize`` would save.

    Add it to the root dispatcher, and print ``handler.report()`` after a few calls::

        from llama_index.core.instrumentation import get_dispatcher

        handler = FineflowSpanHandler()
        get_dispatcher().add_span_handler(handler)

    It sees all sync and async calls of the process. It keeps the times of the latest 32 calls of up to 256 apps, no
    inputs and no outputs. It changes nothing that a call does.
    """

    _watcher: SpanWatcher = PrivateAttr(default_factory=SpanWatcher)

    @classmethod
    def class_name(cls) -> str:
        """Returns the name that LlamaIndex shows."""
        return "FineflowSpanHandler"

    @property
    def watcher(self) -> SpanWatcher:
        """What collects the runs."""
        return self._watcher

    def report(self) -> Report:
        """Returns what was seen so far, and what would be gained: prints as text; ``to_html()``, ``to_json()``."""
        return self._watcher.report()

    def clear(self) -> None:
        """Forgets what was seen."""
        self._watcher.clear()

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def span_enter(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any = None,
        parent_id: str | None = None,
        tags: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """See LlamaIndex."""
        self._watcher.enter(id_, parent_id, instance, bound_args)

    def span_exit(
        self, id_: str, bound_args: inspect.BoundArguments, instance: Any = None, result: Any = None, **kwargs: Any
    ) -> None:
        """See LlamaIndex."""
        self._watcher.leave(id_, failed=False)

    def span_drop(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any = None,
        err: BaseException | None = None,
        **kwargs: Any,
    ) -> None:
        """See LlamaIndex."""
        self._watcher.leave(id_, failed=True)

    def new_span(self, *args: Any, **kwargs: Any) -> None:
        """Makes no span: the handler keeps times of its own."""

    def prepare_to_exit_span(self, *args: Any, **kwargs: Any) -> None:
        """See ``new_span``."""

    def prepare_to_drop_span(self, *args: Any, **kwargs: Any) -> None:
        """See ``new_span``."""
