"""The few numbers of a profile that finished runs may change, and a profile with them scaled.

A step time says little by itself, so the curves stay as they are and only their heights move: how fast are
matmuls, attention, memory and each kind of link, and what does a launch cost. A share stays at most 1; where
the peak under it was measured too (not a datasheet's), the peak moves instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seqplan.planner.cluster_spec import ClusterSpec, DeviceSpec, LinkSpec
from seqplan.planner.reading.quantity import Quantity

WIDEST = 8.0
"""A factor beyond this is a profile of another machine, not one to refine."""


@dataclass(frozen=True)
class Factor:
    """One number of the profile, as a path in its file."""

    name: str
    faster: bool
    """A larger value makes steps shorter."""

    def value(self, cluster: ClusterSpec) -> Quantity:
        """The number as the profile has it."""
        part, field = self._place(cluster)
        found: Quantity = getattr(part, field)
        return found

    def bounds(self, cluster: ClusterSpec) -> tuple[float, float]:
        """Least and largest logarithm of the factor."""
        largest = WIDEST
        if self.name.endswith("efficiency") and not self._may_exceed(cluster):
            part, field = self._place(cluster)
            shares = [float(self.value(cluster)), *(float(each) for each in _single(part, field).values())]
            largest = min(WIDEST, 1.0 / max(shares))
        return -math.log(WIDEST), math.log(largest)

    def _place(self, cluster: ClusterSpec) -> tuple[DeviceSpec | LinkSpec, str]:
        part, _, field = self.name.partition(".")
        return getattr(cluster, part), field

    def _may_exceed(self, cluster: ClusterSpec) -> bool:
        """Whether what the share is of was measured, so that more than all of it can be true: on CPUs."""
        return cluster.device.kind == "cpu"


FACTORS = (
    Factor("device.matmul_efficiency", faster=True),
    Factor("device.attention_efficiency", faster=True),
    Factor("device.memory_efficiency", faster=True),
    Factor("device.kernel_launch_s", faster=False),
    Factor("intra_node.efficiency", faster=True),
    Factor("inter_node.efficiency", faster=True),
)

_SINGLE = {
    "matmul_efficiency": "matmul_dtype_efficiency",
    "attention_efficiency": "attention_dtype_efficiency",
    "memory_efficiency": "memory_dtype_efficiency",
    "efficiency": "collective_efficiency",
}
"""The table of the same number for single dtypes or kinds of transfer, which moves along."""


def _single(part: DeviceSpec | LinkSpec, field: str) -> Mapping[str, Quantity]:
    found: Mapping[str, Quantity] = getattr(part, _SINGLE[field], {}) if field in _SINGLE else {}
    return found


def scaled(cluster: ClusterSpec, factors: Mapping[Factor, float], source: str = "") -> ClusterSpec:
    """The profile with each number multiplied; `source` says by whom, with what the number was before."""
    for factor, by in factors.items():
        if by != 1.0:
            cluster = _scaled(cluster, factor, by, source)
    return cluster


def _scaled(cluster: ClusterSpec, factor: Factor, by: float, source: str) -> ClusterSpec:
    part_name, _, field = factor.name.partition(".")
    part = getattr(cluster, part_name)

    def times(number: Quantity, factor_of_it: float) -> Quantity:
        before = number.source.split("; before: ")[-1]
        said = f"{source}: {float(number):.4g} x {factor_of_it:.3f}; before: {before}" if source else before
        return Quantity(float(number) * factor_of_it, said)

    table = _single(part, field)
    shares = [float(getattr(part, field)), *(float(each) for each in table.values())]
    # What a share has beyond 1 goes to what it is a share of, and all other shares of that shrink by it.
    beyond = max(1.0, by * max(shares)) if field.endswith("efficiency") else 1.0
    update: dict[str, Any] = {field: times(getattr(part, field), by / beyond)}
    if table:
        update[_SINGLE[field]] = {name: times(each, by / beyond) for name, each in table.items()}
    if beyond > 1.0:
        update |= _raised(part, field, beyond, times)
    return cluster.model_copy(update={part_name: part.model_copy(update=update)})


def _raised(part: DeviceSpec | LinkSpec, field: str, beyond: float, times: Any) -> dict[str, Any]:
    """The measured rate under a share, `beyond` times as high, and the other shares of it."""
    if isinstance(part, LinkSpec):
        return {"bytes_per_s": times(part.bytes_per_s, beyond)}
    if field == "memory_efficiency":
        return {"memory_bytes_per_s": times(part.memory_bytes_per_s, beyond)}
    other = "attention_efficiency" if field == "matmul_efficiency" else "matmul_efficiency"
    return {
        "peak_flops_per_s": {name: times(each, beyond) for name, each in part.peak_flops_per_s.items()},
        other: times(getattr(part, other), 1.0 / beyond),
        _SINGLE[other]: {name: times(each, 1.0 / beyond) for name, each in _single(part, other).items()},
    }
