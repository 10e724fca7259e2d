"""What an installer has put where it is, and what is the application's."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fineflow.adapters.core import installers


def _clear() -> None:
    for each in (installers._package_folders, installers._folder, installers._records):
        each.cache_clear()


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages, the application, and a folder of ``pip install --target``, all on the path."""
    for name in ("packages/there", "app/packages_of_it", "app/mine", "layer/installed", "layer/added"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "layer/one.dist-info").mkdir()
    (tmp_path / "layer/one.dist-info/RECORD").write_text("installed/__init__.py,,\n", encoding="utf-8")
    (tmp_path / "packages/linked").symlink_to(tmp_path / "app/mine")
    (tmp_path / "app/linked").symlink_to(tmp_path / "packages/there")
    monkeypatch.setattr(installers, "_package_paths", lambda: (str(tmp_path / "packages"),))
    monkeypatch.setattr(sys, "path", [str(tmp_path / name) for name in ("app", "layer")])
    _clear()
    yield tmp_path
    _clear()


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("packages/there", True),
        ("packages/linked", False),
        ("app/mine", False),
        ("app/linked", True),
        ("layer/installed", True),
        ("layer/added", False),
        ("elsewhere", False),
    ],
)
@pytest.mark.parametrize("file", ["", "/__init__.py"])
def test_where_it_really_is_decides(places: Path, place: str, file: str, expected: bool) -> None:
    assert installers.of_installer(f"{places / place}{file}") is expected


def test_what_came_later_is_looked_at(places: Path) -> None:
    installers.look()
    (places / "packages/later").symlink_to(places / "app/mine")
    assert not installers.of_installer(str(places / "packages/later"))


def test_a_relative_path_is_that_of_now(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [""])
    for folder, expected in (("app", False), ("layer", True)):
        monkeypatch.chdir(places / folder)
        assert installers.of_installer(str(places / "layer/installed")) is expected


def test_python_s_own_is_known_by_its_place() -> None:
    assert installers.of_python(os.__file__)
    assert not installers.of_python(__file__)
