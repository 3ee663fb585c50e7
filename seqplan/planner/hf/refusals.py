"""Models that seqplan does not plan, told by the keys that say so; all of them named in one line.

A dense estimate of a mixture of experts would be many times too small, and half an encoder-decoder is not
a model: none of them is ever counted as something else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from seqplan.planner.hf.reader import show

_EXPERTS = re.compile(r"(?!.*(shared|top_|_per_))((\w+_)?n?experts|experts?_(num|count))")
"""Keys that count experts, not those of one token or the shared ones."""


@cache
def _tables() -> dict[str, Any]:
    """Key names and model types, as data; types are for files that leave the key to a class's default."""
    found = json.loads(Path(__file__).with_name("refusals.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def refusals(data: Mapping[str, Any]) -> list[str]:
    """Why this config is no dense decoder or encoder: each reason with the keys and values that say so."""
    t = _tables()
    places = [("", data)]
    places += [(f"{key}.", data[key]) for key in t["text_keys"] if isinstance(data.get(key), dict)]
    reasons: dict[str, list[str]] = {}
    for prefix, part in places:
        kind = part.get("model_type")
        for reason, types, keys in (
            ("mixture of experts", "experts", [] if _no_experts(part) else _experts(part)),
            ("encoder-decoder", "encoder_decoder", _encoder_decoder(part)),
            ("state-space or hybrid layers", "recurrent", _state_space(part, t)),
            ("multi-head latent attention", "", _given(part, ("kv_lora_rank",))),
            ("more than one tower", "", _given(part, t["tower_keys"])),
        ):
            found = [prefix + key for key in keys]
            by_type = isinstance(kind, str) and kind.removesuffix("_text") in t.get(types, ())
            if by_type and not found and not (types == "experts" and _no_experts(part)):
                found.append(f"{prefix}model_type={kind}")
            reasons.setdefault(reason, []).extend(found)
    return [f"{reason} ({', '.join(keys[:3])})" for reason, keys in reasons.items() if keys]


def _given(data: Mapping[str, Any], keys: Iterable[str]) -> Iterator[str]:
    """Those keys that have a value that means something."""
    for key in keys:
        value = data.get(key)
        if value not in (None, False, 0, 0.0, "", [], {}):
            yield f"{key}={show(value)}" if not isinstance(value, dict | list) else key


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 1


def _experts(data: Mapping[str, Any]) -> Iterator[str]:
    """A count of experts above one (also one of several layers), or a switch."""
    for key, value in data.items():
        counts = value if isinstance(value, list) else [value]
        if isinstance(key, str) and _EXPERTS.fullmatch(key) and any(_is_count(count) for count in counts):
            yield f"{key}={show(value)}"
    for key in ("enable_moe_block", "use_moe", "is_moe"):
        if data.get(key) is True:
            yield f"{key}=true"
    for key in ("moe_config", "ffn_config", "ffn_cfg", "moe"):
        if isinstance(data.get(key), dict):
            yield from (f"{key}.{found}" for found in _experts(data[key]))


def _no_experts(data: Mapping[str, Any]) -> bool:
    """A class that can have experts, told to have none: num_experts 0 or 1 is a dense model."""
    counts = [value for key, value in data.items() if isinstance(key, str) and _EXPERTS.fullmatch(key)]
    switched = data.get("enable_moe_block") is True
    return not switched and bool(counts) and all(value in (0, 1) for value in counts)


def _encoder_decoder(data: Mapping[str, Any]) -> Iterator[str]:
    if data.get("is_encoder_decoder") is True:
        yield "is_encoder_decoder=true"
    elif isinstance(data.get("encoder"), dict) and isinstance(data.get("decoder"), dict):
        yield "encoder and decoder"
    elif data.get("encoder_layers") and data.get("decoder_layers"):
        yield "encoder_layers and decoder_layers"
    if data.get("add_cross_attention") is True:
        yield "add_cross_attention=true"


def _state_space(data: Mapping[str, Any], tables: Mapping[str, Any]) -> Iterator[str]:
    yield from _given(data, (*tables["hybrid_keys"], *tables["state_keys"]))
    kinds = data.get("layer_types")
    if isinstance(kinds, list):
        other = [kind for kind in kinds if isinstance(kind, str) and kind not in tables["attention_kinds"]]
        if any(re.search("linear|mamba|conv|recurrent|ssm|rwkv|delta|lightning", kind) for kind in other):
            yield f"layer_types has {other[0]}"
