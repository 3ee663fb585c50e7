"""DeviceSpec, LinkSpec, ClusterSpec: what a cluster is made of, every number with its source."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from seqplan.planner.quantity import Quantity
from seqplan.planner.spec import Spec

Kernel = Literal["flash", "efficient", "math"]
"""What computes one block of attention: torch's flash or memory-efficient kernel, or plain matmuls (scores are kept)."""


class DeviceSpec(Spec):
    """One accelerator as the scheduler sees it (one GCD of an MI250X). Dense rates, vendor's peak."""

    name: str
    kind: Literal["cuda", "rocm", "cpu"]
    memory_bytes: Quantity
    memory_bytes_per_s: Quantity = Field(description="bandwidth of the device memory, peak")
    peak_flops_per_s: dict[Literal["fp32", "fp16", "bf16", "fp8"], Quantity]
    attention_kernels: dict[Literal["fp32", "fp16", "bf16"], tuple[Kernel, ...]] = Field(
        description="kernels that torch has for this device and dtype, best first; a dtype left out is not usable"
    )
    matmul_efficiency: Quantity = Field(description="largest share of the peak that a big matmul reaches")
    attention_efficiency: Quantity = Field(description="share of the peak that the attention kernel reaches")
    memory_efficiency: Quantity
    kernel_launch_s: Quantity
    context_bytes: Quantity = Field(description="CUDA context and library workspaces, a row of its own")
    fragmentation_fraction: Quantity = Field(description="share of allocated bytes lost to the caching allocator")


class LinkSpec(Spec):
    """One kind of link. Rates are per GPU (intra-node) or per NIC (inter-node), one way."""

    name: str
    bytes_per_s: Quantity
    latency_s: Quantity
    efficiency: Quantity = Field(description="share of bytes_per_s that a large transfer reaches")


class ClusterSpec(Spec):
    """Nodes of equal devices, a link inside the node and one between nodes."""

    name: str
    device: DeviceSpec
    gpus_per_node: int = Field(ge=1)
    num_nodes: int = Field(ge=1, description="default size; --nodes and --gpus override it")
    intra_node: LinkSpec
    inter_node: LinkSpec
    nics_per_node: int = Field(ge=1)
    communicator_bytes: Quantity = Field(description="buffers that one communicator (process group) allocates")
    cores_per_node: int | None = Field(default=None, description="CPU devices only: cores that the ranks of a node share")
