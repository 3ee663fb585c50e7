"""Built-in devices and links by themselves: what a cluster file may name as its parts."""

from __future__ import annotations

from seqplan.planner.cluster_spec import DeviceSpec, LinkSpec
from seqplan.profiles import this_machine
from seqplan.profiles.cluster_file import with_quantities
from seqplan.profiles.resources import CLUSTERS, DEVICES, LINKS, profile_names, read_profile


def load_device(name: str) -> DeviceSpec:
    """One built-in device; a CPU core with its share of this machine's memory."""
    data = read_profile(DEVICES, name)
    if data["kind"] == "cpu":
        data = this_machine.cpu_device(data, this_machine.core_count())
    return DeviceSpec.model_validate(with_quantities(data))


def load_link(name: str) -> LinkSpec:
    """One built-in link."""
    return LinkSpec.model_validate(with_quantities(read_profile(LINKS, name)))


def load_devices() -> list[DeviceSpec]:
    return [load_device(name) for name in profile_names(DEVICES)]


def load_links() -> list[LinkSpec]:
    return [load_link(name) for name in profile_names(LINKS)]


def load_part(name: str) -> DeviceSpec | LinkSpec | None:
    """The device or link of that name; None where it is none, or the name of a cluster."""
    if name in profile_names(CLUSTERS):
        return None
    if name in profile_names(DEVICES):
        return load_device(name)
    return load_link(name) if name in profile_names(LINKS) else None
