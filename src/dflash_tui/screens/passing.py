"""Callbacks that wait until a screen is drawn are dropped if the screen closes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from textual.message_pump import MessagePump


class Passing(MessagePump):
    """For a screen with callbacks after its drawing. Textual would run them while the next screen is shown."""

    def call_after_refresh(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
        def while_here() -> object:
            stack: Sequence[object] = self.app.screen_stack
            return callback(*args, **kwargs) if self in stack else None

        return super().call_after_refresh(while_here)
