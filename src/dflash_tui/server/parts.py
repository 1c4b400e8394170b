"""Contents of messages in requests: strings or lists of parts, of which only text is read."""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dflash_core.messages import Message, Role
from dflash_core.text.thinking import CLOSE, OPEN
from dflash_core.text.tool_calls.support import ToolSupport
from dflash_tui.server.request_error import invalid

BILLING = "x-anthropic-billing-header:"
"""A block that begins so differs in each request; it would end the reuse of all that follows."""
TEXT_KINDS = ("text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text")
ROLES: Mapping[str, Role] = {
    "system": "system", "user": "user", "assistant": "assistant", "tool": "tool", "developer": "system",
    "function": "tool",
}  # fmt: skip
"""Roles as templates know them."""
_LETTERS = string.ascii_letters + string.digits


def new_id(prefix: str) -> str:
    """An id of 24 random letters and digits."""
    return prefix + "".join(secrets.choice(_LETTERS) for _ in range(24))


def text_of(content: object, place: str, *, results: bool = False) -> str:
    """The text of a content: a string, null, or parts. `results`: of a tool, whose images are mentioned. Raises
    RequestError."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"expected a string or a list of parts at {place}", place)
    return "".join(_text(part, f"{place}[{at}]", results=results) for at, part in enumerate(content))


def _text(part: object, place: str, *, results: bool) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise invalid(f"expected a part with a type at {place}", place)
    if kind in TEXT_KINDS:
        text = part.get("refusal") if kind == "refusal" else part.get("text")
        if not isinstance(text, str):
            raise invalid(f"expected a string at {place}.text", f"{place}.text")
        return "" if text.startswith(BILLING) else text
    if results:
        return f"[{'image' if 'image' in kind else kind} omitted]"
    raise invalid(f"a part of the type {kind[:40]!r} at {place}: this model reads text only", place)


def string_of(item: Mapping[str, Any], key: str, place: str) -> str:
    """The string at `key` of the object at `place`. Raises RequestError."""
    value = item.get(key)
    if not isinstance(value, str):
        raise invalid(f"expected a string at {place}.{key}", f"{place}.{key}")
    return value


def role_of(role: object, place: str, *more: str) -> Role:
    """The role of the message at `place`: that of the system, the user or the assistant, or one of `more`. Raises
    RequestError for another one."""
    known = ("system", "user", "assistant", *more)
    if not isinstance(role, str) or role not in known:
        expected = ", ".join(known)
        raise invalid(f"the role {str(role)[:40]!r} at {place}.role, expected one of {expected}", f"{place}.role")
    return ROLES[role]


def normalised(messages: Sequence[Message], support: ToolSupport, place: str = "messages") -> tuple[Message, ...]:
    """The messages to render, which the request has at `place`; the last one is the assistant's where its answer goes
    on. Raises RequestError where there is nothing to answer."""
    if messages and messages[-1] == Message("assistant", ""):  # what a new answer goes into
        messages = messages[:-1]
    messages = _with_user_message(messages, place)
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
            if last.role == "system" and len(found) < 2 and not support.consecutive:  # a greeting
                found.append(Message("user", ""))
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
    if found[-1].role == "assistant":
        if found[-1].calls:
            raise invalid("the last message calls tools: expected a result for each, or a user message", place)
        found[-1] = _split_open_thinking(found[-1])
        if found[-1].thinking and not found[-1].content and CLOSE in messages[-1].content:
            found[-1] = replace(found[-1], content="\n")  # the reasoning is over
    return tuple(found)


def _with_user_message(messages: Sequence[Message], place: str) -> Sequence[Message]:
    """A client that has put a summary in the place of a long conversation may send it as the assistant's, without any
    user message. Templates refuse that, so one follows the summary, in each turn at the same place."""
    if any(one.role == "user" for one in messages):
        return messages
    summary = next((at for at, one in enumerate(messages) if one.role == "assistant" and not one.calls), None)
    if summary is None:
        raise invalid("no user message: expected at least one", place)
    return (*messages[: summary + 1], Message("user", "continue"), *messages[summary + 1 :])


def _split_thinking(message: Message) -> Message:
    """Reasoning that a client keeps in the text of an answer goes into its own field."""
    body = message.content.lstrip()
    if message.thinking or not body.startswith(OPEN) or CLOSE not in body:
        return message
    thinking, _, content = body.removeprefix(OPEN).partition(CLOSE)
    return replace(message, thinking=thinking.strip("\n"), content=content.lstrip("\n"))


def _split_open_thinking(message: Message) -> Message:
    """The same for an answer that was cut within its reasoning."""
    body = message.content.lstrip()
    if message.thinking or not body.startswith(OPEN):
        return message
    return replace(message, thinking=body.removeprefix(OPEN).lstrip("\n"), content="")


def _joined(first: Message, *more: Message) -> Message:
    """Several as one, of the role of the first."""
    parts = (first, *more)
    return replace(
        first,
        content="\n\n".join(one.content for one in parts if one.content),
        thinking="\n\n".join(one.thinking for one in parts if one.thinking),
        calls=tuple(call for one in parts for call in one.calls),
    )
