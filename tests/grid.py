"""Estimate against simulation over a grid of models, layouts and options.

The estimate is a formula's, the truth the real training step on fake tensors. `python -m tests.grid`
(make grid) runs all of it, the tests a part.

Most are of models of usual sizes; some of small ones, where what a trainer does at the ends of a step counts.
Points are drawn with a fixed seed from lists of options and kept where our trainer can run them, so that rare
combinations occur that nobody would write down.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from typing import Any

import numpy as np

from seqplan.planner.choosing.layout_table import from_layout
from seqplan.planner.layout import Layout
from seqplan.planner.layout_defaults import complete_layout
from seqplan.planner.memory.stage_inventory import Inventory
from seqplan.planner.memory_model import memory_estimate, micro_batches_in_flight
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Question
from seqplan.planner.rules.legality import run_reasons
from tests.planner import formula_cases

SIZE = 240
SMALL_SIZE = 60
REDUCED_SIZE = 40
"""Points of the reduced form, for the tests: the cheapest, and what gives every value of every option."""

MEDIAN, WORST = 0.01, 0.03
"""Relative differences that must hold over the grid."""

SEED = 20210513

MODELS: dict[str, ModelSpec] = {
    "llama-like": formula_cases.decoder(
        num_layers=8, hidden_size=2048, ffn_hidden_size=5632, num_attention_heads=32, num_kv_heads=8,
        vocab_size=32000,
    ),
    "qwen3-like": formula_cases.decoder(
        num_layers=8, hidden_size=1024, ffn_hidden_size=3072, num_attention_heads=16, num_kv_heads=8,
        head_dim=128, vocab_size=50000, qk_norm="per_head", tied_embeddings=True,
    ),
    "gpt2-like": formula_cases.gpt(8, 1024, 16, 50257, 16384),
    "bert-like": formula_cases.encoder(
        num_layers=8, hidden_size=1024, heads=16, vocab_size=30522, positions=16384, head_dim=64,
        ffn_hidden_size=4096,
    ),
    "small-llama": formula_cases.decoder(
        num_layers=1, hidden_size=256, ffn_hidden_size=704, num_attention_heads=8, num_kv_heads=4,
        head_dim=32, vocab_size=4000,
    ),
    "small-gpt2": formula_cases.gpt(1, 256, 8, 16000, 1024),
}  # fmt: skip

OPTIONS: dict[str, tuple[Any, ...]] = {
    "model": ("llama-like", "qwen3-like", "gpt2-like", "bert-like"),
    "device": ("cuda", "cuda", "cuda", "cpu"),
    "seq_len": (512, 1024, 2048, 4096, 8192),
    "dp": (1, 1, 2, 4, 8, 16),
    "pp": (1, 1, 2, 4, 8),
    "tp": (1, 1, 2, 4, 8),
    "sp": (1, 1, 2, 4, 8),
    "micro_batch_size": (1, 1, 2, 4),
    "num_microbatches": (1, 2, 4, 9),
    "attention": ("ring", "ring", "rsa"),
    "kernel": (None, None, None, "math"),
    "recompute": ("none", "none", "full"),
    "recompute_layers": (None, None, 1),
    "zero_stage": (0, 0, 2, 3),
    "precision": ("bf16", "bf16", "fp32"),
    "tp_sequence_parallel": (False, True),
    "hidden_dropout": (0.0, 0.0, 0.1),
}

SMALL_OPTIONS: dict[str, tuple[Any, ...]] = {
    **OPTIONS,
    "model": ("small-llama", "small-gpt2"),
    "layers": (1, 2, 3),  # of a stage
    "seq_len": (256, 512, 1024),
    "dp": (1, 2, 4),
    "pp": (1, 2, 3),
    "tp": (1, 1, 2),
    "sp": (1, 2),
    "num_microbatches": (1, 2, 3, 8),
    "zero_stage": (0, 2, 3),
    "attention_dropout": (0.0, 0.1),
}


@dataclass(frozen=True)
class Point:
    """One question with one layout."""

    name: str
    question: Question
    layout: Layout

    @property
    def values(self) -> set[str]:
        """What it chose of each option, as its name says it."""
        return set(self.name.split())


@dataclass(frozen=True)
class Difference:
    """Estimate over simulation less one, of the stage where it is largest."""

    name: str
    total: float
    activations: float
    stage: int
    kinds: dict[str, tuple[float, float]]
    """Estimated and simulated bytes of that stage."""


def points() -> list[Point]:
    """The whole grid, the same in every run."""
    return [*_drawn(OPTIONS, SIZE), *_drawn(SMALL_OPTIONS, SMALL_SIZE)]


def _drawn(options: dict[str, tuple[Any, ...]], count: int) -> list[Point]:
    draw = random.Random(SEED)
    found: dict[str, Point] = {}
    while len(found) < count:
        point = _point({name: draw.choice(values) for name, values in options.items()})
        if point is not None and not run_reasons(point.question, point.layout):
            found.setdefault(point.name, point)
    return list(found.values())


def reduced(whole: list[Point]) -> list[Point]:
    """A part with every value of every option and little work: few distinct stages, few layers to unshard."""
    by_cost = sorted(whole, key=lambda point: (_work(point), point.name))
    chosen: dict[str, Point] = {}
    missing = {value for point in whole for value in point.values}
    for point in by_cost:
        if point.values & missing:
            chosen[point.name] = point
            missing -= point.values
    for point in by_cost:
        if len(chosen) >= REDUCED_SIZE:
            break
        chosen.setdefault(point.name, point)
    return list(chosen.values())


def _work(point: Point) -> float:
    """Roughly the CPU-seconds of its simulation, from those measured over the grid."""
    layout, train = point.layout, point.question.train
    stages = {(i == 0, i == layout.pp - 1, n) for i, n in enumerate(layout.stage_layers)}
    seconds = 0.8 + 0.15 * len(stages) + (0.4 if layout.zero_stage else 0.0)
    seconds += 0.5 if train.hidden_dropout else 0.0
    vocab = point.question.model.vocab_size / layout.tp
    chunks = layout.micro_batch_size * train.seq_len // layout.sp * vocab / (1 << 22)
    return seconds + 0.005 * chunks


def _point(chosen: dict[str, Any]) -> Point | None:
    world_size = chosen["dp"] * chosen["pp"] * chosen["tp"] * chosen["sp"]
    if world_size > 1024 or chosen["seq_len"] * chosen["micro_batch_size"] // chosen["sp"] < 256:
        return None
    if chosen["sp"] == 1 and chosen["attention"] == "ring":
        chosen["attention"] = "none"
    if chosen["attention"] == "rsa" and chosen["kernel"] is None:
        chosen["kernel"] = "math"
    elif chosen["kernel"] is None and chosen["device"] == "cuda":
        chosen["kernel"] = "flash" if chosen["precision"] == "bf16" else "efficient"
    if chosen["attention"] == "rsa" and chosen["seq_len"] > 2048:  # tens of thousands of tiles
        return None
    if chosen["recompute"] == "none":
        chosen["recompute_layers"] = None
    if chosen["dp"] * chosen["sp"] == 1:
        chosen["zero_stage"] = 0  # nothing to share
    if chosen["tp"] == 1:
        chosen["tp_sequence_parallel"] = False
    if chosen["attention"] != "rsa":
        chosen["attention_dropout"] = 0.0  # it has no probabilities to drop
    model = MODELS[chosen["model"]]
    if "layers" in chosen:
        model = model.model_copy(update={"num_layers": chosen["layers"] * chosen["pp"]})
    asked = formula_cases.question(
        model,
        seq_len=chosen["seq_len"],
        global_batch_size=chosen["dp"] * chosen["micro_batch_size"] * chosen["num_microbatches"],
        gpus=world_size,
        on=formula_cases.cluster(kind=chosen["device"], num_nodes=128),
        precision=chosen["precision"],
        hidden_dropout=chosen["hidden_dropout"],
        attention_dropout=chosen.get("attention_dropout", 0.0),
    )
    fields = {name: chosen[name] for name in OPTIONS if name in Layout.model_fields}
    name = " ".join(f"{name}={value}" for name, value in chosen.items() if value not in (None, False, 0.0))
    return Point(name, asked, complete_layout(asked, fields))


def difference(point: Point) -> Difference:
    """Estimate against simulation of every stage of one point."""
    import torch

    from seqplan.runtime.simulate import Job, simulate

    torch.set_num_threads(1)
    asked, layout = point.question, point.layout
    job = Job(asked.model, asked.train, layout, on_gpu=asked.cluster.device.kind != "cpu")
    table = from_layout(layout, asked.train)
    inventory = Inventory(asked, table)
    found = []
    for estimate, simulated in zip(memory_estimate(asked, layout).stages, simulate(job), strict=True):
        stage = estimate.stage
        bundles = inventory.stage(stage, has_head=stage == layout.pp - 1)
        waiting = micro_batches_in_flight(table, stage)
        kept = sum(
            float(
                np.sum(bundles.states.by_kind.get(kind, 0.0) + waiting * bundles.kept.by_kind.get(kind, 0.0))
            )
            for kind in ("activations", "attention")
        )
        found.append(
            Difference(
                name=point.name,
                total=estimate.allocated_bytes / simulated.allocated_bytes - 1.0,
                activations=kept / simulated.kept_bytes - 1.0,
                stage=stage,
                kinds={kind: (estimate.by_kind[kind], size) for kind, size in simulated.by_kind.items()},
            )
        )
    worst = max(found, key=lambda each: abs(each.total))
    return replace(worst, activations=max((each.activations for each in found), key=abs))


def broken(found: list[Difference]) -> list[str]:
    """What does not hold, in lines; empty where all does."""
    lines = []
    for what in ("total", "activations"):
        sizes = [abs(getattr(each, what)) for each in found]
        if statistics.median(sizes) > MEDIAN:
            lines.append(f"median difference of {what}: {statistics.median(sizes):.2%} > {MEDIAN:.0%}")
        lines += [
            f"{what} {getattr(each, what):+.2%} at stage {each.stage}: {each.name}"
            for each in sorted(found, key=lambda each: -abs(getattr(each, what)))
            if abs(getattr(each, what)) > WORST
        ]
    return lines


def differences(chosen: list[Point]) -> list[Difference]:
    """Of every point, on all cores. Points travel by name: formulas that were used hold compiled code."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("forkserver")) as pool:
        return list(pool.map(_difference_of, [point.name for point in chosen], chunksize=2))


@cache
def _by_name() -> dict[str, Point]:
    return {point.name: point for point in points()}


def _difference_of(name: str) -> Difference:
    return difference(_by_name()[name])


def main() -> int:
    """The whole grid."""
    start = time.monotonic()
    found = differences(points())
    for each in sorted(found, key=lambda each: -abs(each.total))[:10]:
        kinds = ", ".join(
            f"{k} {e / 2**20:.1f}/{s / 2**20:.1f}" for k, (e, s) in each.kinds.items() if e or s
        )
        print(f"{each.total:+.2%} {each.activations:+.2%} stage {each.stage} {each.name}\n    MiB {kinds}")
    for what in ("total", "activations"):
        sizes = sorted(abs(getattr(each, what)) for each in found)
        print(f"{what}: median {statistics.median(sizes):.2%}, worst {sizes[-1]:.2%}")
    lines = broken(found)
    print(*lines, f"{len(found)} points in {time.monotonic() - start:.0f} s", sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
