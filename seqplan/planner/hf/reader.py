"""ConfigReader: takes checked values out of a config.json and remembers all that is wrong or was assumed.

It never stops at the first fault: a faulty value is noted and a harmless stand-in returned, so that one error
at the end names every missing key, wrong type and broken rule. A value that the file leaves out comes from
the family's documented default, or follows from another key, and both are noted.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from seqplan.planner.errors import SeqplanError
from seqplan.planner.reading.read_json import kind_of

Fields = dict[str, Any]
"""Fields of a ModelSpec."""

CORE = ("num_hidden_layers", "hidden_size", "num_attention_heads")
"""What makes a model that model: never taken from a default, except in a nested config, which by
transformers' convention holds only what differs from its class's defaults."""

LARGEST_SIZE = 2**31 - 1
MOST_LAYERS = 100_000


@cache
def family_defaults() -> dict[str, Any]:
    """Defaults of transformers' config classes: model_type -> key -> value, and "source"."""
    found = json.loads(Path(__file__).with_name("defaults.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def show(value: Any) -> str:
    """A value as an error shows it: as JSON writes it where it can, and never long."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=repr)
    return text if len(text) <= 40 else f"{text[:37]}..."


class ConfigReader:
    """Values of one config, by the names that its family uses for them."""

    def __init__(
        self,
        data: Mapping[str, Any],
        defaults: Mapping[str, Any],
        names: Mapping[str, tuple[str, ...]],
        nested: bool,
    ) -> None:
        self.data = data
        self.names = names
        self.nested = nested
        self.used: set[str] = set()
        self.missing: list[str] = []
        self.errors: list[str] = []
        self.failed: set[str] = set()
        self.taken: list[str] = []
        self.notes: list[str] = []
        self.defaults = defaults

    def spellings(self, name: str) -> tuple[str, ...]:
        """The keys under which this family gives the value, its own first."""
        return self.names.get(name, (name,))

    def key(self, name: str) -> str:
        """The key that the file uses for this value, else the family's own."""
        known = self.spellings(name)
        return next((key for key in known if key in self.data), known[0])

    def raw(self, name: str) -> Any:
        """The value as it stands, None where it is absent or null; two spellings of it must agree."""
        known = self.spellings(name)
        self.used.update(known)
        given = [key for key in known if self.data.get(key) is not None]
        if any(self.data[key] != self.data[given[0]] for key in given[1:]):
            self._fail(name, f"{' and '.join(f'{key} {show(self.data[key])}' for key in given)} disagree")
        return self.data[given[0]] if given else None

    def has(self, name: str) -> bool:
        """Whether the file gives a value that is not null."""
        return self.raw(name) is not None

    def ignore(self, *names: str) -> None:
        """These keys are known and have no effect here."""
        self.used.update(names)

    def over(self, data: Mapping[str, Any]) -> ConfigReader:
        """The same reader on other data: what it finds wrong or assumes is noted here too."""
        child = copy.copy(self)
        child.data = data
        return child

    def ok(self, *names: str) -> bool:
        """Whether these were read without a fault, so that rules between them make sense."""
        return not self.failed.intersection(names)

    def _fail(self, name: str, text: str) -> None:
        if name not in self.failed:
            self.failed.add(name)
            self.errors.append(text)

    def _default(self, name: str) -> Any:
        """The family's documented default, noted; None where it has none or it may not be used."""
        if name in CORE and not self.nested:
            return None
        value = next(
            (self.defaults[key] for key in (*self.spellings(name), name) if key in self.defaults), None
        )
        if value is not None and self.key(name) not in self.data:
            self.taken.append(f"{self.key(name)} {show(value)}")
        return value

    def _lacks(self, name: str) -> None:
        """A required value is absent or null."""
        if self.key(name) in self.data:
            self._fail(name, f"{self.key(name)} is null")
        elif name not in self.failed:
            self.failed.add(name)
            self.missing.append(self.key(name))

    def size(self, name: str, otherwise: int | None = None, because: str = "") -> int:
        """A whole number from 1. Absent: the default, else `otherwise` (told by `because`), else a fault."""
        value = self.raw(name)
        if value is None:
            absent = self.key(name) not in self.data
            value = self._default(name) if absent else None
            if value is None and otherwise is not None:
                if absent and because:
                    self.taken.append(f"{self.key(name)} {otherwise} (= {because})")
                return otherwise
        if value is None:
            self._lacks(name)
            return 1
        return self._whole(name, value, 1)

    def optional_size(self, name: str, lowest: int = 1) -> int | None:
        """A whole number, or None where the file says null, or neither file nor default says anything."""
        value = self.raw(name)
        if value is None and self.key(name) not in self.data:
            value = self._default(name)
        return None if value is None else self._whole(name, value, lowest)

    def _whole(self, name: str, value: Any, lowest: int) -> int:
        key = self.key(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._fail(name, f"{key} is {show(value)}, {kind_of(value)}, not a whole number")
        elif isinstance(value, float) and not math.isfinite(value):
            what = "not a number" if math.isnan(value) else "not finite (a number too large for a float)"
            self._fail(name, f"{key} is {what}")
        elif value != int(value):
            self._fail(name, f"{key} is {value}, not a whole number")
        elif value < lowest:
            self._fail(name, f"{key} is {show(value)} but must be at least {lowest}")
        elif value > (limit := MOST_LAYERS if name == "num_hidden_layers" else LARGEST_SIZE):
            self._fail(name, f"{key} is {float(value):.3g}, out of range (at most {limit:,})")
        else:
            return int(value)
        return max(lowest, 1)

    def number(self, name: str, otherwise: float | None = None) -> float:
        """A positive finite number."""
        value = self.optional_number(name)
        if value is None:
            if otherwise is None:
                self._lacks(name)
            return 1.0 if otherwise is None else otherwise
        return value

    def optional_number(self, name: str) -> float | None:
        """A positive finite number, or None where there is none."""
        value = self.raw(name)
        if value is None and self.key(name) not in self.data:
            value = self._default(name)
        if value is None:
            return None
        key = self.key(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._fail(name, f"{key} is {show(value)}, {kind_of(value)}, not a number")
        elif not math.isfinite(value):
            self._fail(name, f"{key} is not a finite number")
        elif value <= 0:
            self._fail(name, f"{key} is {show(value)} but must be positive")
        else:
            return float(value)
        return 1.0

    def flag(self, name: str, otherwise: bool = False) -> bool:
        """True or false; null counts as absent."""
        value = self.raw(name)
        if value is None:
            known = next(
                (self.defaults[key] for key in self.spellings(name) if key in self.defaults), otherwise
            )
            value = self._default(name) if name == "tie_word_embeddings" else known
            if value is None:
                self._lacks(name)
                return otherwise
        if not isinstance(value, bool):
            self._fail(name, f"{self.key(name)} is {show(value)}, {kind_of(value)}, not true or false")
            return otherwise
        return value

    def choice(self, name: str, table: Mapping[str, str]) -> str:
        """A word of `table`, translated by it."""
        value = self.raw(name)
        if value is None:
            value = self._default(name)
        if value is None:
            self._lacks(name)
        elif isinstance(value, str) and value in table:
            return table[value]
        else:
            known = ", ".join(table)
            self._fail(name, f"{self.key(name)} is {show(value)}; known are {known}")
        return next(iter(table.values()))

    def words(self, name: str) -> list[str] | None:
        """A list of words, or None."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            return value
        self._fail(name, f"{self.key(name)} is {show(value)}, not a list of words")
        return None

    def mapping(self, name: str) -> dict[str, Any] | None:
        """An object, or None."""
        value = self.raw(name)
        if value is None and self.key(name) not in self.data:
            value = self._default(name)
        if value is None or isinstance(value, dict):
            return value
        self._fail(name, f"{self.key(name)} is {show(value)}, {kind_of(value)}, not an object")
        return None

    def error(self, text: str) -> None:
        """A rule between values is broken, or an option is not covered."""
        self.errors.append(text)

    def finish(self, where: str, family: str, odd: list[str]) -> None:
        """Raises all faults as one error; what is only odd goes into its hint, where it may explain them."""
        parts = []
        if self.missing:
            parts.append(f"missing {', '.join(self.missing)}")
        parts += self.errors
        if parts:
            them = "them" if len(self.missing) > 1 else "it"
            hints = [f"No default is taken for {them}."] if self.missing else []
            hints += [f"Also odd: {', '.join(odd)}."] if odd else []
            raise SeqplanError(f"{where}: {'; '.join(parts)} (model_type {family}).", " ".join(hints))
