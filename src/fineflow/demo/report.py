"""Output of the demo: text for readers, a record for programs."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import fineflow
from fineflow.demo.inputs import one_line
from fineflow.demo.measure import FINEFLOW, SIDES, STOCK, Measured, Outcome
from fineflow.installation import processor


def method(repeat: int) -> str:
    """Returns a description of the measurement."""
    taken = "of one run" if repeat == 1 else f"the median of {repeat} runs"
    text = (
        f"Each time is {taken} after an untimed one. Before every run of either side the language "
        "model's prefix cache is emptied; the order of the runs is reversed from one round to the next."
    )
    return textwrap.fill(text, 110)


def hardware() -> dict[str, Any]:
    """Returns processor, cores that this process may use, torch's threads, and the accelerator if torch sees one."""
    torch: Any = sys.modules.get("torch")  # by then imported by the engines, which alone depend on it
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": processor(),
        "cores": cores,
        "torch_threads": torch and torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch and torch.cuda.is_available() else None,
    }


def header(about: Mapping[str, Any]) -> str:
    """Returns the description of models, documents and hardware."""
    machine, documents = about["hardware"], about["documents"]
    accelerator = machine["accelerator"] or "no accelerator"
    rows = {
        **about["models"],
        "documents": f"{documents['folder']}: {documents['files']} files, {documents['passages']} passages, "
        f"indexed in {documents['index_seconds']:.1f} s",
        "hardware": f"{machine['cpu']}, {machine['cores']} cores, {machine['torch_threads']} torch threads, "
        f"{accelerator}",
    }
    lines = [f"A document assistant in stock {about['framework']}, as it is and after fineflow.optimize.", ""]
    return "\n".join([*lines, *(f"{name:11}{text}" for name, text in rows.items()), ""])


def sources(outcome: Outcome) -> list[str]:
    """Returns the source files of an answer's documents, each once, in order."""
    documents = (outcome.value or {}).get("documents", ())
    return list(dict.fromkeys(str(document.metadata.get("source", "?")) for document in documents))


_MORE = ("category", "related")  # optional keys of an answer


def verdict(ratio: float) -> str:
    """Returns the comparison of fineflow's time with stock's in words; within 3% there is no difference."""
    if ratio > 1.03:
        return f"{ratio:.2f}x as fast"
    return "no difference" if ratio >= 1 / 1.03 else f"slower: {1 / ratio:.2f}x the time"


def question(measured: Measured, heading: str, expected: str | None = None) -> str:
    """Returns the report of one question: the answer with its sources, the times, and the comparison."""
    lines = [f"{heading} {measured.question}"]
    reference = measured.reference
    if reference.error is not None:
        error = f"{type(reference.error).__name__}: {one_line(reference.error)}"
        lines.append(f"  stock raises {error}")
    else:
        value = reference.value or {}
        known = "" if expected is None or value.get("answer") == expected else f"   (the documents say: {expected})"
        lines += [
            f"  answer    {value.get('answer')}{known}",
            f"  sources   {', '.join(sources(reference)) or 'none'}",
            *(f"  {key:9} {json.dumps(value[key], ensure_ascii=False)}" for key in _MORE if key in value),
        ]
    lines += ["", f"  {'':9} {'stock':>10} {'fineflow':>10}"]
    for entry in measured.entries:
        lines.append(_times(entry, *(measured.seconds(side, entry) for side in SIDES), comparable=measured.equal))
    return "\n".join([*lines, f"  {_equality(measured)}"])


def _equality(measured: Measured) -> str:
    count = sum(len(runs) + 1 for runs in measured.runs.values())
    if measured.equal:
        what = "everything returned" if measured.reference.error is None else "the exception raised"
        return f"equal: {what} is the same in all {count} runs"
    lines = [f"DIFFERENT from the first stock {measured.entries[0]}:"]
    for kind, outcome in measured.deviant.items():
        lines += [f"    {' '.join(kind)}: {_told(key, outcome)}" for key in measured.differences[kind]]
    return "\n".join(lines)


def _told(key: str, outcome: Outcome) -> str:
    """Returns the value of a key that differs, cut to a line."""
    if key == "exception":
        error = outcome.error
        return "raised nothing" if error is None else f"raised {type(error).__name__}: {one_line(error)}"
    found = repr((outcome.value or {}).get(key, "missing"))
    return f"{key}: {found if len(found) <= 200 else found[:199] + '…'}"


def summary(measured: Sequence[Measured]) -> str:
    """Returns the report of all questions together."""
    lines = [f"All {len(measured)} questions"]
    for entry in measured[0].entries:
        stock, ours = (sum(item.seconds(side, entry) for item in measured) for side in SIDES)
        lines.append(_times(entry, stock, ours, comparable=all(item.equal for item in measured)))
    different = sum(not item.equal for item in measured)
    lines.append(f"  DIFFERENT: {different} of {len(measured)}" if different else "  equal: all of them")
    return "\n".join([*lines, ""])


def _times(entry: str, stock: float, ours: float, *, comparable: bool) -> str:
    words = verdict(stock / ours) if comparable else "not comparable, the results differ"
    return f"  {entry:9} {stock * 1000:>7,.0f} ms {ours * 1000:>7,.0f} ms   {words}"


def question_record(measured: Measured, expected: str | None = None) -> dict[str, Any]:
    """Returns the report of one question as a record. Seconds; ``speedup``: stock's time divided by fineflow's."""
    reference = measured.reference
    value = reference.value or {}
    error = reference.error
    return {
        "question": measured.question,
        "answer": value.get("answer"),
        "expected": expected,
        "sources": sources(reference),
        **{key: value.get(key) for key in _MORE},
        "error": None if error is None else f"{type(error).__name__}: {one_line(error)}",
        "seconds": {side: {entry: measured.seconds(side, entry) for entry in measured.entries} for side in SIDES},
        "runs": {
            side: {entry: [run.seconds for run in measured.runs[side, entry]] for entry in measured.entries}
            for side in SIDES
        },
        "speedup": {entry: measured.ratio(entry) for entry in measured.entries},
        "equal": measured.equal,
        "differences": {
            side: {entry: measured.differences[side, entry] for entry in measured.entries} for side in (STOCK, FINEFLOW)
        },
    }


def record(
    measured: Sequence[Measured],
    expected: Mapping[str, str],
    *,
    repeat: int,
    plan: str,
    **about: Any,
) -> dict[str, Any]:
    """Returns the whole result as a record; ``about`` describes models, documents and the machine."""
    return {
        "fineflow": fineflow.__version__,
        **about,
        "method": method(repeat).replace("\n", " "),
        "questions": [question_record(item, expected.get(item.question)) for item in measured],
        "equal": all(item.equal for item in measured),
        "plan": plan,
    }
