"""Drives one stage through the planner's action list: the loop is the schedule.

torch's own schedule classes switch FSDP2's resharding off for every micro-batch and do not run under a fake
process group (torch_facts 9), so the same list that the simulation walks and the time model plays is
executed here. The transfers of an Exchange are posted in one batch_isend_irecv, which is what makes a pair
of ranks that send to each other safe on gloo and NCCL alike.

Shapes: B micro-batch, R tokens of the residual stream on this rank, E hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from seqplan.planner.schedule import Action, Compute, Exchange, Transfer
from seqplan.runtime.data import MicroBatch
from seqplan.runtime.data_parallel import States
from seqplan.runtime.mesh import Mesh
from seqplan.runtime.model import Stage


@dataclass
class _InFlight:
    """Tensors of the micro-batches between their forward and their backward, by micro-batch."""

    inputs: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)
    edges: dict[int, GradientEdge] = field(default_factory=dict)
    output_grads: dict[int, Tensor] = field(default_factory=dict)
    input_grads: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineDriver:
    """One rank's part of a step: forwards, backwards and transfers in the order of the list."""

    stage: Stage
    states: States
    mesh: Mesh
    device: torch.device
    compute_dtype: torch.dtype

    def run(
        self, actions: list[Action], micro_batches: list[MicroBatch], loss_scale: Tensor, seed: int | None
    ) -> Tensor:
        """Execute the list; gradients accumulate in the stage.

        Returns the sum of the micro-batches' scaled losses (zero on other stages than the last).
        `loss_scale` is 1 / (counted tokens of the global batch).
        """
        flight = _InFlight()
        total = torch.zeros((), dtype=loss_scale.dtype, device=self.device)
        last_backward = max(
            (a.micro_batch for a in actions if isinstance(a, Compute) and a.kind == "backward"), default=-1
        )
        train = last_backward >= 0
        for action in actions:
            if isinstance(action, Exchange):
                self._exchange(action, micro_batches, flight)
            elif action.kind == "forward":
                total += self._forward(action.micro_batch, micro_batches, loss_scale, seed, flight, train)
            else:
                self.states.before_backward(action.micro_batch == last_backward)
                self._backward(action.micro_batch, flight)
        return total

    def _forward(
        self,
        index: int,
        micro_batches: list[MicroBatch],
        loss_scale: Tensor,
        seed: int | None,
        flight: _InFlight,
        train: bool,
    ) -> Tensor:
        x = flight.inputs.get(index)
        with torch.set_grad_enabled(train):
            y: Tensor = self.stage(x, micro_batches[index], seed)
            if self.mesh.last_stage:
                y = y * loss_scale
        if train:
            # Backward starts from the edge, so the result itself can be freed once it is sent.
            flight.edges[index] = get_gradient_edge(y)
        else:
            flight.inputs.pop(index, None)
        if self.mesh.last_stage:
            return y.detach()
        flight.outputs[index] = y.detach()
        return torch.zeros_like(loss_scale)

    def _backward(self, index: int, flight: _InFlight) -> None:
        grad = flight.output_grads.pop(index, None)
        torch.autograd.backward([flight.edges.pop(index)], None if grad is None else [grad])
        x = flight.inputs.pop(index, None)
        if x is not None:
            assert x.grad is not None
            flight.input_grads[index] = x.grad

    def _exchange(self, exchange: Exchange, micro_batches: list[MicroBatch], flight: _InFlight) -> None:
        operations: list[dist.P2POp] = []
        received: list[tuple[Transfer, Tensor]] = []
        for transfer in exchange.transfers:
            forward = transfer.direction.endswith("forward")
            sends = transfer.direction.startswith("send")
            # Activations flow to higher stages, gradients to lower ones.
            peer = self.mesh.stage_rank(self.mesh.pp_stage + (1 if sends == forward else -1))
            if sends:
                source = flight.outputs if forward else flight.input_grads
                tensor = source.pop(transfer.micro_batch).contiguous()
            else:
                tensor = self._buffer(micro_batches[transfer.micro_batch])
                received.append((transfer, tensor))
            operation = dist.isend if sends else dist.irecv
            operations.append(dist.P2POp(operation, tensor, peer, group=self.mesh.group("pp")))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for transfer, tensor in received:
            if transfer.direction == "recv_forward":
                flight.inputs[transfer.micro_batch] = tensor.requires_grad_()
            else:
                flight.output_grads[transfer.micro_batch] = tensor

    def _buffer(self, micro_batch: MicroBatch) -> Tensor:
        """[B, R, E]: what crosses a stage boundary."""
        build = self.stage.build
        batch, tokens = len(micro_batch.batch_rows), len(micro_batch.positions)
        if build.tokens_sharded:
            tokens //= self.mesh.tp
        return torch.empty(
            batch, tokens, build.model.hidden_size, dtype=self.compute_dtype, device=self.device
        )
