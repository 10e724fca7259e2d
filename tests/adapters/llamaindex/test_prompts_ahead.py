"""Prompts are packed ahead as stock packs them, and chunks that are called final stay as they are."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from hypothesis import given
from hypothesis import strategies as st
from index_shapes import scored
from llama_index.core.indices.prompt_helper import PromptHelper
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.prompts.default_prompt_selectors import DEFAULT_TEXT_QA_PROMPT_SEL

from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.llamaindex.lowering.prompts import (
    beginning,
    check_packing,
    check_template,
    repacked,
    segments,
    selected,
    settled,
    truncated,
)
from fineflow.llamaindex import EngineLLM
from fineflow.testing.engines import GatedLLM
from fineflow.testing.llamaindex.fakes import FakeLLM

TEMPLATE = PromptTemplate("Summarize {context_str} for {query_str}")
LLM = FakeLLM()

letters = st.text(alphabet="abcdé漢 \n.-", max_size=12)
texts = st.lists(st.lists(letters, max_size=25).map(" ".join), min_size=1, max_size=6)
helpers = st.builds(
    PromptHelper,
    context_window=st.integers(60, 160),
    num_output=st.just(10),
    chunk_overlap_ratio=st.sampled_from([0.0, 0.1, 0.5]),
)


@given(helpers, texts)
def test_texts_are_packed_as_stock_packs_them(helper: PromptHelper, texts: list[str]) -> None:
    assert repacked(helper, TEMPLATE, texts, LLM) == helper.repack(TEMPLATE, texts, llm=LLM)
    assert repacked(helper, TEMPLATE, texts, LLM, 20) == helper.repack(TEMPLATE, texts, llm=LLM, padding=20)
    if texts[0].strip():  # stock fails at a text of blanks
        assert truncated(helper, TEMPLATE, texts[0], LLM) == helper.truncate(TEMPLATE, [texts[0]], llm=LLM)[0]


@given(helpers, texts)
def test_settled_chunks_are_the_first_ones_whatever_follows(helper: PromptHelper, texts: list[str]) -> None:
    whole = helper.repack(TEMPLATE, texts, llm=LLM)
    for known in range(len(texts) + 1):
        final = settled(helper, TEMPLATE, texts[:known], LLM)
        assert final == whole[: len(final)]
        assert not final or len(final) < len(whole)


def test_long_texts_settle_before_the_last_one_is_there() -> None:
    helper = PromptHelper(context_window=200, num_output=20)
    found = [node.node.get_content() for node in scored()]
    assert settled(helper, TEMPLATE, found[:3], LLM)


def test_a_prompt_without_room_is_refused_as_in_stock() -> None:
    helper = PromptHelper(context_window=20, num_output=10)
    with pytest.raises(ValueError, match=r"not non-negative|not positive") as stock:
        helper.repack(TEMPLATE, ["text"], llm=LLM)
    with pytest.raises(ValueError, match=re.escape(str(stock.value))):
        repacked(helper, TEMPLATE, ["text"], LLM)


def test_the_beginning_of_a_prompt_is_that_of_the_whole() -> None:
    llm = EngineLLM(engine=GatedLLM("ok"))
    template = selected(DEFAULT_TEXT_QA_PROMPT_SEL, llm)
    begun = beginning(llm, template, {"query_str": "where"})
    whole = llm.prompt_text(template.format_messages(context_str="north", query_str="where"))
    assert whole.startswith(begun)
    assert begun.endswith("Context information is below.\n---------------------\n")
    assert beginning(llm, template, {"query_str": "where", "context_str": "north"}) == ""  # nothing is late
    assert [text for kind, text in segments(template) if kind == "variable"] == ["context_str", "query_str"]


def test_values_that_a_template_holds_are_text() -> None:
    template = TEMPLATE.partial_format(query_str="where")
    assert segments(template) == (
        ("text", "Summarize "),
        ("variable", "context_str"),
        ("text", " for "),
        ("text", "where"),
        ("text", ""),
    )


@pytest.mark.parametrize(
    "template",
    [
        PromptTemplate("{a}", function_mappings={"a": lambda **_: "x"}),
        PromptTemplate("{a}", template_var_mappings={"a": "b"}),
        PromptTemplate("{a}").partial_format(a=object()),
        type("Own", (PromptTemplate,), {})("{a}"),
        ChatPromptTemplate.from_messages([("user", "{a}")], function_mappings={"a": lambda **_: "x"}),
    ],
    ids=["functions", "variables", "an object", "a class", "chat"],
)
def test_templates_that_could_call_user_code_are_refused(template: Any) -> None:
    with pytest.raises(NotLowered):
        check_template(template)


def test_templates_and_helpers_of_llamaindex_are_known() -> None:
    check_template(DEFAULT_TEXT_QA_PROMPT_SEL)
    check_packing(PromptHelper())
    with pytest.raises(NotLowered, match="counted by user code"):
        check_packing(PromptHelper(tokenizer=lambda text: list(text)))
    with pytest.raises(NotLowered, match="not split at spaces"):
        check_packing(PromptHelper(separator="|"))
    with pytest.raises(NotLowered, match="is not recognised"):
        check_packing(type("Own", (PromptHelper,), {})())
