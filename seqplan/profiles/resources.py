"""The YAML files that ship inside the package: their names, and their content with `base:` followed.

A profile with `base: OTHER` is that other profile of the same folder with some keys replaced, so the H200 is
written as what differs from the H100. Names that begin with an underscore are bases only.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from seqplan.planner.reading.strict_yaml import parse_yaml

MODELS = "models"
IMPLEMENTATIONS = "implementations"
PUBLISHED = "published"
DEVICES = "hardware/devices"
LINKS = "hardware/links"
CLUSTERS = "hardware/clusters"

HARDWARE = "hardware/"


@functools.cache
def profile_names(folder: str) -> tuple[str, ...]:
    """Names of the profiles of one folder, in order."""
    found = (each.name for each in files(__package__).joinpath(folder).iterdir())
    stems = (name.removesuffix(".yaml") for name in found if name.endswith(".yaml"))
    return tuple(sorted((stem for stem in stems if not stem.startswith("_")), key=_in_human_order))


def _in_human_order(name: str) -> tuple[tuple[bool, int, str], ...]:
    """llama3-8b before llama3-70b: digits count as numbers."""
    parts: list[str] = [""]
    for character in name:
        if character.isdigit() != parts[-1][-1:].isdigit():
            parts.append("")
        parts[-1] += character
    return tuple((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts)


@functools.cache
def read_profile(folder: str, name: str) -> Mapping[str, Any]:
    """The keys of one profile, those of its base included. Shared: copy before changing."""
    path = f"{folder}/{name}.yaml"
    data = parse_yaml(files(__package__).joinpath(path).read_text(encoding="utf-8"), f"built-in {path}")
    base = data.pop("base", None)
    if base is None:
        return data
    # A trainer's sections are each one statement, so they are replaced whole.
    return (laid_over if folder.startswith(HARDWARE) else _replaced)(read_profile(folder, base), data)


def laid_over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, group of keys by group of keys; a number goes with its source."""
    result = {**base, **changes}
    for key in base.keys() & changes.keys():
        if _is_group(base[key]) and _is_group(changes[key]):
            result[key] = laid_over(base[key], changes[key])
    return result


def _is_group(value: Any) -> bool:
    return isinstance(value, Mapping) and not {"value", "source"} & value.keys()


def _replaced(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return {**base, **changes}
