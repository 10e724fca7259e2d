"""A framework that is newer than those tested is told: by ``doctor``, ``explain``, and once by ``optimize``."""

from __future__ import annotations

import asyncio
import sys
import threading
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from langchain_core.globals import set_verbose
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

import fineflow
from fineflow import cli, tested_versions
from fineflow.adapters.langchain.lowering import functions
from fineflow.tested_versions import NEWEST, newer, package_of, release
from fineflow.testing.langchain import FakeChat

PINS = dict(
    line.strip().split("==")
    for line in Path(__file__).parents[2].joinpath("constraints.txt").read_text().splitlines()
    if "==" in line
)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """``set_verbose`` is called with what a chain answers."""
    monkeypatch.setattr("langchain_core.globals._verbose", False)


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if only an older langchain-core had been tested, in a process that has told nothing yet."""
    monkeypatch.setitem(NEWEST, "langchain-core", "1.4.9")
    tested_versions.of_this_process.cache_clear()
    tested_versions.warn_once.cache_clear()
    tested_versions._told.clear()
    yield
    tested_versions.of_this_process.cache_clear()


def test_those_of_the_constraints_are_tested() -> None:
    assert {name: PINS[name] for name in NEWEST} == NEWEST
    assert newer(PINS) == ()


def test_numbers_are_compared() -> None:
    later = {"langchain-core": f"{NEWEST['langchain-core']}.1", "langgraph": "1.2.9rc1", "another": "9"}
    (said,) = newer(later)
    assert said.startswith(f"langchain-core {later['langchain-core']} is newer than the newest release that was tested")
    assert release("1.2.9rc1") == (1, 2, 9)


def test_it_is_told_once(older: None, capsys: pytest.CaptureFixture[str]) -> None:
    expected = f"langchain-core {version('langchain-core')} is newer than the newest release that was tested, 1.4.9"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            fineflow.optimize(RunnablePassthrough())
            tested_versions.warn_once().join()
    (only,) = [each for each in caught if each.category is fineflow.UntestedVersionWarning]
    assert expected in str(only.message)
    assert expected in str(fineflow.explain(RunnablePassthrough())).replace("\n", " ")
    assert cli.main(["doctor"]) == 0
    assert expected in " ".join(capsys.readouterr().out.split())


CORE = f"langchain-core {version('langchain-core')}"


def _ends_in(last: Runnable[str, str]) -> Runnable[str, str]:
    """Returns a chain of prompt, model, and one more step."""
    return ChatPromptTemplate.from_template("{question}") | FakeChat() | StrOutputParser() | last


def _said(chain: Runnable[str, str]) -> str:
    return " ".join(str(fineflow.explain(chain)).split())


def test_modules_are_in_packages() -> None:
    assert package_of("langchain_core.runnables.base") == "langchain-core"
    assert package_of("llama_index.core.query_engine") == package_of("llama_index") == "llama-index-core"
    assert package_of("llama_index.llms.openai.base") == "llama-index-llms-openai"
    assert package_of("langgraph.prebuilt.tool_node") == "langgraph-prebuilt"
    assert package_of("langgraph.pregel") == "langgraph"


def test_functions_of_packages_that_are_not_understood_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is not understood" not in _said(_ends_in(RunnableLambda(str.strip)))
    assert "is not understood" not in _said(_ends_in(RunnableLambda(lambda text: print(text))))  # the user's own
    told = f"`set_verbose` of {CORE} is not understood: stock runs it, and what follows waits for it."
    assert told in _said(_ends_in(RunnableLambda(set_verbose)))
    monkeypatch.setattr(functions, "reads_only", lambda func: True)  # then only its own value is waited for
    assert "is not understood" not in _said(_ends_in(RunnableLambda(set_verbose)))


def test_of_newer_releases_more_is_told(older: None) -> None:
    newer = f"{CORE} (newer than 1.4.9, the newest that was tested)"
    assert f"`set_verbose` of {newer} is not understood" in _said(_ends_in(RunnableLambda(set_verbose)))
    scripted = ChatPromptTemplate.from_template("{question}") | FakeListChatModel(responses=["yes"])
    assert f"`FakeListChatModel` of {newer} is not understood" in _said(scripted)


@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
def test_the_first_plan_warns_of_what_it_does_not_understand_of_newer_releases(older: None, awaits: bool) -> None:
    app = fineflow.optimize(_ends_in(RunnableLambda(set_verbose)))
    tested_versions.warn_once().join()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            asyncio.run(app.ainvoke("q")) if awaits else app.invoke("q")
        for thread in threading.enumerate():
            if thread.name == "fineflow-versions":
                thread.join()
    (only,) = [each for each in caught if each.category is fineflow.UntestedVersionWarning]
    assert "`set_verbose` of langchain-core" in str(only.message)


@pytest.mark.parametrize("lock", [True, False], ids=["newer", "without a lock"])
def test_on_an_interpreter_that_is_not_understood_everything_is_stock(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lock: bool
) -> None:
    chain = _ends_in(StrOutputParser())
    if lock:
        monkeypatch.setattr(tested_versions, "PYTHON", (3, 10))
        why = "does not read the bytecode of Python {}.{}; the newest that it does is 3.10".format(*sys.version_info)
    else:
        monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
        why = "was not tested on a Python without a global interpreter lock"
    with pytest.warns(fineflow.FineflowWarning, match=why):
        assert fineflow.optimize(chain) is chain
    with pytest.raises(fineflow.PlanningError, match=why):
        fineflow.optimize(chain, strict=True)
    assert why in _said(chain)
    assert cli.main(["doctor"]) == 0
    assert why in " ".join(capsys.readouterr().out.split())
