"""``Runtime(cluster=...)``: what it takes, and what is left when it has ended."""

from __future__ import annotations

from typing import Any

import pytest

import fineflow
from fineflow.errors import BackendError
from fineflow.ir import Op
from fineflow.runtime.cluster.connection import Cluster
from fineflow.runtime.queues.batch_queue import batch_queue_of


@pytest.mark.parametrize("cluster", [3, "", b"auto"])
def test_a_cluster_is_named_by_text(cluster: Any) -> None:
    with pytest.raises(TypeError, match=r'"local", "auto" or the address of a Ray cluster; got'):
        fineflow.Runtime(cluster=cluster)


@pytest.mark.parametrize("call", [lambda r: r.engine("name", "module:function"), lambda r: r.remove_engine("name")])
def test_engines_need_a_cluster(call: Any) -> None:
    with pytest.raises(RuntimeError, match=r"needs an open Runtime\(cluster=...\); this is Runtime\("):
        call(fineflow.Runtime())


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"instances": 0}, ValueError, "instances is a whole number of at least 1; got 0"),
        ({"instances": True}, ValueError, "instances is a whole number of at least 1; got True"),
        ({"affinty": False}, TypeError, "unknown settings affinty; there are affinity, deduction, patience"),
        ({"factory": "function"}, TypeError, "expected a factory, a function or \"module:function\"; got 'function'"),
        ({"factory": None}, TypeError, "expected a factory"),
    ],
)
def test_settings_are_checked(machine: Any, given: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        machine.runtime.engine("wrong", **{"factory": "module:function", **given})


def test_a_forked_child_is_told_to_connect_itself(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = machine.engine("embedding", "many")
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(BackendError, match="was forked from the one that connected"):
        batch_queue_of(engine).submit_sync(Op.EMBED, [("document", "a")])
    with pytest.raises(BackendError, match="was forked from the one that connected"):
        machine.engine("embedding", "many")


def test_engines_of_a_connection_that_was_closed_say_so(machine: Any) -> None:
    other = Cluster("auto")  # on the connection to Ray that this process has, which stays
    engine = other.engine("many", machine.factory("embedding", name="many"), 1, {}, {})
    queue = batch_queue_of(engine)
    assert queue.submit_sync(Op.EMBED, [("document", "a")])
    other.close()
    with pytest.raises(BackendError, match="'many' cannot be reached: its Runtime was closed"):
        queue.submit_sync(Op.EMBED, [("document", "a")])
    assert batch_queue_of(machine.engine("embedding", "many")).submit_sync(Op.EMBED, [("document", "a")])


def test_the_file_of_the_runtime_imports_no_ray() -> None:
    import subprocess
    import sys

    code = "import sys, fineflow; fineflow.Runtime().start().close(); print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
