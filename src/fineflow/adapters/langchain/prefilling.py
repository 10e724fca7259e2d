"""How the beginning of a prompt is prefilled before the rest of it is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import MessagesPlaceholder

from fineflow.adapters.langchain.ahead import Args, LeftToStock, fields, plain
from fineflow.ir import Primitive
from fineflow.runtime.executor import Execution

_MARK = "\x02late\x03"  # stands for values that are not there yet; cannot come from a tokenizer or a keyboard


class _Late(str):
    """The mark, whatever format a template asks for."""

    def __format__(self, spec: str) -> str:
        return self

    def __repr__(self) -> str:
        return self


_LATE = _Late(_MARK)


def partial_prefill(p: Primitive, args: Args, run: Execution) -> Any:
    """Prefills the text of the prompt in front of the first late variable; 0 where the whole prompt is there already.

    The whole prompt is rendered, chat template included, with a mark in place of what is late, and cut at the mark:
    so the known beginning is a prefix of the final text whatever the templates do around it. Of several templates it
    is the beginning that they have in common.
    """
    if p.meta["until"] in run.values:
        return 0  # its own request is on the way, and computes all of it
    plain(fields(args))
    texts = [text for template in p.meta["templates"] for text in _texts(p, template, fields(args))]
    if not p.meta["whole"] and not any(_MARK in text for text in texts):
        raise LeftToStock("the prompt does not show its late variable")
    return p.component.awarm(_common(texts).partition(_MARK)[0])


def _common(texts: Sequence[str]) -> str:
    """The beginning that all have in common: of the first and the last in the order of the alphabet."""
    first, last = min(texts), max(texts)
    differs = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:differs]


def _texts(p: Primitive, template: Any, known: Mapping[str, Any]) -> Iterator[str]:
    """What the model would read, with marks for what is late.

    Whose late messages will be is not known either: a text for each role that the chat template accepts there.
    """
    late = (*p.params["late"], *p.params["unread"])
    placeholders = {m.variable_name for m in getattr(template, "messages", ()) if isinstance(m, MessagesPlaceholder)}
    kinds = (HumanMessage, AIMessage) if placeholders.intersection(late) else (HumanMessage,)
    refusals: list[Exception] = []
    for kind in kinds:
        values = {**known, **{name: [kind(_MARK)] if name in placeholders else _LATE for name in late}}
        try:
            prompt = p.component._convert_input(template.format_prompt(**values))
            chat = isinstance(p.component, BaseChatModel)
            yield p.component.prompt_text(prompt.to_messages()) if chat else prompt.to_string()
        except Exception as error:
            refusals.append(error)
    if len(refusals) == len(kinds):
        raise LeftToStock(f"the prompt cannot be written without what is late: {refusals[0]}")
