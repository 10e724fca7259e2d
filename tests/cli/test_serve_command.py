"""``fineflow serve``: what it refuses before it listens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from fineflow.cli import main

GOOD = "from langchain_core.runnables import RunnableLambda\napp = RunnableLambda(lambda x: x)\nother = 3\n"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments that uvicorn would run with."""
    (tmp_path / "served_module.py").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FINEFLOW_SERVE", "")
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **given: found.append({"app": app, **given}))
    return found


WRONG = {
    "served_module:missing": "has no attribute 'missing'",
    "nowhere:app": "there is no module 'nowhere'",
    "served_module:other": "expected a LangChain Runnable, a LangGraph graph",
    "served_module:app --concurrency 0": "concurrency must be above 0; got 0",
    "served_module:app --allow root": "got 'root'",
    "served_module:app --port 99999": "--port is 99999; it must be from 0 to 65535",
}


@pytest.mark.parametrize("line", WRONG)
def test_bad_input_is_one_line(line: str, ran: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *line.split()]) == 2
    text = capsys.readouterr().err
    assert WRONG[line] in text and text.count("\n") == 1
    assert ran == []


def test_a_missing_library_names_the_extra(
    ran: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", "served_module:app"]) == 2
    assert "uvicorn is not installed" in (text := capsys.readouterr().err) and "[serve]" in text


def test_one_process_gets_the_object_and_several_get_its_name(
    ran: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "served_module:app"]) == 0
    assert main(["serve", "served_module:app", "--workers", "2", "--host", "0.0.0.0"]) == 0
    one, several = ran
    assert one["app"].title == "app" and not one["factory"] and one["host"] == "127.0.0.1"
    assert several["app"] == "fineflow.serving.app:worker" and several["factory"]
    assert "anybody who reaches 0.0.0.0 may call" in capsys.readouterr().err


def test_keys_come_from_the_environment_too(ran: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from fineflow.serving import ServerSettings

    monkeypatch.setenv("FINEFLOW_API_KEY", "one, two,")
    assert main(["serve", "served_module:app", "--api-key", "three", "--allow", "priority,deadline"]) == 0
    settings, name = ServerSettings.of_environment()
    assert settings.api_keys == ("three", "one", "two") and settings.allow == ("priority", "deadline")
    assert name == "served_module:app"
