"""Masked-token prediction: which tokens an encoder has to guess, decided by the global position.

BERT's rule (Devlin et al., arXiv 1810.04805, section 3.1): 15 % of the positions are chosen; of these
80 % become the mask token, 10 % a random token, 10 % stay. The choice is a hash of (seed, how many
samples were drawn before, position), so every rank and every layout makes the same one for the tokens it
holds, and a sample that comes again in a later epoch is masked anew.
Shapes: B sequences of a micro-batch, S tokens on this rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqplan.runtime.random_field import hash_bits, seed_of
from seqplan.runtime.vocab_parallel import IGNORED_LABEL

CHOSEN_PROBABILITY = 0.15
MASK_SHARE = 0.8
RANDOM_SHARE = 0.1


def _uniform(seed: int, rows_B: Tensor, cols_S: Tensor) -> Tensor:
    """-> [B, S] float64 in [0, 1), exact multiples of 2**-32."""
    return (hash_bits(seed, rows_B, cols_S).to(torch.int64) + (1 << 31)).double() / (1 << 32)


def mask_tokens(
    tokens_BS: Tensor,
    draws_B: Tensor,
    positions_S: Tensor,
    *,
    seed: int,
    mask_token: int,
    num_plain_tokens: int,
) -> tuple[Tensor, Tensor]:
    """-> (tokens [B, S] with some replaced, labels [B, S]: the original where chosen, else IGNORED_LABEL)."""
    chosen = _uniform(seed_of(seed, "masked: which"), draws_B, positions_S) < CHOSEN_PROBABILITY
    how = _uniform(seed_of(seed, "masked: how"), draws_B, positions_S)
    other = hash_bits(seed_of(seed, "masked: random token"), draws_B, positions_S).long() % num_plain_tokens
    replaced = torch.where(how < MASK_SHARE, torch.full_like(tokens_BS, mask_token), tokens_BS)
    replaced = torch.where((how >= MASK_SHARE) & (how < MASK_SHARE + RANDOM_SHARE), other, replaced)
    return torch.where(chosen, replaced, tokens_BS), torch.where(chosen, tokens_BS, IGNORED_LABEL)
