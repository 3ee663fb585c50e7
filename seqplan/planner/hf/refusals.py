"""Models that seqplan does not plan, told by the keys that say so; all of them named in one line.

A dense estimate of a mixture of experts would be many times too small, and half an encoder-decoder is not
a model: none of them is ever counted as something else. Keys are told by the words in their names rather
than by a list, since a fork of a known family brings new ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from seqplan.planner.hf.class_names import class_reasons, conditional
from seqplan.planner.hf.expert_keys import experts, says_no_experts
from seqplan.planner.hf.meaning import says_nothing
from seqplan.planner.hf.reader import show

_HYBRID = re.compile(
    r"hybrid|mamba|rwkv|ret_?net|retention|hyena|recurren|delta_?net|linear_att|lightning_att|(^|_)ssm(_|$)",
    re.IGNORECASE,
)
_CROSS = re.compile(r"cross_?att", re.IGNORECASE)
_SIDE = re.compile(r"(num_|n_)?(encoder|decoder)_(num_)?(hidden_)?layers|(encoder|decoder)_config")
"""Layers of one side of an encoder-decoder; a model of one stack has no such key."""
_LAYER_KINDS = re.compile(r"_?(layers?_(block_)?|(token_|sequence_|layer_)?mixer_)types?|(token_|seq)mixers?")


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
        classes = class_reasons(part)
        dense = says_no_experts(part)
        for reason, types, keys in (
            ("mixture of experts", "experts", experts(part)),
            ("encoder-decoder", "encoder_decoder", _encoder_decoder(part)),
            ("state-space or hybrid layers", "recurrent", _hybrid(part, t)),
            ("cross-attention", "", _given(part, _matching(part, _CROSS))),
            ("multi-head latent attention", "", _given(part, t["latent_keys"])),
            ("layers that share keys and values", "", _given(part, t["shared_kv_keys"])),
            ("more than one tower", "", _given(part, t["tower_keys"])),
        ):
            found = [prefix + key for key in keys]
            denied = reason == "mixture of experts" and dense
            by_type = isinstance(kind, str) and kind.removesuffix("_text") in t.get(types, ())
            if by_type and not found and not denied:
                found.append(f"{prefix}model_type={kind}")
            found += [prefix + name for name in classes.get(reason, ()) if not denied]
            reasons.setdefault(reason, []).extend(found)
    if not any(reasons.values()):
        reasons["encoder-decoder or more than one tower"] = conditional(data)
    return [f"{reason} ({', '.join(keys[:3])})" for reason, keys in reasons.items() if keys]


def _matching(data: Mapping[str, Any], words: re.Pattern[str]) -> list[str]:
    return [key for key in data if isinstance(key, str) and words.search(key)]


def _given(data: Mapping[str, Any], keys: Iterable[str]) -> Iterator[str]:
    """Those keys that have a value that means something."""
    for key in keys:
        value = data.get(key)
        if not says_nothing(value):
            yield f"{key}={show(value)}" if not isinstance(value, dict | list) else key


def _encoder_decoder(data: Mapping[str, Any]) -> Iterator[str]:
    if data.get("is_encoder_decoder") is True:
        yield "is_encoder_decoder=true"
        return
    if isinstance(data.get("encoder"), dict) and isinstance(data.get("decoder"), dict):
        yield "encoder and decoder"
    sides = [
        key for key in data if isinstance(key, str) and _SIDE.fullmatch(key) and not says_nothing(data[key])
    ]
    if sides:
        yield " and ".join(sides[:2])


def _hybrid(data: Mapping[str, Any], tables: Mapping[str, Any]) -> Iterator[str]:
    """Keys of other kinds of layer, and lists of the layers' kinds that hold one that is no attention."""
    named = [*tables["hybrid_keys"], *tables["state_keys"]]
    yield from _given(data, dict.fromkeys([*named, *_matching(data, _HYBRID)]))
    for key, kinds in data.items():
        if not isinstance(key, str) or not _LAYER_KINDS.fullmatch(key) or key in named or says_nothing(kinds):
            continue
        other = [
            kind
            for kind in (kinds if isinstance(kinds, list) else [kinds])
            if not isinstance(kind, str) or kind not in tables["attention_kinds"]
        ]
        if other:
            yield f"{key} has {other[0] if isinstance(other[0], str) else show(other[0])}"
