"""SGLang. Sources: docs.sglang.io (native API, production metrics); entrypoints/openai/protocol.py and utils.py of
sgl-project/sglang since pull request 33518 (`return_spec_tokens_details`, answered in `sglext`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dflash_core.knobs import Value
from dflash_tui.application.attach.engine import MORE, Engine, count, counts, fields, part
from dflash_tui.application.attach.figures import UNKNOWN, Figures, of_histogram
from dflash_tui.application.attach.prometheus import Metrics
from dflash_tui.application.attach.vllm import COUNTED


class SGLang(Engine):
    name = "SGLang"
    port = 30_000
    owner = "sglang"
    dialect = fields(*MORE)
    thinks = True
    extra: ClassVar[Mapping[str, Any]] = {"stream_options": COUNTED, "return_spec_tokens_details": True}
    counters = ("sglang:", "sglang:generation_tokens")
    cached = "sglang:token_usage"
    remedy = "releases of SGLang since August 2026 tell the drafts of an answer"

    def value(self, name: str, value: Value) -> Value:
        return -1 if name == "top_k" and not value else value  # 0 is refused there

    def drafts(self, found: Mapping[str, Any]) -> Figures:
        it = part(part(found, "sglext"), "spec_tokens_details")
        steps = count(it, "spec_verify_ct")
        if not steps:
            return UNKNOWN
        histogram = counts(it, "spec_correct_drafts_histogram")
        return (of_histogram(histogram) if histogram else UNKNOWN).with_(
            Figures(
                steps=steps,
                drafted=count(it, "spec_num_proposed_drafts"),
                accepted=count(it, "spec_num_correct_drafts"),
            )
        )

    def grown(self, before: Metrics, after: Metrics, tokens: int) -> Figures | None:
        return None  # its gauges are of several requests

    def recent(self, now: Metrics) -> str:
        length = now.get("sglang:spec_accept_length")
        return f"its answers lately took {length:.2f} tokens per step" if length else ""
