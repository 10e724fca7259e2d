"""Random Python functions that call components: loops, branches, helpers, closures, exceptions, side effects.

A program is source text, so that a failure can be read and run by itself. It is a function ``program(state)`` of a dict
with a ``question`` and a list of ``items``; it calls ``ask`` (a chain), ``search`` (a retriever) and ``model``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

_HELPERS = """
import collections, contextlib, copy, dataclasses, datetime, functools, json, re
from collections import Counter, defaultdict
from typing import NamedTuple, TypedDict
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import tool
from pydantic import BaseModel
from tqdm import tqdm

@dataclasses.dataclass
class Note:
    text: str
    tags: list = dataclasses.field(default_factory=list)

    @property
    def short(self):
        return self.text[:9]

class Found(BaseModel):
    text: str = ""

PROMPT = ChatPromptTemplate.from_template("{text}")
asked = 0
NOTES = []

@tool
def lookup(query: str) -> str:
    "Looks up."
    return "; ".join(doc.page_content for doc in search.invoke(query))

@tool
def counted(query: str, times: int = 2) -> str:
    "Asks several times."
    service.counted += 1
    return " ".join(ask.invoke({"text": f"{number} {query}"}) for number in range(times))

step = RunnableLambda(lambda text: ask.invoke({"text": "step " + text}))
opened = prompt | model | parser | RunnableLambda(lambda text: (NOTES.append(text), text)[1])
def describe(text):
    note = ask.invoke({"text": f"describe {text}"})
    if len(note) % 2:
        return note.upper()
    return note

def shorten(text, limit=12):
    return text[:limit].strip()

def texts_of(docs):
    return "; ".join(doc.page_content for doc in docs)

class Service:
    prefix = "service"

    def __init__(self):
        self.chain = ask
        self.counted = 0
        self.history = []
        self.last = "none"

    def call(self, text):
        return self.chain.invoke({"text": f"{self.prefix} {text}"})

    def count(self, text):
        self.counted += 1
        return self.chain.invoke({"text": f"{self.counted} {text}"})

    def remember(self, text):
        answer = self.chain.invoke({"text": text})
        self.history.append((text, answer))
        self.last = answer
        return answer

    def recall(self, text):
        return self.chain.invoke({"text": f"{len(self.history)} {self.last} {text}"})

service = Service()
"""


class _Writer:
    """Writes one program. Variables that hold texts are known in ``texts``, lists of texts in ``lists``."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.number = 0

    def fresh(self) -> str:
        self.number += 1
        return f"v{self.number}"

    def text(self, texts: list[str]) -> str:
        a, b = self.random.choice(texts), self.random.choice(texts)
        return self.random.choice(
            [a, a, f'f"{{{a}}} {{{b}}}"', f"{a}.upper()", f"shorten({a})", f'"{self.random.randint(0, 9)} " + {a}']
        )

    def call(self, texts: list[str]) -> str:
        given = self.text(texts)
        return self.random.choice(
            [
                f'ask.invoke({{"text": {given}}})',
                f'ask.invoke({{"text": {given}}})',
                f"texts_of(search.invoke({given}))",
                f"(prompt | model | parser).invoke({{'text': {given}}})",
                f"({{'text': RunnablePassthrough()}} | prompt | model | parser).invoke({given})",
                f"({{'text': search | texts_of}} | prompt | model | (lambda m: m.text + {given})).invoke({given})",
                f"model.invoke({given}).content",
                f"describe({given})",
                f"service.call({given})",
                f"service.count({given})",
                f"service.remember({given})",
                f"service.recall({given})",
                f"model.invoke(prompt.format(text={given})).content.strip()",
                f"(PROMPT | model.bind(stop=['x'])).invoke({{'text': {given}}}).text",
                f"'; '.join(ask.batch([{{'text': {given}}}, {{'text': {self.text(texts)}}}]))",
                f"''.join(ask.stream({{'text': {given}}}))",
                f"store.as_retriever(search_kwargs={{'k': 1}}).invoke({given})[0].page_content",
                f'lookup.invoke({{"query": {given}}})',
                f'counted.invoke({{"query": {given}}})',
                f"step.invoke({given})",
                f'opened.invoke({{"text": {given}}})',
                f"Note({self.call_simple(texts)}).short",
            ]
        )

    def call_simple(self, texts: list[str]) -> str:
        return f'ask.invoke({{"text": {self.text(texts)}}})'

    def condition(self, texts: list[str]) -> str:
        a = self.random.choice(texts)
        return self.random.choice([f'"e" in {a}', f"len({a}) % 2 == 0", f'{a}.startswith("a")', f"not {a}", f"{a}"])

    def block(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        texts, lists = list(texts), list(lists)
        for _ in range(self.random.randint(1, 3)):
            self.statement(indent, texts, lists, loop, depth)

    def write(self, indent: int, line: str) -> None:
        self.lines.append("    " * indent + line)

    def statement(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        kinds = ["call"] * 5 + ["append"] * 3 + ["assign", "listed", "sorted", "print", "log", "dict"]
        kinds += ["state", "global", "note", "grouped", "any", "next", "extreme", "parsed", "copied", "joined"]
        kinds += ["scored"]
        if depth:
            kinds += ["for"] * 4 + ["if"] * 3 + ["try", "while", "closure", "raise", "with", "tqdm"]
        if loop:
            kinds += ["break", "continue"]
        getattr(self, "_" + self.random.choice(kinds))(indent, texts, lists, loop, depth)

    def _call(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name = self.fresh()
        self.write(indent, f"{name} = {self.call(texts)}")
        texts.append(name)

    def _assign(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name = self.random.choice(["carried", self.fresh()])
        self.write(indent, f"{name} = {self.text(texts)}")
        texts.append(name)

    def _append(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        target = self.random.choice([name for name in lists if name != "items"])
        self.write(indent, f"{target}.append({self.random.choice([self.text(texts), self.call(texts)])})")

    def _listed(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name, source = self.fresh(), self.random.choice(lists)
        only = self.random.choice(["", " if len(x) > 3", ' if "e" in ask.invoke({"text": x})'])
        self.write(indent, f"{name} = [{self.call(['x', *texts])} for x in {source}[:3]{only}]")
        lists.append(name)

    def _sorted(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name, source = self.fresh(), self.random.choice(lists)
        self.write(indent, f"{name} = sorted({source}, key=lambda x: (len(x), x))")
        lists.append(name)

    def _print(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        self.write(indent, f"print({self.text(texts)})")

    def _log(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        self.write(indent, f"log.append({self.text(texts)})")

    def _dict(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name = self.fresh()
        self.write(indent, f'seen[{self.text(texts)}] = seen.get("none", 0) + 1')
        self.write(indent, f'{name} = str(len(seen)) + "e"')
        texts.append(name)

    def _for(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        item, source = self.fresh(), self.random.choice(lists)
        if self.random.random() < 0.3:
            number = self.fresh()
            self.write(indent, f"for {number}, {item} in enumerate({source}[:3]):")
            self.write(indent + 1, f"{item} = str({number}) + {item}")
        else:
            self.write(indent, f"for {item} in {source}[:3]:")
        self.block(indent + 1, [*texts, item], lists, True, depth - 1)

    def _if(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        self.write(indent, f"if {self.condition(texts)}:")
        self.block(indent + 1, texts, lists, loop, depth - 1)
        if self.random.random() < 0.5:
            self.write(indent, "else:")
            self.block(indent + 1, texts, lists, loop, depth - 1)

    def _try(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name = self.fresh()
        self.write(indent, "try:")
        self.write(indent + 1, f"{name} = {self.call(texts)}")
        self.write(indent, "except ValueError as error:")
        self.write(indent + 1, f"{name} = str(error)")
        texts.append(name)

    def _state(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        value, name = self.call(texts), self.fresh()
        self.write(indent, self.random.choice([f'state["notes"] += [{value}]', f'state["notes"].append({value})']))
        self.write(indent, f'{name} = str(len(state["notes"]))')
        texts.append(name)

    def _global(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name = self.fresh()
        self.write(indent, "asked += 1")
        self.write(indent, f"NOTES.append({self.text(texts)})")
        self.write(indent, f'{name} = f"{{asked}} {{len(NOTES)}}"')
        texts.append(name)

    def _note(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name, result = self.fresh(), self.fresh()
        self.write(indent, f"{name} = Note(text={self.text(texts)}, tags=[{self.call(texts)}])")
        self.write(indent, f"{name}.tags.append({self.text(texts)})")
        self.write(indent, f'{name}.text = {name}.text + "!"')
        self.write(indent, f"{result} = {name}.short")
        texts.append(result)

    def _grouped(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name, result = self.fresh(), self.fresh()
        self.write(indent, f"{name} = defaultdict(list)")
        self.write(indent, f"{name}[{self.call(texts)}].append({self.text(texts)})")
        self.write(indent, f"{result} = str(sorted({name}))")
        texts.append(result)

    def _any(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name, source = self.fresh(), self.random.choice(lists)
        which = self.random.choice(["any", "all"])
        self.write(indent, f'{name} = str({which}("e" in {self.call(["x", *texts])} for x in {source}[:3]))')
        texts.append(name)

    def _next(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name, source = self.fresh(), self.random.choice(lists)
        self.write(indent, f'{name} = next((x for x in {source}[:3] if "a" in {self.call(["x"])}), "none")')
        texts.append(name)

    def _extreme(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name = self.fresh()
        self.write(indent, f'{name} = max({self.random.choice(lists)}, key=lambda x: (len(x), x), default="d")')
        texts.append(name)

    def _parsed(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name = self.fresh()
        self.write(indent, f'{name} = re.sub(r"[aeiou]+", "", {self.call(texts)})')
        self.write(indent, f'{name} = json.loads(json.dumps({{"x": {name}}})).get("x", "")')
        self.write(indent, f'{name}_found = re.search(r"\\w+", {self.text(texts)})')
        self.write(indent, f"{name} += {name}_found.group(0) if {name}_found else 'nothing'")
        texts.append(name)

    def _copied(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name = self.fresh()
        self.write(indent, f"{name} = copy.deepcopy({self.random.choice(lists)})")
        self.write(indent, f"{name}.append({self.text(texts)})")
        lists.append(name)

    def _joined(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name, source = self.fresh(), self.random.choice(lists)
        self.write(indent, f'{name} = ", ".join({self.call(["x", *texts])} for x in {source}[:2])')
        texts.append(name)

    def _scored(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name, result = self.fresh(), self.fresh()
        self.write(indent, f"for {name} in search.invoke({self.text(texts)}):")
        self.write(indent + 1, f"if {self.condition(texts)}:")
        self.write(indent + 2, f'{name}.metadata["score"] = {name}.metadata.get("score", 0) + 1')
        self.write(indent + 1, f"{result} = f\"{{{name}.metadata.get('score')}} {{{name}.page_content}}\"")
        self.write(indent + 1, f"out.append({self.call([result, *texts])})")

    def _with(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        manager = self.random.choice(["contextlib.suppress(ZeroDivisionError)", "contextlib.nullcontext()"])
        self.write(indent, f"with {manager}:")
        self.block(indent + 1, texts, lists, loop, depth - 1)

    def _tqdm(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        item, source = self.fresh(), self.random.choice(lists)
        self.write(indent, f"for {item} in tqdm({source}[:3], disable=True):")
        self.block(indent + 1, [*texts, item], lists, True, depth - 1)

    def _while(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        count = self.fresh()
        self.write(indent, f"{count} = 0")
        self.write(indent, f"while {count} < 2:")
        self.write(indent + 1, f"{count} += 1")
        self.block(indent + 1, texts, lists, True, depth - 1)

    def _closure(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        name, result = self.fresh(), self.fresh()
        self.write(indent, f"def {name}(x, carried=carried):")
        self.write(indent + 1, f"return {self.call(['x', 'carried', *texts])}")
        self.write(indent, f"{result} = {name}({self.text(texts)})")
        texts.append(result)

    def _raise(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        self.write(indent, f"if {self.condition(texts)} and len({self.random.choice(texts)}) > 25:")
        self.write(indent + 1, f"raise KeyError({self.text(texts)})")

    def _break(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        self.write(indent, f"if {self.condition(texts)}: break")

    def _continue(self, indent: int, texts: list[str], lists: list[str], loop: bool, depth: int) -> None:
        self.write(indent, f"if {self.condition(texts)}: continue")


def source_of(seed: int) -> str:
    """Returns the source of a program."""
    writer = _Writer(seed)
    writer.write(1, "global asked")
    for line in ("question = state['question']", "items = state['items']", "out, seen = [], {}", "carried = 'start'"):
        writer.write(1, line)
    texts, lists = ["question", "carried"], ["items", "out"]
    for _ in range(writer.random.randint(2, 5)):
        writer.statement(1, texts, lists, False, 2)
    writer.write(1, 'return {"out": out, "carried": carried, "seen": seen, "state": state, "history": service.history}')
    return _HELPERS + "\ndef program(state):\n" + "\n".join(writer.lines) + "\n"


def compiled(source: str, **names: Any) -> Callable[[Any], Any]:
    """Returns the program, with components as its globals. As in a notebook whose file is gone: without source."""
    exec(compile(source, "<program>", "exec"), names)
    made: Callable[[Any], Any] = names["program"]
    return made
