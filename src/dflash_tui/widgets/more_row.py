"""The line in the parameters panel that unfolds the less used ones."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive

from dflash_tui.widgets.panels import Row


class MoreRow(Row):
    """Posts `Toggled` on Enter, Space, Right or a click; the owner of the rows sets `open`. While the rows are hidden,
    it names those that are not at their default, `set_ones`."""

    HELP = "Enter, Space, m or a click shows the other parameters, or hides them again."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "unfold", "More"),
        Binding("right", "turn(True)", "show", show=False),
        Binding("left", "turn(False)", "hide", show=False),
    ]

    open: reactive[bool] = reactive(False)
    staged: reactive[int] = reactive(0)
    set_ones: reactive[tuple[str, ...]] = reactive[tuple[str, ...]](())
    count: reactive[int] = reactive(0)

    class Toggled(Message):
        """The rows are to be shown, or hidden."""

    def __init__(self, count: int) -> None:
        super().__init__(id="params-more")
        self.set_reactive(MoreRow.count, count)

    def action_unfold(self) -> None:
        self.post_message(self.Toggled())

    def action_turn(self, unfolded: bool) -> None:
        if unfolded is not self.open:
            self.action_unfold()

    def on_click(self, event: Click) -> None:
        event.stop()
        self.action_unfold()

    def render(self) -> Content:
        mark, what = ("▼", "fewer parameters") if self.open else ("▶", f"{self.count} more parameters")
        style = "bold underline" if self.has_focus else "$foreground 80%"
        folded = not self.open
        changed = f"  •{self.staged}" if self.staged and folded else ""
        available = self.size.width - len(what) - len(changed) - 3  # the mark
        names = f"  set: {', '.join(self.set_ones)}"
        own = names if len(names) <= available else f"  {len(self.set_ones)} set"
        own = own if self.set_ones and folded else ""
        return Content.assemble((f" {mark} ", "$accent"), (what, style), (own, "bold"), (changed, "$accent"))
