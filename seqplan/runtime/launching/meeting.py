"""What is said when ranks or nodes do not find each other: torch says it in pages of its own code."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from seqplan.planner.errors import FailedError, SeqplanError
from seqplan.runtime.launching.failures import classify
from seqplan.runtime.launching.nodes import Nodes


def nodes_did_not_meet(error: Exception, nodes: Nodes, timeout_s: float) -> SeqplanError:
    """Of the launchers, one a node, at --rdzv-endpoint."""
    text = str(error)
    if _in_use(text):
        return SeqplanError(
            f"Node {nodes.node_rank} cannot open {nodes.endpoint}: the port is in use.",
            "Give another port in --rdzv-endpoint on every node.",
        )
    if nodes.endpoint is None:
        return SeqplanError(f"The ranks of this machine could not meet: {text.splitlines()[0]}")
    others = ", ".join(str(rank) for rank in range(nodes.nnodes) if rank != nodes.node_rank)
    return SeqplanError(
        f"Not all {nodes.nnodes} nodes met at {nodes.endpoint} within {timeout_s:g} s.",
        f"Start the same command with --node-rank {others} too, with the same plan file on every node, "
        "and let every node reach that address.",
    )


@contextmanager
def ranks_meet(timeout_s: float) -> Iterator[None]:
    """Around the ranks' first meeting, at MASTER_ADDR: its usual failures as one line each."""
    try:
        yield
    except RuntimeError as error:
        said = _ranks_did_not_meet(str(error), os.environ, timeout_s)
        if said is None:
            raise
        raise said from None


def _ranks_did_not_meet(text: str, environment: Mapping[str, str], timeout_s: float) -> SeqplanError | None:
    """None: something else. (Texts of torch 2.13.)"""
    place = f"{environment.get('MASTER_ADDR')}:{environment.get('MASTER_PORT')}"
    interface = environment.get("GLOO_SOCKET_IFNAME")
    if interface is not None and "Unable to find address for" in text:
        names = ", ".join(name for _, name in socket.if_nameindex())
        return SeqplanError(
            f"GLOO_SOCKET_IFNAME={interface} is no network interface of this machine that has an address.",
            f"Unset it, or set it to one of {names}.",
        )
    if _in_use(text):
        return SeqplanError(
            f"Rank 0 cannot open {place}: the port is in use.", "Give every rank another MASTER_PORT."
        )
    if came := re.search(r"(\d+)/(\d+) clients joined", text):
        return FailedError(
            f"Only {came[1]} of {came[2]} ranks came to {place} within timeout_s={timeout_s:g} s.",
            f"Start all ranks, RANK 0 to {int(came[2]) - 1}, and look at what the others said.",
        )
    if "client socket has timed out" in text:
        rank = environment.get("RANK")
        return FailedError(
            f"Rank {rank} did not reach rank 0 at {place} within timeout_s={timeout_s:g} s.",
            "Start rank 0 too, and let every rank reach MASTER_ADDR:MASTER_PORT.",
        )
    return None


def _in_use(text: str) -> bool:
    return "EADDRINUSE" in text or "address already in use" in text


@contextmanager
def rank_of_another_launcher(timeout_s: float) -> Iterator[None]:
    """Around all of a rank that somebody else started: the end of another rank is not a fault of this one.

    Our own launcher tells the cause from its consequences; here every rank speaks for itself.
    """
    try:
        yield
    except RuntimeError as error:
        rank, first_line = os.environ.get("RANK"), str(error).splitlines()[0]
        kind = classify(error)
        if kind == "peer lost":
            why = f"rank {rank} lost its connection: another rank has ended, whose output says why."
        elif kind == "peer silent":
            why = f"rank {rank} waited timeout_s={timeout_s:g} s for another rank in vain."
        else:
            raise
        raise FailedError(f"{why} ({first_line})") from None
