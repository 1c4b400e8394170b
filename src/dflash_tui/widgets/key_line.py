"""The footer: what the keys do now, as many entries as fit completely."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from textual.actions import parse
from textual.content import Content
from textual.css.query import NoMatches
from textual.events import Click
from textual.widget import Widget

GAP = "  "
LOOK_S = 0.5
_ALWAYS = ("escape", "f1")  # these keys are always shown: back, and the page with all keys


@dataclass(frozen=True, slots=True)
class Hint:
    """A key as it is written, what it does, and the key that a click stands for."""

    shown: str
    label: str
    key: str
    enabled: bool = True

    @property
    def width(self) -> int:
        return cell_len(self.shown) + bool(self.shown) + cell_len(self.label)


def fitting(hints: list[Hint], width: int) -> list[Hint]:
    """The entries that fit on the line, in order. The first ones and those in `_ALWAYS` have priority."""
    available = width - sum(one.width + len(GAP) for one in hints if one.key in _ALWAYS)
    chosen = []
    for one in hints:
        always = one.key in _ALWAYS
        if always or available >= one.width:
            chosen.append(one)
            available -= 0 if always else one.width + len(GAP)
    return chosen


class KeyLine(Widget):
    """One row. A click does what the key does. The row is empty under a dialog, which has the keys then."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__()
        self._drawn: list[Hint] = []

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self.refresh())
        self.app.screen_change_signal.subscribe(self, lambda _: self.refresh())
        self.set_interval(LOOK_S, self._look)  # polled: much that decides what is possible sends no event

    def _look(self) -> None:
        if self.is_attached and self.hints != self._drawn:
            self.refresh()

    @property
    def hints(self) -> list[Hint]:
        """The actions that are possible now, each with its first key."""
        if self.app.screen is not self.screen:
            return []
        try:
            return fitting([one for one in self._all() if one.label], self.size.width - 2)
        except NoMatches:  # the screen is being mounted or removed: other widgets are missing
            return self._drawn

    def _all(self) -> list[Hint]:
        found: dict[str, Hint] = {}
        for key, active in self.screen.active_bindings.items():
            binding = active.binding
            if binding.show and binding.action not in found and self._is_ours(binding.action):
                # "" where the key would have no effect now. It stays bound: a notice gives the reason.
                hint = getattr(active.node, "hint", None)
                label = hint(binding.action, binding.description) if hint is not None else binding.description
                found[binding.action] = Hint(self.app.get_key_display(binding), label, key, active.enabled)
        return list(found.values())

    def _is_ours(self, action: str) -> bool:
        """Whether a "screen" action is possible on this screen: Textual would ask the screen above it."""
        namespace, name, parameters = parse(action)
        return namespace != "screen" or self.screen.check_action(name, parameters) is not False

    def render(self) -> Content:
        parts: list[tuple[str, str]] = []
        self._drawn = self.hints
        for one in self._drawn:
            parts.append((GAP if parts else " ", ""))
            if one.shown:
                parts.append((f"{one.shown} ", "bold $footer-key-foreground"))
            parts.append((one.label, "$footer-description-foreground" if one.enabled else "$foreground 70%"))
        return Content.assemble(*parts)

    def on_click(self, event: Click) -> None:
        at = 1
        for one in self.hints:
            if at <= event.x < at + one.width:
                self.app.simulate_key(one.key)
                return
            at += one.width + len(GAP)
