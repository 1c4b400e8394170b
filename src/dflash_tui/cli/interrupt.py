"""Ctrl+C in a command: the first one stops the work after the current step, a second one does not wait."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[list[bool]]:
    """Call `stop` at the first Ctrl+C; a second one raises KeyboardInterrupt at once.

    The list is empty until then.
    """
    seen: list[bool] = []

    def handle(_number: int, _frame: FrameType | None) -> None:
        seen.append(True)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, previous)
