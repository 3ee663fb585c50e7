"""Planned against measured peak memory of a whole training step, on the CPU allocator's own record.

torch's profiler lists every allocation and release of the step; with what was alive before, that is the
peak. Steps are small, but no overhead hides a missing tensor: the peak is compared to 1 %.
Left out: tp > 1 and zero_stage 2 and 3, where gloo lets go of what it reduced or gathered at times of its
own: from run to run the peak varies by several activations (tp) or one layer's weights (ZeRO).
"""

from __future__ import annotations

import gc
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from seqplan.planner.memory_model import memory_estimate
from seqplan.planner.model_spec import ModelSpec
from tests.planner.formula_cases import cluster, question
from tests.ranks import run_ranks
from tests.runtime import parity
from tests.runtime.reference_model import make_batch

pytestmark = pytest.mark.ranks

RELATIVE = 0.01
"""Of the peak: the issue's 1 %."""

SIZES: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 256,
    "ffn_hidden_size": 704,
    "num_attention_heads": 8,
    "num_kv_heads": 4,
    "head_dim": 32,
    "vocab_size": 64,
    "embedding_size": 256,
    "tied_embeddings": False,
}

Case = tuple[str, int, int, dict[str, Any]]
"""Model, sequence length, sequences of a step, layout."""

ONE_RANK: list[Case] = [
    ("decoder", 512, 1, {}),  # the peak has no gradients yet
    ("decoder", 512, 2, {}),
    ("decoder", 512, 2, {"precision": "bf16"}),
    ("decoder", 512, 2, {"recompute": "full"}),
    ("decoder", 512, 2, {"kernel": "math"}),
    ("decoder", 16, 2, {}),  # the optimizer's moment
    ("wide vocabulary", 256, 2, {}),  # the loss's moment
    ("gpt2", 512, 2, {"precision": "bf16"}),
    ("encoder", 512, 2, {}),
]
TWO_RANKS: list[Case] = [
    ("decoder", 256, 4, {"pp": 2}),
    ("decoder", 2048, 2, {"sp": 2}),
    ("decoder", 2048, 2, {"sp": 2, "precision": "bf16", "recompute": "full"}),
    ("encoder", 512, 4, {"dp": 2}),
]


def model(kind: str, seq_len: int) -> ModelSpec:
    positions = {"num_kv_heads": 8, "max_position_embeddings": seq_len, "position_rows": seq_len}
    if kind == "gpt2":
        return parity.gpt2_like(**{**SIZES, **positions})
    if kind == "encoder":
        return parity.encoder(**{**SIZES, **positions, "tied_embeddings": True})
    return parity.decoder(**{**SIZES, "vocab_size": 2048 if kind == "wide vocabulary" else 64})


def degrees(case: Case) -> dict[str, Any]:
    return {"dp": 1, "pp": 1, "tp": 1, "sp": 1, "micro_batch_size": 1, **case[3]}


def alive_bytes() -> int:
    """Bytes of all tensors of this process, each storage once."""
    gc.collect()
    sizes: dict[int, int] = {}
    for found in gc.get_objects():
        if issubclass(type(found), torch.Tensor):
            local = found.to_local() if hasattr(found, "to_local") else found
            if local.device.type == "cpu":
                storage = local.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def step_peak_bytes(case: Case) -> int:
    """Peak of a step on this rank, once the optimizer's states exist."""
    kind, seq_len, rows, _ = case
    spec = model(kind, seq_len)
    batch = make_batch(spec, rows, seq_len, padded=False)
    trainer, micro_batches = parity.new_trainer(spec, parity.make_layout(spec, **degrees(case)), batch, None)
    trainer.train_step(micro_batches, 0)
    before = alive_bytes()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        trainer.train_step(micro_batches, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    held = peak = before
    for _, size in changes:
        held += size
        peak = max(peak, held)
    return peak


def measure(rank: int, world_size: int, cases: list[Case]) -> list[int]:
    return [step_peak_bytes(case) for case in cases]


def planned_bytes(case: Case) -> list[float]:
    """Allocated bytes of each stage."""
    kind, seq_len, rows, _ = case
    spec = model(kind, seq_len)
    layout = parity.make_layout(spec, **degrees(case))
    asked = question(
        spec,
        seq_len=seq_len,
        global_batch_size=rows,
        gpus=layout.world_size,
        on=cluster(kind="cpu"),
        precision=layout.precision,
    )
    return [stage.allocated_bytes for stage in memory_estimate(asked, layout).stages]


@pytest.mark.parametrize("cases", [ONE_RANK, TWO_RANKS], ids=["one rank", "two ranks"])
def test_planned_peak_is_the_measured_one(cases: list[Case]) -> None:
    world_size = max(degrees(case)["pp"] * degrees(case)["dp"] * degrees(case)["sp"] for case in cases)
    by_rank = run_ranks(world_size, measure, cases, timeout_s=240.0)
    wrong: list[str] = []
    for number, case in enumerate(cases):
        planned = planned_bytes(case)
        for rank, peaks in enumerate(by_rank):
            # One stage: every rank is it. Two: pp is the outermost axis.
            expected = planned[rank if len(planned) > 1 else 0]
            if peaks[number] != pytest.approx(expected, rel=RELATIVE):
                wrong.append(f"{case} rank {rank}: planned {expected:.0f}, measured {peaks[number]}")
    assert not wrong, "\n".join(wrong)
