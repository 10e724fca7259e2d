"""``fineflow doctor``: what is wrong, what works, and what is missing."""

from __future__ import annotations

import argparse
import json
import textwrap

from fineflow.cli.common import FAILED, quieten, width
from fineflow.installation import VARIABLES, Diagnosis, Extra, diagnose
from fineflow.ir.text import wrap

HELP = "say what is wrong, what works, and what is missing"
DESCRIPTION = (
    "Prints what is wrong, versions, devices, environment variables and engines, and the line that installs what is "
    "missing. "
    "Reads the metadata of packages and imports none of them, unless asked. Exit status: 0, or 1 if something that is "
    "installed cannot work."
)


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--all", action="store_true", help="also list every extra, import the libraries, and ask torch for devices")
    add("--json", action="store_true", help="print everything as JSON")


def run(args: argparse.Namespace) -> int:
    quieten()
    found = diagnose(thorough=args.all)
    print(json.dumps(found.to_dict(), indent=1) if args.json else "\n".join(_lines(found, width(), extras=args.all)))
    return FAILED if found.faults else 0


def _lines(found: Diagnosis, columns: int, *, extras: bool) -> list[str]:
    lines = [line for fault in found.faults for line in wrap("WRONG:", [fault], "  ", columns)]
    lines += [line for told in found.newer for line in wrap("Note:", [told], "  ", columns)]
    lines += [] if found.faults else ["Nothing that is installed is known not to work."]
    lines += [""]
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    lines += [*wrap(versions, [], "", columns), *wrap(found.machine, [], "  ", columns)]
    lines += [line for each in found.devices for line in wrap(each, [], "  ", columns)]
    if found.environment:
        lines += ["", "Environment"]
        for name, value in found.environment.items():
            lines += wrap(f"  {name}={value}", [VARIABLES[name]], " " * 6, columns)
    lines += ["", "Engines"]
    for name, state in found.engines.items():
        lines += wrap(
            f"  {'ok   ' if state == 'ok' else '-    '} {name}", [] if state == "ok" else [state], " " * 10, columns
        )
    return [*lines, "", *(_extras(found, columns) if extras else textwrap.wrap(_summary(found), columns))]


def _summary(found: Diagnosis) -> str:
    """Returns one line on the extras: which of the frameworks are there, and how many of the others."""
    if not found.extras:
        return _NO_PACKAGE
    there = {each.name for each in found.extras if each.state == "ok"}
    works = ", ".join(name for name in _FRAMEWORKS if name in there) or "none of them"
    return (
        f"Frameworks that can be optimized: {works}. Of {len(found.extras)} extras {len(there)} are installed; "
        "fineflow doctor --all lists them, and says how to install the others."
    )


def _extras(found: Diagnosis, columns: int) -> list[str]:
    if not found.extras:
        return textwrap.wrap(_NO_PACKAGE, columns)
    lines = list[str]()
    for title, states in (("Installed", ("ok", "wrong")), ("Not installed", ("missing",))):
        extras = [each for each in found.extras if each.state in states]
        longest = max((len(each.name) for each in extras), default=0)
        lines += [*([""] if lines else []), title] if extras else []
        for each in extras:
            mark = {"ok": "ok   ", "wrong": "WRONG", "missing": "-    "}[each.state]
            lines += wrap(f"  {mark} {each.name:<{longest}}", _told(each), " " * 10, columns)
    return lines


_FRAMEWORKS = ("langchain", "langgraph", "llama-index")
_NO_PACKAGE = "This fineflow is not installed as a package, so its extras are not known: pip install -e ."


def _told(extra: Extra) -> list[str]:
    """Returns the packages of an extra: their versions, and what is wrong or missing."""
    said = [f"{each.name} {each.installed}" for each in extra.packages if each.fits]
    said += [f"{each.name} {each.installed} (supported: {each.supported})" for each in extra.packages if each.wrong]
    missing = [each.name for each in extra.packages if not each.installed]
    listed = [", ".join(said)] if said else []
    if missing:
        listed.append(f"missing: {', '.join(missing)}")
    return [*listed, extra.install] if extra.install else listed
