"""Prompt templates and the packing of texts into prompts: the same as in stock, without its spans and events.

LlamaIndex's splitters open spans and send events, so their inner methods are called here. ``settled`` returns the
chunks that are final while more texts are still to come; parents in a tree of summaries start early with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from llama_index.core.base.llms.types import TextBlock
from llama_index.core.indices.prompt_helper import DEFAULT_PADDING, PromptHelper
from llama_index.core.prompts import BasePromptTemplate, ChatPromptTemplate, PromptTemplate, SelectorPromptTemplate
from llama_index.core.utilities.token_counting import TokenCounter

from fineflow.adapters.core.devices import engine_on
from fineflow.adapters.core.installers import module_of
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.llamaindex.components.llm import EngineLLM
from fineflow.adapters.llamaindex.methods import exactly
from fineflow.adapters.llamaindex.models.servers import Served, served, warmed

_TOKENIZERS = ("fineflow", "llama_index", "tiktoken", "tokenizers", "transformers")
_MARK = "\x02late\x03"  # placeholder of a value that is not known yet; cannot come from a tokenizer or a keyboard
_WORDS, _SHORT = 16384, 40  # number of cached texts, and their maximum length in characters
_VARIABLE = re.compile(r"\{([^{}]+)\}")


def check_template(template: Any) -> None:
    """Raises NotLowered if formatting a template could call user code."""
    parts = [template]
    if type(template) is SelectorPromptTemplate:
        for condition, part in template.conditionals or ():
            if module_of(condition).partition(".")[0] != "llama_index":
                raise NotLowered("which prompt is used is decided by user code")
            parts.append(part)
        parts.append(template.default_template)
    for part in parts:
        if not exactly(part, PromptTemplate, ChatPromptTemplate, SelectorPromptTemplate):
            raise NotLowered(f"prompt template {type(part).__name__} is not recognised")
        if part.output_parser is not None or part.function_mappings or part.template_var_mappings:
            raise NotLowered("a prompt template has an output parser or mappings of its own")
        if any(not isinstance(value, str) for value in part.kwargs.values()):
            raise NotLowered("a prompt template holds a value that is not a string")


def check_packing(helper: Any) -> None:
    """Raises NotLowered if packing texts could call user code, or is not recognised."""
    if type(helper) is not PromptHelper or not vars(helper).keys() <= type(helper).model_fields.keys():
        raise NotLowered(f"how {type(helper).__name__} packs prompts is not recognised")
    if helper.separator != " ":
        raise NotLowered("texts are not split at spaces")
    counter = helper._token_counter
    if type(counter) is not TokenCounter or vars(counter).keys() != {"tokenizer"}:
        raise NotLowered("tokens are counted by user code")
    tokenizer: Any = counter.tokenizer
    while isinstance(tokenizer, partial):
        tokenizer = tokenizer.func
    owner = getattr(tokenizer, "__self__", None)
    module = type(owner).__module__ if owner is not None else getattr(tokenizer, "__module__", None)
    if (module or "").partition(".")[0] not in _TOKENIZERS:
        raise NotLowered("tokens are counted by user code")


def quick(helper: PromptHelper) -> PromptHelper:
    """Returns a copy of a helper that caches the token counts of short texts.

    Stock counts the tokens of every word several times, and the graph counts them again. Only for helpers that
    ``check_packing`` accepts.
    """
    made = helper.model_copy()
    made._token_counter = TokenCounter(tokenizer=_remembering(helper._token_counter.tokenizer))
    return made


@lru_cache(maxsize=8)
def _remembering(tokenizer: Callable[[str], list[Any]]) -> Callable[[str], list[Any]]:
    short = lru_cache(maxsize=_WORDS)(tokenizer)
    return lambda text: short(text) if len(text) <= _SHORT else tokenizer(text)


def repacked(
    helper: PromptHelper, template: Any, texts: Sequence[str], llm: Any, padding: int = DEFAULT_PADDING
) -> list[str]:
    """Returns ``helper.repack(template, texts, llm=llm, padding=padding)``. Raises ValueError if there is no room."""
    splitter = quick(helper).get_text_splitter_given_prompt(template, padding=padding, llm=llm)
    return _split(splitter, _joined(texts))


def truncated(helper: PromptHelper, template: Any, text: str, llm: Any) -> str:
    """Returns ``helper.truncate(template, [text], llm=llm)[0]``. Raises ValueError if there is no room."""
    splitter = quick(helper).get_text_splitter_given_prompt(template, num_chunks=1, padding=DEFAULT_PADDING, llm=llm)
    return _split(splitter, text)[0]


def settled(helper: PromptHelper, template: Any, texts: Sequence[str], llm: Any) -> list[str]:
    """Returns the chunks that ``repacked`` will begin with, whatever texts follow; at least one more chunk follows.

    A chunk takes words until one does not fit, so it is final once that word is complete. The last known word, which
    may continue, and the last chunk are therefore left out.
    """
    known = _joined(texts)
    whole, space, _ = known.rpartition(" ")
    if not space or " " not in whole.strip(" "):
        return []
    splitter = quick(helper).get_text_splitter_given_prompt(template, llm=llm)
    if len(splitter._tokenizer(whole)) <= splitter.chunk_size:
        return []
    return _split(splitter, whole)[:-1]


def _joined(texts: Sequence[str]) -> str:
    return "\n\n".join(text.strip() for text in texts if text.strip())


def _split(splitter: Any, text: str) -> list[str]:
    """Returns ``splitter.split_text(text)``."""
    if text == "":
        return [text]
    chunks: list[str] = splitter._merge(splitter._split(text, splitter.chunk_size), splitter.chunk_size)
    return chunks


def selected(template: BasePromptTemplate, llm: Any) -> Any:
    """Returns the template that is used for this model."""
    return template.select(llm=llm) if isinstance(template, SelectorPromptTemplate) else template


def segments(template: Any) -> tuple[tuple[str, str], ...]:
    """Returns the parts of a selected template in order, as ("text", text) or ("variable", name).

    Empty if the template has blocks that are not text.
    """
    if isinstance(template, PromptTemplate):
        return tuple(_segments(template.template, template))
    found: list[tuple[str, str]] = []
    for message in template.message_templates:
        for block in message.blocks:
            if not isinstance(block, TextBlock):
                return ()
            found += _segments(block.text, template)
    return tuple(found)


def _segments(text: str, template: Any) -> Iterator[tuple[str, str]]:
    end = 0
    for match in _VARIABLE.finditer(text):
        yield "text", text[end : match.start()]
        end, name = match.end(), match[1]
        if name in template.kwargs:
            yield "text", template.kwargs[name]
        else:
            yield ("variable", name) if name in template.template_vars else ("text", match[0])
    yield "text", text[end:]


def reader_of(llm: Any) -> EngineLLM | Served | None:
    """Returns the object that formats prompts of a model and prefills them: the model, or its server's ``Served``.

    None if nothing may be prefilled.
    """
    if type(llm) is EngineLLM:
        return llm if llm.engine.can_prefill else None
    found = served(llm)
    return found if found is not None and not warmed(found) else None


def prefix_cache(llm: Any) -> dict[str, Any]:
    """Returns the metadata with which passes plan prefills: the prefix cache of the model, or why there is none."""
    if type(llm) is EngineLLM:
        kept = {"block": llm.engine.block_size} if llm.engine.can_prefill else {}
        return {**kept, **engine_on(llm.engine)}
    found = served(llm)
    if found is None:
        return {}
    if why := warmed(found):
        return {"whole_prompts": why}
    return {"block": found.server.block_size, "remote": True}


def beginning(llm: Any, template: Any, known: Mapping[str, str]) -> str:
    """Returns the beginning of a prompt of which only some variables are known; "" if it cannot be determined.

    Formats the whole prompt, chat template included, with a mark for each missing value, and cuts it at the first mark.
    """
    late = {name: _MARK for name in template.template_vars if name not in known and name not in template.kwargs}
    if llm.metadata.is_chat_model:
        messages, reader = llm._get_messages(template, **known, **late), reader_of(llm)
        if reader is None:
            return ""
        text = reader.prompt_text(messages, late=_MARK) if isinstance(reader, Served) else reader.prompt_text(messages)
    else:
        text = llm._get_prompt(template, **known, **late)
    begun, mark, _ = text.partition(_MARK)
    return begun if mark else ""
