"""``fineflow doctor``: what is installed, what works, and what is missing."""

from __future__ import annotations

import argparse
import json

from fineflow.cli.common import FAILED, quieten, width
from fineflow.installation import VARIABLES, Diagnosis, Extra, diagnose
from fineflow.ir.text import wrap

HELP = "say what is installed, what works, and what is missing"
DESCRIPTION = (
    "Prints versions, extras, engines, devices and environment variables, and the line that installs what is missing. "
    "Reads the metadata of packages and imports none of them, unless asked. Exit status: 0, or 1 if something that is "
    "installed cannot work."
)


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--all", action="store_true", help="also import the libraries, and ask torch for devices (takes seconds)")
    add("--json", action="store_true", help="print everything as JSON")


def run(args: argparse.Namespace) -> int:
    quieten()
    found = diagnose(thorough=args.all)
    print(json.dumps(found.to_dict(), indent=1) if args.json else "\n".join(_lines(found, width())))
    return FAILED if found.faults else 0


def _lines(found: Diagnosis, columns: int) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    lines = [*wrap(versions, [], "", columns), *wrap(found.machine, [], "  ", columns)]
    lines += [line for each in found.devices for line in wrap(each, [], "  ", columns)]
    if not found.extras:
        lines += ["", "This fineflow is not installed as a package, so its extras are not known: pip install -e ."]
    for title, states in (("Installed", ("ok", "wrong")), ("Not installed", ("missing",))):
        extras = [each for each in found.extras if each.state in states]
        longest = max((len(each.name) for each in extras), default=0)
        lines += ["", title] if extras else []
        for each in extras:
            mark = {"ok": "ok   ", "wrong": "WRONG", "missing": "-    "}[each.state]
            lines += wrap(f"  {mark} {each.name:<{longest}}", _told(each), " " * 10, columns)
    lines += ["", "Engines"]
    for name, state in found.engines.items():
        lines += wrap(
            f"  {'ok   ' if state == 'ok' else '-    '} {name}", [] if state == "ok" else [state], " " * 10, columns
        )
    if found.environment:
        lines += ["", "Environment"]
        for name, value in found.environment.items():
            lines += wrap(f"  {name}={value}", [VARIABLES[name]], " " * 6, columns)
    for told in found.newer:
        lines += ["", *wrap("Note:", [told], "  ", columns)]
    lines += ["", *(line for fault in found.faults for line in wrap("WRONG:", [fault], "  ", columns))]
    return lines if found.faults else [*lines, "Nothing that is installed is known not to work."]


def _told(extra: Extra) -> list[str]:
    """Returns the packages of an extra: their versions, and what is wrong or missing."""
    said = [f"{each.name} {each.installed}" for each in extra.packages if each.fits]
    said += [f"{each.name} {each.installed} (supported: {each.supported})" for each in extra.packages if each.wrong]
    missing = [each.name for each in extra.packages if not each.installed]
    listed = [", ".join(said)] if said else []
    if missing:
        listed.append(f"missing: {', '.join(missing)}")
    return [*listed, extra.install] if extra.install else listed
