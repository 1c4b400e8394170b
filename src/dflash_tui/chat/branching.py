"""Keys that act on one message: choose it, edit it, switch between its versions, copy it or its code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from textual.widget import Widget

from dflash_tui.chat.controller import Controller
from dflash_tui.text.blocks import DOT
from dflash_tui.widgets.literal import Copy
from dflash_tui.widgets.markdown import Fence
from dflash_tui.widgets.transcript import TurnBlock


@dataclass(eq=False)
class Branching(Controller):
    """The keys that act on one message: the chosen one, or the newest one to which the key applies."""

    _show_from: Callable[[str | None], Awaitable[None]]  # shows what follows a message
    _editing: TurnBlock | None = None
    _chosen: Widget | None = None

    def reset(self) -> None:
        self._editing = self._chosen = None

    @property
    def open(self) -> bool:
        return self._editing is not None or self._chosen is not None

    @property
    def chosen_block(self) -> TurnBlock | None:
        """The turn whose message, or answer, is chosen."""
        parents = self._chosen.ancestors if self._chosen is not None else ()
        return next((one for one in parents if isinstance(one, TurnBlock)), None)

    def leave_choice(self) -> None:
        if self._chosen is not None:
            self._mark(None)

    @property
    def chosen_text(self) -> str:
        block, chosen = self.chosen_block, self._chosen
        if block is None or chosen is None:
            return ""
        if chosen.has_class("user"):
            return block.typed or block.message_text
        return next(answer.text for answer in block.answers if answer is chosen)

    def take_edited(self) -> TurnBlock | None:
        """The block whose message is being edited in the prompt; returned once."""
        edited, self._editing = self._editing, None
        return edited if edited in self.transcript.turns else None

    def edit_again(self, block: TurnBlock) -> None:
        """The edited version was refused and is back in the prompt."""
        self._editing = block

    def choose(self, by: int) -> None:
        """Move the choice `by` messages down, for the keys that act on a message."""
        messages = self._messages()
        if not messages:
            self.say("no message yet")
            return
        place = messages.index(self._chosen) + by if self._chosen in messages else len(messages) - (by < 0)
        self._mark(messages[place] if 0 <= place < len(messages) else None)

    def _messages(self) -> list[Widget]:
        messages: list[Widget] = []
        for block in [block for block in self.transcript.turns if block.display]:
            messages += [block.query_one(".user"), *(answer for answer in block.answers if answer.inside.display)]
        return messages

    def _mark(self, message: Widget | None) -> None:
        for one in (self._chosen, message):
            if one is not None:
                one.set_class(one is message, "-chosen")
        self._chosen = message
        self.screen.refresh_bindings()
        if message is None:
            self.transcript.anchor()
            return
        self.transcript.look_at(message)
        keys = ["Alt+C copies it"]
        if message.has_class("user") and (turn := self.chosen_block) is not None and (turn.node or not turn.answers):
            keys.append("Alt+E edits it" if turn.node else "Alt+E takes it back")
        block, node = self._with_versions()
        if block is not None and len(self.state.conversation.branches.siblings(node)) > 1:
            keys.append("Alt+← Alt+→ other versions")
        self.say(DOT.join(keys))

    def edit(self) -> None:
        """Put the chosen message, or the last one, into the prompt; sending it starts a new branch."""
        if self.refuses_change():
            return
        turns = [block for block in self.transcript.turns if block.node and block.typed]
        block = self.chosen_block or (turns[-1] if turns else None)
        if block is None:
            self.say("no message to edit yet")
            return
        if not block.node:
            self.say("this message was not answered: there is no version of it to edit")
            return
        if not block.typed:
            self.say("results of calls cannot be edited; the message before them can")
            return
        self._editing = block
        self._mark(None)
        self.state.past.add(self.prompt.whole)  # the arrow keys bring back the text typed so far
        self.prompt.fill(block.typed)
        self.prompt.focus()
        self.screen.refresh_bindings()
        self.say("Enter sends it as another version; Esc cancels")

    def leave_edit(self) -> bool:
        """Esc: cancel the edit. False if nothing was being edited."""
        over, edited, self._editing = self.open, self._editing, None
        if edited is None:
            self.leave_choice()
            return over
        if self.prompt.whole == edited.typed:
            self.prompt.text = ""
        self.say("the message stays as it is")
        return True

    async def switch(self, by: int) -> None:
        """Show the previous or next version of the chosen message, else of the last message that has several."""
        if self.refuses_change():
            return
        block, node = self._with_versions()
        if block is None or self.state.conversation.switch(node, by) is None:
            self.say("no other version in that direction" if block is not None else "no message has another version")
            return
        branches = self.state.conversation.branches
        if node == block.node:
            since = branches[node].parent
        else:
            since = next(one.id for one in branches.path if one.parent == block.node)
            block.choose(next(answer for answer in block.answers if answer.node == since))
        self._mark(None)
        await self._show_from(since)
        versions = branches.siblings(node)
        there = next(place for place, one in enumerate(versions, 1) if one in branches.path_ids)
        self.say(f"version {there} of {len(versions)}")

    def _with_versions(self) -> tuple[TurnBlock | None, str]:
        """The message whose version to switch: its block and its id."""
        branches = self.state.conversation.branches
        for block in reversed([block for block in self.transcript.turns if block.node]):
            answers = [(one.node, one) for one in reversed(block.answers) if one.node in branches.path_ids]
            for node, widget in (*answers, (block.node, block.query_one(".user"))):
                several = self._chosen is None and len(branches.siblings(node)) > 1
                if several or widget is self._chosen:
                    return block, node
        return None, ""


@dataclass(eq=False)
class Copying(Controller):
    """The user's copies; the app makes them, and says where each went."""

    _branching: Branching
    _newest: Fence | None = None  # the last block of code when one was copied
    _copied: Fence | None = None  # the block copied last

    def message(self) -> None:
        answer = self.transcript.answer
        if chosen := self._branching.chosen_text:
            self._copies(chosen, f"the message, {len(chosen)} characters")
        elif answer is not None and answer.text:
            self._copies(answer.text, f"the answer, {len(answer.text)} characters")
        else:
            self.say("no answer to copy yet")

    def code(self) -> None:
        """The last block of code; when repeated, the one before it. A newer block begins again."""
        blocks = list(self.transcript.query(Fence))
        if not blocks:
            self.say("no code to copy yet")
            return
        last = self._copied if blocks[-1] is self._newest else None
        place = ((blocks.index(last) if last in blocks else 0) - 1) % len(blocks)
        self._newest, self._copied = blocks[-1], blocks[place]
        self._copied.scroll_visible(animate=False)
        self._copies(self._copied.code, f"block {place + 1} of {len(blocks)}, {self._copied.lines}")

    def _copies(self, text: str, what: str) -> None:
        self.screen.post_message(Copy(text, what))
