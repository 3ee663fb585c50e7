"""A plan trained through the launcher on real text: the same losses whatever the layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seqplan.planner.layout import Layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.train_spec import TrainSpec
from seqplan.runtime.launch import launch
from seqplan.runtime.options import RunOptions
from tests.planner import samples
from tests.runtime.fake_run import fake_plan

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(120)]

STEPS = 4
SAME_LOSS = 5e-6
"""float32 sums in another order, relative, after a few steps of training (measured: 1e-7)."""

SIZES: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 32,
    "ffn_hidden_size": 64,
    "num_attention_heads": 4,
    "num_kv_heads": 4,
    "max_position_embeddings": 64,
    "vocab_size": 320,
}


def losses(
    model: ModelSpec, folder: Path, text: Path, monkeypatch: pytest.MonkeyPatch, **fields: Any
) -> list[float]:
    """The losses of a run, from its metrics.jsonl."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    degrees = {"dp": 1, "pp": 1, "tp": 1, "sp": 1, "micro_batch_size": 2, "stage_layers": (2,), **fields}
    layout = Layout(precision="fp32", kernel="flash", **degrees)
    plan = fake_plan(1).model_copy(
        update={
            "model": model,
            "gpus": layout.world_size,
            "layout": layout,
            "train": TrainSpec(seq_len=64, global_batch_size=4, precision="fp32"),
        }
    )
    options = RunOptions(steps=STEPS, learning_rate=1e-2, output_dir=folder, timeout_s=60.0)
    assert launch(plan, [text], options).exit_code == 0
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "model",
    [samples.decoder(**SIZES), samples.encoder(**SIZES, position_rows=64)],
    ids=["decoder", "encoder"],
)
def test_losses_do_not_depend_on_the_layout(
    model: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{i} times {i + 1} is {i * (i + 1)}. " for i in range(300)))
    alone = losses(model, tmp_path / "alone", text, monkeypatch)
    split = losses(
        model,
        tmp_path / "split",
        text,
        monkeypatch,
        pp=2,
        sp=2,
        attention="ring",
        schedule="1f1b",
        stage_layers=(1, 1),
    )
    assert len(alone) == STEPS
    assert alone[-1] < alone[0]  # it learns
    assert split == pytest.approx(alone, rel=SAME_LOSS)
