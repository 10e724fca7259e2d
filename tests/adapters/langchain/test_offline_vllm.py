"""``VLLM`` of langchain-community: one thread makes the calls of all queries, several as one.

The LLM here stands for vllm's: like that, it must not be in two threads at once. tests/vllm has the real one.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("langchain_community")

from langchain_community.llms import VLLM
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableParallel

import fineflow
from fineflow.adapters.langchain.models.offline_vllm import engine_of
from fineflow.ir import Op
from fineflow.langchain import local_engine
from fineflow.runtime.queues.batch_queue import batch_queue_of
from fineflow.testing.gates import Gate, wait_until


class SamplingParams:
    """Those that a VLLM gives."""

    temperature: float
    stop: Any
    max_tokens: int

    def __init__(self, **given: Any) -> None:
        self.given = given


class LLM:
    """Answers by the prompt and its parameters; ``calls`` are the prompts that each call had."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.threads: set[int] = set()
        self.gate = Gate(opened=True)
        self.inside = threading.Lock()

    def generate(self, prompts: Any, params: Any = None, **kwargs: Any) -> list[Any]:
        if not self.inside.acquire(blocking=False):
            raise AssertionError("two threads are in one LLM")
        try:
            self.calls.append(list(prompts))
            self.threads.add(threading.get_ident())
            self.gate.wait_sync()
            if any("bad" in prompt for prompt in prompts):
                raise ValueError("a prompt is too long")
            each = params if isinstance(params, list) else [params] * len(prompts)
            return [self._output(prompt, own, kwargs) for prompt, own in zip(prompts, each, strict=True)]
        finally:
            self.inside.release()

    def _output(self, prompt: str, params: SamplingParams, kwargs: Any) -> Any:
        text = f"{prompt}|{params.given['temperature']}|{params.given['stop']}|{sorted(kwargs)}"
        return SimpleNamespace(outputs=[SimpleNamespace(text=text)])


LLM.generate.__module__ = "vllm.entrypoints.llm"


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> LLM:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SamplingParams))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "vllm.entrypoints.llm", SimpleNamespace(LLM=LLM))  # type: ignore[arg-type]
    return LLM()


def model(llm: LLM, **settings: Any) -> VLLM:
    return VLLM.model_construct(client=llm, model="models/small", **settings)


def three(llm: LLM) -> Any:
    """Three prompts side by side, with other parameters each."""
    parts = {
        name: PromptTemplate.from_template(f"{name}: {{x}}") | model(llm, temperature=i / 10) | StrOutputParser()
        for i, name in enumerate(("one", "two", "three"))
    }
    return RunnableParallel(parts)


def one(llm: LLM) -> Any:
    chain = PromptTemplate.from_template("{x}") | model(llm) | StrOutputParser()
    return fineflow.optimize(chain, strict=True, eager=True)


@contextmanager
def at_work(llm: LLM, waiting: int) -> Iterator[ThreadPoolExecutor]:
    """Has the LLM be at work until that many prompts wait for it."""
    llm.gate.close()
    before = llm.gate.arrivals
    with ThreadPoolExecutor(10) as pool:
        first = pool.submit(one(llm).invoke, {"x": "first"})
        llm.gate.wait_arrived(before + 1)
        yield pool
        wait_until(lambda: batch_queue_of(engine_of(model(llm))).waiting == waiting)
        llm.gate.open()
        assert first.result().startswith("first|")


def test_prompts_side_by_side_are_one_call(llm: LLM) -> None:
    chain = three(llm)
    stock = chain.invoke({"x": "q"}, {"max_concurrency": 1})
    optimized = fineflow.optimize(chain, strict=True)
    llm.calls.clear()
    with at_work(llm, 3) as pool:
        found = pool.submit(optimized.invoke, {"x": "q"})
    assert found.result() == stock
    assert list(map(sorted, llm.calls)) == [["first"], ["one: q", "three: q", "two: q"]]
    assert asyncio.run(optimized.ainvoke({"x": "q"})) == stock


def test_queries_that_come_while_it_is_at_work_are_one_call(llm: LLM) -> None:
    with at_work(llm, 8) as pool:
        rest = [pool.submit(one(llm).invoke, {"x": str(i)}) for i in range(8)]
    assert [each.result().split("|")[0] for each in rest] == [str(i) for i in range(8)]
    assert [len(call) for call in llm.calls] == [1, 8]
    assert len(llm.threads) == 1


def test_a_prompt_that_fails_fails_alone(llm: LLM) -> None:
    with at_work(llm, 3) as pool:
        found = [pool.submit(one(llm).invoke, {"x": text}) for text in ("a", "bad", "b")]
    assert [found[0].result()[:2], found[2].result()[:2]] == ["a|", "b|"]
    with pytest.raises(ValueError, match="a prompt is too long"):
        found[1].result()
    assert sorted(map(len, llm.calls)) == [1, 1, 1, 1, 3]


def test_what_a_call_says_of_lora_goes_with_it(llm: LLM) -> None:
    chain = PromptTemplate.from_template("{x}") | model(llm).bind(lora_request="weights", stop=["."])
    assert fineflow.optimize(chain, strict=True, eager=True).invoke({"x": "q"}) == chain.invoke({"x": "q"})


@pytest.mark.parametrize("how", ["another LLM", "a generate put on the LLM", "a method put on the model", "overridden"])
def test_what_is_not_known_is_left_to_stock(llm: LLM, how: str) -> None:
    class Own(VLLM):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            return super()._generate(*args, **kwargs)

    own = model(llm)
    if how == "another LLM":
        own.client = SimpleNamespace(generate=llm.generate)
    elif how == "a generate put on the LLM":
        llm.generate = llm.generate  # type: ignore[method-assign]
    elif how == "a method put on the model":
        own.__dict__["_generate"] = own._generate
    else:
        own = Own.model_construct(client=llm)
    graph = fineflow.explain(PromptTemplate.from_template("{x}") | own).p_graph
    assert graph is not None and not any(p.op in (Op.PREFILL, Op.DECODE) for p in graph)


def test_plans_name_its_model(llm: LLM) -> None:
    graph = fineflow.explain(PromptTemplate.from_template("{x}") | model(llm)).p_graph
    assert graph is not None
    assert {p.engine for p in graph if p.op is Op.DECODE} == {"small"}


def test_its_engine_can_be_set_up(llm: LLM) -> None:
    one = local_engine(model(llm))
    assert one is local_engine(model(llm))
    assert one.ops == {Op.DECODE}
