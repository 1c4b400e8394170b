"""A screen may be closed before it was drawn: then what waited for that is not done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from textual.message_pump import MessagePump


class Passing(MessagePump):
    """Of a screen that does something after it is drawn. Textual would do it in the next screen's turn."""

    def call_after_refresh(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
        def while_here() -> object:
            stack: Sequence[object] = self.app.screen_stack
            return callback(*args, **kwargs) if self in stack else None

        return super().call_after_refresh(while_here)
