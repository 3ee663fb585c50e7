"""DeviceSpec, LinkSpec, ClusterSpec: what a cluster is made of, every number with its source.

A rate is a dense peak (a vendor's "with sparsity" figure is twice as high), a link's rate is one way
(vendors print both ways), memory is what the driver reports (less than the box says).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from pydantic import Field, model_validator

from seqplan.planner.errors import SeqplanError
from seqplan.planner.reading.quantity import FractionQuantity, PositiveQuantity, Quantity, ShareQuantity
from seqplan.planner.spec import Spec

Kernel = Literal["flash", "efficient", "math"]
"""What computes one block of attention: torch's flash or memory-efficient kernel, or plain matmuls (which
keep the scores)."""

MIN_MEMORY_BYTES = 64 * 2**20
"""A device with less is a number in the wrong unit (80 for 80 GiB)."""

MAX_MEMORY_BYTES = 2**46
"""64 TiB: a device with more is bytes where gigabytes were meant, or the like."""

MIN_LINK_BYTES_PER_S, MAX_LINK_BYTES_PER_S = 1e6, 1e14
MAX_LATENCY_S = 1.0
"""Beyond these a link is a number in the wrong unit (200 for 200 GB/s, 2 for 2 us)."""

MIN_DEVICE_RATE, MAX_DEVICE_RATE = 1e6, 1e20
"""Bytes or FLOPs a second of a device; beyond these times overflow."""

FIRST_SM_WITH_BF16 = 80
"""Compute capability 8.0 (NVIDIA A100 whitepaper, 2020: bf16 is new in it)."""


TransferKind = Literal["all_reduce", "all_gather", "reduce_scatter", "neighbour"]

NO_CURVE = Quantity(0.0, "assumed: the same rate at every size")


class DeviceSpec(Spec):
    """One accelerator as the scheduler sees it (one GCD of an MI250X, one core of a CPU)."""

    name: str
    kind: Literal["cuda", "rocm", "cpu"]
    architecture: str = Field(default="", description="sm_90, gfx942, x86-64; what the kernels depend on")
    memory_bytes: PositiveQuantity = Field(description="total that the driver reports")
    memory_bytes_per_s: PositiveQuantity = Field(description="bandwidth of the device memory, peak")
    peak_flops_per_s: dict[Literal["fp32", "fp16", "bf16", "fp8"], PositiveQuantity] = Field(
        description="dense peak of each dtype"
    )
    attention_kernels: dict[Literal["fp32", "fp16", "bf16"], tuple[Kernel, ...]] = Field(
        description="kernels that torch has for a dtype, best first; a dtype left out is not usable"
    )
    max_head_dim: dict[Kernel, int] = Field(
        default_factory=dict,
        description="widest head that a kernel trains; left out: no limit",
    )
    matmul_efficiency: ShareQuantity = Field(
        description="largest share of the peak that a big matmul reaches"
    )
    attention_efficiency: ShareQuantity = Field(
        description="share of the peak that the attention kernel reaches"
    )
    matmul_dtype_efficiency: dict[Literal["fp32", "fp16", "bf16", "fp8"], ShareQuantity] = Field(
        default_factory=dict, description="the same for single dtypes, where they differ"
    )
    attention_dtype_efficiency: dict[Literal["fp32", "fp16", "bf16"], ShareQuantity] = Field(
        default_factory=dict, description="the same for single dtypes, where they differ"
    )
    matmul_half_outputs: Quantity = Field(
        default=NO_CURVE, description="elements of a matmul's result at which it reaches half of its rate"
    )
    matmul_half_depth: Quantity = Field(
        default=NO_CURVE, description="products a result element at which a matmul reaches half of its rate"
    )
    matmul_dtype_half_outputs: dict[Literal["fp32", "fp16", "bf16", "fp8"], Quantity] = Field(
        default_factory=dict, description="matmul_half_outputs of single dtypes, where they differ"
    )
    matmul_dtype_half_depth: dict[Literal["fp32", "fp16", "bf16", "fp8"], Quantity] = Field(
        default_factory=dict, description="matmul_half_depth of single dtypes, where they differ"
    )
    attention_dtype_half_tokens: dict[Literal["fp32", "fp16", "bf16"], Quantity] = Field(
        default_factory=dict, description="attention_half_tokens of single dtypes, where they differ"
    )
    attention_dtype_half_head_dim: dict[Literal["fp32", "fp16", "bf16"], Quantity] = Field(
        default_factory=dict, description="attention_half_head_dim of single dtypes, where they differ"
    )
    matmul_tile: Quantity = Field(
        default=NO_CURVE, description="rows and columns are computed in whole tiles of this many"
    )
    attention_half_tokens: Quantity = Field(
        default=NO_CURVE, description="tokens of a block at which attention reaches half of its rate"
    )
    attention_half_head_dim: Quantity = Field(
        default=NO_CURVE, description="head size at which attention reaches half of its rate"
    )
    attention_causal_tile: Quantity = Field(
        default=NO_CURVE,
        description="a causal mask spares whole tiles of this many keys; the rest that it hides is computed",
    )
    memory_efficiency: ShareQuantity = Field(
        description="share of the bandwidth that elementwise work reaches"
    )
    memory_dtype_efficiency: dict[Literal["fp32", "fp16", "bf16"], ShareQuantity] = Field(
        default_factory=dict, description="memory_efficiency of single dtypes, where they differ"
    )
    kernel_launch_s: Quantity = Field(description="time that starting one operation costs")
    transfers_overlap: bool = Field(
        default=True,
        description="transfers run beside computation; false where the cores that compute move the bytes",
    )
    context_bytes: Quantity = Field(description="CUDA context and library workspaces, a row of its own")
    fragmentation_fraction: FractionQuantity = Field(
        description="share of allocated bytes lost to the caching allocator"
    )

    def kernels(self, dtype: str, head_dim: int) -> tuple[Kernel, ...]:
        """Kernels for one dtype and head size, best first; attention beside float8 matmuls runs in bf16."""
        if dtype == "fp8" and "fp8" not in self.peak_flops_per_s:
            return ()
        for name, kernels in self.attention_kernels.items():
            if name == ("bf16" if dtype == "fp8" else dtype):
                return tuple(each for each in kernels if head_dim <= self.max_head_dim.get(each, head_dim))
        return ()

    def matmul_share(self, dtype: str) -> float:
        """Share of a dtype's peak that a big matmul reaches."""
        shares: dict[str, float] = {name: float(x) for name, x in self.matmul_dtype_efficiency.items()}
        return float(shares.get(dtype, self.matmul_efficiency))

    def memory_share(self, dtype: str) -> float:
        """Share of the bandwidth that elementwise work in a dtype reaches."""
        shares: dict[str, float] = {name: float(x) for name, x in self.memory_dtype_efficiency.items()}
        return float(shares.get(dtype, self.memory_efficiency))

    def attention_share(self, dtype: str) -> float:
        """Share of a dtype's peak that fused attention reaches on long blocks."""
        shares: dict[str, float] = {name: float(x) for name, x in self.attention_dtype_efficiency.items()}
        return float(shares.get(dtype, self.attention_efficiency))

    def of_dtype(self, name: str, dtype: str) -> float:
        """A number of the curves: that of the dtype where the profile tells it apart."""
        singles: dict[str, float] = getattr(self, name.replace("_half_", "_dtype_half_"))
        return float(singles.get(dtype, getattr(self, name)))

    @model_validator(mode="after")
    def _consistent(self) -> DeviceSpec:
        broken = []
        if not MIN_MEMORY_BYTES <= self.memory_bytes <= MAX_MEMORY_BYTES:
            broken.append(
                f"memory_bytes = {self.memory_bytes:,.0f} bytes is no device's memory; write it as 80 GiB"
            )
        rates = {"memory_bytes_per_s": self.memory_bytes_per_s}
        rates |= {f"peak_flops_per_s.{dtype}": peak for dtype, peak in self.peak_flops_per_s.items()}
        broken += [
            f"{name} = {rate:g} is no device's rate"
            for name, rate in rates.items()
            if not MIN_DEVICE_RATE <= rate <= MAX_DEVICE_RATE
        ]
        if self.kernel_launch_s >= MAX_LATENCY_S:
            broken.append(f"kernel_launch_s = {self.kernel_launch_s:g} s is no launch; write it as 2 us")
        trained, peaks = {*self.attention_kernels}, {*self.peak_flops_per_s} - {"fp8"}
        if trained != peaks:
            broken.append(
                f"attention_kernels has {_listed(trained)} and peak_flops_per_s has {_listed(peaks)}; "
                "both must name the same dtypes (those that the device can train in)"
            )
        for dtype, kernels in self.attention_kernels.items():
            if not kernels or len(set(kernels)) < len(kernels):
                broken.append(
                    f"attention_kernels.{dtype} must name one or more different kernels, best first"
                )
        if {"efficient", "flash"} & {*self.max_head_dim} and min(self.max_head_dim.values()) < 1:
            broken.append("max_head_dim must be at least 1")
        generation = re.fullmatch(r"sm_([0-9]+)", self.architecture)
        if generation and int(generation[1]) < FIRST_SM_WITH_BF16 and "bf16" in trained:
            broken.append(f"attention_kernels.bf16: {self.architecture} has no bf16, which begins with sm_80")
        if broken:
            raise ValueError("; ".join(broken))
        return self


class LinkSpec(Spec):
    """One kind of link. Rates are per GPU (intra-node) or per NIC (inter-node), one way."""

    name: str
    bytes_per_s: PositiveQuantity = Field(description="one way; vendors print both ways added")
    latency_s: Quantity = Field(description="of one message or one step of a ring")
    efficiency: ShareQuantity = Field(description="share of bytes_per_s that a large transfer reaches")
    collective_efficiency: dict[TransferKind, ShareQuantity] = Field(
        default_factory=dict, description="the same for single kinds of transfer, where they differ"
    )

    def slowdown(self, kind: TransferKind) -> float:
        """Seconds of this kind of transfer over those at `efficiency`."""
        shares: dict[str, float] = {name: float(share) for name, share in self.collective_efficiency.items()}
        return float(self.efficiency) / shares.get(kind, float(self.efficiency))

    @model_validator(mode="after")
    def _plausible(self) -> LinkSpec:
        broken = []
        if not MIN_LINK_BYTES_PER_S <= self.bytes_per_s <= MAX_LINK_BYTES_PER_S:
            broken.append(
                f"bytes_per_s = {self.bytes_per_s:g} is no link's rate; write it as 50 GB/s or 400 Gb/s"
            )
        if self.latency_s >= MAX_LATENCY_S:
            broken.append(f"latency_s = {self.latency_s:g} seconds is no link's latency; write it as 5 us")
        if broken:
            raise ValueError("; ".join(broken))
        return self


class ClusterSpec(Spec):
    """Nodes of equal devices, a link inside the node and one between nodes."""

    name: str
    device: DeviceSpec
    gpus_per_node: int = Field(ge=1, le=4096)
    num_nodes: int = Field(ge=1, le=2**20, description="default size; --nodes and --gpus override it")
    intra_node: LinkSpec
    inter_node: LinkSpec
    nics_per_node: int = Field(ge=1, le=4096)
    communicator_bytes: Quantity = Field(
        description="buffers that one communicator (process group) allocates"
    )
    cores_per_node: int | None = Field(
        default=None, ge=1, description="CPU devices only: cores that the ranks of a node share"
    )

    @model_validator(mode="after")
    def _cores_of_cpus(self) -> ClusterSpec:
        if self.device.kind != "cpu" and self.cores_per_node is not None:
            raise ValueError(
                f"cores_per_node is for CPUs, and the device {self.device.name} is none; leave it out"
            )
        return self

    @property
    def world_size(self) -> int:
        return self.gpus_per_node * self.num_nodes

    def compute_share(self, ranks_on_node: int) -> float:
        """Share of the device's peak that one rank gets: below 1 where CPU ranks outnumber cores."""
        return 1.0 if self.cores_per_node is None else min(1.0, self.cores_per_node / ranks_on_node)

    def limit_bytes(self, headroom_fraction: float = 0.0) -> float:
        """Memory that one rank may use, less the share that the user keeps free."""
        return float(self.device.memory_bytes) * (1.0 - headroom_fraction)

    def for_gpus(self, gpus: int) -> ClusterSpec:
        """This cluster cut or grown to `gpus` ranks: part of one node, or whole nodes."""
        if gpus < 1:
            raise SeqplanError(f"{gpus} GPUs is too few;", "use 1 or more.")
        if self.cores_per_node is not None:
            return self._with_ranks(gpus)
        size = self.gpus_per_node
        if gpus <= size:
            return self.model_copy(update={"gpus_per_node": gpus, "num_nodes": 1})
        if gpus % size:
            below, above = gpus // size * size, (gpus // size + 1) * size
            raise SeqplanError(
                f"{gpus} GPUs are no whole number of the {size}-GPU nodes of {self.name};",
                f"use {below} or {above}, or at most {size} on one node.",
            )
        return self.model_copy(update={"num_nodes": gpus // size})

    def for_nodes(self, nodes: int) -> ClusterSpec:
        """This cluster with another number of nodes."""
        if nodes < 1:
            raise SeqplanError(f"{nodes} nodes is too few;", "use 1 or more.")
        return self.model_copy(update={"num_nodes": nodes})

    def _with_ranks(self, ranks: int) -> ClusterSpec:
        """CPUs: a rank is a process, so any number runs, and the ranks of a node share its memory."""
        if ranks % self.num_nodes:
            below = ranks // self.num_nodes * self.num_nodes
            choices = f"{below} or {below + self.num_nodes}" if below else str(self.num_nodes)
            raise SeqplanError(
                f"{ranks} ranks do not spread evenly over the {self.num_nodes} nodes of {self.name};",
                f"use {choices}.",
            )
        per_node, memory = ranks // self.num_nodes, self.device.memory_bytes
        share = Quantity(memory * self.gpus_per_node / per_node, memory.source)
        device = self.device.model_copy(update={"memory_bytes": share})
        return self.model_copy(update={"gpus_per_node": per_node, "device": device})


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
