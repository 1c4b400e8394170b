"""The demo pair on the CPU: its weights are read once in each process, every engine has a session of its own."""

from __future__ import annotations

from functools import cache

from dflash_core import Engine, load_draft, load_target
from dflash_core.backends.opened import Target
from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.drafters.base import Draft


@cache
def target() -> Target:
    return load_target(demo_target_path())


@cache
def draft(sliding: bool = False) -> Draft:
    return load_draft(demo_draft_path(sliding=sliding), target())


def new_engine(context_length: int | None = None) -> Engine:
    """An engine that has read nothing and learned nothing."""
    return Engine(target(), draft(), context_length=context_length)
