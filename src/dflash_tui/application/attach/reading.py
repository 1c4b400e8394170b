"""Reads JSON that another program sent: what is missing or has another type counts as not there.

A path is names with dots between, as in `usage.prompt_tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_COUNT = 2**31 - 1


def at(found: object, path: str) -> Any:
    """What is at a path; None where it leads nowhere."""
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def part(found: object, path: str) -> Mapping[str, Any]:
    """An object; empty for anything else."""
    inner = at(found, path)
    return inner if isinstance(inner, Mapping) else {}


def objects(found: object, path: str) -> list[Mapping[str, Any]]:
    """The objects of a list."""
    inner = at(found, path)
    return [one for one in inner if isinstance(one, Mapping)] if isinstance(inner, list) else []


def text(found: object, path: str) -> str:
    """A text; "" for anything else."""
    value = at(found, path)
    return value if isinstance(value, str) else ""


def number(found: object, path: str) -> float | None:
    """A number that is not negative; None for anything else."""
    value = at(found, path)
    return float(value) if type(value) in (int, float) and 0 <= value <= 1e12 else None


def count(found: object, path: str) -> int | None:
    """A whole number from 0 on; None for anything else."""
    value = at(found, path)
    return value if _is_count(value) else None


def counts(found: object, path: str) -> list[int]:
    """A list of whole numbers from 0 on; empty for anything else."""
    value = at(found, path)
    return value if isinstance(value, list) and len(value) <= 1 << 20 and all(map(_is_count, value)) else []


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT
