"""The one main screen: conversation, inspector, status strip, prompt."""

from __future__ import annotations

import gc
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Horizontal
from textual.events import Key, Resize
from textual.screen import Screen
from textual.widgets import Footer, Markdown, Static, TextArea

from dflash_core.errors import KnobError
from dflash_core.knobs import Knobs
from dflash_tui.clean import clean
from dflash_tui.commands import slash
from dflash_tui.commands.palette import ActionProvider
from dflash_tui.flow import Flow, explain
from dflash_tui.history import History
from dflash_tui.keys import bindings
from dflash_tui.loading import Loading
from dflash_tui.screens.gauges import Gauges
from dflash_tui.screens.help import HelpScreen
from dflash_tui.session import Loader, OnPrefill, SessionLike, TurnLike
from dflash_tui.widgets.inspector import Inspector
from dflash_tui.widgets.knob_row import KnobRow
from dflash_tui.widgets.lines import Flash, LoadingLine
from dflash_tui.widgets.note import Note
from dflash_tui.widgets.prompt import Prompt
from dflash_tui.widgets.strip import StatusStrip, TitleRow
from dflash_tui.widgets.transcript import Transcript, TurnBlock

NARROW, WIDE, SHORT = 110, 160, 34
LEAST = (40, 12)
MODEL_KEYS = "Ctrl+R loads again. Ctrl+Q quits; dflash-tui doctor looks at the machine, --demo needs no files."


class ChatScreen(Screen[None]):
    """Holds the session, the parameters of the next turn, and the one turn that may run."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings()]
    COMMANDS = Screen.COMMANDS | {ActionProvider}
    AUTO_FOCUS = "#prompt"

    def __init__(self, loader: Loader, knobs: Knobs, history: History, title: str) -> None:
        super().__init__()
        self.knobs = knobs
        self.used = knobs
        self.session: SessionLike | None = None
        self.past = history
        self._loader = loader
        self._loading: Loading | None = None
        self._title = title
        self._queue: list[TurnBlock] = []
        self._side = {True: False, False: True}  # by narrow
        self.flow = Flow(self, self, history.folder)
        self.gauges = Gauges(self)

    def compose(self) -> ComposeResult:
        with Container(id="main"):
            yield TitleRow(id="title")
            with Container(id="body"):
                yield Transcript()
                yield Inspector(self.knobs)
            yield LoadingLine()
            yield Flash()
            yield StatusStrip(id="strip")
            with Horizontal(id="prompt-row"):
                yield Static("❯", id="prompt-mark")
                yield Prompt(self.past)
            yield Footer(show_command_palette=False, compact=True)
        yield Static("", id="tiny", markup=False)

    def on_mount(self) -> None:
        self.query_one(TitleRow).title = self._title
        self._lay_out(self.size.width, self.size.height)
        self.show_knobs()
        self.prompt.restore(self.past.load_draft())
        self.say_problem()
        self.set_interval(0.25, self.gauges.tick)
        self.call_after_refresh(self.load)

    # Parts

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def inspector(self) -> Inspector:
        return self.query_one(Inspector)

    @property
    def loading_now(self) -> bool:
        return self._loading is not None  # also in the moment between its end and the look at how it ended

    def say(self, text: str) -> None:
        """A small fact above the prompt."""
        self.query_one(Flash).say(text)

    def say_problem(self) -> None:
        """Say once that prompts cannot be kept."""
        if self.past.problem:
            self.notify(self.past.problem, title="Prompt history", severity="warning", markup=False)
            self.past.problem = ""

    # Loading

    def load(self) -> None:
        """Start the loader's thread; the first frame is on the screen by now."""
        self._loading = Loading(self._loader)
        self._loading.start()
        self.query_one(LoadingLine).begin()
        self.set_timer(0.05, self._look_at_loading)

    async def _look_at_loading(self) -> None:
        loading = self._loading
        if loading is None:
            return
        over = loading.over
        line = self.query_one(LoadingLine)
        line.show(loading.phase, loading.fraction)
        if not over:
            self.set_timer(0.1, self._look_at_loading)
            return
        line.display = False
        self._loading = None
        if loading.session is not None:
            await self._loaded(loading.session)
        elif loading.error is not None:
            message, _ = explain(loading.error, loading.trace, self.past.folder)
            await self.transcript.note(Note(f"the model did not load: {message}", MODEL_KEYS))
            for block in self._queue:
                block.queued("waits for a model")
            self.say("no model is loaded; what you typed is kept")

    async def _loaded(self, session: SessionLike) -> None:
        self.session = session
        if self.knobs == self.used and self.knobs == Knobs():
            self.knobs = self.used = session.knobs
            self.show_knobs()
        self.query_one(TitleRow).title = session.title
        for note in session.notes:
            await self.transcript.note(Note(note, kind="info"))
        self.gauges.context()
        await self.gauges.memory()
        gc.freeze()  # what is here now stays: the collector need not walk it while tokens arrive
        await self._next_queued()

    # Turns

    @on(Prompt.Submitted)
    async def send(self, event: Prompt.Submitted) -> None:
        """Enter in the prompt."""
        if slash.is_command(event.text):
            try:
                await slash.run(event.text, self)
            except slash.SlashError as error:
                self.say(str(error))
                return
            self.prompt.accept()
            return
        if self.flow.busy:
            self.say("an answer is being written: Esc stops it; your text stays here")
        elif self.session is None and not self.loading_now:
            self.say("no model is loaded: Ctrl+R loads again; your text stays here")
        else:
            block = await self.transcript.add_turn(slash.as_message(event.text))
            self.prompt.accept()
            self.say_problem()
            if self.session is None:
                block.queued("queued: it is sent when the model is ready")
                self._queue.append(block)
            else:
                await self._ask(block)

    async def _ask(self, block: TurnBlock) -> None:
        """Answer a message: for the first time, or again where the conversation holds it already."""
        if self.session is None:
            return
        if self.flow.busy:  # a retry was asked for while this message was put on the screen
            block.queued("queued: it is sent after this answer")
            self._queue.append(block)
            return
        if not block.entered and self.prompt.text == block.prompt:
            self.prompt.text = ""  # a refused message that had been given back is on its way again
        self._use_knobs()
        conversation, knobs = self.session.conversation, self.used

        def open_turn(on_prefill: OnPrefill) -> TurnLike:
            if block.entered:
                return conversation.retry(knobs, on_prefill=on_prefill)
            return conversation.ask(block.prompt, knobs, on_prefill=on_prefill)

        await self.flow.begin(block, open_turn, knobs)
        self._set_busy()

    async def action_retry(self) -> None:
        """The last message again, or the loader where it failed."""
        turns = self.transcript.turns
        if self.session is None:
            if self.loading_now:
                self.say("still loading")
            else:
                self.load()
        elif self.flow.busy:
            self.say("an answer is being written: Esc stops it, then Ctrl+R answers again")
        elif not turns:
            self.say("nothing to retry yet")
        else:
            block = turns[-1]
            await self._ask(block)

    def turn_ended(self, block: TurnBlock, *, refused: bool) -> None:
        """The flow is idle again."""
        self._set_busy()
        if refused and not self.prompt.text.strip():
            self.prompt.restore(block.prompt)
        self.gauges.turn_ended()
        self.call_next(self._next_queued)

    async def _next_queued(self) -> None:
        if self._queue and not self.flow.busy:
            await self._ask(self._queue.pop(0))

    def _set_busy(self) -> None:
        # On this row only: a class on the screen restyles every widget of the conversation.
        self.query_one("#prompt-row").set_class(self.flow.busy, "-busy")
        self.gauges.draw()

    # Parameters

    def set_knobs(self, **changes: int | float | bool | str) -> None:
        """Change the next turn. Raises KnobError."""
        self.knobs = self.knobs.replace(**changes)
        self.show_knobs()

    def _use_knobs(self) -> None:
        self.used = self.knobs
        self.show_knobs()

    def show_knobs(self) -> None:
        """Put the present parameters into the panel and the strip."""
        self.inspector.params_panel.show(self.knobs, self.used)
        self.gauges.strip()

    @on(KnobRow.Changed)
    def _knob_changed(self, event: KnobRow.Changed) -> None:
        try:
            self.set_knobs(**{event.name: event.value})
        except KnobError as error:
            self.say(str(error))
            self.show_knobs()

    @on(KnobRow.Refused)
    def _knob_refused(self, event: KnobRow.Refused) -> None:
        self.say(event.reason)

    def action_think(self) -> None:
        self.set_knobs(thinking=not self.knobs.thinking)
        self.say(f"thinking {'on' if self.knobs.thinking else 'off'} from the next turn")

    def action_reset(self) -> None:
        self.knobs = Knobs()
        self.show_knobs()
        self.say("every parameter is at its default from the next turn")

    # Actions

    def action_stop(self) -> None:
        if self.flow.busy:
            self.flow.stop()
        elif self.has_class("-drawer"):
            self.action_side()
        else:
            self.prompt.focus()

    def action_panel(self, name: str) -> None:
        """Show a panel of the inspector; in a drawer the same key closes it again."""
        if self.has_class("-drawer") and self.inspector.active == name:
            self.action_side()
            return
        if not self.has_class("-side"):
            self._side[self.has_class("-narrow")] = True
            self._lay_out(self.size.width, self.size.height)
        self.inspector.enter(name)

    def action_side(self) -> None:
        narrow = self.has_class("-narrow")
        self._side[narrow] = not self._side[narrow]
        self._lay_out(self.size.width, self.size.height)
        if not self._side[narrow]:
            self.prompt.focus()

    def action_fold(self) -> None:
        answer = self.transcript.answer
        if answer is None or not answer.thinking.text:
            self.say("the newest answer has no thinking")
        else:
            answer.thinking.line.action_fold()

    def action_copy(self) -> None:
        answer = self.transcript.answer
        if answer is None or not answer.text:
            self.say("no answer to copy yet")
        else:
            self.app.copy_to_clipboard(answer.text)
            self.say(f"copied the answer, {len(answer.text)} characters")

    async def action_clear(self) -> None:
        if self.flow.busy:
            self.say("an answer is being written: Esc stops it, then /clear")
            return
        if self.session is not None:
            self.session.clear()
        await self.transcript.clear()
        self._queue.clear()
        self.gauges.turn_ended()

    def action_help(self) -> None:
        about = getattr(self.focused, "HELP", None) or ""
        self.app.push_screen(HelpScreen(about))

    def quit(self) -> None:
        self.call_next(self.app.action_quit)

    # Layout

    def on_key(self, event: Key) -> None:
        """Text typed anywhere goes to the prompt, unless the widget in focus has a use for the key."""
        if not event.is_printable or not event.character or event.key.startswith("alt+"):
            return
        if isinstance(self.focused, TextArea):
            return
        if event.key not in self.active_bindings:
            self.prompt.focus()
            self.prompt.insert(event.character)
            event.stop()

    def on_resize(self, event: Resize) -> None:
        self._lay_out(event.size.width, event.size.height)

    def _lay_out(self, width: int, height: int) -> None:
        """State classes decide the layout; the sheet does the rest."""
        narrow = width < NARROW
        self.set_class(narrow, "-narrow")
        self.set_class(width >= WIDE, "-wide")
        self.set_class(height < SHORT, "-short")
        self.set_class(self._side[narrow], "-side")
        self.set_class(narrow and self._side[narrow], "-drawer")
        tiny = width < LEAST[0] or height < LEAST[1]
        self.set_class(tiny, "-tiny")
        if tiny:
            text = f"This terminal is {width}x{height}; dflash-tui needs {LEAST[0]}x{LEAST[1]} or more. Enlarge it."
            self.query_one("#tiny", Static).update(text)
        self.call_after_refresh(self.gauges.draw)

    @on(Inspector.Switched)
    def _panel_switched(self) -> None:
        self.call_after_refresh(self.gauges.draw)

    @on(Prompt.Scrolled)
    def _scroll(self, event: Prompt.Scrolled) -> None:
        if event.where == "up":
            self.transcript.scroll_page_up()
        elif event.where == "down":
            self.transcript.scroll_page_down()
        else:
            self.transcript.anchor()

    @on(Markdown.LinkClicked)
    def _link_clicked(self, event: Markdown.LinkClicked) -> None:
        """A link that a model wrote is copied, never opened."""
        self.app.copy_to_clipboard(clean(event.href))
        self.say(f"copied the link {clean(event.href)}")
