"""A headless app draws each frame and drops it. Here most stay undrawn, which spares a fifth of the processor time."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import pytest
from rich.console import RenderableType
from textual._compositor import Compositor
from textual.app import App
from textual.geometry import Size
from textual.strip import Strip

from dflash_tui.screens.chat import ChatScreen

TOGETHER = 20  # frames of one screen


def draw_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen is drawn when it appears, in each new size, once for many changes, and at the end if it has changed, so
    that one that cannot be drawn is found. The chat, where every app begins, is drawn later. If it has been drawn, its
    widgets are only asked for their content at the end: a second frame costs a fifth of a short test."""
    update, strips, end = Compositor.render_update, Compositor.render_strips, App._shutdown
    drawn: WeakKeyDictionary[Compositor, tuple[Size, int]] = WeakKeyDictionary()  # number of frames left out since
    seen: WeakSet[Compositor] = WeakSet()  # drawn at least once

    def render_update(self: Compositor, full: bool = False, **named: Any) -> RenderableType | None:
        size, left_out = drawn.get(self, (self.size if isinstance(self.root, ChatScreen) else None, 0))
        if full or size != self.size or left_out == TOGETHER:
            drawn[self] = self.size, 0
            seen.add(self)
            return update(self, full, **named)
        drawn[self] = self.size, left_out + 1
        return None  # the regions stay dirty for the next frame that is drawn

    def render_strips(self: Compositor, size: Size | None = None) -> list[Strip]:
        drawn[self] = self.size, 0
        seen.add(self)
        return strips(self, size)

    async def shutdown(self: App[Any]) -> None:
        compositor = self.screen._compositor if self.screen_stack and self._exception is None else None
        left_out = drawn.get(compositor, (None, 1))[1] if compositor is not None else 0
        if compositor is not None and left_out:
            try:
                if compositor in seen and isinstance(self.screen, ChatScreen):
                    for widget in compositor.visible_widgets:
                        widget._render()
                else:
                    update(compositor, screen_stack=self._background_screens)
            except Exception as error:
                self._handle_exception(error)
        await end(self)

    monkeypatch.setattr(Compositor, "render_update", render_update)
    monkeypatch.setattr(Compositor, "render_strips", render_strips)
    monkeypatch.setattr(App, "_shutdown", shutdown)
