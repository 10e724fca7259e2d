"""Uploads: what reaches the module's function, and what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from serving_kit import served, wrong

from fineflow.serving import ServerSettings
from fineflow.serving.documents import Document, label

APP: Any = RunnableLambda(lambda x: x)


def test_documents_reach_the_module() -> None:
    taken: list[Document] = []

    def ingest(documents: list[Document]) -> dict[str, int]:
        taken.extend(documents)
        return {"passages": len(documents)}

    async def later(documents: list[Document]) -> list[str]:
        return [each.text for each in documents]

    files = [("files", ("a.md", "# ä", "text/markdown")), ("files", ("b.pdf", b"%PDF-1.7\xff", "application/pdf"))]
    with served(APP, ingest=ingest) as client:
        response = client.post("/documents", files=files)
        plain = client.post("/documents", files=[("files", ("c.txt", b"c", "application/octet-stream"))])
    assert response.status_code == 201
    assert response.json() == {"documents": ["a.md", "b.pdf"], "result": {"passages": 2}}
    assert taken[0] == Document("a.md", "# ä".encode(), "text/markdown") and taken[0].text == "# ä"
    assert plain.status_code == 201 and taken[2].media_type == "text/plain"
    with served(APP, ingest=later) as client:
        assert client.post("/documents", files=files[:1]).json()["result"] == ["# ä"]


NAMES = {
    "../../etc/passwd": "passwd",
    "..\\..\\windows\\system.ini": "system.ini",
    "/abs/olute.txt": "olute.txt",
    "..": "document",
    "": "document",
    ".bashrc": "bashrc",
    "a\r\nSet-Cookie: x=1.txt": "a__Set-Cookie_ x=1.txt".replace("=", "_"),
    "<img src=x onerror=alert(1)>.md": "_img src_x onerror_alert(1)_.md",
    "%2e%2e%2fpasswd": "_2e_2e_2fpasswd",
    "a\x00.txt": "a_.txt",
    "über (1).txt": "über (1).txt",
    "x" * 500 + ".txt": "x" * 124 + ".txt",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_labels(name: str) -> None:
    assert label(name) == NAMES[name]


def test_names_are_never_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with served(APP, ingest=lambda documents: None) as client:
        found = client.post("/documents", files=[("files", ("../x/../evil.txt", b"a" * 2_000_000, "text/plain"))])
    assert found.json()["documents"] == ["evil.txt"] and "set-cookie" not in found.headers
    assert list(tmp_path.iterdir()) == [] and not (tmp_path.parent / "evil.txt").exists()


REFUSED: dict[str, tuple[list[Any], int, str]] = {
    "type": ([("a.exe", b"MZ", "application/x-msdownload")], 415, "expected one of text/plain"),
    "name that lies": ([("a.txt", b"MZ", "application/x-msdownload")], 415, "application/x-msdownload"),
    "no type": ([("a.bin", b"\0", "application/octet-stream")], 415, "expected one of"),
    "no text": ([("a.txt", b"\xff\xfe", "text/plain")], 415, "in UTF-8; byte 0 is not"),
    "null": ([("a.txt", b"a\0", "text/plain")], 415, "null character"),
    "no PDF": ([("a.pdf", b"<html>", "application/pdf")], 415, "begins with %PDF-"),
    "many": ([("a.txt", b"a", "text/plain")] * 3, 413, "at most 2 files"),
    "large": ([("a.txt", b"a" * 5000, "text/plain")], 413, "at most 4,096 bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_taken(case: str) -> None:
    files, status, expected = REFUSED[case]
    taken: list[Any] = []
    with served(APP, ServerSettings(max_upload=4096, max_files=2), ingest=taken.append) as client:
        assert expected in wrong(client.post("/documents", files=[("files", each) for each in files]), status)
        wrong(client.post("/documents", json={"files": []}), 422)
    assert taken == []


def test_without_a_function_there_is_no_upload() -> None:
    with served(APP) as client:
        text = wrong(client.post("/documents", files=[("files", ("a.txt", b"a", "text/plain"))]), 404)
    assert "has no function named ingest" in text


def test_a_function_that_fails_tells_no_client_why() -> None:
    def ingest(_: Any) -> None:
        raise OSError("/secret/path")

    with served(APP, ingest=ingest) as client:
        assert "secret" not in wrong(client.post("/documents", files=[("files", ("a.txt", b"a", "text/plain"))]), 500)
