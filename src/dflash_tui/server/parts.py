"""Contents of messages in requests: strings or lists of parts, of which only text is read."""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_core.messages import Role
from dflash_tui.server.request_error import RequestError, invalid

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


def check_model(given: str | None, names: Sequence[str]) -> None:
    """Raise RequestError for a model that is not the loaded one."""
    if given and given not in names:
        raise RequestError(
            404, f"the model {given[:80]!r} is not loaded; this server has {names[0]!r}", "model", "model_not_found"
        )
