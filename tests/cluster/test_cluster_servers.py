"""The server of docs/gunicorn.md: its workers share the engine, with either of the commands there."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import ray
from machine import until

from docs_kit import ROOT, blocks
from fineflow.engines import EmulatedEmbedding

PAGE = ROOT / "docs" / "gunicorn.md"
MODEL = "SentenceTransformerEngine(bundled_minilm())"
COMMANDS = re.findall(r"^((?:gunicorn|uvicorn) server:app.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def program() -> str:
    """The page's server, on an emulated model."""
    (code,) = (block.code for block in blocks(PAGE, "python") if MODEL in block.code)
    return code.replace("import SentenceTransformerEngine, bundled_minilm", "import EmulatedEmbedding").replace(
        MODEL, "EmulatedEmbedding()"
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_the_workers_of_a_server_share_an_engine(machine: Any, tmp_path: Path, command: str) -> None:
    name, *arguments = shlex.split(command)
    pytest.importorskip(name)
    (tmp_path / "server.py").write_text(program(), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments += ["--bind", f"127.0.0.1:{port}"] if name == "gunicorn" else ["--port", str(port)]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen([sys.executable, "-m", name, *arguments], cwd=tmp_path, stdout=log, stderr=log)
    try:
        until(lambda: asked(port, "hello") is not None, 120)
        until(lambda: len(ray.get(machine.host("embedder").clients.remote())) == 2)
        assert asked(port, "hello") == EmulatedEmbedding().compute(("query", "hello"))
    finally:
        server.terminate()
        server.wait(60)
    until(lambda: len(ray.get(machine.host("embedder").clients.remote())) == 0)
    machine.runtime.engine("embedder", "server:embedder")
    machine.runtime.remove_engine("embedder")


def asked(port: int, text: str) -> Any:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/embed?text={urllib.parse.quote(text)}") as answer:
            return json.load(answer)
    except (urllib.error.URLError, ConnectionError):
        return None


def test_both_commands_of_the_page_are_run() -> None:
    assert [command.split()[0] for command in COMMANDS] == ["gunicorn", "uvicorn"]
