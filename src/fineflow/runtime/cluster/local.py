"""The one Ray instance of this machine and user, which the processes of an app share without running Ray.

The first process starts a *keeper*, a process of its own that starts Ray, and the others join. Each holds a shared lock
on a file while it uses the instance; the operating system releases it when the process ends, in whatever way. When
nobody has held it for a while, the keeper ends Ray and itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fineflow.errors import BackendError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

GRACE_SECONDS = 10.0  # after the last process: those of a server that is restarted find their engines again
_STORE_BYTES = 256 * 2**20  # Ray's object store: requests and results of engines are small
_FOLDER = "FINEFLOW_CLUSTER_DIR"  # environment variable: the folder of locks and log of another instance


def folder() -> Path:
    """Returns the folder of the instance: one per user, or the one that the environment names.

    Raises: BackendError if others may write there, who could name an address of their own: Ray runs what it gets.
    """
    found = Path(os.environ.get(_FOLDER) or Path(tempfile.gettempdir()) / f"fineflow-{os.getuid()}")
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = found.stat()
    if about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise BackendError(
            f"{found} belongs to another user, or others may write to it; name another folder by {_FOLDER}"
        )
    return found


def join() -> tuple[str, IO[str]]:
    """Returns the address of the instance, started if there is none, and the open file whose lock keeps it.

    Raises: BackendError if it cannot be started.
    """
    if fcntl is None:
        raise BackendError('Runtime(cluster="local") needs file locks of Unix; start Ray yourself and give its address')
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # only this user gets in; the token is in the home folder
    place = folder()
    users = open(place / "users", "a+", encoding="utf-8")  # noqa: SIM115 - open as long as the process uses it
    try:
        with _locked(place / "start"):
            if not _free(place / "keeper"):
                address = (place / "address").read_text(encoding="utf-8")
            else:
                address = _start_keeper(place)
            fcntl.flock(users, fcntl.LOCK_SH)
    except BaseException:
        users.close()
        raise
    return address, users


def leave(users: IO[str] | None) -> None:
    """Gives up the lock of ``join``."""
    if users is not None:
        users.close()


def _start_keeper(place: Path) -> str:
    log = place / "log"
    with log.open("w", encoding="utf-8") as errors:
        keeper = subprocess.Popen(
            [sys.executable, "-m", __name__, str(place)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # signals to the app, such as Ctrl-C, are not for it
            text=True,
        )
    assert keeper.stdout is not None
    with keeper.stdout as said:
        address = said.readline().strip()
    if not address:
        last = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()][-1:]
        raise BackendError(f"could not start Ray on this machine: {''.join(last) or 'it said nothing'} (see {log})")
    return address


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _free(path: Path) -> bool:
    """Returns True if no process holds the exclusive lock of a file."""
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _start_ray() -> None:
    """Starts Ray. It gives its processes 30 s, which is too short on a busy machine: it gets three times that."""
    import ray

    for last in (False, False, True):
        try:
            ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=_STORE_BYTES,
                log_to_driver=False,
            )
            return
        except Exception:
            ray.shutdown()
            if last:
                raise


def keep(place: Path, grace: float = GRACE_SECONDS) -> None:
    """Runs Ray until nobody has used it for ``grace`` seconds. Prints its address once it runs."""
    import ray

    with (place / "keeper").open("a+", encoding="utf-8") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        _start_ray()
        address = ray.get_runtime_context().gcs_address
        (place / "address").write_text(address, encoding="utf-8")
        print(address, flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whoever started this reads no more
        while True:
            with _locked(place / "users"):  # when the last one has left
                pass
            time.sleep(grace)
            with _locked(place / "start"):
                if _free(place / "users"):
                    ray.shutdown()
                    return


if __name__ == "__main__":
    keep(Path(sys.argv[1]), float(os.environ.get("FINEFLOW_CLUSTER_GRACE", GRACE_SECONDS)))
