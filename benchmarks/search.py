"""How many candidates a second the planner costs on one core, and what a whole `suggest` costs.

    OMP_NUM_THREADS=1 python -m benchmarks.search

First every legal candidate of a large space is costed, nothing pruned: memory of every stage of every one,
step time of every one that fits. Orders of the mesh differ in time only, so a layout in two orders shares
its memory; the rate is given with and without counting them apart. Random candidates are compared with
the scalar path. Then `suggest` runs as a user runs it, in a process of its own. CPU seconds are user + system
of the process, best of --rounds, beside those of the imports alone; memory is the peak resident set.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seqplan import profiles
from seqplan.planner.choosing.layout_grid import Grid, candidate_grids
from seqplan.planner.choosing.scan import row_chunks, scan, sieve_splits
from seqplan.planner.layout_space import trainer_choices
from seqplan.planner.memory.peak_memory import StageMemories, peak_memory
from seqplan.planner.question import Pins, Question
from seqplan.planner.search import score
from seqplan.planner.time_model import time_table
from seqplan.planner.train_spec import TrainSpec

COMMANDS = (
    None,  # imports alone: what every command starts with
    "bert-large --cluster piz-daint --gpus 64 --seq-len 512 --global-batch-size 256",
    "llama3-70b --cluster dgx-h100 --gpus 64 --seq-len 8192 --global-batch-size 128",
    "llama3-405b --cluster dgx-h100 --gpus 16384 --seq-len 131072 --global-batch-size 128",
    "llama3-405b --cluster dgx-h100 --gpus 98304 --seq-len 131072 --global-batch-size 768",
    "llama3-405b --cluster dgx-h100 --gpus 100000 --seq-len 131072 --global-batch-size 128",
    "llama3-405b --cluster dgx-h100 --gpus 15360 --seq-len 131072 --global-batch-size 120",
    "llama3-405b --cluster dgx-h100 --gpus 12288 --seq-len 131072 --global-batch-size 192",
    "llama3-405b --cluster dgx-h100 --gpus 16408 --seq-len 131072 --global-batch-size 128",  # 8 x 7 x 293
)
IMPORTS = "import seqplan.cli, seqplan.render_suggestion, seqplan.planner.search, seqplan.profiles"

COMPARED = 5
"""Random cells of each chunk that are compared with the scalar path."""


@dataclass
class Costed:
    """What one pass without pruning has done."""

    candidates: int = 0
    legal: int = 0
    memories: int = 0
    fitting: int = 0
    largest_difference: float = 0.0

    def compare(self, ours: float, scalar: float) -> None:
        self.largest_difference = max(self.largest_difference, abs(ours / scalar - 1))


def question(trainer: str, gpus: int) -> Question:
    """Llama 3 405B at 131,072 tokens, as in the second command."""
    return Question(
        model=profiles.load_model("llama3-405b")[0],
        cluster=profiles.load_cluster("dgx-h100").for_gpus(gpus),
        gpus=gpus,
        train=TrainSpec(seq_len=131072, global_batch_size=128),
        implementation=profiles.load_implementation(trainer),
    )


def cost_everything(asked: Question, compare: bool) -> Costed:
    """Memory by stage of every legal candidate, time of every one that fits."""
    done = Costed()
    random = np.random.default_rng(0)
    for grid in candidate_grids(asked, Pins(), trainer_choices(asked)):
        done.candidates += grid.count(True) * len(grid.splits)
        for part, legal, shared in legal_parts(asked, grid):
            cells = np.broadcast_to(legal, part.table.shape)
            memory = peak_memory(asked, part.table, shared)
            fits = memory.fits & cells
            done.legal += part.count(cells)
            done.memories += int(cells.sum())
            done.fitting += part.count(fits)
            fitting_rows = fits.any(axis=(0, 1))
            for order, own in part.orders:
                if (fitting_rows & own).any():
                    timed = replace(part.table.take(fitting_rows & own), mesh_order=order)
                    seconds = np.broadcast_to(time_table(asked, timed).step_time_s, timed.shape)
                    if compare:
                        found = np.flatnonzero(fits[..., fitting_rows & own])
                        for cell in random.choice(found, min(COMPARED, len(found))):
                            one = time_table(asked, timed.flat([cell]))
                            done.compare(float(seconds.flat[cell]), float(one.step_time_s[0]))
            if compare and len(np.flatnonzero(cells)):
                for cell in random.choice(np.flatnonzero(cells), COMPARED):
                    held = score(asked, part.table.flat([cell]).row(0)).memory
                    assert held is not None
                    done.compare(float(memory.peak_bytes.flat[cell]), held.peak_bytes)
    return done


def legal_parts(asked: Question, grid: Grid) -> Iterator[tuple[Grid, NDArray[np.bool_], StageMemories]]:
    """Chunk by chunk every split of a grid: its rows, which cells are legal, and what splits share."""
    for sieved, splits in sieve_splits(asked, grid):
        legal = np.asarray(sieved.runnable & (grid.weight > 0))
        rows = np.flatnonzero(legal.reshape(-1, legal.shape[-1]).any(axis=0))
        for chosen in row_chunks(grid.table, rows):
            shared = StageMemories(asked, grid.table.take(chosen))
            for each in splits:
                yield each.take(chosen), legal[..., chosen], shared


def peak_mib() -> float:
    """Largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def show_rate(trainer: str, gpus: int, rounds: int) -> None:
    asked = question(trainer, gpus)
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        done = cost_everything(asked, compare=False)
        seconds.append(time.process_time() - start)
    best = min(seconds)
    searched = []
    for _ in range(rounds):
        start = time.process_time()
        scan(asked, Pins(), trainer_choices(asked), top=5)
        searched.append(time.process_time() - start)
    checked = cost_everything(asked, compare=True)
    print(f"{trainer} on {gpus:,} devices: {done.candidates:,} candidates, {done.legal:,} legal, ", end="")
    print(f"{done.fitting:,} fit")
    print(f"  everything costed: {best:.2f} CPU s: {done.legal / best / 1e6:.1f} M legal candidates a CPU s")
    print(f"  {done.memories:,} without the mesh's orders: {done.memories / best / 1e6:.1f} M a CPU s")
    print(f"  the search itself (scan): {min(searched):.2f} CPU s; peak memory {peak_mib():.0f} MiB")
    print(f"  largest difference from the scalar path: {checked.largest_difference:.1e}")


LAUNCHER = """
import os, sys
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, used = os.wait4(pid, 0)
print(used.ru_utime + used.ru_stime, used.ru_maxrss, os.waitstatus_to_exitcode(status))
"""
"""Starts a command from a small process: a child's peak memory is never below its parent's at the start."""


def show_command(arguments: str | None, rounds: int) -> None:
    """CPU seconds and peak memory of `suggest`, or of its imports alone."""
    command = ["-c", IMPORTS] if arguments is None else ["-m", "seqplan", "suggest", *arguments.split()]
    seconds, resident = [], 0.0
    for _ in range(rounds):
        launched = [sys.executable, "-S", "-c", LAUNCHER, sys.executable, *command]
        said = subprocess.run(launched, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout
        used, kibibytes, status = (float(word) for word in said.split())
        assert status in (0, 1), f"{arguments} failed"
        seconds.append(used)
        resident = max(resident, kibibytes / 1024)
    print(f"{min(seconds):.2f} CPU s, at most {resident:.0f} MiB: {arguments or 'imports alone'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=16384)
    parser.add_argument("--trainers", nargs="+", default=["seqplan", "megatron-core"])
    given = parser.parse_args()
    for trainer in given.trainers:
        show_rate(trainer, given.gpus, given.rounds)
    for arguments in COMMANDS:
        show_command(arguments, given.rounds)


if __name__ == "__main__":
    main()
