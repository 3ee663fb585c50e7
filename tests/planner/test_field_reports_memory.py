"""What people ran into in public with memory, asked of ours.

Every test names the thread (repository#number) that it comes from; sizes are those of the models named
there. Each asserts what a planner should have answered. (NeMo Automodel#1592, that the only way to know is to
run and see, is what the whole tool answers.)
"""

from __future__ import annotations

from typing import Any

import pytest

from seqplan.planner.choosing.fewest_devices import fewest_devices
from seqplan.planner.choosing.state_notes import bytes_per_parameter, states_note
from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.question import Pins
from seqplan.planner.results import Suggestion
from seqplan.planner.search import score, suggest
from tests.planner.memory_reports import ask, estimate, held, worst
from tests.planner.samples import GIB, cluster, decoder, gpt2, layout, old_cluster

MEGATRON: dict[str, Any] = {"precision": "fp16", "hidden_dropout": 0.1, "attention_dropout": 0.1}
"""How Megatron's scripts of 2021 train."""


def rtx3090_box() -> ClusterSpec:
    """8 GPUs of 24 GiB (GeForce RTX 3090)."""
    return cluster(memory_gib=24, num_nodes=1)


# Attention without a fused kernel


@pytest.mark.parametrize(("micro_batch", "fits"), [(2, True), (4, False), (8, False)])
def test_774m_on_one_v100(micro_batch: int, fits: bool) -> None:
    """Megatron-LM#525: the sum of parameters and activations fitted, the scores did not."""
    asked = ask("gpt2-large", "dgx-v100", 1, "megatron-2021", batch=micro_batch, **MEGATRON)
    chosen = layout(asked, micro_batch_size=micro_batch)
    scored = score(asked, chosen)
    assert scored.fits is fits
    assert scored.memory is not None
    # 36 layers, 20 heads, 1024 x 1024: probabilities 2, mask 1 and dropped probabilities 2 bytes a score.
    kept = 36 * micro_batch * 20 * 1024**2 * 5
    assert worst(scored.memory)["attention"] == pytest.approx(kept, rel=0.03)
    if not fits:
        assert "most of it is attention" in scored.reasons[-1].message


def test_scores_are_counted_where_no_kernel_is_fused() -> None:
    """The same thread: flash needs sm_80; V100 has the memory-efficient kernel, or plain matmuls."""
    asked = ask("gpt2-large", "dgx-v100", 1, seq_len=8192, batch=1)
    _, fused = estimate(asked)
    _, plain = estimate(asked, kernel="math")
    scores = 20 * 8192**2 * 4  # of one layer at a time: the kernel computes them again
    assert plain.allocated_bytes - fused.allocated_bytes > scores
    assert layout(asked).kernel == "efficient"


# States


def test_2_6b_with_tp_2_on_v100() -> None:
    """Megatron-LM#60: 16 to 18 bytes for each of 1.3 B parameters, and what that leaves."""
    model = gpt2(
        name="gpt-2.6b",
        num_layers=54,
        hidden_size=1920,
        ffn_hidden_size=7680,
        num_attention_heads=20,
        num_kv_heads=20,
    )  # 54 layers of 1920: the 2.5 B model of arXiv 1909.08053, table 2
    asked = ask(model, "dgx-v100", 64, "megatron-2021", batch=128, **MEGATRON)
    chosen, memory = estimate(asked, dp=32, tp=2, micro_batch_size=4)
    total = sum(bytes_per_parameter(asked, chosen).values())
    assert 16 <= total <= 18
    assert total * model.parameters() / 2 == pytest.approx(16 * 1.25e9, rel=0.05)
    assert not score(asked, chosen).fits
    note = states_note(asked, chosen, memory)
    left = memory.limit_bytes - held(worst(memory))
    assert f"leaves {left / GIB:.1f} GiB for the rest" in note


@pytest.mark.parametrize(
    ("where", "trainer", "fields", "says"),
    [
        ("dgx-v100", "seqplan", {}, "16 bytes a parameter (weights 4, gradients 4, optimizer 8)"),
        ("dgx-a100", "seqplan", {}, "18 bytes a parameter (weights 6, gradients 4, optimizer 8)"),
        ("dgx-a100", "seqplan", {"dp": 8, "zero_stage": 3}, "16 bytes a parameter (weights 4, gradients 4"),
        ("dgx-v100", "megatron-2021", {}, "16 bytes a parameter (weights 2, gradients 2, optimizer 12)"),
        ("dgx-a100", "megatron-core", {}, "18 bytes a parameter (weights 2, gradients 4, optimizer 12)"),
    ],
)
def test_which_bytes_a_parameter_are_counted(
    where: str, trainer: str, fields: dict[str, Any], says: str
) -> None:
    """FlagScale#408: a master copy was forgotten; the count is printed, with its parts."""
    precision: dict[str, Any] = {"precision": "fp16"} if trainer == "megatron-2021" else {}
    asked = ask("gpt2", where, 8 if fields else 1, trainer, **precision)
    chosen, memory = estimate(asked, **fields)
    note = states_note(asked, chosen, memory)
    assert says in note
    assert f"zero_stage={chosen.zero_stage}" in note
    assert (" over 8 ranks" in note) == bool(fields)


def test_neox_20b_on_8_a100() -> None:
    """gpt-neox#616: 20.55 B x 16 B are 329 GB of 640."""
    asked = ask("gpt-neox-20b", "dgx-a100", 8, seq_len=2048)
    assert asked.model.parameters() == pytest.approx(20.55e9, rel=1e-3)
    answer = suggest(asked, top=1)
    assert answer.pick is None  # its parallel blocks are not in our runtime: costed all the same
    (costed,) = answer.with_other_trainers
    assert costed.fits
    assert costed.memory is not None
    states = sum(bytes_per_parameter(asked, costed.layout).values())
    assert (states, costed.layout.zero_stage) == (16, 3)
    assert states * asked.model.parameters() == pytest.approx(329e9, rel=1e-2)


TEN_B = decoder(
    name="10b",
    num_layers=40,
    hidden_size=4480,
    ffn_hidden_size=17920,
    num_attention_heads=35,
    num_kv_heads=35,
    vocab_size=50304,
    activation="gelu",
)


def test_10b_on_8_rtx_3090() -> None:
    """gpt-neox#150: 160 GB of 192 leave no room; a smaller model of the shape that fits is named."""
    asked = ask(TEN_B, rtx3090_box(), 8, seq_len=2048)
    replicated = suggest(asked, Pins(zero_stage=0, dp=4), top=1)
    assert replicated.pick is None
    assert any("which is" in note and "GiB too much by itself" in note for note in replicated.notes)
    assert "Pinned: --dp 4 --zero-stage 0." in replicated.notes
    free = suggest(asked, top=1)
    assert free.pick is None
    for answer in (replicated, free):
        (smaller,) = [line for line in answer.would_fit if "of the 40 layers" in line]
        layers, parameters = int(smaller.split()[0]), float(smaller.split("(")[1].split()[0])
        assert 1 <= layers < 40
        assert parameters == pytest.approx(10.08 * layers / 40, abs=0.5)
    assert any("with zero_stage=" in note for note in free.notes)


def test_70b_with_zero_3_on_80_a100_40() -> None:
    """LLaMA-Factory#406: the states are 13.8 GB of 40, the activations are the cause."""
    asked = ask("llama2-70b", "dgx-a100-40", 80, seq_len=4096, batch=80)
    chosen = layout(asked, dp=80, zero_stage=3)
    shared = sum(bytes_per_parameter(asked, chosen).values()) * asked.model.parameters() / 80
    assert shared == pytest.approx(13.8e9, rel=0.01)
    scored = score(asked, chosen)
    assert not scored.fits
    assert "most of it is activations" in scored.reasons[-1].message
    answer = suggest(asked, Pins(dp=80, zero_stage=3, recompute="none"), top=1)
    assert any(
        line.startswith("Without --recompute none (best with --recompute full") for line in answer.would_fit
    )
    without_dp = [line for line in answer.would_fit if line.startswith("Without --dp 80")]
    assert ",sp" in without_dp[0]
    assert suggest(asked, top=1).pick is not None


def test_72b_at_32k_on_96_a100() -> None:
    """LLaMA-Factory#5815: 96 is no power of two; the 3 goes where it divides."""
    asked = ask("qwen2.5-72b", "dgx-a100", 96, seq_len=32768, batch=96)
    answer = suggest(asked, top=20)
    assert answer.pick is not None
    for scored in answer.ranked:
        assert scored.layout.world_size == 96
        assert scored.fits
        assert scored.layout.sp % 3  # 32768 tokens have no third
        assert scored.layout.tp in (1, 2, 4, 8)


def test_the_smallest_cluster_for_70b() -> None:
    """Megatron-LLM#52: 32 A100-80 with replicated states; with ZeRO-3 fewer, so the assumption is shown."""
    asked = ask("llama2-70b", "dgx-a100", 64, seq_len=4096, batch=64)
    for pins, gpus, zero in ((Pins(zero_stage=0), 32, 0), (Pins(), 16, 3)):
        (smallest,) = fewest_devices(asked, pins, ("all",), (8, 16, 32, 64)).smallest
        assert smallest.gpus == gpus
        assert smallest.layout is not None
        assert smallest.layout.zero_stage == zero


# What is not counted, and what is out of scope


def said(answer: Suggestion) -> str:
    return " ".join(answer.notes)


def test_7b_on_8_rtx_3090() -> None:
    """llama-cookbook#100: it fits on paper, and failed while loading, which is not counted and is said."""
    asked = ask("llama2-7b", rtx3090_box(), 8, seq_len=4096)
    answer = suggest(asked, top=1)
    assert answer.pick is not None
    assert answer.pick.memory is not None
    assert answer.pick.layout.zero_stage == 3
    states = sum(bytes_per_parameter(asked, answer.pick.layout).values()) * asked.model.parameters() / 8
    assert states == pytest.approx(13.5e9, rel=0.01)
    # Gradients are not there at the fullest moment, and some weights are gathered beside the shards.
    assert held(worst(answer.pick.memory)) < 13.5e9
    assert "loading the weights at the start is not counted" in said(answer)


def test_7b_on_4_t4() -> None:
    """llama-cookbook#235: 108 GB of states do not fit 64 GB; LoRA is another question, and it is said."""
    t4 = old_cluster(gpus_per_node=4, num_nodes=1, memory_gib=14.75)
    asked = ask("llama2-7b", t4, 4, seq_len=512, batch=4)
    answer = suggest(asked, top=1)
    assert answer.pick is None
    assert 16 * asked.model.parameters() == pytest.approx(108e9, rel=0.01)
    assert "LoRA and offload are out of scope" in said(answer)
    assert "GiB too much by itself" in said(answer)
