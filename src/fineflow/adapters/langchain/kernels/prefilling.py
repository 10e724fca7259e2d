"""Prefills the beginning of a prompt before the rest of it is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os.path import commonprefix
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import MessagesPlaceholder

from fineflow.adapters.core.arms import warm_arm
from fineflow.adapters.core.prefills import too_late
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, fields, plain
from fineflow.adapters.langchain.models.servers import served
from fineflow.ir import Primitive
from fineflow.runtime.call.executor import Execution

_MARK = "\x02late\x03"  # placeholder of values that are not ready yet; neither a tokenizer nor a keyboard produces it


class _Late(str):
    """The mark, unaffected by the format that a template uses."""

    def __format__(self, spec: str) -> str:
        return self

    def __repr__(self) -> str:
        return self


_LATE = _Late(_MARK)


def partial_prefill(p: Primitive, args: Args, run: Execution) -> Any:
    """Prefills the text of the prompt before the first late variable; returns 0 if that would be too late.

    The whole prompt is rendered, chat template included, with a mark in place of late values, and cut at the mark. So
    the known beginning is a prefix of the final text, whatever the templates add.
    """
    if too_late(p, run):
        return 0  # nothing to prefill for
    plain(fields(args))
    reader = reader_of(p)
    known = beginning_of(p, reader, fields(args))
    # A task of the query that does not count as one of the user's steps: these may be limited.
    return run.spawn(warm_arm(p, reader.engine, known, run) if p.meta.get("arm") else reader.awarm(known), p)


def beginning_of(p: Primitive, reader: Any, known: Mapping[str, Any], begun: Mapping[str, str] | None = None) -> str:
    """Returns the text of a prompt before the first late variable. begun: the beginnings of late variables, by name.

    Raises LeftToStock if the prompt does not show where that is.
    """
    started = {name: text + _MARK for name, text in (begun or {}).items()}
    texts = list(_texts(p, reader, p.meta["template"], known, started))
    if not p.meta["whole"] and not any(_MARK in text for text in texts):
        raise LeftToStock("the prompt does not show its late variable")
    return commonprefix(texts).partition(_MARK)[0]  # noqa: RUF071 (texts, not paths)


def reader_of(p: Primitive) -> Any:
    """Returns what renders and prefills the model's prompts: the model, or its server's counterpart."""
    if not p.meta.get("remote"):
        return p.component
    found = served(p.component, p.meta["options"])
    if found is None:
        raise LeftToStock("the model uses another server now")
    return found


def _texts(
    p: Primitive, reader: Any, template: Any, known: Mapping[str, Any], started: Mapping[str, str]
) -> Iterator[str]:
    """Yields the prompt as the model would read it, with marks in place of late values.

    The role of late messages is not known either: yields a text for each role that the chat template accepts there.
    """
    late = (*p.params["late"], *p.params["unread"])
    placeholders = {m.variable_name for m in getattr(template, "messages", ()) if isinstance(m, MessagesPlaceholder)}
    kinds = (HumanMessage, AIMessage) if placeholders.intersection(late) else (HumanMessage,)
    bound = {"late": _MARK} if p.meta.get("remote") else p.meta["options"]
    refusals: list[Exception] = []
    for kind in kinds:
        values = {**known, **{name: [kind(_MARK)] if name in placeholders else _LATE for name in late}, **started}
        try:
            prompt = p.component._convert_input(template.format_prompt(**values))
            chat = isinstance(p.component, BaseChatModel)
            yield reader.prompt_text(prompt.to_messages(), **bound) if chat else prompt.to_string()
        except Exception as error:
            refusals.append(error)
    if len(refusals) == len(kinds):
        raise LeftToStock(f"the prompt cannot be rendered without its late values: {refusals[0]}")
