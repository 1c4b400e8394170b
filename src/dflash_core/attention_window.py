"""What the target's full-attention layers see: every position, or the first ones and the last ones."""

from __future__ import annotations

from dataclasses import dataclass

MIN_SINKS = 64
"""First positions that every window keeps visible: a softmax puts much of its weight on them."""


@dataclass(frozen=True, slots=True)
class AttentionWindow:
    """Position p sees the first `sinks` positions and the last `size` up to itself; all of them where `size` is 0.

    What a position sees depends only on its number, so plain decoding, chains and trees see the same.
    """

    size: int = 0
    sinks: int = 0

    @staticmethod
    def of(size: int, system: int = 0) -> AttentionWindow:
        """A window of `size`, after a system message that ends at `system`; without a size everything is seen."""
        return AttentionWindow(size, max(MIN_SINKS, system)) if size else EVERYTHING

    def hides(self, length: int) -> bool:
        """Whether any of the first `length` positions does not see all positions before it."""
        return self.size > 0 and length > self.sinks + self.size

    def same_until(self, other: AttentionWindow, length: int) -> int:
        """How many of the first `length` positions see the same positions under both windows."""
        if self == other:
            return length
        return min([length, *(one.sinks + one.size for one in (self, other) if one.size)])

    def runs(self, begin: int, end: int) -> list[slice]:
        """The positions in 0..end that some position from `begin` on sees, as runs."""
        first = max(begin - self.size + 1, 0) if self.size else 0
        if first <= self.sinks:
            return [slice(0, end)]
        return [*([slice(0, self.sinks)] if self.sinks else []), slice(min(first, begin), end)]

    def __str__(self) -> str:
        return f"window {self.size:,} and the first {self.sinks:,}" if self.size else "all positions"

    def note(self, length: int) -> str:
        """A note on a sequence of `length` positions; nothing where the length is the model's own."""
        return f"{self}: not the model's exact output" if self.hides(length) else ""


EVERYTHING = AttentionWindow()
