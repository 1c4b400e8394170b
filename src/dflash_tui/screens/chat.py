"""The main screen: conversation, inspector, status strip, prompt. It composes these parts and binds the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.events import Key, Paste, Resize, ScreenResume
from textual.screen import Screen
from textual.widgets import TextArea

from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs
from dflash_tui.application.conversations.history import History
from dflash_tui.application.experiment import UNDER_WAY
from dflash_tui.application.session import Loader, SessionLike
from dflash_tui.application.settings.presets import Presets
from dflash_tui.application.settings.remembered import Remembered
from dflash_tui.chat import collector
from dflash_tui.chat.downloads import Downloads
from dflash_tui.chat.flow import Flow
from dflash_tui.chat.gauges import Gauges
from dflash_tui.chat.layout import Layout
from dflash_tui.chat.loading import PairLoading
from dflash_tui.chat.tuning import Tuning
from dflash_tui.screens.late_parts import LateParts
from dflash_tui.screens.pages import PAGES, action_provider
from dflash_tui.settings.keys import bindings
from dflash_tui.text.commands import is_command
from dflash_tui.widgets.completions import Completions
from dflash_tui.widgets.find_bar import FindBar
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.inspector import Inspector
from dflash_tui.widgets.key_line import KeyLine
from dflash_tui.widgets.knob_row import KnobRow
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.loading_line import LoadingLine
from dflash_tui.widgets.params import ParamsPanel
from dflash_tui.widgets.preset_row import PresetRow
from dflash_tui.widgets.prompt import Prompt
from dflash_tui.widgets.start import StartPage
from dflash_tui.widgets.strip import StatusStrip, TitleRow
from dflash_tui.widgets.transcript import Transcript, TurnBlock

if TYPE_CHECKING:
    from textual.widgets import Markdown

    from dflash_tui.application.experiment import Experiment
    from dflash_tui.widgets.markdown import Fence

NO_THINKING = "the newest answer has no thinking"
TAKEN_BACK = "messages for the other model are back in the prompt"


class ChatScreen(LateParts, Screen[None]):
    """Holds the session, the parameters of the next turn, and the one turn that may run."""

    SCOPE: ClassVar[str] = "chat"
    # Esc stops an answer. While none is being written, `check_action` leaves the key to whatever is open.
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE), Binding("escape", "close", "Close")]
    COMMANDS = Screen.COMMANDS | {action_provider}
    AUTO_FOCUS = "#prompt"
    REFUSED: ClassVar[frozenset[str]] = frozenset()
    """Ids of actions, and names of commands, that have no effect: neither the help nor anything else offers them."""

    def __init__(
        self, loader: Loader, knobs: Knobs, history: History, title: str, resume: str = "", system: str = ""
    ) -> None:
        super().__init__()
        self.knobs = knobs
        self.used = knobs
        self.session: SessionLike | None = None
        self.past = history
        self._title = title
        self.resumed = resume
        self.system = system
        self._begun = False  # the first frame is drawn, and deferred work has begun
        self.flow = Flow(self, self, history.folder)
        self.experiment: Experiment | None = None  # the lab's running experiment
        self.gauges = Gauges(self)
        self.tuning = Tuning(self, Presets())
        self.pair = PairLoading(self, loader, self.loaded, self._not_loaded, self._kept, self._came_back)
        self.downloads = Downloads(self, lambda seconds, how: self.program.tell_away(seconds, how))
        self.remembered = Remembered(history.folder)
        self.places = Layout(self, self.gauges, self.remembered)
        self._find = FindBar()
        self._completions = Completions()

    def compose(self) -> ComposeResult:
        self.places.resized(self.app.size)
        with Container(id="main"):
            yield TitleRow(id="title")
            with Container(id="body"):
                with Container(id="talk"):
                    yield Transcript()
                    yield LoadingLine()
                    yield self._completions
                    yield Flash()
                yield Inspector(self.knobs, without=self.REFUSED)
            yield self._find
            yield StatusStrip(id="strip")
            with Horizontal(id="prompt-row"):
                yield Static("❯", id="prompt-mark")
                yield Prompt(self.past)
            yield KeyLine()
        yield Static("", id="tiny")

    def on_mount(self) -> None:
        self.query_one(TitleRow).title = self._title
        self.places.resized(self.size)
        self.prompt.completions = self._completions
        self.prompt.notebook = lambda: self.conversation.current
        self.prompt.examples = lambda: self.transcript.start.examples
        self.prompt.offers = lambda: "Tour" if self._tour_offered else ""
        self.transcript.start.offers_tour = "tour seen" not in self.remembered
        self.inspector.params_panel.unfold("parameters unfolded" in self.remembered)
        self.show_knobs()
        self.set_interval(1, self.gauges.tick)

    def on_screen_resume(self, event: ScreenResume) -> None:
        event.refresh_styles = self._begun  # newly created widgets already have their styles

    def _compositor_refresh(self) -> None:
        # During a batch update Textual would render the frame, drop it, and not render all of it again later.
        if self.app._batch_count:
            self.refresh()
        else:
            super()._compositor_refresh()

    def displayed(self) -> None:
        """The terminal has received a frame. Work that the first frame does not need starts after it, so that it does
        not delay the drawing."""
        if not self._begun and self.is_mounted and not self.app._batch_count:
            self._begun = True
            self.call_next(self._begin)

    async def _begin(self) -> None:
        self.inspector.params_panel.complete()
        await self.conversation.begin()
        self.conversation.tell_problems()
        self.tuning.tell_problems()
        self.pair.begin()
        self.downloads.take_over()

    def on_unmount(self) -> None:
        self.plain.stop()
        self.downloads.stop()
        if self._conversation is not None:
            self._conversation.current.close()

    def last_words(self) -> list[str]:
        """Where typed and generated text is kept, for when the program ends by a fault or a signal."""
        if self._conversation is None:  # nothing was typed, or the store could not be opened
            return []
        typed = any(prompt.text.strip() for prompt in self.query(Prompt))
        return ["your text comes back at the next start"] * typed + self._conversation.last_words()

    def warning(self) -> str:
        """What quitting now would lose; empty if nothing."""
        return self._conversation.warning() if self._conversation is not None else ""

    @property
    def resumable(self) -> str:
        """The id under which the next start finds the present conversation; "" if there is none, or it will not."""
        return self._conversation.resumable if self._conversation is not None and not self.no_model else ""

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
    def no_model(self) -> str:
        """Why no model can be asked or loaded on this screen; empty because here one can."""
        return ""

    @property
    def model(self) -> str:
        return self.session.title if self.session is not None else ""

    @property
    def busy(self) -> bool:
        """An answer is being written."""
        return self.flow.busy

    @property
    def loading_now(self) -> bool:
        return self.pair.now

    @property
    def waiting(self) -> bool:
        """Sent messages are waiting for the model."""
        return self.sending.waiting

    def say(self, what: str | Exception) -> None:
        """Show a short notice above the prompt, or why something is refused."""
        self.query_one(Flash).say(what)

    async def loaded(self) -> None:
        """`session` is now another pair."""
        self.program.loaded()
        await self._use_session()
        await self.sending.next()

    async def _came_back(self) -> None:
        """Another pair failed to load; `session` is the previous one, loaded again."""
        self.program.came_back()
        await self._use_session()
        self.refresh_bindings()
        await self.sending.take_all_back(TAKEN_BACK)

    async def _use_session(self) -> None:
        """`session` has just been loaded: continue the conversation with it."""
        self.tuning.loaded()
        self.conversation.model_loaded()
        self.gauges.context()
        await self.gauges.memory()
        collector.calm()

    def _not_loaded(self) -> None:
        self.program.not_loaded()
        collector.calm()
        self.sending.no_model()
        self.gauges.start()
        self.refresh_bindings()

    async def _kept(self) -> None:
        """The requested pair is not usable; `session` is still the previous one."""
        self.program.kept()
        self.gauges.context()
        collector.calm()
        self.refresh_bindings()
        await self.sending.take_all_back(TAKEN_BACK)

    # Turns

    @on(Prompt.Submitted)
    async def _submitted(self, event: Prompt.Submitted) -> None:
        """Enter in the prompt: a command or a message. The notice about the previous one is outdated, so hide it."""
        self.query_one(Flash).hide()
        if not is_command(event.text):
            await self.sending.send(event.text, event.typed)
            self.tour_seen()
            return
        from dflash_tui.slash import table as slash

        self.conversation.current.waits_no_more(event.text)
        try:
            await slash.run(event.text, self)
        except DFlashError as error:
            self.sending.give_back(event.text, error)
        else:
            self.past.add(event.text)

    async def action_retry(self) -> None:
        """Ask the last message again, or load again if the load failed."""
        if self.session is not None:
            await self.sending.retry()
        elif self.loading_now:
            self.say("still loading")
        else:
            self.pair.begin()

    def draw_figures(self) -> None:
        """Draw the figures of the running turn, together with one of its frames."""
        self.gauges.frame()

    def turn_began(self) -> None:
        """An answer is on its way."""
        # On this row only: a class on the screen restyles every widget of the conversation.
        self.query_one("#prompt-row").set_class(self.busy, "-busy")
        self.refresh_bindings()
        self.show_knobs()
        self.gauges.draw()

    def turn_ended(self, block: TurnBlock, *, refused: bool) -> None:
        """The flow is idle again."""
        if refused:
            self.tuning.refused()
        self.turn_began()
        self.gauges.turn_ended()
        self.program.turn_ended(refused=refused)
        self.plain.turn_ended()
        self.call_next(self.conversation.ended, block, refused=refused)
        self.sending.turn_ended(block, refused=refused)

    # Parameters

    def set_knobs(self, **changes: int | float | bool | str) -> None:
        """Change the next turn. Raises KnobError."""
        self.tuning.set(changes)

    def set_all_knobs(self, knobs: Knobs) -> None:
        """Replace all parameters of the next turn. Raises KnobError if the loaded pair does not support them."""
        self.tuning.set_all(knobs)

    def show_knobs(self) -> None:
        """Put the present parameters into the panel and the strip."""
        self.tuning.show()
        self.gauges.strip()

    @on(KnobRow.Changed)
    def _knob_changed(self, event: KnobRow.Changed) -> None:
        self.tuning.moved(event.name, event.value)

    @on(PresetRow.Chosen)
    def _preset_chosen(self, event: PresetRow.Chosen) -> None:
        self.tuning.chosen(event.name)

    # First use

    @on(StartPage.Chosen)
    def _example_chosen(self, event: StartPage.Chosen) -> None:
        if self.prompt.text not in self.transcript.start.examples:
            self.past.add(self.prompt.whole)  # the arrow keys bring back the text typed so far
        self.prompt.text = event.text
        self.prompt.move_cursor(self.prompt.document.end)
        self.prompt.focus()

    @on(Prompt.Nothing)
    def _nothing_entered(self) -> None:
        """Enter starts the tour that the page of an empty conversation offers."""
        if self._tour_offered:
            self.open_page("tour")

    @property
    def _tour_offered(self) -> bool:
        return self.transcript.start.display and self.transcript.start.offers_tour

    def tour_seen(self) -> None:
        """The tour need not be offered again."""
        self.remembered.put("tour seen", True)
        self.transcript.start.offers_tour = False
        self.gauges.start()

    @on(ParamsPanel.Folded)
    def _parameters_folded(self, event: ParamsPanel.Folded) -> None:
        self.remembered.put("parameters unfolded", event.open)

    @on(KnobRow.Refused)
    def _knob_refused(self, event: KnobRow.Refused) -> None:
        self.say(event.reason)

    def action_think(self) -> None:
        self.tuning.think_on()

    def action_apply(self) -> None:
        self.tuning.apply()

    def action_preset(self) -> None:
        self.tuning.cycle()

    def action_nudge(self, name: str, steps: int) -> None:
        self.tuning.nudge(name, steps)

    def action_reset(self) -> None:
        self.tuning.reset()

    # Actions

    def action_empty(self) -> None:
        self.prompt.rewrite("")
        self.prompt.focus()

    def action_editor(self) -> None:
        """The prompt's text in the user's editor; if that fails, the text stays as it was."""
        from dflash_tui.terminal.editor import edited

        whole = self.prompt.whole
        try:
            text = edited(whole, self.app.suspend)
        except DFlashError as error:
            self.say(error)
        else:
            if text != whole:
                self.prompt.rewrite(text)
        self.prompt.focus()

    def action_stop(self) -> None:
        if self.experiment is not None:
            self.experiment.stop()
        else:
            self.flow.stop()

    def action_answer_now(self) -> None:
        self.say(self.flow.answer_now())

    def action_close(self) -> None:
        """Esc while no answer is being written."""
        if self.app._notifications:  # they cover what is below them
            self.app.clear_notifications()
        elif self._completions.chosen is not None:
            self._completions.show(())
        elif self._find.display:
            self._find.action_leave()
        elif self.places.drawer:
            self.places.toggle()
        elif not self.conversation.branching.leave_edit():
            self.prompt.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Esc stops while there is something to stop; the footer names what it does now."""
        runs = self.busy or self.experiment is not None
        if action == "stop":
            return runs
        # The key line calls this for every key twice a second, so it queries no widgets.
        if action == "found":
            return self._find.display
        if action == "close":
            branching = self._conversation is not None and self._conversation.branching.open
            over = self._completions.chosen is not None or bool(self.app._notifications)
            opened = self.places.drawer or branching or self._find.display or over
            return not runs and (opened or self.focused is not self.prompt)
        return super().check_action(action, parameters)

    def hint(self, action: str, label: str) -> str:
        """Retry is offered only if there is a message to answer again or a load that failed, and "Answer now" while
        the model reasons."""
        if action == "retry":
            again = self.transcript.turns if self.session is not None else not self.loading_now
            return label if again and not (self.busy or self.experiment is not None) else ""
        if action == "empty":
            return label if self.prompt.is_long else ""
        if action == "answer_now":
            return label if self.flow.reasoning else ""
        if action == "download":
            return label if self.downloads.next is not None else ""
        return label

    async def action_edit(self) -> None:
        """Take back a waiting message, the chosen or the last one. If none waits, begin a new version of a message."""
        branching = self.conversation.branching
        if not await self.sending.take_back_one(branching.chosen_block):
            branching.edit()

    def action_rename(self) -> None:
        self.conversation.files.ask_title(None, self.say)

    def action_export(self) -> None:
        self.conversation.files.ask_file(None, self.say)

    def action_choose(self, by: int) -> None:
        self.conversation.branching.choose(by)

    async def action_version(self, by: int) -> None:
        await self.conversation.branching.switch(by)

    def action_panel(self, name: str) -> None:
        self.places.panel(name)

    def action_side(self) -> None:
        self.places.toggle()

    def action_fold(self) -> None:
        if self.transcript.toggle_thinking():
            self.query_one(Flash).outdated(NO_THINKING)  # thinking may have begun since
        else:
            self.say(NO_THINKING)

    def action_find(self) -> None:
        self._find.begin()

    def action_found(self, count: int) -> None:
        self._find.action_go(count)

    def action_copy(self) -> None:
        self.copying.message()

    def action_copy_code(self) -> None:
        self.copying.code()

    def on_fence_copied(self, event: Fence.Copied) -> None:
        self.copying.clicked(event.code)

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        self.copying.link(event.href)

    async def action_continue(self) -> None:
        await self.conversation.open_last()

    async def action_clear(self) -> None:
        if self.busy:
            self.say("an answer is being written: Esc stops it, then /clear")
            return
        if self.experiment is not None:
            self.say(UNDER_WAY)
            return
        if self.session is not None:
            self.session.clear()
        self.sending.clear()  # first: the next message must not be taken from the queue while its widget goes
        await self.conversation.clear()

    def open_page(self, page: str, text: str = "") -> None:
        """Open one of the screens of `pages.py` over the chat. A lab screen runs `text` at once."""
        opened = PAGES[page](self, text)
        if type(self.app.screen) is not type(opened):  # two messages may be refused in quick succession
            self.app.push_screen(opened)

    action_open = open_page

    def action_download(self) -> None:
        """Show the finished or running download; if there is none, what can be fetched."""
        it = self.downloads.next
        self.open_page("get", it.pair.name if it is not None else "")

    def action_notices(self) -> None:
        self.program.show_notices()

    def action_log(self) -> None:
        self.program.say_where_the_log_is()

    def action_reload(self) -> None:
        self.program.reload()

    @property
    def about_focused(self) -> str:
        """The help of the focused widget."""
        return getattr(self.focused, "HELP", None) or ""

    def action_help(self) -> None:
        from dflash_tui.screens.help import HelpScreen

        self.app.push_screen(HelpScreen(self.about_focused, without=self.REFUSED))

    # Layout and text

    def take_text(self, event: Key | Paste) -> None:
        """As `Typed.take`: called before the focused widget gets the event."""
        self.typed.take(event)

    def on_resize(self, event: Resize) -> None:
        self.places.resized(event.size)

    @on(TextArea.Changed, "#prompt")
    def _typed(self) -> None:
        self.transcript.start.mark(self.prompt.text)
        self.typed.changed()

    @on(Inspector.Switched)
    def _panel_switched(self) -> None:
        self.call_after_refresh(self.gauges.draw)

    @on(Prompt.Scrolled)
    def _scroll(self, event: Prompt.Scrolled) -> None:
        self.transcript.page(event.where)
