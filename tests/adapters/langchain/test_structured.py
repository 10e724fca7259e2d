"""Which pydantic models have fields that are known from their JSON alone."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Optional

import pytest
from langchain_core.output_parsers import PydanticOutputParser
from langchain_core.prompts import PromptTemplate
from pydantic import (
    AfterValidator,
    AliasGenerator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    RootModel,
    field_validator,
    model_validator,
)

import fineflow
from fineflow.adapters.analysis.pydantic_fields import plain_model, ready
from fineflow.ir import Op
from fineflow.testing.langchain import FakeChat


class Inner(BaseModel):
    name: str


class Plain(BaseModel):
    """A description."""

    query: str = Field(description="what to search for")
    number: int = 3
    share: float | None = None
    words: list[str] = []
    kind: Literal["a", "b"] = "a"
    maybe: Optional[str] = None  # noqa: UP045
    table: dict[str, int] = {}
    inner: Inner | None = None


class Further(Plain):
    more: bool = False
    model_config = ConfigDict(extra="forbid", frozen=True)


class Validated(BaseModel):
    query: str

    @field_validator("query")
    @classmethod
    def shout(cls, value: str) -> str:
        return value.upper()


class Checked(BaseModel):
    query: str

    @model_validator(mode="after")
    def check(self) -> Checked:
        return self


class InheritsValidator(Validated):
    other: str = ""


class Renamed(BaseModel):
    query: str = Field(alias="q")


class Generated(BaseModel):
    query: str
    model_config = ConfigDict(alias_generator=AliasGenerator(alias=str.upper))


class Stripped(BaseModel):
    query: str
    model_config = ConfigDict(str_strip_whitespace=True)


class Made(BaseModel):
    query: str = Field(default_factory=str)


class Bounded(BaseModel):
    query: str = Field(max_length=3)


class Before(BaseModel):
    query: Annotated[str, BeforeValidator(str)]


class Within(BaseModel):
    query: list[Annotated[str, AfterValidator(str.upper)]]


class Custom(BaseModel):
    query: Validated


class Anything(BaseModel):
    query: Any


class Private(BaseModel):
    query: str
    _seen: int = PrivateAttr(0)


class Initialised(BaseModel):
    query: str

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)


class Afterwards(BaseModel):
    query: str

    def model_post_init(self, context: Any) -> None:
        self.query = self.query.upper()


class Pretends(BaseModel):
    query: str

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


class Root(RootModel[list[str]]):
    pass


@pytest.mark.parametrize("model", [Plain, Further, Inner, Bounded])
def test_plain_models(model: Any) -> None:
    assert plain_model(model)


@pytest.mark.parametrize(
    "model",
    [
        *(Validated, Checked, InheritsValidator, Renamed, Generated, Stripped, Made, Before, Within, Custom),
        *(Anything, Private, Initialised, Afterwards, Pretends, Root, BaseModel | None, dict, str, "Plain"),
    ],
)
def test_other_models(model: Any) -> None:
    assert not plain_model(model)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("query", "a", True),
        ("query", 3, False),
        ("number", 4, True),
        ("number", True, False),
        ("number", "4", False),
        ("number", 4.0, False),
        ("share", None, True),
        ("share", 0.5, True),
        ("share", 1, False),
        ("words", ["a"], True),
        ("words", [], True),
        ("words", ["a", 1], False),
        ("kind", "b", True),
        ("kind", "c", False),
        ("maybe", "x", True),
        ("table", {"a": 1}, False),
        ("inner", {"name": "x"}, False),
        ("unknown", 1, False),
    ],
)
def test_values_that_stay_what_they_are(key: str, value: Any, expected: bool) -> None:
    assert ready(Plain, key, value) is expected
    if expected:
        kept = getattr(Plain.model_validate({"query": "q", key: value}), key)
        assert repr(kept) == repr(value)


@pytest.mark.parametrize(("model", "lowered"), [(Plain, True), (Validated, False)])
def test_parsers_of_other_models_are_run_by_stock(model: Any, lowered: bool) -> None:
    chain: Any = PromptTemplate.from_template("{x}") | FakeChat() | PydanticOutputParser(pydantic_object=model)
    graph = fineflow.explain(chain).p_graph
    assert graph is not None
    assert (graph.primitives[-1].op is Op.PARSE) is lowered
