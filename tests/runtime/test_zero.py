"""What ZeRO really keeps sharded, under a pipeline too: the bytes of the weights between micro-batches.

torch's own pipeline stage keeps the full weights and gradients of a stage until the last micro-batch
(torch_facts 9); our driver leaves FSDP2 in charge, and this is the measurement.
"""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from seqplan.runtime.data_parallel import ShardedStates
from seqplan.runtime.modules import local
from seqplan.runtime.trainer import Trainer
from tests.ranks import run_ranks
from tests.runtime import parity
from tests.runtime.reference_model import make_batch

pytestmark = pytest.mark.ranks


def gathered_bytes(trainer: Trainer) -> int:
    """Bytes of gathered (unsharded) weights that have storage right now."""
    total = 0
    for unit in trainer.stage.modules():
        if isinstance(unit, FSDPModule):
            group = unit._get_fsdp_state()._fsdp_param_group
            assert group is not None
            for parameter in group.fsdp_params:
                for tensor in parameter.all_gather_outputs:
                    total += tensor.untyped_storage().nbytes()
    return total


def gathered_over_a_step(rank: int, world_size: int, zero_stage: int) -> dict[str, float]:
    """Largest gathered bytes after a forward, a backward and the step, over the stage's bytes."""
    model = parity.decoder(tied_embeddings=False)
    batch = make_batch(model, 16, 32, padded=False)
    layout = parity.make_layout(model, 2, 2, 1, 1, zero_stage=zero_stage)
    trainer, micro_batches = parity.new_trainer(model, layout, batch, None)
    assert isinstance(trainer.states, ShardedStates)
    stage_bytes = sum(p.numel() * p.element_size() for p in trainer.states.masters.values())
    peaks = {"forward": 0.0, "backward": 0.0, "step": 0.0}
    driver = trainer.driver
    forward, backward = type(driver)._forward, type(driver)._backward

    def watched_forward(self, *args):  # type: ignore[no-untyped-def]
        result = forward(self, *args)
        peaks["forward"] = max(peaks["forward"], gathered_bytes(trainer) / stage_bytes)
        return result

    def watched_backward(self, *args):  # type: ignore[no-untyped-def]
        backward(self, *args)
        # Gradients are reduced at once: each master already holds its shard's gradient.
        for master in trainer.states.masters.values():
            assert master.grad is not None
            assert local(master.grad).shape == local(master).shape
        peaks["backward"] = max(peaks["backward"], gathered_bytes(trainer) / stage_bytes)

    type(driver)._forward, type(driver)._backward = watched_forward, watched_backward  # type: ignore[method-assign]
    trainer.train_step(micro_batches, 0)
    peaks["step"] = gathered_bytes(trainer) / stage_bytes
    return peaks


def test_zero_3_drops_gathered_weights_after_every_forward_and_backward() -> None:
    for peaks in run_ranks(4, gathered_over_a_step, 3):
        assert peaks == {"forward": 0.0, "backward": 0.0, "step": 0.0}


def test_zero_2_gathers_once_a_step() -> None:
    for peaks in run_ranks(4, gathered_over_a_step, 2):
        assert peaks["forward"] == pytest.approx(1.0)
        assert peaks["backward"] == pytest.approx(1.0)
        assert peaks["step"] == 0.0


def sharded_bytes(rank: int, world_size: int, zero_stage: int) -> tuple[int, int]:
    model = parity.decoder()
    layout = parity.make_layout(model, 4, 1, 1, 1, zero_stage=zero_stage)
    trainer, micro_batches = parity.new_trainer(model, layout, make_batch(model, 16, 32, False), None)
    trainer.train_step(micro_batches, 0)
    whole = sum(p.numel() for p in trainer.states.masters.values())
    state = trainer.optimizer.state
    moments = sum(
        moment.to_local().numel()
        for s in state.values()
        for key, moment in s.items()
        if key.startswith("exp_avg")
    )
    assert all(
        moment.dtype == torch.float32
        for s in state.values()
        for key, moment in s.items()
        if key.startswith("exp_")
    )
    return whole, moments


@pytest.mark.parametrize(("zero_stage", "share"), [(0, 1.0), (2, 0.25), (3, 0.25)])
def test_adam_moments_are_sharded_over_dp_x_sp(zero_stage: int, share: float) -> None:
    measured = run_ranks(4, sharded_bytes, zero_stage)
    whole = measured[0][0]
    assert sum(moments for _, moments in measured) == pytest.approx(2 * whole * share * 4)
