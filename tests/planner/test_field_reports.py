"""What people ran into in public with other tools, asked of ours.

Every test names the thread (repository#number) that it comes from; sizes are those of the models named
there. Each asserts what a planner should have answered.
"""

from __future__ import annotations

import re

import pytest

from seqplan.planner.choosing.notes import layout_warnings, vocab_padding
from seqplan.planner.layout_defaults import default_stage_layers
from seqplan.planner.question import Pins
from seqplan.planner.search import score, suggest
from tests.planner.reported import DENSE_61, LLAMA3_70B, LLAMA_30B, QWEN_7B, ours, texts
from tests.planner.samples import decoder, gpt2, layout, question, trainer


def values_to_use(message: str) -> list[int]:
    """The values of tp that a message proposes."""
    found = re.search(r"use ([0-9, or]+)", message)
    assert found is not None, message
    return [int(number) for number in re.findall(r"\d+", found[1])]


# How tp may split heads


def test_52_heads_on_8_gpus() -> None:
    """DeepSpeed#3634, vllm#2652: all tp values that divide 52, and a layout that uses the 8 GPUs."""
    asked = ours(LLAMA_30B, 8)
    assert values_to_use(texts(asked, tp=8)["tp_heads"]) == [1, 2, 4, 13, 26, 52]
    assert "nearest that works is 4" in texts(asked, tp=8)["tp_heads"]
    for fields in ({"tp": 4, "pp": 2}, {"tp": 4, "dp": 2}):
        assert texts(asked, **fields) == {}
    answer = suggest(asked, Pins(tp=8))
    assert answer.pick is None
    assert {fell.rule for fell in answer.rejected} == {"tp_heads"}
    assert re.match(
        r"Without --tp 8 \(best with --tp [124]\): dp\d+,pp\d+,tp[124],sp\d+ ", answer.would_fit[0]
    )


def test_28_heads_with_4_kv_heads_on_8_gpus() -> None:
    """vllm#2652, AdaptThink#1: one line a rule, and never 7 or 14, which the kv heads forbid."""
    found = texts(ours(QWEN_7B, 8), tp=8)
    assert set(found) == {"tp_heads", "tp_kv_heads"}
    for message in found.values():
        assert values_to_use(message) == [1, 2, 4]
        assert "nearest that works is 4" in message
    # A trainer that copies kv heads may also use all 28.
    copying = question(QWEN_7B, 8, implementation=trainer(tp_copies_kv_heads=True))
    assert values_to_use(texts(copying, tp=8)["tp_heads"]) == [1, 2, 4, 28]


def test_what_28_heads_can_do_with_8_gpus() -> None:
    """vllm#11797: four axes use all 8 GPUs where tp alone cannot."""
    asked = ours(QWEN_7B, 8, seq_len=32768, global_batch_size=8)
    for fields in ({"tp": 4, "sp": 2}, {"tp": 2, "sp": 4}, {"dp": 8}, {"sp": 8}, {"pp": 2, "tp": 4}):
        assert texts(asked, **fields) == {}


def test_2_kv_heads_with_tp_4() -> None:
    """torchtitan#2574: the kv heads are named at plan time; copies are legal where the trainer makes them."""
    few = decoder(num_kv_heads=2)
    found = texts(ours(few, 4), tp=4)
    assert set(found) == {"tp_kv_heads"}
    assert "num_kv_heads=2" in found["tp_kv_heads"]
    assert texts(question(few, 4, implementation=trainer(tp_copies_kv_heads=True)), tp=4) == {}


def test_heads_and_vocabulary_that_24_divides_neither() -> None:
    """sglang#31799: both at once; tp 8 x pp 3 works, 61 layers over 3 stages."""
    unpadded = question(DENSE_61, 24, implementation=trainer(vocab_multiple=0))
    found = texts(unpadded, tp=24)
    assert {"tp_heads", "tp_vocab"} <= set(found)
    assert "num_attention_heads=128" in found["tp_heads"]
    assert "vocab_size=129280" in found["tp_vocab"]
    padded = ours(DENSE_61, 24)
    assert "tp_heads" in texts(padded, tp=24)
    assert any("vocab_size=129280 is padded" in w for w in layout_warnings(padded, layout(padded, tp=24)))
    assert texts(padded, tp=8, pp=3) == {}
    assert sorted(layout(padded, tp=8, pp=3).stage_layers) == [20, 20, 21]


def test_6_gpus_for_28_heads() -> None:
    """gpustack#885: only tp that the heads allow, and still all 6 GPUs."""
    answer = suggest(ours(QWEN_7B, 6, seq_len=3072, global_batch_size=48), top=60)
    assert answer.pick is not None
    assert {scored.layout.tp for scored in answer.ranked} == {1, 2}
    for scored in answer.ranked:
        assert scored.layout.world_size == 6
    assert {3, 6} <= {scored.layout.dp for scored in answer.ranked}


# Vocabulary


def test_128256_needs_no_padding_for_8_ranks_but_some_trainers_pad_it() -> None:
    """ColossalAI#6124: 128256 divides by 8; a trainer that pads to 64 x tp makes 128512."""
    exact = question(decoder(), implementation=trainer(vocab_multiple=1))
    assert vocab_padding(exact, 8) == "vocab_size=128256 needs no padding with tp=8."
    padded = question(decoder(), implementation=trainer(vocab_multiple=64))
    assert "padded to 128512" in vocab_padding(padded, 8)
    assert "256 rows of 4096 in each of two tables, 2,097,152 weights" in vocab_padding(padded, 8)


def test_an_odd_vocabulary_without_padding_is_refused() -> None:
    """Megatron-LM#1754: the loss silently departed there."""
    unpadded = question(gpt2(), 2, seq_len=1024, implementation=trainer(vocab_multiple=0))
    message = texts(unpadded, tp=2)["tp_vocab"]
    assert "50304" in message
    assert "50432" in message


# Layers over stages


@pytest.mark.parametrize(
    ("thread", "num_layers", "pp"),
    [("Megatron-LM#1304", 30, 4), ("Megatron-LM#381", 7, 2), ("mlx-lm#1688", 10, 3)],
)
def test_no_layer_is_lost(thread: str, num_layers: int, pp: int) -> None:
    model = decoder(num_layers=num_layers)
    stages = default_stage_layers(model, pp)
    assert sum(stages) == num_layers, thread
    assert len(stages) == pp
    assert max(stages) - min(stages) == 1
    assert stages[-1] == min(stages)
    asked = ours(model, pp, global_batch_size=8)
    assert texts(asked, pp=pp) == {}
    lost = texts(asked, pp=pp, stage_layers=[num_layers // pp] * pp)
    assert f"each of the {num_layers} layers once" in lost["stage_layers"]


def test_the_slower_of_unequal_stages_sets_the_pace() -> None:
    """Megatron-LM#381: 7 layers over 2 stages take the time of the longer stage."""
    asked = ours(decoder(num_layers=7, vocab_size=64), 2, global_batch_size=64)

    def seconds(*stages: int) -> float:
        scored = score(asked, layout(asked, pp=2, stage_layers=list(stages)))
        assert scored.time is not None
        return scored.time.step_time_s

    # m - 1 times the longest stage and once all 7 layers, m = 64: (63 x 5 + 7) / (63 x 4 + 7).
    assert seconds(5, 2) / seconds(4, 3) == pytest.approx((63 * 5 + 7) / (63 * 4 + 7), rel=0.02)


def test_the_worst_stage_decides_and_is_named() -> None:
    """Megatron-Bridge#5077: an average over stages was up to 32 % too low. vllm#12895: the last was full."""
    asked = ours(LLAMA3_70B, 64, seq_len=8192, global_batch_size=512)
    scored = score(asked, layout(asked, dp=1, pp=8, tp=8))
    assert scored.memory is not None
    peaks = [stage.peak_bytes for stage in scored.memory.stages]
    assert len(peaks) == 8
    assert scored.memory.peak_bytes == max(peaks)
    assert scored.memory.worst_stage == peaks.index(max(peaks))
    assert sum(peaks) / 8 < 0.9 * max(peaks)
