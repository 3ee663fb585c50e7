"""From the keys of a cluster file, built-in or a user's, to a ClusterSpec; all that is wrong in one error.

Parts may be named (`device: a100-80`), changed (`device: {base: a100-80, memory_bytes: 75 GiB}`) or written
out; under the `base:` of a cluster a part without base and name changes that cluster's. A number is
`{value, source}`; in a user's file a plain number (SI base units) or text with a unit ("600 GB/s") is enough,
and its source is the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from seqplan.planner import units
from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.errors import SeqplanError
from seqplan.planner.reading.quantity import Quantity
from seqplan.planner.reading.strict_yaml import kind_of, shorten
from seqplan.planner.validation import problems_of
from seqplan.profiles import this_machine
from seqplan.profiles.resources import CLUSTERS, DEVICES, LINKS, laid_over, profile_names, read_profile
from seqplan.profiles.unknown_name import unknown_name

PARTS = {"device": DEVICES, "intra_node": LINKS, "inter_node": LINKS}

_DEVICE = "device: NAME, such as a100-80"
_MEMORY = "device: {base: a100-80, memory_bytes: 80 GiB}"
_LINK = "%s: {base: LINK, bytes_per_s: 300 GB/s}, per GPU or NIC and one way (Gb/s are bits)"
FOREIGN_KEYS: dict[str, str] = {
    **dict.fromkeys(("gpu", "gpus", "gpu_type", "gpu_name", "gpu_model", "accelerator"), _DEVICE),
    **dict.fromkeys(
        ("gpu_memory_gb", "gpu_memory", "memory_gb", "mem_gb", "memory", "hbm_gb", "vram"), _MEMORY
    ),
    **dict.fromkeys(("nodes", "n_nodes", "nnodes", "node_count"), "num_nodes"),
    **dict.fromkeys(("num_gpus", "n_gpus", "world_size", "total_gpus"), "gpus_per_node and num_nodes"),
    **dict.fromkeys(("gpus_per_host", "devices_per_node", "num_gpus_per_node"), "gpus_per_node"),
    **dict.fromkeys(("intra_node_bandwidth_gbps", "intra_node_bandwidth", "nvlink"), _LINK % "intra_node"),
    **dict.fromkeys(("inter_node_bandwidth_gbps", "inter_node_bandwidth", "network"), _LINK % "inter_node"),
}
"""Keys of other tools' cluster files, and what says the same in ours."""

_MISSING = "missing "
"""How a problem begins that lists keys which are not there (validation.py)."""

_STAND_IN = {"bytes": 2.0**30, "bytes_per_s": 1e9, "flops_per_s": 1e12, "s": 1e-6, "share": 0.5, "count": 1.0}
"""What takes the place of a number that was found wrong, so that the rest can still be checked."""

_HINT = "A short file starts from a built-in cluster: `base: dgx-a100`, then the keys that differ."
_NAMED_HINT = (
    "A part with a name is another one, written out in full; without {0}.name it changes the base's."
)


def cluster_from(data: Mapping[str, Any], where: str, user_source: str | None = None) -> ClusterSpec:
    """The cluster, or one SeqplanError. `user_source` is the source of plain numbers; None allows none."""
    problems: list[str] = []
    base = _base_cluster(data, problems)
    unknown_base = bool(problems)  # what it has is not known to be missing
    own = {key: value for key, value in data.items() if key != "base"}
    whole = {**base, **own}
    broken: set[str] = set()
    for part, folder in PARTS.items():
        if part in whole:
            before = len(problems)
            whole[part] = _part(whole[part], folder, part, problems, base.get(part))
            broken |= {part} if len(problems) > before else set()
    for key in ("nodes", "num_nodes", "device", "devices", "gpus_per_node", "nics_per_node"):
        if isinstance(whole.get(key), list):
            least = "; write the least that any node has" if key.endswith("_per_node") else ""
            problems.append(f"{key} is a list: a cluster has one kind of device and equal nodes{least}")
            del whole[key]
            broken.add(key)
    checked = _with_quantities(whole, "", user_source, problems)
    try:
        spec = ClusterSpec.model_validate(checked)
    except ValidationError as error:
        problems += problems_of(error, ClusterSpec, FOREIGN_KEYS, skip=broken)
    device = checked.get("device")
    if isinstance(device, Mapping) and device.get("kind") == "cpu" and checked.get("cores_per_node") is None:
        problems.append("missing cores_per_node, which the ranks of a CPU node share")
    if unknown_base:
        problems = [each for each in problems if not each.startswith(_MISSING)]
    if problems:
        hint = _hint(data, problems) if user_source else ""
        raise SeqplanError(f"{where}: {'; '.join(dict.fromkeys(problems))}.", hint)
    return spec


def built_in_cluster(name: str, ranks: int | None = None) -> Mapping[str, Any]:
    """The keys of a built-in cluster; of `local` with what this machine has, for `ranks` ranks."""
    data = read_profile(CLUSTERS, name)
    if name != "local":
        return data
    return this_machine.local_cluster(data, read_profile(DEVICES, data["device"]), ranks)


def _base_cluster(data: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """The keys of the cluster that `base:` names, but for its name; none where there is none."""
    if "base" not in data or not _is_known("base", data["base"], CLUSTERS, problems):
        return {}
    ranks = data.get("gpus_per_node")
    whole_number = isinstance(ranks, int) and not isinstance(ranks, bool) and ranks > 0
    found = built_in_cluster(data["base"], ranks if whole_number else None)
    return {key: value for key, value in found.items() if key != "name"}


def _part(raw: Any, folder: str, key: str, problems: list[str], inherited: Any) -> Any:
    """A device or link: by name, changed from a base, changed from the base cluster's, or as written."""
    if isinstance(raw, str):
        return dict(read_profile(folder, raw)) if _is_known(key, raw, folder, problems) else raw
    if not isinstance(raw, Mapping):
        return raw
    own = {name: value for name, value in raw.items() if name != "base"}
    if "base" in raw:
        if not _is_known(f"{key}.base", raw["base"], folder, problems):
            return own
        under: Mapping[str, Any] = read_profile(folder, raw["base"])
    elif inherited is None or "name" in raw or raw is inherited:
        return own
    else:
        under = _part(inherited, folder, key, problems, None)
    return laid_over({**under, "name": f"{under['name']} (changed)"}, own) if own else dict(under)


def _is_known(key: str, name: object, folder: str, problems: list[str]) -> bool:
    """Whether there is such a profile; else that is a problem."""
    known = isinstance(name, str) and name in profile_names(folder)
    if not known:
        problems.append(unknown_name(key, name, profile_names(folder)))
    return known


def _hint(data: Mapping[str, Any], problems: list[str]) -> str:
    """How the keys that are missing come in."""
    missing = " ".join(each for each in problems if each.startswith(_MISSING))
    if "base" not in data:
        return _HINT if missing else ""
    named = [part for part in PARTS if f" {part}." in missing and "name" in dict(data.get(part, {}))]
    return _NAMED_HINT.format(named[0]) if named else ""


def with_quantities(data: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a built-in device or link, its numbers as quantities in SI base units."""
    problems: list[str] = []
    result = _with_quantities(data, "", None, problems)
    assert not problems, problems
    return result


def _with_quantities(
    data: Mapping[str, Any], path: str, source: str | None, problems: list[str]
) -> dict[str, Any]:
    """Every number that the name of its key calls a quantity as {value, source} in SI base units."""
    result: dict[str, Any] = {}
    for key, value in data.items():
        here = f"{path}.{key}" if path else str(key)
        dimension = units.dimension_of(str(key))
        if dimension is None:
            nested = isinstance(value, Mapping)
            result[key] = _with_quantities(value, here, source, problems) if nested else _as_tuple(value)
        elif isinstance(value, Mapping) and not {"value", "source"} & value.keys():  # by dtype
            result[key] = {
                name: _quantity(each, dimension, f"{here}.{name}", source, problems)
                for name, each in value.items()
            }
        else:
            result[key] = _quantity(value, dimension, here, source, problems)
    return result


def _quantity(raw: Any, dimension: str, path: str, source: str | None, problems: list[str]) -> Any:
    if isinstance(raw, Quantity) or (source is None and not isinstance(raw, Mapping)):
        return raw
    entry = dict(raw) if isinstance(raw, Mapping) else {"value": raw}
    if raw is None or isinstance(raw, bool | list):
        problems.append(f"{path} must be a number, not {kind_of(raw)}")
        return Quantity(_STAND_IN[dimension], "stands in for a wrong one")
    if source is not None:
        entry.setdefault("source", source)
    if isinstance(entry.get("value"), str):
        try:
            entry["value"] = units.parse(entry["value"], dimension)
        except ValueError as error:
            problems.append(f"{path}: {shorten(str(error), 200)}")
            return Quantity(_STAND_IN[dimension], "stands in for a wrong one")
    return entry


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
