"""Llama with random weights for benchmarks of vLLM: large enough to take measurable time, small enough for a CPU."""

from __future__ import annotations

import shutil
from pathlib import Path

from fineflow.demo import data

CONTEXT = 8192  # tokens


def random_llama(folder: Path, *, layers: int = 8, hidden: int = 512) -> tuple[str, int]:
    """Writes the model and the demo's tokenizer to ``folder``; returns the path and the number of parameters."""
    import torch
    from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

    bundled = Path(str(data.default_model()))
    small = AutoConfig.from_pretrained(bundled)
    torch.manual_seed(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=small.vocab_size,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 64,
            num_key_value_heads=hidden // 128,
            max_position_embeddings=CONTEXT,
            eos_token_id=small.eos_token_id,
            bos_token_id=small.bos_token_id,
            tie_word_embeddings=True,
        )
    )
    model.save_pretrained(folder)
    for each in bundled.iterdir():
        if each.name.startswith(("tokenizer", "special", "chat_template", "vocab", "merges")):
            shutil.copy(each, folder)
    return str(folder), sum(weights.numel() for weights in model.parameters())
