"""Public names that are imported when they are first used, so that nothing optional is imported before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple


class Lazy(NamedTuple):
    """Where a public name is defined, the extra that brings what it needs, and the libraries it cannot do without."""

    module: str
    extra: str = ""
    libraries: tuple[str, ...] = ()


def lazily(public: str, names: Mapping[str, Lazy]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for the module ``public``, which offers ``names``.

    A name raises ImportError, saying what to install, when a library that it needs is missing or does not fit.
    """

    def resolve(name: str) -> Any:
        lazy = names.get(name)
        if lazy is None:
            raise AttributeError(f"module {public!r} has no attribute {name!r}; it offers {', '.join(names)}")
        for library in lazy.libraries:
            if sys.modules.get(library) is None and find_spec(library) is None:
                raise ImportError(_message(public, name, lazy, f"{library} is not installed"), name=library)
        try:
            value = getattr(import_module(lazy.module), name)
        except ImportError as error:
            raise ImportError(_message(public, name, lazy, str(error)), name=error.name) from error
        setattr(sys.modules[public], name, value)
        return value

    def offered() -> list[str]:
        return sorted({*vars(sys.modules[public]), *names})

    return resolve, offered


def _message(public: str, name: str, lazy: Lazy, found: str) -> str:
    hint = f'; what it needs comes with: pip install "fineflow[{lazy.extra}]"' if lazy.extra else ""
    return f"{public}.{name} cannot be imported: {found}{hint}"
