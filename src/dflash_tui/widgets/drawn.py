"""What widgets have drawn, with the glossary keys of the cells."""

from __future__ import annotations

from collections.abc import Iterator

from textual.geometry import Region
from textual.widget import Widget

from dflash_tui.text.glossary import GLOSSARY, META

Run = tuple[str, str]
"""A piece of a line, and the key of its figure, or ""."""


def leaves(root: Widget) -> Iterator[Widget]:
    """The widgets under `root` that are shown and draw text themselves."""
    for widget in (root, *root.walk_children(Widget)):
        if widget.region.area and not any(child.display for child in widget.children):
            yield widget


def lines(widget: Widget) -> Iterator[list[Run]]:
    """The lines of a widget as drawn now, including those scrolled out of sight."""
    for strip in widget.render_lines(Region(0, 0, *widget.size)):
        yield [(one.text, str(one.style.meta.get(META, "")) if one.style is not None else "") for one in strip]


def keys(root: Widget) -> list[str]:
    """The figures and parameters under `root`, in the order in which they are drawn."""
    found = dict.fromkeys(key for leaf in leaves(root) for line in lines(leaf) for _, key in line)
    return [key for key in found if key in GLOSSARY]
