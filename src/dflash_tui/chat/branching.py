"""Branches on the screen: choose a message, edit it, go from one version of it to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widget import Widget

from dflash_tui.widgets.answer import Answer
from dflash_tui.widgets.transcript import TurnBlock

if TYPE_CHECKING:
    from dflash_tui.chat.conversation import Keeping
    from dflash_tui.screens.chat import ChatScreen


class Branching:
    """What the keys do that act on one message: on the chosen one, or on the newest that the key makes sense for."""

    def __init__(self, screen: ChatScreen, keeping: Keeping) -> None:
        self._screen = screen
        self._keeping = keeping
        self._editing: TurnBlock | None = None
        self._chosen: Widget | None = None

    def reset(self) -> None:
        """Another conversation is shown: nothing is chosen in it."""
        self._editing = self._chosen = None

    def take_edited(self) -> TurnBlock | None:
        """The block whose message the prompt holds another version of, once."""
        edited, self._editing = self._editing, None
        return edited if edited in self._screen.transcript.turns else None

    def edit_again(self, block: TurnBlock) -> None:
        """The other version was refused and is in the prompt again."""
        self._editing = block

    def choose(self, by: int) -> None:
        """Go `by` messages down and mark that one, for the keys that act on a message."""
        messages = self._messages()
        if not messages:
            self._screen.say("no message yet")
            return
        place = messages.index(self._chosen) + by if self._chosen in messages else len(messages) - (by < 0)
        self._mark(messages[place] if 0 <= place < len(messages) else None)

    def _messages(self) -> list[Widget]:
        """What is on the screen of the present path, from top to bottom."""
        messages: list[Widget] = []
        for block in self._screen.transcript.turns:
            if block.node:
                messages.append(block.query_one(".user"))
                messages += [answer for answer in block.answers if answer.inside.display]
        return messages

    def _mark(self, message: Widget | None) -> None:
        for one in (self._chosen, message):
            if one is not None:
                one.set_class(one is message, "-chosen")
        self._chosen = message
        if message is None:
            self._screen.transcript.anchor()
            return
        self._screen.transcript.release_anchor()
        message.scroll_visible(animate=False)
        keys = "Alt+E edits · " if not isinstance(message, Answer) else ""
        self._screen.say(f"{keys}Alt+← Alt+→ other versions of this message")

    def edit(self) -> None:
        """Put the chosen message, or the last, into the prompt; sent again it begins a branch."""
        if self._keeping.refuses():
            return
        chosen = self._chosen.parent if self._chosen is not None else None
        turns = [block for block in self._screen.transcript.turns if block.node]
        block = chosen if isinstance(chosen, TurnBlock) else turns[-1] if turns else None
        if block is None:
            self._screen.say("no message to edit yet")
            return
        self._editing = block
        self._mark(None)
        self._screen.past.add(self._screen.prompt.text)  # what was typed so far comes back with the arrow keys
        self._screen.prompt.text = block.prompt
        self._screen.prompt.move_cursor(self._screen.prompt.document.end)
        self._screen.prompt.focus()
        self._screen.say("Enter sends it as another version; Esc leaves the old one as it is")

    def leave_edit(self) -> bool:
        """Esc: no other version after all. False where nothing was being edited."""
        edited, self._editing = self._editing, None
        if edited is not None:
            if self._screen.prompt.text == edited.prompt:
                self._screen.prompt.text = ""
            self._screen.say("the message stays as it is")
        elif self._chosen is not None:
            self._mark(None)
            return True
        return edited is not None

    async def switch(self, by: int) -> None:
        """Show the version before or after of the chosen message, or else of the last one that has others."""
        if self._keeping.refuses():
            return
        keeper = self._keeping.keeper
        block, node = self._with_versions()
        if block is None or keeper.switch(node, by) is None:
            self._screen.say("no other version that way" if block is not None else "no message has another version")
            return
        branches = keeper.branches
        if node == block.node:
            since = branches[node].parent
        else:
            since = next(one.id for one in branches.path if one.parent == block.node)
            block.choose(next(answer for answer in block.answers if answer.node == since))
        self._mark(None)
        await self._keeping.go_on_from(since)
        there = next(one for one in branches.siblings(node) if one in branches.path_ids)
        versions = branches.siblings(node)
        self._screen.say(f"version {versions.index(there) + 1} of {len(versions)}")

    def _with_versions(self) -> tuple[TurnBlock | None, str]:
        """The message to switch at: its block, and its id."""
        blocks = [block for block in self._screen.transcript.turns if block.node]
        branches = self._keeping.keeper.branches
        found: list[tuple[TurnBlock, str, Widget]] = []
        for block in blocks:
            found.append((block, block.node, block.query_one(".user")))
            found += [(block, one.node, one) for one in block.answers if one.node in branches.path_ids]
        for block, node, widget in reversed(found):
            if widget is self._chosen:
                return block, node
        if self._chosen is None:
            for block, node, _ in reversed(found):
                if len(branches.siblings(node)) > 1:
                    return block, node
        return None, ""
