"""The apps of ``examples/langchain`` give stock's answers by every entry point, and take what their data require."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks import apps
from fineflow.testing import virtual_threads
from fineflow.testing.differential import assert_same

pytest.importorskip("langchain_openai")

pytestmark = [
    pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning"),
]


BEHIND = {
    "draft_and_judge": "a method of a match that is not known yet ends the walk",
}
"""Apps that do not reach their critical path yet, and why."""


@pytest.mark.slow
@pytest.mark.parametrize("name", apps.PATHS)
def test_is_stock(name: str) -> None:
    module, services = apps.load(name), apps.load("services")

    def made() -> object:
        return module.build(services.chat_model(module.says, 0.005), services.vector_store(module.TEXTS, 0.002))

    assert_same(made, module.INPUT, strict=True)


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
@pytest.mark.parametrize("awaits", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=BEHIND[name])) if name in BEHIND else name
        for name in apps.PATHS
    ],
)
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
