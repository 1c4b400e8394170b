"""When Python's cyclic garbage collector runs: a full collection takes a tenth of a second, and the decoder waits."""

from __future__ import annotations

import gc

YOUNG = 20_000  # new objects that trigger a collection of generation 0; every frame exceeds Python's default of 700


def calm(*, tidied: bool = True) -> None:
    """Exclude all present objects from later collections. Call it when everything is loaded. `tidied`: the oldest
    generation is left to `tidy`.

    The program starts with the collector disabled.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(YOUNG, 10, 1_000_000 if tidied else 10)


def release() -> None:
    """Collect the excluded objects too. Call it before another pair is loaded."""
    gc.unfreeze()
    gc.collect()


def tidy() -> None:
    """Collect the garbage of the last turn. Call it when nothing is waiting."""
    gc.collect()
