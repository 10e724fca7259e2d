"""Public names that are imported on first use, so that importing fineflow imports no optional library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from fineflow.errors import installing


class Lazy(NamedTuple):
    """Module of a public name, the extra that installs its dependencies, and the libraries it requires.

    The name stands for something in the module, or for the module itself.
    """

    module: str
    extra: str = ""
    libraries: tuple[str, ...] = ()


def lazily(public: str, names: Mapping[str, Lazy]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns ``__getattr__`` and ``__dir__`` for the module ``public``, which offers ``names``.

    Accessing a name raises ImportError, with an install hint, if a required library is missing or incompatible.
    """

    def resolve(name: str) -> Any:
        lazy = names.get(name)
        if lazy is None:
            known = getattr(sys.modules[public], "__all__", names)
            raise AttributeError(f"module {public!r} has no attribute {name!r}; it offers {', '.join(known)}")
        for library in lazy.libraries:
            if sys.modules.get(library) is None and find_spec(library) is None:
                raise ImportError(_message(public, name, lazy, f"{library} is not installed"), name=library)
        try:
            module = import_module(lazy.module)
            value = module if lazy.module == f"{public}.{name}" else getattr(module, name)
        except ImportError as error:
            raise ImportError(_message(public, name, lazy, str(error)), name=error.name) from error
        setattr(sys.modules[public], name, value)
        return value

    def offered() -> list[str]:
        return sorted({*vars(sys.modules[public]), *names})

    return resolve, offered


def _message(public: str, name: str, lazy: Lazy, found: str) -> str:
    hint = f"; its dependencies come with: {installing(lazy.extra)}" if lazy.extra else ""
    return f"{public}.{name} cannot be imported: {found}{hint}"
