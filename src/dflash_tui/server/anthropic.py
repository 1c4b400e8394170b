"""POST /v1/messages and /v1/messages/count_tokens: requests and answers in Anthropic's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from dflash_core.events import PrefillEvent
from dflash_core.messages import Call, Message
from dflash_core.text.tool_calls.parts import CallArguments, CallEnd, CallStart, Part, Text, Thinking
from dflash_tui.server.asked import GRAMMAR, Asked, ThinkingSwitch
from dflash_tui.server.exchange import event
from dflash_tui.server.extensions import choice_of, effort_of, extended, grammar_of, sampling_changes
from dflash_tui.server.parts import Function, at_least_one, new_id, role_of, stops_of, string_of, text_of, tools_of
from dflash_tui.server.request_error import RequestError, invalid
from dflash_tui.server.updates import Block, Ended, Reading, Why, blocks_of
from dflash_tui.server.usage import anthropic_counts, anthropic_usage, figures

STOP_REASONS: dict[Why, str] = {
    "end": "end_turn", "stop string": "stop_sequence", "length": "max_tokens",
    "context": "model_context_window_exceeded", "calls": "tool_use", "cancelled": "end_turn",
}  # fmt: skip
Kind = Literal["thinking", "text", "tool_use"]


class Thinks(msgspec.Struct):
    type: str
    budget_tokens: int | None = None


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


class CountRequest(msgspec.Struct, kw_only=True):
    """What the prompt depends on."""

    messages: list[AnthropicMessage]
    model: str | None = None
    system: str | list[Any] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinks | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: int
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    dflash: dict[str, Any] | None = None


def counted_of(request: CountRequest) -> Asked:
    """A request whose prompt is to be counted. Raises RequestError."""
    return _asked(request, {}, {})


def asked_of(request: MessagesRequest) -> Asked:
    """The request in the decoder's terms. Raises RequestError."""
    changes, places, _ = extended(request.dflash)
    changes |= sampling_changes(temperature=request.temperature, top_p=request.top_p, top_k=request.top_k)
    if request.thinking is not None and request.thinking.budget_tokens is not None:
        changes["thinking_budget"] = at_least_one(request.thinking.budget_tokens, "thinking.budget_tokens") or 0
        places["thinking_budget"] = "thinking.budget_tokens"
    return _asked(
        request, changes, places, request.dflash, at_least_one(request.max_tokens, "max_tokens"),
        stops_of(request.stop_sequences, "stop_sequences"),
    )  # fmt: skip


def _asked(
    request: CountRequest,
    changes: dict[str, Any],
    places: dict[str, str],
    extra: Mapping[str, Any] | None = None,
    max_tokens: int | None = None,
    stops: tuple[str, ...] = (),
) -> Asked:
    messages = [Message("system", text_of(request.system, "system"))] if request.system else []
    for at, one in enumerate(request.messages):
        messages += _messages(one, f"messages[{at}]")
    choice, tool = choice_of(request.tool_choice)
    config = request.output_config or OutputConfig()
    grammar, place = grammar_of(config.format, "output_config.format", extra)
    effort = effort_of(config.effort, "output_config.effort")[1]
    functions = [
        Function(tool.name, tool.description, _schema(tool.input_schema), tool.strict)
        for tool in request.tools or ()
        if tool.type in (None, "custom")  # others run on Anthropic's own servers
    ]
    return Asked(
        messages=tuple(messages),
        tools=tools_of(functions),
        choice=choice,
        tool=tool,
        strict=any(one.strict for one in functions),
        parallel=(request.tool_choice or {}).get("disable_parallel_tool_use") is not True,
        grammar=grammar,
        changes=changes,
        places=places | {GRAMMAR: place},
        max_tokens=max_tokens,
        stops=stops,
        thinking=_thinking(request.thinking),
        effort=effort,
    )


def _schema(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if schema is None else {key: value for key, value in schema.items() if key != "$schema"}


def _thinking(asked: Thinks | None) -> ThinkingSwitch:
    if asked is None:
        return ""
    if asked.type not in ("enabled", "adaptive", "disabled"):
        place = "thinking.type"
        raise invalid(f"{place} is {asked.type[:40]!r}, expected enabled, adaptive or disabled", place)
    return "off" if asked.type == "disabled" else "on"


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


class AnthropicWriter:
    """Writes a message."""

    def __init__(self, request: MessagesRequest) -> None:
        self._model = request.model or ""
        self._id = new_id("msg_")
        self._detail = bool(extended(request.dflash)[2].get("detail"))
        self._blocks = -1
        self._kind: Kind | None = None  # of the open block

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event(msgspec.json.encode({"type": kind, **fields}), kind)

    def waits(self, place: int, waiting: int, read: Reading | None) -> bytes:
        return self._event("ping")

    def progress(self, read: Reading) -> bytes:
        return b""

    def begin(self, read: PrefillEvent | None) -> bytes:
        usage = anthropic_counts(read.prompt_tokens, read.reused_tokens, 1) if read else anthropic_counts(0, 0, 0)
        message: dict[str, Any] = {
            "id": self._id, "type": "message", "role": "assistant", "model": self._model, "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": usage,
        }  # fmt: skip
        return self._event("message_start", message=message) + self._event("ping")

    def parts(self, parts: Sequence[Part]) -> bytes:
        return b"".join(map(self._part, parts))

    def _part(self, part: Part) -> bytes:
        if isinstance(part, Thinking):
            return self._into("thinking") + self._more("thinking_delta", thinking=part.text)
        if isinstance(part, Text):
            return self._into("text") + self._more("text_delta", text=part.text)
        if isinstance(part, CallStart):
            return self._close() + self._open(
                {"type": "tool_use", "id": new_id("toolu_"), "name": part.name, "input": {}}
            )
        if isinstance(part, CallArguments):
            return self._more("input_json_delta", partial_json=part.text)
        return self._close() if isinstance(part, CallEnd) or part.index is not None else b""

    def _into(self, kind: Kind) -> bytes:
        if self._kind == kind:
            return b""
        return self._close() + self._open(
            {"type": "text", "text": ""} if kind == "text" else {"type": "thinking", "thinking": "", "signature": ""}
        )

    def _open(self, block: dict[str, Any]) -> bytes:
        self._blocks += 1
        self._kind = block["type"]
        return self._event("content_block_start", index=self._blocks, content_block=block)

    def _more(self, kind: str, **fields: Any) -> bytes:
        return self._event("content_block_delta", index=self._blocks, delta={"type": kind, **fields})

    def _close(self) -> bytes:
        if self._kind is None:
            return b""
        signed = self._more("signature_delta", signature=new_id("sig_")) if self._kind == "thinking" else b""
        self._kind = None
        return signed + self._event("content_block_stop", index=self._blocks)

    def end(self, ended: Ended) -> bytes:
        found = self._close()
        if self._blocks < 0:
            found += self._into("text") + self._close()
        delta = {"stop_reason": STOP_REASONS[ended.why], "stop_sequence": ended.stop_string or None}
        figures = self._figures(ended)
        return found + self._event("message_delta", delta=delta, **figures) + self._event("message_stop")

    def _figures(self, ended: Ended) -> dict[str, Any]:
        return {"usage": anthropic_usage(ended), **figures(ended, detail=self._detail)}

    def failed(self, refusal: RequestError) -> bytes:
        return event(msgspec.json.encode(refusal.body("anthropic", "")), "error")

    def whole(self, parts: Sequence[Part], ended: Ended) -> dict[str, Any]:
        content = [_block(one) for one in blocks_of(parts)]
        return {
            "id": self._id, "type": "message", "role": "assistant", "model": self._model,
            "content": content or [{"type": "text", "text": ""}], "stop_reason": STOP_REASONS[ended.why],
            "stop_sequence": ended.stop_string or None,
        } | self._figures(ended)  # fmt: skip


def _block(block: Block) -> dict[str, Any]:
    if block.kind == "thinking":
        return {"type": "thinking", "thinking": block.text, "signature": new_id("sig_")}
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    return {"type": "tool_use", "id": new_id("toolu_"), "name": block.name, "input": _object(block.text)}


def _object(text: str) -> dict[str, Any]:
    """Arguments of a call; those that were cut off are given as text."""
    try:
        found = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        found = None
    return found if isinstance(found, dict) else {"arguments": text}
