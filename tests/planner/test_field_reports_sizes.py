"""What people ran into in public with lengths, batches and world sizes, asked of ours.

Every test names the thread (repository#number) that it comes from; sizes are those of the models named
there. Each asserts what a planner should have answered.
"""

from __future__ import annotations

import pytest

from seqplan.planner.choosing.layout_table import num_microbatches
from seqplan.planner.choosing.notes import axes_over_nodes, layout_warnings
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Layout
from seqplan.planner.question import Pins
from seqplan.planner.search import score, suggest
from seqplan.planner.timing.flops import model_flops_per_step
from tests.planner.reported import QWEN_14B, ours, texts
from tests.planner.samples import cluster, decoder, layout

# Sequences


def test_a_sequence_of_2999() -> None:
    """EasyContext#47: the nearest legal lengths, good for the zigzag too."""
    assert "2992 and 3000" in texts(ours(decoder(), 4, seq_len=2999), sp=4)["sequence"]
    assert texts(ours(decoder(), 4, seq_len=3000), sp=4) == {}


def test_700000_tokens_divide_by_16() -> None:
    """EasyContext#11: legal on 8 ranks; the memory decides, and says by which part."""
    llama_7b = decoder(num_kv_heads=32, ffn_hidden_size=11008, vocab_size=32000)  # arXiv 2307.09288
    asked = ours(llama_7b, 8, seq_len=700_000, global_batch_size=1)
    assert texts(asked, sp=8) == {}
    scored = score(asked, layout(asked, sp=8, zero_stage=3))
    assert not scored.fits
    assert scored.memory is not None
    by_kind = scored.memory.stages[0].by_kind
    assert max(by_kind, key=lambda kind: by_kind[kind]) == "activations"
    assert "activations" in scored.reasons[-1].message


def test_a_ring_beyond_a_node_is_warned_of() -> None:
    """ring-flash-attention#42: bandwidth, and accuracy where blocks are rounded."""
    asked = ours(decoder(), 16, global_batch_size=16)
    (text,) = [w for w in layout_warnings(asked, layout(asked, sp=16)) if "sp=16" in w]
    assert "costs bandwidth" in text
    assert "accuracy" in text
    assert layout_warnings(asked, layout(asked, sp=8, dp=2)) == ()


def test_a_longer_sequence_is_more_work() -> None:
    """ring-flash-attention#49: 8 times the length over 8 ranks is 8 times the attention of each."""
    model = decoder(num_kv_heads=32)

    def attention(seq_len: int) -> float:  # what is linear in the length taken off
        return model_flops_per_step(model, seq_len, 1) - seq_len * model_flops_per_step(model, 1, 1)

    assert attention(8 * 32768) / 8 == pytest.approx(8 * attention(32768), rel=1e-3)


def test_the_divisor_with_token_sharding_over_tp() -> None:
    """NeMo-RL#3563: lcm(2 sp, sp tp) = 12 for sp 3 and tp 4."""
    asked = ours(decoder(), 12, seq_len=1000)
    message = texts(asked, sp=3, tp=4, tp_sequence_parallel=True)["sequence"]
    assert "not a multiple of 12" in message


def test_only_fixed_lengths_and_it_is_said() -> None:
    """verl#6050: ragged batches are not planned for."""
    answer = suggest(ours(decoder(), 16, seq_len=262_144, global_batch_size=4), Pins(tp=8, sp=2))
    assert any("every sequence has exactly 262144 tokens" in note for note in answer.notes)


def test_8_times_8_is_not_8() -> None:
    """torchtitan#1184: which axis to lower."""
    asked = ours(decoder(), 8)
    assert "needs 64 GPUs, not 8; set dp=1 or sp=1" in texts(asked, dp=8, sp=8)["world_size"]
    with pytest.raises(SeqplanError) as caught:
        suggest(asked, Pins(dp=8, sp=8))
    assert "dp=8 x sp=8 = 64 does not divide the 8 GPUs" in caught.value.message
    assert "dp 1; or sp 1" in caught.value.hint


def test_1000_tokens_over_16_ranks() -> None:
    """DeepSpeed#5177: 992 and 1024 when causal, 992 and 1008 when not."""
    causal = ours(decoder(), 16, seq_len=1000)
    both_ways = ours(decoder(architecture="encoder", head="mlm"), 16, seq_len=1000)
    assert "992 and 1024" in texts(causal, sp=16)["sequence"]
    assert "992 and 1008" in texts(both_ways, sp=16)["sequence"]


def test_40_heads_and_8_kv_heads_at_64k() -> None:
    """verl#1226: a ring has no limit of heads; tp 8 divides 40 and 8."""
    asked = ours(QWEN_14B, 8, seq_len=65536, global_batch_size=8)
    assert texts(asked, sp=8) == {}
    assert texts(asked, tp=8) == {}


def test_2_kv_heads_do_not_cap_the_ring() -> None:
    """prime-rl#3042: sp 8 with 2 kv heads."""
    asked = ours(decoder(num_kv_heads=2), 8, seq_len=131_072, global_batch_size=8)
    assert texts(asked, sp=8) == {}
    assert set(texts(asked, tp=8)) == {"tp_kv_heads"}


# Batches


def test_micro_batches_come_of_dp_not_of_the_world() -> None:
    """DeepSpeed#8395: 8 GPUs, tp 4, batch 16 in 2 micro-batches: 4 sequences each."""
    assert 16 // (2 * 2) == 4
    assert num_microbatches(16, 2, 4) == 2
    assert texts(ours(decoder(), 8, global_batch_size=16), dp=2, tp=4, micro_batch_size=4) == {}


@pytest.mark.parametrize(("batch", "lists"), [(30, "1, 2, 3, 5, 6, 10, 15 and 30"), (7, "1 and 7")])
def test_a_batch_that_dp_does_not_divide(batch: int, lists: str) -> None:
    """mosaicml/examples#41: the dp that would."""
    message = texts(ours(decoder(), 8, global_batch_size=batch), dp=8)["batch"]
    assert f"the dp that divide {batch} are {lists}" in message
    assert suggest(ours(decoder(), 8, global_batch_size=batch), top=1).pick is not None


def test_too_few_micro_batches_name_them_and_their_count() -> None:
    """nanotron#347: the message named another variable."""
    message = texts(ours(decoder(), 8, global_batch_size=4), pp=8)["microbatches"]
    assert message.startswith("num_microbatches=4 (gradient accumulation")
    assert "less than pp=8" in message


def test_few_micro_batches_punish_a_pipeline_and_the_bubble_is_shown() -> None:
    """gpt-neox#903: pp with few micro-batches was five times slower."""

    def bubble(batch: int) -> float:
        asked = ours(decoder(num_layers=32, vocab_size=64), 8, global_batch_size=batch)
        scored = score(asked, layout(asked, pp=8))
        assert scored.time is not None
        assert scored.time.by_kind["bubble"] > 0
        return scored.time.bubble_fraction

    # (p - 1) / (m + p - 1) of the step (Narayanan et al. 2104.04473), with equal stages.
    assert bubble(8) == pytest.approx(7 / 15, rel=0.1)
    assert bubble(64) == pytest.approx(7 / 71, rel=0.15)


# World sizes


def test_an_example_for_other_gpus() -> None:
    """nanotron#329: dp 16 x tp 2 shipped for 8 GPUs."""
    assert "needs 32 GPUs, not 8" in texts(ours(decoder(), 8), dp=16, tp=2)["world_size"]


def test_3_stages_on_8_gpus() -> None:
    """ColossalAI#6202: the stages that 8 GPUs allow."""
    assert "a divisor of 8 (1, 2, 4 or 8)" in texts(ours(decoder(), 8), pp=3)["world_size"]
    with pytest.raises(SeqplanError) as caught:
        suggest(ours(decoder(), 8), Pins(pp=3))
    assert caught.value.hint == "Use pp 1, 2, 4 or 8."


def test_nodes_of_6_gpus() -> None:
    """metaseq#209: 96 heads of a 175B model allow tp 6 and 3 (arXiv 2205.01068: 96 layers, 12288)."""
    model = decoder(
        name="175b",
        num_layers=96,
        hidden_size=12288,
        ffn_hidden_size=49152,
        num_attention_heads=96,
        num_kv_heads=96,
    )
    asked = ours(model, 24, where=cluster(gpus_per_node=6, num_nodes=4), global_batch_size=96)
    for tp in (3, 6):
        assert texts(asked, tp=tp, pp=24 // tp) == {}
        assert "tp" not in axes_over_nodes(asked, layout(asked, tp=tp, pp=24 // tp))
    assert "tp" in axes_over_nodes(asked, layout(asked, tp=4, pp=6))


def test_192_gpus() -> None:
    """bigcode Megatron-LM#4: dp 3 x 2^k, where the batch is a multiple of it."""
    where = cluster(num_nodes=24)
    fields = {"dp": 96, "tp": 2}
    assert texts(ours(decoder(), 192, where=where, global_batch_size=192), **fields) == {}
    message = texts(ours(decoder(), 192, where=where, global_batch_size=512), **fields)["batch"]
    assert "global_batch_size 480 or 576" in message


def test_which_axis_crosses_the_nodes() -> None:
    """torchtitan#1681: pp 2 x dp 2 x tp 4 on 4 nodes of 4."""
    asked = ours(decoder(), 16, where=cluster(gpus_per_node=4, num_nodes=4))
    split: Layout = layout(asked, pp=2, dp=2, tp=4)
    assert axes_over_nodes(asked, split) == ("dp", "pp")
    assert layout_warnings(asked, layout(asked, tp=8, dp=2))[-1].startswith("tp=8 spans nodes of 4 devices")
