"""A pick that fills the memory is said to, with the next one that does not."""

from __future__ import annotations

from seqplan.planner.question import Question
from seqplan.planner.results import ScoredLayout
from seqplan.planner.search import suggest, tight_pick
from tests.planner.formula_cases import our_trainer
from tests.planner.samples import encoder, old_cluster, question


def asked() -> Question:
    return question(
        encoder(), 64, seq_len=512, global_batch_size=512, where=old_cluster(), implementation=our_trainer()
    )


def test_a_pick_that_fills_the_memory_is_told_with_the_next_that_does_not() -> None:
    ranked = suggest(asked()).ranked
    assert tight_pick(ranked, 0.0) == ()
    first, second, third = (one for one in ranked[:3] if one.memory is not None)

    def filled(one: ScoredLayout, share: float, step_time_s: float) -> ScoredLayout:
        assert one.memory is not None
        assert one.time is not None
        memory = one.memory.model_copy(update={"peak_bytes": share * one.memory.limit_bytes})
        step = one.time.model_copy(update={"step_time_s": step_time_s})
        return one.model_copy(update={"memory": memory, "time": step})

    full = (filled(first, 0.99, 10.0), filled(second, 0.98, 10.1), filled(third, 0.6, 10.5))
    (text,) = tight_pick(full, 0.0)
    assert "leaves 1.0 % of the memory free" in text
    assert "number 3 costs 5.0 % and leaves 40 %." in text
    assert "--headroom 0.05 finds one" in tight_pick(full[:2], 0.0)[0]
    assert tight_pick(full, 0.05) == ()  # which is then the command line's default
    assert "leaves 2.0 % of the memory free" in tight_pick(full[:2], 0.01)[0]
