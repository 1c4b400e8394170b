"""Conversations in the chat screen: store, open, resume, and recover those of a killed app."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile

from dflash_core.clean import one_line
from dflash_core.errors import ContextError, DFlashError, KnobError
from dflash_core.knobs import Knobs
from dflash_core.record import TurnRecord
from dflash_tui.application.amounts import counted
from dflash_tui.application.background import UNDER_WAY, aside
from dflash_tui.application.conversations.branches import Node
from dflash_tui.application.conversations.comparing import Comparing
from dflash_tui.application.conversations.current import CurrentConversation
from dflash_tui.application.conversations.store import StoredConversation
from dflash_tui.application.conversations.tool_messages import tool_lines
from dflash_tui.application.mentions import collapse
from dflash_tui.application.session import LAST, LISTED, OnPrefill, TurnLike
from dflash_tui.chat.branching import Branching
from dflash_tui.chat.controller import Controller
from dflash_tui.chat.files import ConversationFiles
from dflash_tui.chat.gauges import Gauges
from dflash_tui.chat.tuning import Tuning
from dflash_tui.widgets.answer import Answer
from dflash_tui.widgets.calls import CallsBlock
from dflash_tui.widgets.dialogs import OfferScreen
from dflash_tui.widgets.find_bar import FindBar
from dflash_tui.widgets.flash import Note
from dflash_tui.widgets.transcript import SHOWN, TurnBlock

LOOK_S = 5.0  # seconds between checks that the file of conversations still exists


@dataclass(eq=False)
class ConversationController(Controller):
    """Links the screen's blocks to the tree of messages: a block and its answers carry the ids of their messages."""

    _gauges: Gauges
    _tuning: Tuning

    def __post_init__(self) -> None:
        self.branching = Branching(self.state, self.screen, self.go_on_from)
        self.files = ConversationFiles(self.state, self.screen)

    @property
    def _current(self) -> CurrentConversation:
        return self.state.conversation

    @cached_property
    def _comparing(self) -> Comparing:
        return Comparing(self._current.store)

    async def begin(self) -> None:
        """Restore unsent text, and offer a conversation that was cut off."""
        self.screen.set_interval(LOOK_S, self._look)
        rescued, resume = self._current.rescue(), self.state.request.resume
        *others, last = ["", *(collapse(text)[0] for text in rescued.texts)]
        for text in filter(None, others):  # texts of several apps: the arrow keys bring the others back
            self.state.past.add(text)
        if last:
            self.prompt.restore(last)
        if resume == LISTED:
            await self.screen.run_action("open('chats')")
        elif resume == LAST:
            await self.open_last()
        elif resume:
            await self.open(resume)
        elif rescued.cards:
            card = rescued.cards[-1]
            more = f" (and {len(rescued.cards) - 1} more, in the list: Ctrl+O)" if len(rescued.cards) > 1 else ""
            question = f"The program ended in the middle of an answer: {one_line(card.title)}{more}"

            async def answered(yes: bool | None) -> None:
                if yes:
                    await self.open(card.id)
                else:
                    self.say("it is in the list of conversations: Ctrl+O")

            self.screen.app.push_screen(OfferScreen(question, "go on with it", "start a new one"), answered)
        self.files.show_title()

    async def _look(self) -> None:
        """On a worker thread: the store may be waiting for another program."""
        await aside(self._current.store.look)
        self.files.tell_problems()

    def last_words(self) -> list[str]:
        """Where the conversation is stored when a fault or signal ends the program, also if the disk refuses it."""
        if self._current.card is None:
            return []
        on_disk = self._current.store.on_disk
        return ["the conversation is saved, Ctrl+O lists it" if on_disk else self.files.elsewhere()]

    # Turns

    def opens(self, block: TurnBlock, knobs: Knobs) -> Callable[[OnPrefill], TurnLike]:
        """The function that starts the turn of a block, on the decoder's thread."""
        session, current = self.state.session, self._current
        assert session is not None
        current.model, chat = session.title, session.conversation

        def open_turn(on_prefill: OnPrefill) -> TurnLike:
            if block.entered:
                return current.retry(chat, knobs, on_prefill=on_prefill)
            return current.ask(chat, block.question, knobs, instead_of=block.instead_of, on_prefill=on_prefill)

        return open_turn

    def sent(self, block: TurnBlock) -> None:
        """A message was sent. A new version replaces the old one and everything after it on the screen."""
        self._current.wait(block.prompt)
        if (edited := self.branching.take_edited()) is not None:
            block.instead_of = edited.node
            for one in self._from_id(edited.node):
                one.display = one is block

    async def ended(self, block: TurnBlock, *, refused: bool) -> None:
        """A turn is over: the block gets its ids, or is removed if the message was refused."""
        self._current.waits_no_more(block.prompt)
        transcript, branches = self.transcript, self._current.branches
        if refused:
            self.edit_again(block)
            self._stand()
            if isinstance(self.state.turn.error, ContextError) and block in transcript.turns:
                await transcript.take_back(block)
        elif block.instead_of is not None:
            found = self._from_id(block.instead_of)
            for one in found[: found.index(block)]:  # queued messages follow it
                await transcript.take_away(one)
            block.instead_of = None
        if block.entered and branches.leaf is not None:
            answer = branches[branches.leaf]
            block.node = answer.parent or ""
            if block.answers:
                block.answers[-1].node = answer.id
                self._compare([block.answers[-1]], self.state.turn.record)
            self._place(block)
        self.files.show_title()
        self.files.tell_problems()

    def edit_again(self, block: TurnBlock) -> None:
        """A message is back in the prompt. If it is a new version, what it was to replace is shown again, and sending
        it replaces that."""
        replaced = self._from_id(block.instead_of)
        for one in replaced:
            one.display = True
        if replaced:
            self.branching.edit_again(replaced[0])

    def _from_id(self, node: str | None) -> list[TurnBlock]:
        """The turns from the one of a message on; none for None."""
        return list(dropwhile(lambda one: one.node != node, self.transcript.turns))

    def _place(self, block: TurnBlock) -> None:
        versions = self._current.branches.siblings(block.node)
        block.place(versions.index(block.node) + 1, len(versions))

    # Conversations

    async def start_new(self) -> None:
        """As `clear`, with the queue; says why not while something runs."""
        if self.state.busy or self.state.experiment is not None:
            self.say("an answer is being written: Esc stops it, then /clear" if self.state.busy else UNDER_WAY)
            return
        self.state.queue.clear()  # first: the next message must not be taken from the queue while its widget goes
        await self.clear()

    async def clear(self) -> None:
        """Start an empty conversation; the present one stays in the list."""
        if self.state.session is not None:
            self.state.session.clear()
        self._current.new()
        self._current.waits_no_more()
        self.branching.reset()
        await self.transcript.clear()
        self.state.turn.recall(None)
        self._gauges.stand(None)
        self.files.show_title()

    async def open(self, conversation: str, find: str = "") -> None:
        """Continue a stored conversation where it was left, with the parameters of its last turn.

        With `find`: on the branch that contains these words, scrolled to them.
        """
        if self.refuses_change():
            return
        try:
            self._current.open(conversation)
        except DFlashError as error:
            self.say(error)
            return
        if find:
            self._current.go_to(find)
        self.branching.reset()
        await self.transcript.clear()
        await self.go_on_from(None)
        if gone := self._current.left_out:
            await self._note_unseen(gone)
        card, path = self._current.card, self._current.branches.path
        last = self.state.turn.record  # an answer that was cut off has no report
        ran = [last.asked] if last is not None else [node.report.asked for node in path if node.report]
        notes = [f"resumed: {card.title}" if card is not None else "", self._other_model()]
        try:
            if ran:
                self._tuning.set_all(ran[-1])
                self.state.used = self.state.knobs
                self._tuning.show()
        except KnobError as error:
            notes.append(f"its parameters do not fit this pair ({error})")
        self.say("; ".join(filter(None, notes)))
        if find:
            self.screen.call_after_refresh(self.screen.query_one(FindBar).begin, find)

    async def open_last(self) -> None:
        """Continue the conversation that changed last, other than the present one."""
        present = self._current.card
        if card := self._current.store.newest(present.id if present is not None else ""):
            await self.open(card.id)
        else:
            self.say("there is no earlier conversation; the first message begins one")

    async def delete(self, conversation: str) -> StoredConversation:
        """Delete a stored conversation; if it is the present one, start an empty one. Returns what restores it."""
        stored = self._current.store.stored(conversation)
        if self._current.delete(conversation):
            await self.clear()
        self.files.show_title()
        return stored

    def model_loaded(self) -> None:
        """A model has been loaded: it continues the conversation on the screen."""
        self.files.show_title()
        if self._current.card is not None:
            self._go_on()
            if other := self._other_model():
                self.say(f"this conversation goes on; {other}")

    def _resume(self) -> None:
        if self.state.session is not None:
            self._current.resume(self.state.session.conversation)

    def _go_on(self) -> None:
        """Set the decoder, and the figures, to the end of the present path."""
        if self._current.card is not None:
            self._resume()
        self.state.turn.recall(self._last_record())
        self._stand()
        self.files.show_title()

    def _stand(self) -> None:
        """Show the context use of the part of the present path that the decoder gets."""
        reports = [node.report for node in self._current.branches.path if node.report is not None]
        self._gauges.stand(reports[-1] if reports else None, self._current.remaining_share)

    async def leave_out(self, turns: int) -> None:
        """Stop giving the oldest turns to the decoder; the conversation shows where its input now begins."""
        gone = self._current.leave_out(turns)
        self._resume()
        self._stand()
        line = await self._note_unseen(gone)
        self.say(f"{line}; they stay in the conversation")

    def _mark_unseen(self) -> TurnBlock | None:
        """Mark the turns that the model no longer gets; returns the last one."""
        last = None
        for block in self.transcript.turns:
            if self._current.unseen(block.node):
                last = block.add_class("-unseen")
        return last

    async def _note_unseen(self, gone: int) -> str:
        """Show where the decoder's input begins."""
        line = f"the model no longer sees the {counted(gone, 'turn')} above"
        await self.transcript.mount(Note(line, kind="info"), after=self._mark_unseen())
        return line

    def set_system(self, text: str) -> None:
        """Give the present conversation another system message, "" for none; it applies from the next turn."""
        self._current.set_system(text)
        self._resume()
        self.files.show_title()

    def _other_model(self) -> str:
        card, model = self._current.card, self.state.model
        return f"its model was {card.model}" if card is not None and model and card.model != model else ""

    async def go_on_from(self, since: str | None) -> None:
        """Show the present path after the message `since`, which is on the screen, and set the decoder to its end."""
        path = self._current.branches.path
        start = next((place + 1 for place, node in enumerate(path) if node.id == since), 0)
        remaining, ids = {node.id for node in path[:start]}, {node.id for node in path}
        for block in list(self.transcript.turns):
            if block.node not in remaining:
                await self.transcript.take_away(block)
        questions = [node for node in path[start:] if node.role == "user"]
        answers = {node.parent: node for node in path if node.role == "assistant"}
        await self.transcript.prune(coming=len(questions))  # first: these texts are above the following ones
        self.transcript.past([_plain(one, answers.get(one.id)) for one in questions[:-SHOWN]])
        for question in questions[-SHOWN:]:
            await self._restore(question, ids)
        self._mark_unseen()
        self._compare([answer for block in self.transcript.turns for answer in block.answers])
        self._go_on()

    def _compare(self, answers: Sequence[Answer], record: TurnRecord | None = None) -> None:
        """Show under answers the effect of their settings. `record`: that of the only answer, if it is in memory.

        Records are large, so a worker thread reads them; the layout is done once for all.
        """
        nodes = self._current.branches.nodes

        async def compare() -> None:
            found = await aside(lambda: [self._comparing.lines(answer.node, nodes, record) for answer in answers])
            with self.screen.app.batch_update():
                for answer, changes in zip(answers, found):
                    if answer.is_attached and answer.compared != changes:
                        answer.compare(changes)

        self.screen.run_worker(compare(), group="compare")

    def _last_record(self) -> TurnRecord | None:
        """The record of the newest answer, if the loaded pair wrote it: token ids mean nothing to another pair."""
        card, leaf = self._current.card, self._current.branches.leaf
        if card is None or leaf is None or card.model != self.state.model:
            return None
        try:
            return self._current.store.record(leaf)
        except DFlashError as error:
            self.say(error)
            return None

    async def _restore(self, question: Node, ids: Set[str]) -> None:
        """An earlier turn, with every answer; the one in `ids`, the ids of the path, is open."""
        branches = self._current.branches
        if question.results:
            calls = branches[question.parent].calls if question.parent is not None else ()
            block: TurnBlock = await self.transcript.add(CallsBlock(calls, question.results))
        else:
            block = await self.transcript.add(TurnBlock(question.content))
        block.node, block.entered = question.id, True
        chosen = None
        for id in branches.children(question.id):
            node = branches[id]
            answer = await block.add_answer(node.report.knobs if node.report is not None else self.state.knobs, id)
            await answer.restore(node.content, node.thinking, node.report, node.outcome)
            answer.compare(self._comparing.known(id))
            if node.calls and not branches.children(id):
                names = ", ".join(call.name for call in node.calls)
                await answer.inside.mount(Note(f"called and not answered: {names}", kind="info"), before=answer.footer)
            chosen = answer if id in ids else chosen
        if chosen is not None:
            block.choose(chosen)
        self._place(block)


def _plain(question: Node, answer: Node | None) -> str:
    """A turn in the short form that the transcript uses for old turns."""
    parts = tool_lines(question) or ["> " + question.content.replace("\n", "\n> ")]
    if answer is not None:
        parts += [text.strip("\n") for text in (answer.thinking, answer.content) if text.strip()]
    return "\n\n".join(parts)
