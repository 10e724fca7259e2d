"""The apps of ``examples/langchain`` give stock's answers by every entry point, and take what their data require."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from benchmarks.public import community_apps as apps

from fineflow.testing import virtual_threads
from fineflow.testing.differential import ALL, assert_same

pytest.importorskip("langchain_openai")

pytestmark = [
    pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning"),
]


ONE_AT_A_TIME = {"conversational_rag"}
"""Apps whose calls share a conversation: the inputs of a batch race for it, in stock too."""


@pytest.mark.parametrize("name", apps.PATHS)
def test_is_stock(name: str) -> None:
    module, services = apps.load(name), apps.load("services")

    def made() -> object:
        return module.build(services.chat_model(module.says, 0.005), services.vector_store(module.TEXTS, 0.002))

    entries = tuple(each for each in ALL if "batch" not in each) if name in ONE_AT_A_TIME else ALL
    assert_same(made, module.INPUT, entries=entries, strict=True)


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
@pytest.mark.parametrize("awaits", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize("name", apps.PATHS)
def test_takes_its_critical_path(name: str, awaits: bool) -> None:
    answer, stock = apps.seconds(name, optimized=False, awaits=awaits)
    same, mine = apps.seconds(name, optimized=True, awaits=awaits)
    assert same == answer
    assert mine <= 1.02 * stock
    assert mine <= 1.15 * apps.PATHS[name], f"langchain-core {version('langchain-core')}"


def test_every_app_is_measured_and_in_the_list() -> None:
    folder = Path(__file__).parent.parent / "examples"
    found = {path.stem for path in (folder / "langchain").glob("*.py")} - {"services", "texts"}
    assert found == set(apps.PATHS)
    listed = (folder / "README.md").read_text(encoding="utf-8")
    assert all(f"](langchain/{name}.py)" in listed for name in found)
