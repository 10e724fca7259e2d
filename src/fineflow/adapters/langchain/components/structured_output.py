"""Answers of ``ChatEngine`` that fit a schema: chains of the model and LangChain's own parsers."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Literal, get_args

from langchain_core.language_models import BaseChatModel
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.pydantic import is_basemodel_subclass

from fineflow.adapters.langchain.components.decoding import schema_of

Method = Literal["json_schema", "function_calling", "json_mode"]


def structured_output(
    model: Any, schema: Any, method: Method | None, *, include_raw: bool, strict: bool | None
) -> Runnable[Any, Any]:
    """Builds the chain that ``ChatEngine.with_structured_output`` returns."""
    if method not in (None, *get_args(Method)):
        raise ValueError(f"expected a method that is one of {', '.join(get_args(Method))}; got {method!r}")
    held = model.holds_schemas
    if method is None:
        method = "json_schema" if held else "function_calling" if model.calls_tools else "json_mode"
    if method == "function_calling":
        return BaseChatModel.with_structured_output(model, schema, include_raw=include_raw)
    wanted: dict[str, Any] = {"type": "json_object"}
    if method == "json_schema":
        form = schema_of(schema)
        named = {"name": form.get("title", "answer"), "schema": form}
        wanted = {"type": "json_schema", "json_schema": named | ({} if strict is None else {"strict": strict})}
    output_format = {"kwargs": {"method": method}, "schema": schema}
    # An engine without schema support does not support JSON objects either; the answer to the prompt is parsed.
    given = {"response_format": wanted} if held or method == "json_schema" else {}
    llm = model.bind(**given, ls_structured_output_format=output_format)
    pydantic = isinstance(schema, type) and is_basemodel_subclass(schema)
    parser: BaseOutputParser[Any] = PydanticOutputParser(pydantic_object=schema) if pydantic else JsonOutputParser()
    if not include_raw:
        return llm | parser  # type: ignore[no-any-return]
    # Built as in BaseChatModel.with_structured_output.
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=llm) | parsed.with_fallbacks([failed], exception_key="parsing_error")
