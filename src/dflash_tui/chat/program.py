"""What the chat screen does with the program around it: the model, the colours, the log, the end of a long answer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from dflash_core.errors import DFlashError
from dflash_tui.chat import collector
from dflash_tui.log import LOG, log_file
from dflash_tui.session import Loader
from dflash_tui.widgets.note import Note

if TYPE_CHECKING:
    from dflash_tui.screens.chat import ChatScreen

BENCH_ROUNDS = 3
TIDY_S = 1.0  # after an answer, when its last frames are drawn


class Program(Protocol):
    """The app, as far as it outlives its screens."""

    def open_model(self, target: Path | None, draft: Path | None) -> tuple[Loader, str]: ...
    def open_again(self, context: int) -> tuple[Loader, str]: ...
    def start_anew(self, conversation: str, context: int) -> None: ...
    def remember_model(self, target: Path | None, draft: Path | None) -> str: ...
    def choose_theme(self, name: str) -> str: ...
    def long_turn_ended(self, seconds: float) -> None: ...


class Shell:
    """Belongs to one chat screen."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._wanted: tuple[Path | None, Path | None] | None = None  # a pair to remember once it has loaded

    @property
    def _program(self) -> Program:
        return cast(Program, self._screen.app)

    def change_model(self, target: Path | None, draft: Path | None, *, same: bool = False) -> None:
        """Load another pair, and remember it if it loads; None is the demo pair. `same`: it is here already."""
        screen = self._screen
        if not same and (screen.flow.busy or screen.loading_now or screen.experiment is not None):
            screen.say("something is being loaded or answered: change the model when it has ended")
            return
        self._wanted = (target, draft)
        if same:
            self.loaded()
        else:
            screen.load_from(*self._program.open_model(target, draft))

    def loaded(self) -> None:
        """The pair that was wanted is here: open with it from the next start on."""
        if self._wanted is not None and (problem := self._program.remember_model(*self._wanted)):
            self._screen.notify(problem, title="Not remembered", severity="warning")
        self._wanted = None

    def reload(self) -> None:
        """Load the present pair again, with what only a load can take."""
        screen = self._screen
        if screen.flow.busy or screen.loading_now or screen.experiment is not None:
            screen.say("something is being loaded or answered: reload when it has ended")
        elif screen.flow.lost:
            self._program.start_anew(screen.keeping.resumable, screen.tuning.context)
        else:
            screen.load_from(*self._program.open_again(screen.tuning.context))

    def use_theme(self, name: str) -> None:
        """Change the colours and remember them. Raises DFlashError for an unknown theme."""
        known = self._screen.app.available_themes
        if name not in known:
            raise DFlashError(f"no theme {name!r}; there are {', '.join(sorted(known))}")
        self._screen.say(self._program.choose_theme(name) or f"theme {name}, from now on")

    def say_where_the_log_is(self) -> None:
        self._screen.say(f"the log is {log_file()}")

    def turn_ended(self) -> None:
        """Log the turn's figures, call back who went away, and use the pause."""
        screen, meter = self._screen, self._screen.flow.meter
        if meter is not None:
            spent = time.monotonic() - meter.started
            figures = (meter.tokens, meter.totals.steps, meter.overall_rate, spent)
            LOG.info("turn: %d tokens, %d steps, %.1f tok/s, %.1f s", *figures)
            self._program.long_turn_ended(spent)
        screen.set_timer(TIDY_S, self._tidy)

    def _tidy(self) -> None:
        if not self._screen.flow.busy and self._screen.experiment is None:
            collector.tidy()

    def bench(self) -> None:
        """Measure the UI tax in this app."""
        screen = self._screen
        if screen.session is None or screen.flow.busy or screen.experiment is not None:
            screen.say("/bench needs a loaded model, and no answer under way")
        else:
            screen.run_worker(self._bench(), exclusive=True, group="bench")

    async def _bench(self) -> None:
        from dflash_tui.chat.ui_bench import measure_tax, tax_table

        screen = self._screen
        try:
            tax = await measure_tax(screen, rounds=BENCH_ROUNDS, say=screen.say)
        except DFlashError as error:
            await screen.transcript.note(Note(f"nothing was measured: {error}"))
        else:
            await screen.transcript.note(Note("what the app costs the decoder", tax_table(tax), kind="info"))
        screen.gauges.draw()
