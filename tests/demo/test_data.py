from __future__ import annotations

from pathlib import Path

from fineflow.demo import data


def test_the_corpus_is_the_same_every_time(tmp_path: Path) -> None:
    questions = data.write_corpus(tmp_path / "one")
    assert data.write_corpus(tmp_path / "two") == questions
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert {Path(name).suffix for name in files} == {".md", ".txt"}
    assert len(files) == 78


def test_the_default_questions_come_first_and_their_answers_are_in_the_corpus(tmp_path: Path) -> None:
    questions = data.write_corpus(tmp_path)
    text = " ".join(path.read_text(encoding="utf-8") for path in tmp_path.iterdir())
    assert tuple(question.text for question in questions[: len(data.QUESTIONS)]) == data.QUESTIONS
    for question in questions[: len(data.QUESTIONS)]:
        assert all(part in text for part in question.answer.split(" and "))


def test_the_model_folder_is_complete() -> None:
    names = {path.name for path in data.default_model().iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
