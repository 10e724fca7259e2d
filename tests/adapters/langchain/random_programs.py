"""Random Python functions that call components: loops, branches, helpers, closures, exceptions, side effects.

A program is source text, so that a failure can be read and run by itself. It is a function ``program(state)`` of a dict
with a ``question`` and a list of ``items``; it calls ``ask`` (a chain), ``search`` (a retriever) and ``model``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

_HELPERS = """
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

    def call(self, text):
        return self.chain.invoke({"text": f"{self.prefix} {text}"})

    def count(self, text):
        self.counted += 1
        return self.chain.invoke({"text": f"{self.counted} {text}"})

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
                f"model.invoke({given}).content",
                f"describe({given})",
                f"service.call({given})",
                f"service.count({given})",
            ]
        )

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
        if depth:
            kinds += ["for"] * 4 + ["if"] * 3 + ["try", "while", "closure", "raise"]
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
    for line in ("question = state['question']", "items = state['items']", "out, seen = [], {}", "carried = 'start'"):
        writer.write(1, line)
    texts, lists = ["question", "carried"], ["items", "out"]
    for _ in range(writer.random.randint(2, 5)):
        writer.statement(1, texts, lists, False, 2)
    writer.write(1, 'return {"out": out, "carried": carried, "seen": seen}')
    return _HELPERS + "\ndef program(state):\n" + "\n".join(writer.lines) + "\n"


def compiled(source: str, **names: Any) -> Callable[[Any], Any]:
    """Returns the program, with components as its globals. As in a notebook whose file is gone: without source."""
    exec(compile(source, "<program>", "exec"), names)
    made: Callable[[Any], Any] = names["program"]
    return made
