"""The first calls of a query engine, its plan included, do not plan and import on the event loop."""

from __future__ import annotations

from typing import Any

from llama_index.core import Document, VectorStoreIndex

import fineflow
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM
from fineflow.testing.stalls import entered

AWAY = (
    "fineflow.api.plan",
    "fineflow.adapters.core.shadows.Shadows.build",
    "_frozen_importlib._find_and_load_unlocked",
)


def test_first_calls_of_an_engine_plan_and_import_in_threads() -> None:
    documents = [Document(text=f"text {number}") for number in range(10)]
    index = VectorStoreIndex.from_documents(documents, embed_model=FakeEmbedding())
    engine = index.as_query_engine(llm=FakeLLM(), response_mode="tree_summarize")
    fast: Any = fineflow.optimize(engine, strict=True)

    async def calls() -> list[str]:
        return [str(await fast.aquery("why")) for _ in range(20)]

    found, called = entered(calls)
    assert found == [str(engine.query("why"))] * 20
    assert called.isdisjoint(AWAY)
    assert any(name.startswith("fineflow.adapters.core.session.") for name in called)  # it follows its plan
