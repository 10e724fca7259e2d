"""Functions that change a list, dict or set that they did not make, and read it later: state, caches, counters."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat, FakeRetriever

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs the state of threads")

ASKED: list[str] = []  # requests of one run
BOX: dict[str, Any] = {}  # the container of the module, and the objects that hold it


def _says(messages: list[Any]) -> str:
    ASKED.append(messages[-1].content)
    return f"re {messages[-1].content}"[:30]


CHAIN = ChatPromptTemplate.from_template("{text}") | FakeChat(answers=_says, prefill=1.0) | StrOutputParser()
RETRIEVER = FakeRetriever(documents=[Document("one"), Document("two")], k=9, prefill=1.0)


async def ask(text: Any) -> str:
    said: str = await CHAIN.ainvoke({"text": text})
    return said


def ask_sync(text: Any) -> str:
    return CHAIN.invoke({"text": text})


class Service:
    def __init__(self, box: Any) -> None:
        self.box, self.other, self.parts = box, box, {"of": [box]}


def given(state: Any) -> Any:
    return state["box"] if "box" in state else state  # noqa: SIM401 (it is to be walked through)


def of_attribute(state: Any) -> Any:
    return BOX["service"].box


def of_module(state: Any) -> Any:
    return BOX["box"]


def in_a_list(state: Any) -> Any:
    return BOX["service"].parts["of"][0]


PLACES = ["argument", "state", "attribute", "module", "nested", "default", "closure"]


def place(where: str, box: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Returns the function's argument, and a function of it that returns the container."""
    BOX.clear()
    BOX.update(box=box, service=Service(box))
    if where in ("argument", "state"):
        return (box if where == "argument" else {"box": box, "question": "q"}), (
            (lambda state: state) if where == "argument" else given
        )
    if where == "default":

        def getter(state: Any, box: Any = box) -> Any:
            return box

        return {}, getter
    if where == "closure":
        return {}, lambda state: box
    return {}, {"attribute": of_attribute, "module": of_module, "nested": in_a_list}[where]


def a_dict() -> Any:
    return {"kept": "k", "n": 1, "log": ["a"]}


def a_list() -> Any:
    return ["kept", "b", "c"]


def a_set() -> Any:
    return {1, 2}


def increase(box: Any) -> None:
    box["n"] += 1


def store(box: Any) -> None:
    box["new"] = "x"


def store_again(box: Any) -> None:
    box["n"] = 2
    box["n"] = 3


def delete(box: Any) -> None:
    del box["n"]


def append_within(box: Any) -> None:
    box["log"].append("b")
    box["log"] += ["c"]


def replace(box: Any) -> None:
    box[1] = "z"
    box[-1] = "y"


def extend(box: Any) -> None:
    box += ["d"]


def replace_part(box: Any) -> None:
    box[1:] = ["z"]


def delete_part(box: Any) -> None:
    del box[0], box[:1]


def drain(box: Any) -> None:
    while len(box) > 1:
        box.pop(0)


def change_in_a_loop(box: Any) -> None:
    for number, each in enumerate(box):
        box[number] = each + "!"


def drop_in_a_loop(box: Any) -> None:
    for each in box:
        if each != "c":
            box.remove(each)


def by_a_method(box: Any) -> None:
    add = box.append
    add("d")
    add("e")


def join(box: Any) -> None:
    box |= {"n": 2, "m": 3}


def join_sets(box: Any) -> None:
    box |= {2, 5}


def by_items(box: Any) -> None:
    shown = box.items()
    for key, value in shown:
        box[key] = value * 2
    box["shown"] = str(list(shown))


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a new key": (a_dict, store),
    "the same key twice": (a_dict, store_again),
    "a counter": (a_dict, increase),
    "update": (a_dict, lambda box: box.update({"n": 2, "m": 3})),
    "update by name": (a_dict, lambda box: box.update([("n", 2)], m=3)),
    "joined": (a_dict, join),
    "joined sets": (a_set, join_sets),
    "setdefault": (a_dict, lambda box: box.setdefault("n", 5) + box.setdefault("m", 5)),
    "pop": (a_dict, lambda box: (box.pop("n"), box.pop("none", None))),
    "a deleted key": (a_dict, delete),
    "clear": (a_dict, lambda box: box.clear()),
    "a list within": (a_dict, append_within),
    "items": (a_dict, by_items),
    "append": (a_list, lambda box: box.append("d")),
    "a bound method": (a_list, by_a_method),
    "insert": (a_list, lambda box: box.insert(0, "d")),
    "extend": (a_list, lambda box: box.extend(["d", "e"])),
    "in place": (a_list, extend),
    "by number": (a_list, replace),
    "a part": (a_list, replace_part),
    "deleted parts": (a_list, delete_part),
    "drained": (a_list, drain),
    "in a loop over it": (a_list, change_in_a_loop),
    "dropped in a loop over it": (a_list, drop_in_a_loop),
    "reverse": (a_list, lambda box: box.reverse()),
    "sort": (a_list, lambda box: box.sort()),
    "add": (a_set, lambda box: box.add(3)),
    "discard": (a_set, lambda box: (box.discard(1), box.discard(7))),
}


def first_of(box: Any) -> Any:
    """A helper that gets the container."""
    return next((each for each in box), "none")


def kept_of(box: Any) -> Any:
    return box["kept"] if "kept" in box else "gone"  # noqa: SIM401 (as above)


def reads(kind: Any) -> list[Callable[[Any], Any]]:
    found: list[Callable[[Any], Any]] = [
        lambda box: len(box),
        lambda box: [str(each) for each in box],
        lambda box: "kept" in box,
        first_of,
        lambda box: box,
        lambda box: "empty" if not box else "full",
    ]
    if kind is a_dict:
        found += [
            lambda box: box.get("kept"),
            lambda box: box.get("n", "none"),
            lambda box: sorted(box.items(), key=str),
        ]
        found += [kept_of, lambda box: {**box}]
    elif kind is a_list:
        found += [lambda box: box[0], lambda box: box[-1:], lambda box: list(reversed(box))]
    return found


def run(func: Any, value: Any) -> Any:
    """Returns what a call returns or raises, the virtual seconds, and the requests."""
    ASKED.clear()

    def call() -> Any:
        try:
            if func.is_async:
                return asyncio.run(func.ainvoke(value))
            return func.invoke(value)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    ran = virtual_threads.run(call)
    return copy.deepcopy(ran.value), ran.seconds, sorted(ASKED)


class Program:
    """A function as a step, stock's or optimized."""

    def __init__(self, func: Any, *, optimized: bool) -> None:
        self.is_async = inspect.iscoroutinefunction(func)
        made = RunnableLambda(func)
        step: Any = fineflow.optimize(made, strict=True, eager=True) if optimized else made
        self.invoke, self.ainvoke = step.invoke, step.ainvoke


def compared(make: Callable[[], tuple[Any, Any]]) -> list[tuple[float, float]]:
    """Runs a function twice, in stock and optimized, and compares. make: its argument, and the function.

    Returns the seconds of each.
    """
    found = []
    for optimized in (False, True):
        value, func = make()
        program = Program(func, optimized=optimized)
        runs = [run(program, value) for _ in range(2)]
        held = {key: each for key, each in BOX.items() if key != "service"}
        found.append((runs, copy.deepcopy((value, held))))
    (stock, left), (mine, other) = found
    assert [(each, asked) for each, _, asked in mine] == [(each, asked) for each, _, asked in stock]
    assert other == left
    return [(one[1], two[1]) for one, two in zip(stock, mine, strict=True)]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "where, mode", [*((where, "sync") for where in PLACES), ("state", "async"), ("attribute", "async")]
)
def test_reads_what_it_has_changed(where: str, change: str, mode: str) -> None:
    kind, act = CHANGES[change]

    def make() -> Any:
        value, box_of = place(where, kind())
        wanted = reads(kind)

        def program(state: Any) -> Any:
            out = [ask_sync("first")]
            act(box_of(state))
            out += [ask_sync(f"{number} {read(box_of(state))}") for number, read in enumerate(wanted)]
            out.append(ask_sync(box_of(state)))
            return out, box_of(state)

        async def async_program(state: Any) -> Any:
            out = [await ask("first")]
            act(box_of(state))
            out += [await ask(f"{number} {read(box_of(state))}") for number, read in enumerate(wanted)]
            out.append(await ask(box_of(state)))
            return out, box_of(state)

        return value, program if mode == "sync" else async_program

    (stock, mine), _ = compared(make)  # some changes cannot be made twice
    assert stock > 7
    assert mine <= 1.01


# --- what the container is reached by ------------------------------------------------------------------------------


class Holder:
    def __init__(self, box: Any) -> None:
        self.box = box


def other_name(box: Any) -> Any:
    other = box
    box.append("x")
    return [ask_sync(f"{other} {box is other}"), ask_sync(len(box))]


def other_object(box: Any) -> Any:
    holder = Holder(box)
    holder.box.append("x")
    out = [ask_sync(box)]
    box.append("y")
    return [*out, ask_sync(holder.box), ask_sync(holder.box is box)]


def by_attribute_and_module(box: Any) -> Any:
    BOX["service"].box.append("x")
    BOX["box"].append("y")
    return [ask_sync(BOX["service"].other), ask_sync(BOX["service"].parts), ask_sync(f"{box}")]


def in_a_list_of_its_own(box: Any) -> Any:
    held = [box, box]
    held[0].append("x")
    return [ask_sync(held), ask_sync(held[1]), ask_sync(f"{held[0] is box}")]


def made_before_the_change(box: Any) -> Any:
    longer, iterator = (each + "!" for each in box), enumerate(box)
    box.append("x")
    box[0] = "first"
    return [ask_sync(list(longer)), ask_sync(list(iterator)), ask_sync(max(box))]


def reversed_before_the_change(box: Any) -> Any:
    back = reversed(box)
    box[0] = "first"
    return [ask_sync(each) for each in back]


def grows_while_it_loops(box: Any) -> Any:
    out = []
    for each in box:
        out.append(ask_sync(each))
        if len(box) < 6:
            box.append(each + "+")
    return out


def shrinks_while_it_loops(box: Any) -> Any:
    out = []
    for each in box:
        out.append(ask_sync(each))
        box.pop()
        box.insert(0, "front")
        del box[1]
    return out


def unsure(box: Any) -> Any:
    if ask_sync("first") > "z":
        box.append("x")
    return [ask_sync(box), ask_sync("behind")]


def sure_then_unsure(box: Any) -> Any:
    box.append("x")
    if ask_sync("first") > "a":
        box.append("y")
    return [ask_sync(box), ask_sync(len(box)), ask_sync("behind")]


def one_of_several(box: Any) -> Any:
    boxes = {"a": box, "r": ["other"], "re": []}
    box.append("x")
    chosen = boxes[ask_sync("which")[:1]]
    chosen.append("y")
    return [ask_sync(box), ask_sync(boxes["r"]), ask_sync(len(box))]


def one_of_those_it_got(box: Any) -> Any:
    parts = BOX["service"].parts["of"]
    box.append("x")
    chosen = parts[len(ask_sync("which")) % 1]
    chosen.append("y")
    return [ask_sync(box), ask_sync(len(BOX["service"].box))]


def what_it_stored(box: Any) -> Any:
    mine = ["mine"]
    box.append(mine)
    chosen = box[len(ask_sync("which")) % 1 - 1]
    chosen.append("y")
    return [ask_sync(mine), ask_sync(box)]


def in_a_handler(box: Any) -> Any:
    try:
        box.append("x")
        ask_sync("first")
        number = int(ask_sync("second"))
        box.append(number)
    except ValueError as error:
        box.append(type(error).__name__)
    return [ask_sync(box), ask_sync(len(box))]


def in_a_body(box: Any) -> Any:
    try:
        box.append("x")
        out = [ask_sync("first"), ask_sync(box)]
        box.append("y")
    except ValueError as error:
        box.append(str(error))
        out = []
    return [*out, ask_sync(box), ask_sync("behind")]


def a_missing_key(box: Any) -> Any:
    try:
        box.remove("none")
    except ValueError:
        box.append("handled")
    return [ask_sync(box), ask_sync("behind")]


def bound_before_the_change(box: Any) -> Any:
    add, holder = box.append, Holder(box)
    holder.box.append("x")
    add("y")
    return [ask_sync(box), ask_sync(holder.box.index("y"))]


def while_it_is_an_operand(box: Any) -> Any:
    def grown() -> Any:
        box.append("x")
        return box

    same = box is grown()
    return [ask_sync(same), ask_sync(box + grown() + box), ask_sync(box == grown())]


def answers(box: Any) -> Any:
    box.append(ask_sync("first"))
    box.append(ask_sync("second"))
    box.append(ask_sync(box))
    return [ask_sync(len(box)), ask_sync(box)]


def replaced_by_itself(box: Any) -> Any:
    service = BOX["service"]
    service.box += ["x"]
    service.box.append("y")
    service.box = [*service.box, "z"]
    service.box.append("w")
    return [ask_sync(box), ask_sync(service.box), ask_sync(service.other)]


def of_a_component(box: Any) -> Any:
    RETRIEVER.documents[:] = [Document("one")]
    box.append("x")
    RETRIEVER.documents.append(Document("two"))
    out = [len(RETRIEVER.invoke("q")), ask_sync(box)]
    RETRIEVER.documents.append(Document("three"))
    return [*out, len(RETRIEVER.invoke("q")), ask_sync("behind")]


def found_documents(box: Any) -> Any:
    found = RETRIEVER.invoke("q")
    found.append(Document("of its own"))
    found[0].metadata["seen"] = True
    return [ask_sync(len(found)), ask_sync(found[0].metadata), ask_sync(str(found))]


def itself(box: Any) -> Any:
    box.extend(box)
    box.append(len(box))
    box += box
    return [ask_sync(box), ask_sync(len(box))]


async def tasks(box: Any) -> Any:
    async def one(text: str) -> str:  # "bb" takes longer; no task reads the box while the other one changes it
        box.append(text)
        count = len(box)
        for each in text:
            said = await ask(f"{text} {each} {count}")
        box.append(said)
        return await ask(box)

    box.append("before")
    out = await asyncio.gather(one("a"), one("bb"))
    box.append("behind")
    return [*out, await ask(box), await ask("end")]


async def one_task(box: Any) -> Any:
    box.append("before")
    later = asyncio.create_task(ask(f"later {box}"))
    box.append("beside")
    out = [await ask(box), await later]
    box.append("behind")
    return [*out, await ask(len(box))]


async def a_task_that_changes(box: Any) -> Any:
    async def changes() -> str:
        box.append("x")
        await ask("within")
        await ask("within, when the box has been read")
        box.append("y")
        return "done"

    box.append("before")
    later = asyncio.create_task(changes())
    out = [await ask("beside"), await ask(len(box)), await later]
    return [*out, await ask(box)]


ALIASED = [
    *(other_name, other_object, by_attribute_and_module, in_a_list_of_its_own, made_before_the_change),
    *(reversed_before_the_change, grows_while_it_loops, shrinks_while_it_loops, unsure, sure_then_unsure),
    *(one_of_several, one_of_those_it_got, what_it_stored, in_a_handler, in_a_body, a_missing_key),
    *(bound_before_the_change, while_it_is_an_operand, answers, replaced_by_itself, of_a_component, found_documents),
    *(itself, tasks, one_task, a_task_that_changes),
]


@pytest.mark.parametrize("where", ["argument", "attribute"])
@pytest.mark.parametrize("func", ALIASED, ids=lambda func: func.__name__)
def test_every_way_to_a_container_shows_its_changes(func: Any, where: str) -> None:
    def make() -> Any:
        value, box_of = place(where, a_list())

        def program(state: Any) -> Any:
            return func(box_of(state)), box_of(state)

        async def async_program(state: Any) -> Any:
            return await func(box_of(state)), box_of(state)

        return value, async_program if inspect.iscoroutinefunction(func) else program

    compared(make)
