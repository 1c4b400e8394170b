"""POST /v1/chat/completions: its requests and answers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dflash_core.events import PrefillEvent
from dflash_core.knobs import Value
from dflash_core.log_probs import MAX_TOP
from dflash_core.messages import Call, Message, arguments_of
from dflash_core.text.tool_calls.parts import CallArguments, Part, Text
from dflash_tui.server.asked import Asked, Count, Function, Request, Stop, Stops, ThinkingSwitch
from dflash_tui.server.drawn_tokens import listed
from dflash_tui.server.parts import new_id, role_of, text_of
from dflash_tui.server.request_error import invalid
from dflash_tui.server.updates import Ended, Reading, Step, Why
from dflash_tui.server.writer import Kind, Piece, Writer, event, openai_usage, timings

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
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

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
    _check_last(request)
    return request.asked(
        functions=_functions(request.tools),
        choice=request.tool_choice,
        limits=(request.max_tokens, request.max_completion_tokens),
        stop=request.stop,
        form=(request.response_format, "response_format"),
        effort=(request.reasoning_effort, "reasoning_effort"),
        thinking=_switched(request.chat_template_kwargs),
        messages=tuple(_message(one, f"messages[{at}]") for at, one in enumerate(request.messages)),
        parallel=request.parallel_tool_calls is not False,
        log_probs=top if request.logprobs else None,
        events=request.switch("events"),
        timings=request.timings_per_token is True,
    )


def _check_last(request: ChatRequest) -> None:
    """Raise RequestError where the last message is not to be answered as it is: the user's with a new message, the
    assistant's by going on with it."""
    goes_on = bool(request.messages) and request.messages[-1].role == "assistant"
    if request.continue_final_message is not None and request.continue_final_message != goes_on:
        place, last = "continue_final_message", "is the assistant's" if goes_on else "is not the assistant's"
        raise invalid(f"{place} is {str(not goes_on).lower()}, and the last message {last}; leave it out", place)
    if request.add_generation_prompt is not None and request.add_generation_prompt == goes_on:
        place, does = "add_generation_prompt", "goes on with" if goes_on else "answers"
        raise invalid(
            f"{place} is {str(goes_on).lower()}, and the server {does} the last message of this role; leave it out",
            place,
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
        self.head: dict[str, Any] = {"id": new_id(prefix), "object": kind, "created": int(time.time()), "model": model}
        self._usage = bool(request.stream_options and request.stream_options.include_usage)
        self.all_parts: Sequence[Part] = ()  # where it is not streamed
        self._timings: dict[str, Any] = {}  # of each chunk, where they are requested

    def _chunk(self, *choices: dict[str, Any], **more: Any) -> bytes:
        return event(msgspec.json.encode(self.head | {"choices": choices} | self._timings | more))

    def step(self, step: Step) -> bytes:
        if step.figures is not None:
            self._timings = {"timings": timings(step.figures)}
        return super().step(step)

    def whole(self, parts: Sequence[Part], ended: Ended) -> dict[str, Any]:
        self.all_parts = parts
        return super().whole(parts, ended)

    def last(self, reason: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The choice that says why the answer is over, of the stream and of the answer that is not streamed."""
        raise NotImplementedError

    def end(self, ended: Ended) -> bytes:
        found, figures, usage = self.over(), self.figures(ended), openai_usage(ended)
        choice, whole = self.last(FINISH[ended.why])
        self.answer = self.head | {"object": self.head["object"].removesuffix(".chunk"), "choices": [whole]}
        self.answer |= {"usage": usage, **figures}
        if not self._usage:
            return found + self._chunk(choice, **figures) + DONE
        return found + self._chunk(choice) + self._chunk(usage=usage, **figures) + DONE


class ChatWriter(ChunkWriter):
    """Writes a chat completion."""

    def __init__(self, request: ChatRequest, model: str) -> None:
        super().__init__(request, "chat.completion.chunk", "chatcmpl-", model)
        self._progress, self._log_probs = bool(request.return_progress), bool(request.logprobs)
        self._began = time.perf_counter()
        self._texts_of = {"text": "", "thinking": ""}
        self._calls: list[dict[str, Any]] = []

    def _delta(self, delta: dict[str, Any], **more: Any) -> bytes:
        return self._chunk({"index": 0, "delta": delta, "finish_reason": None}, **more)

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

    def open(self, kind: Kind, name: str) -> bytes:
        if kind != "call":
            return b""
        self._calls.append({"id": new_id("call_"), "type": "function", "function": {"name": name, "arguments": ""}})
        return self._chunk(self._choice({"tool_calls": [{"index": len(self._calls) - 1, **self._calls[-1]}]}))

    def more(self, part: Piece) -> bytes:
        if isinstance(part, CallArguments):
            call = {"index": len(self._calls) - 1, "function": {"arguments": part.text}}
            return self._chunk(self._choice({"tool_calls": [call]}))
        field = "content" if isinstance(part, Text) else "reasoning_content"
        return self._chunk(self._choice({field: part.text}, [part]))

    def close(self, kind: Kind, text: str, *, cut: bool) -> bytes:
        if kind == "call":
            self._calls[-1]["function"]["arguments"] = text
        else:
            self._texts_of[kind] += text
        return b""

    def _choice(self, delta: dict[str, Any], parts: Sequence[Part] = ()) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "finish_reason": None, "logprobs": self._listed(parts)}

    def _listed(self, parts: Sequence[Part]) -> dict[str, Any] | None:
        return listed(parts) if self._log_probs else None

    def last(self, reason: str) -> tuple[dict[str, Any], dict[str, Any]]:
        text = self._texts_of["text"]
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not self._calls else None}
        if thinking := self._texts_of["thinking"]:
            message["reasoning_content"] = thinking
        if self._calls:
            message["tool_calls"] = self._calls
        choice = {"index": 0, "finish_reason": reason}
        return choice | {"delta": {}}, choice | {"message": message, "logprobs": self._listed(self.all_parts)}
