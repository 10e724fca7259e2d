"""Tells where modules come from: a folder of packages, another place that an installer chose, or Python itself.

Nearly all is decided by what the folders on the path held when they were first seen, and looks at no file: the first
plan of a call may be made on an event loop.
"""

from __future__ import annotations

import csv
import functools
import os
import site
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple


def of_installer(place: str) -> bool:
    """Returns True for a file or folder that an installer has put where it is."""
    around = [each for each in map(_folder, (*_package_paths(), *sys.path)) if each.holds(place)]
    if any(each.packages for each in around):
        return True
    if around and not any(each.records for each in around):
        return False
    place = os.path.realpath(place)
    return place.startswith(_package_folders()) or _recorded(place)


def if_imported(module: str, name: str) -> Any:
    """Returns what a module has under a name if something has imported it: nothing is imported for that. None else."""
    return getattr(sys.modules.get(module), name, None)


def module_of(func: Any) -> str:
    """Returns the module of a function: the user's, if the function or what it wraps by ``functools.wraps`` is."""
    named = getattr(func, "__module__", None)
    around = getattr(getattr(func, "__func__", func), "__globals__", None)
    written = around.get("__name__") if type(around) is dict and of_package(named) else named
    return written if isinstance(written, str) else ""


def of_package(module: object) -> bool:
    """Returns True if a module belongs to fineflow or to an installed package, not to the user's application.

    An application that is installed in development mode, or that runs from its folder, is the user's. module: a
    ``__module__``, which code that makes functions and classes may have set to anything.
    """
    if not isinstance(module, str):
        return False
    package = module.partition(".")[0]
    if package == "fineflow":
        return True
    # A namespace package, such as langgraph, may have a part in a folder of the application, too.
    spread = module in sys.modules and getattr(sys.modules.get(package), "__file__", None) is None
    return _installed(module if spread else package)


@functools.cache
def _installed(package: str) -> bool:
    file = getattr(sys.modules.get(package), "__file__", None)
    folders = getattr(sys.modules.get(package), "__path__", ())  # a namespace package has no file
    places = [place for place in (file, *folders) if place]
    return bool(places) and all(map(of_installer, places))


@functools.cache
def of_application(module: str) -> bool:
    """Returns True if a module belongs to the user's application: to neither a package nor the standard library."""
    package = module.partition(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None)  # none: built into the interpreter
    standard = package in sys.stdlib_module_names and (file is None or of_python(file))
    return not standard and not of_package(module)


def foreign(kind: type) -> bool:
    """Returns True if a class, without its bases, is a package's or Python's, and not the user's application's.

    It goes by the module in which the class says that it was defined, not by the functions that are in it now.
    """
    return not of_application(kind.__module__)


class _Folder(NamedTuple):
    """A folder on the path. inside: its entries that are no links. packages: it is one of packages.

    records: it has an installer's records.
    """

    prefix: str
    inside: frozenset[str]
    packages: bool
    records: bool

    def holds(self, place: str) -> bool:
        start = len(self.prefix)
        return place.startswith(self.prefix) and place[start:].partition(os.sep)[0] in self.inside


@functools.cache
def _folder(path: str) -> _Folder:
    if not os.path.isabs(path):  # which folder that is may change
        return _Folder(path, frozenset(), False, False)
    prefix = os.path.normpath(path) + os.sep
    try:
        with os.scandir(prefix) as entries:
            found = list(entries)
    except OSError:
        found = []
    inside = frozenset(each.name for each in found if not each.is_symlink())
    records = any(each.name.endswith(".dist-info") for each in found)
    return _Folder(prefix, inside, (os.path.realpath(prefix) + os.sep).startswith(_package_folders()), records)


@functools.cache
def _package_paths() -> tuple[str, ...]:
    """Returns the folders of installed packages, those of ``pip install --user`` and of the system among them."""
    own = sysconfig.get_path("purelib"), sysconfig.get_path("platlib")
    return (*own, *site.getsitepackages(), site.getusersitepackages())


@functools.cache
def _package_folders() -> tuple[str, ...]:
    return _ended(*_package_paths())


def _recorded(place: str) -> bool:
    """Returns True for a file or package that an installer has put elsewhere: ``pip install --target``, a layer.

    Such a folder, which may be the application's own, is on the path and has the installer's records of its files.
    """
    folders = {os.path.realpath(folder or os.curdir) for folder in sys.path}
    return any(
        os.path.relpath(place, folder) in _records(folder) for folder in folders if place.startswith(folder + os.sep)
    )


@functools.cache
def _records(folder: str) -> frozenset[str]:
    """Returns the paths of installed files below a folder, by the records in it, and those of their folders."""
    found = set[str]()
    for record in Path(folder).glob("*.dist-info/RECORD"):
        with suppress(OSError, UnicodeDecodeError), record.open(encoding="utf-8", newline="") as file:
            found.update(os.path.normpath(row[0]) for row in csv.reader(file) if row)
    return frozenset(found.union(map(os.path.dirname, found)))


def _ended(*folders: str) -> tuple[str, ...]:
    """Returns folders as prefixes of what is in them."""
    return tuple(os.path.realpath(folder) + os.sep for folder in folders)


def of_python(file: str) -> bool:
    """Returns True for a file of the standard library."""
    library = sysconfig.get_path("stdlib")
    return file.startswith(library + os.sep) or os.path.realpath(file).startswith(_ended(library))


def look() -> None:
    """Looks at the folders on the path, those that are new: now, and not in the first call."""
    with suppress(Exception):  # where a watched event loop forbids it, the first plan tries again
        for path in (*_package_paths(), *sys.path):
            _folder(path)


look()
