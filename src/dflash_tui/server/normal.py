"""Messages of any dialect in the form that the model's template takes.

A system message in the middle of a conversation, which agents send, stays where it is: at the front it would change
what comes before everything else, and with every turn. Templates that refuse it there get it as text of the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dflash_core.messages import Message
from dflash_core.text.thinking import CLOSE, OPEN
from dflash_core.text.tool_calls.support import ToolSupport
from dflash_tui.server.request_error import invalid

_GAP = "\n\n"


def normalised(messages: Sequence[Message], support: ToolSupport) -> tuple[Message, ...]:
    """The messages to render. Raises RequestError where there is nothing to answer."""
    merged = _merged([_split_thinking(one) for one in messages])
    if not any(one.role == "user" for one in merged):
        raise invalid("no user message: expected at least one", "messages")
    if merged[-1].role == "assistant":
        raise invalid(
            "the last message is the assistant's: expected a user message or a tool's result; "
            "continuing an answer is not supported",
            "messages",
        )
    found = _leading_system(merged)
    if not support.late_system:
        found = _system_as_text(found)
    return tuple(found if support.consecutive else _alternating(found))


def _split_thinking(message: Message) -> Message:
    """Reasoning that a client keeps in the text of an answer goes into its own field."""
    body = message.content.lstrip()
    if message.role != "assistant" or message.thinking or not body.startswith(OPEN) or CLOSE not in body:
        return message
    thinking, _, content = body.removeprefix(OPEN).partition(CLOSE)
    return replace(message, thinking=thinking.strip("\n"), content=content.lstrip("\n"))


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Consecutive pieces of one answer as one message."""
    found: list[Message] = []
    for message in messages:
        if message.role == "assistant" and found and found[-1].role == "assistant":
            last = found[-1]
            found[-1] = replace(
                last,
                content=_GAP.join(filter(None, (last.content, message.content))),
                thinking=_GAP.join(filter(None, (last.thinking, message.thinking))),
                calls=last.calls + message.calls,
            )
        else:
            found.append(message)
    return found


def _leading_system(messages: list[Message]) -> list[Message]:
    """Those at the beginning joined into one."""
    first = next((at for at, one in enumerate(messages) if one.role != "system"), len(messages))
    text = _GAP.join(one.content for one in messages[:first] if one.content)
    return [*([Message("system", text)] if text else []), *messages[first:]]


def _system_as_text(messages: list[Message]) -> list[Message]:
    """Later ones in the message before, where that is the user's or a tool's, else as a message of the user."""
    found, waiting = messages[:1], list[str]()
    for message in messages[1:]:
        if message.role != "system":
            found.append(message)
            if message.role == "tool" and waiting:
                found[-1] = _with(message, *waiting)
                waiting.clear()
            continue
        text = f"<system>\n{message.content}\n</system>"
        if found[-1].role in ("user", "tool"):
            # A message of its own in a tool loop would count as a new question, and end the reasoning before it.
            found[-1] = _with(found[-1], text)
        elif found[-1].calls:
            waiting.append(text)
        else:
            found.append(Message("user", text))
    return [*found, *([Message("user", _GAP.join(waiting))] if waiting else [])]


def _with(message: Message, *texts: str) -> Message:
    return replace(message, content=_GAP.join((message.content, *texts)))


def _alternating(messages: Sequence[Message]) -> list[Message]:
    """Consecutive messages of the user joined."""
    found: list[Message] = []
    for message in messages:
        if message.role == "user" and found and found[-1].role == "user":
            found[-1] = _with(found[-1], message.content)
        else:
            found.append(message)
    return found
