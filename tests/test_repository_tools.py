"""The tools of the repository: the table of versions, and what a package must hold."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOLS = Path(__file__).parents[1] / "tools"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("output", "passed", "failed", "skipped"),
    [
        ("...\n12 passed in 3.10s\n", 12, 0, 0),
        ("2 failed, 761 passed, 3 skipped, 1 deselected in 240.81s (0:04:00)", 761, 2, 3),
        ("1 passed, 1 warning, 4 errors in 2.0s", 1, 4, 0),
        ("FAILED tests/a.py::test_5_passed\n1 failed in 0.1s", 0, 1, 0),
        ("Segmentation fault", 0, 0, 0),
    ],
)
def test_the_closing_line_of_pytest_is_counted(output: str, passed: int, failed: int, skipped: int) -> None:
    counts = tool("version_matrix").counted(output)
    assert counts == {"passed": passed, "failed": failed, "skipped": skipped}


def test_a_row_that_ran_again_replaces_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = tool("version_matrix")
    page = tmp_path / "versions.md"
    page.write_text(f"# Versions\n\n{matrix.BEGIN}\n{matrix.END}\n\nafter\n", encoding="utf-8")
    monkeypatch.setattr(matrix, "PAGE", page)

    matrix.write("| a==1 | 3.11 | LangChain | 1 | 2 | 0 | 9 | day |", 3)
    matrix.write("| a==1 | 3.12 | LangChain | 5 | 0 | 0 | 9 | day |", 3)
    matrix.write("| a==1 | 3.11 | LangChain | 3 | 0 | 0 | 9 | later |", 3)

    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| a==1")]
    assert rows == [
        "| a==1 | 3.11 | LangChain | 3 | 0 | 0 | 9 | later |",
        "| a==1 | 3.12 | LangChain | 5 | 0 | 0 | 9 | day |",
    ]
    assert page.read_text(encoding="utf-8").endswith(f"{matrix.END}\n\nafter\n")


def test_every_suite_names_tests_that_exist() -> None:
    matrix = tool("version_matrix")
    for name, suite in matrix.SUITES.items():
        lost = [pattern for pattern in suite.tests if not list(matrix.ROOT.glob(pattern))]
        assert not lost, f"{name}: {lost}"


def test_a_suite_without_end_is_stopped_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix = tool("version_matrix")

    def ran(command: Any, **_: Any) -> Any:
        raise subprocess.TimeoutExpired(command, matrix.SUITES["LangChain"].limit, output=b"some tests")

    monkeypatch.setattr(matrix, "_environment", lambda *_: tmp_path / "python")
    monkeypatch.setattr(matrix.subprocess, "run", ran)
    assert not matrix.run(matrix.ROWS[0], tmp_path, None)
    assert "has not ended in 1500 s" in capsys.readouterr().out
    assert [each.read_text() for each in tmp_path.glob("*.log")] == ["some tests"]


@pytest.mark.parametrize("newer", [False, True])
def test_newest_releases_run_only_where_a_framework_has_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], newer: bool
) -> None:
    matrix = tool("version_matrix")
    found = {"ruff": "99.0", "langchain-core": "1.99.0"} if newer else {"ruff": "99.0"}
    monkeypatch.setattr(matrix.constraints, "newest", lambda: found)
    ran: list[str] = []
    monkeypatch.setattr(matrix, "run", lambda row, *_: ran.append(matrix._key(row)) is None)
    assert matrix.main(["--if-newer", "--only", "newest | Python 3.11 | equality"]) == 0
    assert ran == (["newest | Python 3.11 | equality"] if newer else [])
    assert ("-> 1.99.0" if newer else "nothing to run") in capsys.readouterr().out


def test_a_wheel_with_a_file_lost_or_too_many_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = tool("check_package")
    monkeypatch.setattr(check, "SOURCES", tmp_path)
    monkeypatch.setattr(check, "_committed", lambda folder: [folder / "api.py", folder / "py.typed"])

    def holding(*names: str) -> Path:
        with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
            for name in names:
                wheel.writestr(name, "")
        return tmp_path / "a.whl"

    whole = ("fineflow/api.py", "fineflow/py.typed", "fineflow-1.dist-info/METADATA")
    assert check.look_at_wheel(holding(*whole)) == ""
    assert check.look_at_wheel(holding(*whole[:1])) == "a.whl lacks fineflow/py.typed"
    assert check.look_at_wheel(holding(*whole, "tests/conftest.py")) == "a.whl holds tests/conftest.py"


def test_an_sdist_without_a_committed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = tool("check_package")
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "_committed", lambda folder: [folder / "tests/test_a.py", folder / ".ci/run"])
    for name, wrong in (("tests/test_a.py", ""), ("tests/test_b.py", "a.tar.gz lacks tests/test_a.py")):
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
            archive.addfile(tarfile.TarInfo(f"fineflow-1/{name}"), io.BytesIO())
        assert check.look_at_sdist(tmp_path / "a.tar.gz") == wrong


def test_constraints_move_by_name_and_keep_what_has_no_newer_version() -> None:
    text = "# newest\nPyYAML==6.0\nlangchain_core==1.7.2\nlocal==1.0  # stays\n"
    found, lines = tool("constraints").moved(text, {"pyyaml": "6.0", "langchain-core": "1.8.3"})
    assert found == "# newest\nPyYAML==6.0\nlangchain_core==1.8.3\nlocal==1.0  # stays\n"
    assert lines == ["langchain_core 1.7.2 -> 1.8.3"]
