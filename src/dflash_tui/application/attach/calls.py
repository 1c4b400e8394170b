"""Calls of tools in an answer that is streamed by OpenAI's chat API, or by Ollama's."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dflash_core.messages import Call, arguments_of

MAX_CALLS = 64
"""More in one answer are not taken."""


@dataclass(slots=True)
class _Piece:
    id: str
    name: str
    arguments: str = ""


class StreamedCalls:
    """`take` the pieces of calls as they come, then `end`."""

    def __init__(self) -> None:
        self.calls: tuple[Call, ...] = ()
        self.calling = ""
        self._pieces: dict[int, _Piece] = {}

    def take(self, pieces: Iterable[Mapping[str, Any]]) -> None:
        """Objects of `tool_calls`. One without an index is a call of its own; arguments are a part of a JSON text, or
        an object."""
        for one in pieces:
            function = one.get("function")
            given = function if isinstance(function, Mapping) else {}
            name, arguments, place = given.get("name"), given.get("arguments"), one.get("index")
            place = place if isinstance(place, int) else len(self._pieces)
            if place not in self._pieces:
                if not isinstance(name, str) or not name or len(self._pieces) >= MAX_CALLS:
                    continue
                own = one.get("id")
                id = own if isinstance(own, str) and own else f"call_{secrets.token_hex(8)}"
                self._pieces[place] = _Piece(id, name)
            piece = self._pieces[place]
            piece.arguments += arguments if isinstance(arguments, str) else json.dumps(arguments) if arguments else ""
            self.calling = piece.name

    def end(self, *, cut: bool) -> None:
        """The answer is over. Of one that was cut off, a call whose arguments are no JSON is left out."""
        self.calling = ""
        self.calls = tuple(
            Call(one.id, one.name, arguments_of(one.arguments))
            for _, one in sorted(self._pieces.items())
            if not cut or _whole(one.arguments)
        )


def _whole(arguments: str) -> bool:
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(arguments), dict)
    return False
