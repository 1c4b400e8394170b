"""On a card: what a plan says before a load is what the driver finds after it, for six ways of loading a pair."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dflash_core.user_folders import user_folder
from support import engines

LAYERS = 16  # a quarter of the 27B model, where the whole is not there
OFF = 0.02


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    reason = engines.missing("cuda")
    if reason is not None:
        pytest.skip(reason)
    whole = user_folder("cache") / "synthetic"
    if any(whole.glob("synthetic-27b-Q4_K_M.gguf")):
        return whole, 0
    return tmp_path_factory.mktemp("synthetic"), LAYERS


@pytest.mark.parametrize("kv", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("context", [36_864, 131_072])
def test_predicted_is_found(context: int, kv: str, folder: tuple[Path, int]) -> None:
    """In a process of its own: nothing of another load is held."""
    where, layers = folder
    command = [sys.executable, "-m", "tools.bench.memory", "--folder", str(where), "--layers", str(layers)]
    command += ["--positions", str(context), "--kv", kv, "--steps", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["kv"] == kv
    assert abs(found["off"]) < OFF, found
