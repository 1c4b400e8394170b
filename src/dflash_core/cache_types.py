"""The types in which keys and values are stored: their names, and the bytes per position.

A row is one head's keys, or values, of one position. The integer types cut it into groups of GROUP numbers with a scale
of two bytes each; models/cache_rows.py says how, kernels/kv_packed.cuh is its twin on a card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash_core.errors import KnobError

GROUP = 32
CHUNK_BYTES = 16  # rows are moved in chunks of so many bytes


@dataclass(frozen=True, slots=True)
class CacheType:
    """One type. A code has `low` bits that are packed side by side and `high` bits in planes of their own; a float
    has no codes, but `bytes` per number. `rotated`: keys are kept as their Hadamard transform, which spreads the few
    large numbers of a head over all of them."""

    name: str
    low: int = 0
    high: int = 0
    rotated: bool = False
    bytes: int = 0

    def row_bytes(self, numbers: int) -> int:
        """Bytes of a head's row of `numbers` numbers."""
        if self.bytes:
            return numbers * self.bytes
        groups = -(-numbers // GROUP)
        codes = -(-groups // (8 // self.low)) * GROUP + self.high * groups * GROUP // 8
        return -(-(codes + 2 * groups) // CHUNK_BYTES) * CHUNK_BYTES


TYPES = {
    one.name: one
    for one in (
        CacheType("f16", bytes=2),
        CacheType("bf16", bytes=2),
        CacheType("q8_0", low=8),
        CacheType("q5_0", low=4, high=1, rotated=True),
        CacheType("q4_0", low=4, rotated=True),
        CacheType("tq3_0", low=2, high=1, rotated=True),
    )
}
"""By the names that users know."""


@dataclass(frozen=True, slots=True)
class CachePair:
    """The type of the keys and the type of the values."""

    k: CacheType
    v: CacheType

    @staticmethod
    def parse(text: str) -> CachePair:
        """`TYPE` or `K/V`. Raises KnobError."""
        names = text.split("/")
        types = [TYPES.get(name.strip().lower()) for name in names]
        k, v = types[0], types[-1]
        if len(names) > 2 or k is None or v is None:
            found = f"cache type {text!r}" if text else "no cache type"
            raise KnobError(f"{found}: expected auto, or one of {', '.join(TYPES)}, or two as K/V")
        return CachePair(k, v)

    def __str__(self) -> str:
        return self.k.name if self.k == self.v else f"{self.k.name}/{self.v.name}"

    def row_bytes(self, numbers: int) -> int:
        """Bytes of the keys and the values of one head at one position."""
        return self.k.row_bytes(numbers) + self.v.row_bytes(numbers)

    @property
    def windowed(self) -> CachePair:
        """For a drafter's layers with a window: they keep few positions, so always floats, whatever others use."""
        return self if self == EXACT else F16


F16 = CachePair.parse("f16")
EXACT = CachePair(*[CacheType("f32", bytes=4)] * 2)
"""Floats of the model's own type: the default of the CPU reference; GPUs do not offer it."""


def named(text: str) -> CachePair:
    """Like `CachePair.parse`, and also takes the name of EXACT. Raises KnobError."""
    return EXACT if text == str(EXACT) else CachePair.parse(text)


AUTO = "auto"
DIVERGENCE: Mapping[str, float] = {
    "f32": 0, "f16": 0, "bf16": 1.27e-7, "q8_0": 1.28e-6, "q8_0/q5_0": 2.75e-5, "q5_0": 4.35e-5, "q8_0/q4_0": 1.30e-4,
    "q5_0/q4_0": 1.52e-4, "q4_0": 1.79e-4, "q4_0/tq3_0": 6.07e-4, "tq3_0": 7.45e-4,
}  # fmt: skip
"""Mean KL divergence in nats of the demo target's logits from those of a cache of halves:
docs/notes/precision.md, types of caches."""
AUTO_PAIRS: Sequence[CachePair] = tuple(map(CachePair.parse, ("f16", "q8_0", "q8_0/q5_0", "q5_0", "q5_0/q4_0", "q4_0")))
"""On a GPU `auto` takes the first of these with which the context fits: by their divergence, without those that others
beat in fewer bits. Three bits cost more accuracy than rounded activations do, so they are used only on request."""


KV_HELP = f"auto, {', '.join(TYPES)}, or two as K/V"


def checked(text: str) -> str:
    """`auto`, or a pair in its shortest spelling. Raises KnobError."""
    plain = text.strip().lower()
    return plain if plain == AUTO else str(CachePair.parse(plain))


@dataclass(frozen=True, slots=True)
class CacheChoice:
    """A chosen pair of cache types, and why; `why` is empty where the user named it."""

    pair: CachePair
    why: str = ""

    def __str__(self) -> str:
        return f"{self.pair} ({self.why})" if self.why else str(self.pair)
