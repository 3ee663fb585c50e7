"""Seconds of each collective on the links that a group of ranks really uses.

Ranks are numbered along mesh_order, the last axis fastest, and fill nodes in order; so the stride of an axis
says how many of a group's ranks share a node. A collective is alpha-beta: a latency for each step of a ring
over the group and its bytes over the slowest link on the way. Between nodes, all groups of a node
communicate at the same time and share its NICs in proportion to the ranks that they have there.

Volumes (Thakur et al. 2005): all-gather and reduce-scatter (n-1)/n of the whole tensor, all-reduce twice
that, point to point all of it. Latencies: n-1 steps of a ring; an all-reduce goes through trees where they
are shorter, and so waits no longer than an all-gather (measured on NVSwitch, H100: 10, 15 and 31 us over 2, 4
and 8 GPUs, an all-gather 8, 17 and 30 us; autoparallel's table of NCCL). What is sent in several messages,
as a layer's weights at a time, pays the latency for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_table import LayoutTable
from seqplan.planner.cluster_spec import TransferKind
from seqplan.planner.question import Question


@dataclass(frozen=True)
class Group:
    """One communicator's ranks on the nodes, a column each; the worst-placed of the axis' groups."""

    size: Floats
    ranks_per_node: Floats
    """Ranks of the group on the node where it has most; equals size where it stays inside a node."""
    sharing: Floats | None = None
    """Groups of the axis that use a node's NICs at once; None: as many as fill a node."""

    @property
    def inside_node(self) -> Any:
        return self.ranks_per_node >= self.size

    def split(self, inner_size: Floats) -> tuple[Group, Group]:
        """The group as a grid: `inner_size` neighbouring ranks, and one rank of each such block."""
        inner = Group(inner_size, np.minimum(self.ranks_per_node, inner_size), self.sharing)
        outer_size = self.size / inner_size
        per_node = np.clip(np.floor(self.ranks_per_node / inner_size), 1.0, outer_size)
        outer = Group(outer_size, per_node, None if self.sharing is None else self.sharing * inner_size)
        return inner, outer


@dataclass(frozen=True)
class Network:
    """The links of a cluster as `gpus` ranks use them."""

    gpus_per_node: int
    ranks_on_node: int
    one_node: bool
    intra_bytes_per_s: float
    intra_latency_s: float
    nic_bytes_per_s: float
    inter_latency_s: float
    nics: int
    overlaps: bool = True
    """Whether computation can hide a transfer at all; not where the same cores do both."""
    slowdowns: tuple[tuple[TransferKind, float, float], ...] = ()
    """Kinds of transfer that are slower than the links' efficiency says: factors in a node and between."""

    @classmethod
    def of(cls, question: Question) -> Network:
        cluster = question.cluster
        return cls(
            gpus_per_node=cluster.gpus_per_node,
            ranks_on_node=min(cluster.gpus_per_node, question.gpus),
            one_node=question.gpus <= cluster.gpus_per_node,
            intra_bytes_per_s=float(cluster.intra_node.bytes_per_s) * float(cluster.intra_node.efficiency),
            intra_latency_s=float(cluster.intra_node.latency_s),
            nic_bytes_per_s=float(cluster.inter_node.bytes_per_s) * float(cluster.inter_node.efficiency),
            inter_latency_s=float(cluster.inter_node.latency_s),
            nics=cluster.nics_per_node,
            overlaps=cluster.device.transfers_overlap,
            slowdowns=tuple(
                (kind, cluster.intra_node.slowdown(kind), cluster.inter_node.slowdown(kind))
                for kind in dict.fromkeys(
                    (*cluster.intra_node.collective_efficiency, *cluster.inter_node.collective_efficiency)
                )
            ),
        )

    def group(self, table: LayoutTable, axes: tuple[str, ...]) -> Group:
        """The ranks that differ in `axes` only; of a table in several orders a row of groups for each."""
        # Where ranks lie does not depend on how fast the links are.
        place = (self.gpus_per_node, self.ranks_on_node, self.one_node, axes)
        if place not in table.groups:
            found = [self._group(table, order, axes) for order in (table.mesh_order, *table.more_orders)]
            if table.more_orders:
                shape = (len(found), 1, 1, len(table))
                columns = [(group.size, group.ranks_per_node, self._sharing(group)) for group in found]
                found = [Group(*(np.reshape(column, shape) for column in zip(*columns, strict=True)))]
            table.groups[place] = found[0]
        group: Group = table.groups[place]
        return group

    def _group(self, table: LayoutTable, order: tuple[str, ...], axes: tuple[str, ...]) -> Group:
        size, per_node, block = np.ones(len(table)), np.ones(len(table)), np.ones(len(table))
        stride, others, beside = np.ones(len(table)), np.ones(len(table)), np.ones(len(table))
        for axis in reversed(order):
            degree = table.degree(axis).astype(np.float64)
            if axis in axes:
                size = size * degree
                per_node = per_node * np.clip(np.floor(self.gpus_per_node / stride), 1.0, degree)
                block = np.where(degree > 1, stride * degree, block)
                beside = np.where(degree > 1, others, beside)
            else:
                others = others * np.clip(np.ceil(self.gpus_per_node / stride), 1.0, degree)
            stride = stride * degree
        if self.one_node:
            return Group(size, size)
        # A group that would fit into a node but whose block does not divide the node is cut in two somewhere.
        cut = (per_node >= size) & (size > 1) & (np.mod(self.gpus_per_node, block) != 0)
        per_node = np.where(cut, np.ceil(size / 2), per_node)
        # On a node a block has `beside` groups. Where blocks are whole nodes, or every second end of a node
        # is the end of a block, a node shares one block with others; else one at either end.
        node = self.gpus_per_node
        ends = np.lcm(block.astype(np.int64), node) // node
        one = (np.mod(block, node) == 0) | ((ends == 2) & (block < node))
        at_once = beside * np.where(one, 1.0, 2.0)
        return Group(size, per_node, np.minimum(at_once, self.ranks_on_node))

    def _sharing(self, group: Group) -> Floats:
        """Groups that use a node's NICs at once."""
        if group.sharing is None:
            return np.asarray(self.ranks_on_node / group.ranks_per_node)
        return np.minimum(group.sharing, self.ranks_on_node)

    def _rate(self, group: Group) -> Floats:
        """Bytes a second of a ring collective: NVLink inside, this group's share of the NICs between."""
        share = self.nics * self.nic_bytes_per_s / self._sharing(group)
        between = np.where(group.ranks_per_node > 1, np.minimum(share, self.intra_bytes_per_s), share)
        return np.asarray(np.where(group.inside_node, self.intra_bytes_per_s, between))

    def _latency_s(self, group: Group) -> Floats:
        return np.where(group.inside_node, self.intra_latency_s, self.inter_latency_s)

    def _slowdown(self, kind: TransferKind, group: Group) -> Any:
        """Factor on the time of the bytes, for a kind that a profile tells apart."""
        for name, inside, between in self.slowdowns:
            if name == kind:
                return np.where(group.inside_node, inside, between)
        return 1.0

    def all_gather_s(self, whole_bytes: Any, group: Group, messages: Any = 1.0) -> Floats:
        """`whole_bytes`: of all gathered tensors together."""
        return self._around(whole_bytes, group, messages, "all_gather")

    def reduce_scatter_s(self, whole_bytes: Any, group: Group, messages: Any = 1.0) -> Floats:
        """`whole_bytes`: before it. The volume and the steps of an all-gather."""
        return self._around(whole_bytes, group, messages, "reduce_scatter")

    def _around(self, whole_bytes: Any, group: Group, messages: Any, kind: TransferKind) -> Floats:
        steps = group.size - 1.0
        transfer = steps / group.size * whole_bytes / self._rate(group) * self._slowdown(kind, group)
        return np.asarray(messages * steps * self._latency_s(group) + transfer)

    def all_reduce_s(self, tensor_bytes: Any, group: Group, messages: Any = 1.0) -> Floats:
        """The volume of a reduce-scatter and an all-gather."""
        steps = np.minimum(group.size - 1.0, 2.0 * np.log2(group.size))
        transfer = 2.0 * (group.size - 1.0) / group.size * tensor_bytes / self._rate(group)
        transfer = transfer * self._slowdown("all_reduce", group)
        return np.asarray(messages * steps * self._latency_s(group) + transfer)

    def all_to_all_s(self, held_bytes: Any, group: Group, messages: Any = 1.0) -> Floats:
        """Every rank of the group keeps 1/n of the `held_bytes` that it has and sends 1/n to each other.

        What stays on the node and what leaves it go at the same time; a rank has its share of the NICs.
        """
        near = np.minimum(group.ranks_per_node, group.size)
        inside = (near - 1.0) / group.size * held_bytes / self.intra_bytes_per_s
        nic = self.nics * self.nic_bytes_per_s / self.ranks_on_node
        outside = (group.size - near) / group.size * held_bytes / nic
        return np.asarray(
            messages * (group.size - 1.0) * self._latency_s(group) + np.maximum(inside, outside)
        )

    def neighbour_s(self, sent_bytes: Any, group: Group) -> Floats:
        """Every rank sends to the next of its group at once: a ring hop, or a stage boundary.

        The slowest pair decides: where a group leaves its node, one rank of it sends over a NIC, and as
        many groups as the node holds do the same; one flow uses one NIC at most.
        """
        flows = self._sharing(group)
        nic = np.minimum(self.nic_bytes_per_s, self.nics * self.nic_bytes_per_s / flows)
        rate = np.where(group.inside_node, self.intra_bytes_per_s, nic)
        transfer = sent_bytes / rate * self._slowdown("neighbour", group)
        return np.where(group.size > 1, self._latency_s(group) + transfer, 0.0)
