"""Signals that end the program, while an app runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from dflash_tui.terminal.hangup import end_later

ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class EndSignals:
    """A signal ends the app as Ctrl+Q does: the terminal is restored, nothing is lost."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}  # the handlers before the app started

    def handle(self, leave: Callable[[int], None], save: Callable[[], object]) -> None:
        """From now on a signal calls `leave` with the exit code in the app's loop, and `save` at once."""
        if self._before:
            return
        loop = asyncio.get_running_loop()

        def end(number: int, _frame: FrameType | None) -> None:
            # One signal is enough; and if the terminal is closed, the app may wait for it for ever.
            for one in ENDS:
                signal.signal(one, signal.SIG_IGN)
            end_later(128 + number)
            loop.call_soon_threadsafe(leave, 128 + number)
            save()

        # Not the loop's own handlers: those do not run while the loop is blocked.
        for number in ENDS:
            self._before[number] = signal.signal(number, end)

    def restore(self) -> None:
        """The app has ended. If a signal ended it, later signals stay ignored: the exit has begun."""
        for number, before in self._before.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, before)
