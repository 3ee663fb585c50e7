"""The model against `transformers`: logits, loss and every gradient; its names against the inventory.

Weights are ours, copied into transformers' classes by an explicit table of names, so a swapped projection, a
wrong rotation, a missing bias or another activation shows.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from seqplan.planner.model_spec import ModelSpec
from seqplan.runtime.modules import local
from seqplan.runtime.trainer import Trainer, inventory_name
from tests.ranks import RanksFailedError, run_ranks
from tests.runtime import parity
from tests.runtime.reference_model import Batch, full_names, make_batch

pytestmark = pytest.mark.ranks

ROWS, SEQ_LEN, SEED = 4, 24, 5
RELATIVE = 1e-9
FLOAT32_INSIDE = 1e-5
"""transformers computes RMSNorm, rotations and the softmax of OPT in float32 whatever the model's dtype."""

LAYER = {
    "llama": {
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.output": "self_attn.o_proj",
        "attention.query_norm": "self_attn.q_norm",
        "attention.key_norm": "self_attn.k_norm",
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "mlp.gate": "mlp.gate_proj",
        "mlp.up": "mlp.up_proj",
        "mlp.down": "mlp.down_proj",
    },
    "gpt2": {
        "attention.output": "attn.c_proj",
        "attention_norm": "ln_1",
        "mlp_norm": "ln_2",
        "mlp.up": "mlp.c_fc",
        "mlp.down": "mlp.c_proj",
    },
    "opt": {
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.output": "self_attn.out_proj",
        "attention_norm": "self_attn_layer_norm",
        "mlp_norm": "final_layer_norm",
        "mlp.up": "fc1",
        "mlp.down": "fc2",
    },
    "bert": {
        "attention.query": "attention.self.query",
        "attention.key": "attention.self.key",
        "attention.value": "attention.self.value",
        "attention.output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "mlp_norm": "output.LayerNorm",
        "mlp.up": "intermediate.dense",
        "mlp.down": "output.dense",
    },
}
ENDS = {
    "llama": {"embedding.tokens": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"},
    "gpt2": {
        "embedding.tokens": "transformer.wte",
        "embedding.positions": "transformer.wpe",
        "final_norm": "transformer.ln_f",
    },
    "opt": {
        "embedding.tokens": "model.decoder.embed_tokens",
        "embedding.positions": "model.decoder.embed_positions",
        "final_norm": "model.decoder.final_layer_norm",
    },
    "bert": {
        "embedding.tokens": "bert.embeddings.word_embeddings",
        "embedding.positions": "bert.embeddings.position_embeddings",
        "embedding.token_types": "bert.embeddings.token_type_embeddings",
        "embedding.norm": "bert.embeddings.LayerNorm",
        "head.transform": "cls.predictions.transform.dense",
        "head.norm": "cls.predictions.transform.LayerNorm",
        "head": "cls.predictions",
    },
}
LAYERS_AT = {
    "llama": "model.layers",
    "gpt2": "transformer.h",
    "opt": "model.decoder.layers",
    "bert": "bert.encoder.layer",
}


def specs() -> dict[str, ModelSpec]:
    llama3_scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    few = {"num_layers": 2}
    grouped = {**few, "num_attention_heads": 12, "num_kv_heads": 6}
    return {
        "llama": parity.decoder(**grouped, tied_embeddings=False),
        "llama3": parity.decoder(**grouped, rope_theta=500.0, rope_scaling=llama3_scaling),
        "qwen3": parity.decoder(**grouped, qk_norm="per_head"),
        "qwen2": parity.decoder(**grouped, qkv_bias=True, head_dim=2),
        "gpt2": parity.gpt2_like(**few, head_dim=2, num_attention_heads=12, num_kv_heads=12),
        "opt": parity.gpt2_like(  # whose first position is row 2 of the table
            **few, head_dim=2, num_attention_heads=12, num_kv_heads=12, activation="relu", position_rows=66
        ),
        "bert": parity.encoder(**few, head_dim=2, num_attention_heads=12, num_kv_heads=12),
    }


def hf_model(name: str, spec: ModelSpec) -> Any:
    """The transformers model of the same sizes, in float64."""
    import transformers as hf

    if name == "gpt2":
        config: Any = hf.GPT2Config(
            vocab_size=spec.vocab_size, n_positions=spec.position_rows, n_embd=spec.hidden_size,
            n_layer=spec.num_layers, n_head=spec.num_attention_heads, n_inner=spec.ffn_hidden_size,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager",
            layer_norm_epsilon=spec.norm_eps,
        )  # fmt: skip
        return hf.GPT2LMHeadModel(config).double()
    shared: dict[str, Any] = {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.ffn_hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_attention_heads,
        "attn_implementation": "eager",
    }
    if name == "opt":
        config = hf.OPTConfig(
            vocab_size=spec.vocab_size, hidden_size=spec.hidden_size, num_hidden_layers=spec.num_layers,
            ffn_dim=spec.ffn_hidden_size, num_attention_heads=spec.num_attention_heads,
            max_position_embeddings=spec.max_position_embeddings, word_embed_proj_dim=spec.hidden_size,
            dropout=0.0, attention_dropout=0.0, layerdrop=0.0, attn_implementation="eager",
        )  # fmt: skip
        return hf.OPTForCausalLM(config).double()
    if name == "bert":
        config = hf.BertConfig(
            **shared, max_position_embeddings=spec.position_rows, layer_norm_eps=spec.norm_eps,
            pad_token_id=None, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        return hf.BertForMaskedLM(config).double()
    shared |= {
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "rms_norm_eps": spec.norm_eps,
        "max_position_embeddings": 128,
        "tie_word_embeddings": spec.tied_embeddings,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": spec.rope_theta,
            **(spec.rope_scaling or {}),
        },
    }
    if name == "qwen3":
        return hf.Qwen3ForCausalLM(hf.Qwen3Config(**shared)).double()
    if name == "qwen2":
        return hf.Qwen2ForCausalLM(hf.Qwen2Config(**shared)).double()
    return hf.LlamaForCausalLM(hf.LlamaConfig(**shared)).double()


def hf_tensors(name: str, spec: ModelSpec, model: Any, grads: bool) -> dict[str, Tensor]:
    """transformers' weights (or their gradients) under our names and in our shapes; views where possible."""
    family = {"gpt2": "gpt2", "opt": "opt", "bert": "bert"}.get(name, "llama")
    theirs: dict[str, Tensor] = dict(model.named_parameters())

    def get(key: str) -> Tensor:
        value = theirs[key]
        out = value.grad if grads else value.detach()
        assert out is not None, key
        return out

    out: dict[str, Tensor] = {}
    for ours in full_names(spec):
        base, kind = ours.rsplit(".", 1)
        if not ours.startswith("layers."):
            out[ours] = get(f"{ENDS[family][base]}.{kind}")
            continue
        _, layer, base = base.split(".", 2)
        at = f"{LAYERS_AT[family]}.{layer}"
        if family == "gpt2" and base in ("attention.query", "attention.key", "attention.value"):
            part = ("attention.query", "attention.key", "attention.value").index(base)
            value = get(f"{at}.attn.c_attn.{kind}").chunk(3, dim=-1)[part]
        else:
            value = get(f"{at}.{LAYER[family][base]}.{kind}")
        # GPT-2 stores linears transposed (Conv1D).
        transposed = family == "gpt2" and value.dim() == 2
        out[ours] = value.t() if transposed else value
    return out


def test_parameter_names_and_shapes_are_the_inventory() -> None:
    assert run_ranks(1, names_equal_inventory) == [True]


def names_equal_inventory(rank: int, world_size: int) -> bool:
    for spec in [*specs().values(), parity.decoder(), parity.encoder(), parity.gpt2_like()]:
        layout = parity.make_layout(spec, 1, 1, 1, 1)
        trainer, _ = parity.new_trainer(spec, layout, make_batch(spec, 16, 32, False), torch.float64)
        padded = trainer.stage.head.weight.shape[0]
        expected = {t.name: t.shape for t in spec.parameter_tensors(padded) if t.tied_to is None}
        measured = {inventory_name(n): tuple(p.shape) for n, p in trainer.states.masters.items()}
        assert measured == expected, spec.name
        total = sum(p.numel() for p in trainer.states.masters.values())
        extra_rows = padded - spec.vocab_size
        tables = sum(
            t.tp_split == "vocab" and t.tied_to is None and len(t.shape) == 2
            for t in spec.parameter_tensors()
        )
        biases = sum(t.tp_split == "vocab" and len(t.shape) == 1 for t in spec.parameter_tensors())
        assert total - extra_rows * (tables * spec.hidden_size + biases) == spec.parameters(), spec.name
    return True


def copy_weights(trainer: Trainer, weights: dict[str, Tensor]) -> None:
    for name, master in trainer.states.masters.items():
        shard = local(master).detach()
        shard[: weights[name].shape[0]].copy_(weights[name])
    trainer.states.publish()


def compare_with_transformers(rank: int, world_size: int) -> bool:
    for name, spec in specs().items():
        torch.manual_seed(0)
        theirs = hf_model(name, spec)
        for parameter in theirs.parameters():  # also biases and norms, which start at 0 and 1
            torch.nn.init.normal_(parameter, std=0.2)
        batch = make_batch(spec, ROWS, SEQ_LEN, padded=True)
        layout = parity.make_layout(spec, 1, 1, 1, 1, micro_batch_size=2)
        trainer, micro_batches = parity.new_trainer(spec, layout, batch, torch.float64, seed=SEED)
        copy_weights(trainer, hf_tensors(name, spec, theirs, grads=False))
        logits = theirs(input_ids=batch.tokens, attention_mask=batch.valid.long()).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.labels.flatten(), ignore_index=-100
        )
        loss.backward()
        measured, _ = trainer.compute_gradients(micro_batches, 0)
        relative = RELATIVE if name in ("gpt2", "bert") else FLOAT32_INSIDE
        assert abs(measured / float(loss.detach()) - 1) < relative, (name, measured, float(loss))
        reference = hf_tensors(name, spec, theirs, grads=True)
        worst = parity.worst_gradient_error(trainer, reference)
        assert worst[0] < relative, (name, worst)
    return True


def test_logits_loss_and_gradients_equal_transformers() -> None:
    assert run_ranks(1, compare_with_transformers, timeout_s=120) == [True]


def local_logits(rank: int, world_size: int, spec: ModelSpec, batch: Batch) -> tuple[list[int], Tensor]:
    """This rank's positions and the logits there."""
    layout = parity.make_layout(spec, 1, 1, 1, world_size, micro_batch_size=batch.tokens.shape[0])
    trainer, (micro_batch,) = parity.new_trainer(spec, layout, batch, torch.float64, seed=SEED)
    with torch.no_grad():
        logits = trainer.stage.head(trainer.stage.hidden(None, micro_batch, None))
    return micro_batch.positions.tolist(), logits


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_logits_do_not_depend_on_sp(kind: str) -> None:
    # Positions are data: a rotation or a learned position by local index gives other logits on rank 1.
    spec = {"decoder": parity.decoder, "encoder": parity.encoder}[kind](num_layers=2)
    batch = make_batch(spec, 2, 48, padded=True)
    whole = run_ranks(1, local_logits, spec, batch)[0][1]
    for sp in (2, 3, 4):
        for positions, logits in run_ranks(sp, local_logits, spec, batch):
            error = (logits - whole[:, positions]).norm() / whole.norm()
            assert error < RELATIVE, (sp, positions[:3], float(error))


def test_what_cannot_be_trained_is_refused_by_name() -> None:
    with pytest.raises(
        RanksFailedError,
        match=r"SeqplanError: This runtime cannot train parity-decoder: sliding_window=8 below seq_len=32",
    ):
        run_ranks(1, build_unsupported)


def build_unsupported(rank: int, world_size: int) -> None:
    spec = parity.decoder(num_layers=2, sliding_window=8)
    layout = parity.make_layout(spec, 1, 1, 1, 1)
    parity.new_trainer(spec, layout, make_batch(spec, 16, 32, False), torch.float64)
