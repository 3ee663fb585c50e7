"""FLOPs that MFU counts: Megatron's published closed form, and windows by hand."""

from __future__ import annotations

import pytest

from seqplan.planner.timing.flops import attention_pairs, mean_attention_pairs, model_flops_per_step
from tests.planner.formula_cases import decoder, encoder, gpt

EXACT = 1e-9


# Narayanan et al. 2104.04473, appendix: 96 B s l h^2 (1 + s/6h + V/16lh) with recomputation, of which a
# quarter is the
# recomputed forward: 72 B s l h^2 (1 + s/6h + V/12lh). Causal attention halved: s/12h.
@pytest.mark.parametrize(
    ("layers", "hidden", "heads"), [(24, 2304, 24), (48, 6144, 48), (96, 12288, 96), (128, 25600, 160)]
)
@pytest.mark.parametrize("batch", [1, 512])
def test_model_flops_of_megatrons_gpts(layers: int, hidden: int, heads: int, batch: int) -> None:
    s, vocab = 2048, 51200
    expected = 72 * batch * s * layers * hidden**2 * (1 + s / (12 * hidden) + vocab / (12 * layers * hidden))
    model = gpt(layers, hidden, heads, vocab, s)
    assert model_flops_per_step(model, s, batch) == pytest.approx(expected, rel=EXACT)


def test_attention_pairs() -> None:
    both, causal = encoder(), decoder()
    assert attention_pairs(both, 1024, None) == 1024**2
    assert attention_pairs(causal, 1024, None) == 1024**2 / 2
    assert attention_pairs(causal, 1024, 4096) == 1024**2 / 2
    # A causal window of 256: 256 keys for each query but the first 256, which see half as many on average.
    assert attention_pairs(causal, 1024, 256) == (1024 - 256) * 256 + 256**2 / 2
    mixed = decoder(sliding_window=256, window_layers=[0, 1, 2, 3, 4, 5])
    expected = (6 * attention_pairs(causal, 1024, 256) + 2 * 1024**2 / 2) / 8
    assert mean_attention_pairs(mixed, 1024) == expected
