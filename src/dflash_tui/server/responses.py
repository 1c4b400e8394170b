"""POST /v1/responses: its requests. Nothing is stored: each request brings its whole history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from dflash_core.messages import Call, Message, arguments_of
from dflash_tui.server.asked import Asked, Function, Request
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
    tools: list[dict[str, Any]] | None = None


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


@dataclass(slots=True)
class _Tools:
    functions: list[Function] = field(default_factory=list)
    names: dict[str, ToolName] = field(default_factory=dict)

    def add(self, tool: ResponseTool, place: str, namespace: str = "") -> None:
        if tool.type == "namespace":
            for at, one in enumerate(tool.tools or ()):
                inner = f"{place}.tools[{at}]"
                try:
                    self.add(msgspec.convert(one, ResponseTool), inner, tool.name or "")
                except msgspec.ValidationError as error:
                    raise invalid(f"{error} in {inner}", inner) from None
            return
        if tool.type not in (None, "function", "custom"):
            if tool.type.startswith(HOSTED):
                return
            raise invalid(f"a tool of the type {tool.type[:40]!r}, expected function or custom", f"{place}.type")
        if not tool.name:
            raise invalid("a tool without a name", f"{place}.name")
        shown = f"{namespace}__{tool.name}" if namespace else tool.name
        free = tool.type == "custom"
        self.names[shown] = ToolName(tool.name, namespace, free)
        parameters = _FREE if free else tool.parameters
        self.functions.append(Function(shown, tool.description, parameters, tool.strict))


_FREE: dict[str, Any] = {"type": "object", "properties": {INPUT_FIELD: {"type": "string"}}, "required": [INPUT_FIELD]}


def names_of(request: ResponseRequest) -> Mapping[str, ToolName]:
    """The names of the request's tools, by those that the model knows. Raises RequestError."""
    return _tools(request).names


def _tools(request: ResponseRequest) -> _Tools:
    found = _Tools()
    for at, tool in enumerate(request.tools or ()):
        found.add(tool, f"tools[{at}]")
    return found


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
    tools = _tools(request)
    found = request.asked(
        functions=tools.functions,
        choice=request.tool_choice,
        limits={"max_output_tokens": request.max_output_tokens},
        form=(form, "text.format"),
        effort=(request.reasoning.effort if request.reasoning else None, "reasoning.effort"),
    )
    shown = {one.name: name for name, one in tools.names.items()}
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
