"""Virtual stages of the interleaved schedule: which chunk holds how many layers, and what waits in memory.

A rank's layers lie in v chunks, and chunk c of stage i is virtual stage c x p + i. Layers need not divide
evenly: Llama 3 405B has 126 layers on 16 ranks, one less on the first, whose first chunk is the embedding,
and on the last, whose last chunk is the head (2407.21783, 3.3.2). So a chunk may be empty where one of the
model's ends makes up for it, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

ROUNDS_UNTIL_STEADY = 4
"""Rounds of micro-batches after which the schedule only repeats itself; warm-up takes two at most."""


def chunk_layers(stage_layers: Sequence[int], stage: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk of one stage, in the order in which a micro-batch meets them.

    The longest stage spreads its layers evenly, what is left over to its first chunks. A shorter one has the
    same but for what it lacks: a round of micro-batches goes at the pace of the largest chunk that any stage
    has in hand, so that stages should have their large chunks at the same time. The first stage lacks it at
    the beginning, where it has the embedding, the others at the end, where the last has the head.
    """
    longest = max(stage_layers)
    share, left_over = divmod(longest, chunks)
    sizes = [share + (chunk < left_over) for chunk in range(chunks)]
    for _ in range(longest - stage_layers[stage]):
        largest = max(sizes)
        places = [chunk for chunk, size in enumerate(sizes) if size == largest]
        sizes[places[0] if stage == 0 else places[-1]] -= 1
    return tuple(sizes)


def every_chunk_works(stage_layers: Sequence[int], chunks: int) -> bool:
    """Whether each chunk has a layer, or else the embedding or the head."""
    ends = (0, len(stage_layers) - 1)
    return all(layers >= chunks - (stage in ends) for stage, layers in enumerate(stage_layers))


def uneven_chunks(stage_layers: Sequence[int], chunks: int) -> bool:
    """Whether any two chunks of the pipeline differ in layers."""
    return len(set(stage_layers)) > 1 or any(layers % chunks for layers in stage_layers)


def chunk_counts(stage_layers: Sequence[int]) -> tuple[int, ...]:
    """Numbers of chunks worth a try: those that split the longest stage evenly, as the pace is its chunks'.

    With others a round of micro-batches goes at the pace of the largest chunk, as with fewer chunks that are
    all as large.
    """
    longest = max(stage_layers, default=0)
    counts = range(2, longest + 1)
    return tuple(v for v in counts if longest % v == 0 and every_chunk_works(stage_layers, v))


@lru_cache(maxsize=65536)
def layers_in_flight(sizes: tuple[int, ...], stage: int, pp: int, microbatches: int) -> int:
    """Most layers whose activations one stage holds at once, over the interleaved 1F1B of Narayanan et al.

    Played, since chunks of unequal size are not full at the same time. Micro-batches pass chunk after chunk
    in rounds of p (2104.04473, figure 4), or a few more where p does not divide their number.
    """
    chunks, rounds = len(sizes), max(microbatches // pp, 1)
    each, more = divmod(microbatches, rounds)
    members = [each + (number < more) for number in range(min(rounds, ROUNDS_UNTIL_STEADY))]
    chunk = np.concatenate([np.repeat(np.arange(chunks), size) for size in members])
    forward, backward = np.array(sizes)[chunk], np.array(sizes)[chunks - 1 - chunk]
    number = np.arange(len(chunk))
    warm_up = min(2 * (pp - 1 - stage) + (chunks - 1) * members[0], len(number))
    started, ended = np.cumsum(forward), np.cumsum(backward) - backward
    # Just before backward j, forward warm_up + j has been the last.
    last_started = np.minimum(warm_up + number, len(number) - 1)
    return int(np.max(started[last_started] - ended))
