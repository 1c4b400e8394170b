"""Engines of synthetic pairs, for tools that measure steps."""

from __future__ import annotations

from pathlib import Path

from dflash_core.bench.family_models import MODELS
from dflash_core.engine import Engine
from dflash_core.loading import load_draft, load_target
from tools.bench.step_bench import CONTEXT
from tools.bench.synthetic import synthetic_pair


def synthetic_engine(model: str, folder: Path) -> Engine:
    """The synthetic pair of that name on a card, with files in `folder`, which are written where they are not there."""
    pair = synthetic_pair(folder, MODELS[model])
    target = load_target(pair.target, "cuda")
    return Engine(target, load_draft(pair.draft, target), context_length=CONTEXT)
