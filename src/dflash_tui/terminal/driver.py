"""Textual's driver for a terminal that may disappear: one that cannot be read or written is treated as gone."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from textual.drivers import linux_driver
from textual.drivers._writer_thread import WriterThread

from dflash_tui.terminal.hangup import hang_up


class Writer(WriterThread):
    """Keeps accepting text after writing fails. If its thread ended, the app would wait forever on the full queue."""

    def run(self) -> None:
        try:
            super().run()
        except OSError:
            hang_up()
            while self._queue.get() is not None:
                pass


@runtime_checkable
class HandlesSignals(Protocol):
    """An app that shuts down cleanly on signals that end a program."""

    def handle_signals(self) -> None: ...


class TerminalDriver(linux_driver.LinuxDriver):
    """Reads and draws as its base does, and reports a lost terminal as a hangup."""

    def start_application_mode(self) -> None:
        if isinstance(self._app, HandlesSignals):
            self._app.handle_signals()  # from here on, the terminal must be restored at the end
        linux_driver.WriterThread = Writer  # type: ignore[attr-defined]  # Textual has no option for it
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def run_input_thread(self) -> None:
        try:
            super().run_input_thread()
        except OSError:
            hang_up()
