"""Tasks of the Berkeley Function Calling Leaderboard, replayed by an agent: the same calls and results, and seconds.

``pip install --no-deps bfcl-eval`` brings the tasks (Apache-2.0). A model on an emulated engine writes the calls that
the leaderboard expects, those of one message together. In ``parallel`` tasks (100, half of them with several functions)
the tools are made of the functions' descriptions, are declared to read, and answer with their arguments after .25 to 2
seconds, by what they are called with. In ``multi-turn`` tasks (50) the tools are methods of the leaderboard's own
classes (a file system, a trading bot, bookings, …), which change their state; nothing is declared, and each message has
one call. The column "ideal" is what a run takes whose tools start when the JSON of their call is complete. The clock is
virtual. Linux only (``fineflow.testing.virtual_threads``).
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from langchain.agents import create_agent
from langchain_core.tools import BaseTool, StructuredTool

import fineflow
from benchmarks.peers.plain import plain
from benchmarks.report import arguments, finish, hardware, table
from fineflow.engines import EmulatedLLM
from fineflow.langchain import ChatEngine
from fineflow.runtime import events
from fineflow.testing import virtual_threads
from fineflow.testing.recording import RecordingHandler, run_tree

PARALLEL, MULTI_TURN = 50, 50  # tasks of each file
_FILES = ("parallel", "parallel_multiple")
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_CLASSES = {
    "GorillaFileSystem": "gorilla_file_system", "MathAPI": "math_api", "MessageAPI": "message_api",
    "TwitterAPI": "posting_api", "TicketAPI": "ticket_api", "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking", "VehicleControlAPI": "vehicle_control",
}  # fmt: skip
_SOURCE = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
Call = tuple[str, dict[str, Any]]


class Task(NamedTuple):
    """One task. messages: the calls in each message of the model. tools: makes fresh ones."""

    name: str
    question: str
    messages: Sequence[Sequence[Call]]
    tools: Callable[[], Sequence[BaseTool]]


class Seen(NamedTuple):
    """What is seen of one run, and its virtual seconds. called: calls of tools, in their order."""

    messages: Any
    tree: Any
    called: list[str]
    seconds: float


def folder() -> Path:
    """Returns the folder of the tasks. Raises SystemExit if they are not installed."""
    found = importlib.util.find_spec("bfcl_eval")
    if found is None or found.origin is None:
        raise SystemExit("the tasks are not here; install them: pip install --no-deps bfcl-eval")
    return Path(found.origin).parent / "data"


def parallel(data: Path, most: int) -> Iterator[Task]:
    """Yields tasks whose calls need nothing from each other."""
    for kind in _FILES:
        answers = {each["id"]: each["ground_truth"] for each in _lines(data / f"possible_answer/BFCL_v4_{kind}.json")}
        for each in list(_lines(data / f"BFCL_v4_{kind}.json"))[:most]:
            calls = [(_named(name), _chosen(given)) for call in answers[each["id"]] for name, given in call.items()]
            functions = each["function"]
            yield Task(each["id"], each["question"][0][0]["content"], [calls], lambda f=functions: list(map(_tool, f)))


def multi_turn(data: Path, most: int) -> Iterator[Task]:
    """Yields tasks with one call in each message, of tools that change their state."""
    name = "BFCL_v4_multi_turn_base.json"
    answers = {each["id"]: each["ground_truth"] for each in _lines(data / "possible_answer" / name)}
    for each in list(_lines(data / name))[:most]:
        calls = [call for turn in answers[each["id"]] for call in turn]
        classes, given = each["involved_classes"], each["initial_config"]
        objects = lambda c=classes, g=given: _objects(c, g)  # noqa: E731 (bound to this task)
        messages = [[_parsed(call, objects())] for call in calls]
        tools = lambda make=objects: [_method(each) for obj in make() for each in _methods(obj)]  # noqa: E731
        yield Task(each["id"], each["question"][0][0]["content"], messages, tools)


def _lines(path: Path) -> Iterator[Any]:
    yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def _named(name: str) -> str:
    return name.replace(".", "_")


def _chosen(given: dict[str, list[Any]]) -> dict[str, Any]:
    """Returns the first value that is right of each argument; "" stands for one that may be left out."""
    return {name: values[0] for name, values in given.items() if values[0] != ""}


def _tool(function: dict[str, Any]) -> BaseTool:
    name = _named(function["name"])

    def answer(**given: Any) -> str:
        text = f"{name} {json.dumps(given, sort_keys=True)}"
        time.sleep(0.25 * (1 + crc32(text.encode()) % 8))
        return text

    declared = fineflow.effects(reads="the world")(answer)
    schema = _schema(function["parameters"])
    return StructuredTool(name=name, description=function["description"], args_schema=schema, func=declared)


def _schema(given: Any) -> Any:
    if isinstance(given, list):
        return [_schema(each) for each in given]
    if not isinstance(given, dict):
        return given
    made = {name: _schema(each) for name, each in given.items() if not (name == "type" and each == "any")}
    return made | ({"type": _TYPES[made["type"]]} if str(made.get("type")) in _TYPES else {})


def _objects(classes: Sequence[str], given: dict[str, Any]) -> list[Any]:
    made = []
    for name in classes:
        made.append(getattr(importlib.import_module(f"{_SOURCE}.{_CLASSES[name]}"), name)())
        if hasattr(made[-1], "_load_scenario"):
            made[-1]._load_scenario(json.loads(json.dumps(given.get(name, {}))))
    return made


def _methods(obj: Any) -> Iterator[Callable[..., Any]]:
    for name in dir(type(obj)):
        if not name.startswith("_") and callable(getattr(obj, name)):
            yield getattr(obj, name)


def _method(method: Callable[..., Any]) -> BaseTool:
    return StructuredTool.from_function(method, name=method.__name__, description=method.__name__)


def _parsed(call: str, objects: Sequence[Any]) -> Call:
    """Reads a call as the leaderboard writes it down: Python."""
    (statement,) = ast.parse(call).body
    assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    name = ast.unparse(statement.value.func)
    method = next(getattr(obj, name) for obj in objects if hasattr(obj, name))
    names = method.__code__.co_varnames[1:]
    given = dict(zip(names, map(ast.literal_eval, statement.value.args), strict=False))
    return name, given | {str(each.arg): ast.literal_eval(each.value) for each in statement.value.keywords}


def _written(calls: Sequence[Call]) -> str:
    said = (json.dumps({"name": name, "arguments": given}) for name, given in calls)
    return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in said)


def _model(task: Task) -> ChatEngine:
    def says(prompt: str) -> str:
        turn = prompt.count("<assistant>\n<tool_call>")
        return _written(task.messages[turn]) if turn < len(task.messages) else "Done."

    return ChatEngine(engine=EmulatedLLM(says), max_tokens=4000)


def seen(task: Task, *, optimized: bool) -> Seen:
    """Runs a task by an agent."""
    called: list[str] = []
    tools = [_noting(tool, called) for tool in task.tools()]
    agent: Any = create_agent(_model(task), tools)
    if optimized:
        agent = fineflow.optimize(agent, strict=True)
    handler = RecordingHandler()
    given = {"messages": [("user", task.question)]}
    config: Any = {"callbacks": [handler], "recursion_limit": 200}
    ran = virtual_threads.run(lambda: agent.invoke(given, config))
    return Seen(plain(ran.value), plain(repr(run_tree(handler))), called, ran.seconds)


def _noting(tool: BaseTool, called: list[str]) -> BaseTool:
    """Notes calls of a tool where stock shows them, so that its own function stays as it is."""

    class Noting(RecordingHandler):
        def on_tool_start(self, serialized: Any, input_str: str, **named: Any) -> None:
            called.append(f"{tool.name} {input_str}")

    tool.callbacks = [Noting()]
    return tool


def saved_by_the_ideal(task: Task) -> float:
    """Returns the seconds that a run saves whose tools start when the JSON of their call is complete."""
    calls, tools = task.messages[0], {each.name: each for each in task.tools()}
    takes = [virtual_threads.run(lambda c=each: tools[c[0]].func(**c[1])).seconds for each in calls]  # type: ignore[attr-defined]
    model = _model(task).bind_tools(list(tools.values()))

    def written() -> list[float]:
        began, whole, done = events.now(), None, list[float]()
        for piece in model.stream(task.question):
            whole = piece if whole is None else whole + piece
            ready = [each for each in whole.tool_call_chunks if _complete(each["args"])]
            done += [events.now() - began] * (len(ready) - len(done))
        return [*done, events.now() - began]

    *done, end = virtual_threads.run(written).value
    return end + max(takes) - max(end, *(at + each for at, each in zip(done, takes, strict=True)))


def _complete(text: str | None) -> bool:
    try:
        return isinstance(json.loads(text or ""), dict)
    except ValueError:
        return False


def main(argv: list[str] | None = None) -> int:
    given = arguments(__doc__ or "", runs=1).parse_args(argv)
    data = folder()
    print(f"Tasks of bfcl-eval {importlib.metadata.version('bfcl-eval')}, virtual seconds.\n{hardware()}\n")
    rows: list[tuple[str, ...]] = [("tasks", "number", "calls", "ideal", "stock", "fineflow", "of the slack")]
    checks: dict[str, bool] = {}
    for kind, found in (("parallel", parallel(data, PARALLEL)), ("multi-turn", multi_turn(data, MULTI_TURN))):
        tasks = list(found)
        both = [(seen(task, optimized=False), seen(task, optimized=True)) for task in tasks]
        differing = [task.name for task, sides in zip(tasks, both, strict=True) if not _same(*sides)]
        stock, mine = (sum(each[side].seconds for each in both) for side in (0, 1))
        slack = sum(map(saved_by_the_ideal, tasks)) if kind == "parallel" else 0.0
        share = f"{(stock - mine) / slack:.3f}" if slack else ""
        calls = sum(len(calls) for task in tasks for calls in task.messages)
        shown = [f"{each:.2f}" for each in (stock - slack, stock, mine)]
        rows.append((kind, str(len(tasks)), str(calls), *shown, share))
        checks[f"{kind}: the same messages, run trees and calls {' '.join(differing)}".strip()] = not differing
        checks[f"{kind}: no task above 1.02 times stock"] = all(b.seconds <= 1.02 * a.seconds for a, b in both)
        if slack:
            checks[f"{kind}: at least 0.9 of the slack"] = stock - mine >= 0.9 * slack
    print(table(rows))
    return finish({"seconds": {row[0]: list(row[1:]) for row in rows}}, checks, given.json)


def _same(one: Seen, other: Seen) -> bool:
    return (one.messages, one.tree, sorted(one.called)) == (other.messages, other.tree, sorted(other.called))


if __name__ == "__main__":
    sys.exit(main())
