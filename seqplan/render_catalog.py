"""The answers of `models` and `clusters`: lists of what is built in, or one of them with its sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqplan.planner.cluster_spec import ClusterSpec, DeviceSpec, LinkSpec
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.reading.quantity import Quantity
from seqplan.render import count, duration, gib, listing, plural, show, table, text

if TYPE_CHECKING:
    from rich.console import Group


def show_models(models: Sequence[ModelSpec]) -> None:
    """One line a model."""
    columns = ("model", "kind", "parameters", "layers", "hidden", "heads", "kv", "ffn", "vocab")
    rows = [
        [
            model.name,
            model.architecture,
            count(model.parameters()),
            str(model.num_layers),
            str(model.hidden_size),
            str(model.num_attention_heads),
            str(model.num_kv_heads),
            str(model.ffn_hidden_size),
            str(model.vocab_size),
        ]
        for model in models
    ]
    show([table("Built-in models", columns, rows, left=("model", "kind"))])


def show_model(model: ModelSpec, notes: Sequence[str]) -> None:
    """One model: its counts and every field of its shape."""
    total, body = model.parameters(), model.parameters_without_head()
    counts = f"{model.name}: {model.architecture}, {count(total)} parameters"
    if body != total:
        counts += f" ({count(body)} without the head)"
    fields = [[name, str(value)] for name, value in model.model_dump().items() if value not in (None, "")]
    show(
        [
            text(counts, "bold"),
            table("Shape", ("field", "value"), fields, left=("field", "value")),
            listing("Notes", notes),
        ]
    )


def show_clusters(clusters: Sequence[ClusterSpec]) -> None:
    """One line a cluster."""
    columns = ("cluster", "device", "a node", "nodes", "GiB", "best TFLOP/s", "in node", "between")
    rows = []
    for cluster in clusters:
        rows.append(
            [
                cluster.name,
                cluster.device.name,
                str(cluster.gpus_per_node),
                str(cluster.num_nodes),
                gib(cluster.device.memory_bytes),
                best_peak(cluster.device),
                rate(cluster.intra_node),
                rate(cluster.inter_node),
            ]
        )
    title = "Built-in clusters (rates dense, per device or NIC, one way)"
    show([table(title, columns, rows, left=("cluster", "device"))])


def best_peak(device: DeviceSpec) -> str:
    """989 fp16: the best dense peak in TFLOP/s of the dtypes that a plan can compute in, which fp8 is not."""
    peaks = {dtype: float(peak) for dtype, peak in device.peak_flops_per_s.items() if dtype != "fp8"}
    best = max(peaks, key=lambda dtype: peaks[dtype])
    value = peaks[best] / 1e12
    return f"{value:,.0f} {best}" if value >= 100 else f"{value:.3g} {best}"


def show_parts(devices: Sequence[DeviceSpec], links: Sequence[LinkSpec]) -> None:
    """One line a device and one a link."""
    columns = ("device", "architecture", "GiB", "memory", "best TFLOP/s")
    rows = [
        [
            device.name,
            device.architecture,
            gib(device.memory_bytes),
            f"{device.memory_bytes_per_s / 1e9:,.0f} GB/s",
            best_peak(device),
        ]
        for device in devices
    ]
    of_links = [[link.name, rate(link), duration(link.latency_s)] for link in links]
    show(
        [
            table("Built-in devices (rates dense)", columns, rows, left=("device", "architecture")),
            table("Built-in links (one way)", ("link", "rate", "latency"), of_links, left=("link",)),
        ]
    )


def show_part(part: DeviceSpec | LinkSpec) -> None:
    """One device or link: every number with its source."""
    if isinstance(part, LinkSpec):
        show([_numbers(f"Link {part.name}", _quantities(part))])
        return
    title = f"Device {part.name}" + (f" ({part.architecture})" if part.architecture else "")
    show([_numbers(title, _quantities(part)), _kernels(part)])


def _kernels(device: DeviceSpec) -> Group | None:
    kernels = [f"{dtype}: {', '.join(found)}" for dtype, found in device.attention_kernels.items()]
    return listing("Attention kernels by dtype, best first", kernels)


def rate(link: LinkSpec) -> str:
    """One way, GB/s in powers of ten, as vendors print it."""
    return f"{link.bytes_per_s / 1e9:,.1f} GB/s"


def show_cluster(cluster: ClusterSpec) -> None:
    """One cluster: every number with its source."""
    device = cluster.device
    size = f"{plural(cluster.num_nodes, 'node')} of {plural(cluster.gpus_per_node, 'device')}"
    show(
        [
            text(f"{cluster.name}: {size}, {plural(cluster.nics_per_node, 'NIC')} a node", "bold"),
            _numbers(f"Device {device.name}", _quantities(device)),
            _kernels(device),
            _numbers(f"Inside a node: {cluster.intra_node.name}", _quantities(cluster.intra_node)),
            _numbers(f"Between nodes: {cluster.inter_node.name}", _quantities(cluster.inter_node)),
            _numbers("Overheads", [("communicator_bytes", cluster.communicator_bytes)]),
        ]
    )


def _quantities(spec: object) -> list[tuple[str, Quantity]]:
    """The numbers of a spec, those inside a mapping by field and key."""
    found: list[tuple[str, Quantity]] = []
    for name, value in vars(spec).items():
        if isinstance(value, Quantity):
            found.append((name, value))
        elif isinstance(value, dict):
            found += [(f"{name}.{key}", each) for key, each in value.items() if isinstance(each, Quantity)]
    return found


def _numbers(title: str, quantities: Sequence[tuple[str, Quantity]]) -> Group:
    rows = [[name, printed(name, quantity), quantity.source] for name, quantity in quantities]
    return table(title, ("number", "value", "source"), rows, left=("number", "source"))


def printed(name: str, quantity: float) -> str:
    """A profile's number in the unit that its name says: GiB, GB/s, TFLOP/s, us, or a plain share."""
    last = name.split(".")[0]
    if last.endswith("flops_per_s"):
        return f"{quantity / 1e12:,.4g} TFLOP/s"
    if last.endswith("bytes_per_s"):
        return f"{quantity / 1e9:,.4g} GB/s"
    if last.endswith("_bytes"):
        return f"{gib(quantity)} GiB"
    return duration(quantity) if last.endswith("_s") else f"{quantity:g}"
