"""A process that uses engines of the cluster: it calls the functions below, as lines of standard input say."""

from __future__ import annotations

import json
import pickle
import sys
import threading
from typing import Any

import desk
import ray

import fineflow
from fineflow.engines import set_policy
from fineflow.ir import Op
from fineflow.langchain import ChatEngine
from fineflow.runtime.queues.batch_queue import batch_queue_of

TENANTS = {"small": 1, "large": 4}
runtime = fineflow.Runtime(cluster="local", tenants=TENANTS)


def engine(kind: str, name: str, instances: int = 1, **settings: Any) -> Any:
    return runtime.engine(name, desk.factory(kind, name=name, **settings), instances=instances)


def embed(name: str, settings: dict[str, Any], texts: list[str], identity: dict[str, Any]) -> Any:
    with fineflow.identity(**identity):
        items = [("document", text) for text in texts]
        return batch_queue_of(engine("embedding", name, **settings)).submit_sync(Op.EMBED, items)


def each(name: str, settings: dict[str, Any], texts: list[str], identity: dict[str, Any]) -> None:
    """Embeds texts, each in a request of its own; returns when all have been sent."""
    queue = batch_queue_of(engine("embedding", name, **settings))

    def one(text: str) -> None:
        with fineflow.identity(**identity):
            queue.submit_sync(Op.EMBED, [("document", text)])

    for text in texts:
        threading.Thread(target=one, args=(text,), daemon=True).start()


def ask(name: str, settings: dict[str, Any], prompt: str) -> Any:
    return ChatEngine(engine=engine("llm", name, **settings)).invoke(prompt).content


def scope(name: str) -> str:
    """Returns what goes with a request of this process, pickled."""
    with engine("embedding", name)._link.scope() as found:
        return pickle.dumps(found).hex()


def policy(kind: str, name: str, policy: str) -> None:
    set_policy(engine(kind, name), policy)


def main() -> None:
    with runtime:
        say(0, False, ray.get_runtime_context().gcs_address)
        for line in sys.stdin:
            number, function, *args = json.loads(line)
            threading.Thread(target=run, args=(number, globals()[function], args), daemon=True).start()


def run(number: int, function: Any, args: list[Any]) -> None:
    try:
        value = function(*args)
    except Exception as error:
        say(number, True, f"{type(error).__name__}: {error}")
    else:
        say(number, False, value)


def say(number: int, failed: bool, value: Any) -> None:
    sys.stdout.write(json.dumps([number, failed, value]) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
