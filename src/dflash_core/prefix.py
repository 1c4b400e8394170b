"""How far two sequences agree."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """The number of leading items that are equal."""
    return next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
