"""What an operator's result looks like, remembered by what its arguments look like: a simulation's speed.

torch's fake tensors work it out with the operator's decompositions, or look it up by some twenty properties
of every argument (0.15 ms an operator, most of a simulation). Here the key is operator, shapes, strides and
dtypes, which is all that differs between our tensors: no symbolic sizes, one device. Remembered are only
operators that make one new tensor, write their first argument or return one view of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

CPU = torch.device("cpu")
PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)

Shape = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, int]
"""Sizes, strides, dtype and the place of its first element in the storage."""


class _UnknownError(Exception):
    """An argument that no key can be made of."""


class KnownResults:
    """Asked before an operator runs (`known`), told after it has (`learn`)."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[Any, ...], Shape | None] = {}
        """None: the first argument, written in place."""

    @staticmethod
    def key(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Decides what the result looks like; None where nothing can be remembered."""
        numbers = _number_places(operator)
        if numbers is None or not args or type(args[0]) is not FakeTensor:
            return None
        try:
            described = [
                type(value) if place in numbers else _described(value) for place, value in enumerate(args)
            ]
            if operator.is_view:
                described.append(args[0].storage_offset())
            return (operator, *described, *((name, _described(value)) for name, value in kwargs.items()))
        except _UnknownError:
            return None

    def known(self, key: tuple[Any, ...], args: Sequence[Any]) -> Tensor | None:
        """A result like that of an equal call before; None if there was none."""
        if key not in self._shapes:
            return None
        shape = self._shapes[key]
        first: FakeTensor = args[0]
        if shape is None:
            return first
        with in_kernel_invocation_manager(first.fake_mode):
            empty = torch.empty_strided(shape[0], shape[1], dtype=shape[2], device="meta")
            if key[0].is_view:
                empty.set_(first.untyped_storage(), shape[3], shape[0], shape[1])
        return FakeTensor(first.fake_mode, empty, CPU)

    def learn(self, key: tuple[Any, ...], args: Sequence[Any], result: Any) -> None:
        """Remembers a result, unless it is a view whose operator does not say so (_unsafe_view)."""
        if result is args[0]:
            self._shapes[key] = None
            return
        if type(result) is not FakeTensor or key[0]._schema.is_mutable:
            return
        storage, place = result.untyped_storage(), int(result.storage_offset())
        if key[0].is_view:
            remembered = storage._cdata == args[0].untyped_storage()._cdata
        else:
            elements = 1 + sum((n - 1) * s for n, s in zip(result.shape, result.stride(), strict=True))
            whole = storage.nbytes() == (elements * result.itemsize if result.numel() else 0)
            remembered = whole and storage._cdata not in {x.untyped_storage()._cdata for x in _tensors(args)}
        if remembered and result.device == CPU:
            self._shapes[key] = tuple(result.shape), result.stride(), result.dtype, place


@cache
def _number_places(operator: Any) -> frozenset[int] | None:
    """Arguments of which only the type matters; None for an operator that is not remembered."""
    schema = operator._schema
    if operator.namespace != "aten" or len(schema.returns) != 1 or str(schema.returns[0].type) != "Tensor":
        return None
    if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(operator.tags):
        return None
    aliased = [place for place, argument in enumerate(schema.arguments) if argument.alias_info is not None]
    if aliased not in ([], [0]) or (aliased and schema.returns[0].alias_info is None):
        return None
    return frozenset(place for place, each in enumerate(schema.arguments) if str(each.type) == "number")


def _described(value: Any) -> Any:
    if type(value) is FakeTensor:
        if value.constant is not None:  # its value may decide
            raise _UnknownError
        return value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return tuple(_described(each) for each in value)
    if not isinstance(value, PLAIN):
        raise _UnknownError
    return type(value), value


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    found = [value for value in values if isinstance(value, Tensor)]
    for value in values:
        if isinstance(value, list | tuple):
            found += _tensors(value)
    return found
