"""Each test starts with counts of its own, and its calls are verified when it ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fineflow.adapters.core import verifying
from fineflow.runtime import reruns as module
from fineflow.runtime.reruns import Reruns


@pytest.fixture(autouse=True)
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reruns]:
    made = Reruns()
    monkeypatch.setattr(module, "_reruns", made)
    monkeypatch.setattr(verifying, "_said", set())
    yield made
    assert made.settled(10)
