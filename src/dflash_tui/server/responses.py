"""POST /v1/responses: its requests and answers. Nothing is stored: each request brings its whole history."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from dflash_core.events import PrefillEvent
from dflash_core.log_probs import MAX_TOP
from dflash_core.messages import Call, Message, arguments_of
from dflash_tui.server.asked import Asked, Count, Function, Request, by_name
from dflash_tui.server.drawn_tokens import listed
from dflash_tui.server.parts import new_id, role_of, string_of, text_of
from dflash_tui.server.request_error import RequestError, invalid
from dflash_tui.server.updates import Ended, Reading
from dflash_tui.server.writer import Kind, Piece, Writer, event, openai_usage
from dflash_tui.server.written import Thoughts

HOSTED = (
    "web_search", "image_generation", "file_search", "code_interpreter", "computer", "mcp", "local_shell", "shell",
    "tool_search", "apply_patch",
)  # fmt: skip
"""Kinds of tools that a provider runs itself; clients offer them unasked, so they are left out."""
INPUT_FIELD = "input"
"""The argument of a tool that takes free text."""

CALLS = {True: ("custom_tool_call", "ctc_", "input"), False: ("function_call", "fc_", "arguments")}
"""The type of a call's item, the prefix of its id, and the field of its arguments; by whether it takes free text."""

ENCRYPTED = "reasoning.encrypted_content"
"""What a request includes to get a key of each reasoning, which it may send back in place of the text."""
LOG_PROBS = "message.output_text.logprobs"
"""What it includes to get the log-probabilities of the text."""


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
    max_output_tokens: Count | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningField | None = None
    previous_response_id: str | None = None
    include: list[str] | None = None
    text: dict[str, Any] | None = None
    top_logprobs: int | None = None
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
    top = request.top_logprobs or 0
    if not 0 <= top <= MAX_TOP:
        raise invalid(f"top_logprobs is {top}, expected 0 to {MAX_TOP}", "top_logprobs")
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
        limits=(request.max_output_tokens,),
        form=(form, "text.format"),
        effort=(request.reasoning.effort if request.reasoning else None, "reasoning.effort"),
        messages=tuple(messages),
        place="input",
        parallel=request.parallel_tool_calls is not False,
        log_probs=top if LOG_PROBS in (request.include or ()) else None,
        notes=tuple(notes),
    )
    shown = {name.name: known for known, (name, _) in tools.items()}
    return replace(found, tool=shown.get(found.tool, found.tool))


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


class ResponseWriter(Writer):
    """The unstreamed response is what the last event of the stream holds."""

    def __init__(self, request: ResponseRequest, model: str, thoughts: Thoughts) -> None:
        super().__init__(request)
        self._thoughts = thoughts if ENCRYPTED in (request.include or ()) else None
        self._names = {name: tool for name, (tool, _) in tools_of(request).items()}
        self._number = 0
        self._item: dict[str, Any] = {}  # the open one
        self._tokens: list[dict[str, Any]] = []  # of the open text, with their log-probabilities
        self.answer = {
            "id": new_id("resp_"), "object": "response", "created_at": int(time.time()), "status": "in_progress",
            "model": model, "output": [], "instructions": request.instructions, "error": None,
            "incomplete_details": None, "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {}, "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None, "store": False, "temperature": request.temperature,
            "tool_choice": request.tool_choice or "auto", "tools": [], "top_p": request.top_p, "truncation": "disabled",
            "usage": None,
        }  # fmt: skip

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event(msgspec.json.encode(data), kind)

    def _of_item(self, kind: str, **fields: Any) -> bytes:
        place = {"item_id": self._item["id"], "output_index": len(self.answer["output"])}
        return self._event(f"response.{kind}", **place, **fields)

    def waits(self, place: int, waiting: int, read: Reading | None) -> bytes:
        # Comments do not keep every client waiting; this event does.
        return self.begin(None) or self._event("response.in_progress", response=self.answer)

    def begin(self, read: PrefillEvent | None) -> bytes:
        if self._number:
            return b""
        created = self._event("response.created", response=self.answer)
        return created + self._event("response.in_progress", response=self.answer)

    def open(self, kind: Kind, name: str) -> bytes:
        if kind == "thinking":
            self._item = {"id": new_id("rs_"), "type": "reasoning", "summary": [], "content": []}
        elif kind == "text":
            self._item = {
                "id": new_id("msg_"), "type": "message", "status": "in_progress", "role": "assistant", "content": [],
            }  # fmt: skip
            self._tokens = []
            part = _output_text("", [])
            return self._of_output("added") + self._of_item("content_part.added", content_index=0, part=part)
        else:
            tool = self._names.get(name, ToolName(name))
            type, id, field = CALLS[tool.free]
            self._item = {
                "id": new_id(id), "type": type, "status": "in_progress", "call_id": new_id("call_"), "name": tool.name,
                field: "", **({"namespace": tool.namespace} if tool.namespace else {}),
            }  # fmt: skip
        return self._of_output("added")

    def _of_output(self, what: str) -> bytes:
        item, place = dict(self._item), len(self.answer["output"])
        return self._event(f"response.output_item.{what}", output_index=place, item=item)

    def more(self, part: Piece) -> bytes:
        type = self._item["type"]
        if type == "custom_tool_call":
            return b""  # free text is sent when it is complete
        if type == "function_call":
            return self._of_item("function_call_arguments.delta", delta=part.text)
        if type == "reasoning":
            return self._of_item("reasoning_text.delta", content_index=0, delta=part.text)
        tokens = listed([part])["content"]
        self._tokens += tokens
        return self._of_item("output_text.delta", content_index=0, delta=part.text, logprobs=tokens)

    def close(self, kind: Kind, text: str, *, cut: bool) -> bytes:
        item = self._item
        if kind == "text":
            item["content"] = [part := _output_text(text, self._tokens)]
            found = self._of_item("output_text.done", content_index=0, text=text, logprobs=self._tokens)
            found += self._of_item("content_part.done", content_index=0, part=part)
        elif kind == "thinking":
            item["content"] = [{"type": "reasoning_text", "text": text}]
            if self._thoughts is not None:
                item["encrypted_content"] = self._thoughts.add(text)
            found = self._of_item("reasoning_text.done", content_index=0, text=text)
        elif item["type"] == "function_call":
            item["arguments"] = text or ("" if cut else "{}")
            found = self._of_item("function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        else:
            item["input"] = str(arguments_of(text).get(INPUT_FIELD, text))
            found = self._of_item("custom_tool_call_input.delta", delta=item["input"])
            found += self._of_item("custom_tool_call_input.done", input=item["input"])
        if "status" in item:
            item["status"] = "incomplete" if cut else "completed"
        found += self._of_output("done")
        self.answer["output"].append(item)
        return found

    def end(self, ended: Ended) -> bytes:
        cut = ended.why in ("length", "context")
        found = self.over(cut=cut)
        status = "incomplete" if cut else "cancelled" if ended.why == "cancelled" else "completed"
        self.answer |= {"status": status, "usage": _usage(ended), **self.figures(ended)}
        if cut:
            self.answer["incomplete_details"] = {"reason": "max_output_tokens"}
        return found + self._event(f"response.{'incomplete' if cut else 'completed'}", response=self.answer)

    def failed(self, error: RequestError) -> bytes:
        about = error.body("openai", "")["error"]
        self.answer |= {"status": "failed", "error": {"code": error.code or about["type"], "message": error.message}}
        return self._event("response.failed", response=self.answer)


def _output_text(text: str, tokens: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": tokens}


def _usage(ended: Ended) -> dict[str, Any]:
    usage = openai_usage(ended)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    }
