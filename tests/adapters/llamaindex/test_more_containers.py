"""Every engine of LlamaIndex that is made of others: stock's answer, and an event loop that is never held."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer
from llama_index.core import Settings
from llama_index.core.callbacks import CallbackManager
from more_containers import ENGINES, Parts

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import BlockingEmbedding, BlockingLLM, FakeEmbedding, FakeLLM, FakeStore
from fineflow.testing.stalls import held

SLOW = 0.5


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """What engines ask LlamaIndex for."""
    Settings._llm, Settings._embed_model = FakeLLM(answers=answer), FakeEmbedding()
    yield
    Settings._llm = Settings._embed_model = None


def quick(manager: CallbackManager, folder: Path, kind: Any = FakeLLM, memory: bool = False) -> Parts:
    def llm(said: Any) -> Any:
        asked = {"answers": said} if callable(said) else {"default": said}
        return kind(callback_manager=manager, **asked)

    return Parts(llm, lambda: FakeEmbedding(callback_manager=manager), FakeStore, manager, folder, memory)


@pytest.mark.parametrize("kind", [FakeLLM, BlockingLLM])
@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_answers_as_stock(name: str, kind: Any, tmp_path: Path, capsys: Any) -> None:
    # What is not recognised of RetrieverQueryEngine's embedding in threads reports in any order.
    seen = assert_same_index(
        lambda manager: ENGINES[name](quick(manager, tmp_path, kind)), QUESTION, entries=("query", "aquery")
    )
    assert all(each.text and not each.error for each in seen.values())


@pytest.mark.parametrize("name", ["a knowledge graph", "texts and pictures"])
def test_a_class_that_is_deprecated_is_warned_of_where_it_is_made(name: str, tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="deprecated class"):
        made = ENGINES[name](quick(CallbackManager([]), tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        assert str(fineflow.optimize(made, strict=True).query(QUESTION))


def test_a_database_in_memory_stays_in_the_thread_of_its_caller(tmp_path: Path) -> None:
    """SQLite opens another, empty one in another thread."""
    for name in ("tables", "tables and another engine"):
        seen = assert_same_index(
            lambda manager, name=name: ENGINES[name](quick(manager, tmp_path, memory=True)),
            QUESTION,
            entries=("query", "aquery"),
        )
        assert "no such table" not in str(seen)
        assert not seen["aquery"].error


@fineflow.external
class _BlockingStore(FakeStore):
    """Its async method is the sync one, as in most stores."""

    async def aquery(self, query: Any, **kwargs: Any) -> Any:
        return self.query(query, **kwargs)


def blocking(folder: Path) -> Parts:
    def llm(said: Any) -> Any:
        asked = {"answers": said} if callable(said) else {"default": said}
        return BlockingLLM(latency=SLOW, **asked)

    embedding = lambda: BlockingEmbedding(latency=SLOW)  # noqa: E731
    return Parts(llm, embedding, lambda: _BlockingStore(latency=SLOW), CallbackManager([]), folder, slow=SLOW)


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
@pytest.mark.parametrize("name", ENGINES)
def test_no_engine_holds_the_event_loop(name: str, tmp_path: Path) -> None:
    made = ENGINES[name](blocking(tmp_path))
    found = fineflow.optimize(made, strict=True, trust="interfaces" if name == "the user's own" else "packages")
    seen = held(lambda: found.aquery(QUESTION))
    assert seen.seconds < 0.05, f"{seen.by} held the loop for {seen.seconds:.3f} s"
    assert str(seen.value)


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
@pytest.mark.parametrize("name", sorted(ENGINES.keys() - {"the user's own"}))
def test_stock_does(name: str, tmp_path: Path) -> None:
    """The measure sees what is prevented."""
    made = ENGINES[name](blocking(tmp_path))
    assert held(lambda: made.aquery(QUESTION), warm=False).seconds >= SLOW


def test_retries_have_their_engine_run_sooner(tmp_path: Path) -> None:
    from fineflow.testing.gates import Gate

    gate = Gate()
    made = ENGINES["retry"](quick(CallbackManager([]), tmp_path))
    made._query_engine._response_synthesizer._llm = FakeLLM(answers=answer, gate=gate)

    async def call() -> str:
        asking = asyncio.create_task(asyncio.to_thread(fineflow.optimize(made, strict=True).query, QUESTION))
        await gate.arrived(3)  # stock asks for the second when the first has been given
        gate.open()
        return str(await asking)

    assert "Response 3" in asyncio.run(call())
