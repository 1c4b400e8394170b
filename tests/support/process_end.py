"""A test whose code would end the process fails; the worker that it shares with other tests goes on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn
from unittest.mock import patch

ENDS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@contextmanager
def process_stays() -> Iterator[None]:
    """While this is entered, `os._exit` raises AssertionError in this process; forked processes end as usual.

    It raises AssertionError at the end too if `os._exit` was called in any thread (the first error may have been lost),
    if a timer is left that would call it in a later test, or if the handler of a signal that ends programs was
    replaced."""
    process, end_process = os.getpid(), os._exit
    found: list[str] = []

    def refuse(code: int) -> NoReturn:
        if os.getpid() != process:
            end_process(code)
        found.append(f"os._exit({code}) was called in {threading.current_thread().name}")
        raise AssertionError(found[-1])

    handlers = {number: signal.getsignal(number) for number in ENDS}
    with patch("os._exit", refuse):
        yield
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer) and thread.function is refuse and not thread.finished.is_set():
            thread.cancel()
            found.append(f"a timer of {thread.interval} s is left that calls os._exit{tuple(thread.args)}")
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
            found.append(f"the handler of {number.name} was replaced")
    assert not found, "; ".join(found)
