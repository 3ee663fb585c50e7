"""What a user is told about a time: the errors that validate finds for that trainer, and no others."""

from __future__ import annotations

import pytest

from seqplan import cli_inputs, profiles
from seqplan.planner.measured.compared_row import ComparedRow
from seqplan.planner.measured.published_comparison import ComparedSource, compare
from seqplan.planner.measured.trainer_times import trainer_times
from seqplan.planner.question import Question
from seqplan.planner.search import suggest
from seqplan.planner.time_model import time_estimate
from seqplan.planner.timing.how_sure import how_sure
from seqplan.planner.timing.trainer_time import MeasuredTimes
from seqplan.planner.train_spec import TrainSpec
from tests.planner import samples

ROUNDED = 0.0005 + 1e-9
"""The files have three decimals."""


@pytest.fixture(scope="module")
def sources() -> list[ComparedSource]:
    return [
        compare(profiles.load_published(name), cli_inputs.loaders()) for name in profiles.published_names()
    ]


def as_written(known: MeasuredTimes) -> str:
    runs = f"fitted: {str(known.fitted).lower()}, runs: {known.runs}"
    errors = f"median_error: {known.median_error:.3f}, p90_error: {known.p90_error:.3f}"
    return f"- {{trainer: {known.trainer}, device: {known.device}, {runs}, {errors}}}"


def test_the_figures_are_what_validate_finds(sources: list[ComparedSource]) -> None:
    computed: dict[str, list[MeasuredTimes]] = {}
    for known in trainer_times(sources):
        computed.setdefault(known.trainer, []).append(known)
    assert {"nanotron", "megatron-core", "nemo"} <= set(computed)
    for name in profiles.implementation_names():
        written = profiles.load_implementation(name).time.measured
        whose = {known.trainer for known in written} or {name}
        expected = [known for trainer in whose for known in computed.get(trainer, [])]
        told = "\n".join(["", f"write in {name}.yaml under time: measured:", *map(as_written, expected)])
        assert [as_written(known).split("median")[0] for known in written] == [
            as_written(known).split("median")[0] for known in expected
        ], told
        for stands, found in zip(written, expected, strict=True):
            assert stands.median_error == pytest.approx(found.median_error, abs=ROUNDED), told
            assert stands.p90_error == pytest.approx(found.p90_error, abs=ROUNDED), told


def test_a_trainer_that_nobody_timed_has_no_figures() -> None:
    for name in profiles.implementation_names():
        time = profiles.load_implementation(name).time
        assert not (time.unmeasured and time.measured), name
    assert profiles.load_implementation("seqplan").time.unmeasured


def test_a_run_of_two_publications_counts_once(sources: list[ComparedSource]) -> None:
    (sweep, cells) = (
        next(s for s in sources if s.name == name) for name in ("nanotron-sweep", "nanotron-cells")
    )
    both = sum(known.runs for known in trainer_times([sweep, cells]))
    alone = [sum(known.runs for known in trainer_times([one])) for one in (sweep, cells)]

    def told(row: ComparedRow) -> tuple[object, ...]:
        return (*row.cell[1:], str(row.layout), row.published_step_s)

    shared = {told(row) for row in sweep.rows if row.published_step_s} & {told(row) for row in cells.rows}
    assert len(shared) > 40  # every third of the cells' runs is in the sweep
    assert both == sum(alone) - len(shared)


def asked(trainer: str, where: str, gpus: int = 8) -> Question:
    return Question(
        model=samples.decoder(),
        cluster=profiles.load_cluster(where).for_gpus(gpus),
        gpus=gpus,
        train=TrainSpec(seq_len=1024, global_batch_size=8),
        implementation=profiles.load_implementation(trainer),
    )


def test_explain_and_suggest_say_how_far_off_times_are() -> None:
    question = asked("nanotron", "p5-h100")
    (said,) = how_sure(question)
    no, own = question.implementation.time.measured
    assert said.startswith(
        f"times of trainer nanotron on h100-sxm: median error {100 * no.median_error:.1f} %"
    )
    assert f"of {no.runs} published runs that set no constants; " in said
    assert f"of {own.runs} published runs that set constants (seqplan validate)" in said
    assert said in time_estimate(question, samples.layout(question)).notes
    assert said in suggest(question, top=1).notes


def test_what_is_said_of_other_devices_and_trainers() -> None:
    (elsewhere,) = how_sure(asked("nanotron", "dgx-a100"))
    assert elsewhere.startswith("no published run on a100-80; times of trainer nanotron on h100-sxm: median")
    (same_costs,) = how_sure(asked("megatron-sc21", "dgx-a100"))
    assert same_costs.startswith("times of trainer megatron-2021 (whose costs megatron-sc21 has) on a100-80:")
    assert how_sure(asked("llama3", "dgx-h100")) == ()
    (ours,) = how_sure(asked("seqplan", "dgx-h100"))
    assert "timed on a GPU" in ours
    assert how_sure(asked("nanotron", "local", 2)) == ()


def test_few_runs_have_a_worst_and_one_run_an_error() -> None:
    (said,) = how_sure(asked("nemo", "dgx-b200"))
    assert "of the one published run that set no constants" in said
    (few,) = how_sure(asked("torchtitan-2025", "dgx-h200"))
    assert ", the worst " in few
