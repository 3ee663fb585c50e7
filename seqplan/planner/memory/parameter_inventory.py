"""The weights of a model: every tensor with its name, shape, place and the way tp divides it.

One function a part, in the order of the forward pass. The names are the ones the trainer gives its own
parameters, so that a test can hold the two lists against each other. The layer's tensors are listed once.
"""

from __future__ import annotations

from collections.abc import Iterator

from seqplan.planner.memory.parameter_tensor import ParameterTensor, Place, TpSplit
from seqplan.planner.model_spec import ModelSpec


def parameter_tensors(model: ModelSpec, vocab_rows: int) -> tuple[ParameterTensor, ...]:
    """All weights of `model` with a vocabulary of `vocab_rows` (padded or not)."""
    return (
        *_embedding(model, vocab_rows),
        *_attention(model),
        *_mlp(model),
        *_layer_norms(model),
        *_final(model),
        *_head(model, vocab_rows),
        *model.extra_tensors,
    )


def _linear(
    name: str, place: Place, outputs: int, inputs: int, bias: bool, split: TpSplit = "replicated"
) -> Iterator[ParameterTensor]:
    """A matrix [outputs, inputs] and its bias, which only a column split divides (a row's is added once)."""
    yield ParameterTensor(name=f"{name}.weight", place=place, shape=(outputs, inputs), tp_split=split)
    if bias:
        bias_split: TpSplit = "column" if split == "column" else "replicated"
        yield ParameterTensor(name=f"{name}.bias", place=place, shape=(outputs,), tp_split=bias_split)


def _norm(
    model: ModelSpec, name: str, place: Place, width: int, bias: bool | None = None
) -> Iterator[ParameterTensor]:
    if model.norm.endswith("without_weights"):
        return
    yield ParameterTensor(name=f"{name}.weight", place=place, shape=(width,), tp_split="replicated")
    if model.norm_bias if bias is None else bias:
        yield ParameterTensor(name=f"{name}.bias", place=place, shape=(width,), tp_split="replicated")


def _embedding(m: ModelSpec, vocab_rows: int) -> Iterator[ParameterTensor]:
    width = m.embedding_size
    yield _table("embedding.tokens", vocab_rows, width, "vocab")
    if m.position_rows:
        yield _table("embedding.positions", m.position_rows, m.position_size or width)
    if m.token_types:
        yield _table("embedding.token_types", m.token_types, width)
    if m.embedding_norm:
        # Normed before the projection where positions are as narrow as the tokens (ALBERT, ELECTRA).
        yield from _norm(m, "embedding.norm", "embedding", width)
    if m.embedding_projection != "none":
        bias = m.embedding_projection == "linear_with_bias"
        yield from _linear("embedding.projection", "embedding", m.hidden_size, width, bias)


def _table(name: str, rows: int, width: int, split: TpSplit = "replicated") -> ParameterTensor:
    return ParameterTensor(name=f"{name}.weight", place="embedding", shape=(rows, width), tp_split=split)


def _attention(m: ModelSpec) -> Iterator[ParameterTensor]:
    for part, width in (("query", m.attention_size), ("key", m.kv_size), ("value", m.kv_size)):
        yield from _linear(f"attention.{part}", "layer", width, m.hidden_size, m.qkv_bias, "column")
    yield from _linear(
        "attention.output", "layer", m.hidden_size, m.attention_size, m.attention_output_bias, "row"
    )
    if m.qk_norm == "none":
        return
    for part, heads in (("query", m.num_attention_heads), ("key", m.num_kv_heads)):
        # A weight for each head is divided with the heads; one for all heads is on every rank.
        shape = {
            "per_head": (m.head_dim,),
            "each_head": (heads, m.head_dim),
            "full": (heads * m.head_dim,),
        }[m.qk_norm]
        split: TpSplit = "replicated" if m.qk_norm == "per_head" else "column"
        for kind in ("weight", "bias") if m.qk_norm_bias else ("weight",):
            if not m.norm.endswith("without_weights"):
                yield ParameterTensor(
                    name=f"attention.{part}_norm.{kind}", place="layer", shape=shape, tp_split=split
                )


def _mlp(m: ModelSpec) -> Iterator[ParameterTensor]:
    for part in ("gate", "up") if m.gated_mlp else ("up",):
        yield from _linear(f"mlp.{part}", "layer", m.ffn_hidden_size, m.hidden_size, m.mlp_bias, "column")
    yield from _linear("mlp.down", "layer", m.hidden_size, m.ffn_hidden_size, m.mlp_bias, "row")


def _layer_norms(m: ModelSpec) -> Iterator[ParameterTensor]:
    """attention_norm and mlp_norm are the norms before a block, or the only ones that it has."""
    names = ["attention_norm"] if m.shared_norm else ["attention_norm", "mlp_norm"]
    if m.norm_position == "sandwich":
        names += ["attention_output_norm", "mlp_output_norm"]
    for name in names:
        yield from _norm(m, name, "layer", m.hidden_size)


def _final(m: ModelSpec) -> Iterator[ParameterTensor]:
    if m.final_norm:
        yield from _norm(m, "final_norm", "final", m.hidden_size)
    if m.output_projection:
        yield from _linear("output_projection", "final", m.embedding_size, m.hidden_size, bias=False)


def _head(m: ModelSpec, vocab_rows: int) -> Iterator[ParameterTensor]:
    """The vocabulary matrix, for mlm after BERT's transform; for discriminator ELECTRA's two layers."""
    if m.head == "discriminator":
        yield from _linear("head.transform", "head", m.hidden_size, m.hidden_size, bias=True)
        yield from _linear("head.prediction", "head", 1, m.hidden_size, bias=True)
    if m.head not in ("lm", "mlm"):
        return
    width = m.hidden_size
    if m.head == "mlm":
        width = m.embedding_size
        yield from _linear("head.transform", "head", width, m.hidden_size, m.head_transform_bias)
        yield from _norm(m, "head.norm", "head", width)
    elif m.output_projection:
        width = m.embedding_size
    yield ParameterTensor(
        name="head.weight",
        place="head",
        shape=(vocab_rows, width),
        tp_split="vocab",
        tied_to="embedding.tokens.weight" if m.tied_embeddings else None,
    )
    if m.head_bias:
        yield ParameterTensor(name="head.bias", place="head", shape=(vocab_rows,), tp_split="vocab")
