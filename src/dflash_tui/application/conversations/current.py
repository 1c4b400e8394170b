"""The conversation on the screen, saved as it grows: in the store, and in the journal while an answer is written."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_core.clean import encodable
from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs
from dflash_core.record import Start, TurnRecord, Turns, pack, unpack
from dflash_tui.application.conversations.branches import Branches, Node, messages, new_id
from dflash_tui.application.conversations.journal import NOTHING, Journal, Left, Place
from dflash_tui.application.conversations.store import Card, Store, StoredConversation, title_of
from dflash_tui.application.conversations.tool_messages import ToolResult, result_messages, stored, without_results
from dflash_tui.application.session import ConversationLike, OnPrefill, TurnLike

if TYPE_CHECKING:
    from dflash_core.events import Piece
    from dflash_core.messages import Message

CUT_OFF = "cut off when the program ended"


@dataclass(frozen=True, slots=True)
class Rescued:
    """Recovered from the journal, oldest first: conversations whose last answer was cut off, and unsent text."""

    cards: tuple[Card, ...]
    texts: tuple[str, ...]


class CurrentConversation:
    """Holds the present conversation as a tree, next to the decoder's list of messages, and saves the changes of both.

    `ask` and `retry` may be called on the decoder's thread. The rest is for the app's thread; methods that change the
    conversation may be called only while no turn runs.
    """

    def __init__(self, folder: Path, system: str = "") -> None:
        """`system`: the system message of new conversations."""
        self.model = ""
        self.default_system = self.system = encodable(system)
        self._unseen: frozenset[str] = frozenset()  # messages that the decoder no longer gets
        self._unseen_by: dict[str, frozenset[str]] = {}  # by answer id: the messages that were left out for that answer
        self.card: Card | None = None
        self.branches = Branches()
        self._packed: dict[str, bytes] = {}  # records of this conversation's turns that ran in this process
        self.store = Store(folder, self._in_memory)
        self.journal = Journal(self.store, folder / "journal")
        self._marks: list[int] = []  # of each piece of the running turn: the changes of the journal up to it
        self._answering: tuple[ConversationLike, Place] | None = None
        self._draft, self._pasted = "", NOTHING
        self._waiting: list[str] = []

    def problems(self) -> list[str]:
        """Problems with the disk, each returned once."""
        stored, self.journal.problem, left = self.store.problem(), "", self.journal.problem
        if stored and not self.store.on_disk:
            stored += "; they stay in memory until the app closes, and /export writes one elsewhere"
        return [problem for problem in (stored, left) if problem]

    @property
    def resumable(self) -> str:
        """The id under which the next start finds this conversation; empty if it will not."""
        return self.card.id if self.card is not None and self.store.on_disk else ""

    @property
    def warning(self) -> str:
        """What quitting now would lose; empty if nothing."""
        if self.card is None or self.store.on_disk:
            return ""
        return "This conversation is not on disk, so quitting loses it; /export writes it elsewhere."

    def close(self) -> bool:
        """Close; False if something could not be saved."""
        self.journal.close()
        return self.store.close()

    # Typed text

    def typed(self, draft: str, pasted: Mapping[str, str] = NOTHING) -> None:
        """The prompt's text has changed; keys of `pasted` are placeholders in it for long texts."""
        self._draft, self._pasted = draft, pasted
        self._write()

    def wait(self, prompt: str) -> None:
        """A message has left the prompt and is not in the conversation yet."""
        self._waiting.append(prompt)
        self._write()

    def waits_no_more(self, prompt: str | None = None) -> None:
        """A message is in the conversation, or back in the prompt. Without an argument: the queue is empty."""
        if prompt is None:
            self._waiting.clear()
        elif prompt in self._waiting:
            self._waiting.remove(prompt)
        self._write()

    def _write(self, *before: str) -> None:
        """Write typed and queued text to the disk; `before`: texts that are being put into the prompt."""
        draft = [self._draft] if self._draft.strip() not in ("", "/") else []  # a single slash asks for nothing yet
        self.journal.typed("\n".join([*before, *draft]), self._waiting, self._pasted)

    # Turns

    def ask(
        self,
        conversation: ConversationLike,
        prompt: str | Sequence[ToolResult],
        knobs: Knobs,
        *,
        instead_of: str | None = None,
        on_prefill: OnPrefill | None = None,
    ) -> TurnLike:
        """Ask as the conversation does, and save the message: a text, or the results of the last answer's calls.
        `instead_of`: the message of which it is a new version.

        Raises what the conversation's `ask` raises; nothing is changed then.
        """
        leaf = self.branches.leaf if instead_of is None else self.branches[instead_of].parent
        text, results = (encodable(prompt), ()) if isinstance(prompt, str) else ("", tuple(prompt))
        question = Node("user", text, leaf, results=results)
        # Calls that nobody has answered: the program ended before they were made.
        left_open = self.branches[leaf].calls if leaf is not None and question.asks else ()
        if instead_of is not None or self.card is None or left_open:
            conversation.set_messages([*self._messages(leaf), *result_messages(without_results(left_open))])
        asked = question.content if question.asks else result_messages(question.results)
        try:
            turn = conversation.ask(asked, knobs, on_prefill=on_prefill)
        except BaseException:
            self.resume(conversation)
            raise
        if self.card is None:
            self.card = Card(title_of(question.content), self.system, self.model)
            self.store.begin(self.card)
        self._add(question)
        self._begin(conversation, self.card, question)
        return turn

    def give_up_calls(self, conversation: ConversationLike, results: Sequence[ToolResult]) -> None:
        """The user ends the turn between its calls and the next answer: save the results, and no answer to them."""
        if self.card is not None:
            question = Node("user", "", self.branches.leaf, results=tuple(results))
            self._add(question)
            self._add(Node("assistant", "", question.id, outcome="stopped"))
            self.resume(conversation)

    def retry(self, conversation: ConversationLike, knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> TurnLike:
        """Answer the last message again; the new answer becomes a sibling of the old one."""
        turn = conversation.retry(knobs, on_prefill=on_prefill)
        questions = [node for node in self.branches.path if node.role == "user"]
        if self.card is not None and questions:
            self._begin(conversation, self.card, questions[-1])
        return turn

    def pieces(self, turn: TurnLike, *, ahead: bool = False) -> Iterator[Piece]:
        """The pieces of the turn that was started last, which is saved however it ends. Iterated on the decoder's
        thread. A piece is on the disk when it is yielded; with `ahead`, when `saved` counts it."""
        outcome = "failed"
        try:
            for piece in turn:
                self._marks.append(self.journal.put)
                if not ahead:
                    self.journal.flush()
                yield piece
            outcome = ""
        finally:
            self._finish(turn, outcome)

    def saved(self) -> int:
        """How many pieces of the running turn are on the disk."""
        return bisect_right(self._marks, self.journal.done)

    def _begin(self, conversation: ConversationLike, card: Card, question: Node) -> None:
        place = Place(card.id, question.id, new_id(), question.content, question.parent, card.model)
        self._marks = []
        self.journal.begin(place)
        self.waits_no_more(question.content)
        if self.journal.line not in conversation.watchers:
            conversation.watchers.append(self.journal.line)
        self._answering = conversation, place

    def _finish(self, turn: TurnLike, outcome: str) -> None:
        if self._answering is None:
            return
        (conversation, place), self._answering = self._answering, None
        answer = Node(
            "assistant", turn.text, place.question, turn.thinking, outcome, turn.report, place.answer,
            calls=stored(turn.calls),
        )  # fmt: skip
        self._add(answer)
        self._unseen_by[answer.id] = self._unseen
        if turn.record is not None:
            self._packed[answer.id] = conversation.turns.packed(-1)
            self.store.keep(answer.id, self._packed[answer.id])
        self.journal.finish()

    def _add(self, node: Node) -> None:
        self.branches.add(node)
        present = self._in_memory()
        if present is not None and not self.store.add(present.card.id, node):  # another app has deleted it meanwhile
            self.store.put(present)

    def _in_memory(self) -> StoredConversation | None:
        """The present conversation, to write to a file that has lost it."""
        return StoredConversation(self.card, self.branches, dict(self._packed)) if self.card is not None else None

    # The present conversation

    def new(self) -> None:
        """Start an empty conversation; the present one stays in the store."""
        self.card, self.branches, self._packed = None, Branches(), {}
        self.system = self.default_system

    def open(self, conversation: str) -> None:
        """Continue a stored conversation. Raises DFlashError if it does not exist."""
        card = self.store.find(conversation)
        self.card, self.branches, self._packed = card, self.store.branches(card.id), {}
        self.system = card.system

    def resume(self, conversation: ConversationLike) -> None:
        """Set the decoder to the end of the present path, with its messages and turns."""
        conversation.set_messages(self._messages(self.branches.leaf))
        if self.card is not None:
            recorded = self.store.recorded(self.card.id)
            conversation.turns = Turns.stored(partial(self._turn, message) for message in recorded)

    def _turn(self, message: str) -> TurnRecord:
        """The record of a turn. If it is lost or unreadable, one with the question and answer but no steps."""
        packed = self._packed.get(message)
        record = unpack(packed) if packed is not None else self.store.readable(message)
        model = self.card.model if self.card is not None else ""
        return record or TurnRecord(Start("1970-01-01T00:00:00Z", model, "", "", "", (), Knobs()), ended=True)

    def switch(self, message: str, by: int) -> str | None:
        """Switch to a sibling of a message; returns it, or None if there is none. Call `resume` afterwards."""
        there = self.branches.switch(message, by)
        if there is not None and self.card is not None:
            self.store.go(self.card.id, self.branches.leaf)
        return there

    def go_to(self, words: str) -> None:
        """Switch to the branch of the newest message that contains all of these words; without one, change nothing."""
        searched = words.casefold().split()
        for node in reversed(self.branches.nodes):
            if all(word in node.content.casefold() for word in searched):
                if node.id not in self.branches.path_ids:
                    self.branches.go_below(node.id)
                    if self.card is not None:
                        self.store.go(self.card.id, self.branches.leaf)
                return

    def rename(self, title: str, conversation: str | None = None) -> None:
        """Rename a conversation, by default the present one. Raises DFlashError for an empty title or conversation."""
        if conversation is None and self.card is None:
            raise DFlashError("an empty conversation has no title yet; its first message gives it one")
        present = self.card.id if self.card is not None else None
        self.store.rename(conversation or present or "", title)
        if present is not None:
            self.card = self.store.find(present)

    def delete(self, conversation: str) -> bool:
        """Delete a stored conversation; True if it was the present one, which is then replaced by an empty one."""
        self.store.delete(conversation)
        present = self.card is not None and self.card.id == conversation
        if present:
            self.new()
        return present

    def whole(self, card: Card, *, records: bool) -> StoredConversation:
        """A conversation to export; `records` as for `Store.stored`. Another thread may call it meanwhile."""
        present, branches = self.card, self.branches
        found = self.store.stored(card.id, records=records)
        if present is None or card.id != present.id:
            return found
        return replace(found, card=present, branches=Branches(branches.nodes, branches.leaf))

    def _messages(self, leaf: str | None) -> list[Message]:
        seen = [node for node in self.branches.path_to(leaf) if node.id not in self._unseen]
        return messages(seen, self.system)

    def set_system(self, text: str) -> None:
        """Set the system message of this conversation. Call `resume` afterwards."""
        self.system = encodable(text)
        if self.card is not None:
            self.card = replace(self.card, system=self.system)
            self.store.set_system(self.card.id, self.system)

    def leave_out(self, turns: int) -> int:
        """Stop giving the decoder the oldest `turns` turns that it still gets; returns how many are left
        out now. The turns stay in the conversation. Call `resume` afterwards."""
        questions = [node.id for node in self.branches.path if node.asks and node.id not in self._unseen]
        gone = set(questions[: max(min(turns, len(questions) - 1), 0)])
        for node in self.branches.path:  # answers, results of calls, and answers to them
            if node.parent in gone and not node.asks:
                gone.add(node.id)
        self._unseen |= gone
        return self.left_out

    @property
    def left_out(self) -> int:
        """The number of turns of the path that the decoder does not get."""
        return sum(node.asks and node.id in self._unseen for node in self.branches.path)

    @property
    def remaining_share(self) -> float:
        """The share, 0 to 1, of the last turn's text (its input and its answer) that the decoder still gets."""
        path = self.branches.path
        last = max((place for place, node in enumerate(path) if node.role == "assistant"), default=None)
        if last is None:
            return 1.0
        before = self._unseen_by.get(path[last].id, frozenset())

        def size(unseen: frozenset[str]) -> int:
            shown = (node for node in path[: last + 1] if node.id not in unseen)
            return len(self.system) + sum(node.size for node in shown)

        return size(self._unseen) / max(size(before), 1)

    def unseen(self, message: str) -> bool:
        """Whether the decoder no longer gets this message."""
        return message in self._unseen

    # After a crash

    def rescue(self) -> Rescued:
        """Recover the files of apps that ended: save their answers in the store, and return their text.

        If the store is in memory only, their files stay for a later start.
        """
        texts: list[str] = []
        cards: dict[str, Card] = {}
        if self.store.on_disk:
            for left in self.journal.rescue():
                if any(unsent := [text for text in (*left.typed.waiting, left.typed.draft) if text.strip()]):
                    texts.append("\n".join(unsent))
                    # Before the other app's file is deleted; in addition to what has been typed and sent here.
                    self._write(*texts)
                if left.place is not None:
                    card = self._put_back(left, left.place)
                    cards[card.id] = card
        return Rescued(tuple(cards.values()), tuple(texts))

    def _put_back(self, left: Left, place: Place) -> Card:
        record = left.record
        system = record.start.system if record is not None else ""
        if not self.store.has(place.conversation):
            self.store.begin(Card(title_of(place.prompt), system, place.model, place.conversation))
        if not self.store.has(place.question):
            self.store.add(place.conversation, Node("user", place.prompt, place.parent, id=place.question))
        if not self.store.has(place.answer):
            text, thinking = (record.text, record.thinking) if record is not None else ("", "")
            report = record.report if record is not None else None
            outcome = "" if report is not None else CUT_OFF
            answer = Node("assistant", text, place.question, thinking, outcome, report, place.answer)
            self.store.add(place.conversation, answer)
            if record is not None:
                self.store.keep(answer.id, pack(record))
        return self.store.find(place.conversation)
