"""Where the groups of one layout lie: inside a node or over nodes, who shares its network ports, how fast.

The time model prices every collective by the links that its group spans (collectives.py). Here the same
groups are put in words and numbers, so that a slow axis is seen before a run, and the ring's own question is
answered: from how many tokens a rank does a hop hide behind the block in hand?
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from seqplan.planner.choosing import data_parallel_waits
from seqplan.planner.choosing.layout_table import LayoutTable, from_layout
from seqplan.planner.collectives import Group, Network
from seqplan.planner.layout import AXES, Layout
from seqplan.planner.memory.model_states import rank_parameters
from seqplan.planner.memory.symbols import layout_values
from seqplan.planner.question import Question
from seqplan.planner.results import TimeEstimate
from seqplan.planner.timing.layer_time import LayerClock

PROBE_BYTES = 1e9
"""A message so long that its rate can be read off two times; the latency is taken off."""

LONGEST_TOKENS = 2**30
"""Tokens a rank up to which a hidden ring hop is looked for."""

CLOSE = 1.02
"""Ratio up to which the length that hides a hop is narrowed down: rates are not known better."""


@dataclass(frozen=True)
class AxisPlacement:
    """The groups of one axis (dp with sp for the gradients): all alike, or the worst-placed of them."""

    axis: str
    ranks: int
    nodes: int
    sharing: int
    """Groups that use the ports of a node at the same time."""
    bytes_per_s: float
    """One group's rate: of each rank inside a node, of its share of the ports between nodes."""
    text: str


def placements(question: Question, layout: Layout, time: TimeEstimate | None = None) -> list[AxisPlacement]:
    """One entry for each kind of communication that the layout has; with `time` its share of the step."""
    table, network = from_layout(layout, question.train), Network.of(question)
    found = []
    for name, axes in (("tp", ("tp",)), ("sp", ("sp",)), ("pp", ("pp",)), ("dp", ("dp", "sp"))):
        group = network.group(table, axes)
        if group.size[0] > 1:
            spread = spread_over_nodes(layout, axes, question.cluster.gpus_per_node)
            found.append(_placement(name, layout, question, network, group, spread, time))
    return found


@dataclass(frozen=True)
class Spread:
    """The worst-placed group of an axis, counted rank by rank."""

    nodes: int
    ranks_on_node: int
    """Where it has most."""
    sharing: int
    """Groups that leave the node that most of them leave."""


def spread_over_nodes(layout: Layout, axes: tuple[str, ...], gpus_per_node: int) -> Spread:
    """Ranks are numbered along mesh_order, the last axis fastest, and fill the nodes in order."""
    order = layout.mesh_order
    grid = np.arange(layout.world_size).reshape([layout.degrees[name] for name in order])
    places = [order.index(name) for name in axes]
    last = list(range(len(order) - len(axes), len(order)))
    size = math.prod(layout.degrees[name] for name in axes)
    nodes = np.sort(np.moveaxis(grid, places, last).reshape(-1, size) // gpus_per_node, axis=1)
    spans = 1 + np.sum(np.diff(nodes, axis=1) > 0, axis=1)
    worst = nodes[int(np.argmax(spans))]
    leaving = nodes[spans > 1]
    groups = np.repeat(np.arange(len(leaving)), size)
    pairs = np.unique(np.stack([leaving.reshape(-1), groups]), axis=1)
    at_once = np.bincount(pairs[0]).max() if len(leaving) else 1
    return Spread(int(spans.max()), int(np.unique(worst, return_counts=True)[1].max()), int(at_once))


def _placement(
    axis: str,
    layout: Layout,
    question: Question,
    network: Network,
    group: Group,
    spread: Spread,
    time: TimeEstimate | None,
) -> AxisPlacement:
    cluster = question.cluster
    ranks, on_node, sharing = int(group.size[0]), spread.ranks_on_node, spread.sharing
    split = layout.ulysses_degree
    ring = layout.sp // split
    if axis == "sp" and split > 1 and ring > 1:  # a ring for each share of the heads
        group = group.split(np.array([float(split)]))[1]
        sharing = min(sharing * split, network.ranks_on_node)
    hops = axis == "pp" or (axis == "sp" and ring > 1)
    rate = _hop_rate(network, group) if hops else _ring_rate(network, group)
    states = data_parallel_waits.NAMES[layout.zero_stage]
    who = f"{states} over dp x sp={ranks}" if axis == "dp" else f"{axis}={ranks}"
    if axis == "sp" and split > 1:
        who += f" (heads split over {split}" + (f", a ring of {ring})" if ring > 1 else ")")
    if spread.nodes == 1:
        where = f"inside a node, {_shown(rate)} a rank ({cluster.intra_node.name})"
    else:
        most = "" if ranks == on_node * spread.nodes else "up to "
        over = f"over {spread.nodes} nodes, {most}{on_node} rank{'s' * (on_node > 1)} of it on each"
        ports = f"{network.nics} port{'s' * (network.nics > 1)} ({cluster.inter_node.name})"
        if hops:
            what = "ring hop" if axis == "sp" else "transfer"
            leave = f"{sharing} {what}s leave" if sharing > 1 else f"1 {what} leaves"
            where = f"{over}; {leave} a node at once through its {ports}, {_shown(rate)} each"
        else:
            groups = f"{sharing} groups share" if sharing > 1 else "1 group has"
            where = f"{over}; {groups} a node's {ports}, {_shown(rate)} each"
    part = ""
    if time is not None:
        seconds = time.by_kind[axis]
        part = f"; {100 * seconds / time.step_time_s:.1f} % of the step waits for it"
        more = data_parallel_waits.lessening(question, layout, time) if axis == "dp" else ""
        part += f"; {more}" if more else ""
    return AxisPlacement(
        axis=axis,
        ranks=ranks,
        nodes=spread.nodes,
        sharing=sharing,
        bytes_per_s=rate,
        text=f"{who}: {where}{part}",
    )


def _ring_rate(network: Network, group: Group) -> float:
    """Bytes a second of a collective over the group, its latency left out."""
    seconds = float((network.all_gather_s(PROBE_BYTES, group) - network.all_gather_s(0.0, group))[0])
    return PROBE_BYTES * float((group.size - 1.0)[0] / group.size[0]) / seconds


def _hop_rate(network: Network, group: Group) -> float:
    """Bytes a second of a transfer to the next rank, its latency left out."""
    return PROBE_BYTES / float((network.neighbour_s(PROBE_BYTES, group) - network.neighbour_s(0.0, group))[0])


def _shown(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s"


@dataclass(frozen=True)
class RingCondition:
    """From which length on the computation of a block hides a ring's hop."""

    tokens_per_rank: int
    hides_from: int | None
    """None: no length does (a sliding window bounds the computation of a block)."""
    unhidden: str = ""
    """What is waited for at any length."""

    @property
    def hidden(self) -> bool:
        return self.hides_from is not None and self.tokens_per_rank >= self.hides_from

    @property
    def text(self) -> str:
        if self.hides_from is None:
            return "ring: at no length does a block's computation hide a hop on this link"
        told = f"from {self.hides_from:,} tokens a rank a block's computation hides a hop on this link"
        if self.hidden:
            but = f", but for {self.unhidden}" if self.unhidden else ""
            return f"ring: {told}, and there are {self.tokens_per_rank:,}: hidden{but}"
        return f"ring: {told}, and there are only {self.tokens_per_rank:,}: hops are waited for"


def ring_condition(
    question: Question, layout: Layout, time: TimeEstimate | None = None
) -> RingCondition | None:
    """Found by asking the time model itself for other lengths; None where no ring turns. With `time` also the
    share of the step that what nothing hides takes."""
    table = from_layout(layout, question.train)
    if layout.attention not in ("ring", "rsa") or int(table.ring_degree[0]) < 2:
        return None
    here = -(-question.train.seq_len // layout.sp)
    low, high = 1.0, float(LONGEST_TOKENS)
    if not _hidden(question, layout, high):
        return RingCondition(here, None)
    while high / low > CLOSE:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if _hidden(question, layout, middle) else (middle, high)
    return RingCondition(here, int(high), _unhidden(layout, time))


def _unhidden(layout: Layout, time: TimeEstimate | None) -> str:
    """What of sp's time is left where all hops are hidden (ring_time.py): a hop takes dK and dV of the block
    before it along, so those of the last block go home when no block is left to hide them."""
    parts = ["the last hop of dK and dV in each layer"] if layout.attention == "ring" else []
    parts += ["the exchange of heads"] if layout.ulysses_degree > 1 else []
    share = "" if time is None else f" ({100 * time.by_kind['sp'] / time.step_time_s:.1f} % of the step)"
    return f"{' and '.join(parts)}{share}" if parts else ""


def _hidden(question: Question, layout: Layout, tokens_per_rank: float) -> bool:
    """Whether the hops of one layer cost nothing at this length, but for the last gradients' own hop."""
    train = question.train.model_copy(update={"seq_len": round(tokens_per_rank) * layout.sp})
    asked = question.model_copy(update={"train": train})
    layout = layout.model_copy(update={"recompute": "none", "recompute_layers": None})
    table: LayoutTable = from_layout(layout, train)
    network = Network.of(asked)
    clock = LayerClock(asked, table, network)
    layer, v = clock.layer(rank_parameters(asked, table)), layout_values(asked, table)
    travelling = v["e"] if clock.costs.ring_gradients_in_compute_dtype else 4.0  # bytes of dK and dV
    sent = 2.0 * travelling * v["T"] * v["k"] * v["d"]
    last = np.where(v["ring"], v["G"] * network.neighbour_s(sent / v["G"], clock.sp_group), 0.0)
    heads = 2.0 * clock._heads_exchange_s()  # of ranks that split the heads: no part of the ring
    waited = layer.forward.sp + layer.backward.sp - last - heads
    return bool(np.all(waited <= 1e-9 * (layer.forward.compute + layer.backward.compute)))


def placement_lines(question: Question, layout: Layout, time: TimeEstimate | None) -> tuple[str, ...]:
    """The placement of every axis and the ring's condition, a line each; nothing for a single device."""
    if layout.world_size != question.gpus or layout.world_size == 1:
        return ()
    assert set(layout.mesh_order) == set(AXES)
    lines = [each.text for each in placements(question, layout, time)]
    ring = ring_condition(question, layout, time)
    return (*lines, ring.text) if ring is not None else tuple(lines)
