"""A home of its own for the program under abuse: settings, data, log and the present folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def environment(folder: Path) -> dict[str, str]:
    """What a child process is given."""
    kinds = ("DATA", "CONFIG", "CACHE", "STATE")
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}  # a key at random may ask for gigabytes
    return {"HOME": str(folder)} | nowhere | {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in kinds}


@contextmanager
def at_home(folder: Path) -> Iterator[None]:
    """This process lives in `folder` for a while."""
    folder.mkdir(parents=True, exist_ok=True)
    before, here = dict(os.environ), Path.cwd()
    os.environ.update(environment(folder))
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)
