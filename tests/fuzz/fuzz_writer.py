"""Writes one random program, statement by statement: names, indentation, and calls of components."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

HEADER = """\
import asyncio, bisect, collections, contextlib, contextvars, copy, dataclasses, enum, functools, heapq, itertools
import json, operator, os, re, string, tempfile, threading, weakref
from collections import Counter, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from unittest import mock

from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough, RunnableSequence
from langgraph.graph import StateGraph

import tenacity
from langsmith import traceable
from pydantic import BaseModel

import fineflow
from fuzz_world import world

w = world()
log = w.log
ask, label, grade, number, risky = (w.chain(kind) for kind in ("ask", "label", "grade", "number", "risky"))
choosing, silent = w.choosing(), w.chain("silent")

def texts(docs):
    return sorted(doc.page_content for doc in docs)

@fineflow.effects(reads="the web")
def fetch(x):
    return w.fetch(x)

@fineflow.effects(reads="the web")
async def afetch(x):
    return await w.afetch(x)

class Web:
    @fineflow.effects(reads="the web")
    def fetch(self, x, *, of="web"):
        return w.fetch(x)

    @fineflow.effects(reads="the web")
    async def afetch(self, x, *, of="web"):
        return await w.afetch(x)

web = Web()

"""


class Writer:
    """One program being written.

    known: expressions of texts that do not depend on a component. unknown: variables that hold results. top: lines of
    the module, before the program. mode: "sync" or "async".
    """

    def __init__(self, seed: int, mode: str) -> None:
        self.random = random.Random(seed)
        self._declares = random.Random(f"{seed} declared")
        self.mode = mode
        self.top: list[str] = []
        self.change: list[str] = []  # what changes the world between calls
        self.lines: list[str] = []
        self.known: list[str] = ["question"]
        self.unknown: list[str] = []
        self.globals: set[str] = set()
        self.indent = 1
        self.number = 0
        self.nested = 0

    # --- text -------------------------------------------------------------------------------------------------------

    def name(self, of: str = "v") -> str:
        self.number += 1
        return f"{of}{self.number}"

    def write(self, text: str) -> None:
        """Writes lines at the present indentation."""
        self.lines += ["    " * self.indent + line for line in text.split("\n")]

    def define(self, text: str) -> None:
        """Writes lines of the module."""
        self.top += text.split("\n")

    def define_somewhere(self, text: str) -> None:
        """Writes a definition: in the module, or inside the program."""
        if self.random.random() < 0.6:
            self.define(text)
        else:
            self.write(text)

    def pick(self, options: Sequence[str]) -> str:
        return self.random.choice(list(options))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    @contextmanager
    def inside(self, line: str) -> Iterator[None]:
        """A compound statement; what is assigned in it is not used behind it."""
        self.write(line)
        known, unknown = list(self.known), list(self.unknown)
        self.indent += 1
        self.nested += 1
        yield
        self.nested -= 1
        self.indent -= 1
        self.known, self.unknown = known, unknown

    # --- expressions ------------------------------------------------------------------------------------------------

    @property
    def awaits(self) -> bool:
        return self.mode == "async"

    def invoke(self, component: str, given: str, *, sync: bool = False, **named: str) -> str:
        """A call of a runnable."""
        more = "".join(f", {key}={value}" for key, value in named.items())
        if self.awaits and not sync:
            return f"(await {component}.ainvoke({given}{more}))"
        return f"{component}.invoke({given}{more})"

    def asked(self, given: str, chain: str = "ask", *, sync: bool = False) -> str:
        """A request to a model, or a call of a function that is declared to read."""
        if chain == "ask" and self._declares.random() < 0.2:
            where, more = self._declares.choice([("", ""), ("web.", ""), ("web.", ", of='page'")])
            return (
                f"(await {where}afetch({given}{more}))" if self.awaits and not sync else f"{where}fetch({given}{more})"
            )
        return self.invoke(chain, f'{{"text": {given}}}', sync=sync)

    def search(self, store: str, query: str, *, sync: bool = False) -> str:
        awaits = self.awaits and not sync
        kind = self.random.random()
        if kind < 0.7:
            call = f"{store}.{'a' * awaits}similarity_search({query}, k=9)"
            return f"(await {call})" if awaits else call
        return self.invoke(f"{store}.as_retriever(search_kwargs={{'k': 9}})", query, sync=sync)

    def text(self) -> str:
        """A text that the program knows."""
        a = self.pick(self.known)
        return self.pick(
            [a, a, f'{a} + "{self.random.randint(0, 9)}"', f"{a}.upper()", f'f"{{{a}}} {self.random.randint(0, 99)}"']
        )

    def result(self, chain: str | None = None) -> str:
        """A variable that holds a result; perhaps one that is written now."""
        if chain is None and self.unknown and self.chance(0.5):
            return self.pick(self.unknown)
        name = self.name("u")
        self.write(f"{name} = {self.asked(self.text(), chain or 'ask')}")
        if chain is None:
            self.unknown.append(name)
        return name

    def helper(self, act: Callable[[str], str], *, returns: str = "x", given: str = "x, *rest") -> str:
        """A function that does something with what it is called with; the name, or an expression of it."""
        name = self.name("write")
        form = self.pick(["module", "module", "local", "method", "callable", "partial"])
        lines = "\n".join("    " + line for line in act("str(x)[:9]").split("\n"))
        body = f"def {name}({given}):\n{self.declared(lines)}{lines}\n    return {returns}"
        if form == "local" or form == "partial":
            self.write(body)
            return name if form == "local" else f"functools.partial({name})"
        if form == "method" and given == "x, *rest":
            inner = "\n".join("    " + line for line in body.replace(f"def {name}(", f"def {name}(self, ").split("\n"))
            self.define(f"class K{name}:\n{inner}")
            return f"K{name}().{name}"
        if form == "callable" and given == "x, *rest":
            inner = "\n".join("    " + line for line in body.replace(f"def {name}(", "def __call__(self, ").split("\n"))
            self.define(f"class K{name}:\n{inner}")
            return f"K{name}()"
        self.define(body)
        return name

    def declared(self, lines: str) -> str:
        """The ``global`` statement that lines need which assign to a variable of the module."""
        found = [name for name in self.globals if f"{name} " in lines]
        return f"    global {', '.join(sorted(found))}\n" if found else ""

    # --- the whole --------------------------------------------------------------------------------------------------

    def source(self, form: str) -> str:
        """The program. form: "lambda", "graph", or "function" for one that is optimized by itself."""
        made = "async def" if self.awaits else "def"
        lines = [f"{made} program(state):"]
        if self.globals:
            lines.append(f"    global {', '.join(sorted(self.globals))}")
        lines += ["    question, items, out = state['question'], state['items'], []", *self.lines]
        lines += ["    return {'out': out}"]
        app = "app = program" if form == "function" else "app = RunnableLambda(program)"
        if form == "graph":
            app = (
                "graph = StateGraph(dict)\ngraph.add_node('program', program)\ngraph.set_entry_point('program')\n"
                "graph.set_finish_point('program')\napp = graph.compile()"
            )
        change = ["def change():"]
        if self.globals:
            change.append(f"    global {', '.join(sorted(self.globals))}")
        change += [f"    {line}" for line in self.change] or ["    pass"]
        return HEADER + "\n".join([*self.top, "", *lines, "", *change, "", app, ""])
