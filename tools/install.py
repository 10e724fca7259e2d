"""Installs packages into the environment that runs it, with one status line instead of hundreds.

Usage: python tools/install.py LABEL LOGFILE ARGUMENTS...

The arguments are those of ``pip install``. ``uv`` does it, in a tenth of the time, where it is on the path (all
environments share its cache); otherwise pip. The installer's own output is shown if it fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TAIL = 25  # lines of the installer's output shown after a failure
EVERY = 20.0  # seconds between lines if the output is not a terminal


def command(arguments: Sequence[str]) -> list[str]:
    """Returns the command that installs into the environment of this interpreter."""
    if uv := shutil.which("uv"):
        link = ("--link-mode", "copy")  # nltk refuses data files with several hard links
        return [uv, "pip", "install", "--python", sys.executable, "--no-progress", *link, *arguments]
    options = ["--disable-pip-version-check", "--progress-bar", "off"]
    return [sys.executable, "-m", "pip", "install", *options, *arguments]


def environment() -> dict[str, str]:
    """Returns the environment of the installer: uv looks for wheels in the folders that pip is configured with, too.

    A build of PyTorch for CPUs may lie there; without it, the default build brings gigabytes of CUDA.
    """
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    folders = [
        folder
        for name, _, value in (line.partition("=") for line in asked.stdout.splitlines())
        if name.rpartition(".")[2] == "find-links"
        for folder in value.strip("'\"").split()
    ]
    return os.environ | ({"UV_FIND_LINKS": ",".join(dict.fromkeys(folders))} if folders else {})


def main(label: str, log: Path, arguments: Sequence[str]) -> int:
    """Runs the installer and returns its exit code; ``log`` gets its whole output."""
    start = last = time.monotonic()
    lines: list[str] = []
    seen = 0
    terminal = sys.stdout.isatty()
    print(f"{label} ...", flush=True)
    with (
        subprocess.Popen(
            command(arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
        ) as installer,
        log.open("w", encoding="utf-8") as out,
    ):
        assert installer.stdout is not None
        for line in installer.stdout:
            out.write(line)
            lines = [*lines[-TAIL:], line]
            if not line.startswith(("Collecting ", "Installing collected")):  # pip's; uv is done before one could read
                continue
            seen += line.startswith("Collecting ")
            what = line.split()[1] if line.startswith("Collecting ") else "(unpacking)"
            now = time.monotonic()
            if terminal:
                print(f"\r\033[K  {seen} packages  {what[:60]}", end="", flush=True)
            elif now - last > EVERY or what == "(unpacking)":
                print(f"  {seen} packages  {what[:60]}", flush=True)
                last = now
    if terminal:
        print("\r\033[K", end="")
    if installer.returncode:
        print(f"{label}: exit code {installer.returncode}; the last lines (all output is in {log}):")
        print("".join(f"  | {line}" for line in lines[-TAIL:]), end="", flush=True)
    else:
        print(f"  done in {time.monotonic() - start:.0f} s", flush=True)
    return installer.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
