"""Hidden dropout: an unbiased mask that is a function of the global token and feature."""

from __future__ import annotations

import pytest
import torch

from seqplan.runtime.dropout import DropoutPlace, dropout

ROWS, TOKENS, FEATURES = 8, 64, 96


def place(seed: int = 7, rows: range = range(ROWS), positions: range = range(TOKENS)) -> DropoutPlace:
    return DropoutPlace(seed, torch.tensor(rows), torch.tensor(positions))


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_the_mean_is_kept_forward_and_backward(probability: float) -> None:
    x = torch.ones(ROWS, TOKENS, FEATURES, dtype=torch.float64, requires_grad=True)
    y = dropout(x, probability, place())
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())  # the same mask and the same factor
    kept = y.detach() != 0
    assert torch.allclose(y.detach()[kept], torch.tensor(1 / (1 - probability), dtype=torch.float64))
    deviation = (probability * (1 - probability) / kept.numel()) ** 0.5
    assert abs(float(kept.double().mean()) - (1 - probability)) < 4 * deviation


def test_a_shard_draws_its_part_of_the_whole_mask() -> None:
    x = torch.ones(ROWS, TOKENS, FEATURES)
    whole = dropout(x, 0.3, place())
    part = dropout(x[2:5, 10:30], 0.3, place(rows=range(2, 5), positions=range(10, 30)))
    assert torch.equal(part, whole[2:5, 10:30])


def test_masks_differ_between_tokens_rows_sites_and_seeds() -> None:
    x = torch.ones(ROWS, TOKENS, FEATURES)
    whole = dropout(x, 0.5, place()) != 0
    assert len({tuple(token.tolist()) for token in whole.flatten(0, 1)}) == ROWS * TOKENS
    for other in (place(seed=8), place().at(3, "mlp"), place().at(4, "mlp"), place().at(3, "attention")):
        agreement = float(((dropout(x, 0.5, other) != 0) == whole).double().mean())
        assert abs(agreement - 0.5) < 0.02


def test_no_dropout_without_a_place_or_a_probability() -> None:
    x = torch.randn(1, 2, 3)
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, place(rows=range(1), positions=range(2))) is x
