"""The inspector: four panels in tabs, side by side where the terminal is wide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from dflash_core.knobs import Knobs
from dflash_tui.settings.keys import actions_of
from dflash_tui.widgets.literal import name_border
from dflash_tui.widgets.panels import NO_MODEL, NO_TURN, Panel, TextPanel, TreePanel
from dflash_tui.widgets.params import ParamsPanel

TABS = ("params", "stats", "tree", "memory")  # panels, whose keys are those of view.params and so on


def tabs(app: App[Any], names: Sequence[str] = TABS) -> Iterator[tuple[str, str, str]]:
    keys = {one.id: one.shown.split("  ")[0] for one in actions_of(app)}
    return ((name, name.title(), keys[f"view.{name}"]) for name in names)


class TabRow(Widget, can_focus=True):
    """The names of the panels; the present one in brackets."""

    ALLOW_SELECT = False
    HELP = "← and → change the panel; F2 to F5 go to one directly; Ctrl+B hides the inspector."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "previous", show=False),
        Binding("right", "move(1)", "next", show=False),
    ]

    active: reactive[str] = reactive("stats")

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(id="tabs")
        self._names = names

    def render(self) -> Content:
        parts: list[tuple[str, str]] = []
        for name, label, key in tabs(self.app, self._names):
            chosen = name == self.active
            style = "bold $primary" + (" underline" if self.has_focus else "") if chosen else "$foreground 70%"
            parts.append((f"‹{label}›" if chosen else f" {label} ", style))
            parts.append((f" {key} ", "$foreground 75%"))
        return Content.assemble(*parts)

    def action_move(self, count: int) -> None:
        place = (self._names.index(self.active) + count) % len(self._names)
        self.query_ancestor(Inspector).active = self._names[place]

    def on_click(self, event: Click) -> None:
        at = 0
        for name, label, key in tabs(self.app, self._names):
            at += len(label) + len(key) + 4
            if event.x < at:
                self.query_ancestor(Inspector).active = name
                return


class Inspector(Container):
    """Classes decide which panels are visible: one in a column or drawer, two in a high column, all four on a wide
    terminal."""

    active: reactive[str] = reactive("stats")

    @dataclass
    class Switched(Message):
        """Another panel is shown now."""

        active: str

    def __init__(self, knobs: Knobs, without: Set[str] = frozenset()) -> None:
        """`without`: ids of actions; a panel whose own is among them is not shown."""
        super().__init__(id="inspector", classes="-quiet")
        self.params_panel, self.stats_panel = ParamsPanel(knobs), TextPanel("stats", NO_TURN)
        self.tree_panel, self.memory_panel = TreePanel(), TextPanel("memory", NO_MODEL)
        panels: tuple[Panel, ...] = (self.params_panel, self.stats_panel, self.tree_panel, self.memory_panel)
        self._panels = dict(zip(TABS, panels, strict=True))
        shown = [name for name in TABS if f"view.{name}" not in without]
        for name in set(TABS).difference(shown):
            self._panels[name].display = False
        self._tabs = TabRow(shown)
        self._columns = {
            Vertical(classes="column", id="column-a"): (self.params_panel, self.memory_panel),
            Vertical(classes="column", id="column-b"): (self.stats_panel, self.tree_panel),
        }
        self._apply(self.active)

    def compose(self) -> ComposeResult:
        yield self._tabs
        for column, panels in self._columns.items():
            with column:
                yield from panels

    def watch_active(self, active: str) -> None:
        if self.is_mounted:
            self._apply(active)
            self.post_message(self.Switched(active))

    def _apply(self, active: str) -> None:
        self._tabs.active = active
        for name, panel in self._panels.items():
            panel.set_class(name == active, "-active")
        for column, panels in self._columns.items():
            column.set_class(any(panel.has_class("-active") for panel in panels), "-active")

    def enter(self, name: str) -> None:
        self.active = name
        self._apply(name)
        # At once, not with the next frame: the next key of the same burst belongs to the panel.
        self.app.stylesheet.update_nodes(list(self.walk_children(with_self=True)))
        self._panels[name].enter()

    def sees(self, name: str) -> bool:
        """Whether a panel is visible, so that it needs drawing."""
        return bool(self._panels[name].region.area)

    def name_keys(self, shown: bool) -> None:
        """Show each panel's key on its border."""
        for name, _, key in tabs(self.app):
            name_border(self._panels[name], key if shown else "")
