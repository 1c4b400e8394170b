"""Typed, range-checked access to the settings in files: GGUF metadata and config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dflash_core.errors import FormatError

MAX_EPS = 1.0
"""The upper bound of a norm's epsilon: in files it is about 1e-6; near 1 a norm's output would be useless."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Key-value pairs of a file. If a getter takes several names, the first one present is used.

    A name is looked up under `prefix` first and then as it is. JSON's null counts as absent. `read`: every key that
    was looked up, here and in the parts made with `part`; the others can then be refused (`formats/unread.py`).
    """

    source: str
    values: Mapping[str, Any]
    prefix: str = ""
    read: set[str] = field(default_factory=set, compare=False, repr=False)

    def part(self, values: Mapping[str, Any] | None = None, prefix: str | None = None) -> Settings:
        """Settings of the same file: those of a nested object, or under another prefix."""
        values, prefix = self.values if values is None else values, self.prefix if prefix is None else prefix
        return replace(self, values=values, prefix=prefix)

    def find(self, *names: str) -> str | None:
        """The full key of the first name that the file has."""
        keys = [key for name in names for key in (self.prefix + name, name)]
        self.read.update(keys)
        return next((key for key in keys if self.values.get(key) is not None), None)

    def get(self, *names: str) -> Any:
        """The raw value, or None."""
        key = self.find(*names)
        return None if key is None else self.values[key]

    def integer(self, *names: str, low: int = 1, high: int = 1 << 24, default: int | None = None) -> int:
        """A whole number from `low` to `high`."""
        return int(self._checked(names, self._whole(low, high), f"a whole number from {low:,} to {high:,}", default))

    def number(self, *names: str, high: float = 1e30, default: float | None = None) -> float:
        """A positive number under `high`, as the shortest decimal of its float32.

        GGUF stores float32, JSON decimals: so 1e-6 is the same number whichever file it comes from.
        """

        def fits(value: Any) -> bool:
            return isinstance(value, int | float) and not isinstance(value, bool) and 1e-30 < value < high

        expected = "a positive number" + (f" under {high:g}" if high < 1e30 else "")
        return float(str(np.float32(self._checked(names, fits, expected, default))))

    def text(self, *names: str, default: str | None = None) -> str:
        """Text for users and messages: one line without control characters."""
        value = str(self._checked(names, lambda value: isinstance(value, str), "text", default))
        return "".join(letter for letter in value[:200] if letter.isprintable())

    def integers(self, *names: str, low: int, high: int) -> tuple[int, ...]:
        """A list of one to 1024 whole numbers."""
        whole = self._whole(low, high)
        expected = f"a list of whole numbers from {low:,} to {high:,}"
        return tuple(self._checked(names, lambda v: _is_list(v) and all(map(whole, v)), expected, None))

    def flags(self, *names: str, count: int, fewer: int = 0) -> tuple[bool, ...]:
        """One flag per layer; a single flag applies to all of them. In a list 1 and 0 are true and false.

        fewer: entries that a list may lack at its end, where they are false.
        """

        def fits(value: Any) -> bool:
            return isinstance(value, bool) or (
                _is_list(value)
                and count - fewer <= len(value) <= count
                and all(isinstance(item, bool | int) and item in (0, 1) for item in value)
            )

        value = self._checked(names, fits, f"true or false, or a list of {count} of them", None)
        if isinstance(value, bool):
            return (value,) * count
        return (*map(bool, value), *(False,) * (count - len(value)))

    def flag(self, *names: str) -> bool | None:
        """True or false; None if the file does not have it."""
        return self.flags(*names, count=1)[0] if self.find(*names) else None

    def per_layer(self, name: str, count: int, fewer: int = 0, default: int | None = None) -> tuple[int, ...]:
        """A whole number for each of `count` layers: one for all of them, or a list, which may lack `fewer` entries at
        its end; the last one is repeated there."""
        whole = self._whole(0, 1 << 24)

        def fits(value: Any) -> bool:
            if not _is_list(value):
                return bool(whole(value))
            return count - fewer <= len(value) <= count and all(map(whole, value))

        value = self._checked((name,), fits, f"a whole number, or a list of {count} of them", default)
        found = value if isinstance(value, list) else [value]
        return (*found, *(found[-1],) * (count - len(found)))

    def uniform(self, *names: str, low: int = 1, default: int | None = None) -> int:
        """A whole number, or a per-layer list of it. Layers that do not use it may hold 0."""
        whole = self._whole(low, 1 << 24)

        def fits(value: Any) -> bool:
            if not _is_list(value):
                return bool(whole(value))
            used = [item for item in value if item != 0]
            return bool(used) and all(whole(item) and item == used[0] for item in used)

        value = self._checked(names, fits, "one whole number, the same for all layers", default)
        return max(value) if isinstance(value, list) else int(value)

    def check_divides(self, small_name: str, small: int, name: str, value: int) -> None:
        """Refuse a value that is not a multiple of another."""
        if value % small:
            raise FormatError(
                f"{self.source}: {name} is {value}, expected a multiple of {small_name} ({small}); convert it again"
            )

    def _checked(self, names: tuple[str, ...], fits: Any, expected: str, default: Any) -> Any:
        key = self.find(*names)
        if key is None:
            if default is None:
                raise FormatError(
                    f"{self.source} has no {self.prefix}{names[0]}, expected {expected}; convert it again"
                )
            return default
        value = self.values[key]
        if not fits(value):
            shown = repr(value)
            shown = shown if len(shown) <= 60 else shown[:60] + "..."
            raise FormatError(f"{self.source}: {key} is {shown}, expected {expected}; convert the model again")
        return value

    @staticmethod
    def _whole(low: int, high: int) -> Any:
        return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 1024
