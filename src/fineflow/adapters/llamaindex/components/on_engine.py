"""Base of LlamaIndex components on a batch engine: validates the engine and joins its queue."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, Field, PrivateAttr, field_validator

from fineflow.ir import Op
from fineflow.runtime.queues.batch_queue import BatchQueue, batch_queue_of


class OnEngine(BaseModel):
    """Component whose work goes through the queue of ``engine``. Raises ValueError if that does not serve ``op``."""

    on_engine: ClassVar[bool] = True  # its calls wait in a queue
    op: ClassVar[Op]

    engine: Any = Field(exclude=True, repr=False, frozen=True)
    _queue: BatchQueue = PrivateAttr()

    @field_validator("engine")
    @classmethod
    def _serves(cls, engine: Any) -> Any:
        if cls.op not in getattr(engine, "ops", ()):
            raise ValueError(f"expected an engine that serves {cls.op.value!r}, got {engine!r}")
        return engine

    def model_post_init(self, context: Any, /) -> None:
        """Joins the engine's queue."""
        super().model_post_init(context)
        self._queue = batch_queue_of(self.engine)
