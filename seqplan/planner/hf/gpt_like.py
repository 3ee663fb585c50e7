"""Families that descend from GPT-2: LayerNorm with biases, a plain MLP, any kind of positions.

Each reader says what its family does, as read from its modelling code in transformers (5.24); the tests
compare with transformers' modules.
"""

from __future__ import annotations

from typing import Any

from seqplan.planner.hf.llama_like import biases, norms
from seqplan.planner.hf.parts import PLAIN, rope, sizes
from seqplan.planner.hf.reader import ConfigReader, Fields, show


def four_times(c: ConfigReader, hidden: int) -> int:
    """The MLP's width, 4 x hidden where the file says nothing."""
    return c.size("intermediate_size", 4 * hidden, f"4 x {c.key('hidden_size')}")


def learned(c: ConfigReader, offset: int = 0) -> Fields:
    """A table of learned positions; OPT and BioGPT keep two rows that no token uses."""
    return {"position": "learned", "position_rows": c.size("max_position_embeddings") + offset}


def base(c: ConfigReader, eps: str = "layer_norm_epsilon", **over: Any) -> Fields:
    """GPT-2 without positions: every matrix biased, every norm before its block."""
    fields = sizes(c, free_head_dim=False, kv_heads=False)
    return {
        **fields,
        "ffn_hidden_size": over["ffn_hidden_size"]
        if "ffn_hidden_size" in over
        else four_times(c, fields["hidden_size"]),
        **norms(c, "layernorm", eps, bias=True),
        "activation": over["activation"] if "activation" in over else c.choice("activation_function", PLAIN),
        **biases(True, True, True),
        **over,
    }


def gpt2(c: ConfigReader) -> Fields:
    fields = base(c, **learned(c))
    if not c.flag("scale_attn_weights", otherwise=True):
        fields["attention_scale"] = 1.0
    if c.flag("scale_attn_by_inverse_layer_idx"):
        fields["other_maths"] = ["scale_attn_by_inverse_layer_idx=true"]
    return fields


def gpt_bigcode(c: ConfigReader) -> Fields:
    """GPT-2 with one kv head (multi_query)."""
    c.ignore("num_key_value_heads")
    return {**gpt2(c), **({"num_kv_heads": 1} if c.flag("multi_query") else {})}


def openai_gpt(c: ConfigReader) -> Fields:
    """The first GPT: norms after the sum, no final norm; its "gelu" is the tanh form."""
    activation = c.choice("afn", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"})
    return base(
        c,
        **learned(c),
        ffn_hidden_size=4 * c.size("hidden_size"),
        activation=activation,
        norm_position="post",
        final_norm=False,
    )


def gpt_neo(c: ConfigReader) -> Fields:
    """Scores are not scaled; every second layer sees window_size keys; q, k and v have no bias."""
    fields = base(c, **learned(c), qkv_bias=False, attention_scale=1.0)
    layers = fields["num_layers"]
    kinds: list[Any] = ["global", "local"] * (layers // 2 + 1)
    types = c.raw("attention_types")
    c.ignore("attention_layers")
    if types is not None:
        try:
            count = sum(len(pattern) * times for pattern, times in types)
            kinds = [kind for pattern, times in types for kind in pattern * times] if count == layers else []
        except (TypeError, ValueError):
            c.error(f"attention_types is {show(types)}, not a list of [[kinds], times]")
        else:
            strange = [kind for kind in kinds if kind not in ("global", "local")]
            if strange:
                c.error(f"attention_types has {show(strange[0])}; known are global, local")
            if count != layers and c.ok("num_hidden_layers"):
                c.error(f"attention_types is for {count} layers, {c.key('num_hidden_layers')} is {layers}")
    local = tuple(i for i, kind in enumerate(kinds[:layers]) if kind == "local")
    if local:
        fields |= {"sliding_window": c.size("window_size"), "window_layers": local}
    return fields


def gptj(c: ConfigReader) -> Fields:
    """Attention and MLP side by side after one norm; no attention biases; a biased head."""
    fields = base(c, **biases(False, False, True), parallel_block=True, shared_norm=True, head_bias=True)
    rotary = c.size("rotary_dim", fields["head_dim"])
    if rotary > fields["head_dim"]:
        c.error(f"rotary_dim {rotary} is more than the head's {fields['head_dim']}")
    fields |= rope(c, theta=10000.0)
    return {**fields, "rope_fraction": min(rotary / fields["head_dim"], 1.0), "rope_interleaved": True}


def gpt_neox(c: ConfigReader) -> Fields:
    """Attention and MLP side by side, each after its own norm."""
    attention = c.flag("attention_bias", otherwise=True)
    return {
        **base(
            c,
            "layer_norm_eps",
            ffn_hidden_size=c.size("intermediate_size"),
            activation=c.choice("hidden_act", PLAIN),
        ),
        **biases(attention, attention, True),
        **rope(c),
        "parallel_block": c.flag("use_parallel_residual", otherwise=True),
    }


def gpt_neox_japanese(c: ConfigReader) -> Fields:
    """No biases but one: that of the last layer's attention output."""
    hidden = c.size("hidden_size")
    last = {
        "name": "last_attention_output.bias",
        "place": "final",
        "shape": (hidden,),
        "tp_split": "replicated",
    }
    return {
        **base(
            c,
            "layer_norm_eps",
            ffn_hidden_size=hidden * c.size("intermediate_multiple_size", 4),
            activation=c.choice("hidden_act", PLAIN),
        ),
        **biases(False, False, False),
        **rope(c),
        "extra_tensors": [last],
    }


def opt(c: ConfigReader) -> Fields:
    """Embeddings may be narrower than the layers; the 350M has its norms after the sum."""
    first = c.flag("do_layer_norm_before", otherwise=True)
    affine = c.flag("layer_norm_elementwise_affine", otherwise=True)
    bias = c.flag("enable_bias", otherwise=True)
    fields = base(
        c.over({**c.data, "layer_norm_epsilon": 1e-5}),
        **learned(c, 2),
        ffn_hidden_size=c.size("intermediate_size"),
    )
    width = c.size("word_embed_proj_dim", fields["hidden_size"], c.key("hidden_size"))
    if width != fields["hidden_size"]:
        fields |= {
            "embedding_size": width,
            "position_size": fields["hidden_size"],
            "embedding_projection": "linear",
            "output_projection": True,
        }
    if not affine:
        fields |= {"norm": "layernorm_without_weights", "norm_bias": False}
    return {
        **fields,
        **biases(bias, bias, bias),
        "norm_position": "pre" if first else "post",
        "final_norm": first and not c.flag("_remove_final_layer_norm"),
    }


def bloom(c: ConfigReader) -> Fields:
    """ALiBi, a norm on the embeddings, the tanh form of GELU."""
    c.ignore("n_inner", "seq_length")
    common = c.over({**c.data, "max_position_embeddings": 1})
    return {
        **base(common, ffn_hidden_size=4 * c.size("hidden_size"), activation="gelu_tanh"),
        "max_position_embeddings": None,
        "position": "alibi",
        "embedding_norm": True,
        "norm_on_residual": c.flag("apply_residual_connection_post_layernorm"),
    }


def falcon(c: ConfigReader) -> Fields:
    """Three generations: multi-query 7B, grouped 40B and 180B with two norms, and the ALiBi ones."""
    new, parallel = c.flag("new_decoder_architecture"), c.flag("parallel_attn", otherwise=True)
    multi_query, alibi, bias = c.flag("multi_query", otherwise=True), c.flag("alibi"), c.flag("bias")
    fields = base(c, activation=c.choice("activation", PLAIN))
    heads = fields["num_attention_heads"]
    kv = c.size("num_kv_heads", heads, c.key("num_attention_heads")) if new or not multi_query else 1
    c.ignore("num_kv_heads", "n_head_kv", "multi_query")
    if heads % kv and c.ok("num_attention_heads"):
        c.error(f"{c.key('num_attention_heads')} {heads} is not a multiple of {c.key('num_kv_heads')} {kv}")
    two_norms = new and c.size("num_ln_in_parallel_attn", 2) == 2
    return {
        **fields,
        **biases(bias, bias, bias),
        **({"position": "alibi", "max_position_embeddings": None} if alibi else rope(c)),
        "num_kv_heads": kv,
        "parallel_block": new or parallel,
        "shared_norm": (new or parallel) and not two_norms,
        "norm_on_residual": c.flag("apply_residual_connection_post_layernorm"),
    }


def mpt(c: ConfigReader) -> Fields:
    """ALiBi and no bias anywhere, not even in the norms."""
    attention = c.over(c.mapping("attn_config") or {})
    for key, plain in (
        ("attn_type", "multihead_attention"),
        ("alibi", True),
        ("qk_ln", False),
        ("prefix_lm", False),
    ):
        if attention.data.get(key, plain) != plain:
            c.error(f"attn_config.{key} {show(attention.data[key])} is not covered, only {show(plain)}")
    if not c.flag("no_bias", otherwise=True):
        c.error("no_bias false is not covered")
    c.ignore("learned_pos_emb")
    width = 4 * c.size("hidden_size")
    ratio = c.size("expansion_ratio", 4)
    if ratio != 4:  # the first release's code follows the key, transformers' MptMLP has 4 fixed
        c.error(f"expansion_ratio {ratio} is not covered, only 4 (transformers has 4 whatever the file says)")
    mlp = c.mapping("ffn_config") or {}
    covered: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
        ("ffn_config.ffn_type", mlp.get("ffn_type"), ("mptmlp",)),
        ("ffn_config.ffn_hidden_size", mlp.get("ffn_hidden_size"), (width,)),
        ("norm_type", c.raw("norm_type"), ("low_precision_layernorm", "layernorm")),
    )
    for name, given, known in covered:
        if given is not None and given not in known:
            c.error(f"{name} {show(given)} is not covered, only {' and '.join(map(show, known))}")
    return {
        **base(c, ffn_hidden_size=width, activation="gelu"),
        **biases(False, False, False),
        "norm_bias": False,
        "position": "alibi",
        "attention_scale": attention.optional_number("softmax_scale"),
        "qkv_clip": attention.optional_number("clip_qkv"),
    }


def xglm(c: ConfigReader) -> Fields:
    """Fixed sinusoidal positions; embeddings times sqrt(hidden)."""
    common = c.over({**c.data, "layer_norm_epsilon": 1e-5})
    return _scaled(c, base(common, ffn_hidden_size=c.size("intermediate_size"), position="sinusoidal"))


def biogpt(c: ConfigReader) -> Fields:
    activation = c.choice("hidden_act", PLAIN)
    common = c.over({**c.data, "layer_norm_epsilon": 1e-5})
    return _scaled(
        c, base(common, **learned(c, 2), ffn_hidden_size=c.size("intermediate_size"), activation=activation)
    )


def _scaled(c: ConfigReader, fields: Fields) -> Fields:
    scale = fields["hidden_size"] ** 0.5 if c.flag("scale_embedding", otherwise=True) else 1.0
    return {**fields, "embedding_scale": scale}
