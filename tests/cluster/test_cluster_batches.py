"""Batch engines on the cluster: requests of several processes share batches, by tenant and priority.

Each engine is a process or more, so the tests share them: "many" takes eight texts at a time, "single" one.
"""

from __future__ import annotations

from typing import Any

import pytest
import ray
from desk import embedding, reranker

import fineflow
from fineflow.engines import set_policy
from fineflow.errors import BackendError, RequestError
from fineflow.ir import Op
from fineflow.langchain import EngineCrossEncoder, EngineEmbeddings
from fineflow.runtime import events
from fineflow.runtime.queues.batch_queue import batch_queue_of


def test_all_processes_joined_the_instance_that_one_started(machine: Any) -> None:
    assert len(machine.addresses) == 3
    assert len(set(machine.addresses)) == 1


def test_texts_of_two_processes_share_a_batch(machine: Any) -> None:
    engine = machine.engine("embedding", "many")
    machine.close("many")
    first = machine.others[0].begin("embed", "many", {}, ["first"], {})
    machine.told("many", 1)  # the engine is busy
    waiting = [other.begin("embed", "many", {}, ["a", "b"], {}) for other in machine.others]
    machine.queued("many", 4)
    machine.open("many")
    vectors = [first.result(60), *(each.result(60) for each in waiting)]
    assert machine.told("many", 2) == [["first"], ["a", "b", "a", "b"]]
    alone = embedding()
    a, b = (alone.compute(("document", text)) for text in "ab")
    assert vectors == [[alone.compute(("document", "first"))], [a, b], [a, b]]
    assert engine.statistics().sizes.total >= 5


def test_components_give_what_they_give_on_an_engine_of_this_process(machine: Any) -> None:
    texts = ["where is Paris?", "in France", "nowhere"]
    shared = EngineEmbeddings(machine.engine("embedding", "many"))
    alone = EngineEmbeddings(embedding_without_desk())
    assert shared.embed_documents(texts) == alone.embed_documents(texts)
    pairs = [("Paris", text) for text in texts] * 2
    scores = EngineCrossEncoder(machine.engine("reranker", "scores")).score(pairs)
    assert scores == [reranker().compute(pair) for pair in pairs]
    assert machine.told("scores", 1) == [texts]  # equal pairs are scored once


def embedding_without_desk() -> Any:
    from fineflow.engines import EmulatedEmbedding

    return EmulatedEmbedding(embedding().profile)


def test_timelines_and_figures_are_those_of_the_batch(machine: Any) -> None:
    queue = batch_queue_of(machine.engine("embedding", "many"))
    before = fineflow.statistics().engines["many"].batches
    with events.record() as found:
        queue.submit_sync(Op.EMBED, [("document", "a"), ("document", "b")], label="two texts")
    (interval,) = found
    assert (interval.lane, interval.label, interval.items, interval.together) == ("many", "two texts", 2, 2)
    assert interval.queued <= interval.start <= interval.end <= events.now()
    assert fineflow.statistics().engines["many"].batches == before + 1


def test_a_refused_request_raises_the_engine_s_error_and_no_other(machine: Any) -> None:
    queue = batch_queue_of(machine.engine("embedding", "many"))
    with pytest.raises(RequestError, match="this text is refused"):
        queue.submit_sync(Op.EMBED, [("document", "wrong")])
    assert len(queue.submit_sync(Op.EMBED, [("document", "right")])) == 1


@pytest.mark.parametrize("high", [0, 1])
def test_priorities_hold_between_processes(machine: Any, high: int) -> None:
    """Whichever of the two asks for more, and although it asks later."""
    name = "single"
    machine.engine("embedding", name, max_batch=1)
    low, urgent = machine.others[1 - high], machine.others[high]
    machine.close(name)
    low.call("each", name, {"max_batch": 1}, ["first"], {})
    machine.told(name, 1)
    low.call("each", name, {"max_batch": 1}, ["low"] * 3, {})
    machine.queued(name, 3)
    urgent.call("each", name, {"max_batch": 1}, ["high"] * 3, {"priority": 1})
    machine.queued(name, 6)
    machine.open(name)
    assert machine.told(name, 7) == [["first"], *[["high"]] * 3, *[["low"]] * 3]


def test_tenants_of_two_processes_share_by_weight(machine: Any) -> None:
    machine.engine("embedding", "single", max_batch=1)
    machine.close("single")
    small, large = machine.others
    small.call("each", "single", {"max_batch": 1}, ["first"], {"tenant": "small"})
    machine.told("single", 1)
    small.call("each", "single", {"max_batch": 1}, ["small"] * 20, {"tenant": "small"})
    machine.queued("single", 20)
    large.call("each", "single", {"max_batch": 1}, ["large"] * 20, {"tenant": "large"})
    machine.queued("single", 40)
    machine.open("single")
    order = [batch[0] for batch in machine.told("single", 41)[1:]]
    assert 15 <= order[:20].count("large") <= 17  # four of five


def test_a_policy_holds_for_all_processes(machine: Any) -> None:
    engine = machine.engine("embedding", "many")
    set_policy(engine, "per_invocation")
    machine.close("many")
    first = machine.others[0].begin("embed", "many", {}, ["first"], {})
    machine.told("many", 1)
    waiting = [other.begin("embed", "many", {}, ["a"], {}) for other in machine.others]
    machine.queued("many", 2)
    machine.open("many")
    for each in (first, *waiting):
        each.result(60)
    set_policy(engine, "by_start")
    assert machine.told("many", 3) == [["first"], ["a"], ["a"]]


def test_an_engine_is_there_once_and_another_one_of_its_name_is_refused(machine: Any) -> None:
    assert machine.engine("embedding", "many") is machine.engine("embedding", "many")
    with pytest.raises(ValueError, match="the cluster has an engine 'many' with other settings"):
        machine.engine("embedding", "many", instances=2)


def test_an_engine_that_cannot_start_says_why_and_may_be_repaired_and_removed(machine: Any) -> None:
    with pytest.raises(BackendError, match=r"'broken' could not be started: ModuleNotFoundError: .*no_such_module"):
        machine.runtime.engine("broken", "no_such_module:engine")
    with pytest.raises(BackendError, match=r"could not be started: TypeError: the factory .* returned 'no engine'"):
        machine.runtime.engine("broken", lambda: "no engine")
    engine = machine.engine("embedding", "broken")
    assert engine.max_batch == 8
    machine.runtime.remove_engine("broken")
    with pytest.raises(BackendError, match="'broken' cannot be reached: it was removed"):
        batch_queue_of(engine).submit_sync(Op.EMBED, [("document", "a")])
    with pytest.raises(BackendError, match="the cluster has no engine 'broken'"):
        machine.runtime.remove_engine("broken")
    assert "broken" not in {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
