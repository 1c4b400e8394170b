"""Damages files at random from a seed: bytes anywhere, and values, lengths, keys and lines of JSON."""

from __future__ import annotations

import random
from typing import Any

HUGE = 2**64 - 1
INTERESTING = [0, 1, 7, 8, 9, 13, 31, 32, 255, 2**16, 2**31, 2**32 - 1, 2**32, 2**40, 2**48, 2**63 - 1, 2**63, HUGE]
FORGED: tuple[Any, ...] = (
    0, -1, 1, 2, 7, 300, 2**31, 2**53, 2**64, 10**400, 0.5, 1.5, -0.5, 5e-324, 1e-9, 1e9, 1e308, -1e308,
    "", "x", "tree", "plain", "9999-12-31T23:59:59+00:00", None, True, [], [0], [[]], {},
)  # fmt: skip


def damaged(rng: random.Random, sound: bytes, low: int = 0, high: int | None = None) -> bytes:
    """`sound` with bytes, a field, a stretch or its end changed between `low` and `high`."""
    data = bytearray(sound)
    high = len(data) if high is None else high
    at = rng.randrange(low, high)
    match rng.randrange(8):
        case 0 | 1 | 2:
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(low, high)] = rng.randrange(256)
        case 3 | 4:
            size = rng.choice((1, 2, 4, 8))
            data[at : at + size] = rng.choice(INTERESTING).to_bytes(8, "little")[:size]
        case 5:
            del data[at:]
        case 6:
            del data[at : at + rng.randint(1, 16)]
        case 7:
            data[at:at] = data[at : at + rng.randint(1, 16)] or b"\xff"
    return bytes(data)


def mutate_value(rng: random.Random, place: Any) -> None:
    """Change one value in an object of JSON, the length of a list, or a key."""
    while keys := list(place) if isinstance(place, dict) else list(range(len(place))):
        key = rng.choice(keys)
        value = place[key]
        if isinstance(value, (dict, list)) and rng.random() < 0.85:
            place = value
            continue
        how = rng.random()
        if how < 0.15:
            del place[key]
        elif how < 0.3 and isinstance(place, list):
            place.insert(rng.choice(keys), value)
        elif isinstance(value, (int, float)) and abs(value) < 1e300 and how < 0.5:
            place[key] *= rng.choice([-1, 2, 0.5, 1e-300, 1e300, 1.0])
        else:
            place[key] = rng.choice(FORGED)
        return


def mutate_lines(rng: random.Random, told: list[dict[str, Any]]) -> None:
    """Change one thing: a line, or a part of one."""
    at = rng.randrange(len(told))
    if rng.random() > 0.1:
        mutate_value(rng, told[at])
    elif (how := rng.randrange(3)) == 0:
        del told[at]
    else:
        told.insert(rng.randrange(len(told)), told[at] if how == 1 else told.pop(at))
