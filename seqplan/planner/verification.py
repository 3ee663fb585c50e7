"""What `verify` answers: estimated beside simulated memory of every stage, as the JSON contract has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from seqplan.planner.results import StageMemory
from seqplan.planner.spec import Spec

DIFFERENCE_LIMIT = 0.03
"""Relative difference of a stage's bytes above which the estimate is wrong, which is a defect of ours."""


class KindBytes(Spec):
    """Allocated bytes of the fullest rank of a stage."""

    by_kind: dict[str, float] = Field(description="one entry for each of MEMORY_KINDS")
    allocated_bytes: float


class StageComparison(Spec):
    """One stage, estimated and simulated."""

    stage: int
    estimate: KindBytes
    simulated: KindBytes
    relative_difference: float = Field(description="(estimate - simulated) / simulated, of allocated_bytes")


class Verification(Spec):
    """The answer of `verify`."""

    schema_: Literal["seqplan-json/1"] = Field(default="seqplan-json/1", serialization_alias="schema")
    stages: tuple[StageComparison, ...]
    worst_relative_difference: float = Field(description="of the stage where it is largest, either way")
    warnings: tuple[str, ...] = ()
    kernels: tuple[str, ...] = Field(
        default=(),
        description="where operators of the GPU keep other tensors than a CPU's: counted as on the GPU",
    )

    @property
    def holds(self) -> bool:
        return abs(self.worst_relative_difference) <= DIFFERENCE_LIMIT


def compare(
    estimates: Sequence[StageMemory], simulated: Sequence[Mapping[str, float]], kernels: Sequence[str] = ()
) -> Verification:
    """`simulated` is bytes by kind, a mapping a stage; `kernels` are sentences on operators."""
    stages = []
    for estimate, kinds in zip(estimates, simulated, strict=True):
        allocated = sum(kinds.values())
        stages.append(
            StageComparison(
                stage=estimate.stage,
                estimate=KindBytes(by_kind=estimate.by_kind, allocated_bytes=estimate.allocated_bytes),
                simulated=KindBytes(by_kind=dict(kinds), allocated_bytes=allocated),
                relative_difference=estimate.allocated_bytes / allocated - 1.0,
            )
        )
    worst = max(stages, key=lambda each: abs(each.relative_difference))
    return Verification(
        stages=tuple(stages),
        worst_relative_difference=worst.relative_difference,
        warnings=tuple(_warning(each) for each in stages if abs(each.relative_difference) > DIFFERENCE_LIMIT),
        kernels=tuple(kernels),
    )


def _warning(stage: StageComparison) -> str:
    share = stage.relative_difference
    kinds = {
        kind: stage.estimate.by_kind.get(kind, 0.0) - size for kind, size in stage.simulated.by_kind.items()
    }
    most = max(kinds, key=lambda kind: abs(kinds[kind]))
    return (
        f"stage {stage.stage}: the estimate is {abs(share):.1%} {'above' if share > 0 else 'below'} the "
        f"simulation (limit {DIFFERENCE_LIMIT:.0%}), most of it in {most}: please report it."
    )
