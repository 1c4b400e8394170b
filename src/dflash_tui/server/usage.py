"""The figures of an answer: usage in each dialect, timings, and the extension `dflash`."""

from __future__ import annotations

from typing import Any

from dflash_core.turn_stats import TurnReport
from dflash_tui.server.updates import Ended

_LISTED = ("draft", "tree", "verify", "accept", "commit", "host")


def _counts(ended: Ended) -> tuple[int, int, int]:
    """Tokens of the prompt, how many of them were not read again, and tokens of the answer that count."""
    if ended.report is None:
        return 0, 0, 0
    stats = ended.report.stats
    return stats.prompt_tokens, stats.reused_tokens, ended.tokens


def openai_usage(ended: Ended) -> dict[str, Any]:
    """`usage` of chat completions and completions."""
    prompt, cached, answer = _counts(ended)
    stats = ended.report.stats if ended.report is not None else None
    accepted, verified = (stats.accepted, stats.verified) if stats is not None else (0, 0)
    details = {
        "reasoning_tokens": min(stats.thinking.tokens, answer) if stats is not None else 0,
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": verified - accepted,
    }
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": details,
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
    """`usage` of messages: what was reused is not part of the input."""
    prompt, cached, answer = _counts(ended)
    return anthropic_counts(prompt, cached, answer)


def anthropic_counts(prompt: int, cached: int, answer: int) -> dict[str, int]:
    """The fields of Anthropic's usage."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": answer,
    }


def timings(report: TurnReport) -> dict[str, Any]:
    """The figures under the names that local model servers use."""
    stats, found = report.stats, dict[str, Any](report.timings())
    read, predicted = found["prompt_n"], found["predicted_n"] - 1
    kinds = "+".join(one.kind for one in stats.drafters)
    return found | {
        "cache_n": stats.reused_tokens,
        "prompt_per_token_ms": stats.ttft_ms / read if read else 0.0,
        "predicted_per_token_ms": stats.decode_s * 1e3 / predicted if predicted else 0.0,
        "draft_rounds": stats.steps,
        "draft_kind": kinds,
    }


def extension(ended: Ended, *, detail: bool = False) -> dict[str, Any]:
    """The object `dflash`: what ran, why it stopped, how well drafts were accepted; `detail` has all figures."""
    notes = list(ended.notes)
    report = ended.report
    if report is None:
        return {"stop": "cancelled", "notes": notes, "queue_ms": round(ended.queue_ms, 2)}
    stats = report.stats
    found: dict[str, Any] = {
        "seed": report.knobs.seed,
        "mode": report.mode,
        "reason": report.reason,
        "stop": "stop string" if ended.why == "stop string" else report.stop,
        "drafter": "+".join(one.kind for one in stats.drafters),
        "kv": stats.kv,
        "queue_ms": round(ended.queue_ms, 2),
        "ttft_ms": round(ended.ttft_ms, 2),
        "acceptance_length": round(stats.acceptance_length, 4),
        "accept_rate_by_depth": [round(rate, 4) for rate in stats.accept_rate_by_depth],
        "guards": [event.summary for event in report.guards],
        "notes": [*notes, *report.notes],
    }
    if detail:
        found |= {
            "drafted_by_depth": list(stats.drafted_by_depth),
            "nodes_per_step": list(stats.nodes),
            "lengths": list(stats.lengths),
            "stage_ms": {name: round(getattr(stats.stage_ms, name), 4) for name in _LISTED},
            "knobs": report.knobs.to_dict(),
        }
    return found


def figures(ended: Ended, *, detail: bool = False) -> dict[str, Any]:
    """What each dialect's answer ends with: `timings` and `dflash`."""
    found: dict[str, Any] = {"dflash": extension(ended, detail=detail)}
    return found | ({"timings": timings(ended.report)} if ended.report is not None else {})
