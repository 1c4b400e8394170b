"""Calls of tools and their results as conversations store them, and as messages of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dflash_core.clean import encodable
from dflash_core.messages import Call, Message, arguments_of

NO_RESULT = "The call was not made."
"""What the model reads for a call that the program has no result of: it ended meanwhile."""
Outcome = Literal["done", "failed", "denied", "cancelled"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call. `arguments`: the JSON text of an object."""

    id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of the call `id` of the tool `name`. `text` is what the model reads; `seconds` is how long it took."""

    id: str
    name: str
    text: str
    outcome: Outcome = "done"
    seconds: float = 0.0


class HasTools(Protocol):
    """A message that may have calls or results."""

    @property
    def calls(self) -> tuple[ToolCall, ...]: ...
    @property
    def results(self) -> tuple[ToolResult, ...]: ...


def tool_lines(message: HasTools) -> list[str]:
    """Its calls and results as plain text."""
    calls = [f"{call.name} {call.arguments}" for call in message.calls]
    return calls + [f"{one.name} {one.outcome}:\n{one.text}" for one in message.results]


def stored(calls: Sequence[Call]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(call.id, call.name, encodable(call.arguments_json)) for call in calls)


def calls_of(stored_calls: Sequence[ToolCall]) -> tuple[Call, ...]:
    return tuple(Call(one.id, one.name, arguments_of(one.arguments)) for one in stored_calls)


def result_messages(results: Sequence[ToolResult]) -> list[Message]:
    return [Message("tool", one.text, call_id=one.id, name=one.name) for one in results]


def without_results(calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
    return tuple(ToolResult(call.id, call.name, NO_RESULT, "cancelled") for call in calls)
