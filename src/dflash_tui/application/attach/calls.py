"""Calls of tools in an answer that is streamed by OpenAI's chat API, or by Ollama's."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from dflash_core.messages import Call, arguments_of
from dflash_tui.application.attach.reading import at, text

MAX_CALLS = 64
"""More in one answer are not taken."""


class StreamedCalls:
    """`take` the pieces of calls as they come, then `end`."""

    def __init__(self) -> None:
        self.calls: tuple[Call, ...] = ()
        self.calling = ""
        self._pieces: dict[int, list[str]] = {}  # id, name, and parts of the arguments; by their index

    def take(self, pieces: Iterable[Mapping[str, Any]]) -> None:
        """Objects of `tool_calls`. One without an index is a call of its own; arguments are a part of a JSON text, or
        an object."""
        for one in pieces:
            name, arguments, place = text(one, "function.name"), at(one, "function.arguments"), one.get("index")
            place = place if isinstance(place, int) else len(self._pieces)
            if place not in self._pieces:
                if not name or len(self._pieces) >= MAX_CALLS:
                    continue
                self._pieces[place] = [text(one, "id") or f"call_{secrets.token_hex(8)}", name]
            if arguments:
                self._pieces[place].append(arguments if isinstance(arguments, str) else json.dumps(arguments))
            self.calling = self._pieces[place][1]

    def end(self, *, cut: bool) -> None:
        """The answer is over. Of one that was cut off, a call whose arguments are no JSON is left out."""
        self.calling = ""
        calls = [(id, name, "".join(arguments)) for _, (id, name, *arguments) in sorted(self._pieces.items())]
        self.calls = tuple(Call(id, name, arguments_of(it)) for id, name, it in calls if not cut or _whole(it))


def _whole(arguments: str) -> bool:
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(arguments), dict)
    return False
