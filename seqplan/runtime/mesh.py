"""Layout -> DeviceMesh: the groups of each axis, and the rank order in one expression.

The mesh has the layout's axes from outermost to innermost (`mesh_order`); size-1 axes stay, so that no
caller asks whether an axis exists. dp and sp together form the flattened axis "dp_sp": parameters are
replicated (or ZeRO-sharded) over it, and gradients and token counts are summed over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Layout

DP_SP = "dp_sp"


@dataclass(frozen=True)
class Mesh:
    """The process groups of one rank. Pass it; nothing here is global."""

    device_mesh: DeviceMesh
    axis_meshes: Mapping[str, DeviceMesh]
    """One-dimensional mesh of each axis and of "dp_sp": slicing costs milliseconds, and each layer asks."""
    dp: int
    pp: int
    tp: int
    sp: int
    dp_rank: int
    pp_stage: int
    tp_rank: int
    sp_rank: int

    def group(self, axis: str) -> dist.ProcessGroup:
        """The process group of an axis: "dp", "pp", "tp", "sp" or "dp_sp"."""
        return self.axis_meshes[axis].get_group()

    @property
    def tp_mesh(self) -> DeviceMesh:
        return self.axis_meshes["tp"]

    @property
    def dp_sp_mesh(self) -> DeviceMesh:
        return self.axis_meshes[DP_SP]

    @property
    def first_stage(self) -> bool:
        return self.pp_stage == 0

    @property
    def last_stage(self) -> bool:
        return self.pp_stage == self.pp - 1

    def stage_rank(self, stage: int) -> int:
        """Global rank that holds `stage` with this rank's other coordinates."""
        return dist.get_global_rank(self.group("pp"), stage)


def build_mesh(layout: Layout, device_type: str) -> Mesh:
    """Create all groups. Every rank of the world calls it, in the same order.

    Raises SeqplanError when the world is not the size that the layout needs.
    """
    world_size = dist.get_world_size()
    if world_size != layout.world_size:
        degrees = " * ".join(f"{axis}{degree}" for axis, degree in layout.degrees.items())
        raise SeqplanError(
            f"The plan needs {layout.world_size} ranks ({degrees}), but {world_size} were started.",
            f"Start {layout.world_size} ranks, or make a plan with --gpus {world_size}.",
        )
    order = layout.mesh_order
    device_mesh = init_device_mesh(
        device_type, tuple(layout.degrees[axis] for axis in order), mesh_dim_names=order
    )
    dp_sp_mesh = device_mesh[tuple(axis for axis in order if axis in ("dp", "sp"))]._flatten(DP_SP)
    place = {axis: device_mesh.get_local_rank(axis) for axis in order}
    return Mesh(
        device_mesh=device_mesh,
        axis_meshes={DP_SP: dp_sp_mesh} | {axis: device_mesh[axis] for axis in order},
        **layout.degrees,
        dp_rank=place["dp"],
        pp_stage=place["pp"],
        tp_rank=place["tp"],
        sp_rank=place["sp"],
    )
