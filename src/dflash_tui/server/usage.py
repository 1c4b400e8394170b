"""The figures of an answer: usage in each dialect, timings, and the extension `dflash`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dflash_core.turn_stats import TurnStats
from dflash_tui.server.updates import Ended


def openai_usage(ended: Ended) -> dict[str, Any]:
    """`usage` of chat completions and completions; all is 0 where there is no first token."""
    stats, answer = (ended.report.stats, ended.tokens) if ended.report is not None else (None, 0)
    prompt = stats.prompt_tokens if stats else 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": stats.reused_tokens if stats else 0},
        "completion_tokens_details": {
            "reasoning_tokens": min(stats.thinking.tokens, answer) if stats else 0,
            "accepted_prediction_tokens": stats.accepted if stats else 0,
            "rejected_prediction_tokens": stats.verified - stats.accepted if stats else 0,
        },
    }


def responses_usage(ended: Ended) -> dict[str, Any]:
    """`usage` of responses."""
    usage = openai_usage(ended)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    }


def anthropic_usage(ended: Ended) -> dict[str, int]:
    """`usage` of messages."""
    usage = openai_usage(ended)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return anthropic_counts(usage["prompt_tokens"], cached, usage["completion_tokens"])


def anthropic_counts(prompt: int, cached: int, answer: int) -> dict[str, int]:
    """The fields of Anthropic's usage: what was reused is not part of the input."""
    return {
        "input_tokens": prompt - cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached,
        "output_tokens": answer,
    }  # fmt: skip


def timings(stats: TurnStats) -> dict[str, Any]:
    """The figures under the names that local model servers use."""
    found = dict[str, Any](stats.timings())
    read, predicted = found["prompt_n"], found["predicted_n"] - 1
    return found | {
        "cache_n": stats.reused_tokens,
        "prompt_per_token_ms": stats.ttft_ms / read if read else 0.0,
        "predicted_per_token_ms": stats.decode_s * 1e3 / predicted if predicted else 0.0,
        "draft_rounds": stats.steps,
        "draft_kind": "+".join(one.kind for one in stats.drafters),
    }


def figures(ended: Ended, *, detail: bool = False) -> dict[str, Any]:
    """What each dialect's answer ends with. `timings`, and `dflash`: what ran, why it stopped, how well drafts were
    accepted; `detail` has all figures."""
    report, queue_ms = ended.report, round(ended.queue_ms, 2)
    if report is None:
        return {"dflash": {"stop": "cancelled", "notes": ended.notes, "queue_ms": queue_ms}}
    stats = report.stats
    found: dict[str, Any] = {
        "seed": report.knobs.seed,
        "mode": report.mode,
        "reason": report.reason,
        "stop": "stop string" if ended.why == "stop string" else report.stop,
        "drafter": "+".join(one.kind for one in stats.drafters),
        "kv": stats.kv,
        "queue_ms": queue_ms,
        "ttft_ms": round(ended.ttft_ms, 2),
        "acceptance_length": round(stats.acceptance_length, 4),
        "accept_rate_by_depth": [round(rate, 4) for rate in stats.accept_rate_by_depth],
        "guards": [event.summary for event in report.guards],
        "notes": [*ended.notes, *report.notes],
    }
    if detail:
        found |= {
            "drafted_by_depth": stats.drafted_by_depth,
            "nodes_per_step": stats.nodes,
            "lengths": stats.lengths,
            "stage_ms": {name: round(ms, 4) for name, ms in asdict(stats.stage_ms).items()},
            "knobs": report.knobs.to_dict(),
        }
    return {"dflash": found, "timings": timings(stats)}
