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


def normalised(messages: Sequence[Message], support: ToolSupport) -> tuple[Message, ...]:
    """The messages to render. Raises RequestError where there is nothing to answer."""
    messages = _with_user_message(messages)
    if messages[-1].role == "assistant":
        raise invalid(
            "the last message is the assistant's: expected a user message or a tool's result; "
            "continuing an answer is not supported",
            "messages",
        )
    found: list[Message] = []
    waiting: list[str] = []  # system messages between a call and its result
    apart = 0  # how many messages there were at the last of these: the next answer does not continue the one before

    def add(message: Message) -> None:
        if message.role == "user" and found and found[-1].role == "user" and not support.consecutive:
            found[-1] = _joined(found[-1], message)
        else:
            found.append(message)

    for message in messages:
        last = found[-1] if found else Message("system", "")
        if message.role == "system" and last.role == "system" and len(found) < 2:  # at the beginning
            found[:] = [_joined(last, message)] if last.content or message.content else []
        elif message.role == "system" and not support.late_system:
            text = Message("user", f"<system>\n{message.content}\n</system>")
            if last.role in ("user", "tool"):
                # A message of its own in a tool loop would count as a new question, and end the reasoning before it.
                found[-1] = _joined(last, text)
            elif last.calls:
                waiting.append(text.content)
                apart = len(found)
            else:
                found.append(text)
        elif message.role == "assistant":
            message = _split_thinking(message)
            if last.role == "assistant" and len(found) != apart:
                found[-1] = _joined(last, message)
            else:
                found.append(message)
        elif message.role == "tool" and waiting:
            found.append(_joined(message, *(Message("user", text) for text in waiting)))
            waiting.clear()
        else:
            add(message)
    if waiting:
        add(Message("user", "\n\n".join(waiting)))
    return tuple(found)


def _with_user_message(messages: Sequence[Message]) -> Sequence[Message]:
    """A client that has put a summary in the place of a long conversation may send it as the assistant's, without any
    user message. Templates refuse that, so one follows the summary, in each turn at the same place."""
    if any(one.role == "user" for one in messages):
        return messages
    summary = next((at for at, one in enumerate(messages) if one.role == "assistant" and not one.calls), None)
    if summary is None:
        raise invalid("no user message: expected at least one", "messages")
    return (*messages[: summary + 1], Message("user", "continue"), *messages[summary + 1 :])


def _split_thinking(message: Message) -> Message:
    """Reasoning that a client keeps in the text of an answer goes into its own field."""
    body = message.content.lstrip()
    if message.thinking or not body.startswith(OPEN) or CLOSE not in body:
        return message
    thinking, _, content = body.removeprefix(OPEN).partition(CLOSE)
    return replace(message, thinking=thinking.strip("\n"), content=content.lstrip("\n"))


def _joined(first: Message, *more: Message) -> Message:
    """Several as one, of the role of the first."""
    parts = (first, *more)
    return replace(
        first,
        content="\n\n".join(one.content for one in parts if one.content),
        thinking="\n\n".join(one.thinking for one in parts if one.thinking),
        calls=tuple(call for one in parts for call in one.calls),
    )
