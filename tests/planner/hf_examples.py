"""Two full configs that the tests of hf_config vary, and what a refusal says."""

from __future__ import annotations

from typing import Any

import pytest

from seqplan.planner.errors import SeqplanError
from seqplan.planner.hf_config import read_model

# Llama-2-7B (arXiv 2307.09288, table 1), as its config.json gives it.
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}


def refusal(source: Any) -> str:
    """The one line that says why a config is not read."""
    with pytest.raises(SeqplanError) as caught:
        read_model(source)
    text = str(caught.value)
    assert "\n" not in text
    return text
