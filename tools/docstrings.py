"""Makes tables of the parameters in our docstrings, for the API reference (an extension of griffe, see mkdocs.yml).

Our docstrings describe parameters in prose: ``obj: a Runnable. strict: raise instead of warn.`` Here such a paragraph
becomes the section "Args" of Google's style, which the documentation shows as a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import griffe

SHARED = {"fineflow.api.optimize", "fineflow.api.explain"}
"""Functions whose other parameters are described by ``fineflow.Options``."""
_OPTIONS = "fineflow.options.Options"
_ROLE = re.compile(r":\w+:`~?([\w.]+)`")
_RAISES = re.compile(r"^Raises:? (?=[A-Z])", re.MULTILINE)


class Parameters(griffe.Extension):
    """Rewrites docstrings after the package has been read."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrites all docstrings of our own package."""
        if pkg.name != "fineflow":
            return
        options = pkg["options.Options"]
        text = options.docstring.value if options.docstring else ""
        described = split(text, _names(options))[1]
        for obj in _everything(pkg):
            if obj.docstring is not None and (obj.is_function or obj.is_class):
                more = described if obj.path in SHARED else {}
                obj.docstring.value = rewritten(obj.docstring.value, _names(obj), more)


def rewritten(text: str, names: Iterable[str], shared: Mapping[str, str] | None = None) -> str:
    """Returns a docstring whose parameters are a section. shared: descriptions of those that it does not describe."""
    names = list(names)
    text, found = split(_ROLE.sub(r"``\1``", text), names)
    found = {name: each for name in names if (each := found.get(name) or (shared or {}).get(name, ""))}
    text = _RAISES.sub("**Raises** ", text)
    if not found:
        return text
    head, _, rest = text.partition("\n\n")
    section = "Args:\n" + "\n".join(f"    {name}: {' '.join(each.split())}" for name, each in found.items())
    return "\n\n".join(part for part in (head.strip(), rest.strip(), section) if part)


def split(text: str, names: Iterable[str]) -> tuple[str, dict[str, str]]:
    """Returns a docstring without what it says of parameters, and that by parameter."""
    names = list(names)
    if not names:
        return text, {}
    either = "|".join(map(re.escape, names))
    named = re.compile(rf"(?:(?<=^)|(?<=\n)|(?<=[.;)] )|(?<=[.;)]\n))((?:{either})(?:, (?:{either}))*): ")
    kept, found = [], dict[str, str]()
    for paragraph in text.split("\n\n"):
        parts = named.split(paragraph)
        if parts[0].strip():
            kept.append(parts[0])
        for which, said in zip(parts[1::2], parts[2::2], strict=True):
            found.update(dict.fromkeys(which.split(", "), said.strip().rstrip(";")))
    return "\n\n".join(kept), found


def _names(obj: Any) -> list[str]:
    """Returns the names of the parameters of a function, or of a class and its fields."""
    if obj.is_function:
        return [each.name.lstrip("*") for each in obj.parameters if each.name not in ("self", "cls")]
    init = obj.members.get("__init__")
    fields = [name for name, each in obj.members.items() if each.is_attribute and not name.startswith("_")]
    return [*(_names(init) if init is not None and init.is_function else []), *fields]


def _everything(obj: Any) -> Iterable[Any]:
    for each in obj.members.values():
        if not each.is_alias:
            yield each
            if each.is_class or each.is_module:
                yield from _everything(each)
