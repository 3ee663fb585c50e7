"""One pipeline stage of the transformer: the same class for every stage, with parts left out.

The first stage has the embedding, the last one the final norm, the head and the loss; parameter names do
not change with the layout. With tied embeddings and one stage, head.weight and embedding.tokens.weight are
one Parameter; over several stages each end holds a copy, whose gradients trainer.py adds.

Shapes: B micro-batch, S tokens of this sp rank, R tokens of the residual stream (S, or S/tp under
tp_sequence_parallel), E hidden size, V vocabulary rows on this rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seqplan.planner.errors import SeqplanError
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.rules.model_features import missing_features
from seqplan.runtime.data import MicroBatch
from seqplan.runtime.dropout import DropoutPlace, dropout
from seqplan.runtime.modules import Build, Layer, Linear, Norm, Tokens, activate, local, new_parameter
from seqplan.runtime.random_field import seed_of
from seqplan.runtime.rope import rotation
from seqplan.runtime.tensor_parallel import column_linears, reduce_from_tp
from seqplan.runtime.vocab_parallel import vocab_cross_entropy, vocab_embedding

VOCAB_MULTIPLE = 64
"""Vocabulary rows a tp rank are a multiple of this (matmul tiles); a test holds the profile to it."""

MODEL_FEATURES: tuple[str, ...] = ()
"""Features beyond the plain transformer (planner/rules/model_features.py); a test holds the profile to it."""


def padded_vocab(model: ModelSpec, tp: int) -> int:
    """Rows of the embedding and head: the vocabulary rounded up to a multiple of VOCAB_MULTIPLE * tp."""
    multiple = VOCAB_MULTIPLE * tp
    return -(-model.vocab_size // multiple) * multiple


class TokenTable(nn.Module):
    """An embedding table: holds the weight, [rows, features]."""

    def __init__(self, build: Build, rows: int, features: int, vocabulary: bool) -> None:
        super().__init__()
        self.weight = new_parameter(build, (rows, features), "vocab" if vocabulary else "replicated")


class Embedding(nn.Module):
    """Token, position and token-type embeddings, their norm and dropout."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        model = build.model
        self.build = build
        self.tokens = TokenTable(
            build, padded_vocab(model, build.mesh.tp), model.hidden_size, vocabulary=True
        )
        if model.position == "learned":
            self.positions = TokenTable(build, model.position_rows, model.hidden_size, vocabulary=False)
        if model.token_types:
            self.token_types = TokenTable(build, model.token_types, model.hidden_size, vocabulary=False)
        if model.embedding_norm:
            self.norm = Norm(build, model.hidden_size)

    def forward(self, tokens_BS: Tensor, positions_R: Tensor, place: DropoutPlace | None) -> Tensor:
        build, model = self.build, self.build.model
        weight_VE = local(self.tokens.weight)
        first_row = build.mesh.tp_rank * weight_VE.shape[0]
        if build.mesh.tp == 1:
            x_BRE = F.embedding(tokens_BS, weight_VE)
        else:
            partial_BSE = vocab_embedding(tokens_BS, weight_VE, first_row)
            x_BRE = reduce_from_tp(partial_BSE, build.tp_group, build.tokens_sharded)
        if model.position == "learned":
            # Tables longer than the longest sequence begin with rows that no position uses (OPT, RoBERTa).
            unused = model.position_rows - (model.max_position_embeddings or model.position_rows)
            x_BRE = x_BRE + F.embedding(positions_R + unused, local(self.positions.weight))
        if model.token_types:
            x_BRE = x_BRE + local(self.token_types.weight)[0]
        if model.embedding_norm:
            x_BRE = self.norm(x_BRE)
        return dropout(x_BRE, build.train.hidden_dropout, None if place is None else place.at("embedding"))


class Head(nn.Module):
    """Language-model head, or BERT's masked-token head (transform, activation, norm, then the same)."""

    bias: nn.Parameter | None

    def __init__(self, build: Build, tied_weight: nn.Parameter | None) -> None:
        super().__init__()
        model = build.model
        self.build = build
        rows = padded_vocab(model, build.mesh.tp)
        if model.head == "mlm":
            self.transform = Linear(build, model.hidden_size, model.hidden_size, "replicated", bias=True)
            self.norm = Norm(build, model.hidden_size)
        if tied_weight is None:
            self.weight = new_parameter(build, (rows, model.hidden_size), "vocab")
        else:
            self.weight = tied_weight
        self.register_parameter("bias", new_parameter(build, (rows,), "vocab") if model.head_bias else None)

    def forward(self, x_BRE: Tensor) -> Tensor:
        """-> logits [B, S, V] of this rank's vocabulary rows."""
        build = self.build
        if build.model.head == "mlm":
            x_BRE = F.linear(x_BRE, local(self.transform.weight), self.transform.local_bias())
            x_BRE = self.norm(activate(x_BRE, build.model.activation))
        bias = None if self.bias is None else local(self.bias)
        (logits_BSV,) = column_linears(
            x_BRE, [local(self.weight)], [bias], build.tp_group, build.tokens_sharded
        )
        return logits_BSV


class Stage(nn.Module):
    """This stage's layers of the model, with the embedding on the first stage and the head on the last."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        missing = missing_features(build.model, build.train.seq_len, MODEL_FEATURES)
        if missing:
            raise SeqplanError(f"This runtime cannot train {build.model.name}: {'; '.join(missing)}.")
        mesh, layout, model = build.mesh, build.layout, build.model
        self.build = build
        first_layer = sum(layout.stage_layers[: mesh.pp_stage])
        count = layout.stage_layers[mesh.pp_stage]
        self.recomputed = 0
        if layout.recompute == "full":
            self.recomputed = (
                count if layout.recompute_layers is None else min(layout.recompute_layers, count)
            )
        if mesh.first_stage:
            self.embedding = Embedding(build)
        self.layers = nn.ModuleDict(
            {str(i): Layer(build, i) for i in range(first_layer, first_layer + count)}
        )
        if mesh.last_stage:
            if model.final_norm:
                self.final_norm = Norm(build, model.hidden_size)
            tied = self.embedding.tokens.weight if model.tied_embeddings and mesh.first_stage else None
            self.head = Head(build, tied)

    def forward(self, x_BRE: Tensor | None, micro_batch: MicroBatch, seed: int | None) -> Tensor:
        """Hidden states [B, R, E] for the next stage; on the last one the summed loss of the counted tokens.

        x is the previous stage's result, None on the first stage. `seed` is the step's dropout seed, None
        in evaluation.
        """
        y = self.hidden(x_BRE, micro_batch, seed)
        if not self.build.mesh.last_stage:
            return y
        logits_BSV = self.head(y)
        first_row = self.build.mesh.tp_rank * logits_BSV.shape[-1]
        return vocab_cross_entropy(
            logits_BSV, micro_batch.labels, first_row, self.build.model.vocab_size, self.build.tp_group
        )

    def hidden(self, x_BRE: Tensor | None, micro_batch: MicroBatch, seed: int | None) -> Tensor:
        """Everything before the head."""
        tokens, positions_R = self.describe(micro_batch, seed)
        if self.build.mesh.first_stage:
            x_BRE = self.embedding(micro_batch.tokens, positions_R, tokens.place)
        x = cast(Tensor, x_BRE)
        for index, layer in self.numbered_layers():
            if index < self.recomputed:
                # Dropout is a function of the token, so no generator state has to be kept.
                x = cast(Tensor, checkpoint(layer, x, tokens, use_reentrant=False, preserve_rng_state=False))
            else:
                x = layer(x, tokens)
        if self.build.mesh.last_stage and self.build.model.final_norm:
            x = self.final_norm(x)
        return x

    def numbered_layers(self) -> Iterable[tuple[int, nn.Module]]:
        """The layers in order, with their numbers on this stage. (Simulation skips some equal ones.)"""
        return enumerate(self.layers.values())

    def describe(self, micro_batch: MicroBatch, seed: int | None) -> tuple[Tokens, Tensor]:
        """What the layers need to know of the tokens; and the positions of the residual stream's tokens."""
        build, mesh = self.build, self.build.mesh
        positions_S = micro_batch.positions
        positions_R = positions_S
        if build.tokens_sharded:
            positions_R = positions_S.chunk(mesh.tp)[mesh.tp_rank]
        cos = sin = None
        if build.model.position == "rope":
            cos, sin = rotation(build.model, positions_S, build.compute_dtype)
        place = None
        if seed is not None and max(build.train.hidden_dropout, build.train.attention_dropout) > 0:
            place = DropoutPlace(seed_of(seed, "dropout"), micro_batch.batch_rows, positions_R)
        tokens = Tokens(positions_S, micro_batch.valid, cos, sin, micro_batch.batch_rows, place)
        return tokens, positions_R
