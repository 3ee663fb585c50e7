"""Encoders: BERT and its relatives. Norms after the sum, every matrix biased, every token sees all.

Each reader says what its family does, as read from its modelling code in transformers (5.24); the tests
compare with transformers' modules. Heads (masked-token, discriminator, classifier) are in heads.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqplan.planner.hf.llama_like import biases, norms
from seqplan.planner.hf.parts import GATED, PLAIN, rope, sizes, windows
from seqplan.planner.hf.reader import ConfigReader, Fields, show


def base(
    c: ConfigReader, activation: str = "hidden_act", table: Mapping[str, str] = PLAIN, **over: Any
) -> Fields:
    """BERT: learned positions, token types, a norm on the embeddings, norms after the sum."""
    for key in ("is_decoder", "add_cross_attention"):
        if c.flag(key):
            c.error(f"{key} true makes this encoder a decoder, which is not covered")
    kind = c.raw("position_embedding_type")
    if kind not in (None, "absolute"):
        c.error(f"position_embedding_type {show(kind)} is not covered, only 'absolute'")
    return {
        "architecture": "encoder",
        **sizes(c, free_head_dim=False, kv_heads=False),
        "ffn_hidden_size": c.size("intermediate_size"),
        **norms(c, "layernorm", "layer_norm_eps", bias=True, position="post"),
        "position": "learned",
        "position_rows": c.size("max_position_embeddings"),
        "activation": c.choice(activation, table),
        **biases(True, True, True),
        "embedding_norm": True,
        "final_norm": False,
        **over,
    }


def bert(c: ConfigReader) -> Fields:
    return base(c, token_types=c.optional_size("type_vocab_size", lowest=0) or 0)


def roberta(c: ConfigReader) -> Fields:
    """Positions count from pad_token_id + 1, so that many rows of the table serve no token."""
    fields = bert(c)
    pad = c.optional_size("pad_token_id", lowest=0)
    unused = (1 if pad is None else pad) + 1
    rows = fields["position_rows"]
    if rows <= unused:
        c.error(
            f"{c.key('max_position_embeddings')} {rows} leaves no position after pad_token_id {unused - 1}"
        )
    return {**fields, "max_position_embeddings": max(rows - unused, 1)}


def roberta_prenorm(c: ConfigReader) -> Fields:
    return {**roberta(c), "norm_position": "pre", "final_norm": True}


def roberta_xl(c: ConfigReader) -> Fields:
    return {**roberta_prenorm(c), "embedding_norm": False}


def megatron_bert(c: ConfigReader) -> Fields:
    return {**bert(c), "norm_position": "pre", "final_norm": True, "embedding_norm": False}


def ernie(c: ConfigReader) -> Fields:
    """BERT, with a table of task types where use_task_id is set."""
    fields = bert(c)
    if c.flag("use_task_id"):
        shape = (c.size("task_type_vocab_size"), fields["hidden_size"])
        fields["extra_tensors"] = [_table("embedding.task_types.weight", shape)]
    return fields


def distilbert(c: ConfigReader) -> Fields:
    """Every second layer of BERT without token types; `sinusoidal_pos_embds` is how positions start."""
    c.ignore("sinusoidal_pos_embds")
    return base(c.over({**c.data, "layer_norm_eps": 1e-12}), "activation")


def _narrow(c: ConfigReader, fields: Fields) -> Fields:
    """Embeddings narrower than the layers, with a biased matrix between."""
    width = c.size("embedding_size")
    if width == fields["hidden_size"]:
        return {}
    return {"embedding_size": width, "embedding_projection": "linear_with_bias"}


def electra(c: ConfigReader) -> Fields:
    fields = bert(c)
    return {**fields, **_narrow(c, fields)}


def albert(c: ConfigReader) -> Fields:
    """All layers share one set of weights; the embedding is always projected, even where no wider."""
    for key in ("num_hidden_groups", "inner_group_num"):
        if c.size(key, 1) != 1:
            c.error(f"{key} {c.size(key)} is not covered, only 1 (all layers share one set of weights)")
    fields = bert(c)
    width = c.size("embedding_size")
    return {
        **fields,
        "embedding_size": width,
        "embedding_projection": "linear_with_bias",
        "shared_layers": True,
    }


def mpnet(c: ConfigReader) -> Fields:
    """BERT with relative positions too: one table of buckets for each head, used by all layers."""
    fields = {**roberta(c), "token_types": 0}
    shape = (c.size("relative_attention_num_buckets", 32), fields["num_attention_heads"])
    extra = [_table("relative_attention_bias.weight", shape)]
    return {**fields, "position": "relative", "extra_tensors": extra}


def _table(name: str, shape: tuple[int, ...], place: str = "embedding") -> dict[str, Any]:
    return {"name": name, "place": place, "shape": shape, "tp_split": "replicated"}


def _deberta(c: ConfigReader) -> tuple[Fields, list[str], list[dict[str, Any]]]:
    """What both DeBERTas share: the fields, the kinds of relative scores, the relative table."""
    fields = bert(c)
    hidden = fields["hidden_size"]
    if c.size("embedding_size", hidden) != hidden:
        c.error(f"embedding_size {c.size('embedding_size')} other than hidden_size {hidden} is not covered")
    if not c.flag("position_biased_input", otherwise=True):
        fields["position_rows"] = 0
    fields["position"] = "relative" if c.flag("relative_attention") else "learned"
    if not fields["position_rows"] and fields["position"] == "learned":
        fields["position"] = "none"
    kinds = c.raw("pos_att_type")
    if not isinstance(kinds, str):
        kinds = "|".join(c.words("pos_att_type") or [])
    c.ignore("legacy", "pooler_dropout", "pooler_hidden_act")
    reach = c.optional_size("max_relative_positions", lowest=-1) or -1
    rows = c.optional_size("position_buckets", lowest=-1) or -1
    rows = rows if rows > 0 else reach if reach > 0 else fields["max_position_embeddings"]
    table = (
        [_table("relative_positions.weight", (2 * rows, hidden))] if fields["position"] == "relative" else []
    )
    return fields, kinds.split("|"), table


def deberta_v2(c: ConfigReader) -> Fields:
    fields, kinds, extra = _deberta(c)
    hidden = fields["hidden_size"]
    if extra and not c.flag("share_att_key"):
        for kind, part in (("c2p", "key"), ("p2c", "query")):
            if kind in kinds:
                extra.append(_table(f"attention.position_{part}.weight", (hidden, hidden), "layer"))
                extra.append(_table(f"attention.position_{part}.bias", (hidden,), "layer"))
    if "layer_norm" in str(c.raw("norm_rel_ebd") or "none").lower().split("|"):
        extra += [_table(f"relative_positions.norm.{kind}", (hidden,)) for kind in ("weight", "bias")]
    kernel = c.optional_size("conv_kernel_size", lowest=0) or 0
    if kernel:
        groups = c.size("conv_groups", 1)
        extra.append(_table("convolution.weight", (hidden, hidden // groups, kernel)))
        extra += [_table(f"convolution.{name}", (hidden,)) for name in ("bias", "norm.weight", "norm.bias")]
    c.ignore("conv_act")
    return {**fields, "extra_tensors": extra}


def deberta(c: ConfigReader) -> Fields:
    """The first DeBERTa: only q and v are biased, relative positions have their own matrices."""
    fields, kinds, extra = _deberta(c)
    hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
    extra += [_table(f"attention.{part}.bias", (hidden,), "layer") for part in ("query", "value")]
    if fields["position"] == "relative":
        if "c2p" in kinds:
            extra.append(_table("attention.position_key.weight", (hidden, hidden), "layer"))
        if "p2c" in kinds:
            extra.append(_table("attention.position_query.weight", (hidden, hidden), "layer"))
            extra.append(_table("attention.position_query.bias", (hidden,), "layer"))
    if c.flag("talking_head"):
        extra += [_table(f"attention.talking_{i}.weight", (heads, heads), "layer") for i in (1, 2)]
    return {**fields, "qkv_bias": False, "extra_tensors": extra}


def nomic_bert(c: ConfigReader) -> Fields:
    """A gated MLP and rotary positions, no biases but in the norms."""
    for key in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "use_rms_norm", "parallel_block"):
        if c.flag(key):
            c.error(f"{key} true is not covered")
    return {
        **base(c, table=GATED, token_types=c.optional_size("type_vocab_size", lowest=0) or 0),
        **biases(False, False, False),
        **rope(c),
        "position_rows": 0,
    }


def modernbert(c: ConfigReader) -> Fields:
    """A gated MLP, rotary positions, norms before each block; two of three layers see a window."""
    attention, mlp, norm_bias = c.flag("attention_bias"), c.flag("mlp_bias"), c.flag("norm_bias")
    width = c.size("local_attention", 128)
    every = c.size("global_attn_every_n_layers", 3)
    full = {"rope_theta": c.number("global_rope_theta", 160000.0)} if c.has("global_rope_theta") else {}
    fields: Fields = {
        "architecture": "encoder",
        **sizes(c, free_head_dim=False, kv_heads=False),
        "ffn_hidden_size": c.size("intermediate_size"),
        **norms(c, "layernorm", "norm_eps", bias=norm_bias),
        **rope(c.over({**c.data, **full})),
        "activation": c.choice("hidden_activation", GATED),
        **biases(attention, attention, mlp),
        "embedding_norm": True,
        "first_attention_norm": False,
        "head_transform_bias": c.flag("classifier_bias"),
    }
    local = c.optional_number("local_rope_theta")
    if local is not None:
        fields["rope_theta_window"] = local
    seen = c.over({**c.data, "sliding_window": width})
    return {**fields, **windows(seen, fields["num_layers"], lambda layer: layer % every != 0)}
