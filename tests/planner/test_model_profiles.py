"""The built-in models: each file is a valid ModelSpec with a source, and counts what was published."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import seqplan
from seqplan.planner.model_spec import ModelSpec

MODELS = Path(seqplan.__file__).parent / "profiles" / "models"

# Elements of the released checkpoints (safetensors headers on the Hugging Face hub, or the class of
# transformers built from the released config.json). bert-*: with the masked-token head, without pooler.
# gpt3-175b is not released: 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)) of arXiv 2104.04473, equation 2,
# with V = 50,257 and the final norm's 2 h, which that equation leaves out. tiny*: counted by hand below.
PUBLISHED: dict[str, int] = {
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,
    "gpt-neox-20b": 20_554_567_680,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    # 260*128 + 8*(2*128*128 + 2*64*128 + 3*128*384 + 2*128) + 128
    "tiny": 1_608_320,
    # (260 + 2048 + 2)*128 + 2*128 + 8*(4*(128*128 + 128) + 2*128*512 + 512 + 128 + 4*128)
    # + 128*128 + 128 + 2*128 + 260
    "tiny-bert": 1_899_140,
}


def _load(name: str) -> tuple[str, ModelSpec]:
    fields = yaml.safe_load((MODELS / f"{name}.yaml").read_text(encoding="utf-8"))
    source = fields.pop("source")
    return source, ModelSpec(**fields)


def test_every_profile_is_in_the_table() -> None:
    assert {path.stem for path in MODELS.glob("*.yaml")} == set(PUBLISHED)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_profile_counts_what_was_published(name: str) -> None:
    source, model = _load(name)
    assert model.parameters() == PUBLISHED[name]
    assert model.name == name
    assert len(source) > 20, "a source names a paper, a table or a release"
    assert model.causal == ("bert" not in name)
