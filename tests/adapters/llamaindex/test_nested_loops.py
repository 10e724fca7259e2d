"""Event loops as notebooks and servers have them: patched by nest_asyncio, and uvloop's; in processes of their own."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import programs

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, engine_of
from llama_index.core.callbacks import CallbackManager

import fineflow
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.fakes import FakeLLM

PATHS = [str(Path(__file__).parent), str(Path(__file__).parents[3] / "src")]

# What is called where a loop runs already, or by a loop of another kind; prints what differs from stock.
SCRIPT = """
import asyncio, sys

from index_shapes import QUESTION, engine_of
from llama_index.core.callbacks import CallbackManager
from test_fusion import fusion_of

import fineflow
from fineflow.testing.leaks import settled

MAKES = {
    "accumulate": engine_of("accumulate"),
    "tree, its own loop": engine_of("tree_summarize", use_async=True),
    "refine": engine_of("refine"),
    "stream": engine_of("compact", streaming=True),
    "fusion": fusion_of(),
    "fusion on engines": fusion_of(llm="engine", embedding="engine"),
}


def shown(found):
    if isinstance(found, list):
        return [(node.node.node_id, node.score) for node in found]
    return str(found), [(node.node.node_id, node.score) for node in found.source_nodes]


def ask(obj):
    found = obj.query(QUESTION) if hasattr(obj, "query") else obj.retrieve(QUESTION)
    return "".join(found.response_gen) if hasattr(found, "response_gen") else shown(found)


async def aask(obj):
    found = await (obj.aquery(QUESTION) if hasattr(obj, "aquery") else obj.aretrieve(QUESTION))
    if hasattr(found, "async_response_gen"):
        return "".join([token async for token in found.async_response_gen()])
    return shown(found)


async def nested(obj):  # a sync call in a coroutine, and a loop run inside of the one that runs, beside another call
    def inside():
        return asyncio.get_event_loop().run_until_complete(aask(obj))

    async def tool():
        await asyncio.sleep(0)
        return ask(obj), inside() if NESTED else await aask(obj)

    return await asyncio.gather(aask(obj), tool(), aask(obj))


async def main():
    for name, make in MAKES.items():
        manager = CallbackManager([])
        stock, fast = make(manager), fineflow.optimize(make(manager), strict=True, eager=True)
        for call in (ask, aask, nested):
            expected, seen = call(stock), call(fast)
            if call is not ask:
                expected, seen = await expected, await seen
            print(name, call.__name__, "same" if seen == expected else f"{seen} instead of {expected}")


NESTED = sys.argv[1] != "uvloop"
if sys.argv[1] == "before":
    import nest_asyncio

    nest_asyncio.apply()
    asyncio.run(main())
elif sys.argv[1] == "after":  # what was made with asyncio's own classes goes on
    asyncio.run(aask(fineflow.optimize(MAKES["refine"](CallbackManager([])), strict=True, eager=True)))
    import nest_asyncio

    nest_asyncio.apply()
    asyncio.run(main())
else:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
assert not settled(), settled()
print("nothing left")
"""


@pytest.mark.parametrize(
    ("kind", "needs"), [("before", "nest_asyncio"), ("after", "nest_asyncio"), ("uvloop", "uvloop")]
)
def test_the_same_on_other_loops(kind: str, needs: str) -> None:
    pytest.importorskip(needs)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
    run = programs.run("-c", SCRIPT, kind, env=environment)  # the patch is one of the whole process
    assert run.returncode == 0, run.stderr
    *lines, last = run.stdout.splitlines()
    assert last == "nothing left"
    assert len(lines) == 6 * 3 and [line for line in lines if not line.endswith(" same")] == []


async def test_a_sync_call_on_a_loop_does_not_wait_for_a_place() -> None:
    """As whoever holds the place may need that loop; the error names the method that would wait."""
    gate = Gate()
    model = FakeLLM(gate=gate)
    engine = fineflow.optimize(engine_of("simple_summarize", lambda: model)(CallbackManager([])), strict=True)
    async with fineflow.Runtime(max_queries=1):
        first = asyncio.create_task(engine.aquery(QUESTION))
        await gate.arrived()
        with pytest.raises(fineflow.Overloaded, match=r"aquery\(\)"):
            engine.query(QUESTION)
        gate.let(1)
        assert str(await first) == "ok"
