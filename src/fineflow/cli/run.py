"""``fineflow run``: runs a program unchanged, its outermost calls through ``optimize``."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import types
from pathlib import Path

from fineflow.cli.common import FAILED, INTERRUPTED
from fineflow.errors import UsageError

HELP = "run a program unchanged, its calls optimized"
DESCRIPTION = (
    "Runs a script or module as python does, and sends the outermost calls of its runnables, query engines, "
    "retrievers and chat engines through fineflow.optimize. At the end it says on stderr what was routed. Exit "
    "status: that of the program. With FINEFLOW_DISABLE=1 the program runs as it is."
)

_SECONDS = 30.0  # to wait for calls that are being verified


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-q", "--quiet", action="store_true", help="say nothing at the end")
    add("--verify", type=_share, default=0.0, metavar="SHARE", help="share of calls to compare with stock, 0 to 1")
    add("-m", dest="module", metavar="MODULE ...", nargs=argparse.REMAINDER, help="run a module, as python -m does")
    add("program", metavar="SCRIPT ...", nargs=argparse.REMAINDER, help="the file to run, and its own arguments")


def run(args: argparse.Namespace) -> int:
    import fineflow

    module, script = args.module or [], args.program
    if not (module or script):
        raise UsageError("expected a script or -m MODULE; write for example: fineflow run app.py")
    disabled = os.environ.get("FINEFLOW_DISABLE", "") not in ("", "0")
    if not disabled:
        fineflow.instrument(verify=args.verify)
    try:
        if module:
            _module(module[0], module[1:])
        else:
            _script(script[0], script[1:])
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
        if not disabled and not args.quiet:
            sys.stdout.flush()
            print(fineflow.status(), file=sys.stderr)
            if args.verify:
                print(fineflow.verified(_SECONDS), file=sys.stderr)
    return 0


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to 1, such as 0.1, got {text}")
    return share


def _module(name: str, given: list[str]) -> None:
    sys.argv = [name, *given]
    sys.path.insert(0, os.getcwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _script(name: str, given: list[str]) -> None:
    path = Path(name)
    if path.is_dir() or path.suffix in (".zip", ".pyz"):
        sys.argv = [name, *given]
        runpy.run_path(name, run_name="__main__")
        return
    try:
        file = os.path.abspath(name)
        code = compile(path.read_bytes(), file, "exec")
    except OSError as error:
        raise SystemExit(f"fineflow run: cannot open {name!r}: {error.strerror}") from None
    sys.argv = [name, *given]
    sys.path.insert(0, str(path.resolve().parent))
    main = types.ModuleType("__main__")  # a real one, for pickle and multiprocessing
    main.__dict__.update(__file__=file, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)
