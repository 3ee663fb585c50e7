"""Values of the inventory's symbols (activations.SYMBOLS) for the rows of a LayoutTable.

What varies over the rows is a float64 column (exact for every count below 2^53, and free of integer
overflow); what does not is a plain number. The symbols of one stage are added by model_states.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_table import LayoutTable
from seqplan.planner.question import Question
from seqplan.planner.train_spec import MOMENT_BYTES, PRECISION_BYTES


def column(values: Any) -> Floats:
    """A column as float64."""
    return np.asarray(values, dtype=np.float64)


MAX_HEAD_GROUPS = 6
MIN_RING_MESSAGE_BYTES = 1 << 20
"""As in runtime/attention/head_groups.py, which says why; a test holds the two together."""


def ring_head_groups(kv_heads: Floats, kv_bytes: Floats) -> Floats:
    """Times that a ring turns in one pass: the largest divisor of the kv heads that keeps messages large."""
    groups = np.ones_like(kv_heads)
    for number in range(2, MAX_HEAD_GROUPS + 1):
        fits = (np.mod(kv_heads, number) == 0) & (np.floor(kv_bytes / number) >= MIN_RING_MESSAGE_BYTES)
        groups = np.where(fits, float(number), groups)
    return groups


TILE_BYTES = {True: 1 << 20, False: 256 << 20}
"""As in runtime/attention/rsa_scores.py, on a CPU or not; the same test."""


def score_tile(matrices: Any, rows: Any, columns: Any, itemsize: Any, on_cpu: bool) -> Any:
    """Elements of the largest tile of [matrices, rows, columns]: whole matrices, or rows of one."""
    budget, whole = TILE_BYTES[on_cpu] // itemsize, rows * columns
    some_rows = np.minimum(rows, np.maximum(budget // columns, 1.0)) * columns
    return np.where(whole <= budget, np.minimum(matrices, budget // whole) * whole, some_rows)


def layout_values(question: Question, table: LayoutTable) -> dict[str, Any]:
    """Every symbol but those of one stage: numbers and columns of len(table)."""
    model, train = question.model, question.train
    tp, sp = column(table.tp), column(table.sp)
    itemsize = PRECISION_BYTES[table.precision]
    micro_batch, seq_len = column(table.micro_batch_size), train.seq_len
    split_residual = table.tp_sequence_parallel == 1
    local_seq = np.ceil(seq_len / sp)
    tokens = micro_batch * local_seq
    rsa = table.is_attention("rsa")
    ring = table.is_attention("ring") & (table.sp > 1)
    math = table.is_kernel("math") | rsa
    cpu = question.cluster.device.kind == "cpu"
    position = model.norm_position
    split = column(table.ulysses_degree)
    # Ranks that split the heads copy a kv head where they are more: at least one for each of them.
    kv_heads = np.maximum(np.ceil(model.num_kv_heads / tp), split)
    heads = np.ceil(model.num_attention_heads / tp)
    kv_bytes = 2.0 * tokens * kv_heads * model.head_dim * itemsize
    groups = np.where(ring | (rsa & (table.sp > 1)), ring_head_groups(kv_heads / split, kv_bytes), 1.0)
    zigzag = rsa & (table.sp > 1) & model.causal
    tile: Any = 0.0
    softmax_tile: Any = 0.0
    if np.any(rsa):
        matrices, rows = np.ceil(micro_batch * kv_heads / groups), local_seq * heads / kv_heads
        tile = score_tile(matrices, rows, local_seq / (1 + zigzag), itemsize, cpu)
        # The last rank's second chunk sees the first sp + 1 of 2 sp chunks.
        softmax_tile = score_tile(matrices, rows / 2, seq_len * (sp + 1) / (2 * sp), 4, cpu)
    return {
        "B": micro_batch,
        "L": seq_len,
        "S": local_seq,
        "T": tokens,
        "Tr": np.where(split_residual, np.ceil(tokens / tp), tokens),
        "m": column(table.num_microbatches),
        "h": model.hidden_size,
        "E": model.embedding_size,
        "f": np.ceil(model.ffn_hidden_size / tp),
        "a": heads,
        "k": kv_heads,
        "d": model.head_dim,
        "V": column(question.implementation.capabilities.padded_vocab(model.vocab_size, table.tp)) / tp,
        "e": itemsize,
        "ge": train.gradient_bytes,
        "oe": MOMENT_BYTES[train.optimizer],
        "dp": column(table.dp),
        "tp": tp,
        "sp": sp,
        "pp": table.pp,
        "zero": column(table.zero_stage),
        "N": column(table.zero_shard_size),
        "U": split,
        "R": column(table.ring_degree),
        "G": groups,
        "Xd": tile,
        "Xs": softmax_tile,
        "tp_sequence_parallel": split_residual,
        "ring": ring,
        "rsa": rsa,
        "zigzag": zigzag,
        "copied": (kv_heads > 1) & ((micro_batch > 1) | (heads > kv_heads)),
        "plain": ~ring & ~rsa,
        "flash": table.is_kernel("flash") & ~rsa,
        "efficient": table.is_kernel("efficient") & ~rsa,
        "math": math,
        "cpu": cpu,
        "cuda": not cpu,
        "fp32": table.precision == "fp32",
        "recompute": table.is_recompute("full"),
        "causal": model.causal,
        "gated": model.gated_mlp,
        "relu": model.activation == "relu",
        "rmsnorm": model.norm.startswith("rmsnorm"),
        "pre_norm": position in ("pre", "sandwich"),
        "post_norm": position == "post",
        "output_norm": position in ("output", "sandwich"),
        "parallel_block": model.parallel_block,
        "qk_norm": model.qk_norm != "none",
        "rope": model.position == "rope",
        "learned": model.position == "learned",
        "embedding_norm": model.embedding_norm,
        "final_norm": model.final_norm,
        "mlm": model.head == "mlm",
        "lm": model.head == "lm",
        "tied": model.tied_embeddings,
        "adafactor": train.optimizer == "adafactor",
        "hidden_dropout": train.hidden_dropout > 0,
        "attention_dropout": train.attention_dropout > 0,
    }
