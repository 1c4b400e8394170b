"""Ollama, by its own API. Sources: docs/api.md and docs.ollama.com/api/ps; times are in nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from dflash_core.knobs import Knobs
from dflash_core.memory import Component
from dflash_core.messages import Message
from dflash_tui.application.attach.engine import (
    STOPS,
    Chunk,
    Engine,
    RemoteModel,
    count,
    fields,
    number,
    objects,
    part,
    text,
)  # fmt: skip
from dflash_tui.application.attach.figures import UNKNOWN, Figures
from dflash_tui.application.attach.server import AttachedServer, AttachError, said


class Ollama(Engine):
    name = "Ollama"
    port = 11_434
    path = "/api/chat"
    dialect = fields("top_k", "min_p", max_tokens="num_predict", repetition_penalty="repeat_penalty")
    thinks = True
    remedy = "Ollama tells no drafts"

    def recognises(self, server: AttachedServer, owner: str) -> bool:
        with suppress(AttachError):
            return bool(text(server.json("/api/version"), "version"))
        return False

    def models(self, server: AttachedServer, listed: Sequence[Mapping[str, Any]]) -> tuple[RemoteModel, ...]:
        running = {text(one, "name"): count(one, "context_length") or 0 for one in _running(server)}
        names = [text(one, "name") for one in objects(server.json("/api/tags"), "models")]
        return tuple(RemoteModel(name, running.get(name, 0), name in running) for name in names if name)

    def memory(self, server: AttachedServer, model: str) -> tuple[tuple[Component, ...], str]:
        for one in _running(server):
            size, card = number(one, "size"), number(one, "size_vram")
            if text(one, "name") == model and size is not None:
                on_card = round(card or 0)
                parts = (("on the card", on_card), ("main memory", round(size) - on_card))
                shown = tuple(Component(name, held, "with its caches") for name, held in parts if held > 0)
                return shown, "Ollama tells what the loaded model takes"
        return (), "Ollama has not loaded the model yet; it does with the next message"

    def body(self, model: str, messages: Sequence[Message], knobs: Knobs) -> dict[str, Any]:
        return {
            "model": model,
            "messages": [_message(one) for one in messages],
            "stream": True,
            "think": knobs.thinking,
            "options": self.sampling(knobs),
        }

    def chunk(self, found: Mapping[str, Any]) -> Chunk:
        message, done = part(found, "message"), found.get("done") is True
        return Chunk(
            text(message, "content"),
            text(message, "thinking"),
            # Each whole, in a piece of its own or with others; some releases number them within the piece.
            [{"function": part(one, "function")} for one in objects(message, "tool_calls")],
            figures=_figures(found) if done else UNKNOWN,
            stop=STOPS.get(text(found, "done_reason"), "stop token") if done else None,
            error=said(found) if found.get("error") else "",
        )


def _message(one: Message) -> dict[str, Any]:
    """A message in its form: arguments of calls are objects, and a result names its tool."""
    fields: dict[str, Any] = {"role": one.role, "content": one.content}
    fields |= {"thinking": one.thinking} if one.thinking else {}
    if one.calls:
        functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in one.calls]
        fields["tool_calls"] = [{"function": function} for function in functions]
    return fields | ({"tool_name": one.name} if one.role == "tool" else {})


def _running(server: AttachedServer) -> list[Mapping[str, Any]]:
    return objects(server.json("/api/ps"), "models")


def _figures(found: Mapping[str, Any]) -> Figures:
    spent = number(found, "eval_duration")
    read = [number(found, name) for name in ("load_duration", "prompt_eval_duration")]
    return Figures(
        prompt_tokens=count(found, "prompt_eval_count"),
        tokens=count(found, "eval_count"),
        first_token_ms=sum(one or 0 for one in read) / 1e6 if any(read) else None,
        decode_s=spent / 1e9 if spent is not None else None,
    )
