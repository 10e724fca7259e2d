"""Kernels that run the LLM requests of synthesizers ahead of stock: concurrently, as a tree, or prefills only."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any

from llama_index.core.prompts.prompt_utils import get_biggest_prompt
from llama_index.core.response_synthesizers import CompactAndRefine
from llama_index.core.response_synthesizers.compact_and_accumulate import CompactAndAccumulate

from fineflow.adapters.llamaindex.lowering.prompts import beginning, reader_of, repacked, selected, settled, truncated
from fineflow.adapters.llamaindex.lowering.synthesizers import ACCUMULATE, REFINE, SIMPLE, TREE, Given
from fineflow.adapters.llamaindex.models.llms import Request, asking, request, text_of
from fineflow.ir import Op, Primitive
from fineflow.runtime import events
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.call.streams import Stream
from fineflow.runtime.call.trace import Warmed
from fineflow.runtime.loop.workers import in_thread

_HIGHEST = 16  # levels of a tree: if summaries do not get shorter, stock recurses until Python's recursion limit
_MOST = 64  # steps of a refinement: if no text ever fits, stock loops forever
_WARMED = 4  # prompts of a refinement that are prefilled ahead: more may not fit into the KV cache


def answers(p: Primitive, args: Mapping[str, Any], run: Execution) -> Any:
    """Runs all LLM requests of a synthesizer. Has no value of its own: stock claims the answers and combines them."""
    how = p.params["how"]
    if "prompt" in args:  # known ahead of stock
        if args["prompt"] is None:
            raise LeftToStock("the texts that stock will read cannot be derived from the search result")
        return run.spawn(_WORK[how](p, args["prompt"], run), p)
    given: Given = args["cache"]
    return run.spawn(_warm(p, given, run) if how == REFINE else _WORK[how](p, given, run), p)


def begin(p: Primitive, wanted: Request, run: Execution) -> Awaitable[Any]:
    """Sends one request to the model of a synthesizer, unless stock already has; returns the text of its answer."""
    entry = run.work(p, wanted.key, asking(p.component._llm, wanted, sync=run.call.sync))

    async def text() -> str:
        await entry.wait()
        return text_of(wanted.family, entry.result())

    return run.spawn(text(), p)


async def _each(p: Primitive, given: Given, run: Execution) -> None:
    """Requests an answer for each text, as ``Accumulate`` does; stock's sync method sends one request at a time."""
    synthesizer = p.component
    template = synthesizer._text_qa_template.partial_format(query_str=given.query)

    def packed(texts: Sequence[str]) -> list[str]:
        return repacked(synthesizer._prompt_helper, template, texts, synthesizer._llm)

    def wanted(text: str) -> list[Request]:
        return [
            request(synthesizer._llm, template, {**_own(synthesizer, chunk), **given.arguments})
            for chunk in packed([text])
        ]

    arguments = dict(given.arguments)
    arguments.pop("separator", None)
    given = Given(given.query, given.texts, arguments)
    texts: Sequence[str] = given.texts
    if isinstance(synthesizer, CompactAndAccumulate):
        texts = await in_thread(lambda: packed(given.texts))
    count = 0
    for text in texts:
        for each in await in_thread(partial(wanted, text)):
            begin(p, each, run)
            count += 1
    events.sized("", Op.MAP, count, p.name)


def _own(synthesizer: Any, chunk: str) -> dict[str, Any]:
    arguments: dict[str, Any] = synthesizer._make_prompt_kwargs(chunk)
    return arguments


async def _tree(p: Primitive, given: Given, run: Execution) -> None:
    """Builds a tree of summaries: each summary starts once its own inputs are ready."""
    await _Level(p, given, run, _HIGHEST).run(_all(given.texts))


class _Level:
    """One level of the tree: packs texts, which arrive in order, into chunks, and summarizes each once it is final."""

    def __init__(self, p: Primitive, given: Given, run: Execution, more: int) -> None:
        self._p, self._given, self._run, self._more = p, given, run, more
        synthesizer = p.component
        self._helper, self._llm = synthesizer._prompt_helper, synthesizer._llm
        self._template = synthesizer._summary_template.partial_format(query_str=given.query)
        self._streaming: bool = (given.by or synthesizer)._streaming
        self._asked: list[str] = []
        self._above: Stream[Awaitable[str]] | None = None

    async def run(self, texts: Stream[Any]) -> None:
        known: list[str] = []
        try:
            async for text in texts.read():
                known.append(text if isinstance(text, str) else await text)
                if not isinstance(text, str):  # the lowest level has all texts from the start
                    final = await in_thread(lambda: settled(self._helper, self._template, known, self._llm))
                    self._ask(final)
            chunks = await in_thread(lambda: repacked(self._helper, self._template, known, self._llm))
            if self._more == _HIGHEST:
                events.sized("", Op.MAP, len(chunks), self._p.name)
            if chunks[: len(self._asked)] != self._asked:
                raise LeftToStock("the complete texts were packed differently than the first ones")
            if len(chunks) > 1:
                self._ask(chunks)
            elif not self._streaming:  # the last answer; if it streams, stock requests it
                begin(self._p, self._wanted(chunks[0]), self._run)
        except BaseException as error:
            if self._above is not None:
                self._above.close(error)
            raise
        if self._above is not None:
            self._above.close()

    def _ask(self, chunks: list[str]) -> None:
        for chunk in chunks[len(self._asked) :]:
            self._asked.append(chunk)
            if self._above is None:
                self._above = Stream()
                if not self._more:
                    raise LeftToStock("the tree of summaries has too many levels")
                level = _Level(self._p, self._given, self._run, self._more - 1)
                self._run.spawn(level.run(self._above), self._p)
            self._above.put(begin(self._p, self._wanted(chunk), self._run))

    def _wanted(self, chunk: str) -> Request:
        return request(self._llm, self._template, {"context_str": chunk, **self._given.arguments})


def _all(texts: Sequence[str]) -> Stream[Any]:
    found: Stream[Any] = Stream()
    for text in texts:
        found.put(text)
    found.close()
    return found


async def _refine(p: Primitive, given: Given, run: Execution) -> None:
    """Requests one answer after the other, each with the previous one in its prompt, as ``Refine`` does."""
    synthesizer = p.component
    helper, llm = synthesizer._prompt_helper, synthesizer._llm
    chunks = deque(await in_thread(lambda: refined(synthesizer, given)))
    said = ""
    for _ in range(_MOST):
        if not chunks:
            return
        chunk = chunks.popleft()
        if not said:
            template, arguments = synthesizer._text_qa_template.partial_format(query_str=given.query), "context_str"
        else:
            template = synthesizer._refine_template.partial_format(query_str=given.query, existing_answer=said)
            arguments = "context_msg"
            parts = await in_thread(partial(repacked, helper, template, [chunk], llm))
            if len(parts) > 1:
                chunks.extendleft(parts)
                continue
            chunk = parts[0]
        wanted = request(llm, template, {arguments: chunk, **given.arguments})
        said = await begin(p, wanted, run) or said


async def _simple(p: Primitive, given: Given, run: Execution) -> None:
    """Requests the one answer of ``SimpleSummarize``."""
    synthesizer = p.component
    helper, llm = synthesizer._prompt_helper, synthesizer._llm
    template = synthesizer._text_qa_template.partial_format(query_str=given.query)
    text = await in_thread(lambda: truncated(helper, template, "\n".join(given.texts), llm))
    begin(p, request(llm, template, {"context_str": [text], **given.arguments}), run)


_WORK = {ACCUMULATE: _each, TREE: _tree, REFINE: _refine, SIMPLE: _simple}


async def _warm(p: Primitive, given: Given, run: Execution) -> Warmed | None:
    """Prefills the known beginnings of the refine prompts while the answer is still being decoded.

    Returns what became of all of them; None if there are none, or on a server, which does not say what it had cached.
    """
    synthesizer = given.by or p.component
    llm = p.component._llm  # the user's: the one of ``given.by`` is a shadow, which claims
    reader = reader_of(llm)
    template = selected(synthesizer._refine_template.partial_format(query_str=given.query), llm)
    found: list[Warmed] = []
    for chunk in (await in_thread(lambda: refined(synthesizer, given)))[1 : 1 + _WARMED]:
        text = beginning(llm, template, {"context_msg": chunk, **given.arguments})
        if text and reader is not None:
            warmed = await reader.awarm(text)
            found += [warmed] if isinstance(warmed, Warmed) else []
    sums = (sum(found), sum(each.of for each in found), sum(each.cached for each in found))
    return Warmed(*sums) if found else None


def refined(synthesizer: Any, given: Given) -> list[str]:
    """Returns the chunks that a refinement goes through, if no answer is so long that one has to be split again."""
    helper, llm, padding = synthesizer._prompt_helper, synthesizer._llm, synthesizer._response_padding_size
    templates = (synthesizer._text_qa_template, synthesizer._refine_template)
    texts: Sequence[str] = given.texts
    if isinstance(synthesizer, CompactAndRefine):
        asked = [template.partial_format(query_str=given.query) for template in templates]
        texts = repacked(helper, get_biggest_prompt(asked), texts, llm, padding)
    biggest = get_biggest_prompt(list(templates))
    return [chunk for text in texts for chunk in repacked(helper, biggest, [text], llm, padding)]
