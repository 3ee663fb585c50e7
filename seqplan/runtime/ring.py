"""The ring of sp ranks: post an exchange with both neighbours, compute, wait.

Every rank sends to the next and receives from the previous one, all transfers of a hop in one
batch_isend_irecv and in one fixed order: blocking sends dead-lock (gloo's are a rendezvous even for 4 kB),
and with two ranks next and previous are the same peer, so only the order tells two messages apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d


@dataclass(frozen=True)
class Event:
    """What a rank did: posted a hop, waited for it, or computed a block. For tests and measurements."""

    kind: Literal["post", "wait", "compute"]
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of a post: elements and bytes sent, by the name of the buffer."""


_observers: list[list[Event]] = []


@contextmanager
def observe() -> Iterator[list[Event]]:
    """The events of this process while the context is open, backward threads included."""
    events: list[Event] = []
    _observers.append(events)
    try:
        yield events
    finally:
        # By identity: two nested lists may be equal.
        _observers[:] = [other for other in _observers if other is not events]


def record(event: Event) -> None:
    for events in _observers:
        events.append(event)


def sent_totals(events: list[Event]) -> dict[str, tuple[int, int]]:
    """Elements and bytes sent in all, by the name of the buffer."""
    totals: dict[str, tuple[int, int]] = {}
    for event in events:
        for name, (elements, size_bytes) in event.sent.items():
            before = totals.get(name, (0, 0))
            totals[name] = (before[0] + elements, before[1] + size_bytes)
    return totals


class Hop:
    """Transfers under way. Neither the sent nor the received buffers may be touched before `wait`."""

    def __init__(self, works: list[dist.Work]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()
        record(Event("wait"))


class Ring:
    """This rank's place in the ring of a process group. `group` None is a ring of one."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.size = 1 if group is None else group.size()
        self.rank = 0 if group is None else group.rank()

    @classmethod
    def named(cls, group_name: str) -> Ring:
        """The ring of a group's registered name; "" is a ring of one. (Custom operators take no group.)"""
        resolve: Callable[[str], dist.ProcessGroup] = getattr(distributed_c10d, "_resolve_process_group")  # noqa: B009
        return cls(resolve(group_name) if group_name else None)

    @property
    def group_name(self) -> str:
        return "" if self.group is None or self.size == 1 else str(self.group.group_name)

    def source(self, step: int) -> int:
        """The rank whose block is in hand after `step` hops."""
        return (self.rank - step) % self.size

    def post(self, transfers: dict[str, tuple[Tensor, Tensor]]) -> Hop:
        """Starts one hop: by name, the tensor to send to the next rank and the buffer to receive into."""
        assert self.group is not None
        next_rank = dist.get_global_rank(self.group, (self.rank + 1) % self.size)
        previous_rank = dist.get_global_rank(self.group, (self.rank - 1) % self.size)
        operations = []
        for send, receive in transfers.values():
            assert send.shape == receive.shape
            assert send.dtype == receive.dtype
            operations.append(dist.P2POp(dist.isend, send, next_rank, self.group))
            operations.append(dist.P2POp(dist.irecv, receive, previous_rank, self.group))
        record(Event("post", {name: (send.numel(), send.nbytes) for name, (send, _) in transfers.items()}))
        return Hop(dist.batch_isend_irecv(operations))

    def require_equal(self, what: str, numbers: tuple[int, ...], device: torch.device) -> None:
        """Asserts that `numbers` are the same on every rank; asked once for each distinct tuple.

        A message shorter than its receive buffer fills only a prefix, without any error (gloo, measured).
        """
        if self.group is None or self.size == 1 or (self.group_name, what, numbers) in _agreed:
            return
        if dist.get_backend(self.group) != "fake":  # a fake group exchanges nothing
            mine = torch.tensor(numbers, dtype=torch.int64, device=device)
            gathered = [torch.empty_like(mine) for _ in range(self.size)]
            dist.all_gather(gathered, mine, group=self.group)
            by_rank = [tuple(row.tolist()) for row in gathered]
            assert len(set(by_rank)) == 1, f"{what} differs between the sp ranks: {by_rank}"
        _agreed.add((self.group_name, what, numbers))


_agreed: set[tuple[str, str, tuple[int, ...]]] = set()
