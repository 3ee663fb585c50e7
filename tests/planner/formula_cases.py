"""Models, clusters and questions that the tests of the formulas share.

Round numbers; nothing is read from the profiles but our trainer's inventory.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from seqplan.planner.cluster_spec import ClusterSpec, DeviceSpec, LinkSpec
from seqplan.planner.implementation import ImplementationSpec
from seqplan.planner.layout import Layout
from seqplan.planner.layout_defaults import complete_layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Question
from seqplan.planner.reading.quantity import Quantity
from seqplan.planner.train_spec import TrainSpec

CAPABILITIES: dict[str, Any] = {
    "attention": ["none", "ring", "rsa"],
    "kernels": ["flash", "efficient", "math"],
    "schedules": ["none", "1f1b", "interleaved", "gpipe", "zbv"],
    "recompute": ["none", "selective", "full"],
    "zero_stages": [0, 1, 2, 3],
    "precisions": ["fp32", "bf16", "fp16"],
    "tp_sequence_parallel": [False, True],
    "hybrid_sharding": True,
    "uneven_stages": True,
    "tp_copies_kv_heads": True,
    "min_microbatches_per_stage": 0,
    "vocab_multiple": 1,
}


def decoder(**changes: Any) -> ModelSpec:
    """Llama-like: 8 layers of 512, 8 heads of 64, 4 kv heads, gated MLP of 1024, vocabulary 1000."""
    fields: dict[str, Any] = {
        "name": "test-decoder",
        "family": "llama",
        "architecture": "decoder",
        "num_layers": 8,
        "hidden_size": 512,
        "ffn_hidden_size": 1024,
        "num_attention_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 64,
        "vocab_size": 1000,
        "max_position_embeddings": None,
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
    fields.setdefault("embedding_size", fields["hidden_size"])
    return ModelSpec.model_validate_json(json.dumps(fields))


def gpt(
    num_layers: int, hidden_size: int, heads: int, vocab_size: int, positions: int, **changes: Any
) -> ModelSpec:
    """A GPT-2-like decoder: LayerNorm, learned positions, GELU of 4 x hidden, biases, tied embeddings."""
    return decoder(
        **{
            "name": "test-gpt",
            "family": "gpt2",
            "num_layers": num_layers,
            "hidden_size": hidden_size,
            "ffn_hidden_size": 4 * hidden_size,
            "num_attention_heads": heads,
            "num_kv_heads": heads,
            "head_dim": hidden_size // heads,
            "vocab_size": vocab_size,
            "max_position_embeddings": positions,
            "position_rows": positions,
            "norm": "layernorm",
            "norm_bias": True,
            "position": "learned",
            "activation": "gelu",
            "qkv_bias": True,
            "attention_output_bias": True,
            "mlp_bias": True,
            "tied_embeddings": True,
            **changes,
        }
    )


def encoder(**changes: Any) -> ModelSpec:
    """A BERT-like encoder of the decoder's sizes: norms after the residual sum, masked-token head."""
    return gpt(
        **{
            "num_layers": 8,
            "hidden_size": 512,
            "heads": 8,
            "vocab_size": 1000,
            "positions": 4096,
            "name": "test-encoder",
            "family": "bert",
            "architecture": "encoder",
            "norm_position": "post",
            "embedding_norm": True,
            "final_norm": False,
            "token_types": 2,
            "head": "mlm",
            "head_bias": True,
            **changes,
        },
    )


def _number(value: float) -> Quantity:
    return Quantity(value, "chosen for the test")


def cluster(gpus_per_node: int = 8, num_nodes: int = 8, **changes: Any) -> ClusterSpec:
    """8 nodes of 8 GPUs (100 TFLOP/s, 1 TB/s, 80 GB); 100 GB/s inside, 8 NICs of 10 GB/s between nodes.

    `changes` may be what no real cluster has, such as infinite rates: the specs' own rules are passed by.
    """
    device = DeviceSpec.model_construct(
        name="test-gpu",
        kind=changes.get("kind", "cuda"),
        memory_bytes=_number(changes.get("memory_bytes", 80e9)),
        memory_bytes_per_s=_number(changes.get("memory_bytes_per_s", 1e12)),
        peak_flops_per_s={
            name: _number(changes.get("peak_flops_per_s", 100e12)) for name in ("fp32", "fp16", "bf16")
        },
        attention_kernels=dict.fromkeys(("fp32", "fp16", "bf16"), ("flash", "efficient", "math")),
        matmul_efficiency=_number(changes.get("matmul_efficiency", 0.5)),
        attention_efficiency=_number(changes.get("attention_efficiency", 0.5)),
        memory_efficiency=_number(1.0),
        kernel_launch_s=_number(changes.get("kernel_launch_s", 0.0)),
        context_bytes=_number(changes.get("context_bytes", 0.0)),
        fragmentation_fraction=_number(changes.get("fragmentation_fraction", 0.0)),
    )

    def link(name: str, bytes_per_s: float) -> LinkSpec:
        return LinkSpec.model_construct(
            name=name,
            bytes_per_s=_number(bytes_per_s),
            latency_s=_number(changes.get("latency_s", 0.0)),
            efficiency=_number(1.0),
        )

    return ClusterSpec.model_construct(
        name="test-cluster",
        device=device,
        gpus_per_node=gpus_per_node,
        num_nodes=num_nodes,
        intra_node=link("inside", changes.get("intra", 100e9)),
        inter_node=link("between", changes.get("inter", 10e9)),
        nics_per_node=int(changes.get("nics_per_node", 8)),
        communicator_bytes=_number(changes.get("communicator_bytes", 0.0)),
        cores_per_node=changes.get("cores_per_node"),
    )


def trainer(**lists: Any) -> ImplementationSpec:
    """A trainer that can do everything and keeps only what `lists` says."""
    fields = {"name": "test-trainer", "source": "test", "capabilities": CAPABILITIES, **lists}
    return ImplementationSpec.model_validate_json(json.dumps(fields))


@cache
def our_trainer() -> ImplementationSpec:
    """The inventory that ships with the package."""
    text = files("seqplan").joinpath("profiles/implementations/seqplan.yaml").read_text(encoding="utf-8")
    return ImplementationSpec.model_validate_json(json.dumps(yaml.safe_load(text)))


def question(
    model: ModelSpec | None = None,
    *,
    seq_len: int = 2048,
    global_batch_size: int = 64,
    gpus: int = 64,
    implementation: ImplementationSpec | None = None,
    on: ClusterSpec | None = None,
    **train: Any,
) -> Question:
    """A question of round numbers."""
    spec = TrainSpec(seq_len=seq_len, global_batch_size=global_batch_size, **{"precision": "bf16", **train})
    return Question(
        model=model or decoder(),
        cluster=on or cluster(),
        gpus=gpus,
        train=spec,
        implementation=implementation or our_trainer(),
    )


def layout(asked: Question, **fields: Any) -> Layout:
    """A layout with the defaults of the question."""
    return complete_layout(asked, fields)
