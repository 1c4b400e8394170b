"""A line that opens and closes the part below it, by Enter, Space or a click."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.reactive import reactive
from textual.widget import Widget

from dflash_core.clean import one_line
from dflash_tui.application.amounts import seconds
from dflash_tui.widgets.literal import Static


class FoldLine(Widget, can_focus=True):
    """`▶ title` or `▼ title`."""

    ALLOW_SELECT = False
    HELP = "Enter, Space or a click opens and closes it; Alt+T does so for the newest thinking."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,space", "fold", "Open")]

    title: reactive[str] = reactive("")  # always one line: needs no layout
    open: reactive[bool] = reactive(False)

    def validate_title(self, title: str) -> str:
        return one_line(title)

    def render(self) -> Content:
        mark = "▼" if self.open else "▶"
        style = "bold underline" if self.has_focus else "$foreground 70%"
        return Content.assemble((f"{mark} ", "$accent"), (self.title, style))

    def hint(self, action: str, label: str) -> str:
        return "Close" if action == "fold" and self.open else label

    def on_click(self, event: Click) -> None:
        event.stop()
        self.action_fold()

    def action_fold(self) -> None:
        self.open = not self.open
        if isinstance(self.parent, Foldable):
            self.parent.toggled(self.open)


class Foldable(Vertical):
    """A widget whose first child is a `FoldLine`, its `line`."""

    line: FoldLine

    @property
    def folded_text(self) -> str:
        """The contents that are drawn only while it is open."""
        return ""

    def shows(self, widget: Widget) -> bool:
        """Whether a widget in it is visible, and not folded."""
        return all(one.display for one in self.children if one is widget or one in widget.ancestors)

    def toggled(self, is_open: bool) -> None:
        """The line was opened or closed."""


class FoldedText(Foldable):
    """A text that is drawn only while it is open."""

    def __init__(self, *, id: str | None = None, classes: str = "", body: str = "thinking-body") -> None:
        """`body`: the class of the text's widget."""
        super().__init__(id=id, classes=classes)
        self.line, self.body = FoldLine(), Static("", classes=body)
        self.body.display = False

    def compose(self) -> ComposeResult:
        yield self.line
        yield self.body

    def toggled(self, is_open: bool) -> None:
        self.body.display = is_open
        self.body.update(Content(self.folded_text) if is_open else "")


class Thinking(FoldedText):
    """The model's reasoning: counted while it streams."""

    def __init__(self) -> None:
        super().__init__(classes="thinking")
        self.display = False
        self.text = ""
        self.effort = ""  # the requested level, if the model's template knows levels

    def add(self, text: str) -> None:
        self.text += text
        self.display = self.display or bool(self.text)
        if self.line.open:
            self.toggled(True)

    @property
    def folded_text(self) -> str:
        return self.text.strip("\n")

    def count(self, tokens: int, spent: float, *, running: bool) -> None:
        """Show how long the thinking took, or has taken so far."""
        level = f" · {self.effort}" if self.effort else ""
        count = f" · {tokens} tok" if tokens else ""  # another engine may not tell it
        how = f"thinking… {seconds(spent)}{count}" if running else f"thought for {seconds(spent)}{count}{level}"
        self.line.title = how
