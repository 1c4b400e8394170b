"""Random numbers of tests: the same in each `make test`, fresh where the long grids or a card's tests run."""

from __future__ import annotations

import secrets
import zlib

import pytest


def fresh(config: pytest.Config) -> bool:
    """True with `-m full`, as in `make test-full` and `make test-card`: no two runs draw the same."""
    return "full" in config.getoption("-m")


def seed_of(item: pytest.Item) -> int:
    """The seed of one test. It is fixed by default, so that a change is not blamed for another run's random numbers."""
    return secrets.randbits(32) if fresh(item.config) else zlib.crc32(item.nodeid.encode())
