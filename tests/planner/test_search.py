"""The search: complete, canonical, consistent with a brute-force loop, and honest when nothing fits."""

from __future__ import annotations

import re
from typing import Any

import pytest

from seqplan.planner.choosing.layout_grid import candidate_tables
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import AXES, Layout
from seqplan.planner.layout_space import micro_batch_sizes, stage_splits, trainer_choices
from seqplan.planner.memory_model import memory_estimate
from seqplan.planner.question import Pins, Question
from seqplan.planner.rules.legality import reasons
from seqplan.planner.search import score, suggest
from seqplan.planner.time_model import time_estimate
from tests.planner.formula_cases import our_trainer
from tests.planner.samples import GIB, decoder, encoder, gpt2, layout, old_cluster, question


def ours(model: Any = None, gpus: int = 8, **changes: Any) -> Question:
    """A question to our own trainer, whose inventory prices memory."""
    return question(model, gpus, implementation=our_trainer(), **changes)


def small(**changes: Any) -> Question:
    """A small model on 4 devices: few enough candidates for a loop in Python."""
    sizes = {"hidden_size": 512, "ffn_hidden_size": 1024, "num_attention_heads": 8, "num_kv_heads": 2}
    model = decoder(num_layers=4, **sizes)
    return ours(model, 4, **{"seq_len": 512, "global_batch_size": 8, **changes})


def every_candidate(asked: Question, pins: Pins | None = None) -> list[Layout]:
    tables = candidate_tables(asked, pins or Pins(), trainer_choices(asked))
    return [table.row(i) for table in tables for i in range(len(table))]


def test_the_search_is_a_loop_over_every_candidate() -> None:
    """Counts, ranking and pick against the scalar functions, one candidate at a time."""
    asked = small()
    candidates = every_candidate(asked)
    assert len(set(candidates)) == len(candidates)
    runnable = [each for each in candidates if not reasons(asked, each)]
    fitting = []
    for each in runnable:
        memory = memory_estimate(asked, each)
        if memory.peak_bytes <= memory.limit_bytes:
            fitting.append((time_estimate(asked, each).step_time_s, each))
    answer = suggest(asked, top=10)
    assert (answer.candidates, answer.legal, answer.fitting) == (len(candidates), len(runnable), len(fitting))
    assert answer.candidates == answer.fitting + sum(fell.count for fell in answer.rejected)
    assert answer.pick == answer.ranked[0]
    assert answer.pick is not None
    assert answer.pick.time is not None
    assert answer.pick.time.step_time_s == pytest.approx(min(fitting, key=lambda pair: pair[0])[0], rel=1e-5)
    times = [scored.time.step_time_s for scored in answer.ranked if scored.time]
    assert len(times) == 10
    assert times == pytest.approx(sorted(times), rel=1e-5)


def test_every_product_of_degrees_is_there_once_for_each_choice() -> None:
    for gpus in (1, 6, 7, 8, 24):
        asked = ours(gpus=gpus, global_batch_size=24)
        found = {tuple(each.degrees.values()) for each in every_candidate(asked, Pins(recompute="none"))}
        wanted = {
            (dp, pp, tp, sp)
            for dp in range(1, gpus + 1)
            for pp in range(1, gpus + 1)
            for tp in range(1, gpus + 1)
            for sp in range(1, gpus + 1)
            if dp * pp * tp * sp == gpus
        }
        assert found == wanted


def test_an_option_without_effect_is_no_choice() -> None:
    for each in every_candidate(small()):
        assert (each.attention == "none") == (each.sp == 1)
        assert (each.schedule == "none") == (each.pp == 1)
        assert not (each.tp == 1 and each.tp_sequence_parallel)
        assert not (each.dp * each.sp == 1 and each.zero_stage)
        assert each.kernel == ("math" if each.attention == "rsa" else "flash")
    for each in every_candidate(small(attention_dropout=0.1)):
        assert each.attention == "rsa"


def test_micro_batches_are_divisors_of_a_replicas_batch() -> None:
    assert micro_batch_sizes(48, 4, Pins()) == (1, 2, 3, 4, 6, 12)
    assert micro_batch_sizes(7, 2, Pins()) == (1,)
    assert micro_batch_sizes(48, 4, Pins(micro_batch_size=5)) == (5,)
    many = micro_batch_sizes(5040, 1, Pins())
    assert many == (1, 2, 3, 4, 5, 6, 7, 8, 140, 2520, 5040)


def test_a_heavy_head_takes_layers_off_the_last_stage() -> None:
    wide = ours(decoder(num_layers=16, hidden_size=2048, ffn_hidden_size=8192))  # the head is 4 layers' worth
    even, *lighter = stage_splits(wide, 4, Pins())
    assert even == (4, 4, 4, 4)
    assert lighter == [(5, 5, 4, 2), (5, 5, 5, 1)]
    narrow = ours(decoder(num_layers=16, vocab_size=1000))
    assert stage_splits(narrow, 4, Pins()) == [(4, 4, 4, 4), (5, 4, 4, 3)]
    assert stage_splits(wide, 2, Pins(stage_layers=(10, 6))) == [(10, 6)]


PINS: list[dict[str, Any]] = [
    {"dp": 2},
    {"pp": 4, "schedule": "1f1b"},
    {"tp": 2, "tp_sequence_parallel": True},
    {"sp": 4, "attention": "rsa"},
    {"sp": 2, "attention": "ring", "kernel": "efficient"},
    {"micro_batch_size": 2},
    {"recompute": "full", "recompute_layers": 2},
    {"zero_stage": 3},
    {"pp": 2, "stage_layers": (3, 1)},
    {"mesh_order": ("dp", "pp", "tp", "sp")},
    {"dp": 2, "pp": 1, "tp": 2, "sp": 1},
]


@pytest.mark.parametrize("pinned", PINS, ids=[",".join(pins) for pins in PINS])
def test_a_pinned_field_has_its_value_in_every_answer(pinned: dict[str, Any]) -> None:
    answer = suggest(small(), Pins(**pinned))
    assert answer.pick is not None
    for scored in answer.ranked:
        for name, value in pinned.items():
            assert getattr(scored.layout, name) == value or (
                name == "recompute_layers" and scored.layout.recompute == "none"
            )


@pytest.mark.parametrize(
    ("pinned", "says", "hint"),
    [
        ({"pp": 3}, "pp=3 does not divide the 8 GPUs", "pp 1, 2, 4 or 8"),
        ({"dp": 4, "tp": 4}, "dp=4 x tp=4 = 16 does not divide the 8 GPUs", "dp 1 or 2; or tp 1 or 2"),
        (
            {"dp": 8, "pp": 1, "tp": 1, "sp": 8},
            "dp=8 x pp=1 x tp=1 x sp=8 is 64, not the 8 GPUs",
            "dp 1; or sp 1",
        ),
        ({"dp": 1, "pp": 1, "tp": 2, "sp": 2}, "is 4, not the 8 GPUs", "dp 2; or pp 2; or tp 4; or sp 4"),
        ({"dp": 3, "tp": 3}, "dp=3 x tp=3 = 9 does not divide the 8 GPUs", "Each degree must divide 8"),
        ({"stage_layers": (16, 8)}, "stage_layers=16+8 is 24 layers, and sample has 32", "32 together"),
        ({"stage_layers": (16, 16), "pp": 4}, "stage_layers=16+16 is 2 stages, and pp=4", "for each stage"),
        ({"stage_layers": (11, 11, 10)}, "pp=3 does not divide the 8 GPUs", "pp 1, 2, 4 or 8"),
        ({"recompute": "none", "recompute_layers": 1}, "recompute_layers=1 with recompute=none", "full"),
    ],
)
def test_pins_that_cannot_be(pinned: dict[str, Any], says: str, hint: str) -> None:
    with pytest.raises(SeqplanError) as caught:
        suggest(ours(), Pins(**pinned))
    assert says in caught.value.message
    assert hint in caught.value.hint


def test_when_the_pins_leave_nothing_legal_they_are_named() -> None:
    answer = suggest(ours(decoder(num_kv_heads=4), gpus=8), Pins(tp=8))
    assert answer.pick is None
    assert (answer.legal, answer.fitting, answer.ranked) == (0, 0, ())
    assert [fell.rule for fell in answer.rejected] == ["tp_kv_heads"]
    assert re.match(r"Without --tp 8 \(best with --tp [124]\): dp\d+,", answer.would_fit[0])
    assert answer.notes[-1] == "Pinned: --tp 8."


def test_what_the_trainer_lacks_is_costed_apart() -> None:
    answer = suggest(ours(decoder(parallel_block=True)), top=3)
    assert answer.pick is None
    assert len(answer.with_other_trainers) == 3
    assert all(scored.legal and scored.fits and not scored.runnable for scored in answer.with_other_trainers)
    assert any(fell.rule == "trainer_model" for fell in answer.rejected)


def too_big(**changes: Any) -> Question:
    """A 70B model on 8 devices of 80 GiB: 16 bytes x 70.6e9 are more than all of them hold."""
    return ours(llama_70b(), 8, **{"seq_len": 8192, **changes})


def llama_70b() -> Any:
    """Llama 3 70B (arXiv 2407.21783, table 3)."""
    sizes = {"num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672, "num_attention_heads": 64}
    return decoder(name="llama-70b", **sizes)


def test_when_nothing_fits_the_nearest_miss_and_a_way_out_are_shown() -> None:
    asked = too_big()
    answer = suggest(asked)
    assert answer.pick is None
    assert answer.legal > 0
    assert answer.fitting == 0
    miss = answer.nearest_miss
    assert miss is not None
    assert miss.memory is not None
    assert miss.memory.peak_bytes > miss.memory.limit_bytes
    assert miss.reasons[0].rule == "memory"
    over = (miss.memory.peak_bytes - miss.memory.limit_bytes) / GIB
    assert f"stage {miss.memory.worst_stage} needs" in miss.reasons[0].message
    assert f"{over:.1f} GiB too much" in miss.reasons[0].message
    peaks = [
        memory_estimate(asked, each).peak_bytes
        for each in every_candidate(asked, Pins(micro_batch_size=1, recompute="full"))
        if each.recompute_layers is None and not reasons(asked, each)
    ]
    assert miss.memory.peak_bytes <= min(peaks)
    (gpus_line,) = (line for line in answer.would_fit if " GPUs (" in line)
    gpus = int(gpus_line.split()[0])
    assert gpus in (16, 24, 32)
    assert suggest(ours(llama_70b(), gpus, seq_len=8192), top=1).pick is not None
    assert "Not enough on 8 GPUs: micro_batch_size=1, recompute=full, zero_stage=3" in answer.would_fit[-1]


def test_a_pin_that_stands_in_the_way_is_named() -> None:
    asked = ours(decoder(), 8, seq_len=32768, global_batch_size=8)
    answer = suggest(asked, Pins(recompute="none", micro_batch_size=8))
    assert answer.pick is None
    assert answer.fitting == 0
    lines = [line for line in answer.would_fit if line.startswith("Without --")]
    assert lines
    for line in lines:
        assert "GiB" in line


def test_an_option_that_only_other_trainers_have_is_said_as_such() -> None:
    asked = question(
        llama_70b(),
        64,
        seq_len=8192,
        implementation=our_trainer().model_copy(
            update={"capabilities": our_trainer().capabilities.model_copy(update={"recompute": ("none",)})}
        ),
    )
    answer = suggest(asked, Pins(pp=1, tp=1, sp=1))
    assert answer.pick is None
    assert any("which seqplan does not have" in line and "recompute=" in line for line in answer.would_fit)


def test_score_shows_an_illegal_layout_with_all_its_reasons() -> None:
    asked = ours(gpus=8)
    scored = score(asked, layout(asked, dp=2, tp=3, sp=2))
    assert not scored.legal
    assert scored.memory is None
    assert scored.time is None
    assert {reason.rule for reason in scored.reasons} == {"world_size", "tp_heads", "tp_kv_heads", "tp_ffn"}


def test_score_of_a_layout_that_does_not_fit_names_the_stage() -> None:
    asked = too_big()
    scored = score(asked, layout(asked, dp=1, pp=8, micro_batch_size=1))
    assert scored.legal
    assert scored.runnable
    assert not scored.fits
    assert scored.memory is not None
    assert len(scored.memory.stages) == 8
    assert scored.reasons[-1].message.startswith(f"stage {scored.memory.worst_stage} needs ")
    assert scored.memory.peak_bytes == max(stage.peak_bytes for stage in scored.memory.stages)


def test_headroom_is_kept_free() -> None:
    plain, spared = suggest(small()), suggest(small(headroom_fraction=0.999))
    assert plain.fitting > spared.fitting
    assert any(fell.rule == "memory" for fell in spared.rejected)


@pytest.mark.parametrize("gpus", [1, 6, 7, 13, 24, 96])
def test_any_world_size_gets_a_plan(gpus: int) -> None:
    answer = suggest(ours(gpt2(num_layers=24), gpus, seq_len=1024, global_batch_size=96), top=3)
    assert answer.pick is not None
    assert answer.pick.runnable
    assert answer.pick.layout.world_size == gpus
    for scored in answer.ranked:
        assert sum(scored.layout.stage_layers) == 24


@pytest.mark.parametrize(
    "asked",
    [
        ours(encoder(), 64, seq_len=512, global_batch_size=512, where=old_cluster()),
        ours(llama_70b(), 64, seq_len=8192, global_batch_size=512),
    ],
    ids=["bert-large on 64 old devices", "70B on 64"],
)
def test_thousands_of_candidates_are_searched(asked: Question) -> None:
    # How fast: benchmarks/commands.py.
    answer = suggest(asked)
    assert answer.candidates > 5000
    assert answer.pick is not None


def test_a_pin_is_a_field_of_a_layout() -> None:
    assert set(AXES) <= set(Pins.model_fields) <= set(Layout.model_fields)
