"""llama-server of llama.cpp. Fields: tools/server/README.md of build 10434, and answers of that build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dflash_core.knobs import Knobs
from dflash_core.memory import Component
from dflash_core.messages import Message
from dflash_tui.application.attach.conversation import sent
from dflash_tui.application.attach.engine import Engine, RemoteModel, count, fields, objects, part, text
from dflash_tui.application.attach.server import AttachedServer


class LlamaServer(Engine):
    name = "llama-server"
    port = 8080
    owner = "llamacpp"
    dialect = fields("top_k", "min_p", "ignore_eos", repetition_penalty="repeat_penalty")
    thinks = True
    counts_drafts = True
    extra: ClassVar[Mapping[str, Any]] = {**Engine.extra, "return_progress": True, "timings_per_token": True}
    counters = ("llamacpp:spec_decode_num_", "llamacpp:tokens_predicted")
    remedy = "start llama-server with --metrics for steps and acceptance by depth"

    def models(self, server: AttachedServer, listed: Sequence[Mapping[str, Any]]) -> tuple[RemoteModel, ...]:
        found = server.json("/props")  # also refuses a wrong key, which the list of models does not
        context = count(part(found, "default_generation_settings"), "n_ctx") or 0
        return tuple(
            RemoteModel(text(one, "id"), count(part(one, "meta"), "n_ctx") or context)
            for one in listed
            if text(one, "id")
        )

    def memory(self, server: AttachedServer, model: str) -> tuple[tuple[Component, ...], str]:
        listed = objects(server.json("/v1/models"), "data")
        sizes = [size for one in listed if text(one, "id") == model and (size := count(part(one, "meta"), "size"))]
        weights = tuple(Component("weights", size, "by the size of the model's file") for size in sizes[:1])
        return weights, "llama-server tells the size of the weights; its caches and buffers are in its log"

    def tokens(self, server: AttachedServer, model: str, text: str) -> int:
        found = server.json("/tokenize", {"content": text}).get("tokens")
        return len(found) if isinstance(found, list) else 0

    def preview(self, server: AttachedServer, model: str, messages: Sequence[Message], knobs: Knobs) -> str:
        variables = {"enable_thinking": knobs.thinking}
        body = {"messages": sent(messages), "chat_template_kwargs": variables}
        return text(server.json("/apply-template", body), "prompt")
