"""Messages on their way from the prompt to the model: sent, queued, refused, returned, retried."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from dflash_core.clean import blank
from dflash_core.errors import ContextError
from dflash_core.knobs import RANDOM_SEED
from dflash_tui.application.experiment import UNDER_WAY
from dflash_tui.application.here import here
from dflash_tui.application.mentions import MentionError, files
from dflash_tui.chat.typed import about
from dflash_tui.text.commands import as_message
from dflash_tui.widgets.transcript import TurnBlock

if TYPE_CHECKING:
    from dflash_tui.application.session import OnPrefill, TurnLike
    from dflash_tui.chat.host import ChatHost


class Sending:
    """Belongs to one chat. Every typed text is in the prompt, in the queue or in the conversation."""

    def __init__(self, chat: ChatHost) -> None:
        self._chat = chat
        self._queue: list[TurnBlock] = []

    @property
    def waiting(self) -> bool:
        """Messages were sent that the model has not received yet."""
        return bool(self._queue)

    async def send(self, text: str, typed: str) -> None:
        """Send or queue a message from the prompt, with the files that `typed` names."""
        chat = self._chat
        if blank(text):
            self.give_back(text, "there is nothing to read in the message: its characters have no width; write words")
            return
        if chat.no_model:
            self.give_back(text, chat.no_model)
            return
        if chat.experiment is not None:
            self.give_back(text, UNDER_WAY)
            return
        if chat.session is None and not chat.loading_now:
            self.give_back(text, "no model is loaded: Ctrl+R loads again; your text stays here")
            return
        try:
            message = as_message(text) + files(typed, here())
        except MentionError as error:
            self.give_back(text, error)
            return
        block = await chat.transcript.add_turn(message)
        chat.conversation.sent(block)
        chat.conversation.current.waits_no_more(text)
        chat.past.add(text)
        chat.conversation.tell_problems()
        if chat.session is None:
            self._put_off(block, "queued: it is sent when the model is ready")
        elif chat.busy or self._queue:
            self._put_off(block)
        else:
            await self.ask(block)
        await chat.transcript.prune()  # not before: the oldest turn may be the one that was edited

    def _put_off(
        self, block: TurnBlock, why: str = "queued: it is sent after this answer · Alt+↑ chooses, Alt+E takes it back"
    ) -> None:
        block.queued(why)
        self._queue.append(block)

    async def ask(self, block: TurnBlock) -> None:
        """Answer a message: for the first time, or again if it is already in the conversation."""
        chat = self._chat
        if chat.session is None:
            return
        if chat.busy:  # a retry was requested while this message was being added to the screen
            self._put_off(block)
            return
        if not block.entered:
            chat.prompt.withdraw(block.typed)  # a refused message that was returned is being sent again
        decoder_is_free = chat.plain.give_way()
        chat.tuning.turn_begins()
        opens = chat.conversation.opens(block, chat.used)

        def open_turn(on_prefill: OnPrefill) -> TurnLike:
            decoder_is_free()
            return opens(on_prefill)

        current = chat.conversation.current
        await chat.flow.begin(block, open_turn, chat.used, partial(current.pieces, ahead=True), current.saved)

    async def retry(self) -> None:
        """Answer the last message again."""
        chat, turns = self._chat, self._chat.transcript.turns
        if chat.busy:
            chat.say("an answer is being written: Esc stops it, Ctrl+R then answers again")
        elif chat.experiment is not None:
            chat.say(UNDER_WAY)
        elif not turns:
            chat.say("nothing to retry yet")
        else:
            if chat.knobs.temperature and chat.knobs.seed != RANDOM_SEED:
                chat.say(f"seed {chat.knobs.seed} is fixed: the same parameters draw the same answer; /set seed random")
            await self.ask(turns[-1])

    async def next(self) -> None:
        """Send the oldest queued message, if no answer is being written."""
        if self._queue and not self._chat.busy:
            await self.ask(self._queue.pop(0))

    def turn_ended(self, block: TurnBlock, *, refused: bool) -> None:
        """Continue after a turn, once the screen shows its end."""
        if refused:
            self._chat.prompt.restore(block.typed)
        else:
            self._chat.context.answered()
        error = self._chat.flow.error if refused else None
        if isinstance(error, ContextError):
            self._chat.screen.call_next(self._context_refused, error, block.prompt)
        else:
            self._chat.screen.call_next(self.next)

    async def _context_refused(self, error: ContextError, message: str) -> None:
        """No queued message can follow one that did not fit: put all back into the prompt, in their order."""
        await self.take_all_back("the messages after the refused one are back in the prompt too")
        session = self._chat.session
        tokens = await asyncio.to_thread(about, session, message) if session is not None else 0
        self._chat.context.refused(error, tokens)

    async def take_all_back(self, why: str) -> None:
        """Put all queued messages back into the prompt, in their order."""
        while await self.take_back(0, why):
            pass

    async def take_back_one(self, chosen: TurnBlock | None) -> bool:
        """Take back a queued message: `chosen`, or the last one if none is chosen. False if it is not queued, or the
        queue is empty."""
        if chosen is None:
            return await self.take_back()
        if chosen not in self._queue:
            return False
        self._chat.conversation.branching.leave_choice()
        return await self.take_back(self._queue.index(chosen))

    async def take_back(self, index: int = -1, why: str = "taken back; Enter queues it again") -> bool:
        """Put a queued message, by default the last one, back into the prompt; False if none is queued."""
        if not self._queue:
            return False
        block = self._queue.pop(index)
        await self._chat.transcript.take_away(block)
        self.give_back(block.typed, why)
        self._chat.conversation.current.waits_no_more(block.prompt)
        self._chat.conversation.edit_again(block)
        return True

    def give_back(self, text: str, why: str | Exception) -> None:
        """Put text that could not be sent back into the prompt."""
        self._chat.prompt.restore(text)
        self._chat.conversation.current.waits_no_more(text)
        self._chat.say(why)

    def no_model(self) -> None:
        """The load that the queue was waiting for has failed."""
        for block in self._queue:
            block.queued("waits for a model")

    def clear(self) -> None:
        """Empty the queue, for an empty conversation."""
        self._queue.clear()
