"""The moments of a step at which a stage's rank may be fullest, each as a sum of bundles of its inventory.

A moment is a forward or backward of the last layer or of the head while all other micro-batches wait, the end
of a backward when all gradients exist, or the optimizer. memory_model.py takes the largest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.memory.bundle import Bundle
from seqplan.planner.memory.stage_inventory import StageBundles

Case = list[tuple[Any, Bundle]]
"""One moment of a step: bundles with how many times each is there."""


class Conditional:
    """A moment where a condition is 1, and none where it is 0; the sum is taken once for both."""

    def __init__(self, condition: Any, moment: Moment) -> None:
        self.condition, self.moment = condition, moment

    def __iter__(self) -> Iterator[tuple[Any, Bundle]]:
        return ((self.condition * count, bundle) for count, bundle in self.moment)


Moment = Case | Conditional


def stage_cases(
    bundles: StageBundles, in_flight: Floats, num_microbatches: Any, first_backward: Any
) -> dict[str, Moment]:
    """Every moment at which this stage's rank may be fullest.

    `first_backward`: 1 where the fullest backward with all others in flight is a step's first, so that no
    gradient exists at the first of these moments (Inventory.first_backwards).
    """
    b = bundles
    one: Any = 1
    others = np.maximum(in_flight - 1.0, 0.0)
    cases = _backward_cases(b, b.working, others, first_backward)
    if np.any(first_backward):
        # After its first backward such a stage has gradients; if it has another micro-batch.
        again = first_backward * (num_microbatches > 1)
        waiting = np.minimum(others, np.maximum(num_microbatches - 2.0, 0.0))
        later = _backward_cases(b, b.later_working, waiting, 0)
        cases |= {"later " + name: Conditional(again, case) for name, case in later.items()}
    if b.num_layers > 0 and b.working["summing"].by_kind:
        # The step's last backward, when no other micro-batch waits: all layers but the first have gone.
        last: Case = [(one, bundle) for bundle in (b.states, b.gradients, b.inputs, b.layer)]
        only = first_backward * (num_microbatches <= 1)
        last += [(one, b.working["summing"]), (-only, b.late_gradients)]
        filled = layers_of_a_bucket(b)
        buckets = (filled > 0) & (filled < b.num_layers)
        rest: Case = [(-one, b.layer_mlp), (one, b.working["attention_backward"])]
        cases["last mlp_backward"] = Conditional(buckets, [*last, (one, b.working["mlp_backward"])])
        within = (filled > 0) & (b.working["summing"].total <= b.early_gradients.total)  # of a single layer
        cases["last attention_backward"] = Conditional(buckets | within, [*last, *rest])
    if b.num_layers > 0 and b.working["summed"].by_kind:
        only = first_backward * (num_microbatches <= 1)
        summing: Case = [
            *((one, bundle) for bundle in (b.states, b.gradients, b.inputs, b.layer)),
            *((-only, bundle) for bundle in (b.late_gradients, b.late_layer_gradients)),
            (only, b.early_gradients),
            (-one, b.layer_mlp),
            (one, b.working["attention_backward"]),
            (one, b.working["summed"]),
        ]
        cases["last attention_backward, summed"] = Conditional(b.working["summed"].total > 0, summing)
    if b.has_embedding and b.working["embedding_summed"].by_kind:
        summed: Case = [(one, b.states), (one, b.gradients), (one, b.inputs)]
        summed += [(one, b.working["embedding_backward"]), (one, b.working["embedding_summed"])]
        cases["last embedding_backward, summed"] = Conditional(
            b.working["embedding_summed"].total > 0, summed
        )
    cases["gradient_sum"] = [(one, b.states), (one, b.gradients), (one, b.working["gradient_sum"])]
    cases["optimizer"] = [(one, b.states), (one, b.gradients), (one, b.working["optimizer"])]
    return cases


def _backward_cases(
    b: StageBundles, working: dict[str, Bundle], others: Any, missing: Any
) -> dict[str, Moment]:
    """The moments of one micro-batch, from its forward to the end of its backward, while `others` wait.

    `missing`: 1 where it is the first to come to its backward, so that gradients come as it makes them.
    """
    one: Any = 1
    found = one - missing
    cases: dict[str, Moment] = {}
    base: Case = [(one, b.states), (found, b.gradients), (others, b.kept), (one, b.inputs)]
    if working["forward_gather"].by_kind:
        cases["forward_gather"] = [*base, (one, working["forward_gather"])]
    if working["gather"].by_kind:
        cases["gather"] = [*base, (one, b.layers), (one, b.head), (one, working["gather"])]
    if b.has_head:
        in_head: Case = [*base, (one, b.layers), (one, b.head)]
        for moment in ("loss_forward", "loss_backward", "head_backward"):
            cases[moment] = [*in_head, (one, working[moment])]
    if b.num_layers > 0:
        cases |= _last_layer_cases(b, working, base, missing)
    end: Case = [(one, b.states), (one, b.gradients), (others, b.kept), (one, b.inputs)]
    late: Case = [(-missing, b.late_gradients), (-missing, b.late_layer_gradients)]
    if working["layer_reduction"].by_kind:
        reduced: Case = [*end, (-one, b.inputs), (one, b.micro_batch)]
        cases["layer_reduction"] = [*reduced, *late, (one, working["layer_reduction"])]
        cases["root_reduction"] = [*reduced, (-missing, b.late_gradients), (one, working["root_reduction"])]
    if b.num_layers > 1:
        end += [(one, working["reduction"]), (one, working["end"])]
    if b.num_layers > 0:
        first_layer: Case = [*end, *late, (one, b.layer)]
        first_mlp: Case = [*first_layer, (one, working["mlp_backward"])]
        if b.num_layers == 1:
            first_mlp.append((one, working["last_mlp_backward"]))
        cases["end mlp_backward"] = first_mlp
        cases["end attention_backward"] = [
            *first_layer,
            (missing, b.early_gradients),
            (-one, b.layer_mlp),
            (one, working["attention_backward"]),
        ]
    if b.has_embedding or b.has_head:
        if b.num_layers == 1:
            end = [*end, (one, working["reduction"])]
        cases["embedding_backward"] = [*end, (one, working["embedding_backward"])]
    return cases


def _last_layer_cases(
    b: StageBundles, working: dict[str, Bundle], base: Case, missing: Any
) -> dict[str, Moment]:
    """While the last layer is computed, and the one before it."""
    one: Any = 1
    cases: dict[str, Moment] = {}
    plain_last = one - b.last_recomputed
    unmade: Case = [(-plain_last, b.layer_mlp)]
    live: Case = [(one, b.layers), (b.last_recomputed, b.recomputed_extra)]
    head_gradients: Case = [(missing, b.head_gradients)]
    forward: Case = [*base, (one, b.layers)]
    cases["attention_forward"] = [*forward, *unmade, (one, working["attention_forward"])]
    cases["mlp_forward"] = [*forward, (one, working["mlp_forward"])]
    mlp: Case = [*base, *live, *head_gradients, (one, working["mlp_backward"])]
    attention: Case = [
        *base,
        *live,
        *head_gradients,
        (missing, b.early_gradients),
        (-one, b.layer_mlp),
        (one, working["attention_backward"]),
    ]
    cases["mlp_backward"] = [*mlp, (one, working["last_mlp_backward"])]
    cases["attention_backward"] = attention
    reducing = bool(working["reduction"].by_kind) and b.num_layers > 1
    # A table has layouts without a reduction too: with the gradients all the same, this would be no moment.
    reduced = missing * (working["reduction"].total > 0)
    if np.any(b.last_recomputed):
        again: Case = [*base, *live, (-one, b.layer_mlp), (one, working["attention_forward"])]
        again.append((one, working["recomputation"]))
        cases["attention_forward again"] = Conditional(b.last_recomputed, again)
        if reducing:
            again = [*again, (-one, b.layer), (one, b.recomputed_extra), (one, working["reduction"])]
            again.append((reduced, b.late_layer_gradients))
            cases["attention_forward again, reducing"] = Conditional(b.last_recomputed, again)
    if reducing:
        # The layer before: the last one has gone, but for its gradients.
        gone: Case = [(-one, b.layer), (b.last_recomputed, b.recomputed_extra)]
        next_one: Case = [*gone, (reduced, b.late_layer_gradients), (one, working["reduction"])]
        cases["mlp_backward, reducing"] = [*mlp, *next_one]
        cases["attention_backward, reducing"] = [*attention, *next_one]
    if working["layer_reduction"].by_kind and b.num_layers > 1:
        last_reduced: Case = [*forward, (-one, b.layer), (b.last_recomputed, b.recomputed_extra)]
        for moment in ("layer_reduction", "last_layer_reduction"):
            last_reduced.append((one, working[moment]))
        cases["last_layer_reduction"] = last_reduced
    if b.has_head and working["summing"].by_kind:
        # In a step's last backward, which is like any other on the last stage alone.
        filled, one_layer = layers_of_a_bucket(b), b.layers.times(1.0 / b.num_layers)
        bucket: Case = [(-filled, one_layer), (one, working["summing"])]
        for name, backward in (("mlp", mlp), ("attention", attention)):
            summing = Conditional((filled > 0) & (filled < b.num_layers), [*backward, *bucket])
            cases[f"{name}_backward, summing"] = summing
    return cases


def layers_of_a_bucket(bundles: StageBundles) -> Any:
    """Layers whose gradients fill one bucket of those that are summed together."""
    return np.ceil(bundles.working["summing"].total / bundles.layer_gradients.total)
