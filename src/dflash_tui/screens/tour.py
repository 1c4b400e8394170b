"""The tour: one part of the running chat is highlighted, and a box explains it. The glossary explains figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult, RichCast
from rich.segment import Segment
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.color import Color
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click, Key, Paste
from textual.geometry import Offset, Region, Size
from textual.renderables.background_screen import BackgroundScreen
from textual.screen import ModalScreen, Screen
from textual.widget import Widget

from dflash_core.knobs import SPEC
from dflash_tui.chat.layout import NARROW
from dflash_tui.chat.parts import ChatParts
from dflash_tui.screens.page import Passing
from dflash_tui.settings.keys import retold
from dflash_tui.terminal.key_order import is_text
from dflash_tui.text.glossary import GLOSSARY
from dflash_tui.widgets.dialogs import KeyHints
from dflash_tui.widgets.inspector import TabRow
from dflash_tui.widgets.literal import Static

LIT = "-lit"
LOOK_S = 0.05
WIDTHS = (76, 58)  # of the box: above or below a part, and next to it
TALL = 34  # minimum number of rows for blank lines between the parts of the box
GAP = 1  # rows or columns between the box and what it points at


class Light(BackgroundScreen):
    """The screen below, dimmed outside a region."""

    def __init__(self, screen: Screen[object], color: Color, region: Region) -> None:
        super().__init__(screen, color)
        self._region = region

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        clear, lit = Color(0, 0, 0, 0), self._region
        for y, row in enumerate(Segment.split_lines(console.render(self.screen._compositor, options))):
            if not lit.y <= y < lit.bottom:
                yield from self.process_segments(row, self.color)
            else:
                parts = Segment.divide(row, [lit.x, lit.right, options.max_width])
                for place, part in enumerate(parts):
                    yield from self.process_segments(part, clear if place == 1 else self.color)
            yield Segment.line()


def place(lit: Region, box: Size, screen: Size) -> Offset:
    """The place of a box that does not cover `lit`: next to it, otherwise above or below, where there is more space."""
    x = min(max(lit.x + (lit.width - box.width) // 2, 0), max(screen.width - box.width, 0))
    y = min(max(lit.y + (lit.height - box.height) // 2, 0), max(screen.height - box.height, 0))
    if lit.x - GAP >= box.width:
        return Offset(lit.x - GAP - box.width, y)
    if screen.width - lit.right - GAP >= box.width:
        return Offset(lit.right + GAP, y)
    over = lit.y >= screen.height - lit.bottom
    return Offset(x, max(lit.y - box.height, 0) if over else min(lit.bottom, max(screen.height - box.height, 0)))


class TourScreen(Passing, ModalScreen[None]):
    """Enter and Right go on, Left goes back, Esc ends. Typed text also ends the tour and goes into the prompt. A key
    of the chat ends it too and has its usual effect there."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("enter,right,space", "go(1)", "Next"),
        ("left,backspace", "go(-1)", "Back"),
        ("escape", "end", "End"),
    ]

    def __init__(self, chat: ChatParts) -> None:
        super().__init__()
        self._chat = chat
        self._at = 0
        self._part: Widget | None = None
        self._stands: tuple[Region, Size, Size] | None = None
        self._focused: Widget | None = None
        self._before = chat.places.saved

    def compose(self) -> ComposeResult:
        with Vertical(id="tour", classes="dialog"):
            yield Static("", id="tour-title")
            yield Static("", id="tour-text")
            yield KeyHints(id="tour-hints")

    def on_mount(self) -> None:
        self._focused = self._chat.screen.focused
        self._chat.tour_seen()
        self._point()
        self.set_interval(LOOK_S, self._stand)

    def on_unmount(self) -> None:
        self._leave()

    def on_resize(self) -> None:
        self._chat.places.resized(self.app.size)  # at once: the screen below gets the event later
        self.call_after_refresh(self._point)

    def render(self) -> ConsoleRenderable | RichCast | str:
        """The chat with the part highlighted."""
        below = self._chat.screen
        if self._part is None or self._part.screen is not below:
            return super().render()
        super().render()  # this removes the screen below from the stack of drawn screens
        return Light(below, self.styles.background, self.lit)

    @property
    def lit(self) -> Region:
        """The highlighted region: the part, and for a panel also the row of tabs."""
        part = self._part.region if self._part is not None else Region()
        tabs = self._chat.screen.query_one(TabRow).region
        return part.union(tabs) if STEPS[self._at].panel and part and tabs else part

    # Steps

    def _point(self) -> None:
        """Show the text of the current step and highlight its part."""
        step = STEPS[self._at]
        if step.panel:
            self._chat.places.show(step.panel)
        else:
            self._chat.places.restore(self._before)
        self._unlit()
        self._part = next(one for one in self._chat.screen.walk_children(Widget) if one.id == step.part)
        self._part.add_class(LIT)
        dots = "".join("●" if place == self._at else "○" for place in range(len(STEPS)))
        title, width = retold(step.title, self.app), min(WIDTHS[self.size.width >= NARROW], self.size.width)
        right = dots.rjust(max(width - 6 - cell_len(title), len(dots)))
        self.query_one("#tour-title", Static).update(Content.assemble((title, "bold $accent"), (right, "$accent")))
        self.query_one("#tour-text", Static).update(retold(step.text, self.app))
        self.set_class(self.size.height >= TALL, "-tall")
        self.query_one("#tour").styles.width = width
        last = self._at == len(STEPS) - 1
        back, end = [("←", "back")] * bool(self._at), [("Esc", "ends it")] * (not last)
        self.query_one(KeyHints).tell(("Enter", "ends it" if last else "next"), *back, *end)
        self.call_after_refresh(self._stand)

    def _stand(self) -> None:
        """Move the box so that it does not cover the part, whenever the size or place of either changes."""
        box = self.query_one("#tour")
        if self._part is None or not self.is_attached:
            return
        now = (self.lit, box.outer_size, self.size)
        if now != self._stands:
            self._stands = now
            box.styles.offset = place(*now)
            self.refresh()

    def _unlit(self) -> None:
        if self._part is not None:
            self._part.remove_class(LIT)
            self._part = None

    def _leave(self) -> None:
        """Restore the chat as it was before the tour."""
        self._unlit()
        self._chat.places.restore(self._before)
        if self._focused is not None and self._focused.is_attached and self._focused.display:
            self._chat.screen.set_focus(self._focused)

    def action_go(self, count: int) -> None:
        if self._at + count == len(STEPS):
            self.action_end()
        elif self._at + count >= 0:
            self._at += count
            self._point()

    def action_end(self) -> None:
        self._leave()
        self.dismiss()

    def on_click(self, event: Click) -> None:
        event.stop()
        self.action_go(1)

    def take_text(self, event: Key | Paste) -> None:
        """Typing ends the tour and is not lost."""
        if is_text(event) and getattr(event, "key", "") != "space":
            self._focused = self._chat.prompt
            self.action_end()
        elif isinstance(event, Key) and event.key not in self.active_bindings:
            meant = self._chat.screen.active_bindings.get(event.key)
            if meant is not None and meant.node is self._chat.screen:
                self.action_end()


@dataclass(frozen=True, slots=True)
class Step:
    """`part` is the id of the widget that it points at; `panel` is the inspector's panel that is opened for it."""

    title: str
    text: str
    part: str
    panel: str = ""


def _means(*names: str) -> str:
    return "\n".join(f"{name}: {GLOSSARY[name]}" for name in names)


STEPS = (
    Step(
        "The prompt",
        "Type here, Enter sends. @ names a file, / lists the commands. What you send while an answer is written waits "
        "its turn; Esc stops the answer.",
        "prompt-row",
    ),
    Step("The headline", _means("tok/s", "x plain", "tok/step"), "strip"),
    Step(
        "Parameters, F2",
        f"{SPEC['drafting'].label}: {SPEC['drafting'].help}\n"
        "← and → change a value there, m shows the others. F8 finds the best.",
        "panel-params",
        "params",
    ),
    Step("Figures of a turn, F3", _means("accepted by depth", "time by stage"), "panel-stats", "stats"),
    Step(
        "The tree, F4",
        f"What was drafted in the last step; ✓ is what the target took.\n{_means('own', 'path')}",
        "panel-tree",
        "tree",
    ),
    Step(
        "Model, context, memory",
        f"{_means('ctx', 'mem')}\n? explains the figures of a panel or page. F1 lists every key.",
        "title",
    ),
)
