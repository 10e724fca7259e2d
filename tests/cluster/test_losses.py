"""Instances, nodes, hosts and processes that are lost: requests go elsewhere once, and nothing goes on for the dead."""

from __future__ import annotations

import os
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import ray
from desk import Process, embedding
from machine import until

from fineflow.errors import BackendError
from fineflow.ir import Op
from fineflow.runtime.queues.batch_queue import batch_queue_of


def submit(engine: Any, text: str) -> Any:
    return batch_queue_of(engine).submit_sync(Op.EMBED, [("document", text)])


def test_requests_of_a_lost_instance_go_to_another_one(machine: Any) -> None:
    pair = machine.engine("embedding", "pair", instances=2)
    machine.close("pair")
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(submit, pair, "a")]
        machine.told("pair", 1)
        waiting.append(threads.submit(submit, pair, "b"))  # the other instance takes it, once it is ready
        machine.told("pair", 2)
        first, second = ray.get(machine.host("pair").processes.remote())
        os.kill(first, signal.SIGKILL)
        until(lambda: pair.statistics().failed == 1)
        machine.open("pair")
        vectors = [each.result(60)[0] for each in waiting]
    assert vectors == [embedding().compute(("document", text)) for text in "ab"]
    assert sorted(text for batch in machine.told("pair", 3) for text in batch) in (["a", "a", "b"], ["a", "b", "b"])

    os.kill(second, signal.SIGKILL)
    with pytest.raises(BackendError, match="no instance of engine 'pair' is left"):
        submit(pair, "c")
    pair.restore()  # Ray has started both again
    until(lambda: answers(pair))
    machine.runtime.remove_engine("pair")


def answers(engine: Any) -> bool:
    try:
        return bool(submit(engine, "d"))
    except BackendError:
        engine.restore()
        return False


def test_requests_of_a_lost_host_are_made_again_once_when_ray_has_restarted_it(machine: Any) -> None:
    single = machine.engine("embedding", "single", max_batch=1)
    machine.close("single")
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(submit, single, "a")
        machine.told("single", 1)
        (process,) = ray.get(machine.host("single").processes.remote())
        os.kill(process, signal.SIGKILL)
        machine.told("single", 2)
        machine.open("single")
        assert waiting.result(60) == [embedding().compute(("document", "a"))]


def test_requests_of_a_process_that_dies_end(machine: Any) -> None:
    machine.engine("embedding", "single", max_batch=1)
    machine.engine("llm", "llm", capacity=40)
    machine.close("single")
    machine.close("llm words")
    dead = machine.others.pop()
    dead.call("each", "single", {"max_batch": 1}, ["dead"] * 3, {})
    dead.begin("ask", "llm", {"capacity": 40}, "dead")
    machine.queued("single", 2)
    machine.told("llm words", 1)
    dead.kill()
    machine.others.append(Process())  # for tests that come later
    assert machine.told("llm ended", 1) != []
    machine.queued("single", 0)
    until(lambda: machine.requests("llm") == machine.requests("single") == 0)
    machine.open("single")
    assert machine.told("single") == [["dead"]]  # a batch that runs goes on to its end


def test_requests_of_a_process_that_dies_end_in_a_host_that_it_has_not_told_to_watch_it(machine: Any) -> None:
    machine.engine("embedding", "single", max_batch=1)
    machine.close("single")
    dead, host = Process(), machine.host("single")
    scope = pickle.loads(bytes.fromhex(dead.call("scope", "many")))  # it knows another host only

    def send() -> Any:
        return host.submit.remote(scope, Op.EMBED, [("document", "dead")], "")

    requests = [send(), send()]  # Ray may deliver them before the call of ``watch``: after a restart, seconds before
    machine.queued("single", 1)
    dead.kill()
    machine.queued("single", 0)
    requests.append(send())  # this one is delivered after the death was noticed
    for each in requests:
        with pytest.raises(ray.exceptions.RayError):
            ray.get(each, timeout=60)
    until(lambda: machine.requests("single") == 0)
    assert scope.client not in ray.get(host.clients.remote())
    machine.open("single")
