"""The engines that can be attached to, by what they do otherwise; of the last one only the API is known.

Sources: llama-server: tools/server/README.md of build 10434, and answers of that build. vLLM: docs/usage/metrics.md,
docs/features/per_request_metrics.md, pull requests 46768 (times of a request) and 48915 (drafts of a request). SGLang:
docs.sglang.io, entrypoints/openai/protocol.py since pull request 33518. NInfer: docs/serving.md of Neroued/ninfer.
LM Studio: lmstudio-ai/docs, 1_developer/2_rest/endpoints.mdx (API v0, whose `stats` have times), and its changelog of
0.3.10 (draft counts, in `usage` since). Ollama: docs/api.md and docs.ollama.com/api/ps, times in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from dflash_core.knobs import Knobs, Value
from dflash_core.memory import Component
from dflash_core.messages import Message
from dflash_tui.application.attach.engine import OPENAI, STOPS, Chunk, Engine, RemoteModel, fields
from dflash_tui.application.attach.figures import UNKNOWN, Figures, Metrics, Paths, figures_of
from dflash_tui.application.attach.reading import count, number, objects, part, text
from dflash_tui.application.attach.server import AttachedServer, AttachError, error_text
from dflash_tui.application.attach.session import sent

MORE = ("top_k", "min_p", "repetition_penalty", "ignore_eos")
"""Knobs that most engines take by their own names."""
TIMED = {**Engine.extra, "return_progress": True, "timings_per_token": True}
COUNTED = {"include_usage": True, "continuous_usage_stats": True}


def _within(place: str, **names: str) -> Paths:
    """Paths of figures that are fields of one object."""
    return {figure: (f"{place}.{name}",) for figure, name in names.items()}


class LlamaServer(Engine):
    name = "llama-server"
    port = 8080
    owner = "llamacpp"
    dialect = fields("top_k", "min_p", "ignore_eos", repetition_penalty="repeat_penalty")
    thinks = True
    counts_drafts = True
    extra: ClassVar[Mapping[str, Any]] = TIMED
    counters = ("llamacpp:spec_decode_num_", "llamacpp:tokens_predicted")
    remedy = "start llama-server with --metrics for steps and acceptance by depth"

    def models(self, server: AttachedServer, listed: Sequence[Mapping[str, Any]]) -> tuple[RemoteModel, ...]:
        found = server.json("/props")  # also refuses a wrong key, which the list of models does not
        context = count(found, "default_generation_settings.n_ctx") or 0
        return tuple(
            RemoteModel(name, count(one, "meta.n_ctx") or context) for one in listed if (name := text(one, "id"))
        )

    def memory(self, server: AttachedServer, model: str) -> tuple[tuple[Component, ...], str]:
        listed = objects(server.json("/v1/models"), "data")
        sizes = [size for one in listed if text(one, "id") == model and (size := count(one, "meta.size"))]
        weights = tuple(Component("weights", size, "by the size of the model's file") for size in sizes[:1])
        return weights, "llama-server reports the size of the weights; its caches and buffers are in its log"

    def tokens(self, server: AttachedServer, model: str, text: str) -> int:
        found = server.json("/tokenize", {"content": text}).get("tokens")
        return len(found) if isinstance(found, list) else 0

    def preview(self, server: AttachedServer, model: str, messages: Sequence[Message], knobs: Knobs) -> str:
        variables = {"enable_thinking": knobs.thinking}
        body = {"messages": sent(messages), "chat_template_kwargs": variables}
        return text(server.json("/apply-template", body), "prompt")


class VLLM(Engine):
    name = "vLLM"
    port = 8000
    owner = "vllm"
    dialect = fields(*MORE)
    thinks = True
    reasoning = "reasoning"
    extra: ClassVar[Mapping[str, Any]] = {"stream_options": COUNTED}
    paths: ClassVar[Paths] = {
        **OPENAI,
        **_within(
            "metrics", first_token="time_to_first_token_ms", decode="generation_time_ms",
            tokens_per_second="tokens_per_second",
        ),
        **_within(
            "metrics.speculative_decoding", histogram="acceptance_histogram", accepted_each="per_step_accepted",
            drafted_each="per_step_drafted", steps="num_spec_steps", drafted="num_draft_tokens",
            accepted="num_accepted_draft_tokens",
        ),
    }  # fmt: skip
    counters = ("vllm:spec_decode_num_", "vllm:generation_tokens")
    cached = "vllm:kv_cache_usage_perc"
    remedy = "start vLLM with --per-request-spec-decode-metrics detailed for steps and acceptance of each answer"

    def tokens(self, server: AttachedServer, model: str, text: str) -> int:
        return count(server.json("/tokenize", {"model": model, "prompt": text}), "count") or 0


class SGLang(Engine):
    name = "SGLang"
    port = 30_000
    owner = "sglang"
    dialect = fields(*MORE)
    thinks = True
    extra: ClassVar[Mapping[str, Any]] = {"stream_options": COUNTED, "return_spec_tokens_details": True}
    paths: ClassVar[Paths] = {
        **OPENAI,
        **_within(
            "sglext.spec_tokens_details", histogram="spec_correct_drafts_histogram", steps="spec_verify_ct",
            drafted="spec_num_proposed_drafts", accepted="spec_num_correct_drafts",
        ),
    }  # fmt: skip
    counters = ("sglang:", "sglang:generation_tokens")
    cached = "sglang:token_usage"
    remedy = "SGLang reports the drafts of an answer since its releases of August 2026"

    def value(self, name: str, value: Value) -> Value:
        return -1 if name == "top_k" and not value else value  # 0 is refused there

    def grown(self, before: Metrics, after: Metrics, tokens: int) -> Figures | None:
        return None  # its gauges are of several requests

    def recent(self, now: Metrics) -> str:
        length = now.values.get("sglang:spec_accept_length")
        return f"its answers lately took {length:.2f} tokens per step" if length else ""


class NInfer(Engine):
    """Refuses unknown variables of a template, and penalties of repetition."""

    name = "NInfer"
    port = 8080
    owner = "ninfer"
    dialect = fields("top_k", "min_p")
    thinks = True
    counts_drafts = True
    extra: ClassVar[Mapping[str, Any]] = TIMED
    remedy = "NInfer writes acceptance by depth into its log of requests only"


class LMStudio(Engine):
    name = "LM Studio"
    port = 1234
    path = "/api/v0/chat/completions"
    dialect = fields("top_k", repetition_penalty="repeat_penalty")
    second = 1.0
    paths: ClassVar[Paths] = {
        **OPENAI,
        **_within(
            "stats", first_token="time_to_first_token", decode="generation_time", tokens_per_second="tokens_per_second"
        ),
        "drafted": ("stats.total_draft_tokens_count", "usage.total_draft_tokens_count"),
        "accepted": ("stats.accepted_draft_tokens_count", "usage.accepted_draft_tokens_count"),
    }
    remedy = "LM Studio reports drafts where a draft model is loaded, but neither steps nor depths"

    def recognises(self, server: AttachedServer, owner: str) -> bool:
        with suppress(AttachError):
            return any("compatibility_type" in one for one in self._listed(server))
        return False

    def models(self, server: AttachedServer, listed: Sequence[Mapping[str, Any]]) -> tuple[RemoteModel, ...]:
        return tuple(
            RemoteModel(text(one, "id"), count(one, "loaded_context_length") or 0, text(one, "state") == "loaded")
            for one in self._listed(server)
            if text(one, "type") in ("llm", "vlm")
        )

    def _listed(self, server: AttachedServer) -> list[Mapping[str, Any]]:
        return objects(server.json("/api/v0/models"), "data")


class Ollama(Engine):
    """Has an API of its own."""

    name = "Ollama"
    port = 11_434
    path = "/api/chat"
    dialect = fields("top_k", "min_p", max_tokens="num_predict", repetition_penalty="repeat_penalty")
    thinks = True
    second = 1e9
    paths: ClassVar[Paths] = {
        "prompt_tokens": ("prompt_eval_count",),
        "tokens": ("eval_count",),
        "first_token": ("load_duration+prompt_eval_duration",),
        "decode": ("eval_duration",),
    }
    remedy = "Ollama reports no drafts"

    def recognises(self, server: AttachedServer, owner: str) -> bool:
        with suppress(AttachError):
            return bool(text(server.json("/api/version"), "version"))
        return False

    def models(self, server: AttachedServer, listed: Sequence[Mapping[str, Any]]) -> tuple[RemoteModel, ...]:
        running = {text(one, "name"): count(one, "context_length") or 0 for one in self._running(server)}
        names = [text(one, "name") for one in objects(server.json("/api/tags"), "models")]
        return tuple(RemoteModel(name, running.get(name, 0), name in running) for name in names if name)

    def memory(self, server: AttachedServer, model: str) -> tuple[tuple[Component, ...], str]:
        for one in self._running(server):
            size, card = number(one, "size"), number(one, "size_vram")
            if text(one, "name") == model and size is not None:
                on_card = round(card or 0)
                parts = (("on the card", on_card), ("main memory", round(size) - on_card))
                shown = tuple(Component(name, bytes, "with its caches") for name, bytes in parts if bytes > 0)
                return shown, "Ollama reports the memory of the loaded model"
        return (), "Ollama has not loaded the model yet; the next message loads it"

    def _running(self, server: AttachedServer) -> list[Mapping[str, Any]]:
        return objects(server.json("/api/ps"), "models")

    def body(self, model: str, messages: Sequence[Message], knobs: Knobs) -> dict[str, Any]:
        return {
            "model": model, "messages": [_message(one) for one in messages], "stream": True, "think": knobs.thinking,
            "options": self.sampling(knobs),
        }  # fmt: skip

    def chunk(self, found: Mapping[str, Any]) -> Chunk:
        done = found.get("done") is True
        return Chunk(
            text(found, "message.content"),
            text(found, "message.thinking"),
            # Each whole, in a piece of its own or with others; some releases number them within the piece.
            [{"function": part(one, "function")} for one in objects(found, "message.tool_calls")],
            figures=figures_of(found, self.paths, self.second) if done else UNKNOWN,
            stop=STOPS.get(text(found, "done_reason"), "stop token") if done else None,
            error=error_text(found) if found.get("error") else "",
        )


def _message(one: Message) -> dict[str, Any]:
    """A message in Ollama's form: arguments of calls are objects, and a result names its tool."""
    fields: dict[str, Any] = {"role": one.role, "content": one.content}
    fields |= {"thinking": one.thinking} if one.thinking else {}
    if one.calls:
        functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in one.calls]
        fields["tool_calls"] = [{"function": function} for function in functions]
    return fields | ({"tool_name": one.name} if one.role == "tool" else {})


class Own(Engine):
    """Our own server; its session has all panels."""

    name = owner = "dflash-tui"
    port = 8080
    paths: ClassVar[Paths] = {}  # the record of an answer has its figures


ENGINES: tuple[Engine, ...] = (Own(), LlamaServer(), VLLM(), SGLang(), NInfer(), Ollama(), LMStudio(), Engine())


def usual_urls() -> dict[str, str]:
    """Addresses on this machine, and what usually answers there."""
    names: dict[str, list[str]] = {}
    for engine in ENGINES:
        if engine.port:
            names.setdefault(f"http://127.0.0.1:{engine.port}", []).append(engine.name)
    return {url: ", ".join(found) for url, found in names.items()}
