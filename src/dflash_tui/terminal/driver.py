"""Textual's driver, for a terminal that can go away: one that cannot be read or written is gone."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from textual.drivers import linux_driver
from textual.drivers._writer_thread import WriterThread

from dflash_tui.terminal.hangup import hang_up


class Writer(WriterThread):
    """Goes on taking text when it can write none: the app would wait for ever at the full queue of one that ended."""

    def run(self) -> None:
        try:
            super().run()
        except OSError:
            hang_up()
            while self._queue.get() is not None:
                pass


@runtime_checkable
class HandlesSignals(Protocol):
    """An app that ends in order at the signals that end a program."""

    def handle_signals(self) -> None: ...


class TerminalDriver(linux_driver.LinuxDriver):
    """Reads and draws as its base does, and reports a terminal that is gone as a hangup."""

    def start_application_mode(self) -> None:
        if isinstance(self._app, HandlesSignals):
            self._app.handle_signals()  # from here on an end has a terminal to put back
        linux_driver.WriterThread = Writer  # type: ignore[attr-defined]  # Textual offers no other way to choose one
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def run_input_thread(self) -> None:
        try:
            super().run_input_thread()
        except OSError:
            hang_up()
