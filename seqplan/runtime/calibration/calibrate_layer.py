"""Measures what a layer of this runtime costs beside its matmuls and its attention.

Traffic: the operators between the matmuls (norms, rotation, gated activation, residual sums), forward and
backward, over the bytes that the time model counts for them. Launches: what is left when there is next to
nothing to compute, over the kernels that the time model counts.
Shapes: B sequences, S tokens, E hidden size, H heads, D head size.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from seqplan.planner.calibration.samples import Dtype, TrafficSample
from seqplan.planner.layout import Layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.timing.flops import BACKWARD_PER_FORWARD
from seqplan.planner.timing.layer_time import GATED_PASSES, LAYER_KERNELS, RESIDUAL_PASSES
from seqplan.planner.train_spec import TrainSpec
from seqplan.runtime.calibration.calibrate_compute import DTYPES
from seqplan.runtime.calibration.calibrate_sizes import Sizes
from seqplan.runtime.calibration.calibrate_timing import Task
from seqplan.runtime.mesh import build_mesh
from seqplan.runtime.modules import Build, Layer, Tokens, local
from seqplan.runtime.rope import rotate, rotation
from seqplan.runtime.simulation.kernel_device import rms_norm

FEWEST_TOKENS, LEAST_HIDDEN = 8, 64

MATMULS_A_LAYER = 7
"""Linears of a gated layer: query, key, value, output, gate, up and down."""


def model_of(hidden_size: int) -> ModelSpec:
    """A Llama-like layer of that width."""
    heads = max(1, hidden_size // 64)
    return ModelSpec(
        name="calibration",
        family="llama",
        architecture="decoder",
        num_layers=1,
        hidden_size=hidden_size,
        ffn_hidden_size=3 * hidden_size,
        num_attention_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden_size // heads,
        vocab_size=256,
        embedding_size=hidden_size,
        max_position_embeddings=None,
        norm="rmsnorm",
        norm_bias=False,
        norm_position="pre",
        norm_eps=1e-5,
        embedding_norm=False,
        final_norm=True,
        position="rope",
        activation="swiglu",
        qkv_bias=False,
        attention_output_bias=False,
        mlp_bias=False,
        tied_embeddings=True,
        head="lm",
    )


class Traffic:
    """The operators between the matmuls of a layer, forward and backward, over numbers of tokens."""

    def __init__(self, device: torch.device, dtype: Dtype, sizes: Sizes) -> None:
        model, self.dtype = model_of(sizes.between_hidden), dtype
        self.between = [_Between(model, tokens, DTYPES[dtype], device) for tokens in sizes.between_tokens]
        self.tasks = [Task(f"between the matmuls, {dtype}", each.forward_backward) for each in self.between]

    def samples(self) -> list[TrafficSample]:
        return [
            TrafficSample(
                kind="elementwise",
                dtype=self.dtype,
                moved_bytes=each.counted_bytes(),
                seconds=task.seconds,
            )
            for each, task in zip(self.between, self.tasks, strict=True)
        ]


class _Between:
    """What lies between the matmuls, on tensors of the sizes that the matmuls would give."""

    def __init__(self, model: ModelSpec, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self.model, self.tokens, self.dtype = model, tokens, dtype

        def made(*shape: int) -> Tensor:
            return torch.randn(shape, device=device).to(dtype).requires_grad_()

        size, heads = model.hidden_size, model.num_attention_heads
        self.x_SE, self.block_SE = made(tokens, size), made(tokens, size)
        self.gate_SF, self.up_SF = made(tokens, model.ffn_hidden_size), made(tokens, model.ffn_hidden_size)
        self.q_SHD, self.k_SHD = made(tokens, heads, model.head_dim), made(tokens, heads, model.head_dim)
        self.weight_E = made(size)
        self.cos_S1D, self.sin_S1D = rotation(model, torch.arange(tokens, device=device), dtype)

    def counted_bytes(self) -> float:
        """As layer_time.py counts them, forward and backward."""
        model = self.model
        values = RESIDUAL_PASSES * model.hidden_size + GATED_PASSES * model.ffn_hidden_size
        values += 2 * (model.num_attention_heads + model.num_kv_heads) * model.head_dim
        return float((1.0 + BACKWARD_PER_FORWARD) * self.dtype.itemsize * self.tokens * values)

    def forward_backward(self) -> None:
        outputs = self._forward()
        inputs = (
            self.x_SE, self.block_SE, self.gate_SF, self.up_SF, self.q_SHD, self.k_SHD, self.weight_E,
        )  # fmt: skip
        torch.autograd.grad(outputs, inputs, [each.detach() for each in outputs])

    def _forward(self) -> list[Tensor]:
        outputs: list[Tensor] = []
        for _ in range(2):
            outputs.append(rms_norm(self.x_SE, self.model.hidden_size, self.weight_E, self.model.norm_eps))
            outputs.append(self.x_SE + self.block_SE)
        outputs.append(rotate(self.q_SHD, self.cos_S1D, self.sin_S1D))
        outputs.append(rotate(self.k_SHD, self.cos_S1D, self.sin_S1D))
        outputs.append(F.silu(self.gate_SF) * self.up_SF)
        return outputs


class Launches:
    """What starting an operation costs the device.

    On a CPU the core that computes also runs Python, autograd and the dispatcher: a layer of so few tokens
    that it is made of that alone. A GPU has its queue filled meanwhile: a small kernel after the other.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda":
            self.kernels = 1.0
            self.tasks = [Task("launches", partial(torch.zeros(64, device=device).add_, 1.0))]
            return
        forward = LAYER_KERNELS + MATMULS_A_LAYER
        self.kernels = forward + BACKWARD_PER_FORWARD * LAYER_KERNELS + 2 * MATMULS_A_LAYER
        model = model_of(LEAST_HIDDEN)
        layout = Layout(
            dp=dist.get_world_size(),
            pp=1,
            tp=1,
            sp=1,
            micro_batch_size=1,
            precision="fp32",
            stage_layers=(1,),
        )
        train = TrainSpec(seq_len=FEWEST_TOKENS, global_batch_size=layout.dp)
        mesh = build_mesh(layout, device.type)
        self.layer = Layer(Build(model, layout, train, mesh, torch.float32, torch.float32), 0)
        self.layer.to_empty(device=device)
        for parameter in self.layer.parameters():
            torch.nn.init.normal_(local(parameter.detach()), std=0.02)
        positions = torch.arange(FEWEST_TOKENS, device=device)
        cos, sin = rotation(model, positions, torch.float32)
        rows = torch.zeros(1, dtype=torch.int64, device=device)
        self.tokens = Tokens(positions, None, cos, sin, rows, None)
        self.x_BSE = torch.randn(1, FEWEST_TOKENS, model.hidden_size, device=device, requires_grad=True)
        self.tasks = [Task("launches", self.step)]

    def step(self) -> None:
        y_BSE: Tensor = self.layer(self.x_BSE, self.tokens)
        y_BSE.sum().backward()

    def launch_s(self) -> float:
        """Seconds of one of the kernels that the time model counts."""
        return self.tasks[0].seconds / self.kernels
