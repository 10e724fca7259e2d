"""Naive and advanced RAG on the same engines (Ayo, section 7.2): every second request is of the other application."""

from __future__ import annotations

from typing import Any

from benchmarks.apps import advanced_rag, naive_rag
from benchmarks.apps.app import App
from benchmarks.harness.limits import Path
from benchmarks.harness.world import World

PARTS = (naive_rag.APP, advanced_rag.APP)


def asked(number: int, seed: int) -> dict[str, Any]:
    place = number % len(PARTS)
    return {"place": place, **PARTS[place].asked(number, seed)}


def says(prompt: str) -> str:
    for part in PARTS[:-1]:
        try:
            return part.says(prompt)
        except ValueError:
            continue
    return PARTS[-1].says(prompt)


def limit(path: Path, x: dict[str, Any]) -> None:
    PARTS[x["place"]].limit(path, x)


def not_alone(world: World) -> Any:
    raise ValueError("a co-located application is built part by part")


APP = App(
    "colocated",
    "naive and advanced RAG on the same engines, half of the requests each",
    not_alone,
    not_alone,
    asked,
    says,
    limit,
    together=PARTS,
)
