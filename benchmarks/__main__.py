"""``python -m benchmarks``: what there is, and the commands ``run``, ``suite``, ``report`` and ``micro``."""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

from benchmarks.harness import page, program, suites
from benchmarks.micro import program as micro

FOLDER = Path(__file__).parent


def listed() -> str:
    """Returns the applications, the schemes, and the benchmarks that are scripts of their own."""
    from benchmarks.apps import apps
    from benchmarks.harness.schemes import schemes

    lines = ["Applications:", *(f"  {name:24} {app.about}" for name, app in apps().items())]
    lines += ["", "Schemes:", *(f"  {each.name}" for each in schemes())]
    lines += ["", "Benchmarks of one thing each, python -m benchmarks.NAME:"]
    for path in sorted((*FOLDER.glob("*.py"), *FOLDER.glob("*/*.py"))):
        text = path.read_text(encoding="utf-8")
        if 'if __name__ == "__main__":' in text and path != Path(__file__):
            name = ".".join(path.relative_to(FOLDER).with_suffix("").parts).removesuffix(".__main__")
            lines.append(f"  {name:28} {(ast.get_docstring(ast.parse(text)) or '').splitlines()[0]}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Runs a command; without one, lists what there is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    running = commands.add_parser("run", help="applications under schemes and loads", description=program.__doc__)
    program.add_arguments(running)
    whole = commands.add_parser(
        "suite", help="all of the page for one device, into one file", description=suites.__doc__
    )
    suites.add_arguments(whole)
    drawing = commands.add_parser("report", help="pictures and tables of the results", description=page.__doc__)
    page.add_arguments(drawing)
    costs = commands.add_parser("micro", help="what fineflow itself costs, as ratios", description=micro.__doc__)
    micro.add_arguments(costs)
    given = parser.parse_args(argv)
    if given.command == "report":
        return page.main(given)
    if given.command == "micro":
        return micro.main(given)
    command = ["python -m benchmarks", *(sys.argv[1:] if argv is None else argv)]
    if given.command == "suite":
        return suites.main(given, command)
    if given.command == "run":
        return program.main(given, command)
    print(listed())
    return 0


if __name__ == "__main__":
    sys.exit(main())
