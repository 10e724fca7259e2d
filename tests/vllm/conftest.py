"""One vLLM for the whole session, as it takes long to start; tests that end it have their own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path

import pytest

from fineflow.backends.vllm import VLLMEngine

SPEC = find_spec("vllm")
INSTALLED = SPEC is not None and SPEC.origin is not None  # this folder passes for a package of that name, too


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.vllm)
            if not INSTALLED:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed here; run: make test-vllm"))


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    with as_file(files("fineflow.demo") / "data" / "tinylm") as path:
        yield path


@pytest.fixture(scope="session", autouse=True)
def uncompiled() -> Iterator[None]:
    """A function that vLLM compiles when it is first asked for logprobs takes a minute here; not compiled, none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHDYNAMO_DISABLE", os.environ.get("TORCHDYNAMO_DISABLE", "1"))
        yield


@pytest.fixture(scope="session")
def engine(folder: Path) -> Iterator[VLLMEngine]:
    from helpers_vllm import SETTINGS

    engine = VLLMEngine(folder, name="tiny", **SETTINGS)
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.aclose())
