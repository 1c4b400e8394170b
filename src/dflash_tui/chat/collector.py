"""Python's cyclic collector, kept away from the decoder: a full collection holds the interpreter for a tenth of a
second, and the decoder with it."""

from __future__ import annotations

import gc

YOUNG = 20_000  # new objects before the youngest are collected; Python's own 700 are reached in every frame


def calm() -> None:
    """What is here now stays: the collector need not walk it again. Call it when everything is loaded.

    The program starts without a collector.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    # The oldest generation is left to `tidy`.
    gc.set_threshold(YOUNG, 10, 1_000_000)


def release() -> None:
    """Collect what was loaded, too, and is no longer used. Call it before something else is loaded in its place."""
    gc.unfreeze()
    gc.collect()


def tidy() -> None:
    """Collect what the last turn has left. Call it where nothing waits."""
    gc.collect()
