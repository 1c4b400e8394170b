"""From the prompt to the model: what typing shows; messages sent, queued, refused, returned, retried; their turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from textual.events import Key, Paste
from textual.timer import Timer
from textual.widgets import Input, TextArea

from dflash_core.clean import blank
from dflash_core.errors import ContextError
from dflash_core.knobs import RANDOM_SEED
from dflash_tui.application import collector
from dflash_tui.application.background import UNDER_WAY, Running, aside
from dflash_tui.application.conversations.tool_messages import stored
from dflash_tui.application.log import LOG
from dflash_tui.application.mentions import MentionError, Offer, files, offers
from dflash_tui.application.new_file import here
from dflash_tui.application.session import SessionLike
from dflash_tui.chat.background_plain import BackgroundPlain
from dflash_tui.chat.controller import Controller, LongTaskEnded, TurnEnded
from dflash_tui.chat.conversation import ConversationController
from dflash_tui.chat.flow import Flow
from dflash_tui.chat.gauges import Gauges
from dflash_tui.chat.tools import ToolCalls
from dflash_tui.chat.tuning import Tuning
from dflash_tui.widgets.prompt import Completions, as_message, is_command
from dflash_tui.widgets.transcript import TurnBlock

PAUSE_S = 0.25  # pause in typing, in seconds, before the tokens are counted
COUNTED = 40_000  # characters that are tokenized; the count of a longer text is extrapolated from these
TIDY_S = 1.0  # after an answer, once its last frames are drawn


def about(session: SessionLike, text: str) -> int:
    """The number of tokens of a text, to show; that of a long text is extrapolated from its beginning."""
    part = session.count(text[:COUNTED])
    return part if len(text) <= COUNTED else round(part * len(text) / COUNTED)


@dataclass(eq=False)
class Typed(Controller):
    _gauges: Gauges
    _complete: Callable[[str], list[Offer]]  # of a slash command
    _counting: Timer | None = None

    def changed(self) -> None:
        text = self.prompt.text
        self.screen.query_one(Completions).show(self._complete(text) or self._files(text))
        if self._counting is not None:
            self._counting.stop()
        self._counting = self.screen.set_timer(PAUSE_S, self._count)

    def take(self, event: Key | Paste) -> None:
        """Focus the prompt for text that was typed or pasted elsewhere, unless the focused widget uses the text.

        Called before the event reaches the focused widget, so that all of a fast input arrives in the prompt.
        """
        screen = self.screen
        focused = screen.focused
        if isinstance(focused, (Input, TextArea)):
            return
        if isinstance(event, Key):
            if not event.is_printable or not event.character or event.key.startswith("alt+"):
                return
            if focused is not None and focused.check_consume_key(event.key, event.character):
                return
            if event.key in screen.active_bindings:
                return
        screen.set_focus(self.prompt)

    def _files(self, text: str) -> list[Offer]:
        prompt = self.prompt
        if prompt.cursor_location != prompt.document.end:
            return []
        return offers(text, here())

    async def _count(self) -> None:
        """Count the tokens of the text being typed, on another thread."""
        session, text, whole = self.state.session, self.prompt.text, self.prompt.whole
        if session is None or is_command(text):
            self._gauges.typed(0)
            return

        def count() -> int:
            sent = whole
            with suppress(MentionError):
                sent += files(text, here())
            return about(session, sent)

        self._gauges.typed(await aside(count) if text.strip() else 0)


@dataclass(eq=False)
class Sending(Controller):
    """Every typed text is in the prompt, in the queue or in the conversation."""

    _gauges: Gauges
    _tuning: Tuning
    _plain: BackgroundPlain
    _conversation: ConversationController
    _tools: ToolCalls

    def __post_init__(self) -> None:
        self.flow = Flow(self.state, self.screen, self._gauges.frame, self._ended)

    async def send(self, text: str, typed: str) -> None:
        """Send or queue a message from the prompt, with the files that `typed` names."""
        state = self.state
        refusal: str | Exception = state.no_model
        if blank(text):
            refusal = "there is nothing to read in the message: its characters have no width; write words"
        elif state.experiment is not None:
            refusal = refusal or UNDER_WAY
        elif state.session is None and not state.loading:
            refusal = refusal or "no model is loaded: Ctrl+R loads again; your text stays here"
        try:
            message = as_message(text) + files(typed, here())
        except MentionError as error:
            refusal = refusal or error
        if refusal:
            self.give_back(text, refusal)
            return
        block = await self.transcript.add(TurnBlock(message))
        self._conversation.sent(block)
        state.conversation.waits_no_more(text)
        state.past.add(text)
        self._conversation.files.tell_problems()
        if state.session is None:
            self._put_off(block, "queued: it is sent when the model is ready")
        elif state.busy or state.queue:
            self._put_off(block)
        else:
            await self.ask(block)
        await self.transcript.prune()  # not before: the oldest turn may be the one that was edited

    def _put_off(
        self, block: TurnBlock, why: str = "queued: it is sent after this answer · Alt+↑ chooses, Alt+E takes it back"
    ) -> None:
        block.queued(why)
        self.state.queue.append(block)

    async def ask(self, block: TurnBlock) -> None:
        """Answer a message: for the first time, or again if it is already in the conversation."""
        state = self.state
        if state.session is None:
            return
        if state.busy:  # a retry was requested while this message was being added to the screen
            self._put_off(block)
            return
        if not block.entered:
            self.prompt.withdraw(block.typed)  # a refused message that was returned is being sent again
        decoder_is_free = self._plain.yield_to_turn()
        self._tuning.turn_begins()
        self._tools.offer()
        open_turn, current = self._conversation.opens(block, state.used), state.conversation
        pieces = partial(current.pieces, ahead=True)
        running = Running(state.decoder, open_turn, pieces, current.saved, decoder_is_free)
        await self.flow.begin(block, running, state.used)
        self._show_turn()

    async def retry(self) -> None:
        state, turns = self.state, self.transcript.turns
        if state.busy:
            self.say("an answer is being written: Esc stops it, Ctrl+R then answers again")
        elif state.experiment is not None:
            self.say(UNDER_WAY)
        elif not turns:
            self.say("nothing to retry yet")
        else:
            seed = state.knobs.seed
            if state.knobs.temperature and seed != RANDOM_SEED:
                self.say(f"seed {seed} is fixed: the same parameters draw the same answer; /set seed random")
            await self.ask(turns[-1])

    async def next(self) -> None:
        if self.state.queue and not self.state.busy:
            await self.ask(self.state.queue.pop(0))

    def _show_turn(self) -> None:
        # On this row only: a class on the screen restyles every widget of the conversation.
        self.screen.query_one("#prompt-row").set_class(self.state.busy, "-busy")
        self.screen.refresh_bindings()
        self._tuning.show()
        self._gauges.draw()

    def _ended(self, block: TurnBlock, refused: bool) -> None:
        """A turn is over: show its end, and continue with the next message once that is drawn."""
        if refused:
            self._tuning.refused()
        self.state.calling = bool(self.state.turn.calls)
        self._show_turn()
        self._gauges.turn_ended()
        if not refused and not self.state.calling:
            self._report()
        self.screen.set_timer(TIDY_S, self._tidy)
        self._plain.turn_ended()
        self.screen.call_next(self._conversation.ended, block, refused=refused)
        if refused:
            self.prompt.restore(block.typed)
        else:
            self.state.overlong = (0, 0)
        error = self.state.turn.error if refused else None
        if isinstance(error, ContextError):
            self.screen.call_next(self._context_refused, error, block.prompt)
        elif self.state.calling:
            # Not in the screen's own task, which handles keys meanwhile.
            self.screen.call_next(lambda: self.screen.run_worker(self._go_on(block), group="calls"))
        else:
            self.screen.call_next(self.next)
        self.screen.post_message(TurnEnded())

    async def _go_on(self, block: TurnBlock) -> None:
        """Make the calls of an answer, and let the model go on with their results."""
        try:
            results = await self._tools.answered(block, stored(self.state.turn.calls))
        finally:
            self.state.calling = False
        if results is not None:
            await self.ask(results)
        else:
            self._show_turn()
            await self.next()

    def _report(self) -> None:
        turn = self.state.turn
        if turn.meter is not None:
            spent = time.monotonic() - turn.meter.started
            figures = (turn.meter.tokens, turn.meter.totals.steps, turn.meter.overall_rate, spent)
            LOG.info("turn: %d tokens, %d steps, %.1f tok/s, %.1f s", *figures)
            how = "the answer has failed" if turn.error else "the answer is complete"
            self.screen.post_message(LongTaskEnded(spent, how))

    def _tidy(self) -> None:
        """Use the pause for garbage collection."""
        if not self.state.busy and self.state.experiment is None:
            collector.tidy()

    async def _context_refused(self, error: ContextError, message: str) -> None:
        """No queued message can follow one that did not fit: put all back into the prompt, in their order, and show
        what can be done."""
        await self.take_all_back("the messages after the refused one are back in the prompt too")
        session = self.state.session
        tokens = await aside(lambda: about(session, message)) if session is not None else 0
        self.state.overlong = (error.needed, tokens)
        await self.screen.run_action("open('full')")

    async def take_all_back(self, why: str) -> None:
        while await self.take_back(0, why):
            pass

    async def take_back_one(self, chosen: TurnBlock | None) -> bool:
        """Take back a queued message: `chosen`, or the last one if none is chosen. False if it is not queued, or the
        queue is empty."""
        if chosen is not None and chosen not in self.state.queue:
            return False
        self._conversation.branching.leave_choice()
        return await self.take_back(self.state.queue.index(chosen) if chosen is not None else -1)

    async def take_back(self, index: int = -1, why: str = "taken back; Enter queues it again") -> bool:
        """Put a queued message, by default the last one, back into the prompt; False if none is queued."""
        if not self.state.queue:
            return False
        block = self.state.queue.pop(index)
        await self.transcript.take_back(block)
        self.give_back(block.typed, why)
        self.state.conversation.waits_no_more(block.prompt)
        self._conversation.edit_again(block)
        return True

    def give_back(self, text: str, why: str | Exception) -> None:
        """Put text that could not be sent back into the prompt."""
        self.prompt.restore(text)
        self.state.conversation.waits_no_more(text)
        self.say(why)
