"""The moments of a step at which a stage's rank may be fullest, each as a sum of bundles of its inventory.

A moment is a forward or backward of the last layer or of the head while all other micro-batches wait, the end
of a backward when all gradients exist, or the optimizer. memory_model.py takes the largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.memory.stage_inventory import Bundle, StageBundles

Case = list[tuple[Any, Bundle]]
"""One moment of a step: bundles with how many times each is there."""


def stage_cases(bundles: StageBundles, in_flight: Floats, all_started: Any) -> dict[str, Case]:
    """Every moment at which this stage's rank may be fullest.

    `all_started`: 1 where every micro-batch is in flight before the first backward, so that no gradient
    exists at the first of these moments.
    """
    b = bundles
    one: Any = 1
    others = np.maximum(in_flight - 1.0, 0.0)
    early = one - all_started
    cases: dict[str, Case] = {}

    def moments(prefix: str, waiting: Any, gradients: Any) -> None:
        base: Case = [(one, b.states), (gradients, b.gradients), (waiting, b.kept), (one, b.inputs)]
        if b.working["gather"].by_kind:
            cases[prefix + "gather"] = [*base, (one, b.layers), (one, b.head), (one, b.working["gather"])]
        if b.has_head:
            in_head: Case = [*base, (one, b.layers), (one, b.head)]
            for moment in ("loss_forward", "loss_backward", "head_backward"):
                cases[prefix + moment] = [*in_head, (one, b.working[moment])]
        if b.num_layers > 0:
            plain_last = one - b.last_recomputed
            unmade: Case = [(-plain_last, b.layer_mlp)]
            live: Case = [(one, b.layers), (b.last_recomputed, b.recomputed_extra)]
            head_gradients: Case = [(one - gradients, b.head_gradients)]
            cases[prefix + "attention_forward"] = [
                *base,
                (one, b.layers),
                *unmade,
                (one, b.working["attention_forward"]),
            ]
            cases[prefix + "mlp_forward"] = [*base, (one, b.layers), (one, b.working["mlp_forward"])]
            mlp: Case = [*base, *live, *head_gradients, (one, b.working["mlp_backward"])]
            attention: Case = [
                *base,
                *live,
                *head_gradients,
                (one - gradients, b.early_gradients),
                (-one, b.layer_mlp),
                (one, b.working["attention_backward"]),
            ]
            cases[prefix + "mlp_backward"] = [*mlp, (one, b.working["last_mlp_backward"])]
            cases[prefix + "attention_backward"] = attention
            if np.any(b.last_recomputed):
                again: Case = [*base, *live, (-one, b.layer_mlp), (one, b.working["attention_forward"])]
                again.append((one, b.working["recomputation"]))
                cases[prefix + "attention_forward again"] = _where(b.last_recomputed, again)
                if b.working["reduction"].by_kind and b.num_layers > 1:
                    again = [
                        *again,
                        (-one, b.layer),
                        (one, b.recomputed_extra),
                        (one, b.working["reduction"]),
                    ]
                    cases[prefix + "attention_forward again, reducing"] = _where(b.last_recomputed, again)
            if b.working["reduction"].by_kind and b.num_layers > 1:
                # The layer before: the last one has gone, but for its gradients.
                gone: Case = [(-one, b.layer), (b.last_recomputed, b.recomputed_extra)]
                next_one: Case = [*gone, (one, b.working["reduction"])]
                cases[prefix + "mlp_backward, reducing"] = [*mlp, *next_one]
                cases[prefix + "attention_backward, reducing"] = [*attention, *next_one]
            if b.working["layer_reduction"].by_kind and b.num_layers > 1:
                last_reduced: Case = [*base, (one, b.layers), (-one, b.layer)]
                last_reduced += [(b.last_recomputed, b.recomputed_extra)]
                for moment in ("layer_reduction", "last_layer_reduction"):
                    last_reduced.append((one, b.working[moment]))
                cases[prefix + "last_layer_reduction"] = last_reduced
            if b.has_head and b.working["summing"].by_kind:
                # In a step's last backward, which is like any other on the last stage alone.
                filled, one_layer = layers_of_a_bucket(b), b.layers.times(1.0 / b.num_layers)
                bucket: Case = [(-filled, one_layer), (one, b.working["summing"])]
                for name, backward in (("mlp", mlp), ("attention", attention)):
                    summing = _where((filled > 0) & (filled < b.num_layers), [*backward, *bucket])
                    cases[f"{prefix}{name}_backward, summing"] = summing

    moments("", others, early)
    if np.any(all_started):
        # After its first backward such a stage has gradients, and one micro-batch less; if it has another.
        first = dict(cases)
        moments("later ", np.maximum(others - 1.0, 0.0), one)
        for name in [name for name in cases if name not in first]:
            cases[name] = _where(in_flight > 1.0, cases[name])
    end: Case = [(one, b.states), (one, b.gradients), (others, b.kept), (one, b.inputs)]
    if b.working["layer_reduction"].by_kind:
        reduced: Case = [*end, (-one, b.inputs), (one, b.micro_batch)]
        cases["layer_reduction"] = [*reduced, (one, b.working["layer_reduction"])]
        root: Case = [*reduced, (one, b.working["root_reduction"])]
        # Of several micro-batches in flight the first finds no gradients, the next waits for one less.
        started = all_started * (in_flight > 1.0)
        cases["root_reduction"] = [*root, (-started, b.embedding_gradients)]
        cases["later root_reduction"] = _where(started, [*root, (-one, b.kept)])
    if b.num_layers > 1:
        end += [(one, b.working["reduction"]), (one, b.working["end"])]
    if b.num_layers > 0 and b.working["summing"].by_kind:
        # The step's last backward, when no other micro-batch waits: all layers but the first have gone.
        last: Case = [(one, bundle) for bundle in (b.states, b.gradients, b.inputs, b.layer)]
        last += [(one, b.working["summing"]), (-all_started * (in_flight <= 1.0), b.embedding_gradients)]
        filled = layers_of_a_bucket(b)
        buckets = (filled > 0) & (filled < b.num_layers)
        rest: Case = [(-one, b.layer_mlp), (one, b.working["attention_backward"])]
        cases["last mlp_backward"] = _where(buckets, [*last, (one, b.working["mlp_backward"])])
        within = (filled > 0) & (b.working["summing"].total <= b.early_gradients.total)  # of a single layer
        cases["last attention_backward"] = _where(buckets | within, [*last, *rest])
    if b.num_layers > 0:
        # Of the first backward of a step: the embedding's gradient does not exist yet.
        late: Case = [(-all_started, b.embedding_gradients)]
        first_mlp: Case = [*end, *late, (one, b.layer), (one, b.working["mlp_backward"])]
        if b.num_layers == 1:
            first_mlp += [(one, b.working["last_mlp_backward"])]
        cases["end mlp_backward"] = first_mlp
        cases["end attention_backward"] = [
            *end,
            *late,
            (one, b.layer),
            (-one, b.layer_mlp),
            (one, b.working["attention_backward"]),
        ]
    if b.has_embedding or b.has_head:
        if b.num_layers == 1:
            end = [*end, (one, b.working["reduction"])]
        cases["first_embedding_backward"] = [*end, (one, b.working["first_embedding_backward"])]
        # Where all micro-batches were in flight, one that finds gradients waits for one less.
        fewer: Case = [(-all_started, b.kept), (one, b.working["embedding_backward"])]
        cases["embedding_backward"] = _where(one - all_started * (in_flight <= 1.0), [*end, *fewer])
    cases["gradient_sum"] = [(one, b.states), (one, b.gradients), (one, b.working["gradient_sum"])]
    cases["optimizer"] = [(one, b.states), (one, b.gradients), (one, b.working["optimizer"])]
    return cases


def layers_of_a_bucket(bundles: StageBundles) -> Any:
    """Layers whose gradients fill one bucket of those that are summed together."""
    return np.ceil(bundles.working["summing"].total / bundles.layer_gradients.total)


def _where(condition: Any, case: Case) -> Case:
    """The case where the condition is 1, nothing where it is 0."""
    return [(condition * count, bundle) for count, bundle in case]
