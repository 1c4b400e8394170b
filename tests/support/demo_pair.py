"""The demo pair on the CPU: its weights are read once in each process, every engine has a session of its own."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from dflash_core import Engine, load_draft, load_target
from dflash_core.backends.cpu.dflash import load
from dflash_core.backends.opened import Target
from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.drafters.draft import Draft
from dflash_core.models.matrix import Weights
from dflash_core.snapshots.store import SnapshotStore

WINDOW = 24


@cache
def target() -> Target:
    return load_target(demo_target_path())


@cache
def draft(sliding: bool = False) -> Draft:
    """The shipped drafter; `sliding`: its weights with a causal window in the first layer."""
    loaded = load_draft(demo_draft_path(), target())
    if not sliding:
        return loaded
    first = (True, False, False)
    config = replace(loaded.config, sliding_window=WINDOW, sliding=first, causal=first)
    model, drafter = load(config, Weights(loaded.file), target().model)
    return replace(loaded, config=config, model=model, drafter=drafter)


def new_engine(context_length: int | None = None, states: SnapshotStore | None = None) -> Engine:
    """An engine that has read nothing and learned nothing."""
    return Engine(target(), draft(), context_length=context_length, states=states)
