"""ModelSpec: the shape and the maths of a dense decoder or encoder transformer.

It holds all that the exact parameter count needs, and all that a trainer must know to build the same
function, so that a trainer can refuse what it cannot do instead of leaving it out. It is plain data: where a
model comes from (a profile, a Hugging Face config.json) is not its business, and the list of weights that
follows from it is made in parameter_inventory.py, the rules between its fields stand in model_rules.py.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from seqplan.planner.memory.parameter_tensor import ParameterTensor as ParameterTensor
from seqplan.planner.memory.parameter_tensor import Place as Place
from seqplan.planner.memory.parameter_tensor import TpSplit as TpSplit
from seqplan.planner.memory.parameter_tensor import as_tuple
from seqplan.planner.rules.model_rules import broken_rules
from seqplan.planner.spec import Spec

Activation = Literal[
    "gelu",
    "gelu_tanh",
    "gelu_quick",
    "relu",
    "relu2",
    "silu",
    "xielu",
    "swiglu",
    "geglu",
    "geglu_tanh",
    "reglu",
]
"""Those of GATED multiply activation(gate) by up. relu2 is the square of relu, gelu_quick is
x * sigmoid(1.702 x), xielu has two weights of its own."""

GATED: tuple[Activation, ...] = ("swiglu", "geglu", "geglu_tanh", "reglu")


class ModelSpec(Spec):
    """A dense decoder or encoder transformer. Sizes are per model, before any split."""

    name: str
    family: str = Field(description="model_type of Hugging Face's config.json")
    architecture: Literal["decoder", "encoder"] = Field(description="decoder: causal attention; encoder: not")
    num_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    ffn_hidden_size: int = Field(ge=1, description="width of the MLP; one half of a gated pair")
    num_attention_heads: int = Field(ge=1)
    num_kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1, description="width of one head; need not be hidden / heads")
    vocab_size: int = Field(ge=1)
    embedding_size: int = Field(
        ge=1, description="width of the token embedding; hidden_size unless factorised"
    )
    max_position_embeddings: int | None = Field(
        ge=1, description="longest sequence that the model allows; None: any"
    )
    position_rows: int = Field(
        default=0, ge=0, description="rows of the learned position table (OPT: 2 more)"
    )
    position_size: int | None = Field(
        default=None,
        ge=1,
        description="width of the learned positions; None: embedding_size (OPT: hidden_size)",
    )
    token_types: int = Field(default=0, ge=0, description="rows of the token-type table; 0: none")
    embedding_projection: Literal["none", "linear", "linear_with_bias"] = Field(
        default="none", description="how a factorised embedding becomes hidden_size wide"
    )
    output_projection: bool = Field(
        default=False, description="hidden back to embedding width before the head (OPT)"
    )
    embedding_scale: float = Field(
        default=1.0, gt=0, description="factor on the token embeddings (Gemma, Granite)"
    )
    norm: Literal["layernorm", "rmsnorm", "layernorm_without_weights", "rmsnorm_without_weights"]
    norm_bias: bool
    norm_position: Literal["pre", "post", "sandwich", "output"] = Field(
        description="before a block; after the residual sum; both sides of a block; on a block's output"
    )
    norm_eps: float = Field(gt=0)
    norm_weight_plus_one: bool = Field(default=False, description="the norm multiplies by 1 + weight (Gemma)")
    norm_on_residual: bool = Field(
        default=False,
        description="the residual starts from the norm's output (BLOOM, Falcon, ChatGLM option)",
    )
    embedding_norm: bool = Field(description="a norm right after the embeddings (BERT, BLOOM)")
    first_attention_norm: bool = Field(
        default=True,
        description="False: layer 0 has no attention_norm, the embedding norm serves (ModernBERT)",
    )
    final_norm: bool = Field(description="a norm after the last layer")
    qk_norm: Literal["none", "per_head", "each_head", "full"] = Field(
        default="none",
        description="norm of q and k: one weight for all heads; one weight a head; over all heads at once",
    )
    qk_norm_bias: bool = False
    position: Literal["learned", "sinusoidal", "rope", "alibi", "relative", "none"]
    rope_theta: float = Field(default=10000.0, gt=0)
    rope_theta_window: float | None = Field(
        default=None, gt=0, description="theta of the layers with a window; None: same"
    )
    rope_fraction: float = Field(default=1.0, gt=0, le=1, description="share of head_dim that is rotated")
    rope_interleaved: bool = Field(
        default=False, description="rotates neighbours (GPT-J) instead of the two halves"
    )
    rope_scaling: dict[str, Any] | None = Field(
        default=None, description="as in the config; None: plain rope"
    )
    rope_skip_layers: Annotated[tuple[int, ...], BeforeValidator(as_tuple)] = Field(
        default=(), description="layers without any position (SmolLM3, Command R7B)"
    )
    attention_scale: float | None = Field(
        default=None, gt=0, description="factor on the scores; None: head_dim ** -0.5 (GPT-Neo: 1)"
    )
    attention_softcap: float | None = Field(
        default=None, gt=0, description="scores become cap * tanh(score / cap)"
    )
    qkv_clip: float | None = Field(
        default=None, gt=0, description="q, k and v are clamped to +- this (OLMo, MPT)"
    )
    sliding_window: int | None = Field(default=None, ge=1, description="keys a query sees; None: all")
    window_layers: Annotated[tuple[int, ...] | None, BeforeValidator(as_tuple)] = Field(
        default=None, description="layers that have the window; None: all of them"
    )
    activation: Activation
    qkv_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    parallel_block: bool = Field(default=False, description="attention and MLP read the same residual")
    shared_norm: bool = Field(
        default=False, description="one norm feeds both of a parallel block (GPT-J, Phi)"
    )
    shared_layers: bool = Field(default=False, description="all layers use the same weights (ALBERT)")
    residual_scale: float = Field(
        default=1.0, gt=0, description="factor on what a block adds (Granite, MiniCPM)"
    )
    tied_embeddings: bool
    head: Literal["lm", "mlm", "discriminator", "classifier", "none"]
    head_bias: bool = False
    head_transform_bias: bool = Field(default=True, description="bias of the mlm head's first matrix")
    logit_scale: float = Field(default=1.0, gt=0, description="factor on the logits (Cohere, Granite)")
    logit_softcap: float | None = Field(
        default=None, gt=0, description="logits become cap * tanh(logit / cap)"
    )
    extra_tensors: Annotated[tuple[ParameterTensor, ...], BeforeValidator(as_tuple)] = Field(
        default=(), description="weights of parts that no field describes (poolers, relative positions, ...)"
    )
    other_maths: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = Field(
        default=(),
        description="maths that no field describes (key=value); a trainer must refuse the model",
    )

    @model_validator(mode="after")
    def _consistent(self) -> ModelSpec:
        broken = broken_rules(self)
        if broken:
            raise ValueError("; ".join(broken))
        return self

    @property
    def gated_mlp(self) -> bool:
        """Whether the MLP has a gate beside its up-projection."""
        return self.activation in GATED

    @property
    def causal(self) -> bool:
        """Whether a token sees only what stands before it."""
        return self.architecture == "decoder"

    @property
    def attention_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that rope rotates."""
        return int(self.head_dim * self.rope_fraction)

    def window_of(self, layer: int) -> int | None:
        """How many keys a query of this layer sees; None: all."""
        return self.sliding_window if self.window_layers is None or layer in self.window_layers else None

    @cached_property
    def _tensors(self) -> tuple[ParameterTensor, ...]:
        from seqplan.planner.memory.parameter_inventory import parameter_tensors

        return parameter_tensors(self, self.vocab_size)

    def parameter_tensors(self, vocab_rows: int | None = None) -> tuple[ParameterTensor, ...]:
        """All weights; those of a layer once, with place "layer". `vocab_rows`: the padded vocabulary."""
        from seqplan.planner.memory.parameter_inventory import parameter_tensors

        return self._tensors if vocab_rows is None else parameter_tensors(self, vocab_rows)

    def parameters(self) -> int:
        """Trainable parameters, tied ones once."""
        return self._count(("embedding", "layer", "final", "head"))

    def parameters_without_head(self) -> int:
        """The same without the head's own weights."""
        return self._count(("embedding", "layer", "final"))

    def _count(self, places: tuple[Place, ...]) -> int:
        layers = 1 if self.shared_layers else self.num_layers
        total = sum(
            t.elements * (layers if t.place == "layer" else 1) for t in self._tensors if t.place in places
        )
        if not self.first_attention_norm:
            total -= sum(t.elements for t in self._tensors if t.name.startswith("attention_norm."))
        return total

    @property
    def layer_matmul_parameters(self) -> int:
        """Weights of one layer that multiply every token: 2 FLOPs each forward, 4 backward."""
        matrices = ("attention.query", "attention.key", "attention.value", "attention.output", "mlp.")
        return sum(
            t.elements
            for t in self._tensors
            if t.place == "layer" and len(t.shape) == 2 and t.name.startswith(matrices)
        )

    @property
    def head_matmul_parameters(self) -> int:
        """Weights of the head (and of an output projection) that multiply every token, tied ones included."""
        names = ("head.weight", "head.transform.weight", "output_projection.weight")
        return sum(math.prod(t.shape) for t in self._tensors if t.name in names)
