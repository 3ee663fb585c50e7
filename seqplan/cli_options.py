"""The command line's options: those that commands share, and flags made from a specification's fields.

`flags_of` turns each field of a Spec into one option (`micro_batch_size` -> `--micro-batch-size`), so a
field without its flag, or a flag whose default, choices or help drifted from the field, cannot exist.
Ranges are the Spec's own rules too: whatever it refuses is told in one line, all wrong flags at once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import PydanticUndefined

from seqplan.planner.errors import SeqplanError
from seqplan.planner.reading.typed_form import flag_name, typed_value
from seqplan.planner.spec import Spec
from seqplan.planner.train_spec import Optimizer

Built = TypeVar("Built", bound=BaseModel)

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="a built-in name, a config.json, or a folder that holds one", show_default=False
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="one JSON object on stdout")]
TopFlag = Annotated[
    int | None,
    typer.Option(
        min=1, help="layouts in the table of the best (5), and what less memory or fewer GPUs cost in time"
    ),
]
TokensFlag = Annotated[
    str | None, typer.Option(metavar="15T", help="tokens of the whole training: adds days and GPU-hours")
]
LayoutFlag = Annotated[
    str | None, typer.Option(metavar="LAYOUT", help="dp2,pp1,tp4,sp8; fields such as mbs=2 may follow")
]
TraceFlag = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE.json", help="write the simulated step as a Chrome trace (Perfetto)"
    ),
]
OutputFlag = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="PLAN.yaml", help="write the pick as a plan file")
]


class Ask(Spec):
    """What `suggest` and `explain` are asked about, as typed; each field is a flag."""

    cluster: str | None = Field(default=None, description="a built-in name or a YAML file")
    gpus: int | None = Field(default=None, ge=1, description="devices in all; default: the whole cluster")
    nodes: int | None = Field(default=None, ge=1, description="nodes, instead of --gpus")
    seq_len: str | None = Field(default=None, description="tokens of one sequence; 4k is 4096")
    global_batch_size: str | None = Field(default=None, description="sequences in one optimizer step")
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp8"] = Field(
        default="auto", description="compute dtype; auto: the best that device and trainer have"
    )
    implementation: str = Field(
        default="seqplan",
        description="the trainer that has to run it: seqplan, llama3, megatron-core, megatron-sc21, "
        "megatron-2021, megatron-deepspeed, nanotron, nemo, torchtitan or torchtitan-2025",
    )
    no_overlap: tuple[str, ...] | None = Field(
        default=None,
        description="overlaps not to count on: ring,reduction,gather,prefetch,transfers,tp or all",
    )
    optimizer: Optimizer = Field(default="adamw", description="what keeps moments of every weight")
    gradient_bytes: int = Field(default=4, description="bytes of an accumulated gradient: 2 or 4")
    hidden_dropout: float = Field(default=0.0, description="after embedding, attention and MLP")
    attention_dropout: float = Field(default=0.0, description="on attention probabilities; needs rsa")
    chunked_head: bool = Field(default=False, description="assume that the logits are never whole")
    headroom: float = Field(default=0.05, description="share of the device memory to keep free")


def build(spec: type[Built], fields: Mapping[str, Any], flags: Mapping[str, str] = {}) -> Built:
    """The specification from flags; what it refuses becomes one line that names the flags.

    `flags` says which flag a field came from where its name differs.
    """
    try:
        return spec(**fields)
    except ValidationError as error:
        wrong = []
        for item in error.errors(include_url=False):
            message = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
            field = str(item["loc"][0])
            flag = flags.get(field, flag_name(field))
            wrong.append(f"{flag} {typed_value(item['input'])}: {message[:1].lower()}{message[1:]}")
        raise SeqplanError("; ".join(wrong) + ".") from None


def flags_of(
    spec: type[BaseModel],
    argument: str,
    *,
    help_from: type[BaseModel] | None = None,
    names: Mapping[str, Sequence[str]] = {},
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each field of `spec`, and the filled spec as `argument`.

    `help_from` is where a field without a description finds one; `names` adds other spellings of a flag.
    """
    flags = {field: _parameter(spec, field, help_from, names.get(field, ())) for field in spec.model_fields}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name != argument]
        assert not {parameter.name for parameter in own} & set(flags), (
            "a flag of the command's own is a field"
        )

        @functools.wraps(command)
        def with_flags(**given: Any) -> None:
            fields = {field: _read(spec, field, given.pop(field)) for field in flags}
            command(**given, **{argument: build(spec, fields)})

        parameters = [*own, *flags.values()]
        with_flags.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_flags

    return decorate


def _is_tuple(annotation: Any) -> bool:
    return any(get_origin(option) is tuple for option in (annotation, *get_args(annotation)))


def _parameter(
    spec: type[BaseModel], field: str, help_from: type[BaseModel] | None, more: Sequence[str]
) -> inspect.Parameter:
    """The field as a keyword parameter that typer reads."""
    info = spec.model_fields[field]
    described = info.description or (help_from.model_fields[field].description if help_from else None)
    required = info.default is PydanticUndefined
    plain = str | None if _is_tuple(info.annotation) else info.annotation
    spelled = [flag_name(field), *more] if plain != bool | None else []
    option = typer.Option(
        *spelled, help=described or field.replace("_", " "), show_default=info.default is not None
    )
    return inspect.Parameter(
        field,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else info.default,
        annotation=Annotated[plain, option],
    )


def _read(spec: type[BaseModel], field: str, given: Any) -> Any:
    """A comma-separated flag as the tuple that its field wants; anything else as it is."""
    annotation = spec.model_fields[field].annotation
    if given is None or not _is_tuple(annotation):
        return given
    parts = [part.strip() for part in given.split(",")]
    holder = next(option for option in (annotation, *get_args(annotation)) if get_origin(option) is tuple)
    if get_args(holder)[0] is not int:
        return tuple(parts)
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise SeqplanError(
            f"{flag_name(field)} {given} is not a list of whole numbers.",
            "Write it as 8,8,7,7: one for each stage.",
        )
    return tuple(int(part) for part in parts)
