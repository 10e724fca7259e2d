"""What a real model in this process tells: tokens, what was cached, and the prefill that ran ahead."""

from __future__ import annotations

import asyncio
from importlib.resources import as_file, files

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from telemetry_kit import attributes, telemetry

pytest.importorskip("torch")

import fineflow
from fineflow.engines import TransformersEngine
from fineflow.langchain import ChatEngine
from fineflow.testing.langchain import FakeChat

pytestmark = pytest.mark.engine


def test_a_model_tells_its_tokens_and_what_was_cached() -> None:
    with as_file(files("fineflow.demo") / "data" / "tinylm") as folder:
        engine = TransformersEngine(folder, name="tiny")
        slow = ChatPromptTemplate.from_template("classify {question}") | FakeChat(prefill=1.0) | StrOutputParser()
        prompt = ChatPromptTemplate.from_template("Torstad is a town. " * 40 + "{question} {category}")
        chain = RunnablePassthrough.assign(category=slow) | prompt | ChatEngine(engine=engine, max_tokens=4)
        asyncio.run(engine.start())
        fast = fineflow.optimize(chain, strict=True)
        try:
            with telemetry() as kept:
                said = fast.invoke({"question": "What is Torstad?"})
        finally:
            asyncio.run(engine.aclose())
    usage = said.usage_metadata
    assert usage is not None
    by_op = {
        (found["fineflow.op"], found["fineflow.engine"]): found
        for span in kept.spans
        if (found := attributes(span)) and "fineflow.op" in found
    }
    ahead, answer = by_op["partial_prefill", "tiny"], by_op["decode", "tiny"]
    assert answer["gen_ai.usage.input_tokens"] == usage["input_tokens"] > 100
    assert answer["gen_ai.usage.output_tokens"] == usage["output_tokens"] > 0
    cached = answer["gen_ai.usage.cache_read.input_tokens"]
    assert 0 < ahead["gen_ai.usage.input_tokens"] <= cached < usage["input_tokens"]
