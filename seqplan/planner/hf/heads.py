"""What stands on top of the layers: told by the class that `architectures` names.

A checkpoint of BertForMaskedLM and one of BertForSequenceClassification share their layers but not their
count. Heads are small, but the count is meant to be exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seqplan.planner.hf.reader import ConfigReader, Fields

# Ends of class names -> the task. The longest match wins; "Model" alone is a model without head.
TASKS: dict[str, str] = {
    "ForCausalLM": "lm",
    "LMHeadModel": "lm",
    "ForConditionalGeneration": "lm",
    "ForMaskedLM": "mlm",
    "ForPreTraining": "pretraining",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "question",
    "ForMultipleChoice": "choice",
    "ForNextSentencePrediction": "sentence",
    "Model": "none",
}


@dataclass(frozen=True)
class HeadStyle:
    """What a family's classes have."""

    pooler: bool = False  # BERT's dense layer on the first token, a part of the base model
    own_dense: bool = True  # a sequence classifier has a dense layer of its own instead of the pooler
    second_bias: bool = True  # an untied masked-token head has two biases
    discriminator: bool = False  # ForPreTraining is ELECTRA's discriminator
    always: bool = False  # a class called plain Model has the head all the same (ChatGLM)
    plain: bool = False  # the masked-token head is one matrix (EuroBERT)


PLAIN_STYLE = HeadStyle()


def task_of(c: ConfigReader, decoder: bool) -> str:
    """The task of the first class in `architectures`; the family's usual one where the file names none."""
    usual = "lm" if decoder else "mlm"
    classes = c.words("architectures")
    if not classes:
        c.notes.append(f"no class in architectures: counted with the usual head ({_words(usual)})")
        return usual
    for end, task in TASKS.items():
        if classes[0].endswith(end):
            return task
    c.notes.append(f"class {classes[0]} is not known: counted with the usual head ({_words(usual)})")
    return usual


def _words(task: str) -> str:
    return {"lm": "next-token", "mlm": "masked-token"}[task]


def head_fields(c: ConfigReader, fields: Fields, style: HeadStyle) -> Fields:
    """head, tied_embeddings and the tensors that only some heads have."""
    decoder = fields.get("architecture", "decoder") == "decoder"
    task = task_of(c, decoder)
    if task == "none" and style.always:
        task = "lm"
    if task == "pretraining" and decoder:
        task = "lm"
    if task in ("lm", "mlm"):
        c.ignore("id2label", "num_labels")
        return _vocabulary(c, fields, style)
    hidden = fields["hidden_size"]
    if task == "pretraining":
        if style.discriminator:
            return {"head": "discriminator", "tied_embeddings": False}
        top = _vocabulary(c, fields, style)
        extra = _pooler(hidden, "final") + _linear("head.sentence", 2, hidden) if style.pooler else []
        return {**top, "extra_tensors": [*top.get("extra_tensors", []), *extra]}
    head = "none" if task == "none" else "classifier"
    pooled = {"none", "choice", "sentence"} if style.own_dense else {"none", "choice", "sentence", "sequence"}
    extra = _pooler(hidden, "final") if style.pooler and task in pooled else []
    if head == "classifier":
        extra += _classifier(c, fields, style, task, decoder)
    return {"head": head, "tied_embeddings": False, "extra_tensors": extra}


def _vocabulary(c: ConfigReader, fields: Fields, style: HeadStyle) -> Fields:
    """A decoder's plain matrix, or an encoder's transform and matrix (EuroBERT: plain there too)."""
    tied = c.flag("tie_word_embeddings")
    if fields.get("architecture", "decoder") == "decoder" or style.plain:
        return {"head": "lm", "tied_embeddings": tied, "head_bias": fields.get("head_bias", False)}
    # Untied, these classes keep the matrix's own bias beside the one that both share when tied.
    second = [_tensor("head.second_bias", (fields["vocab_size"],))] if style.second_bias and not tied else []
    return {"head": "mlm", "tied_embeddings": tied, "head_bias": True, "extra_tensors": second}


def _classifier(
    c: ConfigReader, fields: Fields, style: HeadStyle, task: str, decoder: bool
) -> list[dict[str, Any]]:
    """The matrices of a classification head, with BERT's dense layer where it is not the pooler."""
    hidden = fields["hidden_size"]
    fixed = {"question": 2, "choice": 1, "sentence": 2}.get(task)
    labels = _labels(c) if fixed is None else fixed
    width = fields["embedding_size"] if fields.get("output_projection") else hidden
    c.notes.append(f"counted with a classification head of {labels} labels, as architectures says")
    if decoder:
        return _linear("head.score", labels, width, bias=task != "sequence")
    own = style.own_dense if task == "sequence" else task == "choice" and not style.pooler
    dense = _dense(fields, hidden) if own else []
    return [*dense, *_linear("head.classifier", labels, hidden)]


def _dense(fields: Fields, hidden: int) -> list[dict[str, Any]]:
    if not fields.get("first_attention_norm", True):  # ModernBERT: dense and norm
        norm = [_tensor("head.norm.weight", (hidden,))]
        norm += [_tensor("head.norm.bias", (hidden,))] if fields["norm_bias"] else []
        return _linear("head.dense", hidden, hidden, fields["head_transform_bias"]) + norm
    return _linear("head.dense", hidden, hidden)


def _labels(c: ConfigReader) -> int:
    """Labels of a classifier: transformers' default is two."""
    names = c.mapping("id2label")
    return len(names) if names else c.size("num_labels", 2)


def _pooler(hidden: int, place: str) -> list[dict[str, Any]]:
    return [
        _tensor("pooler.weight", (hidden, hidden), place),
        _tensor("pooler.bias", (hidden,), place),
    ]


def _linear(name: str, outputs: int, inputs: int, bias: bool = True) -> list[dict[str, Any]]:
    weight = [_tensor(f"{name}.weight", (outputs, inputs))]
    return [*weight, _tensor(f"{name}.bias", (outputs,))] if bias else weight


def _tensor(name: str, shape: tuple[int, ...], place: str = "head") -> dict[str, Any]:
    return {"name": name, "place": place, "shape": shape, "tp_split": "replicated"}
