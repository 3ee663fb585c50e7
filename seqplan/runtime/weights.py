"""Initial weights that do not depend on the layout: every rank fills its own part by global index.

Modules are built on the meta device and sharded there, so no rank ever holds more than its part. A weight is
a function of (seed, parameter name, global row, global column); see random_field.py.
Source of the scales: GPT-2 (normal, 0.02; projections onto the residual stream divided by sqrt(2 layers)).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

from seqplan.planner.model_spec import ModelSpec
from seqplan.runtime.mesh import DP_SP, Mesh
from seqplan.runtime.random_field import normal, seed_of

INITIAL_DEVIATION = 0.02
FILL_ELEMENTS = 1 << 22
"""Elements made at once: bounds the working memory of initialisation."""

TOKEN_TABLE = "embedding.tokens.weight"


def canonical_name(name: str, model: ModelSpec) -> str:
    """The name whose weights a parameter starts with: a tied head is the token table."""
    return TOKEN_TABLE if name == "head.weight" and model.tied_embeddings else name


def _is_sharded(placement: Placement, dim: int) -> bool:
    # Shard, or FSDP2's _StridedShard where tp has already split that dim.
    return not placement.is_replicate() and getattr(placement, "dim", None) == dim


def local_ranges(parameter: DTensor, mesh: Mesh) -> tuple[range, range]:
    """Global rows and columns of this rank's shard: tp divides evenly, then ZeRO the rows of dim 0.

    A 1-D parameter has the single column 0. ZeRO shards are torch.chunk's: ceil(rows / ranks), the last ones
    shorter or empty (FSDP2).
    """
    names = parameter.device_mesh.mesh_dim_names or ()
    placement = dict(zip(names, parameter.placements, strict=True))
    shape = (*parameter.shape, 1)[:2]
    sizes, starts = list(shape), [0, 0]
    for dim in range(parameter.dim()):
        if _is_sharded(placement["tp"], dim):
            sizes[dim] //= mesh.tp
            starts[dim] = mesh.tp_rank * sizes[dim]
    if DP_SP in placement:
        assert _is_sharded(placement[DP_SP], 0), placement
        chunk = -(-sizes[0] // mesh.dp_sp_mesh.size())
        first = min(mesh.dp_sp_mesh.get_local_rank() * chunk, sizes[0])
        starts[0], sizes[0] = starts[0] + first, min(chunk, sizes[0] - first)
    rows, columns = (range(start, start + size) for start, size in zip(starts, sizes, strict=True))
    return rows, columns


def initialize(parameters: dict[str, nn.Parameter], model: ModelSpec, mesh: Mesh, seed: int) -> None:
    """Fill materialised parameters (DTensors of any sharding) in place."""
    for name, parameter in parameters.items():
        assert isinstance(parameter, DTensor), name
        shard = parameter.to_local().detach()
        if "norm" in name and name.endswith(".weight"):
            shard.fill_(1.0)
        elif name.endswith(".bias"):
            shard.zero_()
        else:
            rows, columns = local_ranges(parameter, mesh)
            _fill_normal(
                shard.view(len(rows), len(columns)), canonical_name(name, model), rows, columns, model, seed
            )


def _fill_normal(
    shard_RC: Tensor, name: str, rows: range, columns: range, model: ModelSpec, seed: int
) -> None:
    deviation = INITIAL_DEVIATION
    if name.endswith(("attention.output.weight", "mlp.down.weight")):
        deviation /= math.sqrt(2 * model.num_layers)
    column_ids = torch.arange(columns.start, columns.stop, device=shard_RC.device)
    for part in _row_blocks(len(rows), len(columns)):
        row_ids = torch.arange(rows.start + part.start, rows.start + part.stop, device=shard_RC.device)
        values = normal(seed_of(seed, name), row_ids, column_ids).mul_(deviation)
        if name == TOKEN_TABLE or name == "head.weight":
            values[row_ids >= model.vocab_size] = 0.0  # rows that only pad the vocabulary
        shard_RC[part.start : part.stop] = values.to(shard_RC.dtype)


def _row_blocks(rows: int, columns: int) -> Iterator[range]:
    step = max(1, FILL_ELEMENTS // max(columns, 1))
    for start in range(0, rows, step):
        yield range(start, min(start + step, rows))
