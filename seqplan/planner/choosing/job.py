"""A whole training job from one step: `--tokens 15T` says days and GPU-hours."""

from __future__ import annotations

import re

from seqplan.planner.errors import SeqplanError
from seqplan.planner.question import Question
from seqplan.planner.results import TrainingJob

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_TOKENS = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:[eE][0-9]{1,2})?)\s*([kKmMbBgGtT]?)")

MOST_TOKENS = 1e18
"""More is a slip: the largest published training sets have some 1e14 tokens."""


def parse_tokens(text: str) -> int:
    """A count such as 15T, 300B, 2.5e9 or 1000000."""
    match = _TOKENS.fullmatch(text.strip())
    tokens = float(match[1]) * _UNITS[match[2].lower()] if match else 0.0
    if not 1 <= tokens <= MOST_TOKENS:
        raise SeqplanError(
            f"--tokens {text} is not a number of tokens from 1 to {MOST_TOKENS:.0e}.",
            "Write it as 15T, 300B, 2.5e9 or 1000000.",
        )
    return round(tokens)


def training_job(question: Question, step_time_s: float, tokens: int) -> TrainingJob:
    """`tokens` through steps of the question's batch; evaluation, checkpoints and failures are left out."""
    steps = -(-tokens // (question.train.global_batch_size * question.train.seq_len))
    hours = steps * step_time_s / 3600
    return TrainingJob(tokens=tokens, steps=steps, days=hours / 24, gpu_hours=hours * question.gpus)
