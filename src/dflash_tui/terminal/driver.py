"""The driver of the app's terminal. A file of its own: commands watch for a hangup without loading Textual."""

from __future__ import annotations

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


class TerminalDriver(linux_driver.LinuxDriver):
    """Reads and draws as its base does, and reports a lost terminal as a hangup."""

    def start_application_mode(self) -> None:
        if (handle := getattr(self._app, "handle_signals", None)) is not None:
            handle()  # from here on, the terminal must be restored at the end
        linux_driver.WriterThread = Writer  # type: ignore[attr-defined]  # Textual has no option for it
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def run_input_thread(self) -> None:
        try:
            super().run_input_thread()
        except OSError:
            hang_up()
