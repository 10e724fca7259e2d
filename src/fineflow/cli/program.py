"""Runs a program of the user's as ``python`` does: arguments, ``__main__``, tracebacks, exit status."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
import types
from collections.abc import Callable
from pathlib import Path

from fineflow.cli.common import FAILED, INTERRUPTED
from fineflow.errors import UsageError


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that name the program. All that follows its name is its own."""
    add = parser.add_argument
    add("-m", dest="module", metavar="MODULE ...", nargs=argparse.REMAINDER, help="run a module, as python -m does")
    add("program", metavar="SCRIPT ...", nargs=argparse.REMAINDER, help="the file to run, and its own arguments")


def run(command: str, args: argparse.Namespace, at_end: Callable[[], None]) -> int:
    """Runs the program, and then ``at_end``, however it ended. Returns its exit status, or raises its SystemExit.

    Raises UsageError if there is no such program.
    """
    module, script = args.module or [], args.program
    if not (module or script):
        raise UsageError(f"expected a script or -m MODULE; write for example: fineflow {command} app.py")
    start = _module(*module) if module else _script(*script)
    try:
        start()
    except SystemExit:
        raise
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException as error:
        own = (__file__, runpy.__file__)
        trace = error.__traceback__
        while trace is not None and (
            trace.tb_frame.f_code.co_filename in own or "runpy" in trace.tb_frame.f_code.co_filename
        ):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return FAILED
    finally:
        sys.stdout.flush()
        at_end()
    return 0


def _module(name: str, *given: str) -> Callable[[], None]:
    sys.path.insert(0, os.getcwd())
    try:
        there = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        there = not f"{name}.".startswith(f"{error.name}.")  # else one that a package around it imports is missing
    except Exception:  # of a package around it: raised again, and shown, when it runs
        there = True
    if not there:
        raise UsageError(f"there is no module {name!r} in {os.getcwd()}, nor an installed one; check its name")

    def start() -> None:
        sys.argv = [name, *given]
        runpy.run_module(name, run_name="__main__", alter_sys=True)

    return start


def _script(name: str, *given: str) -> Callable[[], None]:
    path = Path(name)
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise UsageError(f"the folder {name!r} has no __main__.py; give the file of a Python program")
    if path.is_dir() or path.suffix in (".zip", ".pyz"):

        def start() -> None:
            sys.argv = [name, *given]
            runpy.run_path(name, run_name="__main__")

        return start
    file = os.path.abspath(name)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot open {name!r}: {error.strerror}; give the file of a Python program") from None

    def start_file() -> None:
        code = compile(source, file, "exec")
        sys.argv = [name, *given]
        sys.path.insert(0, str(path.resolve().parent))
        main = types.ModuleType("__main__")  # a real one, for pickle and multiprocessing
        main.__dict__.update(__file__=file, __builtins__=__builtins__)
        sys.modules["__main__"] = main
        exec(code, main.__dict__)

    return start_file
