"""vLLM. Sources: docs/usage/metrics.md, docs/features/per_request_metrics.md and pull requests 46768 (times of a
request) and 48915 (drafts of a request) of vllm-project/vllm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dflash_tui.application.attach.engine import MORE, Engine, count, counts, fields, number, part
from dflash_tui.application.attach.figures import UNKNOWN, Figures, of_histogram, of_steps
from dflash_tui.application.attach.server import AttachedServer

COUNTED = {"include_usage": True, "continuous_usage_stats": True}


class VLLM(Engine):
    name = "vLLM"
    port = 8000
    owner = "vllm"
    dialect = fields(*MORE)
    thinks = True
    reasoning = "reasoning"
    extra: ClassVar[Mapping[str, Any]] = {"stream_options": COUNTED}
    counters = ("vllm:spec_decode_num_", "vllm:generation_tokens")
    cached = "vllm:kv_cache_usage_perc"
    remedy = "start vLLM with --per-request-spec-decode-metrics detailed for steps and acceptance of each answer"

    def drafts(self, found: Mapping[str, Any]) -> Figures:
        metrics = part(found, "metrics")
        ms, rate = number(metrics, "generation_time_ms"), number(metrics, "tokens_per_second")
        first = number(metrics, "time_to_first_token_ms")
        times = Figures(first_token_ms=first, decode_s=ms / 1e3 if ms is not None else None, tokens_per_second=rate)
        it = part(metrics, "speculative_decoding")
        if count(it, "num_spec_steps") is None:
            return times
        accepted, drafted = counts(it, "per_step_accepted"), counts(it, "per_step_drafted")
        each = of_steps(accepted, drafted) if accepted and len(accepted) == len(drafted) else UNKNOWN
        histogram = counts(it, "acceptance_histogram")
        totals = Figures(
            steps=count(it, "num_spec_steps"),
            drafted=count(it, "num_draft_tokens"),
            accepted=count(it, "num_accepted_draft_tokens"),
        )
        return times.with_(of_histogram(histogram) if histogram else UNKNOWN).with_(each).with_(totals)

    def tokens(self, server: AttachedServer, model: str, text: str) -> int:
        return count(server.json("/tokenize", {"model": model, "prompt": text}), "count") or 0
