"""Semantic functions: prompts as functions, their outputs as futures; no framework and no asyncio.

A small team of agents: one plans, several write a part each, one reviews the whole. The engine is emulated, so the
script needs no model: it answers by `answer` below, and takes the time that `PROFILE` says.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

import fineflow
from fineflow.engines import EmulatedLLM, LLMProfile

PARTS = ("board", "snake", "score")
PROFILE = LLMProfile(iteration=0.005, prefill_token=0.0005, decode_sequence=0.0002)  # seconds: about a 0.5B model


def answer(prompt: str) -> str:
    """Answers in place of a model."""
    if prompt.startswith("You are an architect"):
        return "Here is the plan:\n" + json.dumps({"files": [{"name": name} for name in PARTS]})
    if prompt.startswith("You write"):
        found = re.search(r"Write (\w+)\.py", prompt)
        return "\n".join(f"{found[1] if found else 'x'}_line_{i} = {i}" for i in range(24))
    return f"{prompt.count('_line_')} lines, well done"


@fineflow.semantic_function(max_tokens=100)
def plan(task: str) -> None:
    """You are an architect. List the files of {{input:task}} as JSON: {{output:files}}"""


@fineflow.semantic_function(max_tokens=200)
def write(task: str, files: Any, name: Any) -> None:
    """You write one file of {{input:task}}. All files: {{input:files}}
    Write {{input:name}}.py: {{output:code}}
    """


@fineflow.semantic_function(max_tokens=50)
def review(code: Any) -> None:
    """You review code.
    {{input:code}}
    Your verdict: {{output:verdict}}
    """


def program(task: str) -> Any:
    """Returns the variable of the verdict; nothing has run yet."""
    files = plan(task)
    names = files.json("files[*].name")  # goes from request to request inside the runtime
    parts = [write(task, names, files.json(f"files[{i}].name")) for i in range(len(PARTS))]
    return review(parts)


def one_at_a_time(task: str) -> str:
    """Does the same with a get() after each call, as code does that asks a service."""
    files = json.loads(plan(task).get().partition("\n")[2])["files"]
    names = [each["name"] for each in files]
    parts = [write(task, names, name).get() for name in names]
    verdict: str = review(parts).get()
    return verdict


def main() -> None:
    fineflow.semantic_engine(EmulatedLLM(answer, PROFILE))
    task = "a snake game"
    print(fineflow.explain(program(task)), end="\n\n")

    start, slow, middle = time.perf_counter(), one_at_a_time(task), time.perf_counter()
    with fineflow.record() as recorder:
        verdict = program(task).get(objective="latency", timeout=60)
    end = time.perf_counter()
    print(f"one at a time {middle - start:.2f} s, as a program {end - middle:.2f} s, equal: {slow == verdict}")
    print(f"verdict: {verdict}; {recorder!r}")

    try:
        plan(task).json("folders").get()
    except fineflow.SemanticError as error:
        print(f"error: {error}")


if __name__ == "__main__":
    main()
