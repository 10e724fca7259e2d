"""LlamaIndex's LLM on an engine: what it says, streams, reports and refuses, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload, LlamaDebugHandler
from llama_index.core.prompts import PromptTemplate
from pydantic import ValidationError

from fineflow.backends.transformers import TransformersEngine
from fineflow.engines import EmulatedLLM
from fineflow.langchain import ChatEngine
from fineflow.llamaindex import EngineLLM
from fineflow.protocols import Delta, Message, TokenLogprob
from fineflow.runtime.loop.submission import run_sync
from fineflow.testing.engines import GatedLLM
from fineflow.testing.gates import Gate

ASKED = [ChatMessage(role=MessageRole.SYSTEM, content="Be brief."), ChatMessage(content="Where is it?")]
FINISHED = {"model": "gated-llm", "finish_reason": "stop"}


def chatty(answer: Any = "in the north", **settings: Any) -> EngineLLM:
    return EngineLLM(engine=GatedLLM(answer), **settings)


async def said(llm: EngineLLM) -> list[str]:
    """The same conversation by every method, whole and streamed."""
    found = [str(llm.chat(ASKED).message.content), str((await llm.achat(ASKED)).message.content)]
    found.append("".join(piece.delta or "" for piece in llm.stream_chat(ASKED)))
    found.append("".join([piece.delta or "" async for piece in await llm.astream_chat(ASKED)]))
    prompt = llm.prompt_text(ASKED)
    found += [llm.complete(prompt, formatted=True).text, (await llm.acomplete(prompt, formatted=True)).text]
    found.append("".join(piece.delta or "" for piece in llm.stream_complete(prompt, formatted=True)))
    found.append("".join([p.delta or "" async for p in await llm.astream_complete(prompt, formatted=True)]))
    return found


async def test_every_method_says_the_same() -> None:
    llm = chatty()
    assert set(await said(llm)) == {"in the north"}
    assert llm.engine.meter.in_flight == 0  # type: ignore[attr-defined]


def test_streamed_responses_hold_the_text_so_far_and_the_last_one_what_it_took() -> None:
    llm = chatty()
    pieces = list(llm.stream_chat(ASKED))
    assert [piece.message.content for piece in pieces] == ["in ", "in the ", "in the north"]
    asked = len(llm.prompt_text(ASKED))
    usage = {"prompt_tokens": asked, "completion_tokens": 3, "total_tokens": asked + 3}
    assert [piece.raw for piece in pieces] == [None, None, {**FINISHED, "usage": usage}]
    whole = llm.chat(ASKED)
    assert (whole.raw, whole.additional_kwargs, whole.delta) == ({**FINISHED, "usage": usage}, usage, None)


def test_prompts_are_written_by_the_template_unless_they_are_formatted() -> None:
    asked: list[str] = []
    llm = chatty(lambda prompt: asked.append(prompt) or "ok")
    llm.chat(ASKED)
    llm.complete("Where?")
    llm.complete("Where?", formatted=True)
    render = llm.engine.render_chat
    conversation = [Message("system", "Be brief."), Message("user", "Where is it?")]
    assert asked == [render(conversation), render([Message("user", "Where?")]), "Where?"]


def test_as_a_completion_model_it_uses_the_prompt_as_it_is() -> None:
    asked: list[str] = []
    llm = chatty(lambda prompt: asked.append(prompt) or "ok", is_chat_model=False)
    llm.complete("Where?")
    llm.chat([ChatMessage(content="Where?")])
    assert asked == ["Where?", "user: Where?\nassistant: "]
    assert not llm.metadata.is_chat_model


def test_settings_of_the_call_win_and_unknown_ones_are_named() -> None:
    llm = chatty("one two three", max_tokens=2)
    assert llm.complete("x").text == "one two "
    assert llm.complete("x", max_tokens=1).text == "one "
    assert llm._sampling({"stop": "."}).stop == (".",)
    assert llm._sampling({"min_p": 0.5}).min_p == 0.5
    with pytest.raises(ValueError, match=r"EngineLLM takes no argument n_best; it takes choices, extra"):
        llm.stream_complete("x", n_best=3)


class Unsure(GatedLLM):
    """Gives each token the probability 0.5, and its likeliest alternative, "no", 0.25."""

    async def generate(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Delta, None]:
        async for delta in super().generate(*args, **kwargs):
            told = [TokenLogprob(each.token, -0.7, ((each.token, -0.7), ("no", -1.4))) for each in delta.logprobs]
            yield replace(delta, logprobs=tuple(told))


async def test_a_response_has_the_logprobs_that_were_asked_for() -> None:
    llm = EngineLLM(engine=Unsure("one two"))
    streamed = list(llm.stream_complete("x", logprobs=1))
    assert [each.logprobs is None for each in streamed] == [True, False]
    for found in (
        llm.complete("x", logprobs=1),
        llm.chat(ASKED, logprobs=1),
        await llm.acomplete("x", logprobs=1),
        await llm.achat(ASKED, logprobs=1),
        streamed[-1],
    ):
        rows = [[(each.token, each.logprob) for each in row] for row in found.logprobs]
        assert rows == [[("one ", -0.7), ("no", -1.4)], [("two", -0.7), ("no", -1.4)]]  # the chosen one first
    assert llm.complete("x").logprobs is None


def test_what_is_not_text_is_refused() -> None:
    llm = chatty()
    with pytest.raises(ValueError, match="a content block of type ImageBlock"):
        llm.chat([ChatMessage(blocks=[ImageBlock(url="http://nowhere/image.png")])])
    with pytest.raises(ValueError, match="without tool calls, it got role 'tool'"):
        llm.chat([ChatMessage(role=MessageRole.TOOL, content="3")])
    with pytest.raises(ValueError, match="at least one message"):
        llm.chat([])
    with pytest.raises(ValidationError, match="greater than 0"):
        chatty(max_tokens=0)


def test_metadata_by_which_synthesizers_pack_prompts() -> None:
    known = chatty(max_tokens=64, context_window=1000).metadata
    assert (known.context_window, known.num_output, known.model_name) == (1000, 64, "gated-llm")


def test_callbacks_are_told_once_per_call_with_the_response() -> None:
    handler = LlamaDebugHandler(print_trace_on_end=False)
    llm = chatty(callback_manager=CallbackManager([handler]))
    assert llm.predict(PromptTemplate("Where is {what}?"), what="it") == "in the north"
    "".join(llm.stream(PromptTemplate("Where is {what}?"), what="it"))
    ends = [end for _, end in handler.get_event_pairs(CBEventType.LLM)]
    assert [str(end.payload[EventPayload.RESPONSE].message.content) for end in ends] == ["in the north"] * 2


async def test_async_methods_do_not_block_the_loop() -> None:
    gate = Gate()
    llm = EngineLLM(engine=GatedLLM("ok", gate=gate))
    answers = [asyncio.create_task(llm.achat(ASKED)) for _ in range(3)]
    await gate.arrived(3)  # all are with the engine, and this loop is free to see it
    gate.open()
    assert [str(answer.message.content) for answer in await asyncio.gather(*answers)] == ["ok"] * 3


async def test_a_stream_that_is_closed_ends_its_request() -> None:
    tokens = Gate()
    engine = GatedLLM("one two three", token_gate=tokens)
    stream = await EngineLLM(engine=engine).astream_complete("x")
    tokens.let(1)
    assert (await anext(stream)).delta == "one "
    await stream.aclose()
    await engine.meter.idle()


def test_one_engine_serves_components_of_both_frameworks() -> None:
    from langchain_core.messages import HumanMessage

    gate = Gate()
    engine = GatedLLM("ok", gate=gate)
    calls = [
        lambda: EngineLLM(engine=engine).complete("Where?").text,
        lambda: ChatEngine(engine=engine).invoke([HumanMessage("Where?")]).text,
    ]

    async def both() -> list[str]:
        answers = [asyncio.create_task(asyncio.to_thread(call)) for call in calls]
        await gate.arrived(2)
        gate.open()
        return [str(answer) for answer in await asyncio.gather(*answers)]

    assert asyncio.run(both()) == ["ok", "ok"]
    assert len(set(engine.meter.labels)) == 1  # the same question, written the same way


@functools.cache
def tiny() -> TransformersEngine:
    return TransformersEngine(str(files("fineflow.demo") / "data" / "tinylm"), name="tiny")


@pytest.fixture(scope="module")
def real() -> Iterator[EngineLLM]:
    yield EngineLLM(engine=tiny(), max_tokens=24)
    run_sync(tiny().aclose)
    tiny.cache_clear()


@pytest.mark.engine
def test_the_real_model_says_the_same_by_every_method_and_framework(real: EngineLLM) -> None:
    from langchain_core.messages import HumanMessage, SystemMessage

    answers = set(asyncio.run(said(real)))
    messages = [SystemMessage("Be brief."), HumanMessage("Where is it?")]
    answers.add(ChatEngine(engine=tiny(), max_tokens=24).invoke(messages).text)
    assert len(answers) == 1
    assert answers != {""}


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"stop": 3}, "stop is 3; it must be a list of texts"),
    ],
)
def test_settings_of_another_type_are_named(given: dict[str, Any], match: str) -> None:
    with pytest.raises(TypeError, match=match):
        EngineLLM(engine=EmulatedLLM(lambda _: "x")).complete("hi", **given)


def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected an engine that decodes, .* got 'x'"):
        EngineLLM(engine="x")  # type: ignore[arg-type]
