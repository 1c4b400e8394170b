"""Engines of synthetic pairs and of the demo pair, for tools that measure."""

from __future__ import annotations

from pathlib import Path

from dflash_core.bench.family_models import MODELS
from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.engine import Engine, load_pair
from dflash_core.loading import load_draft, load_target
from tools.bench.step_bench import CONTEXT
from tools.bench.synthetic import synthetic_pair


def synthetic_engine(model: str, folder: Path) -> Engine:
    """The synthetic pair of that name on a card, with files in `folder`, which are written where they are not there."""
    pair = synthetic_pair(folder, MODELS[model])
    target = load_target(pair.target, "cuda")
    return Engine(target, load_draft(pair.draft, target), context_length=CONTEXT)


def synthetic_or_demo(model: str, folder: Path | None, device: str, context: int) -> Engine:
    """As the app loads them: the synthetic pair of that name, or without a folder the demo pair."""
    if folder is None:
        return load_pair(demo_target_path(), demo_draft_path(), device, context_length=context)
    pair = synthetic_pair(folder, MODELS[model])
    return load_pair(pair.target, pair.draft, device, context_length=context)
