"""Who holds parameters, gradients and optimizer states over dp x sp: zero_stage 0, 2 and 3.

zero 0 (replicated): every rank holds all states; gradients are accumulated in the dtype of the master
weights and summed once a step, in buckets. zero 2 and 3 are FSDP2 over the flattened dp x sp axis: gradients
are reduce-scattered after every micro-batch's backward; zero 3 also drops gathered weights after use, in
forward and backward, under a pipeline too, because our own driver leaves FSDP2's hooks on.

No averaging anywhere: the loss is divided by the global token count, gradients are sums
(FSDP2's division by the world size is switched off).
"""

from __future__ import annotations

from functools import partial
from typing import Protocol, cast
from weakref import ReferenceType, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from seqplan.runtime.model import Stage

BUCKET_BYTES = 32 << 20
"""Gradients summed in one all-reduce (torch DDP's default is 25 MB)."""


class States(Protocol):
    """The stored weights with their gradients, behind a stage that computes with them."""

    masters: dict[str, nn.Parameter]
    """What the optimizer updates, by parameter name; each a DTensor whose .grad is one after `finish`."""
    replication: int
    """How many ranks of dp x sp hold the same gradient element."""

    def before_backward(self, last: bool) -> None:
        """Called before each micro-batch's backward; `last` for the last one of the step."""

    def finish(self) -> None:
        """After the last backward: gradients are sums over dp x sp."""

    def publish(self) -> None:
        """After the optimizer: the stage computes with the new weights."""


class ReplicatedStates:
    """zero_stage 0. With a narrower compute dtype the stage holds copies and the masters stand beside it.

    In the last backward a bucket is reduced as soon as its last gradient is there, while the rest of the
    backward runs.
    """

    def __init__(self, stage: Stage, master_dtype: torch.dtype, device: torch.device) -> None:
        stage.to_empty(device=device)
        self.group = stage.build.mesh.group("dp_sp")
        self.replication = self.group.size()
        self.copies = dict(stage.named_parameters())
        self.masters = self.copies
        if master_dtype != stage.build.dtype:
            self.masters = {
                name: nn.Parameter(torch.empty_like(copy, dtype=master_dtype))
                for name, copy in self.copies.items()
            }
        # Backward reaches the last parameters first.
        self.buckets = _buckets(list(reversed(self.masters)), self.masters)
        self.bucket_of = {name: index for index, names in enumerate(self.buckets) for name in names}
        self.missing: list[int] = []
        self.reduction: _Reduction | None = None
        for name, copy in self.copies.items():
            # Weakly: autograd hides its hooks from the garbage collector, so a cycle would never be freed.
            copy.register_post_accumulate_grad_hook(partial(_take_gradient, ref(self), name))

    def take_gradient(self, name: str, copy: Tensor) -> None:
        """After a gradient was added: into the master's, and on its way if its bucket is full."""
        master = self.masters[name]
        if master is not copy:
            grad = cast(Tensor, copy.grad)
            if master.grad is None:
                master.grad = grad.to(master.dtype)
            else:
                _local(master.grad).add_(_local(grad))
            copy.grad = None
            del grad  # before its bucket is copied
        if self.missing:
            bucket = self.bucket_of[name]
            self.missing[bucket] -= 1
            if self.missing[bucket] == 0:
                grads = [_local(cast(Tensor, self.masters[each].grad)) for each in self.buckets[bucket]]
                self._wait()  # one at a time: each is a copy of its gradients
                self.reduction = _Reduction(grads, self.group)

    def _wait(self) -> None:
        if self.reduction is not None:
            self.reduction.wait()
        self.reduction = None

    def before_backward(self, last: bool) -> None:
        if last and self.replication > 1:
            self.missing = [len(names) for names in self.buckets]

    def finish(self) -> None:
        assert not any(self.missing), "a parameter had no gradient in the last backward"
        self.missing = []
        self._wait()

    @torch.no_grad()
    def publish(self) -> None:
        if self.masters is self.copies:
            return
        for name, copy in self.copies.items():
            _local(copy).copy_(_local(self.masters[name]))


def _take_gradient(states: ReferenceType[ReplicatedStates], name: str, copy: Tensor) -> None:
    owner = states()
    assert owner is not None, "the stage outlived its states"
    owner.take_gradient(name, copy)


class _Reduction:
    """A sum over a group under way: gradients flattened into one message."""

    def __init__(self, grads: list[Tensor], group: dist.ProcessGroup) -> None:
        self.grads = grads
        self.flat = torch.cat([grad.flatten() for grad in grads])
        self.work = dist.all_reduce(self.flat, group=group, async_op=True)

    def wait(self) -> None:
        """Put the sums back in place."""
        cast(dist.Work, self.work).wait()
        for grad, part in zip(self.grads, self.flat.split([g.numel() for g in self.grads]), strict=True):
            grad.copy_(part.view_as(grad))


class ShardedStates:
    """zero_stage 2 and 3: FSDP2 over dp x sp, one unit a layer, the rest of the stage in the root unit."""

    def __init__(
        self, stage: Stage, compute_dtype: torch.dtype, zero_stage: int, device: torch.device
    ) -> None:
        build = stage.build
        policy = MixedPrecisionPolicy(
            param_dtype=None if compute_dtype == build.dtype else compute_dtype,
            reduce_dtype=build.dtype,
            cast_forward_inputs=False,
        )
        for module in (*stage.layers.values(), stage):
            fully_shard(
                module, mesh=build.mesh.dp_sp_mesh, mp_policy=policy, reshard_after_forward=zero_stage == 3
            )
        stage.to_empty(device=device)
        self.units = [module for module in stage.modules() if isinstance(module, FSDPModule)]
        for unit in self.units:
            unit.set_gradient_divide_factor(1.0)
            # Without it float32 on gloo fails: a divide factor asks for ReduceOp.PREMUL_SUM.
            unit.set_force_sum_reduction_for_comms(True)
        self.root = cast(FSDPModule, stage)
        self.keep_gathered = zero_stage == 2
        self.masters = dict(stage.named_parameters())
        self.replication = 1

    def before_backward(self, last: bool) -> None:
        if self.keep_gathered:
            # zero 2: gather once a step, drop after the last backward.
            self.root.set_reshard_after_backward(last)

    def finish(self) -> None:
        """FSDP2 has reduced within each backward."""

    def publish(self) -> None:
        """FSDP2 gathers from the updated shards."""


def build_states(
    stage: Stage, compute_dtype: torch.dtype, master_dtype: torch.dtype, zero_stage: int, device: torch.device
) -> States:
    """Materialise a meta-device stage on `device` with its states placed as `zero_stage` says."""
    if zero_stage == 0:
        return ReplicatedStates(stage, master_dtype, device)
    return ShardedStates(stage, compute_dtype, zero_stage, device)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _buckets(names: list[str], parameters: dict[str, nn.Parameter]) -> list[list[str]]:
    """Names in their order, cut where a bucket has reached BUCKET_BYTES."""
    buckets: list[list[str]] = []
    size = BUCKET_BYTES
    for name in names:
        if size >= BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(name)
        size += _local(parameters[name]).nbytes
    return buckets


def all_reduce_flat(tensors: list[Tensor], group: dist.ProcessGroup) -> None:
    """Sum tensors of one dtype over a group, in place, in one message."""
    _Reduction(tensors, group).wait()
