"""Processes that fork while a session writes: the child finds a complete store, or hears that it is not."""

from __future__ import annotations

import os
import textwrap

import pytest

import programs

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

APP = """
import os, sys, threading, traceback
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
import fineflow
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeEmbeddings

gate = Gate()

@fineflow.external
class Held(FakeEmbeddings):
    def embed_documents(self, texts):
        gate.wait_sync(60)
        return super().embed_documents(texts)

DOCUMENTS = [Document(f"fact {n}", id=str(n)) for n in range(50)]

def child(run):
    pid = os.fork()
    if not pid:
        try:
            code = run()
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def run_python(text: str) -> tuple[int, str, str]:
    done = programs.run("-c", APP + textwrap.dedent(text), timeout=60.0)
    return done.returncode, done.stdout, done.stderr


def test_a_child_of_the_sessions_code_finds_a_complete_store() -> None:
    text = """
    with fineflow.session():
        store = InMemoryVectorStore(Held())
        store.add_documents(DOCUMENTS)
        os.register_at_fork(before=gate.open)  # what is registered last comes first
        assert fineflow.adapters.core.unfinished.some()
        print(child(lambda: len(store.store)), len(store.similarity_search("fact", k=100)))
    """
    assert run_python(text) == (0, "50 50\n", "")


def test_a_child_of_another_thread_hears_that_the_store_is_not_complete() -> None:
    text = """
    def search():
        try:
            store.similarity_search("fact")
        except RuntimeError as error:
            print(error)
            return 7
        return 8
    with fineflow.session():
        store = InMemoryVectorStore(Held())
        store.add_documents(DOCUMENTS)
        other = threading.Thread(target=lambda: print(child(search)))
        other.start()
        other.join()
        gate.open()
        print(len(store.store))
    """
    said = "writing to InMemoryVectorStore had not ended when the process forked, so it is not complete in this child"
    assert run_python(text) == (0, f"{said}\n7\n50\n", "")


def test_a_write_may_fork_itself() -> None:
    text = """
    class Forking(FakeEmbeddings):
        def embed_documents(self, texts):
            print(child(lambda: 7))
            return super().embed_documents(texts)
    with fineflow.session():
        store = InMemoryVectorStore(fineflow.external(Forking)())
        store.add_documents(DOCUMENTS)
    print(len(store.store))
    """
    assert run_python(text) == (0, "7\n50\n", "")
