"""``VLLM`` of langchain-community on a real ``LLM`` of vllm in this process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_community")

from helpers_vllm import QUESTIONS
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableParallel

import fineflow
from fineflow.adapters.langchain.models.offline_vllm import engine_of

SETTINGS: dict[str, Any] = {"enforce_eager": True, "kv_cache_memory_bytes": 2**28, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Any]:
    from langchain_community.llms import VLLM

    # (Its fields are checked by pydantic's older interface, which the type checker does not see through.)
    model = VLLM(model=str(folder), temperature=0.0, max_new_tokens=24, vllm_kwargs=SETTINGS)  # type: ignore[call-arg]
    yield model
    model.client.llm_engine.engine_core.shutdown()


def parts(model: Any) -> dict[str, Any]:
    return {str(i): PromptTemplate.from_template(f"{text} {{x}}") | model for i, text in enumerate(QUESTIONS)}


def test_answers_side_by_side_are_those_of_one_after_the_other(model: Any) -> None:
    stock = {name: part.invoke({"x": ""}) for name, part in parts(model).items()}
    chain = fineflow.optimize(RunnableParallel(parts(model)), strict=True)
    assert chain.invoke({"x": ""}) == stock
    assert len(set(stock.values())) == len(stock)


def test_queries_at_once_share_calls_and_get_their_own_answers(model: Any) -> None:
    texts = [f"{question} {i}" for i in range(4) for question in QUESTIONS]
    chain = PromptTemplate.from_template("{x}") | model | StrOutputParser()
    stock = [chain.invoke({"x": text}) for text in texts]
    optimized = fineflow.optimize(chain, strict=True)
    before = fineflow.statistics().engines.get(engine_of(model).name)
    with ThreadPoolExecutor(len(texts)) as pool:
        found = list(pool.map(lambda text: optimized.invoke({"x": text}), texts))
    assert found == stock
    after = fineflow.statistics().engines[engine_of(model).name]
    assert after.sizes.total - (before.sizes.total if before else 0) == len(texts)
    assert after.batches - (before.batches if before else 0) < len(texts) / 2


def test_a_prompt_that_is_too_long_fails_alone(model: Any) -> None:
    chain = PromptTemplate.from_template("{x}") | model
    optimized = fineflow.optimize(chain, strict=True)
    texts = [QUESTIONS[0], "many words " * 5000, QUESTIONS[2]]
    stock = [chain.invoke({"x": texts[0]}), None, chain.invoke({"x": texts[2]})]
    with pytest.raises(Exception) as expected:
        chain.invoke({"x": texts[1]})
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(optimized.invoke, {"x": text}) for text in texts]
    assert [found[0].result(), found[2].result()] == [stock[0], stock[2]]
    error = found[1].exception()
    assert type(error) is type(expected.value) and str(error) == str(expected.value)
    assert chain.invoke({"x": texts[0]}) == stock[0]
