"""Small models, clusters and trainers for the tests of layouts, rules, search and plans.

Sizes of models are the published ones where a name is published. Rates of devices are round: these tests
ask which layouts are allowed and how they compare, never what a real machine measures.
"""

from __future__ import annotations

from typing import Any

from seqplan.planner.cluster_spec import ClusterSpec, DeviceSpec, LinkSpec
from seqplan.planner.implementation import Capabilities, ImplementationSpec
from seqplan.planner.layout import Layout
from seqplan.planner.layout_defaults import complete_layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Question
from seqplan.planner.reading.quantity import Quantity
from seqplan.planner.train_spec import TrainSpec

GIB = 2**30


def decoder(**changes: Any) -> ModelSpec:
    """A Llama-like decoder; the defaults are Llama 3 8B (arXiv 2407.21783, table 3; vocabulary 128,256)."""
    fields: dict[str, Any] = {
        "name": "sample",
        "family": "llama",
        "architecture": "decoder",
        "num_layers": 32,
        "hidden_size": 4096,
        "ffn_hidden_size": 14336,
        "num_attention_heads": 32,
        "num_kv_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "norm": "rmsnorm",
        "norm_bias": False,
        "norm_position": "pre",
        "norm_eps": 1e-5,
        "embedding_norm": False,
        "final_norm": True,
        "position": "rope",
        "activation": "swiglu",
        "qkv_bias": False,
        "attention_output_bias": False,
        "mlp_bias": False,
        "tied_embeddings": False,
        "head": "lm",
    }
    fields.update(changes)
    fields.setdefault("head_dim", fields["hidden_size"] // fields["num_attention_heads"])
    fields.setdefault("embedding_size", fields["hidden_size"])
    return ModelSpec(**fields)


def encoder(**changes: Any) -> ModelSpec:
    """A BERT-like encoder; the defaults are BERT-large (arXiv 1810.04805: 24 layers, 1024, 16 heads)."""
    fields: dict[str, Any] = {
        "family": "bert",
        "architecture": "encoder",
        "num_layers": 24,
        "hidden_size": 1024,
        "ffn_hidden_size": 4096,
        "num_attention_heads": 16,
        "num_kv_heads": 16,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "position_rows": 512,
        "token_types": 2,
        "norm": "layernorm",
        "norm_bias": True,
        "norm_position": "post",
        "norm_eps": 1e-12,
        "embedding_norm": True,
        "final_norm": False,
        "position": "learned",
        "activation": "gelu",
        "qkv_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "tied_embeddings": True,
        "head": "mlm",
        "head_bias": True,
    }
    return decoder(**{**fields, **changes})


def gpt2(**changes: Any) -> ModelSpec:
    """GPT-2 (12 layers, 768, 12 heads, 50,257 tokens, 1,024 learned positions)."""
    fields: dict[str, Any] = {
        "name": "gpt2",
        "family": "gpt2",
        "architecture": "decoder",
        "num_layers": 12,
        "hidden_size": 768,
        "ffn_hidden_size": 3072,
        "num_attention_heads": 12,
        "num_kv_heads": 12,
        "vocab_size": 50257,
        "max_position_embeddings": 1024,
        "position_rows": 1024,
        "token_types": 0,
        "norm_position": "pre",
        "norm_eps": 1e-5,
        "embedding_norm": False,
        "final_norm": True,
        "activation": "gelu_tanh",
        "head": "lm",
        "head_bias": False,
    }
    return encoder(**{**fields, **changes})


def number(value: float) -> Quantity:
    return Quantity(value, "made for a test")


def link(name: str, bytes_per_s: float, latency_s: float) -> LinkSpec:
    return LinkSpec(
        name=name, bytes_per_s=number(bytes_per_s), latency_s=number(latency_s), efficiency=number(0.9)
    )


def cluster(
    *,
    gpus_per_node: int = 8,
    num_nodes: int = 8,
    memory_gib: float = 80,
    peaks: dict[str, float] | None = None,
    kernels: dict[str, tuple[str, ...]] | None = None,
) -> ClusterSpec:
    """Nodes of fast devices with a fast link inside a node and a slow one between; by default like H100s."""
    peaks = peaks or {"fp32": 60e12, "bf16": 900e12, "fp16": 900e12}
    kernels = kernels or {
        "fp32": ("efficient", "math"),
        "bf16": ("flash", "efficient", "math"),
        "fp16": ("flash", "efficient", "math"),
    }
    device = DeviceSpec.model_validate(
        {
            "name": "sample device",
            "kind": "cuda",
            "memory_bytes": number(memory_gib * GIB),
            "memory_bytes_per_s": number(3e12),
            "peak_flops_per_s": {name: number(peak) for name, peak in peaks.items()},
            "attention_kernels": kernels,
            "matmul_efficiency": number(0.7),
            "attention_efficiency": number(0.5),
            "memory_efficiency": number(0.8),
            "kernel_launch_s": number(5e-6),
            "context_bytes": number(GIB / 2),
            "fragmentation_fraction": number(0.03),
        }
    )
    return ClusterSpec(
        name="sample cluster",
        device=device,
        gpus_per_node=gpus_per_node,
        num_nodes=num_nodes,
        intra_node=link("inside", 400e9, 3e-6),
        inter_node=link("between", 50e9, 10e-6),
        nics_per_node=gpus_per_node,
        communicator_bytes=number(GIB / 64),
    )


def old_cluster(**changes: Any) -> ClusterSpec:
    """Devices without bf16 and without a flash kernel, one a node, 16 GiB: like P100s."""
    given: dict[str, Any] = {
        "gpus_per_node": 1,
        "num_nodes": 64,
        "memory_gib": 16,
        "peaks": {"fp32": 10e12, "fp16": 20e12},
        "kernels": {"fp32": ("efficient", "math"), "fp16": ("efficient", "math")},
    }
    return cluster(**{**given, **changes})


def trainer(**changes: Any) -> ImplementationSpec:
    """A trainer with the limits of ours; its inventory is empty, so that memory is not asked of it."""
    capabilities: dict[str, Any] = {
        "attention": ("none", "ring", "rsa"),
        "kernels": ("flash", "efficient", "math"),
        "schedules": ("none", "1f1b"),
        "recompute": ("none", "full"),
        "zero_stages": (0, 2, 3),
        "precisions": ("fp32", "bf16"),
        "tp_sequence_parallel": (False, True),
        "hybrid_sharding": False,
        "uneven_stages": True,
        "tp_copies_kv_heads": False,
        "min_microbatches_per_stage": 1,
        "vocab_multiple": 64,
    }
    return ImplementationSpec(
        name="sample trainer",
        source="made for a test",
        capabilities=Capabilities(**{**capabilities, **changes}),
    )


def question(
    model: ModelSpec | None = None,
    gpus: int = 8,
    *,
    seq_len: int = 4096,
    global_batch_size: int = 64,
    where: ClusterSpec | None = None,
    implementation: ImplementationSpec | None = None,
    **train: Any,
) -> Question:
    """A planning problem; everything has a default."""
    return Question(
        model=model or decoder(),
        cluster=where or cluster(),
        gpus=gpus,
        train=TrainSpec(seq_len=seq_len, global_batch_size=global_batch_size, **train),
        implementation=implementation or trainer(),
    )


def layout(asked: Question, **fields: Any) -> Layout:
    """A layout of the given fields, completed by the defaults."""
    return complete_layout(asked, fields)
