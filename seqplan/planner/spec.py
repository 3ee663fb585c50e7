"""The base of every specification: frozen, closed (an unknown key is an error) and strict about types."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """A frozen pydantic model that refuses unknown keys and booleans or strings where a number is meant."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())
