"""One rank's real training step on fake tensors: the trainer of a run, built in a fake process group.

Nothing of the step is rewritten: the same Trainer, Stage, states, driver, optimizer and clipping run, on
tensors that have shapes and no data, and a Tracker counts their storages. What differs is what has no meaning
without data: weights are not filled, and a scalar read from a tensor is one.
Layers are equal, and so are micro-batches once the pipeline is full: `Reduced` says which of them run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from seqplan.planner.layout import Layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.schedule import Action, Exchange
from seqplan.planner.train_spec import TrainSpec
from seqplan.runtime import ring_attention, rsa
from seqplan.runtime.data import BatchPart, MicroBatch
from seqplan.runtime.data_parallel import States
from seqplan.runtime.model import Stage
from seqplan.runtime.modules import Build
from seqplan.runtime.options import RunOptions
from seqplan.runtime.pipeline import PipelineDriver
from seqplan.runtime.simulation.simulate_tracker import Tracker
from seqplan.runtime.trainer import Trainer

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Reduced:
    """What runs of a step: an action list over some micro-batches, and some of the stage's layers."""

    actions: list[Action]
    layers: tuple[int, ...]
    """Numbers of the layers on the stage."""
    micro_batches: int
    whole_last: bool
    """All layers run of the last micro-batch: in its backward replicated states sum gradients in buckets that
    know no layers."""

    def runs(self, layer: int, micro_batch: int) -> bool:
        return layer in self.layers or (self.whole_last and micro_batch == self.micro_batches - 1)


def operator_bodies() -> dict[Any, Any]:
    """The Python bodies of the attention operators: what their fake registrations allocate is unseen."""
    operators = (ring_attention._forward_op, ring_attention._backward_op, rsa._forward_op, rsa._backward_op)
    return {operator._opoverload: operator._init_fn for operator in operators}


def fullest_rank(layout: Layout, stage: int) -> int:
    """Global rank of the stage's rank with the most memory: the last of its ring, the first of other axes.

    The first shards are the largest where ranks do not divide them; in a causal ring all ranks but the first
    meet a block with all their queries.
    """
    place = {"pp": stage, "dp": 0, "sp": layout.sp - 1, "tp": 0}
    rank = 0
    for axis in layout.mesh_order:
        rank = rank * layout.degrees[axis] + place[axis]
    return rank


@contextmanager
def fake_group(rank: int, world_size: int) -> Iterator[None]:
    """A process group of any size whose only process is this one; its collectives move nothing."""
    hook = sys.excepthook
    dist.init_process_group("fake", rank=rank, world_size=world_size)
    sys.excepthook = hook  # torch's would print a rank before each line of a traceback
    try:
        yield
    finally:
        dist.destroy_process_group()


class FakeStage(Stage):
    """A Stage of fake parameters that tells the tracker what its tensors are for."""

    def __init__(self, build: Build, fake: FakeTensorMode, tracker: Tracker) -> None:
        super().__init__(build)
        self.fake, self.tracker = fake, tracker
        self.reduced: Reduced | None = None
        self.micro_batch = 0
        self.in_backward = False

    def to_empty(self, *, device: Any, recurse: bool = True) -> FakeStage:
        with self.fake:
            return super().to_empty(device=device, recurse=recurse)

    def numbered_layers(self) -> Iterable[tuple[int, nn.Module]]:
        """Those that run, with marks around each."""
        for index, layer in super().numbered_layers():
            if self.reduced is None or self.reduced.runs(index, self.micro_batch):
                self.tracker.mark("layer", index)
                yield index, layer
        self.tracker.mark("after layers")

    def watch(self) -> None:
        """Hooks that mark each layer's backward and what a forward leaves behind; after FSDP2's own."""
        for index, layer in Stage.numbered_layers(self):
            starts: list[int] = []
            layer.register_forward_pre_hook(lambda *_, s=starts: s.append(len(self.tracker.events)))
            layer.register_forward_hook(self._layer_hook(index, starts), always_call=True)
        if self.build.mesh.last_stage:
            self.head.register_forward_hook(lambda _m, _i, logits: self.tracker.classify([logits], "logits"))

    def _layer_hook(self, index: int, starts: list[int]) -> Any:
        def hook(_module: Any, inputs: tuple[Any, ...], result: Any) -> None:
            self.tracker.keep_since(starts.pop())
            if self.in_backward or result is None:
                return
            result.register_hook(lambda _grad: self.tracker.mark("layer", index))
            if index == 0 and inputs[0].requires_grad:
                inputs[0].register_hook(lambda _grad: self.tracker.mark("after layers"))

        return hook

    def forward(self, x_BRE: Tensor | None, micro_batch: MicroBatch, seed: int | None) -> Tensor:
        start = len(self.tracker.events)
        if x_BRE is not None:
            self.tracker.classify([x_BRE], "activations")
        y = super().forward(x_BRE, micro_batch, seed)
        self.tracker.keep_since(start)
        if not self.build.mesh.last_stage:
            self.tracker.classify([y], "comm_buffers")
        return y


@dataclass(frozen=True)
class FakeDriver(PipelineDriver):
    """Marks every action."""

    tracker: Tracker

    def _forward(self, index: int, *rest: Any) -> Tensor:
        self.tracker.mark("forward", index)
        self._fake_stage.micro_batch = index
        return super()._forward(index, *rest)

    def _backward(self, index: int, *rest: Any) -> None:
        self.tracker.mark("backward", index)
        self._fake_stage.in_backward = True
        super()._backward(index, *rest)
        self._fake_stage.in_backward = False
        if index == 0:  # layers that did not run have their gradients from here on too
            self.tracker.mark("missing gradients")
            give_missing_gradients(self.states, self.tracker)
            self.tracker.mark("after missing gradients")

    @property
    def _fake_stage(self) -> FakeStage:
        assert isinstance(self.stage, FakeStage)
        return self.stage

    def _exchange(self, exchange: Exchange, *rest: Any) -> None:
        self.tracker.mark("exchange", *(transfer.direction for transfer in exchange.transfers))
        super()._exchange(exchange, *rest)


class FakeTrainer(Trainer):
    """A Trainer on fake tensors. It has states and optimizer of all layers, also of those that do not run."""

    def __init__(
        self, model: ModelSpec, train: TrainSpec, layout: Layout, fake: FakeTensorMode, tracker: Tracker
    ) -> None:
        self.fake, self.tracker = fake, tracker
        super().__init__(model, train, layout, RunOptions(steps=2), CPU)
        d = self.driver
        self.driver = FakeDriver(d.stage, d.states, d.mesh, d.device, d.compute_dtype, tracker)
        tracker.classify((*self.stage.parameters(), *self.states.masters.values()), "weights")
        self.fake_stage.watch()
        for name, parameter in self.stage.named_parameters():
            parameter.register_post_accumulate_grad_hook(self._gradient_hook(name))

    @property
    def fake_stage(self) -> FakeStage:
        assert isinstance(self.stage, FakeStage)
        return self.stage

    def build_stage(self, build: Build) -> Stage:
        return FakeStage(build, self.fake, self.tracker)

    def fill_weights(self) -> None:
        """Values do not matter."""

    def actions(self, num_microbatches: int) -> list[Action]:
        reduced = self.fake_stage.reduced
        return super().actions(num_microbatches) if reduced is None else reduced.actions

    def simulate_step(self, micro_batches: list[MicroBatch], step: int, reduced: Reduced | None) -> None:
        """One train_step; of the layers and micro-batches only what `reduced` says (None: all)."""
        self.fake_stage.reduced = reduced
        self.tracker.mark("step")
        self.train_step(micro_batches, step)
        self._see_states()
        if step == 0:
            self._watch_gathered()

    def update_only(self) -> None:
        """The optimizer's part of a first step: all that it leaves behind where states are replicated."""
        self.tracker.mark("step")
        give_missing_gradients(self.states, self.tracker)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.states.publish()
        self._see_states()

    def _see_states(self) -> None:
        states = (value for state in self.optimizer.state.values() for value in state.values())
        self.tracker.classify((value for value in states if isinstance(value, Tensor)), "optimizer")

    def _run(
        self, actions: list[Action], micro_batches: list[MicroBatch], seed: int | None
    ) -> tuple[float, int]:
        result = super()._run(actions, micro_batches, seed)
        self.tracker.mark("after actions")
        return result

    def _watch_gathered(self) -> None:
        """FSDP2's gathered weights, whose gradients come before the shards'; the first step makes them."""
        for unit in self.stage.modules():
            group = unit._get_fsdp_state()._fsdp_param_group if isinstance(unit, FSDPModule) else None
            for parameter in group.fsdp_params if group is not None else ():
                if hasattr(parameter, "_unsharded_param"):
                    parameter.unsharded_param.register_post_accumulate_grad_hook(
                        lambda gathered: self.tracker.classify([gathered.grad], "gradients")
                    )

    def _gradient_hook(self, name: str) -> Any:
        def hook(parameter: Tensor) -> None:
            for each in (parameter, self.states.masters[name]):
                if each.grad is not None:
                    self.tracker.classify([each.grad], "gradients")

        return hook


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()


def give_missing_gradients(states: States, tracker: Tracker) -> None:
    """Gradients for the masters that have none. FSDP2 pads the shards of the last rank, gradients too."""
    for master in states.masters.values():
        if master.grad is None:
            master.grad = torch.empty_like(master)
            _storage(master.grad).resize_(_storage(master).nbytes())
            tracker.classify([master.grad], "gradients")


def fake_micro_batches(trainer: FakeTrainer, on_gpu: bool) -> list[MicroBatch]:
    """A step's micro-batches as data.py makes them, without padding; on a GPU each has its positions."""
    mesh = trainer.mesh
    train, layout = trainer.stage.build.train, trainer.layout
    part = BatchPart.of(train, layout, trainer.model.causal, mesh.dp_rank, mesh.sp_rank)
    tokens = train.seq_len // layout.sp

    def positions() -> Tensor:
        return torch.empty(tokens, dtype=torch.int64)

    shared = None if on_gpu else positions()
    found = []
    for _ in range(part.num_microbatches):
        ids, labels = (torch.empty(layout.micro_batch_size, tokens, dtype=torch.int64) for _ in range(2))
        rows = torch.empty(layout.micro_batch_size, dtype=torch.int64)
        found.append(MicroBatch(ids, labels, None, positions() if shared is None else shared, rows))
        trainer.tracker.classify((ids, labels, rows, found[-1].positions), "activations")
    return found
