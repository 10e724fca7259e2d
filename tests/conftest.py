"""What holds for all tests: every graph that is planned is verified after every pass, and plans are reproducible."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import fineflow.api
from fineflow.cost_model.costs import costs
from fineflow.ir import Graph
from fineflow.passes import PASSES, Pass, rewrite


@pytest.fixture(autouse=True, scope="session")
def verified_graphs() -> Iterator[None]:
    def verified(graph: Graph, passes: Sequence[Pass] = PASSES, *, check: bool = False, **options: Any) -> Graph:
        return rewrite(graph, passes, check=True, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fineflow.api, "rewrite", verified)
        yield


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt in the main thread, also where the suite was started with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def nothing_learned() -> None:
    """What earlier tests took does not decide how later ones are planned."""
    costs.forget()


@pytest.fixture(scope="session")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Saves a tiny cross-encoder with random weights, as a trained one is saved, for so many labels; its folder."""

    def save(labels: int = 1) -> str:
        import torch
        from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

        from fineflow.backends.sentence_transformers import bundled_minilm

        folder: Path = tmp_path_factory.mktemp("cross-encoder")
        tokenizer = AutoTokenizer.from_pretrained(bundled_minilm())
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        config = BertConfig(vocab_size=len(tokenizer), num_labels=labels, initializer_range=1.0, **sizes)
        BertForSequenceClassification(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return save


@pytest.fixture(scope="module")
def one_core() -> Iterator[None]:
    """Threads that wait for each other on a busy machine take many times what small models take."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
