"""POST /v1/chat/completions: its requests and answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from dflash_core.events import PrefillEvent
from dflash_core.log_probs import MAX_TOP
from dflash_core.messages import Call, Message, arguments_of
from dflash_core.text.tool_calls.parts import CallArguments, CallStart, Part, Text, Thinking
from dflash_tui.server.asked import GRAMMAR, Asked, ThinkingSwitch
from dflash_tui.server.drawn_tokens import listed
from dflash_tui.server.exchange import event
from dflash_tui.server.extensions import choice_of, effort_of, extended, grammar_of, sampling_changes
from dflash_tui.server.parts import (
    Function,
    at_least_one,
    new_id,
    role_of,
    stops_of,
    text_of,
    tools_of,
)
from dflash_tui.server.request_error import RequestError, invalid
from dflash_tui.server.updates import Ended, Reading, Why, text_thinking_calls
from dflash_tui.server.usage import figures, openai_usage

FINISH: dict[Why, str] = {
    "end": "stop", "stop string": "stop", "length": "length", "context": "length", "calls": "tool_calls",
    "cancelled": "stop",
}  # fmt: skip
DONE = event(b"[DONE]")


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct):
    function: CalledFunction
    id: str | None = None
    type: str | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[Any] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None


class ChatTool(msgspec.Struct):
    type: str | None = None
    function: Function | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Sampling(msgspec.Struct, kw_only=True):
    """Fields that chat completions and completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    logit_bias: dict[str, float] | None = None
    return_progress: bool | None = None
    dflash: dict[str, Any] | None = None

    def changes(self) -> dict[str, Any]:
        """The knobs that the fields name. Raises RequestError for what is not supported."""
        if self.n is not None and self.n != 1:
            raise invalid(f"n is {self.n}: one answer at a time is all there is, expected 1", "n")
        if self.logit_bias:
            raise invalid("logit_bias is not supported; leave it out", "logit_bias")
        penalty = self.repetition_penalty if self.repetition_penalty is not None else self.repeat_penalty
        return sampling_changes(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p,
            presence_penalty=self.presence_penalty, frequency_penalty=self.frequency_penalty,
            repetition_penalty=penalty, seed=self.seed, ignore_eos=self.ignore_eos,
        )  # fmt: skip


class ChatRequest(Sampling, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    tools: list[ChatTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking_budget: int | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: list[str] | None = None
    audio: Any = None


def asked_of(request: ChatRequest) -> Asked:
    """The request in the decoder's terms. Raises RequestError."""
    changes, places, switches = extended(request.dflash)
    changes |= request.changes()
    if request.thinking_budget is not None:
        changes["thinking_budget"] = request.thinking_budget
    if request.audio is not None or (request.modalities and request.modalities != ["text"]):
        raise invalid("this model writes text only", "modalities")
    top = request.top_logprobs or 0
    if not 0 <= top <= MAX_TOP or (top and not request.logprobs):
        raise invalid(f"top_logprobs is {top}, expected 0 to {MAX_TOP}, with logprobs true", "top_logprobs")
    limits = (at_least_one(request.max_tokens, "max_tokens"), request.max_completion_tokens)
    given = [one for one in limits if at_least_one(one, "max_completion_tokens") is not None]
    thinking, effort = effort_of(request.reasoning_effort, "reasoning_effort")
    choice, tool = choice_of(request.tool_choice)
    grammar, place = grammar_of(request.response_format, "response_format", request.dflash)
    functions = _functions(request.tools)
    return Asked(
        messages=tuple(_message(one, f"messages[{at}]") for at, one in enumerate(request.messages)),
        tools=tools_of(functions),
        choice=choice,
        tool=tool,
        strict=any(one.strict for one in functions),
        log_probs=top if request.logprobs else None,
        parallel=request.parallel_tool_calls is not False,
        grammar=grammar,
        changes=changes,
        places=places | {GRAMMAR: place},
        max_tokens=min((one for one in given if one is not None), default=None),
        stops=stops_of(request.stop),
        thinking=_switched(request.chat_template_kwargs) or thinking,
        effort=effort,
        events=switches.get("events", False),
    )


def _switched(variables: dict[str, Any] | None) -> ThinkingSwitch:
    """`enable_thinking` of chat_template_kwargs; others are the template's own and not passed on."""
    value = (variables or {}).get("enable_thinking")
    if value is None:
        return ""
    if not isinstance(value, bool):
        place = "chat_template_kwargs.enable_thinking"
        raise invalid(f"expected true or false at {place}", place)
    return "on" if value else "off"


def _functions(tools: list[ChatTool] | None) -> list[Function]:
    found = []
    for at, tool in enumerate(tools or ()):
        if tool.type not in (None, "function"):
            raise invalid(f"a tool of the type {tool.type[:40]!r}, expected function", f"tools[{at}].type")
        if tool.function is None:
            raise invalid("a tool without its function", f"tools[{at}].function")
        found.append(tool.function)
    return found


def _message(one: ChatMessage, place: str) -> Message:
    thinking = one.reasoning_content or (one.reasoning if isinstance(one.reasoning, str) else "")
    text = text_of(one.content, f"{place}.content", results=one.role == "tool")
    role = role_of(one.role, place, "developer", "tool", "function")
    if role == "tool":
        return Message(role, text, call_id=one.tool_call_id or "", name=one.name or "")
    if role != "assistant":
        return Message(role, text)
    calls = tuple(Call(call.id or "", call.function.name, _arguments(call)) for call in one.tool_calls or ())
    return Message(role, text, thinking, calls=calls)


def _arguments(call: ToolCall) -> Any:
    given = call.function.arguments
    return given if isinstance(given, dict) else arguments_of(given or "")


class ChunkWriter:
    """What is the same in the streams of chat completions and completions."""

    def __init__(self, request: Sampling, kind: str, prefix: str, model: str) -> None:
        """`kind`: of the stream's objects; `prefix`: of their id."""
        self.head = {"id": new_id(prefix), "object": kind, "created": int(time.time()), "model": model}
        self.detail = bool(extended(request.dflash)[2].get("detail"))
        self._usage = bool(request.stream_options and request.stream_options.include_usage)

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return event(msgspec.json.encode(self.head | {"choices": choices} | more))

    def _finish(self, reason: str, **more: Any) -> bytes:
        """The chunk that says why the answer is over."""
        raise NotImplementedError

    def end(self, ended: Ended) -> bytes:
        last = figures(ended, detail=self.detail)
        if not self._usage:
            return self._finish(FINISH[ended.why], **last) + DONE
        return self._finish(FINISH[ended.why]) + self._chunk([], usage=openai_usage(ended), **last) + DONE

    def failed(self, refusal: RequestError) -> bytes:
        # Without the last line, so that nobody takes it for complete.
        return event(msgspec.json.encode(refusal.body("openai", "")))


class ChatWriter(ChunkWriter):
    """Writes a chat completion."""

    def __init__(self, request: ChatRequest, model: str) -> None:
        super().__init__(request, "chat.completion.chunk", "chatcmpl-", model)
        self._wants_progress = bool(request.return_progress)
        self._began = time.perf_counter()
        self._log_probs = bool(request.logprobs)
        self._calls = -1

    def _delta(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        return self._chunk([{"index": 0, "delta": delta, "finish_reason": finish}], **more)

    def waits(self, place: int, waiting: int, read: Reading | None) -> bytes:
        if place:
            return f": waiting {place} of {waiting}\n\n".encode()
        return f": reading {read.done} of {read.total}\n\n".encode() if read else b": working\n\n"

    def progress(self, read: Reading) -> bytes:
        if not self._wants_progress:
            return b""
        found = {"total": read.total, "cache": 0, "processed": read.done, "time_ms": self._ms()}
        return self._delta({}, prompt_progress=found)

    def _ms(self) -> int:
        return int((time.perf_counter() - self._began) * 1e3)

    def begin(self, read: PrefillEvent | None) -> bytes:
        return self._delta({"role": "assistant", "content": ""})

    def parts(self, parts: Sequence[Part]) -> bytes:
        return b"".join(
            self._chunk([{"index": 0, "delta": found, "finish_reason": None, "logprobs": self._listed([part])}])
            for part in parts
            if (found := self._fields(part))
        )

    def _listed(self, parts: Sequence[Part]) -> dict[str, Any] | None:
        return listed(parts) if self._log_probs else None

    def _fields(self, part: Part) -> dict[str, Any]:
        if isinstance(part, Text):
            return {"content": part.text}
        if isinstance(part, Thinking):
            return {"reasoning_content": part.text}
        if isinstance(part, CallStart):
            self._calls += 1
            function = {"name": part.name, "arguments": ""}
            return _call({"index": self._calls, "id": new_id("call_"), "type": "function", "function": function})
        if isinstance(part, CallArguments):
            return _call({"index": self._calls, "function": {"arguments": part.text}})
        return {}

    def _finish(self, reason: str, **more: Any) -> bytes:
        return self._delta({}, reason, **more)

    def whole(self, parts: Sequence[Part], ended: Ended) -> dict[str, Any]:
        text, thinking, blocks = text_thinking_calls(parts)
        calls = [{"name": one.name, "arguments": one.text} for one in blocks]
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
        if thinking:
            message["reasoning_content"] = thinking
        if calls:
            message["tool_calls"] = [{"id": new_id("call_"), "type": "function", "function": one} for one in calls]
        choice = {"index": 0, "message": message, "finish_reason": FINISH[ended.why], "logprobs": self._listed(parts)}
        found = self.head | {"object": "chat.completion", "choices": [choice], "usage": openai_usage(ended)}
        return found | figures(ended, detail=self.detail)


def _call(fields: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [fields]}
