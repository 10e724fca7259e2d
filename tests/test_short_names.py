"""``fineflow.langchain`` and ``fineflow.engines``: short names that are imported when they are used."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType

import pytest

import fineflow.engines
import fineflow.langchain
import fineflow.llamaindex
from fineflow.errors import installing

MODULES = (fineflow.engines, fineflow.langchain, fineflow.llamaindex)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_name_is_what_it_says(module: ModuleType) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("llama_index.core")
    for name in module.__all__:
        if name == "VLLMEngine" and find_spec("vllm") is None:  # it has an environment of its own
            continue
        found = getattr(module, name)
        assert found.__name__ == name
        assert vars(module)[name] is found  # resolved once
    assert set(module.__all__) <= set(dir(module))


def test_they_are_the_classes_of_the_adapters_and_backends() -> None:
    from fineflow.adapters.langchain.components.chat import ChatEngine
    from fineflow.backends.similarity import EmbeddingSimilarityEngine

    assert fineflow.langchain.ChatEngine is ChatEngine
    assert fineflow.engines.EmbeddingSimilarityEngine is EmbeddingSimilarityEngine


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_a_name_that_is_not_there_is_told(module: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"'{module.__name__}' has no attribute 'Nothing'; it offers [ACDE]"):
        _ = module.Nothing
    assert not hasattr(module, "Nothing")


def test_names_that_need_no_library_are_told_too() -> None:
    with pytest.raises(AttributeError, match=r"it offers .*\boptimize\b"):
        _ = fineflow.optimise


@pytest.mark.parametrize(
    ("module", "name", "library", "extra"),
    [
        (fineflow.engines, "TransformersEngine", "torch", "transformers"),
        (fineflow.engines, "TransformersEngine", "transformers", "transformers"),
        (fineflow.engines, "VLLMEngine", "vllm", "vllm"),
        (fineflow.engines, "SentenceTransformerEngine", "sentence_transformers", "sentence-transformers"),
        (fineflow.engines, "CrossEncoderEngine", "sentence_transformers", "sentence-transformers"),
        (fineflow.langchain, "ChatEngine", "langchain_core", "langchain"),
        (fineflow.langchain, "EngineReranker", "langchain_core", "langchain"),
        (fineflow.llamaindex, "EngineLLM", "llama_index", "llama-index"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, library: str, extra: str
) -> None:
    monkeypatch.delitem(vars(module), name, raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError) as caught:
        getattr(module, name)
    assert str(caught.value) == (
        f"{module.__name__}.{name} cannot be imported: {library} is not installed; "
        f"its dependencies come with: {installing(extra)}"
    )
    assert caught.value.name == library


def test_a_library_that_does_not_fit_is_told_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.delitem(vars(fineflow.engines), "TransformersEngine", raising=False)
    monkeypatch.setitem(sys.modules, "fineflow.backends.transformers", None)  # any failure to import it
    with pytest.raises(ImportError, match=r"import of fineflow.backends.transformers halted.*\[transformers\]'"):
        _ = fineflow.engines.TransformersEngine
