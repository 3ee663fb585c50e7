"""From pydantic's ValidationError to one line in plain words: every broken key, its value and its rule."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from seqplan.planner.errors import SeqplanError
from seqplan.planner.reading.strict_yaml import MAX_PROBLEMS, kind_of, shorten

_Model = TypeVar("_Model", bound=BaseModel)

MOST_KEYS = 20
"""Known keys that an error lists where none is near the unknown one."""

_WANTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a group of keys",
    "model_type": "a group of keys",
    "model_attributes_type": "a group of keys",
    "none_required": "null",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
    "multiple_of": ("a multiple of", "multiple_of"),
}


def validate_spec(
    spec: type[_Model], data: Mapping[str, Any], where: str, foreign: Mapping[str, str] | None = None
) -> _Model:
    """`data`, as YAML or JSON gives it, as a `spec`; or one SeqplanError with all that is wrong.

    `foreign` maps keys of other tools to what ours are called; it is shown when such a key is found.
    """
    try:
        return spec.model_validate(_with_tuples(data))
    except ValidationError as error:
        raise from_validation_error(error, where, spec, foreign) from None


def from_validation_error(
    error: ValidationError,
    where: str,
    spec: type[BaseModel] | None = None,
    foreign: Mapping[str, str] | None = None,
) -> SeqplanError:
    """One SeqplanError that lists every broken key; with `spec`, unknown keys get the nearest known one."""
    problems = problems_of(error, spec, foreign)
    more = len(problems) - MAX_PROBLEMS
    listed = "; ".join(problems[:MAX_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
    return SeqplanError(f"{where}: {listed}.")


def problems_of(
    error: ValidationError,
    spec: type[BaseModel] | None = None,
    foreign: Mapping[str, str] | None = None,
    skip: Collection[str] = (),
) -> list[str]:
    """Each broken key as `key = value must be ...`, missing keys gathered into one entry.

    Top-level keys in `skip` are left out: what is wrong with them was said before.
    """
    details = [each for each in error.errors(include_url=False) if not {*each["loc"][:1]} & {*skip}]
    missing = [detail for detail in details if detail["type"] == "missing"]
    problems = [_problem(detail, spec, foreign or {}) for detail in details if detail["type"] != "missing"]
    if missing:
        names = ", ".join(_path(detail["loc"]) for detail in missing)
        problems.append(f"missing {names}")
    return list(dict.fromkeys(problems))


def nearest(name: str, known: Sequence[str], cutoff: float = 0.6) -> str:
    """`did you mean X?` for the closest known name, or nothing."""
    by_folded = {each.casefold(): each for each in known}
    found = difflib.get_close_matches(name.casefold(), list(by_folded), n=1, cutoff=cutoff)
    return f"did you mean {by_folded[found[0]]}?" if found else ""


def _problem(detail: ErrorDetails, spec: type[BaseModel] | None, foreign: Mapping[str, str]) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    path = _path(detail["loc"])
    named = f"{path} = {_shown(value)}" if path else "the whole"
    if kind == "extra_forbidden":
        return _unknown_key(detail["loc"], value, spec, foreign)
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"{named} must be {words} {context[bound]}"
    if kind in _WANTED:
        if _WANTED[kind] == "a whole number" and isinstance(value, float):
            return f"{named} must be a whole number"
        return f"{named} must be {_WANTED[kind]}, not {kind_of(value)}"
    if kind == "finite_number":
        return f"{named} must be a finite number"
    if kind == "literal_error":
        choices = str(context["expected"]).replace("'", "").replace(" or ", ", ")
        hint = nearest(value, choices.split(", ")) if isinstance(value, str) else ""
        if detail["loc"][-1] == "[key]":
            named = f"{_path(detail['loc'][:-2])} has the key {shorten(value)}, which"
        return f"{named} must be one of {choices}" + (f" ({hint})" if hint else "")
    message = str(context["error"]) if kind == "value_error" else detail["msg"]
    if isinstance(value, dict | list | tuple) and not _is_quantity(
        value
    ):  # a rule of the whole names its keys
        return f"{path}: {message}" if path else message
    return f"{named} {message}"


def _unknown_key(
    loc: tuple[int | str, ...], value: Any, spec: type[BaseModel] | None, foreign: Mapping[str, str]
) -> str:
    name, path = str(loc[-1]), _path(loc)
    if name in foreign:
        return f"unknown key {path} (here {_shown(value)}): write {foreign[name]}"
    parent = _model_at(spec, loc[:-1])
    known = sorted(field.alias or key for key, field in parent.model_fields.items()) if parent else []
    few = known if len(known) <= MOST_KEYS else []
    hint = nearest(name, known) or (f"known keys: {', '.join(few)}" if few else "")
    return f"unknown key {path}" + (f" ({hint})" if hint else "")


def _model_at(spec: type[BaseModel] | None, loc: Sequence[int | str]) -> type[BaseModel] | None:
    """The model class that the keys of `loc` lead to, as far as fields tell."""
    current: Any = spec
    for step in loc:
        field = getattr(current, "model_fields", {}).get(step) if isinstance(step, str) else None
        if field is None:
            continue
        current = _first_model(field.annotation)
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _first_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for each in get_args(annotation) if (model := _first_model(each)) is not None), None)


def _path(loc: Sequence[int | str]) -> str:
    """device.memory_bytes, stage_layers[2]"""
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return path


def _shown(value: Any) -> str:
    if _is_quantity(value):
        return _shown(value["value"])
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    return f'"{shorten(value)}"' if isinstance(value, str) else shorten(value)


def _is_quantity(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"value", "source"}


def _with_tuples(value: Any) -> Any:
    """Lists as tuples: the specs are frozen, and strict ones take no list."""
    if isinstance(value, Mapping):
        return {key: _with_tuples(each) for key, each in value.items()}
    return tuple(_with_tuples(each) for each in value) if isinstance(value, list | tuple) else value
