"""POST /v1/responses: its requests. Nothing is stored: each request brings its whole history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from dflash_core.messages import Call, Message, arguments_of
from dflash_tui.server.asked import Asked, Function, Request, by_name
from dflash_tui.server.parts import role_of, string_of, text_of
from dflash_tui.server.request_error import RequestError, invalid
from dflash_tui.server.written import Thoughts

HOSTED = (
    "web_search", "image_generation", "file_search", "code_interpreter", "computer", "mcp", "local_shell", "shell",
    "tool_search", "apply_patch",
)  # fmt: skip
"""Kinds of tools that a provider runs itself; clients offer them unasked, so they are left out."""
INPUT_FIELD = "input"
"""The argument of a tool that takes free text."""


class ResponseTool(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: list[ResponseTool] | None = None


class ReasoningField(msgspec.Struct):
    effort: str | None = None


class ResponseRequest(Request, kw_only=True):
    input: str | list[Any]
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningField | None = None
    previous_response_id: str | None = None
    include: list[str] | None = None
    text: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolName:
    """A tool's name as the client knows it. `free`: it takes free text, so the call has an item of another kind."""

    name: str
    namespace: str = ""
    free: bool = False


_FREE: dict[str, Any] = {"type": "object", "properties": {INPUT_FIELD: {"type": "string"}}, "required": [INPUT_FIELD]}


def tools_of(request: ResponseRequest) -> Mapping[str, tuple[ToolName, Function]]:
    """The request's tools, by the names that the model knows. Raises RequestError."""
    return by_name((function.name, (name, function)) for name, function in _tools(request.tools, "tools"))


def _tools(
    tools: Sequence[ResponseTool] | None, place: str, namespace: str = ""
) -> Iterator[tuple[ToolName, Function]]:
    for at, tool in enumerate(tools or ()):
        here, free = f"{place}[{at}]", tool.type == "custom"
        if tool.type == "namespace":
            yield from _tools(tool.tools, f"{here}.tools", tool.name or "")
        elif tool.type in (None, "function", "custom"):
            if not tool.name:
                raise invalid("a tool without a name", f"{here}.name")
            shown = f"{namespace}__{tool.name}" if namespace else tool.name
            parameters = _FREE if free else tool.parameters
            yield ToolName(tool.name, namespace, free), Function(shown, tool.description, parameters, tool.strict)
        elif not tool.type.startswith(HOSTED):
            raise invalid(f"a tool of the type {tool.type[:40]!r}, expected function or custom", f"{here}.type")


def asked_of(request: ResponseRequest, thoughts: Thoughts) -> Asked:
    """The request in the decoder's terms; `thoughts`: reasoning that it names by keys. Raises RequestError."""
    if request.previous_response_id is not None:
        raise RequestError(
            400, "no response is stored here; send the whole history as input", "previous_response_id",
            "previous_response_not_found",
        )  # fmt: skip
    form = (request.text or {}).get("format")
    if form is not None and not isinstance(form, dict):
        raise invalid("expected an object at text.format", "text.format")
    messages = [Message("system", request.instructions)] if request.instructions else []
    notes: list[str] = []
    if isinstance(request.input, str):
        messages.append(Message("user", request.input))
    else:
        for at, item in enumerate(request.input):
            message = _message(item, f"input[{at}]", notes, thoughts)
            messages += [message] if message is not None else []
    tools = tools_of(request)
    found = request.asked(
        functions=[function for _, function in tools.values()],
        choice=request.tool_choice,
        limits={"max_output_tokens": request.max_output_tokens},
        form=(form, "text.format"),
        effort=(request.reasoning.effort if request.reasoning else None, "reasoning.effort"),
    )
    shown = {name.name: known for known, (name, _) in tools.items()}
    return replace(
        found,
        messages=tuple(messages),
        tool=shown.get(found.tool, found.tool),
        parallel=request.parallel_tool_calls is not False,
        notes=tuple(notes),
    )


def _message(item: object, place: str, notes: list[str], thoughts: Thoughts) -> Message | None:
    """The message of an item; None for one that has no place in a prompt."""
    if not isinstance(item, dict):
        raise invalid(f"expected an object at {place}", place)
    kind = item.get("type", "message")
    if kind == "message":
        return _plain(item, place)
    if kind == "reasoning":
        text = text_of(item.get("content") or [], f"{place}.content") or thoughts.get(item.get("encrypted_content"))
        return Message("assistant", "", text or text_of(item.get("summary") or [], f"{place}.summary"))
    if kind in ("function_call", "custom_tool_call"):
        name, space = string_of(item, "name", place), item.get("namespace")
        shown = f"{space}__{name}" if isinstance(space, str) and space else name
        given = item.get("arguments" if kind == "function_call" else "input")
        text = given if isinstance(given, str) else ""
        arguments = arguments_of(text) if kind == "function_call" else {INPUT_FIELD: text}
        return Message("assistant", "", calls=(Call(string_of(item, "call_id", place), shown, arguments),))
    if kind in ("function_call_output", "custom_tool_call_output"):
        text = text_of(item.get("output"), f"{place}.output", results=True)
        return Message("tool", text, call_id=string_of(item, "call_id", place))
    if kind == "item_reference":
        raise invalid("no item is stored here; send it whole", place)
    notes.append(f"{place}: an item of the type {str(kind)[:40]!r} was left out")
    return None


def _plain(item: Mapping[str, Any], place: str) -> Message:
    text = text_of(item.get("content"), f"{place}.content")
    return Message(role_of(item.get("role"), place, "developer"), text)
