"""The app: one screen, themes, and the keys that work everywhere. Imports no torch; the loader's thread does."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import TextArea

from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs
from dflash_core.resources import themes_dir
from dflash_tui.flow import fault, keep_trace
from dflash_tui.history import History, data_folder
from dflash_tui.screens.chat import ChatScreen
from dflash_tui.screens.confirm import ConfirmScreen
from dflash_tui.session import Loader, LoadRequest
from dflash_tui.themes import DEFAULT_THEME, load_themes
from dflash_tui.widgets.prompt import Prompt
from dflash_tui.widgets.transcript import Transcript

JOIN_S = 2.0  # how long quitting waits for a step that is under way


class DFlashApp(App[int]):
    """Chat and tuning over one loaded pair."""

    TITLE = "dflash"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "Quit", id="app.quit", show=False, priority=True),
        Binding("ctrl+c", "interrupt", "Copy or stop", id="app.interrupt", show=False, priority=True),
    ]

    def __init__(
        self,
        request: LoadRequest,
        loader: Loader,
        knobs: Knobs | None = None,
        *,
        theme: str = DEFAULT_THEME,
        data_dir: Path | None = None,
        theme_dirs: Iterable[Path] | None = None,
    ) -> None:
        super().__init__()
        self._wanted_theme = theme
        self._theme_dirs = theme_dirs
        self.fault = ""  # why the app ended, where it was not asked to
        history = History(data_dir or data_folder())
        self.chat = ChatScreen(loader, knobs or request.knobs, history, _name(request))

    def on_mount(self) -> None:
        self._heed_signals()
        problems = self._load_themes()
        self.push_screen(self.chat)
        if problems:
            # One toast for all of them, on the screen that stays.
            tell = partial(self.notify, title="Themes left out", severity="warning", timeout=10, markup=False)
            self.call_after_refresh(tell, "\n".join(problems))

    def _load_themes(self) -> list[str]:
        problems: list[str] = []
        folders = list(self._theme_dirs) if self._theme_dirs is not None else []
        if self._theme_dirs is None:
            try:
                folders.append(themes_dir())
            except DFlashError as error:
                problems.append(str(error))
        found = load_themes(folders)
        problems += found.problems
        for theme in found.themes:
            self.register_theme(theme)
        if self._wanted_theme in self.available_themes:
            self.theme = self._wanted_theme
        elif not problems:
            problems.append(f"theme {self._wanted_theme!r} is unknown; using {self.theme}")
        return problems

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        # Our own table has help and quit; the built-in entries of that name would be doubles.
        for command in super().get_system_commands(screen):
            if command.title not in ("Quit", "Keys", "Screenshot", "Maximize", "Minimize"):
                yield command

    def action_interrupt(self) -> None:
        """Ctrl+C: a selection is copied; without one the turn is stopped; else say how to quit."""
        focused = self.focused
        text = focused.selected_text if isinstance(focused, TextArea) else ""
        text = text or self.screen.get_selected_text() or ""
        if text:
            self.copy_to_clipboard(text)
            self.screen.clear_selection()
            self.chat.say(f"copied {len(text)} characters")
        elif self.chat.flow.busy:
            self.chat.flow.stop()
        else:
            self.chat.say("Ctrl+Q quits")

    async def action_quit(self) -> None:
        """Quit; while an answer is written, ask once."""
        if isinstance(self.screen, ConfirmScreen):
            self.screen.dismiss(True)
        elif self.chat.flow.busy:
            self.push_screen(ConfirmScreen("An answer is being written.", "stop it and quit", "go on"), self._confirmed)
        else:
            self._leave()

    def _confirmed(self, answer: bool | None) -> None:
        if answer:
            self._leave()

    def _heed_signals(self) -> None:
        """A signal that ends the program ends it as Ctrl+Q does: the terminal as it was, nothing lost."""
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()

        def end(number: int, _frame: FrameType | None) -> None:
            self._rescue()
            loop.call_soon_threadsafe(self._leave, 128 + number)
            # Where the terminal is gone, the app may wait for it for ever.
            last = threading.Timer(JOIN_S + 1, os._exit, (128 + number,))
            last.daemon = True
            last.start()

        # Not the loop's own handlers: those would wait with it.
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, end)

    def _rescue(self) -> list[str]:
        """Write down what was typed and generated, because nobody asked for this end. Says what is where."""
        kept = []
        for prompt in self.chat.query(Prompt):
            self.chat.past.save_draft(prompt.text)
            kept += ["your text comes back at the next start"] * bool(prompt.text.strip())
        for transcript in self.chat.query(Transcript):
            path = self.chat.past.save_conversation(transcript.as_text())
            kept += [f"the conversation is in {path}"] * (path is not None)
        return kept

    def _handle_exception(self, error: Exception) -> None:
        """A fault of the program: one line when the terminal is back, the trace in a file, nothing lost."""
        if not self.fault:
            trace = keep_trace("".join(traceback.format_exception(error)), self.chat.past.folder)
            self.fault = "; ".join([fault(error), *self._rescue(), trace])
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """In place of Textual's pages of source and variables: `run_app` prints `fault`."""
        self._close_messages_no_wait()

    def _leave(self, code: int = 0) -> None:
        self.chat.past.save_draft(self.chat.prompt.text)
        running = self.chat.flow.running
        if running is not None:
            running.stop()
            running.join(JOIN_S)
        self.exit(code)


def _name(request: LoadRequest) -> str:
    if request.target is None:
        return "demo pair"
    return request.target.name + (f" + {request.draft.name}" if request.draft else "")


def run_app(request: LoadRequest, knobs: Knobs | None = None, *, theme: str = DEFAULT_THEME) -> int:
    """Open the app; returns the exit code."""
    from dflash_tui.engine_session import load_session

    # The decoder's thread and the app share one interpreter: let it change hands often, so that
    # a burst of rendering delays a step by half a millisecond and not by five.
    sys.setswitchinterval(0.0005)
    app = DFlashApp(request, partial(load_session, request), knobs, theme=theme)
    code = app.run()
    if code is None:
        code = app.return_code or 0
    if app.fault:
        sys.stderr.write(f"dflash-tui: {app.fault}\n")
    if app.chat.loading_now or app.chat.flow.busy:
        # A daemon thread deep inside torch can crash an interpreter that is being taken down.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
