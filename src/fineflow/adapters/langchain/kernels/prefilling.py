"""How the beginning of a prompt is prefilled before the rest of it is known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from os.path import commonprefix
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import MessagesPlaceholder

from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, fields, plain
from fineflow.adapters.langchain.models.servers import served
from fineflow.ir import Op, Primitive
from fineflow.runtime.call.executor import Execution

_MARK = "\x02late\x03"  # stands for values that are not there yet; cannot come from a tokenizer or a keyboard


class _Late(str):
    """The mark, whatever format a template asks for."""

    def __format__(self, spec: str) -> str:
        return self

    def __repr__(self) -> str:
        return self


_LATE = _Late(_MARK)


class UnderWay(dict[str, "asyncio.Future[Any]"]):
    """Prefills of one call that others share, by primitive: done when they may go on."""


def partial_prefill(p: Primitive, args: Args, run: Execution) -> Any:
    """Prefills the text of the prompt in front of the first late variable; 0 where that would come too late.

    The whole prompt is rendered, chat template included, with a mark in place of what is late, and cut at the mark:
    so the known beginning is a prefix of the final text whatever the templates do around it. Of several templates it
    is the beginning that they have in common.
    """
    items = args.get("items")
    if _late(p, run) or (isinstance(items, Sequence) and len(items) < 2):
        return 0  # nobody to do it for
    plain(fields(args))
    reader = _reader(p)
    texts = [text for template in p.meta["templates"] for text in _texts(p, reader, template, fields(args))]
    if not p.meta["whole"] and not any(_MARK in text for text in texts):
        raise LeftToStock("the prompt does not show its late variable")
    known = commonprefix(texts).partition(_MARK)[0]  # noqa: RUF071 (texts, not paths)
    shared = sharing(p, run)

    async def warm() -> Any:
        await shared()
        return 0 if _late(p, run) else await reader.awarm(known)

    # A task of the query, not one that counts as a step of the user's: those may be limited in number, and wait for it.
    run.call.memory(UnderWay)[p.name] = work = run.spawn(warm(), p)
    return work


def _reader(p: Primitive) -> Any:
    """What writes the prompts of the model for a prefill, and prefills: the model, or what stands for its server."""
    if not p.meta.get("remote"):
        return p.component
    found = served(p.component, p.meta["options"])
    if found is None:
        raise LeftToStock("the model asks another server by now")
    return found


def _late(p: Primitive, run: Execution) -> bool:
    """Whether the request for the whole prompt is on the way, which computes all of it."""
    return p.meta["until"] in run.values


def sharing(p: Primitive, run: Execution) -> Callable[[], Awaitable[object]]:
    """What a request has to wait for before it is made, as it begins with the same.

    A prefill of what is shared, if one is under way now; or that another request, a decode, has its first token.
    """
    name = p.params.get("shares", "")
    decode = name in run.graph and run.graph[name].op in (Op.DECODE, Op.PARTIAL_DECODE)
    found = prefilled(name, run) if decode else run.call.memory(UnderWay).get(name)
    if decode and found is not None:
        run.ended(name, lambda: told(found))  # also one that is never begun, as its prompt has failed

    async def ended() -> None:
        if found is not None:
            await asyncio.wait([found])  # whether it has failed is nothing to who waits

    return ended


def prefilled(name: str, run: Execution) -> asyncio.Future[None]:
    """Done when the decode ``name`` has its first token, or has ended. Whoever asks first makes it."""
    made: asyncio.Future[None] = run.call.memory(UnderWay).setdefault(name, run.call.loop.create_future())
    return made


def told(future: asyncio.Future[None]) -> None:
    """Tells those who wait for ``prefilled``."""
    if not future.done():
        future.set_result(None)


def _texts(p: Primitive, reader: Any, template: Any, known: Mapping[str, Any]) -> Iterator[str]:
    """What the model would read, with marks for what is late.

    Whose late messages will be is not known either: a text for each role that the chat template accepts there.
    """
    late = (*p.params["late"], *p.params["unread"])
    placeholders = {m.variable_name for m in getattr(template, "messages", ()) if isinstance(m, MessagesPlaceholder)}
    kinds = (HumanMessage, AIMessage) if placeholders.intersection(late) else (HumanMessage,)
    bound = {"late": _MARK} if p.meta.get("remote") else p.meta["options"]
    refusals: list[Exception] = []
    for kind in kinds:
        values = {**known, **{name: [kind(_MARK)] if name in placeholders else _LATE for name in late}}
        try:
            prompt = p.component._convert_input(template.format_prompt(**values))
            chat = isinstance(p.component, BaseChatModel)
            yield reader.prompt_text(prompt.to_messages(), **bound) if chat else prompt.to_string()
        except Exception as error:
            refusals.append(error)
    if len(refusals) == len(kinds):
        raise LeftToStock(f"the prompt cannot be written without what is late: {refusals[0]}")
