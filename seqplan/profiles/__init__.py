"""Built-in models, clusters and trainers, and the same read from a user's files.

A name is looked up first; anything else is a path. A cluster given as the model, and the reverse, is said.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.errors import SeqplanError
from seqplan.planner.implementation import ImplementationSpec
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.reading.strict_yaml import parse_yaml
from seqplan.planner.reading.text_file import read_text
from seqplan.planner.validation import validate_spec
from seqplan.profiles.cluster_file import built_in_cluster, cluster_from, with_quantities
from seqplan.profiles.resources import (
    CLUSTERS,
    DEVICES,
    IMPLEMENTATIONS,
    MODELS,
    PUBLISHED,
    profile_names,
    read_profile,
)
from seqplan.profiles.unknown_name import unknown_name

if TYPE_CHECKING:
    from seqplan.planner.measured.published import PublishedSource

_YAML = (".yaml", ".yml")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

_MODEL_KEYS = {"model_type", "architectures", "hidden_size", "num_hidden_layers", "n_layer", "num_layers"}
_CLUSTER_KEYS = {"device", "gpus_per_node", "num_nodes", "nodes", "intra_node", "inter_node"}
_PLAN_KEYS = {"layout", "estimate", "provenance"}


def model_names() -> tuple[str, ...]:
    return profile_names(MODELS)


def cluster_names() -> tuple[str, ...]:
    return profile_names(CLUSTERS)


def device_names() -> tuple[str, ...]:
    return profile_names(DEVICES)


def implementation_names() -> tuple[str, ...]:
    return profile_names(IMPLEMENTATIONS)


def published_names() -> tuple[str, ...]:
    return profile_names(PUBLISHED)


def load_published(name: str) -> PublishedSource:
    """One publication's measurements, by its built-in name."""
    from seqplan.planner.measured.published import PublishedSource

    if name not in published_names():
        raise SeqplanError(f"{unknown_name('publication', name, published_names())}.")
    return validate_spec(PublishedSource, read_profile(PUBLISHED, name), f"built-in publication {name}")


def load_model(name: str | Path) -> tuple[ModelSpec, list[str]]:
    """The model and its reader's notes: a built-in name, a config.json, its folder, or our own YAML."""
    text = str(name)
    if text in model_names():
        fields = dict(read_profile(MODELS, text))
        notes = [f"built-in model: {fields.pop('source')}"]
        if os.path.exists(text):
            notes.append(f"{text} is the built-in model; for the file or folder of that name write ./{text}")
        return validate_spec(ModelSpec, fields, f"built-in model {text}"), notes
    if not os.path.exists(text.partition("#")[0]):  # what follows # names a part of a config.json
        raise SeqplanError(*_no_such_model(text))
    if text.endswith(_YAML):
        return _model_from_yaml(text)
    from seqplan.planner.hf_config import read_model  # only where a file is read

    loaded = read_model(text)
    return loaded.spec, list(loaded.notes)


def load_cluster(name: str | Path) -> ClusterSpec:
    """A built-in cluster, or the one that a YAML file describes."""
    text = str(name)
    if text in cluster_names():
        return cluster_from(built_in_cluster(text), f"built-in cluster {text}")
    if not os.path.exists(text) and not text.endswith((*_YAML, ".json")) and "/" not in text:
        raise SeqplanError(f"{unknown_name('cluster', text, cluster_names())}.", "Or give a YAML file.")
    written = read_text(text)
    if written.lstrip().startswith("{") and _is_json_model(written):
        raise SeqplanError(
            f"{text}: is a model's config.json, not a cluster.", "MODEL and --cluster are swapped."
        )
    data = parse_yaml(written, text)
    _refuse_other_kind(data, text, "cluster")
    if "base" in data:  # the base's name is not the changed cluster's
        data.setdefault("name", Path(text).stem)
    return cluster_from(data, text, user_source=f"user file {Path(text).name}")


def load_implementation(name: str) -> ImplementationSpec:
    """A trainer's capabilities and inventory, by its built-in name."""
    if name not in implementation_names():
        raise SeqplanError(f"{unknown_name('implementation', name, implementation_names())}.")
    data = dict(read_profile(IMPLEMENTATIONS, name))
    if "time" in data:
        data["time"] = with_quantities(data["time"])
    return validate_spec(ImplementationSpec, data, f"built-in implementation {name}")


def _no_such_model(text: str) -> tuple[str, str]:
    if text.endswith((".json", *_YAML)) or text.startswith((".", "/", "~")) or text.count("/") > 1:
        return (
            f"{text}: no such file.",
            "MODEL is a built-in name, a config.json, or a folder that holds one.",
        )
    if _HUB_ID.fullmatch(text):
        message = (
            f"{text}: no such file or folder; it looks like a Hugging Face hub id, and nothing is downloaded."
        )
        return message, "Fetch its config.json and give that file."
    return (
        f"{unknown_name('model', text, model_names())}.",
        "Or give a config.json, or a folder that holds one.",
    )


def _model_from_yaml(path: str) -> tuple[ModelSpec, list[str]]:
    """A user's model in the form of the built-in ones."""
    data = parse_yaml(read_text(path), path)
    _refuse_other_kind(data, path, "model")
    if "model_type" in data:
        raise SeqplanError(
            f"{path}: has the keys of a config.json, which is JSON.",
            "Give the config.json; a YAML model has the built-in ones' fields (family, num_layers ...).",
        )
    source = data.pop("source", None)
    notes = [f"{path}: {source}"] if isinstance(source, str) else []
    return validate_spec(ModelSpec, data, path), notes


def _refuse_other_kind(data: Mapping[str, Any], path: str, wanted: str) -> None:
    """A plan, or a model where a cluster belongs (or the reverse), by the keys it has."""
    keys = data.keys()
    if _PLAN_KEYS & keys or str(data.get("schema", "")).startswith("seqplan/"):
        raise SeqplanError(
            f"{path}: is a plan, not a {wanted}.", "`seqplan run` and `seqplan explain` take plans."
        )
    found = {"model": len(_MODEL_KEYS & keys), "cluster": len(_CLUSTER_KEYS & keys)}
    other = "cluster" if wanted == "model" else "model"
    if found[other] > found[wanted]:
        raise SeqplanError(
            f"{path}: describes a {other}, not a {wanted}.", "MODEL and --cluster are swapped."
        )


def _is_json_model(text: str) -> bool:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and bool(_MODEL_KEYS & data.keys())
