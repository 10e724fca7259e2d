"""Models with random weights in the shapes of well-known ones, for profiles of machines without a model hub.

The cost of a pass depends on shapes and number formats, not on the weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fineflow.demo import data

LLAMAS: Mapping[str, Mapping[str, Any]] = {
    "8b": {  # Llama 3.1 8B
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    },
    "tiny": {  # to try the script itself
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 4096,
        "max_position_embeddings": 4096,
    },
}
ENCODERS: Mapping[str, Mapping[str, Any]] = {
    "8b": {  # BERT large, as bge-large and bge-reranker-large
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
    },
    "tiny": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
}


def random_llama(folder: Path, size: str, *, device: str, dtype: str) -> tuple[str, int]:
    """Writes a Llama and the tokenizer of the demo's model to ``folder``; returns the path and number of parameters.

    size: a key of ``LLAMAS``. The weights are drawn on ``device``: for 8B seconds on a GPU, minutes on a CPU.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    with torch.device(device):
        model = LlamaForCausalLM._from_config(LlamaConfig(**LLAMAS[size], eos_token_id=1), dtype=getattr(torch, dtype))
    model.save_pretrained(folder)
    _tokenizer(folder)
    return str(folder), sum(weights.numel() for weights in model.parameters())


def random_encoder(folder: Path, size: str, *, scores: bool, dtype: str) -> tuple[str, int]:
    """Does the same for a BERT that embeds texts, or with ``scores`` for one that scores pairs of texts."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

    torch.manual_seed(1)
    config = BertConfig(**ENCODERS[size], vocab_size=4096, max_position_embeddings=512, num_labels=1)
    model: Any = (BertForSequenceClassification if scores else BertModel)(config).to(getattr(torch, dtype))
    model.save_pretrained(folder)
    _tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    return str(folder), sum(weights.numel() for weights in model.parameters())


def _tokenizer(folder: Path) -> None:
    for each in Path(str(data.default_model())).iterdir():
        if each.name.startswith(("tokenizer", "special", "chat_template", "vocab", "merges")):
            shutil.copy(each, folder)
