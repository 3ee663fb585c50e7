"""How far a model goes: the longest sequence at a batch, or the largest batch at a length.

For each family of layouts and each number of devices. The batch is what one pass holds: a replica's whole
share in one micro-batch, in a pipeline as few micro-batches as it needs (gradient accumulation would make any
batch possible, and any length at the price of time); a pinned micro_batch_size allows accumulation when the
length is searched. limit_search.py finds the values.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from seqplan.planner.choosing.layout_grid import candidate_tables
from seqplan.planner.choosing.layout_table import LayoutTable
from seqplan.planner.choosing.limit_search import (
    at_length,
    divisors_of_length,
    largest_batch,
    longest_sequence,
)
from seqplan.planner.choosing.notes import trained
from seqplan.planner.choosing.scan import memory_text
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import AXES, DEFAULT_MESH_ORDER, Layout
from seqplan.planner.layout_space import check_pins, trainer_choices
from seqplan.planner.memory_model import memory_estimate, memory_table
from seqplan.planner.question import Pins, Question
from seqplan.planner.reading.integers import divisors, listed
from seqplan.planner.rules.legality import sieve
from seqplan.planner.rules.rules_degrees import tensor_degrees
from seqplan.planner.spec import Spec

Searched = Literal["seq_len", "global_batch_size"]

FAMILIES: dict[str, tuple[str, ...]] = {"tp": ("tp",), "sp": ("sp",), "sp+pp": ("sp", "pp"), "all": AXES}
"""The axes that a family may use; an axis outside is 1, unless the user pins it."""

NAMES: dict[Searched, str] = {"seq_len": "the longest sequence", "global_batch_size": "the largest batch"}


class Limit(Spec):
    """How far one family goes on so many devices."""

    family: str
    gpus: int
    value: int | None = Field(description="tokens of a sequence, or sequences of a batch; null: none")
    layout: Layout | None = None
    peak_bytes: float | None = None
    limit_bytes: float | None = None
    why_not: str = Field(default="", description="where there is no value: the rule or the memory")


class FamilyBest(Spec):
    """The farthest that a family goes on any of the numbers of devices."""

    family: str
    gpus: int
    value: int
    times_tp: float | None = Field(description="against the best of tp alone")


class Limits(Spec):
    """The answer of `limits`."""

    schema_: Literal["seqplan-json/1"] = Field(default="seqplan-json/1", serialization_alias="schema")
    searched: Searched
    model: str
    cluster: str
    implementation: str
    precision: str
    given: int = Field(description="the other of seq_len and global_batch_size")
    limits: tuple[Limit, ...]
    best: tuple[FamilyBest, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    elapsed_s: float


def find_limits(
    question: Question,
    searched: Searched,
    pins: Pins | None = None,
    families: Sequence[str] = tuple(FAMILIES),
    devices: Sequence[int] = (),
) -> Limits:
    """Every family on every number of devices; `question` holds the most devices and what is given."""
    start = time.perf_counter()
    pins = pins or Pins()
    check_families(families)
    if searched == "global_batch_size" and pins.micro_batch_size is not None:
        raise SeqplanError(
            "with a fixed micro_batch_size gradient accumulation makes any batch possible.",
            "Leave out --micro-batch-size: the largest batch is that of one pass.",
        )
    counts = tuple(devices) or device_counts(question, families)
    rows = [_limit(question, searched, pins, family, gpus) for family in families for gpus in counts]
    given = question.train.global_batch_size if searched == "seq_len" else question.train.seq_len
    return Limits(
        searched=searched,
        model=question.model.name,
        cluster=question.cluster.name,
        implementation=question.implementation.name,
        precision=question.precision,
        given=given,
        limits=tuple(rows),
        best=best_of_families(rows, families),
        notes=_notes(question, searched, pins),
        elapsed_s=time.perf_counter() - start,
    )


def check_families(families: Sequence[str]) -> None:
    """Refuse a name that is no family."""
    unknown = [family for family in families if family not in FAMILIES]
    if unknown:
        raise SeqplanError(
            f"unknown family {listed(unknown, 'and')}.", f"The families are {listed(FAMILIES, 'and')}."
        )


def device_counts(question: Question, families: Sequence[str]) -> tuple[int, ...]:
    """Powers of two up to all devices, the degrees that tp can have, and all; whole nodes only."""
    counts = {question.gpus} | {2**power for power in range(question.gpus.bit_length())}
    if "tp" in families:
        counts |= set(tensor_degrees(question))
    return tuple(sorted(n for n in counts if n <= question.gpus and _whole_nodes(question, n)))


def _whole_nodes(question: Question, gpus: int) -> bool:
    try:
        question.cluster.for_gpus(gpus)
    except SeqplanError:
        return False
    return True


def on_devices(question: Question, gpus: int) -> Question:
    """The question for so many devices."""
    return question.model_copy(update={"gpus": gpus, "cluster": question.cluster.for_gpus(gpus)})


def family_pins(pins: Pins, family: str) -> Pins:
    """The user's pins; every axis outside of the family 1; what memory does not depend on at its default."""
    fixed = {axis: 1 for axis in AXES if axis not in FAMILIES[family] and getattr(pins, axis) is None}
    order = pins.mesh_order or DEFAULT_MESH_ORDER
    return pins.model_copy(update={**fixed, "mesh_order": order})


def _limit(question: Question, searched: Searched, pins: Pins, family: str, gpus: int) -> Limit:
    asked = on_devices(question, gpus)
    chosen = family_pins(pins, family)
    try:
        check_pins(asked, chosen)
    except SeqplanError as error:
        return Limit(family=family, gpus=gpus, value=None, why_not=error.message)
    tables, why_not = _candidates(asked, searched, chosen)
    found = longest_sequence(asked, tables) if searched == "seq_len" else largest_batch(asked, tables)
    if found is None:
        why_not = why_not if not tables else _too_large(asked, searched, tables)
        return Limit(family=family, gpus=gpus, value=None, why_not=why_not)
    memory = memory_estimate(_at(asked, searched, found.value), found.layout)
    return Limit(
        family=family,
        gpus=gpus,
        value=found.value,
        layout=found.layout,
        peak_bytes=memory.peak_bytes,
        limit_bytes=memory.limit_bytes,
    )


def _at(question: Question, searched: Searched, value: int) -> Question:
    """The question with the value that was found."""
    if searched == "seq_len":
        return at_length(question, value)
    return question.model_copy(
        update={"train": question.train.model_copy(update={"global_batch_size": value})}
    )


def _candidates(question: Question, searched: Searched, pins: Pins) -> tuple[list[LayoutTable], str]:
    """The legal layouts, each with its micro-batches; where there are none, the rule that forbids them."""
    has = replace(trainer_choices(question), partial_recompute=False, hybrid_sharding=False)
    micro = pins.micro_batch_size
    tables, why_not = [], ""
    for table in candidate_tables(question, pins.model_copy(update={"micro_batch_size": micro or 1}), has):
        least = (
            1 if table.pp == 1 else question.implementation.capabilities.min_microbatches_per_stage * table.pp
        )
        if searched == "seq_len":
            table, reason = _split_batch(question, table, least, micro)
            why_not = why_not or ("" if len(table) else reason)
            step = int(np.lcm.reduce(divisors_of_length(question, table))) if len(table) else 1
            asked = at_length(question, step)
        else:
            table = replace(table, num_microbatches=np.full(len(table), least))
            asked = _at(question, searched, question.gpus)  # every dp divides it
        if not len(table):
            continue
        sieved = sieve(asked, table)
        standing = table.take(sieved.runnable)
        if len(standing):
            tables.append(standing)
        elif not why_not:
            rule, rows = sieved.fell_to[0]
            why_not = rule.message(asked, table.row(int(np.argmax(rows))))
    return tables, why_not


def _split_batch(
    question: Question, table: LayoutTable, least: int, micro: int | None
) -> tuple[LayoutTable, str]:
    """The rows that can split the batch, in as few micro-batches as the pipeline allows (or as pinned)."""
    batch = question.train.global_batch_size
    counts = {}
    for dp in {int(dp) for dp in table.dp}:
        share = batch // dp
        ways = [m for m in divisors(share) if m >= least and micro in (None, share // m)]
        counts[dp] = ways[0] if batch % dp == 0 and ways else 0
    number = np.array([counts[int(dp)] for dp in table.dp], dtype=np.int64)
    sizes = batch // (table.dp * np.maximum(number, 1))
    table = replace(table, num_microbatches=number, micro_batch_size=sizes).take(number > 0)
    of = f" of micro_batch_size={micro}" if micro else ""
    return (
        table,
        f"global_batch_size={batch} has no {least} or more equal micro-batches{of} for pp={table.pp}.",
    )


def _too_large(question: Question, searched: Searched, tables: list[LayoutTable]) -> str:
    """By how much the smallest value exceeds the device, for the nearest of the layouts."""
    nearest: tuple[float, str] = (np.inf, "")
    for table in tables:
        asked = question
        if searched == "seq_len":
            steps = divisors_of_length(question, table)
            asked = at_length(question, int(steps.min()))
            table = table.take(steps == steps.min())
        peaks = memory_table(asked, table).peak_bytes
        layout = table.row(int(np.argmin(peaks)))
        if peaks.min() < nearest[0]:
            memory = memory_estimate(asked, layout)
            worst = memory.stages[memory.worst_stage]
            text = memory_text(worst.stage, worst.peak_bytes, memory.limit_bytes, worst.by_kind)
            nearest = (float(peaks.min()), f"{layout.degrees_text}: {text}")
    return nearest[1]


def best_of_families(rows: Sequence[Limit], families: Sequence[str]) -> tuple[FamilyBest, ...]:
    """The farthest of each family, with the fewest devices that reach it; against tp alone."""
    best: dict[str, Limit] = {}
    for row in rows:
        if row.value is not None and (row.family not in best or row.value > (best[row.family].value or 0)):
            best[row.family] = row
    tp = best["tp"].value if "tp" in best else None
    return tuple(
        FamilyBest(family=name, gpus=best[name].gpus, value=value, times_tp=value / tp if tp else None)
        for name in families
        if name in best and (value := best[name].value) is not None
    )


def _notes(question: Question, searched: Searched, pins: Pins) -> tuple[str, ...]:
    """What the values take for granted."""
    whole = "one pass, without gradient accumulation: a pipeline has as many micro-batches as it needs"
    if pins.micro_batch_size is not None:
        whole = f"micro-batches of {pins.micro_batch_size}, accumulated"
    notes = [f"The batch is {whole}.", trained(question)]
    if searched == "seq_len" and question.model.position == "learned":
        notes.append("The table of learned positions grows with the sequence.")
    return tuple(notes)
