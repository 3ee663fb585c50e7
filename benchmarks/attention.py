"""Forward and backward of `ring` and `rsa` beside torch: CPU time, wall time and memory, as ratios.

    OMP_NUM_THREADS=1 python -m benchmarks.attention --ranks 2 4 --seq-len 2048 8192

How it measures. All contenders of a comparison run in turn in one process group, round after round and in
alternating order, so that noise of the machine hits them alike; a figure is the median of the ratios of
the rounds. Baselines that need one process (torch's scaled_dot_product_attention, explicit attention) run on
every rank at once, each on the whole problem: as many copies side by side as there are ranks. CPU time is
that of the busiest rank, gloo's threads included. Memory is measured in fresh ranks: the high-water mark of
the resident set during one forward and backward, inputs and gradients included, less what was resident
before (after a warm-up on a small problem). One thread a rank, batch 1, 12 heads of 64, float32. `rsa` and
explicit attention run on fewer heads where the whole scores would not fit: their time is linear in them.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.distributed.tensor.experimental._context_parallel import _attention as torch_ring

from seqplan.runtime.ring_attention import ring_attention
from seqplan.runtime.rsa import rsa
from tests.ranks import run_ranks

SCORES_LIMIT_BYTES = 1 << 29
"""Largest score tensor of one process; explicit attention holds about four of them."""

GOALS = {
    "efficiency": "ring, CPU: one process / (ranks x ring)",
    "cpu_vs_torch": "ring / torch's ring, CPU",
    "wall_vs_torch": "ring / torch's ring, wall",
    "memory_vs_torch": "ring / torch's ring, memory",
    "memory_vs_one": "ring / one process, memory",
    "rsa_vs_explicit": "rsa x ranks / explicit, CPU",
}


@dataclass(frozen=True)
class Problem:
    """One line of the table."""

    seq_len: int
    kv_heads: int
    causal: bool
    heads: int = 12
    head_dim: int = 64
    seed: int = 0

    def fewer_heads(self) -> Problem:
        """The same with as many kv heads as keep the whole scores below SCORES_LIMIT_BYTES."""
        per_kv_head = self.heads // self.kv_heads
        fitting = SCORES_LIMIT_BYTES // (4 * self.seq_len**2 * per_kv_head)
        kv_heads = max(1, min(self.kv_heads, fitting))
        return replace(self, kv_heads=kv_heads, heads=kv_heads * per_kv_head)

    def inputs(self, seq_len: int, heads_first: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v as leaves and a cotangent of q's shape, in the layout that the contender prefers."""

        def tensor(heads: int) -> Tensor:
            sizes = (1, heads, seq_len, self.head_dim) if heads_first else (1, seq_len, heads, self.head_dim)
            return torch.randn(sizes)

        q, k, v = (tensor(heads).requires_grad_() for heads in (self.heads, self.kv_heads, self.kv_heads))
        return q, k, v, tensor(self.heads)


Contender = Callable[[Problem], None]
"""One forward and backward on this rank, inputs made here."""


def one_process(problem: Problem) -> None:
    q, k, v, cotangent = problem.inputs(problem.seq_len, heads_first=False)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        is_causal=problem.causal,
        enable_gqa=problem.heads != problem.kv_heads,
    )
    out.transpose(1, 2).backward(cotangent)


def explicit(problem: Problem) -> None:
    """softmax(q k^T) v with every score in memory; kv heads are broadcast."""
    q, k, v, cotangent = problem.inputs(problem.seq_len, heads_first=True)
    shared = problem.heads // problem.kv_heads
    k_all, v_all = (x.repeat_interleave(shared, 1) if shared > 1 else x for x in (k, v))
    scores = (q * problem.head_dim**-0.5) @ k_all.transpose(2, 3)
    if problem.causal:
        hidden = torch.ones(problem.seq_len, problem.seq_len, dtype=torch.bool).triu_(1)
        scores = scores.masked_fill_(hidden, -torch.inf)
    (torch.softmax(scores, -1) @ v_all).backward(cotangent)


def our_ring(problem: Problem) -> None:
    q, k, v, cotangent = problem.inputs(problem.seq_len // dist.get_world_size(), heads_first=False)
    ring_attention(q, k, v, group=dist.group.WORLD, causal=problem.causal).backward(cotangent)


def our_rsa(problem: Problem) -> None:
    q, k, v, cotangent = problem.inputs(problem.seq_len // dist.get_world_size(), heads_first=False)
    rsa(q, k, v, group=dist.group.WORLD, causal=problem.causal).backward(cotangent)


def torchs_ring(problem: Problem) -> None:
    """torch's private ring on its CPU kernel (its public interface refuses CPUs); zigzag when causal."""
    torch_ring._cp_options.enable_load_balance = problem.causal
    torch_ring._cp_options.rotate_method = torch_ring._RotateMethod.ALL_TO_ALL
    q, k, v, cotangent = problem.inputs(problem.seq_len // dist.get_world_size(), heads_first=True)
    group = dist.group.WORLD
    assert group is not None
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    kernel_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    with torch.no_grad():
        out, lse = torch_ring._templated_ring_attention(
            group, 2, kernel, q, k, v, is_causal=problem.causal, dropout_p=0.0
        )
        q.grad, k.grad, v.grad = torch_ring._templated_ring_attention_backward(
            group,
            2,
            kernel_backward,
            cotangent,
            "grad_out",
            q,
            k,
            v,
            out,
            lse,
            is_causal=problem.causal,
            dropout_p=0.0,
        )


CONTENDERS: dict[str, Contender] = {
    "one process": one_process,
    "explicit": explicit,
    "ring": our_ring,
    "rsa": our_rsa,
    "torch ring": torchs_ring,
}


def time_rank(rank: int, world_size: int, problem: Problem, names: list[str], rounds: int) -> list[Any]:
    """[round][contender] -> (CPU seconds, wall seconds) of this rank."""
    for name in names:
        CONTENDERS[name](problem)  # first touch of memory and code
    measured = []
    for number in range(rounds):
        row = {}
        for name in names if number % 2 == 0 else names[::-1]:
            dist.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            CONTENDERS[name](problem)
            cpu = time.process_time() - cpu
            dist.barrier()  # every rank has finished
            row[name] = (cpu, time.perf_counter() - wall)
        measured.append(row)
    return measured


def busiest(by_rank: list[list[Any]], name: str, what: int) -> list[float]:
    """By round: CPU (0) or wall (1) seconds of the rank that needed most."""
    return [max(row[name][what] for row in rows) for rows in zip(*by_rank, strict=True)]


def memory_rank(rank: int, world_size: int, problem: Problem, name: str) -> float:
    """Bytes above baseline during one forward and backward."""
    CONTENDERS[name](replace(problem, seq_len=64 * world_size))
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")  # resets the high-water mark (proc(5))
    before = _status_bytes("VmRSS")
    CONTENDERS[name](problem)
    return _status_bytes("VmHWM") - before


def _status_bytes(key: str) -> float:
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith(key + ":"))
    return float(line.split()[1]) * 1024


def ratios(above: list[float], below: list[float]) -> tuple[float, float, float]:
    """Median, lowest and highest of the pairwise ratios."""
    values = [a / b for a, b in zip(above, below, strict=True)]
    return statistics.median(values), min(values), max(values)


def measure(problem: Problem, ranks: int, rounds: int, timeout_s: float) -> dict[str, Any]:
    """All figures of one line."""
    names = ["one process", "ring", "torch ring"]
    times = run_ranks(ranks, time_rank, problem, names, rounds, timeout_s=timeout_s)
    cpu = {name: busiest(times, name, 0) for name in names}
    wall = {name: busiest(times, name, 1) for name in names}
    memory = {
        name: max(
            run_ranks(1 if name == "one process" else ranks, memory_rank, problem, name, timeout_s=timeout_s)
        )
        for name in names
    }
    small = problem.fewer_heads()
    scores = run_ranks(ranks, time_rank, small, ["explicit", "rsa"], rounds, timeout_s=timeout_s)
    rsa_ratio = ratios(busiest(scores, "rsa", 0), busiest(scores, "explicit", 0))
    efficiency = ratios(cpu["one process"], cpu["ring"])
    return {
        "cpu_s": {name: statistics.median(cpu[name]) for name in names},
        "memory_mib": {name: size / 2**20 for name, size in memory.items()},
        "efficiency": tuple(value / ranks for value in efficiency),
        "cpu_vs_torch": ratios(cpu["ring"], cpu["torch ring"]),
        "wall_vs_torch": ratios(wall["ring"], wall["torch ring"]),
        "memory_vs_torch": (memory["ring"] / memory["torch ring"],),
        "memory_vs_one": (memory["ring"] / memory["one process"],),
        "rsa_vs_explicit": tuple(value * ranks for value in rsa_ratio),
        "rsa_heads": small.heads,
    }


def goal(name: str, problem: Problem, ranks: int) -> float | None:
    """The goals of this project; efficiency is at least, the others at most."""
    long = problem.seq_len >= 8192
    if name == "rsa_vs_explicit":
        return 1.1
    if name == "efficiency":
        return 0.88 if long and ranks == 2 else None
    if name == "memory_vs_one":
        return (0.5 if problem.causal else 0.4) if long and ranks == 4 else None
    return {"cpu_vs_torch": 1.03, "memory_vs_torch": 0.7}.get(name) if long else None


def show(console: Console, problem: Problem, ranks: int, figures: dict[str, Any]) -> None:
    kind = "causal" if problem.causal else "bidirectional"
    table = Table(
        title=f"L={problem.seq_len}, {ranks} ranks, kv heads {problem.kv_heads} of {problem.heads}, {kind} "
        f"(rsa and explicit on {figures['rsa_heads']} heads)",
        caption="CPU s a rank: "
        + ", ".join(f"{name} {value:.2f}" for name, value in figures["cpu_s"].items())
        + "; MiB: "
        + ", ".join(f"{name} {value:.0f}" for name, value in figures["memory_mib"].items()),
    )
    for column in ("ratio", "median", "lowest to highest", "goal", "met"):
        table.add_column(column)
    for name, label in GOALS.items():
        median, *spread = figures[name]
        limit = goal(name, problem, ranks)
        met = limit is None or (median >= limit if name == "efficiency" else median <= limit)
        table.add_row(
            label,
            f"{median:.3f}",
            " to ".join(f"{value:.3f}" for value in spread),
            "" if limit is None else f"{'>=' if name == 'efficiency' else '<='} {limit}",
            "" if limit is None else ("yes" if met else "NO"),
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="ring and rsa attention beside torch, on local gloo ranks")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seq-len", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--kv-heads", type=int, nargs="+", default=[12, 4])
    parser.add_argument(
        "--mask", choices=["causal", "bidirectional"], nargs="+", default=["bidirectional", "causal"]
    )
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds after one that warms up")
    parser.add_argument("--timeout-s", type=float, default=1800.0, help="for the rounds of one line")
    arguments = parser.parse_args()
    console = Console(width=110)
    for seq_len in arguments.seq_len:
        for ranks in arguments.ranks:
            for kv_heads in arguments.kv_heads:
                for mask in arguments.mask:
                    problem = Problem(seq_len, kv_heads, causal=mask == "causal")
                    show(
                        console,
                        problem,
                        ranks,
                        measure(problem, ranks, arguments.rounds, arguments.timeout_s),
                    )


if __name__ == "__main__":
    main()
