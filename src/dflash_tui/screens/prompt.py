"""The prompt that the next message would give the model, as its chat template writes it."""

from __future__ import annotations

from textual.content import Content

from dflash_core.errors import DFlashError
from dflash_tui.application.background import aside
from dflash_tui.application.session import ConversationLike
from dflash_tui.chat.parts import ChatParts
from dflash_tui.widgets.dialogs import TextScreen
from dflash_tui.widgets.literal import Static

LONGEST = 200_000  # only the last characters are laid out; a conversation may have millions


class PromptScreen(TextScreen):
    """The system prompt, the text that the thinking level adds, the history as stored, and the message being typed."""

    BOX = "prompt-preview"
    BODY = "prompt-text"

    def __init__(self, chat: ChatParts) -> None:
        session = chat.state.session
        heading = f"The next prompt · thinking {chat.tuning.reasoning.level(chat.state.knobs)}"
        super().__init__(heading, "No model is loaded yet." if session is None else "")
        self._chat = chat

    def on_mount(self) -> None:
        if (session := self._chat.state.session) is not None:
            self.run_worker(self._show(session.conversation))

    async def _show(self, conversation: ConversationLike) -> None:
        try:  # on a thread: a template may take seconds
            text = await aside(lambda: conversation.preview(self._chat.prompt.whole, self._chat.state.knobs))
        except DFlashError as error:
            text = str(error)
        cut = f"… {len(text) - LONGEST:,} characters before this\n" if len(text) > LONGEST else ""
        self.query_one("#prompt-text", Static).update(Content.assemble(cut, text[-LONGEST:]))
