"""Measures what moves between ranks: collectives over the world and over pairs, and a hop around a ring.

Ranks of a node are measured with each other, in the whole node and in pairs, all pairs at once; on several
nodes also rank i of every node with its counterparts, all at once, which is how a training step uses the
network.

On a CPU every transfer has work before it, which is taken off: ranks that compute reach a collective at
different moments, and those that wait sleep and are woken (measured with four ranks on two cores: 8.2 ms an
all-reduce of 1 MiB after a matmul, 6.2 ms one after the other). A GPU has its queue for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from seqplan.planner.calibration.samples import Transfer, TransferSample
from seqplan.runtime.calibration.calibrate_sizes import Sizes
from seqplan.runtime.calibration.calibrate_timing import InTurn, Task
from seqplan.runtime.ring import Ring
from seqplan.runtime.tensor_parallel import _all_gather_single, _reduce_scatter_single

KINDS: tuple[Transfer, ...] = ("all_reduce", "all_gather", "reduce_scatter", "neighbour")


@dataclass(frozen=True)
class LinkGroup:
    """A process group that this rank measures."""

    group: dist.ProcessGroup
    leaves_node: bool


def link_groups(ranks_per_node: int) -> list[LinkGroup]:
    """Groups of this rank; every rank makes all groups, in one order."""
    world, mine = dist.get_world_size(), dist.get_rank()
    nodes = world // ranks_per_node
    wanted: list[tuple[list[list[int]], bool]] = []
    on_node = [list(range(n * ranks_per_node, (n + 1) * ranks_per_node)) for n in range(nodes)]
    if ranks_per_node > 1:
        wanted.append((on_node, False))
    if ranks_per_node > 2 and ranks_per_node % 2 == 0:
        wanted.append(([ranks[i : i + 2] for ranks in on_node for i in range(0, ranks_per_node, 2)], False))
    if nodes > 1:
        wanted.append(([list(range(i, world, ranks_per_node)) for i in range(ranks_per_node)], True))
    groups = []
    for sets, leaves_node in wanted:
        for ranks in sets:
            group = dist.new_group(ranks)
            if mine in ranks:
                assert isinstance(group, dist.ProcessGroup)
                groups.append(LinkGroup(group, leaves_node))
    return groups


class Transfers:
    """Every kind of transfer over one group, over sizes of the whole tensor."""

    def __init__(self, device: torch.device, link: LinkGroup, sizes: Sizes) -> None:
        self.link, self.ranks = link, link.group.size()
        where = "between nodes" if link.leaves_node else "in a node"
        self.sizes: list[tuple[Transfer, int]] = []
        self.tasks = []
        work = _work(sizes.work_between, device) if sizes.work_between else None
        for size_bytes in sizes.transfer_bytes:
            elements = max(1, size_bytes // 4 // self.ranks) * self.ranks
            for kind in KINDS:
                self.sizes.append((kind, 4 * elements))
                what = f"{kind} {size_bytes >> 10} KiB, {self.ranks} ranks {where}"
                make = partial(_call, kind, link.group, elements, self.ranks, device, work)
                # Other buffers each time: training never sends what it has just sent.
                call = InTurn(make, 8.0 * elements, device.type)
                self.tasks.append(Task(what, call, together=True, beside=work))

    def samples(self) -> list[TransferSample]:
        return [
            TransferSample(
                kind=kind,
                ranks=self.ranks,
                whole_bytes=float(size_bytes),
                leaves_node=self.link.leaves_node,
                seconds=task.seconds,
            )
            for (kind, size_bytes), task in zip(self.sizes, self.tasks, strict=True)
        ]


def _work(shape: tuple[int, int, int], device: torch.device) -> Callable[[], object]:
    """A matmul of (rows, columns, depth)."""
    rows, columns, depth = shape
    left, right = torch.randn(rows, depth, device=device), torch.randn(depth, columns, device=device)
    return partial(torch.mm, left, right, out=torch.empty(rows, columns, device=device))


def _call(
    kind: Transfer,
    group: dist.ProcessGroup,
    elements: int,
    size: int,
    device: torch.device,
    work: Callable[[], object] | None,
) -> Callable[[], object]:
    """The work, then the transfer; a hop is on its way meanwhile, as in ring attention."""
    whole = torch.zeros(elements, device=device)
    part = whole.new_zeros(whole.numel() // size)
    ring, arriving = Ring(group), torch.empty_like(whole)

    def call() -> None:
        if work is not None and kind != "neighbour":
            work()
        if kind == "all_reduce":
            dist.all_reduce(whole, group=group)
        elif kind == "all_gather":
            _all_gather_single(whole, part, group=group)
        elif kind == "reduce_scatter":
            _reduce_scatter_single(part, whole, group=group)
        else:
            hop = ring.post({"block": (whole, arriving)})
            if work is not None:
                work()
            hop.wait()

    return call
