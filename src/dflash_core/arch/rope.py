"""Scaled rotary positions, which extend a model's context beyond that of its training, and their settings in files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.metadata import Settings
from dflash_core.formats.weights import shown

PLAIN = (None, "none", "default", "mrope")
"""The last one has several axes, which are all the same for text."""
SCALING = "rope.scaling"
"""The setting with a scaling that was read already, of a folder."""
FAST, SLOW = 32.0, 1.0  # turns, by default


@dataclass(frozen=True, slots=True)
class Linear:
    """Every angle is divided by `factor`."""

    factor: float
    attention: ClassVar[float] = 1.0
    """The factor of cosines and sines."""

    def describe(self) -> str:
        return f"rotary positions divided by {self.factor:g}"

    def shares(self, pairs: int, base: float) -> tuple[float, ...]:
        """What the frequency of each of `pairs` pairs is multiplied by: pair i has base^(-i / pairs) without."""
        return (1 / self.factor,) * pairs


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN: pairs that turn less than `slow` times within `original` positions are slowed down by `factor`, those that
    turn more than `fast` times are not, those between them in part.

    attention: the factor of cosines and sines. truncate: whether that range ends at whole pairs.
    """

    factor: float
    original: int
    attention: float
    fast: float = FAST
    slow: float = SLOW
    truncate: bool = True

    @property
    def positions(self) -> int:
        """The context for which positions are scaled."""
        return int(self.factor * self.original)

    def describe(self) -> str:
        return f"YaRN, {self.factor:g} times {self.original:,} positions"

    def shares(self, pairs: int, base: float) -> tuple[float, ...]:
        """What the frequency of each of `pairs` pairs is multiplied by: pair i has base^(-i / pairs) without."""

        def pair(turns: float) -> float:  # which turns this many times
            return pairs * math.log(self.original / (turns * 2 * math.pi)) / math.log(base)

        low, high = pair(self.fast), pair(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        width = high - low or 0.001
        slowed = (min(max((index - low) / width, 0.0), 1.0) for index in range(pairs))
        return tuple(part / self.factor + 1 - part for part in slowed)


@dataclass(frozen=True, slots=True)
class Llama3:
    """Llama 3's scaling: waves longer than `original` / `low` positions are slowed down by `factor`, those shorter than
    `original` / `high` are not, those between them in part. A GGUF file has its results as a tensor instead."""

    factor: float
    original: int
    low: float
    high: float
    attention: ClassVar[float] = 1.0

    def describe(self) -> str:
        return f"Llama 3 scaling, {self.factor:g} times {self.original:,} positions"

    def shares(self, pairs: int, base: float) -> tuple[float, ...]:
        """What the frequency of each of `pairs` pairs is multiplied by: pair i has base^(-i / pairs) without."""

        def share(index: int) -> float:
            turns = self.original / (2 * math.pi * math.pow(base, index / pairs))
            unscaled = min(max((turns - self.low) / (self.high - self.low), 0.0), 1.0)
            return unscaled + (1 - unscaled) / self.factor

        return tuple(map(share, range(pairs)))


@dataclass(frozen=True, slots=True)
class Unrotated:
    """Nothing turns: a layer that knows no positions."""

    attention: ClassVar[float] = 1.0

    def describe(self) -> str:
        return "no positions"

    def shares(self, pairs: int, base: float) -> tuple[float, ...]:
        """What the frequency of each of `pairs` pairs is multiplied by: pair i has base^(-i / pairs) without."""
        return (0.0,) * pairs


@dataclass(frozen=True, slots=True)
class LongRope:
    """LongRoPE: a tensor of the file divides the frequencies, for contexts of more than `original` positions; here
    for shorter ones too, since cached keys stay as they are when a context grows.

    attention: the factor of cosines and sines.
    """

    original: int
    attention: float

    def describe(self) -> str:
        return f"LongRoPE, as for contexts of more than {self.original:,} positions"

    def shares(self, pairs: int, base: float) -> tuple[float, ...]:
        """What the frequency of each of `pairs` pairs is multiplied by: pair i has base^(-i / pairs) without."""
        return (1.0,) * pairs


UNROTATED = Unrotated()
Scaling = Linear | Yarn | Llama3 | Unrotated | LongRope


def usual_attention(factor: float) -> float:
    """The default factor of cosines and sines, by the paper."""
    return 0.1 * math.log(factor) + 1 if factor > 1 else 1.0


def gguf_scaling(keys: Settings, base: float, truncate: bool = True) -> Scaling | None:
    """The scaling in a GGUF file. `truncate`: see Yarn; no setting says it. Raises FormatError, and
    UnsupportedError for an unknown kind."""
    if isinstance(keys.values.get(keys.prefix + SCALING), Linear | Yarn | LongRope):
        read: Linear | Yarn | LongRope = keys.get(SCALING)
        return read
    factor, attention = ("rope.scaling.factor", "rope.scale_linear"), ("yarn_attn_factor", "attn_factor")
    kind, given = keys.get("rope.scaling.type"), bool(keys.get(*factor))  # some programs write 0 for none
    if kind in (None, "linear"):
        kind = "linear" if given else None  # a factor without a type means scaled positions
    found = keys.get("rope.scaling.yarn_ext_factor")
    if found not in (None, 1.0, -1.0):
        raise UnsupportedError(
            f"{keys.source}: rope.scaling.yarn_ext_factor is {found!r}, expected 1; this scaling of rotary positions"
            " cannot run here"
        )
    inner = keys.part(prefix=keys.prefix + "rope.scaling.")
    times = inner.number(*attention) if inner.get(*attention) else None
    if times is None and kind == "yarn" and inner.get("yarn_log_multiplier"):
        times = _attention(keys.number(*factor), 1.0, inner.number("yarn_log_multiplier"))
    if kind != "yarn" and times not in (None, 1.0):
        raise UnsupportedError(
            f"{keys.source}: {inner.find(*attention)} is {times:g} without YaRN, expected 1; this scaling of rotary"
            " positions cannot run here"
        )
    return _scaling(
        inner, kind, base, times, truncate, ("none", "linear", "yarn"),
        factor=lambda: keys.number(*factor),
        original=lambda: _length(inner, "original_context_length", keys.prefix + "context_length"),
    )  # fmt: skip


def json_scaling(keys: Settings, base: float) -> Scaling | None:
    """What a config.json says under rope_scaling or, as newer ones do, rope_parameters. Raises as `gguf_scaling`."""
    found = keys.get("rope_scaling") or keys.get("rope_parameters") or {}
    if not isinstance(found, Mapping):
        raise FormatError(f"{keys.source}: rope_scaling is {str(found)[:40]!r}, expected an object")
    inner = keys.part(values=found)

    def original() -> int:
        name = "original_max_position_embeddings"
        return _length(inner if inner.find(name) else keys, name, "max_position_embeddings")

    def factor() -> float:
        if inner.find("factor") or inner.get("rope_type", "type") != "yarn":
            return inner.number("factor")
        return _length(keys, "max_position_embeddings") / original()

    attention = inner.number("attention_factor") if inner.find("attention_factor") else None
    if attention is None and inner.get("mscale") and inner.get("mscale_all_dim"):
        attention = _attention(factor(), inner.number("mscale"), inner.number("mscale_all_dim"))
    truncate = inner.flag("truncate") is not False
    known = ("none", "linear", "yarn", "llama3")
    return _scaling(inner, inner.get("rope_type", "type"), base, attention, truncate, known, factor, original)


def _attention(factor: float, scale: float, scale_all: float) -> float:
    """The factor of cosines and sines where a file has a scale of its logarithm for them, and one for all of a head."""
    more = usual_attention(factor) - 1
    return (1 + more * scale) / (1 + more * scale_all)


def _length(keys: Settings, *names: str) -> int:
    return keys.integer(*names, high=1 << 40)


def _scaling(
    keys: Settings, kind: object, base: float, attention: float | None, truncate: bool, known: Sequence[str],
    factor: Callable[[], float], original: Callable[[], int],
) -> Scaling | None:  # fmt: skip
    """Of the kind `kind`, one of `known`, with what its file says, which is read where the kind needs it."""
    source = keys.source
    if kind in PLAIN:
        return None
    if kind not in known:
        raise UnsupportedError(
            f"{source} scales its rotary positions by {shown(str(kind))}, expected {', '.join(known[:-1])} or"
            f" {known[-1]}; use the model's plain file"
        )
    times = factor()
    if times < 1:
        raise FormatError(f"{source}: rotary positions are scaled by {times:g}, expected at least 1; convert it again")
    if kind == "linear":
        return Linear(times) if times != 1 else None
    if kind == "llama3":
        low, high = keys.number("low_freq_factor"), keys.number("high_freq_factor")
        if low >= high:
            raise FormatError(
                f"{source}: Llama 3 scales positions between {low:g} and {high:g} turns, expected a range; convert the"
                " model again"
            )
        return Llama3(times, original(), low, high)
    fast = keys.number("yarn_beta_fast", "beta_fast", default=FAST)
    slow = keys.number("yarn_beta_slow", "beta_slow", default=SLOW)
    if fast < slow or base <= 1:
        found = f"between {slow:g} and {fast:g} turns" if base > 1 else f"with a rotary base of {base:g}"
        expected = "a range" if base > 1 else "a base over 1"
        raise FormatError(f"{source}: YaRN scales {found}, expected {expected}; convert the model again")
    if times == 1 and attention in (None, 1.0):
        return None
    return Yarn(times, original(), usual_attention(times) if attention is None else attention, fast, slow, truncate)
