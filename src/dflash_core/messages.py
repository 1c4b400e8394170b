"""Messages of a conversation, and the prompt of a turn, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dflash_core.text.template_values import JSON

if TYPE_CHECKING:
    from dflash_core.text.reasoning import Effort
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


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a turn. The first `stable` ids will also begin the prompt of the turn after it, whatever that is.
    `effort` is the level of reasoning that the template was given. `sinks`: the first ids, which an attention window
    always shows; 0 where there is none. With tools, `head`: ids that every conversation with the same system message
    and tools begins with; `continued`: ids that also begin the prompt with the results of calls in this answer.
    """

    ids: tuple[int, ...]
    text: str
    opens_thinking: bool
    stable: int
    effort: Effort = ""
    sinks: int = 0
    head: int = 0
    continued: int = 0

    @property
    def keep(self) -> tuple[int, ...]:
        """The lengths that later prompts will share, shortest first."""
        return tuple(sorted({self.head, self.stable, self.continued} - {0}))


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
