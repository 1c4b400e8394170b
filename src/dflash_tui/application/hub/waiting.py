"""A wait for the network that can be cancelled at once: for name resolution, a connection or a silent hub.

Python cannot interrupt such a wait from another thread, so it runs on a separate thread, which is abandoned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from queue import Empty, Queue
from typing import TypeVar

T = TypeVar("T")
AHEAD = 2  # pieces that are read ahead
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class _End:
    error: Exception | None = None


def as_it_comes(source: Callable[[], Generator[T, None, None]], look: Callable[[], None]) -> Generator[T, None, None]:
    """Yields what `source` yields, read on another thread; raises what `source` raises.

    `look` is called between pieces and while waiting, and may raise to cancel. The other thread ends when its
    wait ends. What it reads after that is discarded, so `source` must not write anything to disk.
    """
    pieces: Queue[T | _End] = Queue(AHEAD)
    left = threading.Event()

    def read() -> None:
        end = _End()
        try:
            with closing(source()) as found:
                for piece in found:
                    pieces.put(piece)
                    if left.is_set():
                        return
        except Exception as error:
            end = _End(error)
        pieces.put(end)

    # Daemon: a silent hub must not keep a closed program alive.
    threading.Thread(target=read, name="dflash-hub", daemon=True).start()
    try:
        while True:
            look()
            try:
                piece = pieces.get(timeout=LOOK_S)
            except Empty:
                continue
            if isinstance(piece, _End):
                break
            yield piece
        if piece.error is not None:
            raise piece.error
    finally:
        left.set()
        with suppress(Empty):  # frees a slot for a thread that waits for one
            while True:
                pieces.get_nowait()
