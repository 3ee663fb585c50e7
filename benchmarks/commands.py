"""CPU time and memory of whole commands, beside their limits: start, help, search and a what-if table.

    python -m benchmarks.commands [--rounds 5]

Each command is a fresh process; the figures are medians of its own user and system time and of its largest
resident set. The limits are those of the project's issues, in CPU-seconds of one core including the start.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

import seqplan


def suggest(model: str, cluster: str, gpus: int, seq_len: int, global_batch_size: int) -> list[str]:
    sizes = {"--gpus": gpus, "--seq-len": seq_len, "--global-batch-size": global_batch_size}
    numbers = [word for flag, size in sizes.items() for word in (flag, str(size))]
    return ["suggest", model, "--json", "--cluster", cluster, *numbers]


COMMANDS: dict[str, tuple[list[str], float]] = {
    "--help": (["--help"], 0.5),
    "suggest bert-large, 64 P100": (suggest("bert-large", "piz-daint", 64, 512, 1024), 1.0),
    "suggest llama3-70b, 64 H100": (suggest("llama3-70b", "dgx-h100", 64, 8192, 512), 1.0),
    "suggest llama3-405b, 16,384 H100": (suggest("llama3-405b", "dgx-h100", 16384, 131072, 128), 1.4),
    "score, 10,000 cases": (["score", "CASES"], 10.0),
}
"""Arguments, and the limit in CPU-seconds."""


def write_cases(path: Path) -> None:
    """10,000 layouts of two models on two clusters, as `score` reads them."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(10_000):
            case = {
                "id": number,
                "model": ("llama3-8b", "bert-large")[number % 2],
                "cluster": ("dgx-h100", "dgx-a100")[number // 2 % 2],
                "gpus": 64,
                "train": {"seq_len": 512 * (1 + number // 4 % 4), "global_batch_size": 512},
                "layout": {
                    "dp": 2 ** (number // 16 % 4), "pp": 1, "tp": 2 ** (number // 64 % 3),
                    "sp": 2 ** (number // 256 % 3), "micro_batch_size": 1 + number // 1024,
                },
            }  # fmt: skip
            file.write(json.dumps(case) + "\n")


def measure(arguments: list[str]) -> tuple[float, float]:
    """CPU-seconds and largest resident MiB of one run."""
    process = subprocess.Popen([sys.executable, "-m", "seqplan", *arguments], stdout=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0  # it has been waited for
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    # As installed: otherwise each process compiles the changed modules where no bytecode may be written.
    compileall.compile_dir(str(Path(seqplan.__file__).parent), quiet=1)
    table = Table("command", "CPU s", "limit", "CPU / limit", "MiB")
    with tempfile.TemporaryDirectory() as folder:
        cases = Path(folder) / "cases.jsonl"
        write_cases(cases)
        for name, (arguments, limit_s) in COMMANDS.items():
            typed = [str(cases) if argument == "CASES" else argument for argument in arguments]
            runs = [measure(typed) for _ in range(rounds)]
            cpu_s = statistics.median(cpu for cpu, _ in runs)
            memory_mib = statistics.median(memory for _, memory in runs)
            table.add_row(
                name, f"{cpu_s:.2f}", f"{limit_s:.1f}", f"{cpu_s / limit_s:.2f}", f"{memory_mib:.0f}"
            )
    Console().print(table)


if __name__ == "__main__":
    main()
