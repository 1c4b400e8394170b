"""The types in which keys and values are stored: their names, and the bytes per position.

A row is one head's keys, or values, of one position. The integer types cut it into groups of GROUP numbers with a scale
of two bytes each; models/cache_rows.py says how, kernels/kv_packed.cuh is its twin on a card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dflash_core.errors import KnobError

GROUP = 32
CHUNK_BYTES = 16  # rows are moved in chunks of this many bytes
RECENT_STEP = 128  # positions: a multiple of every tile of attention
MIN_RECENT, MAX_RECENT = 256, 8192


@dataclass(frozen=True, slots=True)
class CacheType:
    """One type. A code has `low` bits that are packed side by side and `high` bits in planes of their own; a float
    has no codes, but `bytes` per number. `rotated`: keys are stored as their Hadamard transform, which spreads the few
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
    """The type of the keys and the type of the values. `recent`: how many of the last positions a row reads as halves
    all the same; 0 for none."""

    k: CacheType
    v: CacheType
    recent: int = 0

    @staticmethod
    def parse(text: str) -> CachePair:
        """`TYPE` or `K/V`, where packed also with `+N`. Raises KnobError."""
        names, plus, recent = text.partition("+")
        types = [TYPES.get(name.strip().lower()) for name in names.split("/")]
        k, v = types[0], types[-1]
        found = f"cache type {text!r}" if text else "no cache type"
        if len(types) > 2 or k is None or v is None:
            raise KnobError(f"{found}: expected {KV_HELP}")
        if not plus:
            return CachePair(k, v)
        if k.bytes or v.bytes:
            packed = ", ".join(name for name, one in TYPES.items() if not one.bytes)
            raise KnobError(f"{found}: expected packed types before +, {packed}, or two of them as K/V")
        sizes = range(MIN_RECENT, MAX_RECENT + 1, RECENT_STEP)
        if not recent.strip().isdecimal() or int(recent) not in sizes:
            limits = f"{MIN_RECENT} to {MAX_RECENT} in steps of {RECENT_STEP}"
            raise KnobError(f"{found}: expected a number of positions after +, {limits}")
        return CachePair(k, v, int(recent))

    def __str__(self) -> str:
        names = self.k.name if self.k == self.v else f"{self.k.name}/{self.v.name}"
        return f"{names}+{self.recent}" if self.recent else names

    def row_bytes(self, numbers: int) -> int:
        """Bytes of the keys and the values of one head at one position, without those of the recent window."""
        return self.k.row_bytes(numbers) + self.v.row_bytes(numbers)

    def border(self, position: int) -> int:
        """The first position that a row at `position` reads as halves, itself included: a multiple of RECENT_STEP, so
        at least `recent` positions are halves. It depends only on the position, so plain decoding, chains and trees
        read the same."""
        return max(position + 1 - self.recent, 0) // RECENT_STEP * RECENT_STEP

    def groups(self, begin: int, end: int) -> list[range]:
        """Positions begin..end in runs with one border each; all of them without a recent window."""
        found = []
        while begin < end:
            last = self.border(begin) + self.recent + RECENT_STEP - 1 if self.recent else end
            found.append(range(begin, min(last, end)))
            begin = found[-1].stop
        return found

    @property
    def most_recent(self) -> int:
        """Positions that are stored as halves between two passes, at most."""
        return self.recent + 2 * RECENT_STEP if self.recent else 0

    @property
    def past(self) -> CachePair:
        """The same types without a recent window."""
        return CachePair(self.k, self.v)

    @property
    def windowed(self) -> CachePair:
        """For a drafter's layers with a window: they have few positions, so always floats, whatever others use."""
        return self if self == EXACT else F16


KV_HELP = f"auto, or one of {', '.join(TYPES)}, or two as K/V, packed ones also with +N: the last N positions as halves"
F16 = CachePair.parse("f16")
EXACT = CachePair(CacheType("f32", bytes=4), CacheType("f32", bytes=4))
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
RECENT_SHARE = 0.19
"""Of a packed type's divergence, what is left with 1,024 recent positions as halves: 7.4e-3 of 4.0e-2 nats for q4_0,
the last 1,024 of 8,192 positions of SmolLM2-135M (docs/notes/precision.md). The documents that DIVERGENCE was measured
on are shorter than a window."""


def divergence(kv: str) -> float:
    """The mean KL divergence in nats by DIVERGENCE and RECENT_SHARE; of a pair that was not measured, that of the worse
    of its types."""
    names, plus, _ = kv.partition("+")
    found = DIVERGENCE.get(names)
    if found is None:
        found = max(DIVERGENCE.get(name, 0.0) for name in names.split("/"))
    return found * RECENT_SHARE if plus else found


_WITH_RECENT = (*AUTO_PAIRS, *(replace(pair, recent=1024) for pair in AUTO_PAIRS[2:]))
AUTO_RECENT: Sequence[CachePair] = tuple(sorted(_WITH_RECENT, key=lambda pair: divergence(str(pair))))
"""AUTO_PAIRS for machines that can store recent positions as halves: with 1,024 of them too, by divergence."""


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
