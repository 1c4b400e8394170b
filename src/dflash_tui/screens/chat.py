"""The main screen: it composes conversation, inspector, status strip and prompt, and binds the keys."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar

from textual import getters, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.dom import DOMNode
from textual.events import Key, Paste, Resize, ScreenResume
from textual.screen import Screen
from textual.widgets import TextArea

from dflash_core.clean import clean
from dflash_core.errors import DFlashError
from dflash_tui.application.log import log_file
from dflash_tui.chat.gauges import Gauges
from dflash_tui.chat.layout import ChatLayout
from dflash_tui.chat.state import AppState
from dflash_tui.chat.tuning import Tuning
from dflash_tui.screens import pages
from dflash_tui.settings.keys import actions_without, bindings
from dflash_tui.terminal.editor import edited
from dflash_tui.widgets.dialogs import TextScreen
from dflash_tui.widgets.find_bar import FindBar
from dflash_tui.widgets.flash import Flash, reported
from dflash_tui.widgets.inspector import Inspector
from dflash_tui.widgets.key_line import KeyLine
from dflash_tui.widgets.knob_row import KnobRow, PresetRow
from dflash_tui.widgets.literal import Copy, Static
from dflash_tui.widgets.mixins import OneMap
from dflash_tui.widgets.params import ParamsPanel
from dflash_tui.widgets.prompt import Completions, Prompt, is_command
from dflash_tui.widgets.strip import LoadingLine, StatusStrip, TitleRow
from dflash_tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from textual.widgets import Markdown

    from dflash_tui.chat.parts import ChatParts

NO_THINKING = "the newest answer has no thinking"


def _of(method: str) -> property:
    return property(attrgetter(method))


class ChatScreen(Screen[None]):
    """Shows the state of the chat, and passes what the user does to its controllers."""

    SCOPE: ClassVar[str] = "chat"
    # Esc stops an answer. While none is being written, `check_action` leaves the key to whatever is open.
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE), Binding("escape", "close", "Close")]
    COMMANDS = Screen.COMMANDS | {pages.action_provider}
    AUTO_FOCUS = "#prompt"

    def __init__(self, state: AppState) -> None:
        super().__init__()
        self._compositor = OneMap()
        self.state = state
        self._begun = False  # the first frame is drawn, and deferred work has begun
        self.gauges = Gauges(state, self)
        self.tuning = Tuning(state, self, self.gauges)
        self.places = ChatLayout(state, self, self.gauges)
        self._find = FindBar()
        self._completions = Completions()

    @cached_property
    def parts(self) -> ChatParts:
        """The controllers that the first frame does not need: made after it, or at their first use."""
        from dflash_tui.chat.parts import ChatParts
        from dflash_tui.slash import table as slash

        return ChatParts(
            self.state, self, self.gauges, self.tuning, self.places, self.open_page, slash.complete, slash.run
        )

    @property
    def made(self) -> ChatParts | None:
        """The parts, for code that must not make them."""
        return self.__dict__.get("parts")

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
                yield Inspector(self.state.knobs, without=self.state.refused)
            yield self._find
            yield StatusStrip(id="strip")
            with Horizontal(id="prompt-row"):
                yield Static("❯", id="prompt-mark")
                yield Prompt(self.state.past, self._completions)
            yield KeyLine()
        yield Static("", id="tiny")

    def on_mount(self) -> None:
        self.query_one(TitleRow).title = self.state.request.title(endings=True)
        self.places.resized(self.size)
        self.prompt.notebook = lambda: self.state.conversation
        self.prompt.examples = lambda: self.transcript.start.examples
        self.prompt.offers = lambda: "Tour" if self._tour_offered else ""
        self.transcript.start.offers_tour = "tour seen" not in self.state.remembered
        self.inspector.params_panel.unfold("parameters unfolded" in self.state.remembered)
        self.tuning.show()
        self.set_interval(1, self.gauges.tick)

    def on_screen_resume(self, event: ScreenResume) -> None:
        event.refresh_styles = self._begun  # newly created widgets already have their styles

    def update_node_styles(self, animate: bool = True) -> None:
        """Also called when the chat is the top screen again, and when the terminal gets or loses the focus. Messages
        keep their styles: none of their rules depends on that or on the layout, and a long conversation has over a
        thousand widgets. A new theme does not come this way."""
        self.app.stylesheet.update_nodes(_outside_messages(self), animate=animate)

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
        self.inspector.params_panel.after_first_frame()
        await self.parts.begin()

    def on_unmount(self) -> None:
        if self.made is not None:
            self.made.stop()
        if self.state.opened is not None:
            self.state.opened.close()

    def last_words(self) -> list[str]:
        """Where typed and generated text is stored, for when the program ends by a fault or a signal."""
        if self.state.opened is None:  # nothing was typed, or the store could not be opened
            return []
        typed = any(prompt.text.strip() for prompt in self.query(Prompt))
        return ["your text comes back at the next start"] * typed + self.parts.conversation.last_words()

    prompt = getters.query_one(Prompt)
    transcript = getters.query_one(Transcript)
    inspector = getters.query_one(Inspector)

    def say(self, what: str | Exception) -> None:
        self.query_one(Flash).say(what)

    # Turns and parameters

    @on(Prompt.Submitted)
    async def _submitted(self, event: Prompt.Submitted) -> None:
        """Enter in the prompt: a command or a message. The notice about the previous one is outdated, so hide it."""
        self.query_one(Flash).hide()
        parts = self.parts
        if not is_command(event.text):
            await parts.sending.send(event.text, event.typed)
            parts.tour_seen()
            return
        self.state.conversation.waits_no_more(event.text)
        try:
            await parts.run(event.text, parts)
        except DFlashError as error:
            parts.sending.give_back(event.text, error)
        else:
            self.state.past.add(event.text)

    async def action_retry(self) -> None:
        if self.state.session is not None:
            await self.parts.sending.retry()
        elif self.state.loading:
            self.say("still loading")
        else:
            self.parts.program.begin()

    @on(KnobRow.Changed)
    def _knob_changed(self, event: KnobRow.Changed) -> None:
        self.tuning.moved(event.name, event.value)

    @on(KnobRow.Refused)
    def _knob_refused(self, event: KnobRow.Refused) -> None:
        self.say(event.reason)

    @on(PresetRow.Chosen)
    def _preset_chosen(self, event: PresetRow.Chosen) -> None:
        self.tuning.chosen(event.name)

    @on(ParamsPanel.Folded)
    def _parameters_folded(self, event: ParamsPanel.Folded) -> None:
        self.state.remembered.put("parameters unfolded", event.open)

    action_think = _of("tuning.think_on")
    action_apply = _of("tuning.apply")
    action_preset = _of("tuning.cycle")
    action_greedy = _of("tuning.greedy")
    action_nudge = _of("tuning.nudge")
    action_reset = _of("tuning.reset")
    action_reload = _of("parts.program.reload")

    # First use

    def action_example(self, text: str) -> None:
        """An example was clicked: put it into the prompt."""
        if self.prompt.text not in self.transcript.start.examples:
            self.state.past.add(self.prompt.whole)  # the arrow keys bring back the text typed so far
        self.prompt.fill(text)
        self.prompt.focus()

    @on(Prompt.Nothing)
    def _nothing_entered(self) -> None:
        """Enter starts the tour that the page of an empty conversation offers."""
        if self._tour_offered:
            self.open_page("tour")

    @property
    def _tour_offered(self) -> bool:
        return self.transcript.start.display and self.transcript.start.offers_tour

    # Actions

    def action_empty(self) -> None:
        self.prompt.rewrite("")
        self.prompt.focus()

    def action_editor(self) -> None:
        """The prompt's text in the user's editor; if that fails, the text stays as it was."""
        with reported(self.say):
            if (text := edited(whole := self.prompt.whole, self.app.suspend)) != whole:
                self.prompt.rewrite(text)
        self.prompt.focus()

    def action_stop(self) -> None:
        if self.state.experiment is not None:
            self.state.experiment.stop()
        elif self.state.calling:
            self.parts.tools.stop()
        else:
            self.parts.sending.flow.stop()

    action_answer_now = _of("parts.sending.flow.answer_now")

    def action_close(self) -> None:
        if self.app._notifications:  # they cover what is below them
            self.app.clear_notifications()
        elif self._completions.chosen is not None:
            self._completions.show(())
            if self.prompt.text == "/":  # a command that is cancelled before its first letter leaves nothing
                self.prompt.text = ""
        elif self._find.display:
            self._find.action_leave()
        elif self.places.drawer:
            self.places.toggle()
        elif not self.parts.conversation.branching.leave_edit():
            self.prompt.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Esc stops while there is something to stop; the footer names what it does now."""
        runs = self.state.busy or self.state.experiment is not None
        if action == "stop":
            return runs
        # The key line calls this for every key twice a second, so it queries no widgets.
        if action == "found":
            return self._find.display
        if action == "close":
            branching = self.made is not None and self.made.conversation.branching.open
            over = self._completions.chosen is not None or bool(self.app._notifications)
            opened = self.places.drawer or branching or self._find.display or over
            return not runs and (opened or self.focused is not self.prompt)
        return super().check_action(action, parameters)

    def hint(self, action: str, label: str) -> str:
        """Retry is offered only if there is a message to answer again or a load that failed, and "Answer now" while
        the model reasons."""
        state, possible = self.state, action not in actions_without(self.state.refused)
        if action == "retry":
            again = self.transcript.turns if state.session is not None else not state.loading
            possible = bool(again) and not (state.busy or state.experiment is not None)
        elif action == "answer_now":
            possible = state.turn.reasoning
        elif action == "empty":
            possible &= self.prompt.is_long
        elif action == "download":
            possible &= self.made is not None and self.made.downloads.next is not None
        return label if possible else ""

    async def action_edit(self) -> None:
        """Take back a waiting message, the chosen or the last one. If none waits, begin a new version of a message."""
        branching = self.parts.conversation.branching
        if not await self.parts.sending.take_back_one(branching.chosen_block):
            branching.edit()

    action_rename = _of("parts.conversation.files.ask_title")
    action_export = _of("parts.conversation.files.ask_file")
    action_choose = _of("parts.conversation.branching.choose")
    action_version = _of("parts.conversation.branching.switch")
    action_continue = _of("parts.conversation.open_last")
    action_clear = _of("parts.conversation.start_new")
    action_copy = _of("parts.copying.message")
    action_copy_code = _of("parts.copying.code")
    action_panel = _of("places.panel")
    action_side = _of("places.toggle")
    action_page = _of("transcript.page")
    action_find = _of("_find.begin")
    action_found = _of("_find.action_go")

    def action_fold(self) -> None:
        if self.transcript.toggle_thinking():
            self.query_one(Flash).outdated(NO_THINKING)  # thinking may have begun since
        else:
            self.say(NO_THINKING)

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """A link written by a model is copied, never opened."""
        address = clean(event.href)
        self.post_message(Copy(address, f"the link {address}"))

    def open_page(self, page: str, text: str = "") -> None:
        """Open one of the screens of `pages.py` over the chat. A lab screen runs `text` at once."""
        if page in self.state.refused or f"open('{page}')" in actions_without(self.state.refused):
            self.say(self.state.refusal)
        # Two messages may be refused in quick succession.
        elif type(self.app.screen) is not type(opened := pages.page(page, self.parts, text)):
            self.app.push_screen(opened)

    action_open = open_page

    def action_download(self) -> None:
        it = self.parts.downloads.next
        self.open_page("get", it.pair.name if it is not None else "")

    def action_notices(self) -> None:
        self.app.push_screen(TextScreen("Notices", self.state.notices.page()))

    def action_log(self) -> None:
        self.say(f"the log is {log_file()}")

    @property
    def about_focused(self) -> str:
        return getattr(self.focused, "HELP", None) or ""

    def action_help(self) -> None:
        help_screen = pages.of_screens("page", "HelpScreen")
        self.app.push_screen(help_screen(self.about_focused, without=self.state.refused))

    # Layout and text

    def take_text(self, event: Key | Paste) -> None:
        """As `Typed.take`: called before the focused widget gets the event."""
        self.parts.typed.take(event)

    def on_resize(self, event: Resize) -> None:
        self.places.resized(event.size)

    @on(TextArea.Changed, "#prompt")
    def _typed(self) -> None:
        self.transcript.start.mark(self.prompt.text)
        self.parts.typed.changed()

    @on(Inspector.Switched)
    def _panel_switched(self) -> None:
        self.call_after_refresh(self.gauges.draw)


def _outside_messages(node: DOMNode) -> Iterator[DOMNode]:
    yield node
    for child in () if isinstance(node, Transcript) else node.children:
        yield from _outside_messages(child)
