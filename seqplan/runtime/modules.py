"""The parts of a transformer layer on one rank: norm, attention, MLP; weights are DTensors on the tp mesh.

Names and shapes of the parameters are those of ModelSpec.parameter_tensors (a test compares them one by
one), so checkpoints and weights know no layout. Modules are built on the meta device; weights.py fills them.

Shapes: B micro-batch, S tokens of this sp rank, R tokens of the residual stream (S, or S/tp under
tp_sequence_parallel), E hidden size, H query heads on this rank, K kv heads on this rank, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from seqplan.planner.layout import Layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.train_spec import TrainSpec
from seqplan.runtime.dropout import DropoutPlace, dropout
from seqplan.runtime.mesh import Mesh
from seqplan.runtime.ring_attention import ring_attention
from seqplan.runtime.rope import rotate
from seqplan.runtime.rsa import AttentionDropout, rsa
from seqplan.runtime.simulation.kernel_device import layer_norm, rms_norm
from seqplan.runtime.tensor_parallel import column_linears, row_linear

Split = Literal["column", "row", "vocab", "replicated"]


@dataclass(frozen=True)
class Build:
    """All that a module needs to know to build its part of this rank."""

    model: ModelSpec
    layout: Layout
    train: TrainSpec
    mesh: Mesh
    dtype: torch.dtype
    """Of the stored parameters."""
    compute_dtype: torch.dtype
    """Of activations and matmuls."""

    @property
    def tp_group(self) -> dist.ProcessGroup:
        return self.mesh.group("tp")

    @property
    def tokens_sharded(self) -> bool:
        return self.layout.tp_sequence_parallel


@dataclass(frozen=True)
class Tokens:
    """What the layers need to know of the tokens in hand."""

    positions_S: Tensor
    valid_BS: Tensor | None
    cos_S1D: Tensor | None
    sin_S1D: Tensor | None
    batch_rows_B: Tensor
    place: DropoutPlace | None
    """Identity of the residual stream's tokens for dropout; None in evaluation."""


def local(parameter: Tensor) -> Tensor:
    """This rank's shard of a DTensor parameter; its gradient flows back to the DTensor."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def new_parameter(build: Build, shape: tuple[int, ...], split: Split) -> nn.Parameter:
    """An empty parameter on the meta device: the tp shard of `shape`, as a DTensor of the global shape."""
    dim = {"column": 0, "vocab": 0, "row": 1, "replicated": None}[split]
    shard = list(shape)
    if dim is not None:
        assert shape[dim] % build.mesh.tp == 0, (shape, split, build.mesh.tp)
        shard[dim] //= build.mesh.tp
    data = torch.empty(shard, dtype=build.dtype, device="meta")
    placement = Replicate() if dim is None else Shard(dim)
    return nn.Parameter(DTensor.from_local(data, build.mesh.tp_mesh, [placement], run_check=False))


class Linear(nn.Module):
    """Holds weight [out, in] and bias [out]; tensor_parallel.py computes with it."""

    bias: nn.Parameter | None

    def __init__(self, build: Build, outputs: int, inputs: int, split: Split, bias: bool) -> None:
        super().__init__()
        self.weight = new_parameter(build, (outputs, inputs), split)
        bias_split: Split = split if split in ("column", "vocab") else "replicated"
        self.register_parameter("bias", new_parameter(build, (outputs,), bias_split) if bias else None)

    def local_bias(self) -> Tensor | None:
        return None if self.bias is None else local(self.bias)


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the last dim, by torch's own functions."""

    bias: nn.Parameter | None

    def __init__(self, build: Build, size: int) -> None:
        super().__init__()
        self.kind, self.eps, self.size = build.model.norm, build.model.norm_eps, size
        has_bias = self.kind == "layernorm" and build.model.norm_bias
        self.weight = new_parameter(build, (size,), "replicated")
        self.register_parameter("bias", new_parameter(build, (size,), "replicated") if has_bias else None)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "rmsnorm":
            return rms_norm(x, self.size, local(self.weight), self.eps)
        bias = None if self.bias is None else local(self.bias)
        return layer_norm(x, self.size, local(self.weight), bias, self.eps)


class Attention(nn.Module):
    """Self-attention over the whole sequence: heads split over tp, tokens over sp."""

    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        model = build.model
        self.build, self.layer = build, layer
        queries, keys = model.num_attention_heads * model.head_dim, model.num_kv_heads * model.head_dim
        self.query = Linear(build, queries, model.hidden_size, "column", model.qkv_bias)
        self.key = Linear(build, keys, model.hidden_size, "column", model.qkv_bias)
        self.value = Linear(build, keys, model.hidden_size, "column", model.qkv_bias)
        self.output = Linear(build, model.hidden_size, queries, "row", model.attention_output_bias)
        self.qk_norm = model.qk_norm == "per_head"
        if self.qk_norm:
            self.query_norm = Norm(build, model.head_dim)
            self.key_norm = Norm(build, model.head_dim)

    def forward(self, x_BRE: Tensor, tokens: Tokens) -> Tensor:
        build = self.build
        parts = (self.query, self.key, self.value)
        projected = column_linears(
            x_BRE,
            [local(part.weight) for part in parts],
            [part.local_bias() for part in parts],
            build.tp_group,
            build.tokens_sharded,
        )
        q_BSHD, k_BSKD, v_BSKD = (y.unflatten(-1, (-1, build.model.head_dim)) for y in projected)
        if self.qk_norm:
            q_BSHD, k_BSKD = self.query_norm(q_BSHD), self.key_norm(k_BSKD)
        if tokens.cos_S1D is not None and tokens.sin_S1D is not None:
            q_BSHD = rotate(q_BSHD, tokens.cos_S1D, tokens.sin_S1D)
            k_BSKD = rotate(k_BSKD, tokens.cos_S1D, tokens.sin_S1D)
        out_BSHD = self.attend(q_BSHD, k_BSKD, v_BSKD, tokens)
        return row_linear(
            out_BSHD.flatten(2),
            local(self.output.weight),
            self.output.local_bias(),
            build.tp_group,
            build.tokens_sharded,
        )

    def attend(self, q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor, tokens: Tokens) -> Tensor:
        """[B, S, H, D] queries against the keys of every sp rank."""
        model, layout, mesh = self.build.model, self.build.layout, self.build.mesh
        group = mesh.group("sp") if mesh.sp > 1 else None
        if layout.attention != "rsa":
            return ring_attention(
                q_BSHD,
                k_BSKD,
                v_BSKD,
                group=group,
                causal=model.causal,
                valid_BS=tokens.valid_BS,
                scale=model.attention_scale,
                kernel=layout.kernel,
            )
        drop = None
        if self.build.train.attention_dropout > 0 and tokens.place is not None:
            drop = AttentionDropout(
                seed=tokens.place.at(self.layer, "attention").seed,
                p=self.build.train.attention_dropout,
                batch_rows=tokens.batch_rows_B,
                head_offset=mesh.tp_rank * q_BSHD.shape[2],
            )
        return rsa(
            q_BSHD,
            k_BSKD,
            v_BSKD,
            group=group,
            causal=model.causal,
            valid_BS=tokens.valid_BS,
            scale=model.attention_scale,
            dropout=drop,
        )


class Mlp(nn.Module):
    """up -> activation -> down, or the gated form activation(gate) * up -> down; the width split over tp."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        model = build.model
        self.build = build
        width, hidden = model.ffn_hidden_size, model.hidden_size
        self.gated = model.gated_mlp
        if self.gated:
            self.gate = Linear(build, width, hidden, "column", model.mlp_bias)
        self.up = Linear(build, width, hidden, "column", model.mlp_bias)
        self.down = Linear(build, hidden, width, "row", model.mlp_bias)

    def forward(self, x_BRE: Tensor) -> Tensor:
        parts = [self.gate, self.up] if self.gated else [self.up]
        weights, biases = [local(part.weight) for part in parts], [part.local_bias() for part in parts]
        first, *rest = column_linears(x_BRE, weights, biases, self.build.tp_group, self.build.tokens_sharded)
        inner = activate(first, self.build.model.activation)
        if rest:
            inner = inner * rest[0]
        return row_linear(
            inner,
            local(self.down.weight),
            self.down.local_bias(),
            self.build.tp_group,
            self.build.tokens_sharded,
        )


def activate(x: Tensor, activation: str) -> Tensor:
    """The activation, or the one on the gate of a gated pair."""
    if activation in ("gelu", "geglu"):
        return F.gelu(x)
    if activation in ("gelu_tanh", "geglu_tanh"):
        return F.gelu(x, approximate="tanh")
    if activation in ("silu", "swiglu"):
        return F.silu(x)
    assert activation == "relu", activation
    return F.relu(x)


class Layer(nn.Module):
    """One transformer layer, norms before each block (pre) or after each residual sum (post)."""

    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        self.layer, self.pre = layer, build.model.norm_position == "pre"
        self.drop = build.train.hidden_dropout
        self.attention = Attention(build, layer)
        self.attention_norm = Norm(build, build.model.hidden_size)
        self.mlp = Mlp(build)
        self.mlp_norm = Norm(build, build.model.hidden_size)

    def forward(self, x_BRE: Tensor, tokens: Tokens) -> Tensor:
        if self.pre:
            x_BRE = x_BRE + self.dropped(
                self.attention(self.attention_norm(x_BRE), tokens), tokens, "attention"
            )
            return x_BRE + self.dropped(self.mlp(self.mlp_norm(x_BRE)), tokens, "mlp")
        x_BRE = self.attention_norm(x_BRE + self.dropped(self.attention(x_BRE, tokens), tokens, "attention"))
        y_BRE: Tensor = self.mlp_norm(x_BRE + self.dropped(self.mlp(x_BRE), tokens, "mlp"))
        return y_BRE

    def dropped(self, x_BRE: Tensor, tokens: Tokens, block: str) -> Tensor:
        """Hidden dropout on a block's result."""
        place = None if tokens.place is None else tokens.place.at(self.layer, block, "hidden")
        return dropout(x_BRE, self.drop, place)
