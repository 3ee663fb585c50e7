"""What the class of a model says of it: `architectures` and the class that auto_map names.

A fork of a family keeps its model_type and most of its keys, and its class may be all that tells it apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from seqplan.planner.hf.heads import TASKS

_KINDS: dict[str, re.Pattern[str]] = {
    "mixture of experts": re.compile(r"M[oO]E|Moe(?![a-z])|Mixtral|Experts|MixtureOf"),
    "state-space or hybrid layers": re.compile(
        r"Mamba|R[Ww][Kk][Vv]|RetNet|Hybrid|Jamba|Recurrent|SSM|Hyena|LinearAtt|DeltaNet"
    ),
    "cross-attention": re.compile(r"CrossAtt"),
    "more than one tower": re.compile(
        r"VLM?(?![a-z])|Vision|L[Ll][Aa][Vv][Aa]|Image|Video|Audio|Speech|Omni(?![a-z])|Multi-?[Mm]odal"
    ),
}
"""Reason -> the words in a class name that give it."""
_CONDITIONAL = re.compile(r"ConditionalGeneration|Seq2Seq|EncoderDecoder")
_CONDITIONAL_DECODERS = ("chatglm",)
"""Plain decoders whose class is called ForConditionalGeneration all the same."""

_OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "RefinedWeb": ("rw", "falcon"),
    "RefinedWebModel": ("rw", "falcon"),
    "exaone": ("llama",),
    "falcon": ("rw",),
    "gemma3_text": ("gemma3",),
    "gpt-sw3": ("gpt2",),
    "hunyuan_v1_dense": ("hunyuandensev1",),
    "internlm3": ("llama",),
    "iquestcoder": ("llama",),
    "phi-msft": ("phi",),
}
"""model_type -> the stems of its classes, where these are not the model_type itself."""


def class_reasons(data: Mapping[str, Any]) -> dict[str, list[str]]:
    """Reason to refuse -> the classes that give it."""
    found: dict[str, list[str]] = {}
    for where, name in _classes(data):
        for reason, words in _KINDS.items():
            if words.search(name):
                found.setdefault(reason, []).append(f"{where}={name}")
    return found


def conditional(data: Mapping[str, Any]) -> list[str]:
    """A class that generates on a condition: an encoder's output or an image."""
    if data.get("model_type") in _CONDITIONAL_DECODERS:
        return []
    return [
        f"{where}={name}"
        for where, name in _classes(data)
        if where == "architectures" and _CONDITIONAL.search(name)
    ]


def _classes(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    given = data.get("architectures")
    found = [
        ("architectures", name)
        for name in (given if isinstance(given, list) else [given])
        if isinstance(name, str)
    ]
    auto = data.get("auto_map")
    for key, path in auto.items() if isinstance(auto, dict) else ():
        if isinstance(path, str) and str(key).startswith("AutoModel"):
            found.append((f"auto_map.{key}", path.rsplit(".", 1)[-1]))
    return found


def foreign_class(data: Mapping[str, Any], family: str) -> list[str]:
    """A note where the class is not the family's own; one without a known ending has a note of its head."""
    given = data.get("architectures")
    name = given[0] if isinstance(given, list) and given and isinstance(given[0], str) else ""
    end = next((end for end in TASKS if name.endswith(end)), None)
    if end is None:
        return []
    stem = _plain(name.removesuffix(end))
    if stem in (_plain(family), *_OTHER_NAMES.get(family, ())):
        return []
    return [f"warning: class {name} is not one of {family}'s: counted as a plain {family}"]


def _plain(name: str) -> str:
    return re.sub(r"[-_]", "", name).lower()
