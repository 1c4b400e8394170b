"""POST /v1/chat/completions: its requests and answers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from dflash_core.events import PrefillEvent
from dflash_core.knobs import Value
from dflash_core.log_probs import MAX_TOP
from dflash_core.messages import Call, Message, arguments_of
from dflash_core.text.tool_calls.parts import CallArguments, CallStart, Part, Text, Thinking
from dflash_tui.server.asked import Asked, Count, Function, Request, Stop, Stops, ThinkingSwitch
from dflash_tui.server.drawn_tokens import listed
from dflash_tui.server.parts import new_id, role_of, text_of
from dflash_tui.server.request_error import invalid
from dflash_tui.server.updates import Ended, Reading, Step, Why, text_thinking_calls
from dflash_tui.server.writer import Writer, event, openai_usage, timings

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


class Sampling(Request, kw_only=True):
    """Fields that chat completions and completions share."""

    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    stop: Stop | Stops | None = None
    n: int | None = None
    logit_bias: dict[str, float] | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None

    def knobs(self) -> dict[str, Value | None]:
        repetition = self.repeat_penalty if self.repetition_penalty is None else self.repetition_penalty
        return super().knobs() | {
            "top_k": self.top_k, "min_p": self.min_p, "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty, "repetition_penalty": repetition, "seed": self.seed,
            "ignore_eos": self.ignore_eos,
        }  # fmt: skip

    def check(self, counts: Mapping[str, int | None], unsupported: Mapping[str, object]) -> None:
        """Raise RequestError for what is not supported; `counts`: of answers."""
        for name, count in {"n": self.n, **counts}.items():
            if count not in (None, 1):
                raise invalid(f"{name} is {count}, expected 1: the server writes one answer at a time", name)
        for name, value in {"logit_bias": self.logit_bias, **unsupported}.items():
            if value:
                raise invalid(f"{name} is not supported; leave it out", name)


class ChatRequest(Sampling, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: Count | None = None
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

    def knobs(self) -> dict[str, Value | None]:
        return super().knobs() | {"thinking_budget": self.thinking_budget}


def asked_of(request: ChatRequest) -> Asked:
    """The request in the decoder's terms. Raises RequestError."""
    request.check({}, {})
    if request.audio is not None or (request.modalities and request.modalities != ["text"]):
        raise invalid("this model writes text only", "modalities")
    top = request.top_logprobs or 0
    if not 0 <= top <= MAX_TOP or (top and not request.logprobs):
        raise invalid(f"top_logprobs is {top}, expected 0 to {MAX_TOP}, with logprobs true", "top_logprobs")
    found = request.asked(
        functions=_functions(request.tools),
        choice=request.tool_choice,
        limits=(request.max_tokens, request.max_completion_tokens),
        stop=request.stop,
        form=(request.response_format, "response_format"),
        effort=(request.reasoning_effort, "reasoning_effort"),
        thinking=_switched(request.chat_template_kwargs),
    )
    return replace(
        found,
        messages=tuple(_message(one, f"messages[{at}]") for at, one in enumerate(request.messages)),
        parallel=request.parallel_tool_calls is not False,
        log_probs=top if request.logprobs else None,
        events=request.switch("events"),
        timings=request.timings_per_token is True,
    )


def _switched(variables: dict[str, Any] | None) -> ThinkingSwitch | None:
    """`enable_thinking` of chat_template_kwargs; others are the template's own and not passed on."""
    value = (variables or {}).get("enable_thinking")
    if value is None:
        return None
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
    calls = []
    for call in one.tool_calls or ():
        given = call.function.arguments
        arguments = given if isinstance(given, dict) else arguments_of(given or "")
        calls.append(Call(call.id or "", call.function.name, arguments))
    return Message(role, text, thinking, calls=tuple(calls))


class ChunkWriter(Writer):
    """What is the same in the streams of chat completions and completions."""

    def __init__(self, request: Sampling, kind: str, prefix: str, model: str) -> None:
        """`kind`: of the stream's objects; `prefix`: of their id."""
        super().__init__(request)
        self.head = {"id": new_id(prefix), "object": kind, "created": int(time.time()), "model": model}
        self._usage = bool(request.stream_options and request.stream_options.include_usage)
        self._timings: dict[str, Any] = {}  # of each chunk, where they are requested

    def _chunk(self, *choices: dict[str, Any], **more: Any) -> bytes:
        return event(msgspec.json.encode(self.head | {"choices": choices} | self._timings | more))

    def step(self, step: Step) -> bytes:
        if step.figures is not None:
            self._timings = {"timings": timings(step.figures)}
        return super().step(step)

    def _finish(self, reason: str, **more: Any) -> bytes:
        """The chunk that says why the answer is over."""
        raise NotImplementedError

    def end(self, ended: Ended) -> bytes:
        last = self.figures(ended)
        if not self._usage:
            return self._finish(FINISH[ended.why], **last) + DONE
        return self._finish(FINISH[ended.why]) + self._chunk(usage=openai_usage(ended), **last) + DONE

    def _whole(self, choice: dict[str, Any], ended: Ended, **more: Any) -> dict[str, Any]:
        return self.head | more | {"choices": [choice], "usage": openai_usage(ended)} | self.figures(ended)


class ChatWriter(ChunkWriter):
    """Writes a chat completion."""

    def __init__(self, request: ChatRequest, model: str) -> None:
        super().__init__(request, "chat.completion.chunk", "chatcmpl-", model)
        self._progress, self._log_probs = bool(request.return_progress), bool(request.logprobs)
        self._began = time.perf_counter()
        self._calls = -1

    def _delta(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        return self._chunk({"index": 0, "delta": delta, "finish_reason": finish}, **more)

    def waits(self, place: int, waiting: int, read: Reading | None) -> bytes:
        if place:
            return f": waiting {place} of {waiting}\n\n".encode()
        return f": reading {read.done} of {read.total}\n\n".encode() if read else super().waits(0, 0, None)

    def progress(self, read: Reading) -> bytes:
        if not self._progress:
            return b""
        ms = int((time.perf_counter() - self._began) * 1e3)
        found = {"total": read.total, "cache": 0, "processed": read.done, "time_ms": ms}
        return self._delta({}, prompt_progress=found)

    def begin(self, read: PrefillEvent | None) -> bytes:
        return self._delta({"role": "assistant", "content": ""})

    def part(self, part: Part) -> bytes:
        found = self._fields(part)
        choice = {"index": 0, "delta": found, "finish_reason": None, "logprobs": self._listed([part])}
        return self._chunk(choice) if found else b""

    def _listed(self, parts: Sequence[Part]) -> dict[str, Any] | None:
        return listed(parts) if self._log_probs else None

    def _fields(self, part: Part) -> dict[str, Any]:
        if isinstance(part, Text):
            return {"content": part.text}
        if isinstance(part, Thinking):
            return {"reasoning_content": part.text}
        call: dict[str, Any]
        if isinstance(part, CallStart):
            self._calls += 1
            call = {"id": new_id("call_"), "type": "function", "function": {"name": part.name, "arguments": ""}}
        elif isinstance(part, CallArguments):
            call = {"function": {"arguments": part.text}}
        else:
            return {}
        return {"tool_calls": [{"index": self._calls, **call}]}

    def _finish(self, reason: str, **more: Any) -> bytes:
        return self._delta({}, reason, **more)

    def whole(self, parts: Sequence[Part], ended: Ended) -> dict[str, Any]:
        text, thinking, calls = text_thinking_calls(parts)
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
        if thinking:
            message["reasoning_content"] = thinking
        if calls:
            functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
            message["tool_calls"] = [{"id": new_id("call_"), "type": "function", "function": one} for one in functions]
        choice = {"index": 0, "message": message, "finish_reason": FINISH[ended.why], "logprobs": self._listed(parts)}
        return self._whole(choice, ended, object="chat.completion")
