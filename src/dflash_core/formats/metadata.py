"""Typed, range-checked access to the settings in files: GGUF metadata and config.json; and those that no reader has
looked up.

A setting may change the result: one that is not followed is refused by name. Settings that are known to be harmless and
values that change nothing are accepted; a note names the latter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.weights import listed, shown

MAX_EPS = 1.0
"""The upper bound of a norm's epsilon: in files it is about 1e-6; near 1 a norm's output would be useless."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Key-value pairs of a file. If a getter takes several names, the first one present is used.

    A name is looked up under `prefix` first and then as it is. JSON's null counts as absent. `read`: every key that
    was looked up, here and in the parts made with `part`; the others can then be refused (`check_unread`).
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
        key = self.find(*names)
        return None if key is None else self.values[key]

    def integer(self, *names: str, low: int = 1, high: int = 1 << 24, default: int | None = None) -> int:
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

    def per_layer(self, name: str, count: int) -> tuple[int, ...]:
        """A whole number for each of `count` layers: a list, or one for all of them."""
        whole = self._whole(0, 1 << 24)

        def fits(value: Any) -> bool:
            return len(value) == count and all(map(whole, value)) if _is_list(value) else bool(whole(value))

        value = self._checked((name,), fits, f"a whole number, or a list of {count} of them", None)
        return tuple(value) if isinstance(value, list) else (value,) * count

    def uniform(self, *names: str, low: int = 1, default: int | None = None) -> int:
        """A whole number, or a list of it for each layer, with or without the MTP blocks. Layers that do not use it may
        hold 0."""
        whole = self._whole(low, 1 << 24)
        # Not looked up: an architecture without MTP blocks refuses a file that says it has some.
        blocks, nextn = (self.values.get(self.prefix + one, 0) for one in ("block_count", "nextn_predict_layers"))
        counts = range(blocks - nextn, blocks + 1) if blocks and type(blocks) is type(nextn) is int else range(1025)

        def fits(value: Any) -> bool:
            if not _is_list(value):
                return bool(whole(value))
            used = [item for item in value if item != 0]
            return len(value) in counts and bool(used) and all(whole(item) and item == used[0] for item in used)

        value = self._checked(names, fits, "one whole number, the same for all layers, or a list of it", default)
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


HARMLESS = frozenset({
    "context_length", "vocab_size",
    "attention.layer_norm_epsilon",  # the norms are RMS norms, which have an epsilon of their own
    "full_attention_interval",  # where the file lists its layers
    "feed_forward_length",  # of a model of experts
    "expert_shared_count",  # expert_shared_feed_forward_length is the width of all of them
    # What scaled positions need, where a file has it without scaling.
    "rope.scaling.finetuned", "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    # Windows: without `attention.sliding_window` these have no effect.
    "attention.sliding_window_pattern", "rope.freq_base_swa", "rope.dimension_count_swa",
    # Images: for text all axes of a rotary position are the same.
    "rope.dimension_sections", "mrope_sections", "rope.mrope_section", "rope.mrope_interleaved",
    "n_deepstack_layers", "vision.", "image_token_id", "vision_start_token_id", "vision_end_token_id",
})  # fmt: skip
"""Settings that change nothing for text, whatever their value, in all architectures. A name that ends in a dot stands
for all that begin so."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "ssm.v_head_reordered": (True,),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "moe_every_n_layers": (0, 1),
    "tensor_data_layout": ("reference", "Meta AI original pth"),  # the latter: as all files of Llama have it
}
"""Values that change nothing, where 0 and false (of a factor also 1) are not the ones."""
FACTOR = re.compile(r"(scale|scaling|multiplier|factor)$")
TRANSFORMED = re.compile(r"hadamard|quarot|spinquant|rotation_matri", re.IGNORECASE)
"""Keys of weights that were rotated: activations must be rotated before they are multiplied."""
OTHER_NAMES = ("general.", "tokenizer.", "quantize.", "split.")


def check_unread(keys: Settings, harmless: Iterable[str] = ()) -> tuple[str, ...]:
    """Check the settings under `keys.prefix` that no reader has looked up. Returns notes for the user.

    harmless: further names of harmless settings; one that ends in a dot stands for all that begin so. Raises
    UnsupportedError for a setting that may change the result.
    """
    check_transformed(keys)
    allowed = {*HARMLESS, *harmless}
    neutral, parts = [], tuple(name for name in allowed if name.endswith("."))
    for key, value in keys.values.items():
        name = key.removeprefix(keys.prefix)
        if not key.startswith(keys.prefix) or key in keys.read or name in allowed or name.startswith(parts):
            continue
        if not is_neutral(name, value, keys):
            raise not_followed(keys.source, key, value)
        neutral.append(f"{shown(key)} ({shown(repr(value))})")
    return (f"settings without effect: {listed(neutral)}",) if neutral else ()


def check_transformed(keys: Settings) -> None:
    """Raises UnsupportedError for weights that were rotated."""
    rotated = [key for key in keys.values if TRANSFORMED.search(key) and not key.startswith(OTHER_NAMES)]
    if rotated:
        raise UnsupportedError(
            f"{keys.source}: its weights are transformed ({listed(rotated, 2)}), expected plain ones, without which it"
            " would run as noise; use the model's plain file"
        )


def not_followed(source: str, key: str, value: Any) -> UnsupportedError:
    """The refusal of a setting."""
    return UnsupportedError(
        f"{source}: {shown(key)} is {shown(repr(value))}, expected a file without it: it may change the result, and is"
        " not followed here; use another file of the model"
    )


def is_neutral(name: str, value: Any, keys: Settings) -> bool:
    """Whether a setting changes nothing with this value: 0, false, empty, 1 for a factor, or what is done anyway."""
    if isinstance(value, list):
        return all(is_neutral(name, item, keys) for item in value)
    if name in NEUTRAL:
        return value in NEUTRAL[name]
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name == "attention.scale" and isinstance(head := keys.get("attention.key_length"), int) and head > 0:
            return value == 0 or math.isclose(value, head**-0.5, rel_tol=1e-5)
        if name == "attention.sliding_window" and isinstance(context := keys.get("context_length"), int):
            return value == 0 or value >= context
        if value == 1 and FACTOR.search(name):
            return True
    return value in (None, 0, "", "none")
