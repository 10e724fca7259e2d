"""What is in the way of a gain: where it is, the line that would declare it, and what that would gain."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wrapt
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

import fineflow
from fineflow.adapters.core.installers import module_of, of_package
from fineflow.cost_model.costs import costs
from fineflow.declare import declaration, declared_external, supposing
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeChat

QUESTION = {"question": "?"}


@pytest.fixture(autouse=True)
def unlearned() -> Iterator[None]:
    costs.forget()
    yield
    costs.forget()


class OurModel(BaseChatModel):
    seconds: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "ours"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("yes"))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        await asyncio.sleep(self.seconds)
        return self._generate(messages)


noted: list[Any] = []


async def note(value: Any) -> int:
    noted.append(value)
    await asyncio.sleep(0.2)
    return len(noted)


def ask(model: Any, text: str) -> Runnable[Any, Any]:
    return ChatPromptTemplate.from_template(text) | model | StrOutputParser()


def assigned(**steps: Any) -> Runnable[Any, Any]:
    chain: Runnable[Any, Any] = RunnablePassthrough()
    for key, step in steps.items():
        chain = chain | RunnablePassthrough.assign(**{key: step})
    return chain


def first_lines(obj: Any) -> list[str]:
    """The summary, and what is in the way."""
    found = fineflow.explain(obj)
    return [*found.summary, *(row[0] for heading, _, rows in found.overview if heading == "In the way" for row in rows)]


def where(kind: Any, below: int = 0) -> str:
    return f"test_obstacles.py:{inspect.getsourcelines(kind)[1] + below}"


def test_the_first_lines_name_the_class_its_place_and_the_line_that_declares_it() -> None:
    model = OurModel()
    lines = first_lines(assigned(a=ask(model, "A {question}"), b=ask(model, "B {question}")))
    assert lines == [
        "Runs as stock, through your own object: as it is, nothing in it can start earlier than stock starts it.",
        f"`OurModel` at {where(OurModel)} is a class of your own. If its methods do no more than the "
        "interface says, fineflow.external(OurModel) gains: 1 more step starts early.",
    ]


def test_after_calls_each_has_its_gain_in_seconds() -> None:
    model = OurModel(seconds=0.4)
    fake = FakeChat(prefill=0.3)
    chain = assigned(a=ask(fake, "A {question}"), n=note, b=ask(model, "B {question}"), c=ask(fake, "C {question}"))
    mine = fineflow.optimize(chain, eager=True)
    for _ in range(3):
        ran = virtual.run(mine.ainvoke(QUESTION))
    assert ran.seconds == pytest.approx(1.2)
    lines = first_lines(mine)
    assert lines[0] == "The last call (ainvoke) took 1.20 s, and nothing in it started earlier than in stock."
    assert lines[2].endswith("fineflow.external(OurModel) gains: 300 ms.")
    assert lines[3] == "Together: OurModel and `note`. All of them declared gain: 700 ms."
    with supposing((OurModel, note)):
        ran = virtual.run(fineflow.optimize(chain, strict=True).ainvoke(QUESTION))
    assert ran.seconds == pytest.approx(1.2 - 0.7)


def test_a_class_of_the_same_name_elsewhere_in_the_process_is_not_in_the_way() -> None:
    elsewhere = type("OurModel", (OurModel,), {name: vars(OurModel)[name] for name in ("_generate", "_agenerate")})
    fake = FakeChat()
    for kind in (elsewhere, OurModel):
        steps = {"a": ask(fake, "A {question}"), "n": note, "b": ask(kind(), "B {question}")}
        lines = first_lines(assigned(**steps, c=ask(fake, "C {question}")))
        assert [line for line in lines if line.startswith("Together: OurModel and `note`. ")]


def test_a_function_in_the_way() -> None:
    fake = FakeChat()
    lines = first_lines(assigned(a=ask(fake, "A {question}"), n=note, c=ask(fake, "C {question}")))
    assert lines[1].startswith(f"`note` at {where(note)}")
    assert "@fineflow.pure on it gains: " in lines[1]


def test_calls_of_an_undeclared_model_inside_a_function_do_not_count_as_a_gain() -> None:
    model = OurModel()

    async def each(texts: list[str]) -> list[str]:
        return [(await model.ainvoke(text)).text for text in texts]

    lines = first_lines(RunnableLambda(each))
    assert lines[0] == "As it is, nothing starts earlier than in stock."
    assert "fineflow.external(OurModel) gains: " in lines[1] and "start together" in lines[1]
    believed = fineflow.explain(RunnableLambda(each), trust="interfaces")
    assert "calls of `model` in it that need nothing from each other start together" in str(believed)


@pytest.mark.parametrize("last_run", [False, True])
@pytest.mark.parametrize("chained", [False, True])
def test_a_place_in_a_function_of_a_chain_behind_which_calls_start_later(chained: bool, last_run: bool) -> None:
    fake = FakeChat()

    def twice(question: str) -> Any:
        open(os.devnull, "w").close()
        return fake.invoke(question), fake.invoke(f"{question}!")

    fast = fineflow.optimize(RunnableLambda(twice) | repr if chained else RunnableLambda(twice), strict=True)
    assert "In the way" not in str(fineflow.explain(fast))
    fast.invoke("?")
    text = " ".join(str(fineflow.explain(fast, last_run=last_run)).split())
    said = "opens a file for more than reading it, so component calls behind it start later."
    assert f"In the way twice: {where(twice, 1)} {said}" in text
    assert "not measured" not in str(fineflow.explain(fast, graphs=True))


def test_what_is_needed_anyway_is_not_in_the_way() -> None:
    def grow(value: Any) -> Any:
        noted.append(value)
        return value

    lines = first_lines(assigned(a=ask(FakeChat(), "A {question}")) | grow | ask(FakeChat(), "{a}"))
    assert len(lines) == 1


def test_what_stock_runs_itself_starts_when_stock_gets_there() -> None:
    """A model that nothing overtakes comes after all that stock does before it, whatever data it needs."""
    fake = FakeChat(prefill=0.3)
    chain = assigned(a=ask(fake, "A {question}"), b=ask(OurModel(seconds=0.4), "B"), c=ask(fake, "C {question}"))
    mine = fineflow.optimize(chain, eager=True)
    for _ in range(3):
        ran = virtual.run(mine.ainvoke(QUESTION))
    found = fineflow.explain(mine, last_run=True)
    assert found.forecasts is not None
    assert found.forecasts.run.seconds == pytest.approx(1.0) == ran.seconds
    assert "no longer wait" not in str(found) and "starts earlier" not in str(found)
    path = [row for row in found.last_run[0][2] if "ms" in row[0]]
    assert [(row[0], row[2]) for row in path] == [
        ("300 ms", "a/llm.decode"),
        ("400 ms", "b/OurModel.call"),
        ("300 ms", "c/llm.decode"),
    ]


def test_supposing_ends() -> None:
    with supposing((OurModel, note)):
        assert declared_external(OurModel) and declaration(note) is not None
    assert not declared_external(OurModel) and declaration(note) is None


def test_the_measured_gain_comes_first() -> None:
    fake = FakeChat(prefill=0.3)
    mine = fineflow.optimize(assigned(a=ask(fake, "A {question}"), b=ask(fake, "B {question}")))
    assert "ms" not in first_lines(mine)[0]
    for _ in range(3):
        virtual.run(mine.ainvoke(QUESTION))
    assert first_lines(mine)[0] == "Predicted from measurements: 300 ms instead of 600 ms."


class AskingOther(BaseRetriever):
    """Asks another retriever several times."""

    other: Any = None

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return self.other.invoke(f"{query} a") + self.other.invoke(f"{query} b")


def test_retrievers_that_lead_back_to_each_other_are_explained() -> None:
    one, two = AskingOther(), AskingOther()
    one.other, two.other = two, one
    plan = fineflow.explain(RunnableLambda(lambda given: given["question"]) | one)
    assert any(p.by_stock for p in plan.e_graph)


PLACES = """
import site, sys, fineflow.adapters.core.installers as installers
sys.path.append(site.getusersitepackages())
import of_the_user, own_code
print(installers.of_package("of_the_user"), installers.of_package("own_code"))
"""


def test_packages_that_pip_installed_for_the_user_are_packages(tmp_path: Path) -> None:
    base = {**os.environ, "PYTHONUSERBASE": str(tmp_path / "home")}
    ask = [sys.executable, "-c", "import site; print(site.getusersitepackages())"]
    folder = Path(subprocess.run(ask, env=base, capture_output=True, text=True, check=True).stdout.strip())
    folder.mkdir(parents=True)
    (folder / "of_the_user.py").touch()
    (tmp_path / "own_code.py").touch()
    source = Path(fineflow.__file__).parents[1]
    env = {**base, "PYTHONPATH": os.pathsep.join([str(source), str(tmp_path)])}
    done = subprocess.run([sys.executable, "-c", PLACES], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


LAYER = """
import installed, spread.installed, own_code, fineflow.adapters.core.installers as installers
print(*map(installers.of_package, ("installed.part", "spread.installed", "own_code")))
"""


def test_packages_that_pip_installed_into_a_folder_of_the_application_are_packages(tmp_path: Path) -> None:
    """As in a layer of AWS Lambda, or with ``pip install --target``: the application's code may lie beside them."""
    files = ["installed/__init__.py", "spread/installed.py", "installed-1.0.dist-info/RECORD"]
    for name in (*files, "own_code.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / files[-1]).write_text("".join(f"{name},,\n" for name in files), encoding="utf-8")
    source = Path(fineflow.__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(tmp_path)])}
    done = subprocess.run([sys.executable, "-c", LAYER], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False"]


def test_a_function_is_a_packages_if_neither_it_nor_what_it_wraps_is_the_users() -> None:
    def own(text: str) -> str:
        return text

    @functools.wraps(json.dumps)
    def around_a_packages(text: str) -> str:
        return own(text)

    @fineflow.effects(reads="a file")
    def declared(text: str) -> str:
        return text

    around_the_users = wrapt.decorator(lambda wrapped, instance, args, kwargs: wrapped(*args))(own)
    for each in (own, around_a_packages, declared, around_the_users):
        assert not of_package(module_of(each)), each
    assert of_package(module_of(RunnableLambda.invoke)) and of_package(module_of(RunnableLambda(own).invoke))
