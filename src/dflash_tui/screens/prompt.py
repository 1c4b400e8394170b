"""The prompt that the next message would give the model, as its chat template writes it."""

from __future__ import annotations

from textual.content import Content

from dflash_core.errors import DFlashError
from dflash_tui.application.background import Background
from dflash_tui.application.session import SessionLike
from dflash_tui.chat.parts import ChatParts
from dflash_tui.widgets.dialogs import TextScreen
from dflash_tui.widgets.literal import Static

LONGEST = 200_000  # only the last characters are laid out; a conversation may have millions


class Preview(Background):
    """Renders on a thread: a template may take seconds."""

    def __init__(self, session: SessionLike, chat: ChatParts) -> None:
        super().__init__("dflash-prompt")
        self._conversation, self._typed, self._knobs = session.conversation, chat.prompt.whole, chat.state.knobs
        self.text = ""

    def work(self) -> None:
        self.text = self._conversation.preview(self._typed, self._knobs)


class PromptScreen(TextScreen):
    """The system prompt, the text that the thinking level adds, the history as stored, and the message being typed."""

    BOX = "prompt-preview"
    BODY = "prompt-text"

    def __init__(self, chat: ChatParts) -> None:
        session = chat.state.session
        heading = f"The next prompt · thinking {chat.tuning.reasoning.level(chat.state.knobs)}"
        super().__init__(heading, "No model is loaded yet." if session is None else "")
        self._preview = Preview(session, chat) if session is not None else None

    def on_mount(self) -> None:
        if self._preview is not None:
            self._preview.start()
            self.set_interval(0.02, self._look)

    def _look(self) -> None:
        preview = self._preview
        if preview is None or not preview.over:
            return
        self._preview = None
        if preview.error is not None and not isinstance(preview.error, DFlashError):
            raise preview.error
        text = str(preview.error or preview.text)
        cut = f"… {len(text) - LONGEST:,} characters before this\n" if len(text) > LONGEST else ""
        self.query_one("#prompt-text", Static).update(Content.assemble(cut, text[-LONGEST:]))
