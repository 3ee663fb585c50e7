"""What the search says in words: pins as they were typed, excesses that are not zero, notes worth reading."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from seqplan.planner.choosing.played_leaders import played_leaders, told
from seqplan.planner.choosing.scan import excess_text
from seqplan.planner.question import Pins, Question
from seqplan.planner.reading.typed_form import flag_name, typed_flags, typed_value
from seqplan.planner.search import suggest
from tests.planner.formula_cases import our_trainer
from tests.planner.samples import GIB, decoder, layout, question


def ours(model: Any = None, gpus: int = 8, **changes: Any) -> Question:
    return question(model, gpus, implementation=our_trainer(), **changes)


def test_fields_are_written_as_their_flags_are_typed() -> None:
    assert flag_name("micro_batch_size") == "--micro-batch-size"
    fields = {"tp": 4, "mesh_order": ("pp", "dp", "sp", "tp"), "stage_layers": (6, 6), "recompute": "full"}
    assert typed_flags(fields) == "--tp 4 --mesh-order pp,dp,sp,tp --stage-layers 6,6 --recompute full"
    over_tp = [typed_flags({"tp_sequence_parallel": value}) for value in (True, False)]
    assert over_tp == ["--tp-sequence-parallel", "--no-tp-sequence-parallel"]
    assert typed_value(None) == "all"


def test_what_the_trainer_lacks_is_told_as_it_was_typed() -> None:
    answer = suggest(ours(), Pins(recompute="selective", mesh_order=("pp", "dp", "tp", "sp")))
    assert answer.would_fit[0].startswith("Without --recompute selective (best with --recompute ")
    assert answer.notes[-1] == "Pinned: --recompute selective --mesh-order pp,dp,tp,sp."


def test_a_mesh_order_that_is_none_is_no_pin() -> None:
    for order in (("foo",), ("pp", "dp", "tp"), ("pp", "dp", "tp", "tp")):
        with pytest.raises(ValidationError, match="name each axis once, outermost first, as in pp,dp,sp,tp"):
            Pins(mesh_order=order)
    assert Pins(mesh_order=("tp", "sp", "dp", "pp")).given() == {"mesh_order": ("tp", "sp", "dp", "pp")}


def test_no_padding_is_news_only_to_who_asked_for_a_tp() -> None:
    asked = ours(decoder(vocab_size=64 * 1000))
    assert not any("padd" in note for note in suggest(asked).notes)
    assert any("needs no padding with tp=2" in note for note in suggest(asked, Pins(tp=2)).notes)
    assert any("is padded to" in note for note in suggest(ours(decoder(vocab_size=50257))).notes)


@pytest.mark.parametrize(
    ("excess_bytes", "text"),
    [(2.06 * GIB, "2.1 GiB"), (0.1 * GIB, "0.1 GiB"), (0.02 * GIB, "20 MiB"), (3.0, "less than 1 MiB")],
)
def test_an_excess_is_never_zero(excess_bytes: float, text: str) -> None:
    assert excess_text(excess_bytes) == text


def test_the_example_of_too_much_memory_is_a_typical_one() -> None:
    (fell,) = [each for each in suggest(ours(seq_len=32768)).rejected if each.rule == "memory"]
    over = re.search(r" GiB, ([\d.]+) GiB too much; most of it is ", fell.example)
    assert over is not None, fell.example
    assert float(over[1]) >= 1


def test_a_way_out_says_how_many_layers_are_recomputed() -> None:
    """One layer recomputed is another plan than all of them: the words are those of the layout found."""
    answer = suggest(ours(gpus=1, seq_len=8192, global_batch_size=8))
    assert answer.pick is None
    (line,) = [text for text in answer.would_fit if " GPUs (" in text]
    gpus = int(line.split()[0])
    pick = suggest(ours(gpus=gpus, seq_len=8192, global_batch_size=8), top=1).pick
    assert pick is not None
    assert f" recompute={pick.layout.recompute_text} zero_stage=" in line
    pinned = suggest(ours(gpus=gpus, seq_len=8192, global_batch_size=8), Pins(recompute="selective"))
    (without,) = [text for text in pinned.would_fit if text.startswith("Without --recompute selective")]
    layers = pick.layout.recompute_layers
    flags = f"--recompute {pick.layout.recompute}" + (f" --recompute-layers {layers}" if layers else "")
    assert f"(best with {flags}): " in without


@pytest.mark.parametrize(
    ("layouts", "says"),
    [(1, "1 leader with a pipeline was played event by event"), (2, "2 leaders with pipelines were played")],
)
def test_what_was_played_is_counted_in_grammar(layouts: int, says: str) -> None:
    asked = ours()
    found = [layout(asked, pp=2, tp=4), layout(asked, pp=2, tp=2, dp=2)][:layouts]
    played = told(found, played_leaders(asked, found, 2))
    assert played is not None
    assert played.text.startswith(says)
