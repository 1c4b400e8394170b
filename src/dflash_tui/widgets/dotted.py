"""Lines of figures with dots between them, broken before a figure: no line begins or ends with a dot."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.css.styles import RulesMap
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual

from dflash_core.clean import marked
from dflash_tui.text.blocks import DOT, dotted
from dflash_tui.widgets.literal import Static


class Flowed(Visual):
    """The lines; their width is known only when they are drawn."""

    def __init__(self, lines: Sequence[str], style: str) -> None:
        self._lines, self._style = lines, style

    def at(self, width: int) -> Content:
        """As many lines as they take in `width` cells."""
        broken = (part for line in self._lines for part in dotted(line.split(DOT), width))
        return Content.styled(marked("\n".join(broken)), self._style)

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return self.at(container_width).get_optimal_width(rules, container_width)

    def get_height(self, rules: RulesMap, width: int) -> int:
        return self.at(width).get_height(rules, width)

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        return self.at(width).render_strips(width, height, style, options)


class Dotted(Static):
    """Shows such lines, or any other text."""

    def show(self, lines: Sequence[str], style: str) -> None:
        """Each of `lines` begins a row."""
        self.update(Flowed(lines, style))

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        shown = self.visual
        if isinstance(shown, Flowed):
            return selection.extract(shown.at(self.content_size.width).plain), "\n"
        return super().get_selection(selection)
