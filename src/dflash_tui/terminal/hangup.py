"""What ends the program from outside: signals while an app runs, Ctrl+C in a command, and a lost terminal.

A lost terminal ends the program as SIGHUP does, even if no signal arrives: `make` and other parents do not pass it on,
and a session without a controlling terminal gets none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

END_S: Final = 2.5  # after a hangup the program has this long to end on its own
TICK_S: Final = 1.0  # poll interval on systems that do not report a terminal's hangup
_GONE: Final = select.POLLHUP | select.POLLERR


@contextmanager
def watched(descriptors: Iterable[int]) -> Iterator[None]:
    """A context in which a hangup of a terminal among `descriptors` ends the program. Nothing is read from them."""
    terminals = [descriptor for descriptor in descriptors if os.isatty(descriptor)]
    if not terminals:
        yield
        return
    reading, writing = os.pipe()
    thread = threading.Thread(target=_watch, args=(terminals, reading), name="dflash-hangup", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(writing)  # wakes the thread, which then ends
        thread.join()
        os.close(reading)


def hang_up() -> None:
    """Send this program SIGHUP, and end it if that has not done so in `END_S`. Called from any thread but the main one;
    does nothing where SIGHUP is ignored, as under nohup."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return
    # Signal the main thread, where Python's handlers run: this interrupts whatever it is waiting for.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGHUP)
    end_later(128 + signal.SIGHUP)


def end_later(code: int) -> None:
    """End the program with this exit code after `END_S`, whatever it is doing then."""
    timer = threading.Timer(END_S, os._exit, (code,))
    timer.daemon = True
    timer.start()


def _watch(terminals: list[int], wake: int) -> None:
    poll = select.poll()
    for terminal in terminals:
        poll.register(terminal, 0)  # errors and hangups are always reported
    poll.register(wake, 0)
    while True:
        found = dict(poll.poll(TICK_S * 1000))
        if wake in found:
            return
        for descriptor, event in found.items():
            if not event & _GONE:  # a system that cannot poll terminals
                poll.unregister(descriptor)
        gone = [one for one in terminals if found.get(one, 0) & _GONE or not os.isatty(one)]
        if gone:
            for descriptor in gone:
                _replace(descriptor)
            hang_up()
            return


def _replace(descriptor: int) -> None:
    """Replace a dead terminal by a silent input and an output that accepts everything.

    Otherwise, while the program saves its data, readers would see end of file forever and writers an error."""
    with contextlib.suppress(OSError):
        if descriptor == 0:
            silent, _open = os.pipe()  # its other end stays open until the process ends
            os.set_blocking(silent, False)  # for a reader that the hangup has just woken
        else:
            silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, descriptor)
        os.close(silent)


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
