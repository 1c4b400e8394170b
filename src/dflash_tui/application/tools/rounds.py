"""What is done with the calls of an answer: asked about, made, or refused; and the results as text for the
model. No server and no screen is needed here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dflash_core.clean import encodable
from dflash_tui.application.conversations.tool_messages import ToolCall, ToolResult
from dflash_tui.application.settings.tool_servers import ALL
from dflash_tui.application.tools.offered import OfferedTool

MAX_CHARACTERS = 64_000
ERROR = "Error: "
EMPTY = "(the tool returned nothing)"


def as_text(content: Sequence[Mapping[str, Any]], structured: object, *, failed: bool) -> str:
    """The text of a result's blocks, in the form of JSON. `structured` counts where there is no text."""
    parts = [part for block in content if (part := _block(block))]
    text = "\n".join(parts)
    if not text.strip():
        text = json.dumps(structured, ensure_ascii=False) if structured is not None else EMPTY
    if failed and not text.lower().startswith("error"):
        text = ERROR + text
    return encodable(text)


def _block(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "resource":
        resource = block.get("resource")
        inner = resource if isinstance(resource, Mapping) else {}
        return str(inner["text"]) if "text" in inner else f"[resource omitted: {inner.get('uri', 'no address')}]"
    if kind == "resource_link":
        return f"[resource: {block.get('uri', 'no address')}]"
    return f"[{kind} omitted: {block.get('mimeType', 'no type')}]"


def shortened(text: str, characters: int) -> str:
    """At most so many characters of a text, with a mark that says what is missing."""
    if len(text) <= characters:
        return text
    end = max(characters, 0)
    return f"{text[:end]}\n[cut here: {len(text) - end:,} more of {len(text):,} characters]"


def fitting(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """As much of a text as fits into so many tokens, and at most MAX_CHARACTERS. `count`: the tokens of a text."""
    limit = min(MAX_CHARACTERS, max(tokens, 1) * 16)  # no text of that many characters has fewer tokens in practice
    found = shortened(text, limit)
    while (used := count(found)) > tokens and limit > 0:
        # A token more or less: the last step may take a little too much away.
        limit = min(limit - 1, limit * tokens // used) if tokens > 0 else 0
        found = shortened(text, limit)
    return found


MAX_ROUNDS = 24
"""Answers with calls, one after the other, to one message of the user."""
MAX_CALLS = 16
"""Calls in one answer."""
DENIED = "The user did not allow this call. Do not repeat it; go on without it, or ask what to do instead."
CANCELLED = "The user stopped this call."
NOT_ASKED = "This call needs the user's permission, and nobody can be asked here. Go on without it."
TOO_MANY = f"Not called: an answer may have {MAX_CALLS} calls."
NO_MORE_ROUNDS = f"Not called: this was round {MAX_ROUNDS} of calls for one question. Answer with what you know by now."
Reply = Literal["once", "conversation", "always", "deny", "stop"]
"""What the user says to a call: make it; make every call of its tool in this conversation, or of its server from now
on, without asking; do not make it; end the turn."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A call, and the tool that it is of. `refusal`: what the model reads in place of a result; "" for a call that may
    be made. `asks`: the user has to allow it first."""

    call: ToolCall
    tool: OfferedTool | None = None
    refusal: str = ""
    asks: bool = False

    @property
    def refused(self) -> ToolResult:
        return ToolResult(self.call.id, self.call.name, self.refusal, "failed")


class Permissions:
    """What may be called without asking. `always`: names of tools by server, from the settings."""

    def __init__(self, always: Mapping[str, frozenset[str]]) -> None:
        self._always = dict(always)
        self._here: set[tuple[str, str, str]] = set()  # conversation, server, tool

    def allowed(self, tool: OfferedTool, conversation: str) -> bool:
        known = self._always.get(tool.server, frozenset())
        return ALL in known or tool.own in known or (conversation, tool.server, tool.own) in self._here

    def allow_here(self, tool: OfferedTool, conversation: str) -> None:
        self._here.add((conversation, tool.server, tool.own))

    def allow_server(self, server: str) -> None:
        """Every call of every tool of this server."""
        self._always[server] = frozenset({ALL})

    def shown(self, server: str) -> str:
        """What is allowed of a server, for people; "" for nothing."""
        known = self._always.get(server, frozenset())
        return "all tools" if ALL in known else ", ".join(sorted(known))


def plan(
    calls: Sequence[ToolCall], tools: Sequence[OfferedTool], permissions: Permissions, conversation: str, *, rounds: int
) -> list[Planned]:
    """What to do with an answer's calls, in their order. `rounds`: answers with calls before this one, in this turn."""
    by_name = {tool.name: tool for tool in tools}
    planned: list[Planned] = []
    for place, call in enumerate(calls):
        tool = by_name.get(call.name)
        if rounds >= MAX_ROUNDS:
            planned.append(Planned(call, tool, NO_MORE_ROUNDS))
        elif tool is None:
            known = ", ".join(by_name) or "none"
            planned.append(Planned(call, None, f"There is no tool {call.name}. Known tools: {known}."))
        elif place >= MAX_CALLS:
            planned.append(Planned(call, tool, TOO_MANY))
        else:
            planned.append(Planned(call, tool, asks=not permissions.allowed(tool, conversation)))
    return planned


def over(rounds: int) -> bool:
    """The model went on calling after it read that there are no more rounds: the turn ends."""
    return rounds > MAX_ROUNDS


def result_tokens(capacity: int, used: int, results: int) -> int:
    """Tokens that each of so many results may have, so that half of what is free is left for the answers. `capacity`: 0
    where another engine does not report its context."""
    if not capacity:
        return MAX_CHARACTERS
    return max((capacity - used) // 2 // max(results, 1), 0)
