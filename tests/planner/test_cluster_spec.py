"""ClusterSpec and Quantity: sizes that fit a cluster, and numbers that cannot be meant."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from seqplan.planner.cluster_spec import ClusterSpec, DeviceSpec, LinkSpec
from seqplan.planner.errors import SeqplanError
from seqplan.planner.reading.quantity import Quantity
from seqplan.planner.validation import validate_spec

GIB = 2**30


def q(value: float) -> dict[str, Any]:
    return {"value": value, "source": "chosen for the test"}


def device_fields(**changes: Any) -> dict[str, Any]:
    return {
        "name": "d",
        "kind": "cuda",
        "architecture": "sm_80",
        "memory_bytes": q(80 * GIB),
        "memory_bytes_per_s": q(2e12),
        "peak_flops_per_s": {"fp32": q(2e13), "bf16": q(3e14), "fp8": q(6e14)},
        "attention_kernels": {"fp32": ["efficient", "math"], "bf16": ["flash", "efficient", "math"]},
        "max_head_dim": {"flash": 256},
        "matmul_efficiency": q(0.7),
        "attention_efficiency": q(0.5),
        "memory_efficiency": q(0.7),
        "kernel_launch_s": q(5e-6),
        "context_bytes": q(GIB),
        "fragmentation_fraction": q(0.05),
        **changes,
    }


def link_fields(**changes: Any) -> dict[str, Any]:
    return {"name": "l", "bytes_per_s": q(3e11), "latency_s": q(5e-6), "efficiency": q(0.8), **changes}


def cluster(**changes: Any) -> ClusterSpec:
    fields = {
        "name": "lab",
        "device": device_fields(),
        "gpus_per_node": 8,
        "num_nodes": 4,
        "intra_node": link_fields(),
        "inter_node": link_fields(),
        "nics_per_node": 8,
        "communicator_bytes": q(1e8),
        **changes,
    }
    return validate_spec(ClusterSpec, fields, "lab")


def cpu_cluster(ranks: int = 4, cores: int = 4, nodes: int = 1) -> ClusterSpec:
    cpu = device_fields(kind="cpu", architecture="x86-64", memory_bytes=q(16 * GIB / ranks))
    return cluster(device=cpu, gpus_per_node=ranks, cores_per_node=cores, num_nodes=nodes)


@pytest.mark.parametrize(
    ("gpus", "per_node", "nodes"),
    [(1, 1, 1), (6, 6, 1), (7, 7, 1), (8, 8, 1), (16, 8, 2), (24, 8, 3), (32, 8, 4), (4096, 8, 512)],
)
def test_for_gpus_is_part_of_a_node_or_whole_nodes(gpus: int, per_node: int, nodes: int) -> None:
    sized = cluster().for_gpus(gpus)
    assert (sized.gpus_per_node, sized.num_nodes, sized.world_size) == (per_node, nodes, gpus)
    assert sized.device == cluster().device


@pytest.mark.parametrize(
    ("gpus", "works"), [(12, "8 or 16"), (9, "8 or 16"), (20, "16 or 24"), (97, "96 or 104")]
)
def test_a_broken_node_is_refused_with_what_works(gpus: int, works: str) -> None:
    with pytest.raises(SeqplanError) as error:
        cluster().for_gpus(gpus)
    assert str(error.value) == (
        f"{gpus} GPUs are no whole number of the 8-GPU nodes of lab; use {works}, or at most 8 on one node."
    )


@pytest.mark.parametrize("size", [0, -8])
def test_a_cluster_has_at_least_one_gpu(size: int) -> None:
    for ask in (cluster().for_gpus, cluster().for_nodes, cpu_cluster().for_gpus):
        with pytest.raises(SeqplanError, match="use 1 or more"):
            ask(size)


def test_for_nodes() -> None:
    assert cluster().for_nodes(12).world_size == 96


@pytest.mark.parametrize(("ranks", "share"), [(1, 1.0), (4, 1.0), (5, 0.8), (8, 0.5)])
def test_cpu_ranks_share_cores_and_memory(ranks: int, share: float) -> None:
    sized = cpu_cluster().for_gpus(ranks)
    assert (sized.gpus_per_node, sized.num_nodes) == (ranks, 1)
    assert sized.device.memory_bytes == 16 * GIB / ranks
    assert sized.device.memory_bytes.source == "chosen for the test"
    assert sized.compute_share(sized.gpus_per_node) == share
    assert sized.for_gpus(2) == cpu_cluster().for_gpus(2)


def test_cpu_ranks_spread_evenly_over_nodes() -> None:
    assert cpu_cluster(nodes=2).for_gpus(6).gpus_per_node == 3
    with pytest.raises(
        SeqplanError, match=r"5 ranks do not spread evenly over the 2 nodes of lab; use 4 or 6\."
    ):
        cpu_cluster(nodes=2).for_gpus(5)


def test_gpus_have_their_peak_to_themselves() -> None:
    assert cluster().compute_share(8) == 1.0


def test_limit_is_the_memory_less_the_headroom() -> None:
    assert cluster().limit_bytes() == 80 * GIB
    assert cluster().limit_bytes(0.25) == 60 * GIB


@pytest.mark.parametrize(
    ("dtype", "head_dim", "kernels"),
    [
        ("bf16", 256, ("flash", "efficient", "math")),
        ("bf16", 257, ("efficient", "math")),
        ("fp32", 64, ("efficient", "math")),
        ("fp16", 64, ()),
    ],
)
def test_kernels_by_dtype_and_head(dtype: str, head_dim: int, kernels: tuple[str, ...]) -> None:
    assert cluster().device.kernels(dtype, head_dim) == kernels


@pytest.mark.parametrize(
    ("spec", "fields", "said"),
    [
        (DeviceSpec, device_fields(memory_bytes=q(80)), "memory_bytes = 80 bytes is no device's memory"),
        (DeviceSpec, device_fields(memory_bytes=q(8.6e19)), "write it as 80 GiB"),
        (DeviceSpec, device_fields(memory_bytes=q(0)), "memory_bytes = 0 must be more than 0"),
        (DeviceSpec, device_fields(memory_bytes_per_s=q(1e-320)), "memory_bytes_per_s = 9.99989e-321 is no"),
        (DeviceSpec, device_fields(kernel_launch_s=q(1e300)), "kernel_launch_s = 1e+300 s is no launch"),
        (DeviceSpec, device_fields(memory_bytes=q(-1)), "memory_bytes = -1 must not be negative"),
        (
            DeviceSpec,
            device_fields(matmul_efficiency=q(70)),
            "matmul_efficiency = 70 must be more than 0 and at",
        ),
        (DeviceSpec, device_fields(matmul_efficiency=q(0)), "matmul_efficiency = 0"),
        (
            DeviceSpec,
            device_fields(fragmentation_fraction=q(1)),
            "fragmentation_fraction = 1 must be less than 1",
        ),
        (
            DeviceSpec,
            device_fields(attention_kernels={}),
            "attention_kernels has nothing and peak_flops_per_s",
        ),
        (
            DeviceSpec,
            device_fields(attention_kernels={"fp32": ["math"], "bf16": []}),
            "attention_kernels.bf16 must name",
        ),
        (
            DeviceSpec,
            device_fields(attention_kernels={"fp32": ["math", "math"], "bf16": ["math"]}),
            "attention_kernels.fp32 must name",
        ),
        (DeviceSpec, device_fields(architecture="sm_75"), "sm_75 has no bf16, which begins with sm_80"),
        (DeviceSpec, device_fields(max_head_dim={"flash": 0}), "max_head_dim must be at least 1"),
        (LinkSpec, link_fields(bytes_per_s=q(300)), "bytes_per_s = 300 is no link's rate"),
        (LinkSpec, link_fields(bytes_per_s=q(float("inf"))), "bytes_per_s = inf must be a finite number"),
        (LinkSpec, link_fields(bytes_per_s=q(3e20)), "bytes_per_s = 3e+20 is no link's rate"),
        (LinkSpec, link_fields(bytes_per_s=q(0)), "bytes_per_s = 0 must be more than 0"),
        (
            LinkSpec,
            link_fields(latency_s=q(5)),
            "latency_s = 5 seconds is no link's latency; write it as 5 us",
        ),
    ],
)
def test_numbers_that_cannot_be_meant(
    spec: type[DeviceSpec] | type[LinkSpec], fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(SeqplanError) as error:
        validate_spec(spec, fields, "f")
    assert said in str(error.value)


def test_cores_are_for_cpus() -> None:
    with pytest.raises(SeqplanError, match="cores_per_node is for CPUs, and the device d is none"):
        cluster(cores_per_node=8)


def test_a_quantity_is_a_number_with_its_source() -> None:
    quantity = Quantity(3.0, "a datasheet")
    assert quantity * 2 == 6.0
    assert type(quantity * 2) is float
    for twin in (copy.deepcopy(quantity), pickle.loads(pickle.dumps(quantity))):
        assert (twin, twin.source) == (3.0, "a datasheet")


def test_a_cluster_survives_json() -> None:
    text = json.dumps(cluster().model_dump(mode="json"))
    again = ClusterSpec.model_validate_json(text)
    assert again == cluster()
    assert again.device.memory_bytes.source == "chosen for the test"
