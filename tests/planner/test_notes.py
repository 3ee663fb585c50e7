"""Notes on layouts that are allowed: positions, padding, links between nodes."""

from __future__ import annotations

import pytest

from seqplan.planner.choosing.notes import axes_over_nodes, layout_warnings, vocab_padding
from seqplan.planner.rules.legality import reasons, run_reasons
from tests.planner.samples import cluster, decoder, gpt2, layout, old_cluster, question, trainer


def test_learned_positions_stop_a_run_but_not_a_plan() -> None:
    asked = question(gpt2(), seq_len=131072)
    short = layout(asked, dp=8)
    assert reasons(asked, short) == ()
    assert "beyond the 1024 learned positions" in layout_warnings(asked, short)[0]
    (reason,) = run_reasons(asked, short)
    assert reason.message == "seq_len=131072 is beyond the 1024 learned positions of gpt2; use at most 1024."
    rope = question(decoder(max_position_embeddings=8192), seq_len=32768)
    assert run_reasons(rope, layout(rope, dp=8)) == ()
    assert "max_position_embeddings=8192" in layout_warnings(rope, layout(rope, dp=8))[0]


@pytest.mark.parametrize(
    ("vocab_size", "multiple", "tp", "says"),
    [
        (128256, 1, 8, "needs no padding"),
        (128256, 64, 8, "padded to 128512, a multiple of 64 x tp=8: 256 rows of 4096 in each of two tables"),
        (50257, 64, 2, "padded to 50304, a multiple of 64 x tp=2: 47 rows"),
        (50257, 128, 2, "padded to 50432, a multiple of 128 x tp=2: 175 rows"),
    ],
)
def test_vocabulary_padding_is_counted(vocab_size: int, multiple: int, tp: int, says: str) -> None:
    asked = question(decoder(vocab_size=vocab_size), implementation=trainer(vocab_multiple=multiple))
    assert says in vocab_padding(asked, tp)
    shown = [text for text in layout_warnings(asked, layout(asked, dp=8 // tp, tp=tp)) if "padded" in text]
    assert len(shown) == (0 if "no padding" in says else 1)


def test_which_axes_leave_a_node() -> None:
    asked = question(gpus=16, where=cluster(gpus_per_node=4))
    assert axes_over_nodes(asked, layout(asked, pp=2, dp=2, tp=4)) == ("dp", "pp")
    assert axes_over_nodes(asked, layout(asked, sp=2, tp=8)) == ("tp", "sp")
    assert axes_over_nodes(asked, layout(asked, tp=2, sp=2, dp=4)) == ("dp",)
    inner_dp = layout(asked, tp=4, dp=4, mesh_order=["pp", "tp", "sp", "dp"])
    assert axes_over_nodes(asked, inner_dp) == ("tp",)
    alone = question(gpus=4, where=cluster(gpus_per_node=4))
    assert axes_over_nodes(alone, layout(alone, tp=4)) == ()
    # 3 ranks a group in nodes of 4: the second group lies on two nodes.
    three = question(gpus=12, where=cluster(gpus_per_node=4))
    assert axes_over_nodes(three, layout(three, sp=3, dp=4)) == ("dp", "sp")
    text = " ".join(layout_warnings(asked, layout(asked, sp=16)))
    assert "sp=16 spans nodes of 4 devices" in text
    assert "bandwidth" in text
    assert "accuracy" in text


def test_a_faster_dtype_that_the_trainer_lacks_is_said() -> None:
    asked = question(where=old_cluster(), precision="auto")
    (text,) = [note for note in layout_warnings(asked, layout(asked, dp=8)) if "faster" in note]
    assert "faster in fp16 than in fp32, but" in text
    assert "--precision fp16 shows what it would bring" in text
    chosen = question(where=old_cluster(), precision="fp32")
    assert not [note for note in layout_warnings(chosen, layout(chosen, dp=8)) if "faster" in note]
    modern = question(precision="auto")
    assert not [note for note in layout_warnings(modern, layout(modern, dp=8)) if "faster" in note]
