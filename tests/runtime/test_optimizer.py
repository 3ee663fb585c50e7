"""Clipping against torch's own, on one process: a large gradient is scaled down, a small one never up."""

from __future__ import annotations

import pytest
import torch

from seqplan.runtime.optimizer import clip_gradients


@pytest.mark.parametrize("limit", [0.5, 5.0, 50.0])  # the norm is 13
def test_clipping_is_torchs(limit: float) -> None:
    parameters = [torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True)]
    values = [torch.tensor([3.0, 4.0]), torch.tensor([12.0])]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = value.clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
    clip_gradients(values, norm.double(), limit)
    for parameter, value in zip(parameters, values, strict=True):
        torch.testing.assert_close(value, parameter.grad)


def test_without_a_limit_nothing_is_scaled() -> None:
    grad = torch.tensor([3.0, 4.0])
    clip_gradients([grad], torch.tensor(5.0), None)
    assert grad.tolist() == [3.0, 4.0]
