"""A transformers whose continuous batching has changed gives one clear error, and no fault inside a request."""

from __future__ import annotations

from typing import Any

import pytest

transformers = pytest.importorskip("transformers")
pytest.importorskip("torch")

from transformers.generation.continuous_batching import continuous_api, scheduler  # noqa: E402

import fineflow.engines  # noqa: E402
from fineflow.backends.transformers import capabilities  # noqa: E402


def test_the_installed_release_has_everything() -> None:
    assert capabilities.missing() == []
    capabilities.check()


def test_lacking_parts_are_named_with_the_releases_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    class Renamed:
        def __init__(self, model: Any, generation_config: Any) -> None: ...

    monkeypatch.delattr(scheduler.Scheduler, "_process_candidates")
    monkeypatch.delattr(scheduler, "SCHEDULER_MAPPING")
    monkeypatch.setattr(continuous_api.ContinuousBatchingManager, "__init__", Renamed.__init__)

    assert set(capabilities.missing()) == {
        "FIFOScheduler._process_candidates",
        "transformers.generation.continuous_batching.scheduler.SCHEDULER_MAPPING",
        "ContinuousBatchingManager.__init__(continuous_batching_config=)",
    }
    with pytest.raises(ImportError, match=r"has no .*FIFOScheduler\._process_candidates.*tested with") as raised:
        capabilities.check()
    assert f"transformers {transformers.__version__} " in str(raised.value)
    assert f"{capabilities.TESTED[0]} to {capabilities.TESTED[-1]}" in str(raised.value)


def test_a_module_that_has_gone_is_named() -> None:
    gone = "transformers.generation.continuous_batching.gone"
    assert capabilities.missing({(gone, "Manager"): {}}) == [f"{gone}.Manager"]


def test_a_library_that_transformers_lacks_is_no_missing_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ModuleNotFoundError("No module named 'regex'", name="regex")

    monkeypatch.setattr(capabilities, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="regex"):
        capabilities.missing()


def test_the_public_name_shows_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("fineflow.backends.transformers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(fineflow.engines), "TransformersEngine", raising=False)
    monkeypatch.delattr(continuous_api.OutputRouter, "fail_and_deliver")
    with pytest.raises(ImportError, match=r"fineflow\.engines\.TransformersEngine .*OutputRouter\.fail_and_deliver"):
        _ = fineflow.engines.TransformersEngine
