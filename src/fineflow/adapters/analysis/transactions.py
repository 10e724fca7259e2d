"""Database transactions of which nothing is left, and nothing was visible, if an exception leaves their ``with`` block.

Read: sqlite3 of Python 3.11 to 3.13, psycopg 3.3, psycopg2 2.9, SQLAlchemy 2.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fineflow.adapters.core.installers import if_imported

_LEGACY = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, which Python 3.11 does not have
_IDLE = 0  # of libpq: the connection is in no transaction
_USED = ("__enter__", "__exit__", "execute", "cursor", "commit", "rollback", "begin", "transaction")
_TRANSACTIONAL = ("postgresql", "sqlite", "mssql", "oracle")  # not MySQL, some of whose tables have no transactions


def _sqlite(connection: Any) -> bool:
    legacy = getattr(connection, "autocommit", _LEGACY) == _LEGACY
    return legacy and connection.isolation_level is not None and not connection.in_transaction


def _psycopg2(connection: Any) -> bool:
    return not connection.autocommit and connection.info.transaction_status == _IDLE


def _psycopg(connection: Any) -> bool:
    return True  # within another transaction, ``transaction()`` is a savepoint


def _sqlalchemy(engine: Any) -> bool:
    options: Mapping[str, Any] = engine.get_execution_options()
    levels = (options.get("isolation_level"), getattr(engine.dialect, "_on_connect_isolation_level", None))
    return engine.dialect.name in _TRANSACTIONAL and "AUTOCOMMIT" not in levels


_KNOWN: tuple[tuple[str, str, str, Callable[[Any], bool]], ...] = (
    ("sqlite3", "Connection", "", _sqlite),
    ("psycopg2.extensions", "connection", "", _psycopg2),
    ("psycopg", "Connection", "transaction", _psycopg),
    ("sqlalchemy.engine.base", "Engine", "begin", _sqlalchemy),
)
"""Module and class of a connection; the method that begins a transaction ("": the object itself is entered)."""


def undone(connection: Any, method: str) -> bool:
    """Returns True if ``with connection:`` (or ``with connection.method():``) is such a transaction if it begins now.

    False for any other object, for subclasses that override how it works, and for connections that commit each
    statement, or that are in a transaction already.
    """
    for module, name, begins, holds in _KNOWN:
        base: Any = if_imported(module, name)
        if begins != method or base is None or not isinstance(connection, base):
            continue
        own = vars(connection) if hasattr(connection, "__dict__") else {}
        kind = type(connection)
        same = all(getattr(kind, used, None) is getattr(base, used, None) and used not in own for used in _USED)
        return same and holds(connection)
    return False
