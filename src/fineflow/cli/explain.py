"""``fineflow explain``: the plan of a user's object."""

from __future__ import annotations

import argparse
from pathlib import Path

from fineflow.cli.common import check_file, quieten, width, write

HELP = "show the plan of your own object"
DESCRIPTION = (
    "Prints what fineflow.optimize would make of an object: what it gains, what starts earlier, and what is in the way "
    "with the next step. Nothing of the object is called. Exit status: 0, or 2 for bad input."
)


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("object", metavar="MODULE:NAME", help="a LangChain Runnable or LlamaIndex object, or a function that makes it")
    add("--input", metavar="TEXT", default="", help="an example input, if it is neither text nor a dict of texts")
    add("--trust", choices=("packages", "interfaces"), default="packages", help="see fineflow.optimize (%(default)s)")
    add("--graphs", action="store_true", help="add critical paths, each rewrite and refusal, and both graphs")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--html", metavar="FILE", type=Path, help="write the plan as a page instead")
    form.add_argument("--mermaid", action="store_true", help="print a Mermaid diagram instead")
    form.add_argument(
        "--json", action="store_true", help="print the sentences and the notes of the plan as JSON instead"
    )


def run(args: argparse.Namespace) -> int:
    quieten()
    check_file("--html", args.html)
    import fineflow
    from fineflow.checking import find, named, parsed

    _, made = named(args.object)
    plan = fineflow.explain(made, input=parsed(args.input), trust=args.trust, graphs=args.graphs)
    if not plan.taken:
        find(args.object)  # says what is expected
    if args.html is not None:
        write("--html", args.html, plan.to_html())
    elif args.mermaid:
        print(plan.to_mermaid())
    elif args.json:
        print(plan.to_json())
    else:
        print(plan.to_text(width()))
    return 0
