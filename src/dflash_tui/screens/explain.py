"""Pages of text: what figures or a parameter mean; the prompt that the next message would give the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType
from textual.content import Content
from textual.events import Key, Paste

from dflash_core.errors import DFlashError
from dflash_core.knobs import SPEC, Spec
from dflash_tui.application.background import aside
from dflash_tui.terminal.key_order import TakesText, is_text
from dflash_tui.text.glossary import GLOSSARY, PAGES
from dflash_tui.widgets.dialogs import TextScreen
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.params import WHEN

if TYPE_CHECKING:
    from dflash_tui.application.session import ConversationLike
    from dflash_tui.chat.parts import ChatParts


class ExplainScreen(TextScreen):
    """Text that is typed while this covers the chat goes into the prompt.

    `typed`: the text in the prompt that opened this page. This text returns to the prompt if the user goes on typing.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape,enter,question_mark", "dismiss", "Close")]
    LETTERS_MOVE: ClassVar[bool] = True

    def __init__(self, title: str, text: Content, typed: str = "") -> None:
        super().__init__(title, text)
        self._typed = typed

    def take_text(self, event: Key | Paste) -> None:
        """Over the chat, typed text closes the page and goes into the prompt, after the text that opened the page."""
        below = self.app.screen_stack[-2]
        if not is_text(event) or not isinstance(below, TakesText) or getattr(event, "key", "") == "question_mark":
            return
        self.dismiss()
        if self._typed:
            below.query_one("#prompt").insert(self._typed)  # type: ignore[attr-defined]
        below.take_text(event)


def figures(page: str) -> Content:
    """The paragraph of a panel or page: a line for each of its figures."""
    lines = [Content.assemble((name, "bold $primary"), f": {GLOSSARY[name]}") for name in PAGES[page]]
    return _with_reading(lines, "docs/tuning.md, docs/glossary.md")


def parameter(spec: Spec) -> Content:
    """The knob table's text, and what a parameter is called where it is typed."""
    allowed = f"Allowed: {spec.allowed}; default {spec.show(spec.default)}. A change counts {WHEN[spec.applies]}."
    name = [Content(f"/set, --set and presets call it {spec.name}.")] if spec.name in SPEC else []
    return _with_reading([Content.styled(f"{spec.help}.", "bold"), Content(allowed), *name], "docs/knobs.md")


def _with_reading(lines: list[Content], documents: str) -> Content:
    return Content("\n").join([*lines, Content.styled(f"\nread on: {documents}", "$foreground 70%")])


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
