"""ModelSpec: the shape of a decoder or encoder transformer, all that the parameter count needs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from seqplan.planner.spec import Spec

Place = Literal["embedding", "layer", "final", "head"]
"""Where a parameter lives: before the layers, in each layer, after the last layer, in the head."""

TpSplit = Literal["column", "row", "vocab", "replicated"]
"""How tp divides it: output features (dim 0), input features (dim 1), vocabulary rows (dim 0), or not at all."""


class ParameterTensor(Spec):
    """One named weight (of one layer, where `place` is "layer"): its shape and how tp divides it."""

    name: str
    place: Place
    shape: tuple[int, ...]
    tp_split: TpSplit
    tied_to: str | None = Field(default=None, description="set: the same storage as that tensor, counts zero")


class ModelSpec(Spec):
    """A dense decoder or encoder transformer. Sizes are per model, before any split."""

    name: str
    family: str = Field(description="model_type of Hugging Face's config.json")
    architecture: Literal["decoder", "encoder"]
    num_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    ffn_hidden_size: int = Field(ge=1, description="width of the MLP; one half of a gated pair")
    num_attention_heads: int = Field(ge=1)
    num_kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    embedding_size: int = Field(ge=1, description="width of the token embedding; hidden_size unless factorised")
    max_position_embeddings: int | None = Field(description="longest sequence the positions allow; None: no limit")
    position_rows: int = Field(default=0, ge=0, description="rows of the learned position table (OPT: 2 more)")
    token_types: int = Field(default=0, ge=0, description="rows of the token-type table; 0: none")
    norm: Literal["layernorm", "rmsnorm", "layernorm_without_weights"]
    norm_bias: bool
    norm_position: Literal["pre", "post", "sandwich", "output"] = Field(
        description="before each block; after the residual sum; both sides of a block; on a block's output only"
    )
    norm_eps: float = Field(gt=0)
    embedding_norm: bool = Field(description="a norm right after the embeddings (BERT, BLOOM)")
    final_norm: bool = Field(description="a norm after the last layer")
    qk_norm: Literal["none", "per_head", "full"] = "none"
    position: Literal["learned", "rope", "alibi", "relative", "none"]
    rope_theta: float = 10000.0
    rope_fraction: float = Field(default=1.0, gt=0, le=1, description="share of head_dim that is rotated")
    rope_scaling: dict[str, float | int | str] | None = None
    attention_scale: float | None = Field(default=None, description="factor on the scores; None: head_dim ** -0.5")
    sliding_window: int | None = Field(default=None, description="keys a query sees; None: all")
    activation: Literal["gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu", "geglu_tanh"]
    qkv_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    parallel_block: bool = Field(default=False, description="attention and MLP read the same residual")
    shared_layers: bool = Field(default=False, description="all layers use the same weights (ALBERT)")
    tied_embeddings: bool
    head: Literal["lm", "mlm", "discriminator", "none"]
    head_bias: bool = False

    # The owner of this file adds the fields that exact counts of further families need, and:
    #   @property gated_mlp, causal
    #   def parameter_tensors(self, vocab_rows: int | None = None) -> tuple[ParameterTensor, ...]
    #   def parameters(self) -> int ; def parameters_without_head(self) -> int
    #   forward matmul FLOPs per token of one layer and of the head
