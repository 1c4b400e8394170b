"""What the app costs the decoder, and how late its loop is: the app in a pseudo-terminal of its own measures itself.

    python -m tools.bench.ui [--rounds 7] [--target FILE --draft FILE] [--set NAME=VALUE] [--json] [--out FILE]

Without --target, the demo pair is measured.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import struct
import tempfile
import termios
from functools import partial
from pathlib import Path
from typing import Any

from dflash_core.errors import DFlashError
from dflash_tui.app import DFlashApp
from dflash_tui.application.session import LoadRequest
from dflash_tui.launch import share_the_interpreter
from dflash_tui.terminal.output import Notes
from tools.bench.tool import add_options, report, request_of, run_tool
from tools.bench.ui_tax import ROUNDS, Lag, Place, UiTax, lag_table, measure_lag, measure_tax, tax_notes, tax_table

COLUMNS, ROWS = 120, 40
POLL_S = 0.1


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, rounds=ROUNDS)
    args, notes = parser.parse_args(), Notes()
    answer = _in_terminal(request_of(args), args.rounds, notes)
    notes.end_line()
    if "error" in answer:
        raise DFlashError(answer["error"])
    report(answer["figures"], answer["text"], args, notes)


def _in_terminal(request: LoadRequest, rounds: int, notes: Notes) -> dict[str, Any]:
    """Open the app in a child process and read its report. Its screen output is read like a terminal would."""
    back, out = os.pipe()
    child, screen = pty.fork()
    if child == 0:
        os.close(back)
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
        os.environ.pop("NO_COLOR", None)
        _child(request, rounds, out)
    os.close(out)
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    answer: dict[str, Any] = {"error": "the app ended before it had measured anything; dflash-tui doctor may show why"}
    said = b""
    while True:
        ready, _, _ = select.select([screen, back], [], [])
        try:
            if screen in ready and not os.read(screen, 1 << 16):
                break
        except OSError:  # Linux raises this when the other end of a pseudo-terminal has closed
            break
        if back in ready:
            part = os.read(back, 1 << 16)
            *lines, said = (said + part).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "progress" in message:
                    notes.progress(message["progress"])
                else:
                    answer = message
            if not part:
                break
    os.close(back)
    os.close(screen)
    os.waitpid(child, 0)
    return answer


def _child(request: LoadRequest, rounds: int, out: int) -> None:
    """The process in the pseudo-terminal. Does not return."""
    code = 1
    try:
        with tempfile.TemporaryDirectory() as folder, os.fdopen(out, "w", encoding="utf-8", buffering=1) as report:
            from dflash_tui.application.engine_session import (
                load_session,  # torch in this process only
            )

            def tell(message: dict[str, Any]) -> None:
                report.write(json.dumps(message) + "\n")

            class Measured(DFlashApp):
                """The app, which starts to measure once its model is loaded."""

                def on_ready(self) -> None:
                    self.set_timer(POLL_S, self._look)

                async def _look(self) -> None:
                    if self.chat.state.loading:
                        self.set_timer(POLL_S, self._look)
                    else:
                        self.chat.run_worker(self._measure(), exit_on_error=False)

                async def _measure(self) -> None:
                    def say(text: str) -> None:
                        tell({"progress": text})

                    place = Place(self.chat.state, self.chat, self.chat.gauges.frame)
                    try:
                        tax = await measure_tax(place, rounds=rounds, say=say)
                        lags = await measure_lag(place, say=say)
                        tell(_figures(tax, lags))
                    except DFlashError as error:
                        tell({"error": str(error)})
                    finally:
                        self.exit(0)

            share_the_interpreter()
            app = Measured(request, partial(load_session, request), data_dir=Path(folder))
            code = app.run() or 0
            if app.fault:
                tell({"error": app.fault})
    finally:
        # Not sys.exit: it would flush the parent's open files.
        os._exit(code)


def _figures(tax: UiTax, lags: list[Lag]) -> dict[str, Any]:
    figures = {"ui_tax": tax.to_json(), "loop_lag": [lag.to_json() for lag in lags]}
    return {"figures": figures, "text": f"{tax_table(tax)}\n{tax_notes(tax)}\n\n{lag_table(lags)}"}


if __name__ == "__main__":
    run_tool(main)
