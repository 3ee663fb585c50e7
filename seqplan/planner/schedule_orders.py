"""In which order a stage computes under each pipeline schedule: forwards, backwards, and split backwards.

The zero-bubble schedules cut a backward in two: the gradient of the input, which the stage before waits for,
and the gradient of the weights, which nobody waits for and which therefore fills bubbles (Qi et al.
2401.10241). schedule.py adds the transfers for the one order that our runtime executes; the others are
played by the time model and counted by the memory model.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

StepKind = Literal["forward", "backward", "input_gradient", "weight_gradient"]

SPLIT_BACKWARD: tuple[str, ...] = ("zbh1", "zbh2", "zbv")
"""Schedules whose backward is an input gradient and, later, a weight gradient."""


class Step(NamedTuple):
    """One computation of a stage; `backward` is both gradients at once."""

    kind: StepKind
    micro_batch: int
    chunk: int = 0


def chunks_per_stage(schedule: str, num_virtual_stages: int) -> int:
    """Into how many pieces a stage's layers are cut; the V shape always has two."""
    return 2 if schedule == "zbv" else num_virtual_stages


def depth(schedule: str, stage: int, chunk: int, num_stages: int) -> int:
    """How many chunks of the model come before this one: chunks go round, or down and up again in a V."""
    if schedule == "zbv" and chunk == 1:
        return 2 * num_stages - 1 - stage
    return chunk * num_stages + stage


def order(schedule: str, stage: int, num_stages: int, num_microbatches: int, chunks: int = 1) -> list[Step]:
    """Everything that `stage` computes in one step."""
    p, m = num_stages, num_microbatches
    if schedule == "gpipe":
        kinds: tuple[StepKind, ...] = ("forward", "backward")
        return [Step(kind, i) for kind in kinds for i in range(m)]
    if schedule == "interleaved":
        return _interleaved(stage, p, m, chunks)
    if schedule == "zbh1":
        return _handcrafted(m, warm_up=p - 1 - stage, deferred=stage)
    if schedule == "zbh2":
        return _handcrafted(m, warm_up=2 * (p - 1 - stage), deferred=2 * stage)
    if schedule == "zbv":
        return [step for step in _v_shaped(stage, p, max(m, 2 * p - 1)) if step.micro_batch < m]
    assert schedule in ("none", "1f1b"), schedule
    return _one_f_one_b(stage, p, m)


def most_in_flight(steps: list[Step]) -> int:
    """Forwards whose activations wait at once, until the last gradient that needs them; chunks count one."""
    kept = most = 0
    for step in steps:
        if step.kind == "forward":
            kept += 1
            most = max(most, kept)
        elif step.kind != "input_gradient":
            kept -= 1
    return most


def _one_f_one_b(stage: int, p: int, m: int) -> list[Step]:
    """1F1B (PipeDream-flush, Narayanan et al. 2104.04473): min(p - 1 - stage, m) warm-up forwards, then a
    forward and a backward in turn, then the drain. So at most min(p - stage, m) micro-batches are in flight.
    """
    warm_up = min(p - 1 - stage, m)
    steps = [Step("forward", i) for i in range(warm_up)]
    for i in range(m - warm_up):
        steps += (Step("forward", warm_up + i), Step("backward", i))
    return steps + [Step("backward", i) for i in range(m - warm_up, m)]


def _interleaved(stage: int, p: int, m: int, chunks: int) -> list[Step]:
    """Interleaved 1F1B (Narayanan et al. 2104.04473, figure 4): p micro-batches through each chunk in turn.

    Where p does not divide m the rounds are longer instead, the first ones most.
    """
    rounds = round_sizes(p, m)
    starts = [sum(rounds[:number]) for number in range(len(rounds))]
    turns = [
        (i, chunk)
        for start, size in zip(starts, rounds, strict=True)
        for chunk in range(chunks)
        for i in range(start, start + size)
    ]
    warm_up = min((p - stage - 1) * 2 + (chunks - 1) * rounds[0], len(turns))
    forwards = [Step("forward", i, chunk) for i, chunk in turns]
    backwards = [Step("backward", i, chunks - 1 - chunk) for i, chunk in turns]
    steps = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        steps += [forward, backward]
    return steps + backwards[len(turns) - warm_up :]


def round_sizes(num_stages: int, num_microbatches: int) -> tuple[int, ...]:
    """Micro-batches of each round of an interleaved schedule: as many as stages, or a few more."""
    rounds = max(num_microbatches // num_stages, 1)
    each, more = divmod(num_microbatches, rounds)
    return tuple(each + (number < more) for number in range(rounds))


def _handcrafted(m: int, warm_up: int, deferred: int) -> list[Step]:
    """ZB-H1 and ZB-H2 (Qi et al. 2401.10241, 2.2): 1F1B with weight gradients put off.

    Stage i of p puts off i of them (H1), so that all stages hold p micro-batches, or 2 i after twice as many
    forwards (H2: 2 p - 1). What was put off fills the end, where 1F1B drains.
    """
    steps = [Step("forward", i) for i in range(min(warm_up, m))]
    for i in range(m):
        if warm_up + i < m:
            steps.append(Step("forward", warm_up + i))
        steps.append(Step("input_gradient", i))
        if i >= deferred:
            steps.append(Step("weight_gradient", i - deferred))
    return steps + [Step("weight_gradient", i) for i in range(max(m - deferred, 0), m)]


def _v_shaped(stage: int, p: int, m: int) -> list[Step]:
    """ZB-V (Qi et al. 2401.10241, figure 6): chunk 0 on the way down, chunk 1 on the way up.

    A stage holds 2 p chunks, the memory of p micro-batches, whichever stage it is. m is at least 2 p - 1.
    """
    steps: list[Step] = []
    made = {(kind, chunk): 0 for kind in ("forward", "input_gradient", "weight_gradient") for chunk in (0, 1)}

    def add(kind: StepKind, chunk: int) -> None:
        steps.append(Step(kind, made[kind, chunk], chunk))
        made[kind, chunk] += 1

    def gradients(chunk: int) -> None:
        add("input_gradient", chunk)
        add("weight_gradient", chunk)

    for _ in range(2 * (p - stage) - 1):  # until the first micro-batch comes up again
        add("forward", 0)
    for _ in range(stage):
        add("forward", 1)
        add("forward", 0)
    for _ in range(p - stage):
        add("forward", 1)
        gradients(1)
    while made["forward", 1] < m:
        if made["forward", 0] < m:
            add("forward", 0)
        gradients(0)
        add("forward", 1)
        gradients(1)
    for _ in range(stage):  # input gradients first: other stages wait for them
        add("input_gradient", 0)
        add("input_gradient", 1)
    for _ in range(p - stage):
        gradients(0)
    for chunk in (1, 0):
        while made["weight_gradient", chunk] < m:
            add("weight_gradient", chunk)
    return steps
