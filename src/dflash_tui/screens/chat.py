"""The one main screen: conversation, inspector, status strip, prompt."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.events import Key, Paste, Resize
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Footer, Markdown, TextArea

from dflash_core.clean import clean
from dflash_core.errors import ContextError, KnobError
from dflash_core.knobs import CONTEXT, SPEC, Knobs
from dflash_core.progress import Progress
from dflash_tui.chat import collector
from dflash_tui.chat.background_plain import BackgroundPlain
from dflash_tui.chat.context import ContextKeeper
from dflash_tui.chat.conversation import ConversationController
from dflash_tui.chat.experiment import Experiment
from dflash_tui.chat.flow import Flow, explain, needs_restart
from dflash_tui.chat.gauges import Gauges
from dflash_tui.chat.loading import Loading
from dflash_tui.chat.program import ProgramController
from dflash_tui.chat.tuning import Tuning
from dflash_tui.conversations.current import CurrentConversation
from dflash_tui.conversations.history import History
from dflash_tui.log import LOG
from dflash_tui.screens.help import HelpScreen
from dflash_tui.screens.pages import PAGES
from dflash_tui.screens.palette import ActionProvider
from dflash_tui.session import Loader, SessionLike
from dflash_tui.settings.config import config_folder
from dflash_tui.settings.keys import bindings
from dflash_tui.settings.presets import Presets
from dflash_tui.slash import table as slash
from dflash_tui.slash.command import SlashError
from dflash_tui.text.bars import counted
from dflash_tui.text.mentions import MentionError, Offer, expand, offers
from dflash_tui.widgets.completions import Completion, Completions
from dflash_tui.widgets.find_bar import FindBar
from dflash_tui.widgets.inspector import Inspector
from dflash_tui.widgets.knob_row import KnobRow
from dflash_tui.widgets.lines import Flash, LoadingLine
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.note import Note
from dflash_tui.widgets.preset_row import PresetRow
from dflash_tui.widgets.prompt import Prompt
from dflash_tui.widgets.roomy import Fence
from dflash_tui.widgets.strip import StatusStrip, TitleRow
from dflash_tui.widgets.transcript import Transcript, TurnBlock

NARROW, WIDE, SHORT = 110, 160, 34
LEAST = (40, 12)
COUNT_S = 0.25  # a pause in typing this long has the tokens counted
COUNTED = 40_000  # characters that are counted; a longer text is reckoned from so many of it
MODEL_KEYS = "Ctrl+R loads again, /load another. Ctrl+Q quits; dflash-tui doctor looks at the machine."


def _behind(session: SessionLike | None, loader: Loader, *, lost: bool) -> Loader:
    """What loads once `session` has kept the state of its conversation and is gone: two models may not fit the machine.

    `lost`: the device has failed, nothing can be asked of it.
    """
    before = [session] if session is not None and not lost else []
    session = None

    def load(progress: Progress) -> SessionLike:
        if before:
            progress("keeping the conversation's state", 0.0)
            try:
                before.pop().leave()
            except Exception:  # it is a convenience: whatever fails, the conversation is read again
                LOG.warning("the state of the conversation is not kept", exc_info=True)
        collector.release()
        return loader(progress)

    return load


class ChatScreen(Screen[None]):
    """Holds the session, the parameters of the next turn, and the one turn that may run."""

    SCOPE: ClassVar[str] = "chat"
    # Esc stops an answer; where none is written, `check_action` leaves the key to what is open.
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE), Binding("escape", "close", "Close")]
    COMMANDS = Screen.COMMANDS | {ActionProvider}
    AUTO_FOCUS = "#prompt"

    def __init__(
        self, loader: Loader, knobs: Knobs, history: History, title: str, resume: str = "", system: str = ""
    ) -> None:
        super().__init__()
        self.knobs = knobs
        self.used = knobs
        self.session: SessionLike | None = None
        self.past = history
        self._loader = loader
        self._loading: Loading | None = None
        self._title = title
        self._queue: list[TurnBlock] = []
        self._code = 0  # the block of code that was copied last
        self._counting: Timer | None = None
        self._side = {True: False, False: True}  # by narrow
        self.flow = Flow(self, self, history.folder)
        self.experiment: Experiment | None = None  # the lab's, while one runs
        self.gauges = Gauges(self)
        self.tuning = Tuning(self, Presets(config_folder() / "presets"))
        current = CurrentConversation(history.folder, system)
        self.conversation = ConversationController(self, current, self.gauges, resume)
        self.context = ContextKeeper(self)
        self.plain = BackgroundPlain(self, self.gauges)
        self.program = ProgramController(self, self.conversation, self.tuning, self.gauges)

    def compose(self) -> ComposeResult:
        with Container(id="main"):
            yield TitleRow(id="title")
            with Container(id="body"):
                yield Transcript()
                yield Inspector(self.knobs)
            yield LoadingLine()
            yield FindBar()
            yield Flash()
            yield Completions()
            yield StatusStrip(id="strip")
            with Horizontal(id="prompt-row"):
                yield Static("❯", id="prompt-mark")
                yield Prompt(self.past)
            yield Footer(show_command_palette=False, compact=True)
        yield Static("", id="tiny")

    def on_mount(self) -> None:
        self.query_one(TitleRow).title = self._title
        self._lay_out(self.size.width, self.size.height)
        self.prompt.completions = self.query_one(Completions)
        self.prompt.notebook = self.conversation.current
        self.show_knobs()
        self.call_next(self.conversation.begin)
        self.conversation.tell_problems()
        self.tuning.tell_problems()
        self.set_interval(1, self.gauges.tick)
        self.call_after_refresh(self.load)

    def on_unmount(self) -> None:
        self.plain.stop()
        self.conversation.current.close()

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
    def busy(self) -> bool:
        """An answer is being written."""
        return self.flow.busy

    @property
    def loading_now(self) -> bool:
        return self._loading is not None  # also in the moment between its end and the look at how it ended

    def say(self, text: str) -> None:
        """A small fact above the prompt."""
        self.query_one(Flash).say(text)

    # Loading

    def load(self) -> None:
        """Start the loader's thread; the first frame is on the screen by now."""
        self._loading = Loading(self._loader)
        self._loading.start()
        self.query_one(LoadingLine).begin()
        self.set_timer(0.05, self._look_at_loading)

    def load_from(self, loader: Loader, title: str) -> None:
        """Load another pair in place of this one, and go on with the conversation."""
        self.plain.stop()
        self._loader, self._title = _behind(self.session, loader, lost=self.flow.lost), title
        self.session = None
        self.query_one(TitleRow).title = title
        self.load()

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
            message, advice = explain(loading.error, loading.trace, self.past.folder)
            LOG.error("not loaded: %s\n%s", message, loading.trace)
            self.flow.lost = self.flow.lost or needs_restart(loading.error)
            note = Note(f"the model did not load: {message}", advice if self.flow.lost else MODEL_KEYS)
            await self.transcript.note(note)
            for block in self._queue:
                block.queued("waits for a model")
            self.say("no model is loaded; what you typed is kept")

    async def _loaded(self, session: SessionLike) -> None:
        self.session = session
        LOG.info("loaded %s", session.title)
        if self.knobs == self.used and self.knobs == Knobs():
            self.knobs = self.used = session.knobs
            self.show_knobs()
        self.query_one(TitleRow).title = session.title
        for note in session.notes:
            await self.transcript.note(Note(note, kind="info"))
        self.conversation.model_loaded()
        self.program.loaded()
        self.tuning.loaded()
        self.gauges.context()
        await self.gauges.memory()
        collector.calm()
        await self._next_queued()

    # Turns

    @on(Prompt.Submitted)
    async def send(self, event: Prompt.Submitted) -> None:
        """Enter in the prompt."""
        if slash.is_command(event.text):
            self.conversation.current.waits_no_more(event.text)
            try:
                await slash.run(event.text, self)
            except SlashError as error:
                self._give_back(event.text, str(error))
            else:
                self.past.add(event.text)
        elif self.session is None and not self.loading_now:
            self._give_back(event.text, "no model is loaded: Ctrl+R loads again; your text stays here")
        else:
            try:
                message = expand(slash.as_message(event.text), Path.cwd())
            except MentionError as error:
                self._give_back(event.text, str(error))
                return
            block = await self.transcript.add_turn(message)
            self.conversation.sent(block)
            self.conversation.current.waits_no_more(event.text)
            self.past.add(event.text)
            self.conversation.tell_problems()
            if self.session is None:
                block.queued("queued: it is sent when the model is ready")
                self._queue.append(block)
            elif self.busy or self._queue:
                self._put_off(block)
            else:
                await self._ask(block)

    def _put_off(self, block: TurnBlock) -> None:
        block.queued("queued: it is sent after this answer · Alt+E takes it back")
        self._queue.append(block)

    async def _take_back(self, index: int = -1, why: str = "taken back; Enter queues it again") -> bool:
        """A message that was queued, the last one by default, is in the prompt again; False where none waits."""
        if not self._queue:
            return False
        block = self._queue.pop(index)
        await self.transcript.take_away(block)
        self._give_back(block.typed, why)
        self.conversation.current.waits_no_more(block.prompt)
        return True

    async def _context_refused(self, error: ContextError) -> None:
        """Nothing that was queued can follow a message that did not fit: all are in the prompt, in their order."""
        while await self._take_back(0, "the messages behind the refused one are back, too"):
            pass
        self.context.refused(error)

    def _give_back(self, text: str, why: str) -> None:
        self.prompt.restore(text)
        self.conversation.current.waits_no_more(text)
        self.say(why)

    async def _ask(self, block: TurnBlock) -> None:
        """Answer a message: for the first time, or again where the conversation holds it already."""
        if self.session is None:
            return
        if self.busy:  # a retry was asked for while this message was put on the screen
            self._put_off(block)
            return
        if not block.entered:
            self.prompt.withdraw(block.typed)  # a refused message that had been given back is on its way again
        self.plain.stop()
        self._use_knobs()
        opens = self.conversation.opens(block, self.used)
        await self.flow.begin(block, opens, self.used, self.conversation.current.pieces)
        self._set_busy()

    async def action_retry(self) -> None:
        """The last message again, or the loader where it failed."""
        turns = self.transcript.turns
        if self.session is None:
            if self.loading_now:
                self.say("still loading")
            else:
                self.load()
        elif self.busy:
            self.say("an answer is being written: Esc stops it, then Ctrl+R answers again")
        elif not turns:
            self.say("nothing to retry yet")
        else:
            block = turns[-1]
            await self._ask(block)

    def draw_figures(self) -> None:
        """With a frame of the running turn."""
        self.gauges.frame()

    def turn_ended(self, block: TurnBlock, *, refused: bool) -> None:
        """The flow is idle again."""
        self._set_busy()
        if refused:
            self.prompt.restore(block.typed)
        self.gauges.turn_ended()
        self.program.turn_ended()
        self.plain.turn_ended()
        self.call_next(self.conversation.ended, block, refused=refused)
        error = self.flow.error if refused else None
        if isinstance(error, ContextError):
            self.call_next(self._context_refused, error)
        else:
            self.call_next(self._next_queued)

    @property
    def waiting(self) -> bool:
        """Messages were sent that the model has not been asked yet."""
        return bool(self._queue)

    async def _next_queued(self) -> None:
        if self._queue and not self.busy:
            await self._ask(self._queue.pop(0))

    def _set_busy(self) -> None:
        # On this row only: a class on the screen restyles every widget of the conversation.
        self.query_one("#prompt-row").set_class(self.busy, "-busy")
        self.refresh_bindings()
        self.show_knobs()
        self.gauges.draw()

    # Parameters

    def set_knobs(self, **changes: int | float | bool | str) -> None:
        """Change the next turn. Raises KnobError."""
        self.tuning.set(changes)

    def set_all_knobs(self, knobs: Knobs) -> None:
        """Have the next turn run with a whole set. Raises KnobError where the loaded pair cannot."""
        self.tuning.set_all(knobs)

    def _use_knobs(self) -> None:
        self.used = self.knobs
        self.query_one(Flash).outdated("from the next turn")
        self.show_knobs()

    def show_knobs(self) -> None:
        """Put the present parameters into the panel and the strip."""
        panel = self.inspector.params_panel
        panel.show(self.knobs, self.used, running=self.busy)
        panel.show_presets(self.tuning.presets.names, self.tuning.presets.like(self.knobs))
        self.gauges.strip()

    @on(KnobRow.Changed)
    def _knob_changed(self, event: KnobRow.Changed) -> None:
        if event.name == CONTEXT.name:
            self.tuning.ask_for_context(int(event.value))
            return
        try:
            self.set_knobs(**{event.name: event.value})
        except KnobError as error:
            self.say(str(error))
            self.show_knobs()

    @on(PresetRow.Chosen)
    def _preset_chosen(self, event: PresetRow.Chosen) -> None:
        try:
            self.tuning.use(event.name)
        except KnobError as error:
            self.say(str(error))

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
        """Move one parameter by steps, as its slider does, without leaving the prompt."""
        row = self.inspector.params_panel.row(name)
        row.action_step(steps)
        self.say(f"{name} {SPEC[name].show(row.value)} {self.tuning.when(name)}")

    def action_reset(self) -> None:
        self.knobs = Knobs()
        self.show_knobs()
        self.say("every parameter is at its default from the next turn")

    # Actions

    def action_stop(self) -> None:
        self.flow.stop()

    def action_close(self) -> None:
        """Esc while nothing is written."""
        if self.has_class("-drawer"):
            self.action_side()
        elif not self.conversation.branching.leave_edit():
            self.prompt.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Esc stops while there is something to stop; the footer names what it does now."""
        if action == "stop":
            return self.busy
        if action == "close":
            opened = self.has_class("-drawer") or self.conversation.branching.open or self.focused is not self.prompt
            return not self.busy and opened
        return super().check_action(action, parameters)

    async def action_edit(self) -> None:
        if not await self._take_back():
            self.conversation.branching.edit()

    def action_rename(self) -> None:
        self.conversation.files.ask_title(None, self.say)

    def action_export(self) -> None:
        self.conversation.files.ask_file(None, self.say)

    def action_choose(self, by: int) -> None:
        self.conversation.branching.choose(by)

    async def action_version(self, by: int) -> None:
        await self.conversation.branching.switch(by)

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

    def action_find(self) -> None:
        self.query_one(FindBar).begin()

    def action_found(self, count: int) -> None:
        self.query_one(FindBar).action_go(count)

    def action_copy(self) -> None:
        text = self.conversation.branching.chosen_text
        answer = self.transcript.answer
        if not text and (answer is None or not answer.text):
            self.say("no answer to copy yet")
        else:
            what = "message" if text else "answer"
            text = text or (answer.text if answer is not None else "")
            self._copy(text, f"the {what}, {len(text)} characters")

    def action_copy_code(self) -> None:
        """The last block of code; pressed again, the one before it."""
        blocks = list(self.transcript.query(Fence))
        if not blocks:
            self.say("no code to copy yet")
            return
        self._code = self._code - 1 if 0 < self._code <= len(blocks) - 1 else len(blocks) - 1
        code = blocks[self._code].code
        blocks[self._code].scroll_visible(animate=False)
        self._copy(code, f"block {self._code + 1} of {len(blocks)}, {counted(code.count(chr(10)) + 1, 'line')}")

    @on(Fence.Copied)
    def _code_clicked(self, event: Fence.Copied) -> None:
        self._copy(event.code, f"the code, {counted(event.code.count(chr(10)) + 1, 'line')}")

    def _copy(self, text: str, what: str) -> None:
        self.app.copy_to_clipboard(text)
        self.say(f"copied {what}")

    async def action_clear(self) -> None:
        if self.busy:
            self.say("an answer is being written: Esc stops it, then /clear")
            return
        if self.session is not None:
            self.session.clear()
        await self.conversation.clear()
        self._queue.clear()

    def action_open(self, page: str) -> None:
        """Open one of the screens of `pages.py` over the chat."""
        self.open_page(page)

    def open_page(self, page: str, text: str = "") -> None:
        """As `action_open`; `text` is what a screen of the lab runs at once."""
        opened = PAGES[page](self, text)
        if type(self.app.screen) is not type(opened):  # two messages may be refused one right after the other
            self.app.push_screen(opened)

    def action_log(self) -> None:
        self.program.say_where_the_log_is()

    def action_reload(self) -> None:
        self.program.reload()

    def action_bench(self) -> None:
        self.program.bench()

    def action_help(self) -> None:
        about = getattr(self.focused, "HELP", None) or ""
        self.app.push_screen(HelpScreen(about))

    # Layout

    def take_text(self, event: Key | Paste) -> None:
        """Turn to the prompt for text that was typed or pasted elsewhere, unless the widget in focus has a use for it.

        Called before the event goes on to the focus: of text that comes fast, all is then the prompt's.
        """
        focused = self.focused
        if isinstance(focused, TextArea):
            return
        if isinstance(event, Key):
            if not event.is_printable or not event.character or event.key.startswith("alt+"):
                return
            if focused is not None and focused.check_consume_key(event.key, event.character):
                return
            if event.key in self.active_bindings:
                return
        self.set_focus(self.prompt)

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
        self.refresh_bindings()
        tiny = width < LEAST[0] or height < LEAST[1]
        self.set_class(tiny, "-tiny")
        if tiny:
            text = f"This terminal is {width}x{height}; dflash-tui needs {LEAST[0]}x{LEAST[1]} or more. Enlarge it."
            self.query_one("#tiny", Static).update(text)
        self.call_after_refresh(self.gauges.draw)

    @on(TextArea.Changed, "#prompt")
    def _typed(self, event: TextArea.Changed) -> None:
        text = event.text_area.text
        rows = slash.complete(text, self) or [Completion(one.text, one.label, one.about) for one in self._files(text)]
        self.query_one(Completions).show(rows)
        if self._counting is not None:
            self._counting.stop()
        self._counting = self.set_timer(COUNT_S, self._count)

    def _files(self, text: str) -> list[Offer]:
        at_end = self.prompt.cursor_location == self.prompt.document.end
        return offers(text, Path.cwd()) if at_end else []

    async def _count(self) -> None:
        """Count the tokens of what is being typed, beside the app."""
        session, text = self.session, self.prompt.text
        if session is None or slash.is_command(text):
            self.gauges.typed(0)
            return

        def count() -> int:
            try:
                whole = expand(text, Path.cwd())
            except MentionError:
                whole = text
            part = session.count(whole[:COUNTED])
            return part if len(whole) <= COUNTED else round(part * len(whole) / COUNTED)

        self.gauges.typed(await asyncio.to_thread(count) if text.strip() else 0)

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
