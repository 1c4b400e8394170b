"""Messages of a conversation, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dflash_core.text.template_values import JSON

if TYPE_CHECKING:
    from dflash_core.turn_stats import TurnReport

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Call:
    """A model's call of a tool. `id` pairs it with its result; `arguments` in the order in which they came."""

    id: str
    name: str
    arguments: Mapping[str, JSON]

    @property
    def arguments_json(self) -> str:
        return json.dumps(self.arguments, ensure_ascii=False)


def arguments_of(text: str) -> Mapping[str, JSON]:
    """The arguments of a call in a history. A model wrote them, so what is no JSON object is not refused."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = text
    return found if isinstance(found, dict) else {"arguments": found}


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `report`: how an answer was generated; None unless it was generated here. `calls`: an answer's,
    after its content. A tool's message is the result of the call `call_id` of the tool `name`."""

    role: Role
    content: str
    thinking: str = ""
    report: TurnReport | None = None
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    name: str = ""


def to_template(message: Message) -> dict[str, JSON]:
    """A message as templates read it."""
    fields: dict[str, JSON] = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        fields["reasoning_content"] = message.thinking
    if message.calls:
        fields["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.role == "tool":
        fields |= {"tool_call_id": message.call_id, "name": message.name}
    return fields
