"""The app: one screen, themes, and the keys that work everywhere. Imports no torch; the loader's thread does."""

from __future__ import annotations

import dataclasses
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from textual import on
from textual._context import active_message_pump
from textual.app import App, ScreenStackError, SystemCommand
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Event, Key, MouseEvent, MouseUp, Paste
from textual.filter import LineFilter
from textual.message_pump import MessagePump
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.widget import AwaitMount, Widget
from textual.widgets import TextArea
from textual.worker import WorkerFailed

from dflash_core.cache_types import AUTO
from dflash_core.clean import lines, one_line
from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs
from dflash_tui.application.advice import at_home, fault, keep_trace
from dflash_tui.application.conversations.history import History, data_folder
from dflash_tui.application.log import LOG
from dflash_tui.application.session import Loader, LoadRequest
from dflash_tui.application.settings.config import Config
from dflash_tui.application.starting import arguments_again
from dflash_tui.chat.controller import LongTaskEnded, PairLoaded, Restart
from dflash_tui.chat.state import AppState
from dflash_tui.screens.chat import ChatScreen
from dflash_tui.screens.explain import ExplainScreen, figures, parameter
from dflash_tui.screens.pages import of_screens
from dflash_tui.server.settings import ServerSettings
from dflash_tui.settings.keys import MOVES, is_nowhere, nowhere, spelled, with_keys
from dflash_tui.settings.themes import installed, load_themes, with_known_theme
from dflash_tui.terminal.clipboard import copied, desktop_notice
from dflash_tui.terminal.driver import TerminalDriver
from dflash_tui.terminal.hangup import EndSignals
from dflash_tui.terminal.key_order import KeyOrder, TakesText, as_move
from dflash_tui.text.glossary import PAGES
from dflash_tui.widgets.dialogs import ConfirmScreen
from dflash_tui.widgets.flash import Saying
from dflash_tui.widgets.knob_row import KnobRow
from dflash_tui.widgets.literal import ControlCodeFilter, Copy
from dflash_tui.widgets.panels import Panel
from dflash_tui.widgets.prompt import Prompt

JOIN_S = 2.0  # how long quitting waits for a running step
FETCH_S = 0.5  # and for a download thread, which writes out what it has received
PALETTE = "--command-palette"  # the id that Textual gives it
MAX_LISTED_PROBLEMS = 2  # problems that a toast lists; the log has all of them


class DFlashApp(App[int]):
    """Chat and tuning over one loaded pair."""

    TITLE = "dflash"
    CSS_PATH = Path(__file__).with_name("app.tcss")  # absolute: a subclass in another folder uses the same sheet
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "Quit", id="app.quit", show=False, priority=True),
        Binding("ctrl+c", "interrupt", "Copy or stop", id="app.interrupt", show=False, priority=True),
        Binding("question_mark", "explain", "Explain", id="app.explain", show=False),
    ]

    def __init__(
        self,
        request: LoadRequest,
        loader: Loader,
        knobs: Knobs | None = None,
        *,
        loaders: Callable[[LoadRequest], Loader] | None = None,
        check: Callable[[LoadRequest], None] = lambda request: None,
        first_run: bool = False,
        config: Config | None = None,
        data_dir: Path | None = None,
        theme_dirs: Iterable[Path] | None = None,
        chat: type[ChatScreen] = ChatScreen,
        serving: ServerSettings | None = None,
    ) -> None:
        """`serving`: let other programs use the pair once it is loaded."""
        super().__init__()
        self.config = config or Config()
        self._theme_problems = self._load_themes(theme_dirs)
        self.settings = self.config.settings
        self.actions = with_keys(self.settings.keys)
        self._control_codes = ControlCodeFilter()
        self._away = self._tells_focus = False
        self.signals = EndSignals()
        self._keys = KeyOrder(self)
        self.fault = ""  # why the app ended, if the user did not end it
        self.again: list[str] = []  # the arguments to restart with after the app has ended
        self._watchers = list(request.watchers)
        self._first_run = first_run
        self._serving = serving
        loaders, knobs = loaders or (lambda request: loader), knobs or request.knobs
        history = History(data_dir or data_folder())
        self.state = AppState(request, loader, loaders, check, knobs, history, self.settings)
        self.notices = self.state.notices
        self.chat = chat(self.state)

    def get_driver_class(self) -> type[Driver]:
        driver = super().get_driver_class()
        return TerminalDriver if driver is LinuxDriver else driver

    def get_default_screen(self) -> ChatScreen:
        return self.chat

    async def on_mount(self) -> None:
        self.handle_signals()  # if the driver has not done so
        self.set_keymap({id: keys or nowhere(id) for id, keys in self.settings.keys.items()})
        await AwaitMount(self.chat, [self.chat])
        if self._first_run:
            await self.push_screen(of_screens("models", "ModelsScreen")(self.chat.parts, first=True))
        if self._watchers:
            self.set_interval(1, self._tell_watchers)
        themes = f"These themes cannot be used; the colours are those of {self.theme}."
        self._warn("Themes left out", self._theme_problems, themes)
        self._warn("Settings and log", self.config.problems)

    def _warn(self, title: str, problems: Sequence[str], *above: str) -> None:
        """One toast for all problems, on the screen that stays; the log has each."""
        for line in problems:
            LOG.warning("%s", line)
        if problems:
            left = len(problems) - MAX_LISTED_PROBLEMS
            more = [f"and {left} more in the log: /log"] if left > 0 else []
            text = "\n".join([*above, *problems[:MAX_LISTED_PROBLEMS], *more])
            self.notify(text, title=title, severity="warning", timeout=10)

    async def on_event(self, event: Event) -> None:
        if isinstance(event, (Key, Paste)) and not event.is_forwarded:
            if self._keys.waits(event):
                return
            if isinstance(event, Key) and self.screen_stack:
                event = as_move(event, MOVES, self.screen, self.focused)
            for screen in self.screen_stack[-1:]:
                if isinstance(screen, TakesText):
                    screen.take_text(event)
            await super().on_event(event)
            if self.screen_stack:
                self._keys.sent(event, self.focused or self.screen)
            return
        # Releasing a button ends a drag or a selection, whatever the pointer is over.
        if isinstance(event, MouseEvent) and not isinstance(event, MouseUp) and self.screen_stack:
            widget, _ = self.screen.get_widget_and_offset_at(event.x, event.y)
            if widget is not None and not widget.is_attached:
                return  # removed since the last frame; Textual would look up its place in its parent
        await super().on_event(event)

    def on_ready(self) -> None:
        self.screen.refresh()  # nothing was drawn during startup

    def post_display_hook(self) -> None:
        self.chat.displayed()

    def _tell_watchers(self) -> None:
        """Say once why a watcher of the turns, such as a trace, has stopped."""
        for watcher in [one for one in self._watchers if one.problem]:
            self._watchers.remove(watcher)
            self.notify(watcher.problem, title="Trace", severity="warning", timeout=15)

    def _load_themes(self, folders: Iterable[Path] | None) -> list[str]:
        """Register all themes and start with the configured one. Returns the problems of the others."""
        found = installed() if folders is None else load_themes(folders)
        for theme in found.themes:
            self.register_theme(theme)
        self.config, unknown = with_known_theme(self.config, self.available_themes)
        name = self.config.settings.theme
        # Do what the watcher of `theme` does, before any rule is parsed. Setting it later parses all rules twice.
        self.set_reactive(App.theme, name if name in self.available_themes else self.theme)
        theme = self.current_theme
        self.set_class(True, f"-theme-{theme.name}", update=False)
        self.set_class(theme.dark, "-dark-mode", update=False)
        self.set_class(not theme.dark, "-light-mode", update=False)
        self._refresh_truecolor_filter(self.ansi_theme)
        self.stylesheet.set_variables(self.get_css_variables())
        return [*unknown, *found.problems]

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        # Our own table has help and quit; the built-in entries of the same name would be duplicates.
        for command in super().get_system_commands(screen):
            if command.title not in ("Quit", "Keys", "Screenshot", "Maximize", "Minimize", "Theme"):
                yield command

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), self._control_codes]

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Every screen's and widget's `notify` ends here. Messages quote files, so none is parsed as markup."""
        message = at_home(message)
        self.notices.keep(one_line(f"{title}: {message}" if title else message), error=severity == "error")
        super().notify(lines(message), title=title, severity=severity, timeout=timeout, markup=False)

    def copy_to_clipboard(self, text: str) -> None:
        """What widgets of Textual copy themselves."""
        self.copy(text, "")

    @on(Copy)
    def _copy_asked(self, event: Copy) -> None:
        self.copy(event.text, event.what)

    def copy(self, text: str, what: str) -> None:
        """Copy to every clipboard that there is, and say where it went; `what` names the text, "" says nothing."""
        super().copy_to_clipboard(text)

        def hand_over() -> None:  # on a worker thread: commands of the desktop and of tmux take time
            notice = f"copied {what}" if self.is_headless else copied(text, what, self.state.past.folder)
            if what and self.is_running:
                self.call_later(self.chat.say, notice)

        self.run_worker(hand_over, thread=True, group="clipboard", exclusive=True)

    def action_command_palette(self) -> None:
        if self.screen.id != PALETTE:
            self.push_screen(of_screens("palette", "Palette")(id=PALETTE))

    def action_explain(self) -> None:
        screen, focused = self.screen, self.focused
        panels = (one for one in focused.ancestors_with_self if isinstance(one, Panel)) if focused else iter(())
        page = next((one.name or "" for one in panels), getattr(screen, "SCOPE", ""))
        if isinstance(focused, KnobRow):
            self.push_screen(ExplainScreen(focused.spec.label, parameter(focused.spec)))
        elif page in PAGES:
            typed = "?" if isinstance(focused, Prompt) else ""
            self.push_screen(ExplainScreen("What the figures here mean", figures(page), typed))
        elif isinstance(screen, Saying):
            screen.say("no figures here")

    def get_key_display(self, binding: Binding) -> str:
        # The footer still shows an action without a key, for clicks.
        return "" if is_nowhere(binding.key) else binding.key_display or spelled(binding.key)

    @on(PairLoaded)
    async def _serve_loaded(self) -> None:
        self.chat.parts.serving.watch()
        settings, self._serving = self._serving, None
        if settings is not None:
            try:
                await self.chat.parts.serving.begin(settings)
            except DFlashError as error:
                self.notify(str(error), title="Not served", severity="error", timeout=15)
            else:
                self.chat.say(f"listening on {self.state.serving}; /requests lists what other programs ask")

    @on(Restart)
    def _restart_asked(self) -> None:
        self.restart(self.state.resumable, self.state.context, self.state.kv)

    def restart(self, conversation: str, context: int, kv: str = AUTO) -> None:
        """End, and start again as a new process in this terminal, with the present pair and this conversation."""
        request = dataclasses.replace(self.state.request, context=context, kv=kv)
        self.again = arguments_again(sys.argv[1:], request, conversation)
        self.chat.parts.downloads.hand_over()
        self.call_after_refresh(self._leave)  # by then the prompt no longer holds the command

    def on_app_blur(self) -> None:
        self._away, self._tells_focus = True, True

    def on_app_focus(self) -> None:
        self._away, self._tells_focus = False, True

    @on(LongTaskEnded)
    def _long_task_ended(self, event: LongTaskEnded) -> None:
        self.tell_away(event.seconds, event.what)

    def tell_away(self, seconds: float, what: str) -> None:
        """Tell a user who may be elsewhere, unless the terminal reports that it has the focus: by the bell, perhaps
        with a desktop notice too."""
        how = self.settings.notify
        if how == "off" or seconds < self.settings.notify_after or (self._tells_focus and not self._away):
            return
        self.bell()
        if how == "desktop" and self._driver is not None:
            self._driver.write(desktop_notice(f"dflash-tui: {what}"))

    def action_interrupt(self) -> None:
        """Ctrl+C: copy the selection; without one stop the turn; otherwise say how to quit."""
        focused = self.focused
        text = focused.selected_text if isinstance(focused, TextArea) else ""
        text = text or self.screen.get_selected_text() or ""
        if text:
            self.copy(text, f"{len(text)} characters")
            self.screen.clear_selection()
        elif self.state.experiment is not None or self.state.busy:
            self.chat.action_stop()
        else:
            self.chat.say("Ctrl+Q quits")

    async def action_quit(self) -> None:
        """Quit; while an answer is being written, ask first."""
        self.clear_notifications()  # they may cover the question
        if isinstance(self.screen, ConfirmScreen):
            self.screen.dismiss(True)
            return
        opened, yes = self.state.opened, "quit"
        warning = opened.warning if opened is not None else ""
        if self.state.busy:
            warning, yes = "An answer is being written.", "stop it and quit"
        if warning:
            self.push_screen(ConfirmScreen(warning, yes, "go on"), lambda sure: self._leave() if sure else None)
        else:
            self._leave()

    def handle_signals(self) -> None:
        """Called by the driver, once the terminal must be restored at the end."""
        if not self.is_headless:
            self.signals.handle(self._leave, self._signalled)

    def _signalled(self) -> None:
        """A signal ends the app: it does not start again, and saves a conversation elsewhere if the disk refuses it."""
        self.again = []
        self.chat.last_words()

    def _handle_exception(self, error: Exception) -> None:
        """A bug in the program: one line once the terminal is restored, the trace in a file, nothing lost.

        An uncaught error of our own, such as an SQLite without a required feature, already says what to do.
        """
        cause = error.error if isinstance(error, WorkerFailed) else error
        gone = isinstance(cause, NoMatches | ScreenStackError)
        if gone and (self._exit or closes(active_message_pump.get(None))):
            # The widget was never drawn or is already removed, so the error has no visible effect.
            LOG.info("a widget was queried on a closing screen", exc_info=error)
            return
        if not self.fault:
            LOG.error("fault", exc_info=cause)  # not of the WorkerFailed around it, which has no trace
            message, trace = str(cause), list[str]()
            if not isinstance(cause, DFlashError):
                message = fault(cause)
                trace = [keep_trace("".join(traceback.format_exception(cause)), self.state.past.folder)]
            self.fault = "; ".join([message, *self.chat.last_words(), *trace])
        super()._handle_exception(error)

    async def _shutdown(self) -> None:
        """Every shutdown first records that the app ends: a worker may run on while its screen is removed."""
        self._exit = True
        await super()._shutdown()

    def _fatal_error(self) -> None:
        """Replaces Textual's long traceback with source and variables: `run_app` prints `fault`."""
        self._close_messages_no_wait()

    def _leave(self, code: int = 0) -> None:
        for running in (self.state.turn.running, self.state.experiment):
            if running is not None:
                running.stop()
                running.join(JOIN_S)
        if self.chat.made is not None:
            self.chat.made.stop(FETCH_S)
        self.exit(code)


def closes(pump: MessagePump | None) -> bool:
    """Whether this screen, or a parent of this widget, is being removed. Textual has no public name for that."""
    return isinstance(pump, Widget) and any(one._pruning or one._closing for one in (pump, *pump.ancestors))
