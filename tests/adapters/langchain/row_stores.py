"""Stores of the user's own that write a row for each text, as people write them; all but the first few with a catch."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from sqlalchemy import StaticPool, create_engine, text


def table(*, isolation: str | None = "", waits: Callable[[], None] | None = None) -> sqlite3.Connection:
    """Returns a connection to an empty table that refuses the text "refused". waits: called for each row."""
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=isolation)
    connection.create_function("wait", 0, waits or (lambda: None))
    connection.execute("CREATE TABLE rows (number INTEGER, text TEXT CHECK (text <> 'refused'), vector TEXT)")
    connection.execute("CREATE TRIGGER slow AFTER INSERT ON rows BEGIN SELECT wait(); END")
    return connection


class RowStore(VectorStore):
    """Base: a table, and searches of it."""

    def __init__(self, embedding: Embeddings, connection: sqlite3.Connection) -> None:
        self.embedding, self.connection, self.written = embedding, connection, 0

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        wanted = self.embedding.embed_query(query)
        rows = self.connection.execute("SELECT text, vector FROM rows").fetchall()
        rows.sort(key=lambda row: -sum(a * b for a, b in zip(wanted, json.loads(row[1]), strict=True)))
        return [Document(text) for text, _ in rows[:k]]

    @classmethod
    def from_texts(cls, texts: list[str], embedding: Embeddings, metadatas: Any = None, **kwargs: Any) -> Any:
        store = cls(embedding, kwargs["connection"])
        store.add_texts(texts)
        return store


class InOneTransaction(RowStore):
    def add_texts(self, texts: Iterable[str], metadatas: Any = None, **kwargs: Any) -> list[str]:
        texts = list(texts)
        vectors = self.embedding.embed_documents(texts)
        with self.connection:
            for number, (each, vector) in enumerate(zip(texts, vectors, strict=True)):
                self.connection.execute("INSERT INTO rows VALUES (?, ?, ?)", (number, each, json.dumps(vector)))
        return [str(number) for number in range(len(texts))]


class WithCursor(RowStore):
    def add_texts(self, texts: Iterable[str], metadatas: Any = None, **kwargs: Any) -> list[str]:
        texts = list(texts)
        numbers: list[int] = []
        vectors: list[Any] = self.embedding.embed_documents(texts)
        name = "rows"
        if metadatas is None:
            metadatas = [{} for _ in texts]
        with self.connection as connection:
            cursor = connection.cursor()
            for each, _, vector in zip(texts, metadatas, vectors, strict=False):
                numbers.append(len(each))
                cursor.execute(f"insert into {name} values (?, ?, ?)", (len(numbers), each, str(list(vector))))
        self.written += len(numbers)
        return [str(number) for number in numbers]


class OfAlchemy(RowStore):
    """The same on an engine of SQLAlchemy, over the same connection."""

    def __init__(self, embedding: Embeddings, connection: sqlite3.Connection) -> None:
        super().__init__(embedding, connection)
        self.engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)

    def add_texts(self, texts: Iterable[str], metadatas: Any = None, **kwargs: Any) -> list[str]:
        texts = list(texts)
        vectors = self.embedding.embed_documents(texts)
        with self.engine.begin() as opened:
            for each, vector in zip(texts, vectors, strict=True):
                row = {"text": each, "vector": json.dumps(vector)}
                opened.execute(text("INSERT INTO rows VALUES (1, :text, :vector)"), row)
        return texts


class RowByRow(RowStore):
    """Each row is committed."""

    def add_texts(self, texts: Iterable[str], metadatas: Any = None, **kwargs: Any) -> list[str]:
        texts = list(texts)
        vectors = self.embedding.embed_documents(texts)
        for each, vector in zip(texts, vectors, strict=True):
            with self.connection:
                self.connection.execute("INSERT INTO rows VALUES (1, ?, ?)", (each, json.dumps(vector)))
        return texts


class CommitsInside(RowStore):
    def add_texts(self, texts: Iterable[str], metadatas: Any = None, **kwargs: Any) -> list[str]:
        texts = list(texts)
        vectors = self.embedding.embed_documents(texts)
        with self.connection:
            for each, vector in zip(texts, vectors, strict=True):
                self.connection.execute("INSERT INTO rows VALUES (1, ?, ?)", (each, json.dumps(vector)))
                self.connection.commit()
        return texts


class Counts(RowStore):
    """Its object tells how many rows it has tried to write."""

    def add_texts(self, texts: Iterable[str], metadatas: Any = None, **kwargs: Any) -> list[str]:
        texts = list(texts)
        vectors = self.embedding.embed_documents(texts)
        with self.connection:
            for each, vector in zip(texts, vectors, strict=True):
                self.written += 1
                self.connection.execute("INSERT INTO rows VALUES (1, ?, ?)", (each, json.dumps(vector)))
        return texts


class CallsOwn(RowStore):
    """Calls a method of its own for each row."""

    def encoded(self, vector: list[float]) -> str:
        self.written += 1
        return json.dumps(vector)

    def add_texts(self, texts: Iterable[str], metadatas: Any = None, **kwargs: Any) -> list[str]:
        texts = list(texts)
        vectors = self.embedding.embed_documents(texts)
        with self.connection:
            for each, vector in zip(texts, vectors, strict=True):
                self.connection.execute("INSERT INTO rows VALUES (1, ?, ?)", (each, self.encoded(vector)))
        return texts


class LooksAtAll(RowStore):
    """Looks at the vectors before it begins."""

    def add_texts(self, texts: Iterable[str], metadatas: Any = None, **kwargs: Any) -> list[str]:
        texts = list(texts)
        vectors = self.embedding.embed_documents(texts)
        size = len(vectors[0])
        with self.connection:
            for each, vector in zip(texts, vectors, strict=True):
                self.connection.execute("INSERT INTO rows VALUES (?, ?, ?)", (size, each, json.dumps(vector)))
        return texts


class Catches(RowStore):
    """Writes nothing, and no word of it, if the texts cannot be embedded."""

    def add_texts(self, texts: Iterable[str], metadatas: Any = None, **kwargs: Any) -> list[str]:
        texts = list(texts)
        try:
            vectors = self.embedding.embed_documents(texts)
        except ValueError:
            return []
        with self.connection:
            for each, vector in zip(texts, vectors, strict=True):
                self.connection.execute("INSERT INTO rows VALUES (1, ?, ?)", (each, json.dumps(vector)))
        return texts


class EntersOwn(RowStore):
    """A block of the user's own, which keeps what was written."""

    @contextmanager
    def writing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.connection.commit()

    def add_texts(self, texts: Iterable[str], metadatas: Any = None, **kwargs: Any) -> list[str]:
        texts = list(texts)
        vectors = self.embedding.embed_documents(texts)
        with self.writing():
            for each, vector in zip(texts, vectors, strict=True):
                self.connection.execute("INSERT INTO rows VALUES (1, ?, ?)", (each, json.dumps(vector)))
        return texts


class TwoStatements(RowStore):
    def add_texts(self, texts: Iterable[str], metadatas: Any = None, **kwargs: Any) -> list[str]:
        texts = list(texts)
        vectors = self.embedding.embed_documents(texts)
        with self.connection:
            for each, vector in zip(texts, vectors, strict=True):
                self.connection.execute("INSERT INTO rows VALUES (1, ?, ?);", (each, json.dumps(vector)))
        return texts


class TakesAnother(RowStore):
    """Enters another connection than the variable holds while texts are embedded."""

    def add_texts(self, texts: Iterable[str], metadatas: Any = None, **kwargs: Any) -> list[str]:
        texts = list(texts)
        connection = sqlite3.connect(":memory:")
        vectors = self.embedding.embed_documents(texts)
        connection = self.connection
        with connection:
            for each, vector in zip(texts, vectors, strict=True):
                connection.execute("INSERT INTO rows VALUES (1, ?, ?)", (each, json.dumps(vector)))
        return texts


class Deletes(RowStore):
    def add_texts(self, texts: Iterable[str], metadatas: Any = None, **kwargs: Any) -> list[str]:
        texts = list(texts)
        vectors = self.embedding.embed_documents(texts)
        self.connection.execute("DELETE FROM rows")
        self.connection.commit()
        with self.connection:
            for each, vector in zip(texts, vectors, strict=True):
                self.connection.execute("INSERT INTO rows VALUES (1, ?, ?)", (each, json.dumps(vector)))
        return texts


class EntersMore(RowStore):
    """Enters something else besides the transaction."""

    def add_texts(self, texts: Iterable[str], metadatas: Any = None, **kwargs: Any) -> list[str]:
        texts = list(texts)
        vectors = self.embedding.embed_documents(texts)
        with self.connection, closing(self.connection.cursor()) as cursor:
            for each, vector in zip(texts, vectors, strict=True):
                cursor.execute("INSERT INTO rows VALUES (1, ?, ?)", (each, json.dumps(vector)))
        return texts


PIPELINED = (InOneTransaction, WithCursor, OfAlchemy)
WHOLE = (
    RowByRow,
    CommitsInside,
    Counts,
    CallsOwn,
    LooksAtAll,
    Catches,
    EntersOwn,
    Deletes,
    EntersMore,
    TwoStatements,
    TakesAnother,
)


def rows(store: RowStore) -> list[Any]:
    """Returns what the table holds, and the state of the store."""
    return [
        *store.connection.execute("SELECT number, text, vector FROM rows").fetchall(),
        store.connection.in_transaction,
        store.written,
    ]
