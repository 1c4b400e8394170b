"""A curve that fills its widget."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widget import Widget

from dflash_tui.text.bars import LINE, Mark, plot
from dflash_tui.text.blocks import Span, content, line

HIGHEST = 20  # rows
STYLES = {"★": "bold $success", "◆": "bold $foreground", "●": "$primary", "○": "$primary", LINE: "$foreground 70%"}


class CurveView(Widget):
    """Draws marks at its own size; signs and colours have the same meaning."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id, classes="curve")
        self.styles.max_height = HIGHEST
        self._marks: Sequence[Mark] = ()
        self._title = ""
        self._span: tuple[float, float] | None = None

    def show(self, marks: Sequence[Mark], title: str, span: tuple[float, float] | None = None) -> None:
        """Draw `marks` under `title`; without marks, only the title. `span`: the ends of the horizontal axis, which
        several curves may share."""
        self._marks, self._title, self._span = marks, title, span
        self.refresh()

    def render(self) -> Content:
        lines = plot(self._marks, self.size.width, self.size.height, self._title, self._span)
        if self._marks and len(lines) == 1:  # the curve does not fit, and a title without it means nothing
            return Content("")
        return content([*(line((text, "bold")) for text in lines[:1]), *map(_styled, lines[1:])])


def _styled(text: str) -> list[Span]:
    spans: list[Span] = []
    for character in text:
        style = STYLES.get(character, "")
        if spans and spans[-1][1] == style:
            spans[-1] = (spans[-1][0] + character, style)
        else:
            spans.append((character, style))
    return spans
