"""Kernel tests run in both engines; tests of an engine that is missing are skipped with the reason."""

from __future__ import annotations

import numpy as np
import pytest

from support import engines, seeds


@pytest.fixture(params=engines.ENGINES)
def engine(request: pytest.FixtureRequest) -> engines.Engine:
    """The emulator, then the GPU."""
    reason = engines.missing(request.param)
    if reason is not None:
        pytest.skip(reason)
    return engines.engine_named(request.param)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers of this test: see support.seeds; the printed seed repeats them."""
    seed = seeds.seed_of(request.node)
    print(f"seed {seed}")  # noqa: T201
    return np.random.default_rng(seed)


@pytest.fixture(params=engines.ENGINES)
def device_name(request: pytest.FixtureRequest) -> str:
    """The device that a whole session runs on: see support.device_pairs."""
    reason = engines.missing(request.param)
    if reason is not None:
        pytest.skip(reason)
    name: str = request.param
    return name
