"""The calls of an answer, put together from its parts."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable

from dflash_core.messages import Call
from dflash_core.text.tool_calls.parts import CallArguments, CallEnd, CallStart, Malformed, Part, Text, Thinking


class CollectedCalls:
    """`calls`: the complete ones. `calling`: the tool whose call is being written, or ""."""

    def __init__(self) -> None:
        self.calls: tuple[Call, ...] = ()
        self.calling = ""
        self._arguments = ""

    def take(self, parts: Iterable[Part]) -> tuple[str, str]:
        """Take the calls out of parts; returns the reasoning and the text that they have beside."""
        thinking = text = ""
        for part in parts:
            if isinstance(part, Text):
                text += part.text
            elif isinstance(part, Thinking):
                thinking += part.text
            elif isinstance(part, CallStart):
                self.calling, self._arguments = part.name, ""
            elif isinstance(part, CallArguments):
                self._arguments += part.text
            elif isinstance(part, Malformed):
                self.calling = ""
            elif isinstance(part, CallEnd):
                if part.complete:
                    call = Call(f"call_{secrets.token_hex(8)}", self.calling, json.loads(self._arguments or "{}"))
                    self.calls += (call,)
                self.calling = ""
        return thinking, text
