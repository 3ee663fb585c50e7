"""Trainer: one optimizer step of a plan on this rank, every axis at once.

The loss is a sum over tokens divided by the number of counted tokens of the global batch, known before the
first forward. One rule, right for every axis, for accumulation, padding and unequal counts: all gradients
are then plain sums over micro-batches and over dp x sp.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from seqplan.planner.layout import Layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.schedule import Action, forward_only, one_f_one_b
from seqplan.planner.train_spec import TrainSpec
from seqplan.runtime.data import MicroBatch
from seqplan.runtime.data_parallel import all_reduce_flat, build_states
from seqplan.runtime.mesh import build_mesh
from seqplan.runtime.model import Stage
from seqplan.runtime.modules import Build
from seqplan.runtime.optimizer import (
    build_adamw,
    clip_gradients,
    global_gradient_norm,
    learning_rate_at,
    local_gradient,
)
from seqplan.runtime.options import RunOptions
from seqplan.runtime.pipeline import PipelineDriver
from seqplan.runtime.random_field import seed_of
from seqplan.runtime.vocab_parallel import IGNORED_LABEL
from seqplan.runtime.weights import TOKEN_TABLE, initialize

COMPUTE_DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Precisions of this runtime; held to profiles/implementations/seqplan.yaml by a test."""


@dataclass(frozen=True)
class StepResult:
    """What one step did; the same numbers on every rank."""

    loss: float
    """Mean over the counted tokens of the global batch."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    tokens: int
    """Counted tokens of the global batch."""


class Trainer:
    """The model part, states and optimizer of this rank. All ranks of the world build one together.

    `verify_dtype` replaces both the stored and the compute dtype: parity tests run in float64.
    """

    def __init__(
        self,
        model: ModelSpec,
        train: TrainSpec,
        layout: Layout,
        options: RunOptions,
        device: torch.device,
        verify_dtype: torch.dtype | None = None,
    ) -> None:
        self.model, self.layout, self.options, self.device = model, layout, options, device
        compute_dtype = verify_dtype or COMPUTE_DTYPES[layout.precision]
        master_dtype = verify_dtype or torch.float32
        self.mesh = build_mesh(layout, device.type)
        # Replicated states compute with the stored weights; FSDP2 stores masters and casts what it gathers.
        stored = compute_dtype if layout.zero_stage == 0 else master_dtype
        build = Build(model, layout, train, self.mesh, stored, compute_dtype)
        self.stage = self.build_stage(build)
        self.states = build_states(self.stage, compute_dtype, master_dtype, layout.zero_stage, device)
        self.fill_weights()
        self.states.publish()
        self.replications = self._replications()
        self.optimizer = build_adamw(
            self.states.masters,
            learning_rate=options.learning_rate,
            weight_decay=options.weight_decay,
            betas=(options.beta1, options.beta2),
            eps=options.adam_eps,
        )
        self.num_microbatches = train.global_batch_size // (layout.dp * layout.micro_batch_size)
        self.driver = PipelineDriver(self.stage, self.states, self.mesh, device, compute_dtype)
        self.loss_dtype = torch.promote_types(compute_dtype, torch.float32)

    def build_stage(self, build: Build) -> Stage:
        """This rank's part of the model, on the meta device. (Simulation has its own, here and below.)"""
        return Stage(build)

    def fill_weights(self) -> None:
        """Initial values of the masters."""
        initialize(self.states.masters, self.model, self.mesh, self.options.seed)

    def actions(self, num_microbatches: int) -> list[Action]:
        """The order of a training step on this stage."""
        return one_f_one_b(self.mesh.pp_stage, self.mesh.pp, num_microbatches)

    def train_step(self, micro_batches: list[MicroBatch], step: int) -> StepResult:
        """Forward, backward and update on this rank's micro-batches of global step `step` (from 0)."""
        loss, tokens = self.compute_gradients(micro_batches, step)
        norm = self.gradient_norm()
        grads = [local_gradient(master) for master in self.states.masters.values()]
        clip_gradients(grads, norm, self.options.clip_norm or None)
        learning_rate = learning_rate_at(
            step,
            peak=self.options.learning_rate,
            minimum=self.options.min_learning_rate,
            warmup_steps=self.options.warmup_steps,
            total_steps=self.options.steps,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.states.publish()
        return StepResult(loss, float(norm), learning_rate, tokens)

    def compute_gradients(self, micro_batches: list[MicroBatch], step: int) -> tuple[float, int]:
        """Fill every master's gradient with the sum over the global batch. -> (mean loss, counted tokens)."""
        actions = self.actions(len(micro_batches))
        loss, tokens = self._run(actions, micro_batches, seed_of(self.options.seed, "step", step))
        self.states.finish()
        self._sum_partial_over_tp()
        self._sum_tied_ends()
        return loss, tokens

    def evaluate(self, micro_batches: list[MicroBatch]) -> tuple[float, int]:
        """Mean loss without dropout and without gradients. -> (mean loss, counted tokens)."""
        actions = forward_only(self.mesh.pp_stage, self.mesh.pp, len(micro_batches))
        return self._run(actions, micro_batches, seed=None)

    def gradient_norm(self) -> Tensor:
        """Global norm over all parameters, each counted once whatever its copies. -> 0-d float64."""
        masters = self.states.masters
        pairs = [(local_gradient(master), self.replications[name]) for name, master in masters.items()]
        return global_gradient_norm(pairs, self.device)

    def _run(
        self, actions: list[Action], micro_batches: list[MicroBatch], seed: int | None
    ) -> tuple[float, int]:
        assert len(micro_batches) == self.num_microbatches, (len(micro_batches), self.num_microbatches)
        tokens = self._count_tokens(micro_batches)
        scale = torch.ones((), dtype=self.loss_dtype, device=self.device) / max(tokens, 1)
        total = self.driver.run(actions, micro_batches, scale, seed)
        # Only the last stage has a loss; ranks of one tp group have the same one.
        dist.all_reduce(total, group=self.mesh.group("dp_sp"))
        dist.all_reduce(total, group=self.mesh.group("pp"))
        return float(total), tokens

    def _count_tokens(self, micro_batches: list[MicroBatch]) -> int:
        """Counted tokens of the global batch: known to the last stage, told to all."""
        count = torch.zeros((), dtype=torch.int64, device=self.device)
        if self.mesh.last_stage:
            for micro_batch in micro_batches:
                count += (micro_batch.labels != IGNORED_LABEL).sum()
            dist.all_reduce(count, group=self.mesh.group("dp_sp"))
        dist.all_reduce(count, op=dist.ReduceOp.MAX, group=self.mesh.group("pp"))
        return int(count)

    def _splits(self) -> dict[str, str]:
        """tp_split of each master, by name."""
        tensors = {tensor.name: tensor.tp_split for tensor in self.model.parameter_tensors()}
        return {name: tensors[inventory_name(name)] for name in self.states.masters}

    def _sum_partial_over_tp(self) -> None:
        """Replicated parameters whose gradient each tp rank has only a part of.

        These are all replicated ones where tokens are sharded over tp, and always the norms of the
        queries and keys, of which each tp rank has its own heads.
        """
        if self.mesh.tp == 1:
            return
        partial = [
            local_gradient(self.states.masters[name])
            for name, split in self._splits().items()
            if split == "replicated"
            and (self.layout.tp_sequence_parallel or name.endswith(("query_norm.weight", "key_norm.weight")))
        ]
        if partial:
            all_reduce_flat(partial, self.mesh.group("tp"))

    def _tied_ends(self) -> str | None:
        """The name of this rank's copy of a table that is tied across the first and the last stage."""
        if not self.model.tied_embeddings or self.mesh.pp == 1:
            return None
        return TOKEN_TABLE if self.mesh.first_stage else "head.weight" if self.mesh.last_stage else None

    def _sum_tied_ends(self) -> None:
        """Both copies get the sum of their gradients; a + b is b + a, so they stay bit-equal."""
        name = self._tied_ends()
        if name is None:
            return
        mine = local_gradient(self.states.masters[name])
        other = torch.empty_like(mine)
        peer = self.mesh.stage_rank(self.mesh.pp - 1 if self.mesh.first_stage else 0)
        group = self.mesh.group("pp")
        operations = [
            dist.P2POp(dist.isend, mine.clone(), peer, group=group),
            dist.P2POp(dist.irecv, other, peer, group=group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        mine.add_(other)

    def _replications(self) -> dict[str, int]:
        """How many ranks of the world hold each element of a master's gradient."""
        tied = self._tied_ends()
        return {
            name: self.states.replication
            * (self.mesh.tp if split == "replicated" else 1)
            * (2 if name == tied else 1)
            for name, split in self._splits().items()
        }


def inventory_name(name: str) -> str:
    """The name in ModelSpec.parameter_tensors: that of any layer for a layer's parameter."""
    parts = name.split(".")
    return ".".join(parts[2:]) if parts[0] == "layers" else name
