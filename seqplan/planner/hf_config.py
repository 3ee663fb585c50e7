"""Reads a Hugging Face config.json into a ModelSpec, offline.

The way in: find the file, see that it is a config of a dense decoder or encoder, pick the family's reader
(hf/families.py) and turn what it found into a ModelSpec with notes. Whatever was assumed is in the notes,
and whatever is wrong is one SeqplanError that names the file and every key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from seqplan.planner.errors import SeqplanError
from seqplan.planner.hf.class_names import foreign_class
from seqplan.planner.hf.families import CLASS_PREFIXES, FAMILIES, Family
from seqplan.planner.hf.heads import head_fields
from seqplan.planner.hf.other_files import size_like, what_it_is
from seqplan.planner.hf.reader import ConfigReader, Fields, family_defaults, show
from seqplan.planner.hf.refusals import refusals
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.reading.read_json import kind_of, read_json_object
from seqplan.planner.spec import Spec

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

# Keys that change a model where a family knows them; in another family's file they are worth a word.
_MEANINGFUL = (
    "_sliding_window_pattern", "alibi", "architecture", "attention_bias", "attention_multiplier",
    "attn_logit_softcapping", "clip_qkv", "embedding_multiplier", "embedding_size",
    "final_logit_softcapping", "head_dim", "kv_channels", "layer_types", "logit_scale", "logits_scaling",
    "mlp_bias", "multi_query", "no_rope_layers", "num_hidden_groups", "num_key_value_heads",
    "num_kv_heads", "parallel_attn", "partial_rotary_factor", "qk_layernorm", "query_pre_attn_scalar",
    "residual_multiplier", "rope_scaling", "rotary_pct", "sliding_window", "sliding_window_pattern",
    "type_vocab_size", "use_parallel_residual", "use_qk_norm", "word_embed_proj_dim",
)  # fmt: skip
_LEFT_OUT = {
    "num_nextn_predict_layers": "multi-token prediction layers",
    "mtp_num_hidden_layers": "multi-token prediction layers",
    "quantization_config": "the quantisation (a plan's precision is what it trains in)",
}


class LoadedModel(Spec):
    """A model that was read from a file, with all that was assumed or left out."""

    spec: ModelSpec
    notes: tuple[str, ...]


def read_model(source: str | Path | Mapping[str, Any], name: str | None = None) -> LoadedModel:
    """A config.json, a folder that holds one, or the parsed object.

    A path may end in #text_config (or another key): then the object under that key is read alone, which is
    how a user says that of a model with several towers only the language model is meant.
    """
    if isinstance(source, Mapping):
        title = str(source.get("_name_or_path") or source.get("model_type") or "model")
        return _read(source, "config", name or title)
    path, key = _locate(str(source))
    data: Any = read_json_object(path)
    where = str(path)
    title = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    if not key:
        return _read(data, where, name or title)
    if not isinstance(data.get(key), dict):
        raise SeqplanError(f"{where}: has no object {key}.")
    found = _read(data[key], f"{where}#{key}", name or title, nested=True)
    alone = f"only {key} is planned; every other part of {path.name} is left out"
    return LoadedModel(spec=found.spec, notes=(alone, *found.notes))


def _locate(typed: str) -> tuple[Path, str]:
    """The file and the key after #, if any."""
    key = ""
    if "\x00" in typed:
        raise SeqplanError(f"{typed!r} is not a path.")
    path = Path(typed)
    try:
        if not path.exists() and "#" in typed:
            typed, key = typed.rsplit("#", 1)
            path = Path(typed)
        if path.is_dir():
            path = path / "config.json"
            if not path.exists():
                raise SeqplanError(
                    f"{typed}: the folder has no config.json.", "Pass a config.json or its folder."
                )
        if not path.exists():
            hub = _HUB_ID.fullmatch(typed) and path.suffix not in (".json", ".yaml", ".yml")
            hint = "It looks like a Hugging Face model id; nothing is downloaded. " if hub else ""
            raise SeqplanError(f"{typed}: no such file.", f"{hint}Pass the path of its config.json.")
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise SeqplanError(f"{typed[:80]}: cannot be read: {error.strerror or error}.") from None
    return path, key


def _read(data: Mapping[str, Any], where: str, name: str, nested: bool = False) -> LoadedModel:
    reasons = refusals(data)
    if reasons:
        text = next(
            (key for key in ("text_config", "llm_config") if _has_language_model(data.get(key))), None
        )
        only = reasons[0].startswith("more than one tower")
        hint = "Only a dense decoder or encoder can be planned."
        if only and text:
            hint = f"Only the language model can be planned: pass {where}#{text} to leave the rest out."
        elif only:
            hint = "Only a language model can be planned: pass a config.json of it alone."
        raise SeqplanError(f"{where}: refused: {'; '.join(reasons)}.", hint)
    kind, notes = _model_type(data, where)
    family = FAMILIES[kind]
    defaults = family_defaults().get(family.defaults or kind, {})
    reader = ConfigReader(data, defaults, family.names, nested)
    reader.notes += [*notes, *foreign_class(data, kind)]
    for switch in ("is_encoder_decoder", "add_cross_attention"):
        reader.flag(switch)  # true is refused above; a word or a number says neither
    fields = family.read(reader)
    fields = _with_head(reader, family, fields)
    odd = _odd(reader, fields)
    reader.finish(where, kind, odd)
    reader.notes += odd
    return _finish(
        reader, {"name": name, "family": kind, "architecture": "decoder", **fields}, where, defaults
    )


def _has_language_model(part: Any) -> bool:
    return isinstance(part, dict) and part.get("model_type") in FAMILIES


def _with_head(reader: ConfigReader, family: Family, fields: Fields) -> Fields:
    head = head_fields(reader, fields, family.head)
    extra = [*fields.get("extra_tensors", []), *head.pop("extra_tensors", [])]
    return {**fields, **head, "extra_tensors": extra}


def _model_type(data: Mapping[str, Any], where: str) -> tuple[str, list[str]]:
    """The family, and a note where it is taken from the class's name."""
    kind = data.get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        return kind, []
    if kind is not None and not isinstance(kind, str):
        raise SeqplanError(f"{where}: model_type is {show(kind)}, {kind_of(kind)}, not a word.")
    if kind:
        near = difflib.get_close_matches(kind, FAMILIES, n=3, cutoff=0.6)
        also = f"; near: {', '.join(near)}" if near else ""
        raise SeqplanError(
            f"{where}: model_type {show(kind)} is not one that seqplan can count exactly{also}.",
            f"Known: {', '.join(sorted(FAMILIES))}.",
        )
    classes = data.get("architectures")
    if isinstance(classes, list) and classes and isinstance(classes[0], str):
        stem = re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", classes[0])
        if stem in CLASS_PREFIXES:
            found = CLASS_PREFIXES[stem]
            return found, [f"no model_type: read as {found}, after the class {classes[0]}"]
    other = what_it_is(data)
    if other:
        raise SeqplanError(f"{where}: this is {other[0]}, not a model's config.", other[1])
    sizes = size_like(data)
    seen = f" The keys that look like sizes ({sizes}) mean nothing without it." if sizes else ""
    raise SeqplanError(
        f"{where}: missing model_type: the family is unknown, so nothing can be counted.{seen}",
        "Pass a Hugging Face config.json.",
    )


def _odd(reader: ConfigReader, fields: Fields) -> list[str]:
    """Sizes that are allowed but are more often a slip."""
    found = []
    vocab, ffn, hidden = fields["vocab_size"], fields["ffn_hidden_size"], fields["hidden_size"]
    if reader.ok("intermediate_size", "hidden_size") and ffn < hidden:
        found.append(
            f"{reader.key('intermediate_size')} {ffn} is less than {reader.key('hidden_size')} {hidden}"
        )
    if reader.ok("vocab_size") and vocab < 256:
        found.append(f"vocab_size {vocab} is less than the 256 bytes")
    return found


def _finish(reader: ConfigReader, fields: Fields, where: str, defaults: Mapping[str, Any]) -> LoadedModel:
    try:
        spec = ModelSpec(**fields)
    except ValidationError as error:
        found = [f"{'.'.join(map(str, item['loc']))} {item['msg']}".strip() for item in error.errors()]
        text = "; ".join(found).replace("Value error, ", "")
        raise SeqplanError(f"{where}: {_in_their_words(reader, text)}.") from None
    notes = list(reader.notes)
    if reader.taken:
        taken = ", ".join(dict.fromkeys(reader.taken))
        origin = (
            f"the defaults of {defaults['class']} (transformers)"
            if "class" in defaults
            else "the family's code"
        )
        notes.insert(0, f"left out by the file, taken from {origin}: {taken}")
    for key, what in _LEFT_OUT.items():
        if reader.data.get(key):
            notes.append(f"{key}: {what} left out")
    foreign = [key for key in _MEANINGFUL if key not in reader.used and _says_something(reader.data.get(key))]
    if foreign:
        shown = ", ".join(f"{key} {show(reader.data[key])}" for key in foreign)
        notes.append(f"warning: keys of other families, without effect in {spec.family}: {shown}")
    return LoadedModel(spec=spec, notes=tuple(notes))


def _says_something(value: Any) -> bool:
    """Whether an option is on: not absent, empty, false, nothing or a factor of one."""
    return value is True or value not in (None, False, 0, 1, [], "", {})


def _in_their_words(reader: ConfigReader, text: str) -> str:
    """Our field names in a message, replaced by the keys of the file."""
    ours = {
        "num_kv_heads": "num_key_value_heads",
        "ffn_hidden_size": "intermediate_size",
        "num_layers": "num_hidden_layers",
        "rope_fraction": "partial_rotary_factor",
    }
    names = {
        **{name: name for name in ("hidden_size", "num_attention_heads", "max_position_embeddings")},
        **ours,
    }
    return re.sub(r"\w+", lambda word: reader.key(names[word[0]]) if word[0] in names else word[0], text)
