"""POST /v1/messages and /v1/messages/count_tokens: requests and answers in Anthropic's form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from dflash_core.events import PrefillEvent
from dflash_core.knobs import Value
from dflash_core.messages import Call, Message
from dflash_tui.server.asked import Asked, Count, Function, Request, Stops, ThinkingSwitch
from dflash_tui.server.parts import new_id, role_of, string_of, text_of
from dflash_tui.server.request_error import RequestError, invalid
from dflash_tui.server.updates import Ended, Reading, Why
from dflash_tui.server.writer import Kind, Piece, Writer, event, openai_usage

STOP_REASONS: dict[Why, str] = {
    "end": "end_turn", "stop string": "stop_sequence", "length": "max_tokens",
    "context": "model_context_window_exceeded", "calls": "tool_use", "cancelled": "end_turn",
}  # fmt: skip

BUDGET = "thinking.budget_tokens"


class Thinks(msgspec.Struct):
    type: str
    budget_tokens: Count | None = None


class OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: dict[str, Any] | None = None


class AnthropicMessage(msgspec.Struct):
    role: str
    content: str | list[Any]


class AnthropicTool(msgspec.Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class CountRequest(Request, kw_only=True):
    """A request, or one whose prompt is to be counted."""

    messages: list[AnthropicMessage]
    max_tokens: Count | None = None
    system: str | list[Any] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinks | None = None
    output_config: OutputConfig | None = None
    top_k: int | None = None
    stop_sequences: Stops | None = None

    def knobs(self) -> dict[str, Value | None]:
        return super().knobs() | {"top_k": self.top_k, "thinking_budget": self.budget}

    @property
    def budget(self) -> int | None:
        """Tokens of reasoning."""
        return self.thinking.budget_tokens if self.thinking is not None else None


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: Count


def asked_of(request: CountRequest) -> Asked:
    """The request in the decoder's terms. Raises RequestError."""
    messages = [Message("system", text_of(request.system, "system"))] if request.system else []
    for at, one in enumerate(request.messages):
        messages += _messages(one, f"messages[{at}]")
    last = messages[-1] if messages else Message("user", "")
    if last.role == "assistant" and last.content != last.content.rstrip():
        place = f"messages[{len(request.messages) - 1}].content"
        raise invalid(f"{place} ends with white space, which an answer that goes on must not", place)
    functions = [
        Function(tool.name, tool.description, _schema(tool.input_schema), tool.strict)
        for tool in request.tools or ()
        if tool.type in (None, "custom")  # others run on Anthropic's own servers
    ]
    config = request.output_config or OutputConfig()
    found = request.asked(
        functions=functions,
        choice=request.tool_choice,
        limits=(request.max_tokens,),
        stop=request.stop_sequences,
        form=(config.format, "output_config.format"),
        effort=(config.effort, "output_config.effort"),
        thinking=_thinking(request.thinking),
        messages=tuple(messages),
        parallel=(request.tool_choice or {}).get("disable_parallel_tool_use") is not True,
    )
    return found if request.budget is None else replace(found, places={**found.places, "thinking_budget": BUDGET})


def _schema(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if schema is None else {key: value for key, value in schema.items() if key != "$schema"}


def _thinking(given: Thinks | None) -> ThinkingSwitch:
    if given is None:
        return ""
    if given.type not in ("enabled", "adaptive", "disabled"):
        place = "thinking.type"
        raise invalid(f"{place} is {given.type[:40]!r}, expected enabled, adaptive or disabled", place)
    return "off" if given.type == "disabled" else "on"


def _messages(one: AnthropicMessage, place: str) -> list[Message]:
    """A message may hold results of tools and a question at once, which are several for a template."""
    role = role_of(one.role, place)
    if isinstance(one.content, str):
        return [Message(role, one.content)]
    found: list[Message] = []
    texts: list[object] = []
    thinking = ""
    calls: list[Call] = []
    for at, block in enumerate(one.content):
        where = f"{place}.content[{at}]"
        kind = block.get("type") if isinstance(block, dict) else "text"
        if kind == "tool_result":
            found.append(_result(block, where))
        elif kind == "tool_use":
            calls.append(_use(block, where))
        elif kind == "thinking":
            thinking += text_of([{"text": block.get("thinking")}], where)
        elif kind != "redacted_thinking":
            texts.append(block)
    text = text_of(texts, f"{place}.content")
    if role == "assistant":
        return [Message(role, text, thinking, calls=tuple(calls))]
    return [*found, *([Message(role, text)] if text or not found else [])]


def _result(block: dict[str, Any], place: str) -> Message:
    text = text_of(block.get("content"), f"{place}.content", results=True)
    if block.get("is_error") is True and not text.startswith("Error"):
        text = f"Error: {text}"
    return Message("tool", text, call_id=string_of(block, "tool_use_id", place))


def _use(block: dict[str, Any], place: str) -> Call:
    given = block.get("input", {})
    if not isinstance(given, dict):
        raise invalid(f"expected an object at {place}.input", f"{place}.input")
    return Call(string_of(block, "id", place), string_of(block, "name", place), given)


class AnthropicWriter(Writer):
    """Writes a message."""

    def __init__(self, request: MessagesRequest, model: str) -> None:
        super().__init__(request)
        self._content: list[dict[str, Any]] = []
        self.answer = {
            "id": new_id("msg_"), "type": "message", "role": "assistant", "model": model, "content": [],
            "stop_reason": None, "stop_sequence": None,
        }  # fmt: skip

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event(msgspec.json.encode({"type": kind, **fields}), kind)

    def waits(self, place: int, waiting: int, read: Reading | None) -> bytes:
        return self._event("ping")

    def begin(self, read: PrefillEvent | None) -> bytes:
        usage = _usage(read.prompt_tokens, read.reused_tokens, 1) if read else _usage(0, 0, 0)
        return self._event("message_start", message=self.answer | {"usage": usage}) + self._event("ping")

    def open(self, kind: Kind, name: str) -> bytes:
        block: dict[str, Any] = {"type": kind, kind: ""}
        if kind == "thinking":
            block["signature"] = ""
        elif kind == "call":
            block = {"type": "tool_use", "id": new_id("toolu_"), "name": name, "input": {}}
        self._content.append(block)
        return self._of_block("start", content_block=block)

    def more(self, part: Piece) -> bytes:
        if self.kind == "call":
            return self._of_block("delta", delta={"type": "input_json_delta", "partial_json": part.text})
        return self._of_block("delta", delta={"type": f"{self.kind}_delta", self.kind: part.text})

    def close(self, kind: Kind, text: str, *, cut: bool) -> bytes:
        block, signed = self._content[-1], b""
        if kind == "call":
            block["input"] = _object(text)
        else:
            block[kind] = text
        if kind == "thinking":
            block["signature"] = new_id("sig_")
            signed = self._of_block("delta", delta={"type": "signature_delta", "signature": block["signature"]})
        return signed + self._of_block("stop")

    def _of_block(self, what: str, **fields: Any) -> bytes:
        return self._event(f"content_block_{what}", index=len(self._content) - 1, **fields)

    def end(self, ended: Ended) -> bytes:
        found = self.over()
        if not self._content:
            found += self.open("text", "") + self._of_block("stop")
        stop = {"stop_reason": STOP_REASONS[ended.why], "stop_sequence": ended.stop_string or None}
        usage = openai_usage(ended)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        counts = _usage(usage["prompt_tokens"], cached, usage["completion_tokens"])
        figures = {"usage": counts, **self.figures(ended)}
        self.answer |= {"content": self._content, **stop, **figures}
        return found + self._event("message_delta", delta=stop, **figures) + self._event("message_stop")

    def failed(self, refusal: RequestError) -> bytes:
        return event(msgspec.json.encode(refusal.body("anthropic", "")), "error")


def _object(text: str) -> dict[str, Any]:
    """Arguments of a call; those that were cut off are given as text."""
    try:
        found = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        found = None
    return found if isinstance(found, dict) else {"arguments": text}


def _usage(prompt: int, cached: int, answer: int) -> dict[str, int]:
    """What was reused is not part of the input."""
    return {
        "input_tokens": prompt - cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached,
        "output_tokens": answer,
    }  # fmt: skip
