"""Layout: stages, the short form, defaults, and the table that holds many."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from seqplan.planner.choosing.layout_table import from_layout, from_layouts, num_microbatches
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Layout, parse_degrees, spread_layers
from seqplan.planner.layout_defaults import default_stage_layers, parse_layout
from tests.planner.samples import cluster, decoder, layout, old_cluster, question, trainer

STAGES: list[tuple[int, int, tuple[int, ...]]] = [
    # Layers, stages, layers of each: the ends, which hold embedding and head, have no more than the middle.
    (30, 4, (7, 8, 8, 7)),
    (7, 2, (4, 3)),
    (10, 3, (3, 4, 3)),
    (61, 3, (20, 21, 20)),
    (126, 16, (7, *[8] * 14, 7)),  # Llama 3 405B as trained: one less on both ends (2407.21783, 3.3.2)
    (12, 4, (3, 3, 3, 3)),
    (9, 4, (2, 2, 3, 2)),
    (11, 4, (3, 3, 3, 2)),
    (5, 1, (5,)),
]


@pytest.mark.parametrize(("num_layers", "pp", "expected"), STAGES)
def test_layers_of_each_stage(num_layers: int, pp: int, expected: tuple[int, ...]) -> None:
    assert default_stage_layers(decoder(num_layers=num_layers), pp) == expected


def test_every_layer_is_on_exactly_one_stage_and_the_ends_are_never_heavier() -> None:
    for num_layers, pp in itertools.product(range(1, 90), range(1, 33)):
        if pp > num_layers:
            continue
        stages = spread_layers(num_layers, pp)
        assert len(stages) == pp
        assert sum(stages) == num_layers
        assert min(stages) >= 1
        assert max(stages) - min(stages) <= 1
        assert stages[-1] == min(stages)
        if pp > 2:
            assert stages[0] <= max(stages[1:-1])


@pytest.mark.parametrize(
    "text",
    [
        "dp2,pp1,tp4,sp8",
        "dp2 pp1 tp4 sp8",
        "dp2*tp4*sp8",
        "dp2xpp1xtp4xsp8",
        "tp4 . sp8 dp2".replace(".", "\u00b7"),
    ],
)
def test_short_forms_of_one_layout(text: str) -> None:
    asked = question(decoder(num_kv_heads=32), gpus=64)
    assert parse_layout(text, asked).degrees == {"dp": 2, "pp": 1, "tp": 4, "sp": 8}


def test_short_form_with_options() -> None:
    assert parse_degrees("tp=4 mbs2 recompute=full zero3 tp_sequence_parallel=true") == {
        "tp": 4,
        "micro_batch_size": 2,
        "recompute": "full",
        "zero_stage": 3,
        "tp_sequence_parallel": True,
    }


@pytest.mark.parametrize("separator", [",", "+", " "])
def test_lists_in_the_short_form(separator: str) -> None:
    """Numbers that follow stage_layers and axes that follow mesh_order belong to them."""
    words = ["pp4", "stage_layers=7", "8", "8", "9", "mbs=2", "mesh_order=dp", "pp", "sp", "tp", "tp2"]
    assert parse_degrees(separator.join(words)) == {
        "pp": 4,
        "stage_layers": (7, 8, 8, 9),
        "micro_batch_size": 2,
        "mesh_order": ("dp", "pp", "sp", "tp"),
        "tp": 2,
    }
    asked = question(decoder(num_layers=32), gpus=8)
    assert parse_layout("pp4,tp2,stage_layers=7,8,8,9", asked).stage_layers == (7, 8, 8, 9)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stage_layers=8,8,tp2,4", "'4' is not a name with its value"),
        ("dp2,cp4", "cp (context parallelism) is called sp here"),
        ("dp2,dp4", "dp is given twice"),
        ("dp2,ep4", "'ep' is not a field of a layout"),
        ("8", "'8' is not a name with its value"),
        ("", "it is empty"),
        ("dp-2", "'dp-2' is not a name with its value"),
    ],
)
def test_an_unreadable_layout_is_explained(text: str, says: str) -> None:
    with pytest.raises(SeqplanError) as caught:
        parse_degrees(text)
    assert says in caught.value.message
    assert "dp2,pp1,tp4,sp8" in caught.value.hint


def test_flag_and_layout_must_not_disagree() -> None:
    asked = question()
    assert parse_layout("dp2,tp4", asked, {"tp": 4, "zero_stage": 3, "pp": None}).zero_stage == 3
    with pytest.raises(SeqplanError, match="--layout says tp=4 and --tp says 2"):
        parse_layout("dp2,tp4", asked, {"tp": 2})


def test_wrong_values_are_named_all_at_once() -> None:
    with pytest.raises(SeqplanError) as caught:
        layout(question(), dp=0, tp=True, micro_batch_size=2.5)
    for name in ("dp", "tp", "micro_batch_size"):
        assert f"{name} = " in caught.value.message
    with pytest.raises(SeqplanError, match="no field 'context_parallel'"):
        layout(question(), context_parallel=2)


def test_defaults_follow_from_the_degrees() -> None:
    plain = layout(question(), dp=8)
    assert (plain.attention, plain.schedule, plain.stage_layers) == ("none", "none", (32,))
    assert (plain.micro_batch_size, plain.zero_stage, plain.recompute) == (1, 0, "none")
    split = layout(question(), pp=2, sp=4)
    assert (split.attention, split.schedule, split.stage_layers) == ("ring", "1f1b", (16, 16))
    dropped = layout(question(attention_dropout=0.1), sp=8)
    assert (dropped.attention, dropped.kernel) == ("rsa", "math")
    assert layout(question(attention_dropout=0.1), dp=8).attention == "rsa"


def test_auto_precision_and_kernel_are_the_best_of_device_and_trainer() -> None:
    new, old = layout(question(), dp=8), layout(question(where=old_cluster()), dp=8)
    assert (new.precision, new.kernel) == ("bf16", "flash")
    # fp16 is the old device's fastest, but the trainer has none.
    assert (old.precision, old.kernel) == ("fp32", "efficient")
    without_fused = question(where=old_cluster(peaks={"fp32": 1e13}, kernels={"fp32": ("math",)}))
    assert layout(without_fused, dp=8).kernel == "math"
    only_fp16 = question(implementation=trainer(precisions=("fp16",)))
    assert layout(only_fp16, dp=8).precision == "fp16"
    cpu_like = cluster(
        peaks={"fp32": 1e12, "bf16": 1e12}, kernels={"fp32": ("flash", "math"), "bf16": ("flash", "math")}
    )
    assert question(where=cpu_like).precision == "fp32"  # nothing is gained, so nothing is rounded


def test_micro_batches_are_counted_over_dp_only() -> None:
    # 8 GPUs with tp 4 are dp 2: 16 sequences in 2 micro-batches of 4, not of 1.
    assert num_microbatches(16, 2, 4) == 2
    assert list(num_microbatches(64, [1, 2, 4], 2)) == [32, 16, 8]
    assert num_microbatches(3, 8, 1) == 1


def test_a_row_of_a_table_is_the_layout_it_came_from() -> None:
    asked = question(gpus=16)
    layouts = [
        layout(
            asked, dp=2, pp=2, sp=4, recompute="full", recompute_layers=3, zero_stage=2, zero_shard_size=4
        ),
        layout(asked, dp=1, pp=2, tp=8, tp_sequence_parallel=True, micro_batch_size=4, recompute="full"),
        layout(asked, dp=8, pp=2, zero_stage=3),
        layout(asked, dp=4, pp=2, sp=2, attention="rsa"),
    ]
    table = from_layouts(layouts, asked.train)
    assert [table.row(i) for i in range(4)] == layouts
    assert list(table.world_size) == [16] * 4
    assert list(table.num_microbatches) == [32, 16, 8, 16]
    assert list(table.zero_shard_size) == [4, 1, 8, 8]
    assert list(table.recompute_layers) == [3, 16, 0, 0]
    assert table.take(np.array([False, True, False, True])).row(1) == layouts[3]
    assert table.take([2, 0]).row(0) == layouts[2]
    single = from_layout(layouts[1], asked.train)
    assert len(single) == 1
    assert single.row(0) == layouts[1]


def test_a_layout_is_frozen_and_closed() -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        Layout(dp=1, pp=1, tp=1, sp=1, micro_batch_size=1, precision="bf16", stage_layers=(1,), cp=1)  # type: ignore[call-arg]


def test_tensors_are_split_in_tp_where_the_trainer_knows_no_other_way() -> None:
    """`explain --layout tp8` of torchtitan is a layout that torchtitan has."""
    for ways, split in (((False, True), False), ((True,), True), ((False,), False)):
        asked = question(decoder(), 64, implementation=trainer(tp_sequence_parallel=ways))
        assert parse_layout("dp8,tp8", asked).tp_sequence_parallel == split
        assert not parse_layout("dp64", asked).tp_sequence_parallel
        assert not parse_layout("dp8,tp8", asked, {"tp_sequence_parallel": False}).tp_sequence_parallel
