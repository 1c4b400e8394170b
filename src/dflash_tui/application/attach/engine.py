"""What is the same for all engines behind OpenAI's chat API. `engines.py` has what each does otherwise.

Field names: https://platform.openai.com/docs/api-reference/chat; `timings` and `prompt_progress` are llama.cpp's
(tools/server/README.md), which several engines have taken over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from dflash_core.events import Stop
from dflash_core.knobs import Knobs, Value
from dflash_core.memory import Component
from dflash_core.messages import Message
from dflash_tui.application.attach.figures import UNKNOWN, Figures, Metrics, Paths, added, figures_of, parse
from dflash_tui.application.attach.reading import count, objects, text
from dflash_tui.application.attach.server import AttachedServer, AttachError, error_text
from dflash_tui.application.attach.session import sent


def fields(*same: str, **other: str) -> Mapping[str, str]:
    """Knobs and the fields of a request that set them: those of every server, further ones, those of other names."""
    names = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "max_tokens", *same)
    return {name: name for name in names} | other


STOPS: Mapping[str, Stop] = {"length": "max tokens"}  # any other reason: the model has ended its message
OPENAI: Paths = {
    "prompt_tokens": ("timings.prompt_n+timings.cache_n", "usage.prompt_tokens"),
    "cached_tokens": ("timings.cache_n", "usage.prompt_tokens_details.cached_tokens"),
    "tokens": ("timings.predicted_n", "usage.completion_tokens"),
    "thinking_tokens": ("usage.completion_tokens_details.reasoning_tokens",),
    "decode": ("timings.predicted_ms",),
    "tokens_per_second": ("timings.predicted_per_second",),
    "drafted": ("timings.draft_n",),
    "accepted": ("timings.draft_n_accepted",),
}


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model of a server. `context`: its positions, 0 where that is not known. `loaded`: into memory."""

    name: str
    context: int = 0
    loaded: bool = True


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a stream. `calls`: what it has of calls, see `StreamedTurn.take`. `read`: tokens of the prompt that
    are read, and all of them."""

    text: str = ""
    thinking: str = ""
    calls: Sequence[Mapping[str, Any]] = ()
    read: tuple[int, int] | None = None
    figures: Figures = UNKNOWN
    stop: Stop | None = None
    error: str = ""


class Engine:
    """An engine of which only the API is known. Has no state."""

    name: ClassVar[str] = "OpenAI-compatible server"
    port: ClassVar[int] = 0  # the usual one
    owner: ClassVar[str] = ""  # what `owned_by` says in its list of models
    path: ClassVar[str] = "/v1/chat/completions"
    dialect: ClassVar[Mapping[str, str]] = fields()
    thinks: ClassVar[bool] = False  # a request may turn reasoning on and off
    reasoning: ClassVar[str] = "reasoning_content"  # the field of a message
    extra: ClassVar[Mapping[str, Any]] = {"stream_options": {"include_usage": True}}
    paths: ClassVar[Paths] = OPENAI
    second: ClassVar[float] = 1e3  # in the unit of its times
    counters: ClassVar[tuple[str, str]] = ("", "")  # prefix of its counters of drafts, and that of all tokens
    cached: ClassVar[str] = ""  # the gauge of the share of its cache that is used
    counts_drafts: ClassVar[bool] = False  # of every answer that had some
    remedy: ClassVar[str] = ""  # how to have it tell its drafts

    def recognises(self, server: AttachedServer, owner: str) -> bool:
        """Whether this engine answers there; `owner` as its list of models says."""
        return bool(self.owner) and owner == self.owner

    def models(self, server: AttachedServer, listed: Sequence[Mapping[str, Any]]) -> tuple[RemoteModel, ...]:
        """Its models; `listed` has those of OpenAI's list. Raises AttachError."""
        return tuple(RemoteModel(name, count(one, "max_model_len") or 0) for one in listed if (name := text(one, "id")))

    def memory(self, server: AttachedServer, model: str) -> tuple[tuple[Component, ...], str]:
        """What is known of its memory: components in bytes, and a sentence. Raises AttachError."""
        used = self.counters_now(server).values.get(self.cached) if self.cached else None
        if used is None:
            return (), f"{self.name} does not report its memory use"
        return (), f"{self.name} reports no bytes; {used:.0%} of its KV cache is used"

    @property
    def taken(self) -> frozenset[str]:
        """The knobs that it takes."""
        return frozenset(self.dialect) | ({"thinking"} if self.thinks else set())

    def body(self, model: str, messages: Sequence[Message], knobs: Knobs) -> dict[str, Any]:
        """A request for a streamed answer."""
        thinking = {"chat_template_kwargs": {"enable_thinking": knobs.thinking}} if self.thinks else {}
        head = {"model": model, "messages": sent(messages, self.reasoning), "stream": True}
        return {**head, **self.sampling(knobs), **thinking, **self.extra}

    def sampling(self, knobs: Knobs) -> dict[str, Value]:
        """The fields of a request that set knobs."""
        return {field: self.value(name, getattr(knobs, name)) for name, field in self.dialect.items()}

    def value(self, name: str, value: Value) -> Value:
        """A knob's value as this engine takes it."""
        return value

    def read(self, data: bytes) -> Chunk | None:
        """A piece of its stream; None for what is no object. Raises AttachError for an error of the engine."""
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            raise AttachError(f"{self.name}: a piece of its stream is not JSON; what has arrived stays") from None
        chunk = self.chunk(found) if isinstance(found, Mapping) else None
        if chunk is not None and chunk.error:
            raise AttachError(f"{self.name}: {chunk.error}")
        return chunk

    def chunk(self, found: Mapping[str, Any]) -> Chunk:
        """A piece of its stream."""
        choice = next(iter(objects(found, "choices")), {})
        reason = text(choice, "finish_reason")
        done, total = count(found, "prompt_progress.processed"), count(found, "prompt_progress.total")
        return Chunk(
            text(choice, "delta.content"),
            text(choice, "delta.reasoning_content") or text(choice, "delta.reasoning"),
            objects(choice, "delta.tool_calls"),
            (done, total) if done is not None and total is not None else None,
            figures_of(found, self.paths, self.second) if self.paths else UNKNOWN,
            STOPS.get(reason, "stop token") if reason else None,
            error_text({"error": found["error"]}) if found.get("error") else "",
        )

    def metrics(self, server: AttachedServer) -> Metrics | None:
        """Its counters now; None where it has none."""
        if self.counters[0]:
            with suppress(AttachError):
                return self.counters_now(server)
        return None

    def counters_now(self, server: AttachedServer) -> Metrics:
        """What its page of counters says. Raises AttachError."""
        return parse(server.fetch("/metrics").decode(errors="replace"))

    def grown(self, before: Metrics, after: Metrics, tokens: int) -> Figures | None:
        """What an answer of `tokens` tokens added to its counters; None where others may have added too."""
        return added(before, after, *self.counters, tokens)

    def recent(self, now: Metrics) -> str:
        """A sentence on its drafts lately, for answers of which it tells none."""
        return ""

    def tokens(self, server: AttachedServer, model: str, text: str) -> int:
        """How many tokens a text has; 0 where it does not tell. Raises AttachError."""
        return 0

    def preview(self, server: AttachedServer, model: str, messages: Sequence[Message], knobs: Knobs) -> str:
        """The prompt for these messages. Raises AttachError."""
        raise AttachError(f"{self.name} does not show the prompt that it makes of messages")
