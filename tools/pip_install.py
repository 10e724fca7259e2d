"""Runs ``pip install`` with one status line instead of hundreds, and shows pip's own output if it fails.

Usage: python tools/pip_install.py LABEL LOGFILE PIP_ARGUMENTS...
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

TAIL = 25  # lines of pip's output shown after a failure
EVERY = 20.0  # seconds between lines if the output is not a terminal


def main(label: str, log: Path, arguments: list[str]) -> int:
    """Runs pip and returns its exit code; ``log`` gets its whole output."""
    start = last = time.monotonic()
    lines: list[str] = []
    seen = 0
    terminal = sys.stdout.isatty()
    print(f"{label} ...", flush=True)
    options = ["--disable-pip-version-check", "--progress-bar", "off"]
    command = [sys.executable, "-m", "pip", "install", *options, *arguments]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip,
        log.open("w", encoding="utf-8") as out,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            out.write(line)
            lines = [*lines[-TAIL:], line]
            if not line.startswith(("Collecting ", "Installing collected")):
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
    if pip.returncode:
        print(f"{label}: pip failed (exit code {pip.returncode}); its last lines (all output is in {log}):")
        print("".join(f"  | {line}" for line in lines[-TAIL:]), end="", flush=True)
    else:
        print(f"  done in {time.monotonic() - start:.0f} s", flush=True)
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
