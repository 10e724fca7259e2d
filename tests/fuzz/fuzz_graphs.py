"""Writes random graphs: the statements of random programs in several nodes, which share what the module holds.

A node reads what the nodes before it have written, changes what they read, decides on the next one, or raises.
"""

from __future__ import annotations

import random

from fuzz_statements import calls, statement
from fuzz_targets import TARGETS, Target
from fuzz_writer import HEADER, Writer

IMPORTS = """\
import operator
from typing import Annotated, Any
from typing_extensions import TypedDict
from langgraph.graph import END, START
from langgraph.types import Command, Send
"""


class GraphWriter:
    """One graph being written. shared: what more than one node may read and change."""

    def __init__(self, seed: int) -> None:
        first = random.Random(f"graphs {seed}")
        self.g = Writer(seed, first.choice(["sync", "async"]))
        self.g.random = first
        self.count = first.randint(2, 5)
        self.form = first.choice(["line", "line", "fan", "ladder", "join"]) if self.count > 2 else "line"
        self.leaves: set[int] = set()  # nodes that say themselves which one follows
        self.shared: list[Target] = []
        self.nodes: list[str] = []
        self.more: list[str] = []  # routers and edges

    def source(self) -> str:
        for number in range(self.count):
            self._node(number)
        self._edges()
        g, keys = self.g, ("question: str", "items: list", "log: Annotated[list, operator.add]", "topic: str")
        outs = [f"    out{number}: Any" for number in range(self.count)]
        state = ["class State(TypedDict, total=False):", *(f"    {each}" for each in keys), *outs]
        change = ["def change():"]
        change += [f"    global {', '.join(sorted(g.globals))}"] if g.globals else []
        change += [f"    {line}" for line in g.change] or ["    pass"]
        made = ["graph = StateGraph(State)"]
        made += [f"graph.add_node('node{number}', node{number})" for number in range(self.count)]
        program = ["async def program(): pass" if g.awaits else "def program(): pass"]
        lines = [*state, "", *self.nodes, "", *change, "", *program, *made, *self.more, "app = graph.compile()"]
        lines += [f"BESIDE = {self.form != 'line'}", ""]
        return HEADER + IMPORTS + "\n".join([*g.top, "", *lines])

    def _node(self, number: int) -> None:
        g = self.g
        before = [f"str(state.get('out{each}', ''))" for each in range(number)]
        g.lines, g.unknown, g.known = [], [], ["question", "state.get('topic', 'none')", *before]
        for _ in range(g.random.choice((0, 0, 1, 1, 2))):
            self._states()
        if self.form == "line":
            for _ in range(g.random.choice((0, 1, 1, 2))):
                self._shares()
            if number == 0 or g.chance(0.2):
                self._makes()
        if g.chance(0.8):
            calls(g)
        returned = self._returned(number)
        text = "\n".join(g.lines).replace("return {'out': ", f"return {{'out{number}': ")
        made = "async def" if g.awaits else "def"
        self.nodes += [f"{made} node{number}(state):"]
        self.nodes += [f"    global {', '.join(sorted(g.globals))}"] if g.globals else []
        self.nodes += ["    question, items, out = state['question'], state['items'], []", text, returned, ""]

    def _states(self) -> None:
        """Writes a statement; beside other nodes none that changes what these see, as which is first is open there."""
        g = self.g
        written, known, unknown = len(g.lines), list(g.known), list(g.unknown)
        statement(g)
        everybodys = any(each in line for line in g.lines[written:] for each in ("RunnableSequence", "items.clear"))
        if self.form != "line" and everybodys:
            g.lines[written:], g.known, g.unknown = [], known, unknown

    def _makes(self) -> None:
        """A new target that other nodes may read."""
        target: Target = self.g.random.choice(TARGETS)(self.g)
        if any(line.startswith((f"{target.one}, ", f"class {target.one}:")) for line in self.g.top):
            self.shared.append(target)
            target.read(self.g, target.one)

    def _shares(self) -> None:
        """Reads or changes what other nodes read, too."""
        if not self.shared:
            self._makes()
            return
        g, target = self.g, self.g.random.choice(self.shared)
        if g.chance(0.5):
            g.write(target.act(g, target.one)(g.pick(["'x'", g.pick(g.known), g.result()])))
        else:
            target.read(g, target.one)

    def _returned(self, number: int) -> str:
        g, made = self.g, [f"'out{number}': out"]
        if g.chance(0.2):
            made.append(f"'log': [{g.pick(g.known)}]")
        if g.chance(0.15):
            made.append(f"'{g.pick(['question', 'topic'])}': {g.pick([g.text(), *g.unknown])}")
        value = f"{{{', '.join(made)}}}"
        odd = g.random.random()
        if odd < 0.1 and number < self.count - 1 and self.form == "line":
            self.leaves.add(number)
            return f"    return Command(update={value}, goto={self._other(number)!r})"
        if odd < 0.14:
            return f"    return {value} if {g.pick(g.known)} else None"
        if odd < 0.2:
            return f"    made = {value}\n    made.update(topic={g.text()})\n    return made"
        return f"    return {value}"

    def _other(self, number: int) -> str:
        return f"node{self.g.random.randint(number + 1, self.count - 1)}"

    def _edges(self) -> None:
        g, last, form = self.g, self.count - 1, self.form
        edges: list[tuple[str, int]] = [("START", 0)]
        if form == "line":
            edges += [(f"'node{each}'", each + 1) for each in range(last) if each not in self.leaves]
        elif form == "fan":
            edges += [
                *(("'node0'", each) for each in range(1, last)),
                *((f"'node{each}'", last) for each in range(1, last)),
            ]
        elif form == "ladder":
            edges += [("START", 1), *((f"'node{each}'", each + 2) for each in range(last - 1))]
        else:
            edges += [("START", each) for each in range(1, last)]
            edges += [(str([f"node{each}" for each in range(last)]), last)]
        for start, end in edges:
            if start[:5] == "'node" and g.chance(0.2):
                self._router(start, end)
            else:
                self.more.append(f"graph.add_edge({start}, 'node{end}')")

    def _router(self, start: str, end: int) -> None:
        g, name = self.g, self.g.name("route")
        of_state = ("len(state['question']) > 3", "state.get('topic')", "state['items']")
        condition = g.pick([f"'a' in str(state.get('out{start[5:-1]}'))", *of_state])
        before = ""
        if self.shared and g.chance(0.2):
            target = g.random.choice(self.shared)
            before = "    " + target.act(g, target.one)("'routed'") + "\n"
            before = g.declared(before) + before
        self.more.append(f"def {name}(state):\n{before}    return 'node{end}' if {condition} else END")
        self.more.append(f"graph.add_conditional_edges({start}, {name}, ['node{end}', END])")


def program(seed: int) -> str:
    """Returns the source of the graph with this seed."""
    return GraphWriter(seed).source()
