"""When calls arrive, and how large each is: at random, or as a trace says.

Two formats of traces: that of Azure's LLM inference traces (CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens``; Patel et
al., Splitwise, 2024) and that of Mooncake (one JSON object a line: ``timestamp`` in milliseconds, ``input_length``,
``output_length``, ``hash_ids`` of blocks of 512 tokens; Qin et al., 2024).
"""

from __future__ import annotations

import csv
import itertools
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from fineflow.capacity.simulation import Arrival
from fineflow.capacity.workload import CallShape, Workload, WorkStep
from fineflow.errors import UsageError

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_HASHED = 512  # tokens of a block that has an id in Mooncake's traces
_LEAST_CV = 0.01


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace. at: seconds since the first one. cached: tokens of the prompt that rows before it had."""

    at: float
    prompt: int
    decoded: int
    cached: int = 0


def random_arrivals(
    work: Workload, rate: float, seconds: float, *, cv: float = 1.0, seed: int = 1
) -> Iterator[Arrival]:
    """Yields calls at ``rate`` a second. cv: standard deviation of the times between them, divided by their mean.

    These times follow a gamma distribution: with a cv of 1 the exponential one, so that arrivals are a Poisson process.
    """
    chosen, at, shape = random.Random(seed), 0.0, 1 / max(cv, _LEAST_CV) ** 2
    while (at := at + chosen.gammavariate(shape, 1 / (shape * rate))) < seconds:
        yield at, chosen.choice(work.shapes)


def traced_arrivals(work: Workload | None, rows: Sequence[TraceRow], engine: str, rate: float | None) -> list[Arrival]:
    """Returns the calls of a trace. rate: a second, to which its times are stretched; None: as they are.

    work None: each row is one request to ``engine``. Else it is a call of the app, in turns of each shape, with the
    tokens of its requests multiplied by those of the row relative to the mean of the trace.
    """
    span = rows[-1].at if rows[-1].at else 1.0
    stretch = 1.0 if rate is None else (len(rows) - 1 or 1) / (rate * span)
    if work is None:
        return [
            (row.at * stretch, CallShape((WorkStep("request", engine, row.prompt, row.cached, row.decoded),)))
            for row in rows
        ]
    prompts, answers = (fmean(each) or 1.0 for each in ([row.prompt for row in rows], [row.decoded for row in rows]))
    return [
        (row.at * stretch, _scaled(shape, row.prompt / prompts, row.decoded / answers))
        for row, shape in zip(rows, itertools.cycle(work.shapes), strict=False)
    ]


def _scaled(shape: CallShape, prompt: float, decoded: float) -> CallShape:
    return replace(shape, steps=tuple(each.scaled(prompt, decoded) for each in shape.steps))


def read_trace(path: Path, *, cache: bool = True) -> list[TraceRow]:
    """Reads a trace of either format. cache: the blocks that earlier rows had are cached, as if all rows had met on
    instances that never drop any; else none are.

    Raises UsageError that names the file and the line, if one is not as expected.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = enumerate(file, 1)
            first = next(((number, line) for number, line in lines if line.strip()), (1, ""))
            again = itertools.chain([first], lines)
            rows = list(_mooncake(path, again, cache) if first[1].lstrip().startswith("{") else _azure(path, again))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--trace {path}: {error}; expected a trace as CSV or JSONL") from error
    if not rows:
        raise UsageError(f"--trace {path}: it has no requests; expected at least one line of data")
    return [replace(row, at=row.at - rows[0].at) for row in rows]


def _azure(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[TraceRow]:
    (number, head), *rest = lines
    names = [name.strip() for name in next(csv.reader([head]), [])]
    if not set(_AZURE) <= set(names):
        raise _wrong(path, number, head, f"the columns {','.join(_AZURE)}, or JSON objects")
    places, last = [names.index(name) for name in _AZURE], None
    for number, line in rest:
        if not line.strip():
            continue
        cells = next(csv.reader([line]))
        try:
            at, prompt, decoded = (cells[place].strip() for place in places)
            time = datetime.fromisoformat(at[:26])  # microseconds: some traces have seven digits
            tokens = int(prompt), int(decoded)
            if min(tokens) < 0 or (last is not None and time < last):
                raise ValueError
        except (ValueError, IndexError, TypeError):
            wanted = "a time not before the last one, and two numbers of tokens"
            raise _wrong(path, number, line, wanted) from None
        last = time
        yield TraceRow(time.timestamp(), max(tokens[0], 1), tokens[1])


def _mooncake(path: Path, lines: Iterable[tuple[int, str]], cache: bool) -> Iterator[TraceRow]:
    seen, last = set[Any](), -float("inf")
    for number, line in lines:
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            at, prompt, decoded = (data[key] for key in ("timestamp", "input_length", "output_length"))
            ids = data.get("hash_ids", [])
            whole = all(type(tokens) is int and tokens >= 0 for tokens in (prompt, decoded))
            if not whole or type(at) not in (int, float) or at < last or type(ids) is not list:
                raise ValueError
            known = sum(1 for _ in itertools.takewhile(seen.__contains__, ids)) * _HASHED if cache else 0
            seen.update(ids)
        except (ValueError, KeyError, TypeError, AttributeError):
            wanted = "an object with timestamp (ms, not before the last one), input_length, output_length and hash_ids"
            raise _wrong(path, number, line, wanted) from None
        last = at
        yield TraceRow(at / 1000, max(prompt, 1), decoded, min(known, max(prompt - 1, 0)))


def _wrong(path: Path, number: int, line: str, wanted: str) -> UsageError:
    return UsageError(f"--trace {path}, line {number}: expected {wanted}; got {line.strip()[:80]!r}")
