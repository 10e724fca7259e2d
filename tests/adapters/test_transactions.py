"""Which ``with`` blocks of a database leave nothing behind after an exception."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from fineflow.adapters.analysis.transactions import undone


class Overriding(sqlite3.Connection):
    def __exit__(self, *error: Any) -> Any:
        self.commit()


class Plain(sqlite3.Connection):
    pass


def test_sqlite() -> None:
    assert undone(sqlite3.connect(":memory:"), "")
    assert undone(sqlite3.connect(":memory:", factory=Plain), "")
    assert not undone(sqlite3.connect(":memory:", factory=Overriding), "")
    assert not undone(sqlite3.connect(":memory:", isolation_level=None), "")
    assert not undone(sqlite3.connect(":memory:"), "begin")
    begun = sqlite3.connect(":memory:")
    begun.execute("CREATE TABLE rows (number INTEGER)")
    assert undone(begun, "")
    begun.execute("INSERT INTO rows VALUES (1)")
    assert not undone(begun, "")
    begun.commit()
    assert undone(begun, "")


def test_sqlalchemy() -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine("sqlite://")
    assert undone(engine, "begin")
    assert not undone(engine, "connect")
    assert not undone(engine.execution_options(isolation_level="AUTOCOMMIT"), "begin")
    assert not undone(sqlalchemy.create_engine("sqlite://", isolation_level="AUTOCOMMIT"), "begin")


@pytest.mark.parametrize("other", [object(), None, open, "text"], ids=["object", "None", "function", "text"])
def test_anything_else(other: Any) -> None:
    assert not undone(other, "")
    assert not undone(other, "transaction")
