"""Which nodes a run has and which of them this is: from the flags, from SLURM, or from an outer launcher.

The world size is the plan's; it is never taken from the number of GPUs that happen to be visible (that
guess dead-locks when a node has more of them). What the environment says is only checked against it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from seqplan.planner.errors import SeqplanError
from seqplan.runtime.options import RunOptions

_FIRST_PORT = 20000
_NUM_PORTS = 10000
_LAST_PORT = 65535


@dataclass(frozen=True)
class Nodes:
    """This node's part of the world."""

    nnodes: int
    node_rank: int
    local_world_size: int
    endpoint: str | None
    """HOST:PORT of node 0; None on a single node."""


def find_nodes(options: RunOptions, world_size: int, environment: Mapping[str, str]) -> Nodes:
    """The flags, where they are given, else SLURM's variables, else this machine alone."""
    in_slurm = options.nnodes is None and _number(environment, "SLURM_NNODES") > 1
    nnodes = _number(environment, "SLURM_NNODES") if in_slurm else options.nnodes or 1
    node_rank = options.node_rank
    endpoint = options.rdzv_endpoint
    faults = []
    if in_slurm:
        tasks = _number(environment, "SLURM_STEP_NUM_TASKS")
        if tasks not in (0, nnodes):
            faults.append(f"SLURM started {tasks} tasks on {nnodes} nodes; one a node starts all its ranks")
        if node_rank is None:
            node_rank = _number(environment, "SLURM_NODEID")
        if endpoint is None:
            nodelist = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
            if nodelist:
                port = _FIRST_PORT + _number(environment, "SLURM_JOB_ID") % _NUM_PORTS
                endpoint = f"{first_host(nodelist)}:{port}"
            else:
                faults.append(
                    f"SLURM_NNODES={nnodes}, but SLURM_JOB_NODELIST, which names node 0, is not set"
                )
    if nnodes > 1:
        if node_rank is None:
            faults.append(f"nnodes={nnodes} needs --node-rank (0 to {nnodes - 1})")
        if endpoint is None or not re.fullmatch(r"(.+):(\d+)", endpoint):
            typed = "" if endpoint is None else f", not {endpoint!r}"
            faults.append(f"nnodes={nnodes} needs --rdzv-endpoint HOST:PORT of node 0{typed}")
    elif endpoint is not None:
        faults.append(f"rdzv_endpoint={endpoint} is given, but nnodes is 1")
    if node_rank is not None and node_rank >= nnodes:
        faults.append(f"node_rank={node_rank} must be below nnodes={nnodes}")
    if world_size % nnodes:
        divisors = ", ".join(str(n) for n in range(1, world_size + 1) if world_size % n == 0)
        faults.append(
            f"the plan's {world_size} ranks do not divide over {nnodes} nodes; nnodes may be {divisors}"
        )
    if faults:
        raise SeqplanError(
            "; ".join(faults) + ".",
            "Run the same command on every node (in SLURM: srun --ntasks-per-node=1 seqplan run ...).",
        )
    return Nodes(nnodes, node_rank or 0, world_size // nnodes, endpoint if nnodes > 1 else None)


def check_outer_launcher(world_size: int, environment: Mapping[str, str]) -> bool:
    """Whether torchrun or the like has already started the ranks; SeqplanError where it did so wrongly."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environment.keys():
        return False
    started = _number(environment, "WORLD_SIZE")
    if started != world_size:
        raise SeqplanError(
            f"The plan needs {world_size} ranks, but {started} were started (WORLD_SIZE={started}).",
            f"Start {world_size} ranks, or make a plan with --gpus {started}.",
        )
    faults = []
    rank, port = environment["RANK"], environment.get("MASTER_PORT")
    if not (rank.isdigit() and int(rank) < world_size):
        faults.append(f"RANK={rank!r} must be a number from 0 to {world_size - 1}")
    if port is None:
        faults.append("MASTER_PORT is not set, but RANK, WORLD_SIZE and MASTER_ADDR are")
    elif not (port.isdigit() and 0 < int(port) <= _LAST_PORT):
        faults.append(f"MASTER_PORT={port!r} must be a number from 1 to {_LAST_PORT}")
    if faults:
        raise SeqplanError(
            "; ".join(faults) + ".",
            "Set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for every rank, as torchrun does, or unset all"
            " four and let seqplan start the ranks.",
        )
    return True


def outer_local_world_size(environment: Mapping[str, str]) -> int:
    """Ranks of another launcher on this node."""
    return _number(environment, "LOCAL_WORLD_SIZE") or 1


def first_host(nodelist: str) -> str:
    """First host of a SLURM node list: "gpu[007-010,12],login1" -> "gpu007"; "a1-ib[3]x[1-2]" too."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodelist.strip())
    if first is None:
        raise SeqplanError(
            f"SLURM's node list {nodelist!r} names no host.", "Give --rdzv-endpoint HOST:PORT."
        )
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first.group())


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "0")
    if not text.isdigit():
        raise SeqplanError(f"{name}={text!r} is not a number.", "Unset it, or give --nnodes and --node-rank.")
    return int(text)
