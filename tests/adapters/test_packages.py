"""Which modules belong to installed packages, and which ones to the user's application."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from fineflow.adapters.core import recognition
from fineflow.adapters.core.recognition import of_application, of_package

RECORDED = {
    "alone": ("vendored_alone/__init__.py", "vendored_file.py"),
    "spread": ("vendored_spread/part/__init__.py",),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of modules on the path, such as that of a function service: two packages were installed to it."""
    for name in ("vendored_alone", "vendored_spread/part", "apps_own", "vendored_spread/mine", "checked_out"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "vendored_file.py").touch()
    for name, files in RECORDED.items():
        made = tmp_path / f"{name}-1.0.dist-info"
        made.mkdir()
        (made / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
        (made / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    made = tmp_path / "checked_out.egg-info"
    made.mkdir()
    (made / "PKG-INFO").write_text("Name: checked_out\nVersion: 1.0\n")
    (made / "SOURCES.txt").write_text("checked_out/__init__.py\n")
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]
    for cached in (recognition._installed, recognition._records, of_application):
        cached.cache_clear()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("vendored_alone", True),
        ("vendored_file", True),
        ("vendored_spread.part", True),
        ("vendored_spread.mine", False),  # the application's part of a namespace
        ("apps_own", False),
        ("checked_out", False),  # in development mode
    ],
)
def test_packages_of_a_folder_are_those_that_its_records_name(module: str, package: bool) -> None:
    import_module(module)
    assert of_package(module) is package
    assert of_application(module) is not package


@pytest.mark.parametrize("module", ["langchain_core.runnables.base", "langgraph.graph", "fineflow.api", "pytest"])
def test_site_packages(module: str) -> None:
    pytest.importorskip(module)
    assert of_package(module) and not of_application(module)
