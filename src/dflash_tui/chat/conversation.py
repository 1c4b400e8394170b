"""Conversations in the chat screen: keep, open, resume, and recover those of a killed app."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING

from dflash_core.clean import one_line
from dflash_core.errors import ContextError, DFlashError, FormatError, KnobError
from dflash_core.knobs import Knobs
from dflash_tui.application.amounts import counted
from dflash_tui.application.conversations.branches import Node
from dflash_tui.application.conversations.comparing import Comparing
from dflash_tui.application.conversations.current import CurrentConversation
from dflash_tui.application.conversations.store import Held
from dflash_tui.application.experiment import UNDER_WAY
from dflash_tui.application.mentions import collapse
from dflash_tui.application.session import LAST, LISTED, OnPrefill, TurnLike
from dflash_tui.chat.branching import Branching
from dflash_tui.chat.desk import Desk
from dflash_tui.chat.files import ConversationFiles
from dflash_tui.chat.gauges import Gauges
from dflash_tui.widgets.confirm_dialog import ConfirmScreen
from dflash_tui.widgets.find_bar import FindBar
from dflash_tui.widgets.note import Note
from dflash_tui.widgets.strip import TitleRow
from dflash_tui.widgets.transcript import SHOWN, TurnBlock

if TYPE_CHECKING:
    from dflash_core.record import TurnRecord
    from dflash_tui.widgets.answer import Answer

LOOK_S = 5.0  # seconds between checks that the file of conversations still exists


class ConversationController:
    """Links the screen's blocks to the tree of messages: a block and its answers carry the ids of their messages."""

    def __init__(self, desk: Desk, current: CurrentConversation, gauges: Gauges, resume: str = "") -> None:
        self._desk = desk
        self._resume = resume  # the conversation to open at the start
        self.current = current
        self._gauges = gauges
        self.branching = Branching(desk, current, self.refuses, self.go_on_from)
        self.files = ConversationFiles(desk, current, self._show_head, self.tell_problems)
        self._comparing = Comparing(current.store)
        self._told = False

    async def begin(self) -> None:
        """Restore unsent text, and offer a conversation that was cut off."""
        self._desk.screen.set_interval(LOOK_S, self._look)
        rescued = self.current.rescue()
        texts = [collapse(text)[0] for text in rescued.texts]
        for text in texts[:-1]:  # texts of several apps: the arrow keys bring the others back
            self._desk.past.add(text)
        for text in texts[-1:]:
            self._desk.prompt.restore(text)
        if self._resume == LISTED:
            await self._desk.screen.run_action("open('chats')")
        elif self._resume == LAST:
            await self.open_last()
        elif self._resume:
            await self.open(self._resume)
        elif rescued.cards:
            card = rescued.cards[-1]
            more = f" (and {len(rescued.cards) - 1} more, in the list: Ctrl+O)" if len(rescued.cards) > 1 else ""
            question = f"The program ended in the middle of an answer: {one_line(card.title)}{more}"

            async def answered(yes: bool | None) -> None:
                if yes:
                    await self.open(card.id)
                else:
                    self._desk.say("it is in the list of conversations: Ctrl+O")

            self._desk.screen.app.push_screen(ConfirmScreen(question, "go on with it", "start a new one"), answered)
        self._show_head()

    async def _look(self) -> None:
        """On a worker thread: the store may be waiting for another program."""
        await asyncio.to_thread(self.current.store.look)
        self.tell_problems()

    def tell_problems(self) -> None:
        """Say once what is wrong with the disk; if it takes no conversation, other problems follow from that."""
        past = self._desk.past
        problems = [*self.current.problems(), *filter(None, [past.problem])]
        past.problem = ""
        if not self.current.store.on_disk:
            problems, self._told = ([] if self._told else problems[:1]), True
        else:
            self._told = False
        for problem in problems:
            self._desk.screen.notify(problem, title="Data folder", severity="warning", timeout=15)

    def warning(self) -> str:
        """What quitting now would lose; empty if nothing."""
        if self.current.card is None or self.current.store.on_disk:
            return ""
        return "The disk did not take this conversation, so quitting loses it; /export writes it elsewhere."

    @property
    def resumable(self) -> str:
        """The id under which the next start finds this conversation; empty if it will not."""
        card = self.current.card
        return card.id if card is not None and self.current.store.on_disk else ""

    def last_words(self) -> list[str]:
        """Where the conversation is kept when a fault or signal ends the program; elsewhere if the disk refuses it."""
        if self.current.card is None:
            return []
        if self.current.store.on_disk:
            return ["the conversation is kept, Ctrl+O lists it"]
        return [self.files.elsewhere()]

    # Turns

    def opens(self, block: TurnBlock, knobs: Knobs) -> Callable[[OnPrefill], TurnLike]:
        """The function that starts the turn of a block, on the decoder's thread."""
        session = self._desk.session
        assert session is not None
        self.current.model = session.title

        def open_turn(on_prefill: OnPrefill) -> TurnLike:
            if block.entered:
                return self.current.retry(session.conversation, knobs, on_prefill=on_prefill)
            return self.current.ask(
                session.conversation, block.prompt, knobs, instead_of=block.instead_of, on_prefill=on_prefill
            )

        return open_turn

    def sent(self, block: TurnBlock) -> None:
        """A message was sent. A new version replaces the old one and everything after it on the screen."""
        self.current.wait(block.prompt)
        edited = self.branching.take_edited()
        if edited is not None:
            block.instead_of = edited.node
            for one in self._from(edited):
                one.display = one is block

    async def ended(self, block: TurnBlock, *, refused: bool) -> None:
        """A turn is over: the block gets its ids, or is removed if the message was refused."""
        self.current.waits_no_more(block.prompt)
        transcript, branches = self._desk.transcript, self.current.branches
        if refused:
            self.edit_again(block)
        elif block.instead_of is not None:
            found = self._from_id(block.instead_of)
            for one in found[: found.index(block)]:  # queued messages follow it
                await transcript.take_away(one)
            block.instead_of = None
        if refused:
            self._stand()
        if refused and isinstance(self._desk.flow.error, ContextError) and block in transcript.turns:
            await transcript.take_away(block)
        if block.entered and branches.leaf is not None:
            answer = branches[branches.leaf]
            block.node = answer.parent or ""
            if block.answers:
                block.answers[-1].node = answer.id
                self._compare([block.answers[-1]], self._desk.flow.record)
            self._place(block)
        self._show_head()
        self.tell_problems()

    def edit_again(self, block: TurnBlock) -> None:
        """A message is back in the prompt. If it is a new version, what it was to replace is shown again, and sending
        it replaces that."""
        replaced = self._from_id(block.instead_of) if block.instead_of is not None else []
        for one in replaced:
            one.display = True
        if replaced:
            self.branching.edit_again(replaced[0])

    def _from(self, block: TurnBlock) -> list[TurnBlock]:
        turns = self._desk.transcript.turns
        return turns[turns.index(block) :]

    def _from_id(self, node: str) -> list[TurnBlock]:
        return next((self._from(one) for one in self._desk.transcript.turns if one.node == node), [])

    def _place(self, block: TurnBlock) -> None:
        """Show which of its versions a message is."""
        versions = self.current.branches.siblings(block.node)
        block.place(versions.index(block.node) + 1, len(versions))

    # Conversations

    @property
    def refusal(self) -> str:
        """Why the conversation cannot be changed: an answer is being written, or messages are queued; "" if it can."""
        if self._desk.busy:
            return "an answer is being written: Esc stops it first"
        if self._desk.waiting:
            return "messages are queued for the model; they are answered first"
        return UNDER_WAY if self._desk.experiment is not None else ""

    def refuses(self) -> bool:
        """Tell the user, if the conversation cannot be changed."""
        refusal = self.refusal
        if refusal:
            self._desk.say(refusal)
        return bool(refusal)

    async def clear(self) -> None:
        """Start an empty conversation; the present one stays in the list."""
        self.current.new()
        self.current.waits_no_more()
        self.branching.reset()
        await self._desk.transcript.clear()
        self._desk.flow.recall(None)
        self._gauges.stand(None)
        self._show_head()

    async def open(self, conversation: str, find: str = "") -> None:
        """Continue a stored conversation where it was left, with the parameters of its last turn.

        With `find`: on the branch that contains these words, scrolled to them.
        """
        if self.refuses():
            return
        try:
            self.current.open(conversation)
        except DFlashError as error:
            self._desk.say(error)
            return
        if find:
            self.current.go_to(find)
        self.branching.reset()
        await self._desk.transcript.clear()
        await self.go_on_from(None)
        if gone := self.current.left_out:
            await self._note_unseen(gone)
        card, branches = self.current.card, self.current.branches
        last = self._desk.flow.record  # an answer that was cut off has no report
        ran = [last.asked] if last is not None else [node.report.asked for node in branches.path if node.report]
        said = [f"resumed: {card.title}"] if card is not None else []
        said += filter(None, [self._other_model()])
        try:
            if ran:
                self._desk.set_all_knobs(ran[-1])
                self._desk.used = self._desk.knobs
                self._desk.show_knobs()
        except KnobError as error:
            said.append(f"its parameters do not fit this pair ({error})")
        self._desk.say("; ".join(said))
        if find:
            self._desk.screen.call_after_refresh(self._desk.screen.query_one(FindBar).begin, find)

    async def open_last(self) -> None:
        """Continue the conversation that changed last, other than the present one."""
        present = self.current.card
        card = self.current.store.newest(present.id if present is not None else "")
        if card is not None:
            await self.open(card.id)
        else:
            self._desk.say("there is no earlier conversation; the first message begins one")

    async def delete(self, conversation: str) -> Held:
        """Delete a stored conversation; if it is the present one, start an empty one. Returns what restores it."""
        held = self.current.store.held(conversation)
        if self.current.delete(conversation):
            if self._desk.session is not None:
                self._desk.session.clear()
            await self.clear()
        self._show_head()
        return held

    def model_loaded(self) -> None:
        """A model has been loaded: it continues the conversation on the screen."""
        self._show_head()
        if self.current.card is not None:
            self._go_on()
            if other := self._other_model():
                self._desk.say(f"this conversation goes on; {other}")

    def _go_on(self) -> None:
        """Set the decoder, and the figures, to the end of the present path."""
        session = self._desk.session
        if session is not None and self.current.card is not None:
            self.current.resume(session.conversation)
        self._desk.flow.recall(self._last_record())
        self._stand()
        self._show_head()

    def _stand(self) -> None:
        """Show the context use of the part of the present path that the decoder gets."""
        reports = [node.report for node in self.current.branches.path if node.report is not None]
        self._gauges.stand(reports[-1] if reports else None, self.current.kept)

    def _show_head(self) -> None:
        """Title and system message, in the row at the top; on the page of an empty conversation the last one."""
        row, card = self._desk.screen.query_one(TitleRow), self.current.card
        if card is None:
            self._desk.transcript.start.offer(self.current.store.newest())
        row.conversation, row.system = card.title if card is not None else "", self.current.system

    async def leave_out(self, turns: int) -> None:
        """Stop giving the oldest turns to the decoder; the conversation shows where its input now begins."""
        session, gone = self._desk.session, self.current.leave_out(turns)
        if session is not None:
            self.current.resume(session.conversation)
        self._stand()
        line = await self._note_unseen(gone)
        self._desk.say(f"{line}; they stay in the conversation")

    def _mark_unseen(self) -> list[TurnBlock]:
        """Mark the turns that the decoder no longer gets; returns them."""
        shown = [block for block in self._desk.transcript.turns if self.current.unseen(block.node)]
        for block in shown:
            block.add_class("-unseen")
        return shown

    async def _note_unseen(self, gone: int) -> str:
        """Show where the decoder's input begins."""
        shown = self._mark_unseen()
        line = f"the model no longer sees the {counted(gone, 'turn')} above"
        await self._desk.transcript.note(Note(line, kind="info"), after=shown[-1] if shown else None)
        return line

    def set_system(self, text: str) -> None:
        """Give the present conversation another system message, "" for none; it applies from the next turn."""
        self.current.set_system(text)
        session = self._desk.session
        if session is not None:
            self.current.resume(session.conversation)
        self._show_head()

    def _other_model(self) -> str:
        """A note, if the conversation was held with another model than the loaded one."""
        card, model = self.current.card, self._desk.model
        return f"it was with {card.model}" if card is not None and model and card.model != model else ""

    async def go_on_from(self, since: str | None) -> None:
        """Show the present path after the message `since`, which is on the screen, and set the decoder to its end."""
        desk, path = self._desk, self.current.branches.path
        start = next((place + 1 for place, node in enumerate(path) if node.id == since), 0)
        kept, ids = {node.id for node in path[:start]}, {node.id for node in path}
        for block in list(desk.transcript.turns):
            if block.node not in kept:
                await desk.transcript.take_away(block)
        questions = [node for node in path[start:] if node.role == "user"]
        answers = {node.parent: node for node in path if node.role == "assistant"}
        await desk.transcript.prune(coming=len(questions))  # first: these texts are above the following ones
        desk.transcript.past([_plain(one, answers.get(one.id)) for one in questions[:-SHOWN]])
        for question in questions[-SHOWN:]:
            await self._restore(question, ids)
        self._mark_unseen()
        self._compare([answer for block in desk.transcript.turns for answer in block.answers])
        self._go_on()

    def _compare(self, answers: Sequence[Answer], record: TurnRecord | None = None) -> None:
        """Show under answers the effect of their settings. `record`: that of the only answer, if it is in memory.

        Records are large, so a worker thread reads them; the layout is done once for all.
        """
        nodes = self.current.branches.nodes

        def lines() -> list[tuple[str, ...]]:
            return [self._comparing.lines(answer.node, nodes, record) for answer in answers]

        async def compare() -> None:
            found = await asyncio.to_thread(lines)
            with self._desk.screen.app.batch_update():
                for answer, said in zip(answers, found):
                    if answer.is_attached and answer.compared != said:
                        answer.compare(said)

        self._desk.screen.run_worker(compare(), group="compare")

    def _last_record(self) -> TurnRecord | None:
        """That of the newest answer, if the loaded pair wrote it: its ids mean nothing to another pair."""
        card, leaf = self.current.card, self.current.branches.leaf
        if card is None or leaf is None or card.model != self._desk.model:
            return None
        try:
            return self.current.store.record(leaf)
        except FormatError as error:
            self._desk.say(error)
            return None

    async def _restore(self, question: Node, ids: Set[str]) -> None:
        """An earlier turn, with every answer; the one in `ids`, the ids of the path, is open."""
        branches = self.current.branches
        block = await self._desk.transcript.add_turn(question.content)
        block.node, block.entered = question.id, True
        chosen = None
        for id in branches.children(question.id):
            node = branches[id]
            answer = await block.add_answer(node.report.knobs if node.report is not None else self._desk.knobs)
            answer.node = id
            await answer.restore(node.content, node.thinking, node.report, node.outcome)
            answer.compare(self._comparing.known(id))
            chosen = answer if id in ids else chosen
        if chosen is not None:
            block.choose(chosen)
        self._place(block)


def _plain(question: Node, answer: Node | None) -> str:
    """A turn in the short form that the transcript uses for old turns."""
    parts = ["> " + question.content.replace("\n", "\n> ")]
    if answer is not None:
        parts += [text.strip("\n") for text in (answer.thinking, answer.content) if text.strip()]
    return "\n\n".join(parts)
