"""Writes random agents, as programs: ``program(seed)``. One statement for each thing that may be left out."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

TOPICS = ("rivers", "bridges", "ferries", "floods", "bad", "worse")
ODDS = (6, 6, 5, 4, 2, 1)
MODES = ("values", "updates", "messages", "custom", "tasks", "checkpoints", "debug")

IMPORTS = """\
import asyncio
from typing import Annotated, Any

import fineflow
from fineflow.testing.langchain import FakeRetriever
from fuzz_agent_hooks import *
from fuzz_agent_world import Scripts, World, Writer
from langchain.agents import create_agent
from langchain.agents.middleware import *
from langchain.tools import InjectedState, InjectedStore, ToolRuntime
from langchain_core.callbacks import dispatch_custom_event
from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig, RunnableLambda, RunnableParallel
from langchain_core.tools import InjectedToolCallId, StructuredTool, ToolException, tool
from langchain_core.messages import SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config, get_store, get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, RetryPolicy, interrupt
"""


class Writes:
    """Writes one program. sync: it runs by the sync entry points."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"agents {seed}")
        self.sync = self.chance(0.2)
        self.lines = [*IMPORTS.splitlines(), "", f"SYNC = {self.sync}"]
        self.threads = self.sync  # tools run in threads
        self.asks = self.chance(0.15)  # some tools ask a human
        kinds = ["agent", "agent", "agent", "react", "graph", *(["deep"] if find_spec("deepagents") else [])]
        self.kind = self.one(*kinds)
        self.saves = self.asks or self.chance(0.3)
        self.stores = self.chance(0.15)

    def chance(self, odds: float) -> bool:
        return self.random.random() < odds

    def one(self, *options: str) -> str:
        return self.random.choice(options)

    def seconds(self) -> float:
        return self.random.choice((0.0, 0.1, 0.25, 0.5, 1.0, 2.5))

    def program(self) -> str:
        inner = self._inner() if self.chance(0.2) else []
        names = [self._tool(f"t{number}", top=True) for number in range(self.random.randint(1, 4))] + inner
        if self.kind in ("agent", "react") and self.chance(0.15):
            names.append(self._built_in())
        self.texts = [f"question {number}" for number in range(self.random.choice((2, 3, 4)))]
        self._model("model", "scripts", names, self.texts, 3)
        self.add("tools = []", *(f"tools.append({name})" for name in names))
        self._app()
        if self.chance(0.3):
            self._outer()
        self._steps()
        self.add(f"THREADS = {self.threads}")
        return "\n".join(self.lines) + "\n"

    def add(self, *lines: str) -> None:
        self.lines += lines

    # Tools.

    def _tool(self, name: str, *, top: bool) -> str:
        if not self.sync and self.chance(0.2):
            return self._mcp(name, "archive" if top else "")
        effect = self.random.choices(("reads", "pure", "writes", ""), (12, 2, 2, 4))[0]
        form = self.one("sync", "both") if self.sync else self.one("sync", "async", "async", "async", "both")
        resource = self.one("archive", "notes")
        extra, body = self._body(name, effect, form, resource, top=top)
        params = ", ".join(["topic: str", *extra])
        declared = {
            "reads": [f"@fineflow.effects(reads={resource!r})"],
            "writes": [f"@fineflow.effects(writes={resource!r})"],
            "pure": ["@fineflow.pure"],
            "": [],
        }[effect]
        if form == "both":
            asynced = [line.replace("w.does(", "await w.adoes(") for line in body]
            self.add(*declared, f"def {name}_sync({params}):", *body)
            self.add(*declared, f"async def {name}_async({params}):", *asynced)
            made = f"StructuredTool.from_function({name}_sync, {name}_async, name={name!r}, description='{name}.'"
            self.add(f"{name} = {made}{self._settings()})")
            return name
        if form == "async":
            body = [line.replace("w.does(", "await w.adoes(") for line in body]
        self.threads = self.threads or form == "sync"
        settings = self._settings().removeprefix(", ")
        self.add(f"@tool({settings})" if settings else "@tool", *declared)
        self.add(f"{'async ' if form == 'async' else ''}def {name}({params}):", f'    """{name}."""', *body)
        return name

    def _settings(self) -> str:
        if self.chance(0.08):
            return ", return_direct=True"
        return self.one(", response_format='content_and_artifact'", "") if self.artifact else ""

    def _body(self, name: str, effect: str, form: str, resource: str, *, top: bool) -> tuple[list[str], list[str]]:
        early = effect in ("reads", "pure")
        touches = "writes" if effect in ("writes", "") else "reads"
        resource = "" if effect == "pure" or not top else f", {touches}={resource!r}"
        sleeps = self.sync or form != "sync"  # a thread does not sleep in the virtual time of one loop
        call = f"said = w.does({name!r}, topic, {self.seconds() if sleeps else 0.0}{resource}, early={early})"
        before, after, extra = list[str](), list[str](), list[str]()
        value = "said"
        if self.chance(0.5):
            after += ["if topic == 'bad':", "    raise ValueError('bad')"]
        if self.chance(0.2):
            before += ["if topic == 'bad':", "    raise ValueError('bad before')"]
        if self.chance(0.15):
            after += ["if topic == 'worse':", "    raise ToolException('worse')"]
        if top and self.asks and self.chance(0.5):
            where = before if self.chance(0.6) else after
            where += self.random.choice(
                (["said = interrupt({'about': topic})"], ["if topic != 'rivers':", "    interrupt(topic)"])
            )
        special = self.random.random()
        if special < 0.04:
            before += ["get_stream_writer()({'about': topic})"]
        elif special < 0.08:
            before += ["get_config()['configurable'].get('user')"]
        elif special < 0.11:
            extra += ["config: RunnableConfig"]
            value = "said + str(config['configurable'].get('user'))"
        elif special < 0.14:
            extra += ["runtime: ToolRuntime"]
            value = "said + runtime.tool_call_id"
        elif special < 0.17:
            extra += ["state: Annotated[Any, InjectedState]"]
            value = "said + str(len(state['messages']))"
        elif special < 0.20 and self.stores:
            extra += ["store: Annotated[Any, InjectedStore()]"]
            after += ["store.put(('notes',), topic, {'text': said})"]
        elif special < 0.24:
            extra += ["call_id: Annotated[str, InjectedToolCallId]"]
            value = "Command(update={'messages': [ToolMessage(said, tool_call_id=call_id)]})"
        elif special < 0.30 and form != "both":
            number = len([line for line in self.lines if "FakeRetriever(" in line])
            self.add(f"r{number} = w.retriever({0.0 if self.sync or form == 'sync' else self.seconds()})")
            asks = f"await r{number}.ainvoke(topic)" if form == "async" else f"r{number}.invoke(topic)"
            (before if self.chance(0.7) else after).append(f"found = {asks}")
        elif special < 0.33:
            extra += ["items: list[int] = [1, 2]"]
            value = "said + str(items)"
        elif special < 0.35:
            after += ["dispatch_custom_event('found', {'about': topic})"]
        elif special < 0.38:
            extra += ["depth: int = 1"]
            value = "[{'type': 'text', 'text': said}, {'type': 'text', 'text': str(depth)}]"
        self.artifact = value == "said" and self.chance(0.1)
        return extra, [f"    {line}" for line in (*before, call, *after, f"return {self._returned(value)}")]

    artifact = False

    def _returned(self, value: str) -> str:
        return f"{value}, {{'topic': topic}}" if self.artifact else value

    def _mcp(self, name: str, resource: str) -> str:
        reads = self.random.choice((True, True, True, False, None))
        trusted = reads and self.chance(0.7)
        name = f"mcp_reads_{name}" if trusted else f"mcp_{name}"
        handles = self.chance(0.8)
        self.add(f"{name} = w.mcp({name!r}, {self.seconds()}, reads={reads}, resource={resource!r}, handles={handles})")
        return name

    def _inner(self) -> list[str]:
        names = [self._tool(f"u{number}", top=False) for number in range(self.random.randint(1, 2))]
        self._model("expert_model", "expert_scripts", names, [""], 2)
        expert = "w.nested(expert)" if self.chance(0.4) else "expert"
        self.add(f"expert = create_agent(expert_model, [{', '.join(names)}])", "@tool")
        if self.sync:
            self.add("def ask_expert(topic: str):", '    """Asks."""')
            self.add(f"    found = {expert}.invoke({{'messages': [('user', topic)]}})")
        else:
            self.add("async def ask_expert(topic: str):", '    """Asks."""')
            self.add(f"    found = await {expert}.ainvoke({{'messages': [('user', topic)]}})")
        self.add("    return found['messages'][-1].text")
        return ["ask_expert"]

    def _built_in(self) -> str:
        self.threads = True
        self.add("retriever = w.retriever(0.0)")
        return "retriever.as_tool(name='as_tool', description='Finds.')"

    # The model.

    def _model(self, model: str, scripts: str, names: Sequence[str], texts: Sequence[str], most: int) -> None:
        self.add(f"{scripts} = Scripts()")
        for text in texts:
            self.add(f"{scripts}.about({text!r})")
            for number in range(self.random.randint(1, most)):
                self.add(f"{scripts}.turn({self.one('', '', repr('Let me see.'))})")
                if number == 1 and self.chance(0.15):
                    self.lines[-1] = f"{scripts}.turn('So far so good.')"
                    break
                for _ in range(self.random.randint(1, 4)):
                    self.add(f"{scripts}.says({self._said(names)})")
        settings = [f"seconds={self.random.choice((0.05, 0.1, 0.3, 0.0))}", f"size={self.random.choice((0, 0, 3, 7))}"]
        settings += ["streaming=False"] if self.chance(0.12) else []
        settings += [f"fails=[{self.random.randint(1, 3)}]"] if self.chance(0.06) else []
        settings += ["inner=True"] if texts == [""] else []
        self.add(f"{model} = Writer(scripts={scripts}, world=w, {', '.join(settings)})")

    def _said(self, names: Sequence[str]) -> str:
        name = self.random.choice(names).partition(".as_tool")
        called = "as_tool" if name[1] else name[0]
        topic = self.random.choices(TOPICS, ODDS)[0]
        odd = self.random.random()
        if odd < 0.03:
            return repr(called) + ", " + self.one("'{}'", "'{\"topic\": '", "'{\"topic\": 3}'", "'[1]'", "''")
        if odd < 0.05:
            return f"'nobody', topic={topic!r}"
        if odd < 0.07:
            return f"{called!r}, topic={topic!r}, items=[3]"
        if called == "as_tool":
            return f"{called!r}, __arg1={topic!r}"
        return f"{called!r}, topic={topic!r}"

    # The agent.

    def _middleware(self) -> Iterator[str]:
        retry = f"max_retries={self.random.randint(1, 2)}, initial_delay=0.2, jitter=False"
        ends = self.one("end", "continue", "error")
        options = (
            f"ToolRetryMiddleware({retry})",
            f"ToolRetryMiddleware({retry}, on_failure='error')",
            "ToolErrorMiddleware(on_error=lambda error, _: str(error))",
            "TodoListMiddleware()",
            f"ModelCallLimitMiddleware(run_limit={self.random.randint(1, 3)})",
            f"ToolCallLimitMiddleware(run_limit={self.random.randint(1, 4)}, exit_behavior={ends!r})",
            "PIIMiddleware('email')",
            "ContextEditingMiddleware()",
            "ModelRetryMiddleware(max_retries=1, initial_delay=0.1, jitter=False)",
            *("Looks()", "Monitors()", "Twice()", "Refuses()", "Changes()", "Drops()", "Asks()", "Greets()", "Ends()"),
            *("seen", "around" if self.sync else "around_async"),
        )
        yield from self.random.sample(options, self.random.choice((0, 0, 1, 1, 1, 2, 3)))
        if self.asks and self.chance(0.3):
            yield "HumanInTheLoopMiddleware({'t0': True})"

    def _app(self) -> None:
        settings = ["checkpointer=InMemorySaver()"] if self.saves else []
        settings += ["store=InMemoryStore()"] if self.stores else []
        if self.saves and self.chance(0.1):
            settings += [f"{self.one('interrupt_before', 'interrupt_after')}=['tools']"]
        more = "".join(f", {each}" for each in settings)
        if self.kind in ("agent", "deep"):
            self.add("middleware = []", *(f"middleware.append({each})" for each in self._middleware()))
            make = "create_agent" if self.kind == "agent" else "create_deep_agent"
            self.add(*(["from deepagents import create_deep_agent"] if self.kind == "deep" else []))
            self.add(f"app = {make}(model, tools=tools, middleware=middleware{more})")
            return
        handles = self.one("True", "True", "'failed'", "(ValueError,)", "False")
        self.add(f"node = ToolNode(tools{f', handle_tool_errors={handles}' if self.chance(0.7) else ''})")
        if self.kind == "react":
            self.add(f"app = create_react_agent(model, node, version={self.one('v1', 'v2')!r}{more})")
            return
        self.add("bound = model.bind_tools(tools)")
        given = "[SystemMessage('Be brief.'), *state['messages']]" if self.chance(0.3) else "state['messages']"
        if self.sync:
            self.add("def call_model(state: MessagesState):", f"    response = bound.invoke({given})")
        else:
            self.add("async def call_model(state: MessagesState):", f"    response = await bound.ainvoke({given})")
        if self.chance(0.2):
            self.add("    w.does('node', len(state['messages']), writes='archive', early=True)")
        self.add("    return {'messages': [response]}", "graph = StateGraph(MessagesState)")
        self.add("graph.add_node('model', call_model)", "graph.add_node('tools', node)")
        router = self.one("tools_condition", "route")
        self.add("graph.add_edge(START, 'model')", f"graph.add_conditional_edges('model', {router}, ['tools', END])")
        self.add("graph.add_edge('tools', 'model')", f"app = graph.compile({more.removeprefix(', ')})")

    def _outer(self) -> None:
        """Puts the agent into an outer graph: as a node, or called by a function of one; alone, or beside another."""
        self.lines[-1] = self.lines[-1].replace("app = ", "inner = ")
        self.lines[-1] = re.sub(r",? ?(checkpointer|store)=\w+\(\)", "", self.lines[-1]).replace(
            "compile(, ", "compile("
        )
        self.add("outer = StateGraph(MessagesState)")
        call = "inner.invoke(state)" if self.sync else "await inner.ainvoke(state)"
        start = "def" if self.sync else "async def"
        kind = self.one("node", "called", "called", "gathered", "streamed", "chained", "lambda", "parallel")
        if kind in ("gathered", "parallel") and self.sync:
            kind = "called"
        if kind in ("chained", "lambda", "parallel"):
            self._chain(kind, call, start)
            call = "chain.invoke(state)" if self.sync else "await chain.ainvoke(state)"
        if kind == "node":
            self.add("outer.add_node('agent', inner)")
        else:
            self.add(f"{start} call_inner(state: MessagesState):")
            does = "w.does" if self.sync else "await w.adoes"
            if self.chance(0.3):
                self.add(f"    {does}('before', 'rivers', {self.seconds()}, writes='archive', early=True)")
            if kind == "gathered":
                beside = f"w.adoes('beside', 'rivers', {self.seconds()}, writes='archive', early=True)"
                self.add(f"    found, _ = await asyncio.gather(inner.ainvoke(state), {beside})")
            elif kind == "streamed":
                entry = "for found in inner.stream" if self.sync else "async for found in inner.astream"
                self.add(f"    {entry}(state, stream_mode='values'):", "        pass")
            else:
                self.add(f"    found = {call}")
            if self.chance(0.3):
                self.add(f"    {does}('after', 'rivers', {self.seconds()}, writes='archive', early=True)")
            given = "found['messages']" if self.chance(0.5) else "[found['messages'][-1]]"
            self.add(f"    return {{'messages': {given}}}")
            retry = ", retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.1, jitter=False)"
            self.add(f"outer.add_node('agent', call_inner{retry if self.chance(0.15) else ''})")
        self.add("outer.add_edge(START, 'agent')")
        if not self.sync and self.chance(0.4):  # which of two threads is first is open
            does = "await w.adoes"
            self.add(f"{start} beside_it(state: MessagesState):")
            self.add(f"    {does}('beside it', 'floods', {self.seconds()}, writes='archive', early=True)")
            self.add("outer.add_node('beside', beside_it)", "outer.add_edge(START, 'beside')")
        saves = "checkpointer=InMemorySaver()" if self.saves else ""
        stores = "store=InMemoryStore()" if self.stores else ""
        self.add(f"app = outer.compile({', '.join(each for each in (saves, stores) if each)})")

    def _chain(self, kind: str, call: str, start: str) -> None:
        """Puts the agent into a chain: as a step, called by the function of one, or beside another step."""
        if kind == "chained":
            self.add("chain = RunnableLambda(lambda given: given) | inner")
        elif kind == "lambda":
            self.add(f"{start} call_agent(state):", f"    return {call}")
            self.add("chain = RunnableLambda(call_agent) | RunnableLambda(lambda found: found)")
        else:
            does = f"await w.adoes('beside', 'rivers', {self.seconds()}, writes='archive', early=True)"
            self.add("async def beside_agent(state):", f"    {does}")
            self.add("chain = RunnableParallel(found=inner, other=RunnableLambda(beside_agent))")
            self.add("chain = chain | RunnableLambda(lambda both: both['found'])")

    # What is done with it.

    def _steps(self) -> None:
        for text in self.texts:
            self.add(f"w.ask({text!r}, {self._run()})")
            if self.asks:
                for _ in range(self.random.randint(0, 3)):
                    self.add(f"w.resume({self.one('yes', 'approve', 'reject')!r}, {self._run()})")
            if self.saves and self.chance(0.15):
                self.add(f"w.fork({self.random.randint(1, 4)}, {self._run()})")
            if self.chance(0.06):
                end = self.random.choice((0.15, 0.3, 0.7, 1.2, 2.0))
                how = "cancel" if self.chance(0.6) and not self.sync else "timeout"
                self.add(f"w.ask({text!r}, thread='2', {how}={end})")

    def _run(self) -> str:
        entry = self.random.choices(("invoke", "stream", "events", "batch"), (10, 8, 0 if self.sync else 2, 1))[0]
        said = [f"entry={entry!r}"]
        if entry == "stream":
            mode = self.random.sample(MODES, self.random.choice((1, 1, 2, 3)))
            said.append(f"mode={mode[0]!r}" if len(mode) == 1 else f"mode={mode!r}")
        said += ["handler=False"] if self.chance(0.2) else []
        said += ["max_concurrency=2"] if self.chance(0.05) else []
        return ", ".join(said)


def program(seed: int) -> str:
    """Returns the source of a random agent and what is done with it."""
    return Writes(seed).program()
