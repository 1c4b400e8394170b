"""Counters for Prometheus, text format 0.0.4. Those of speculation end as vLLM's, so its dashboards fit."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from dflash_core.turn_stats import TurnReport
from dflash_tui.server.job import Job
from dflash_tui.server.updates import Ended, Failed

TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "dflash:"
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_OF_ANSWERS: Mapping[str, tuple[str, Callable[[TurnReport], float]]] = {
    "spec_decode_num_drafts_total": ("Steps that verified drafts.", lambda it: sum(it.stats.nodes[1:])),
    "spec_decode_num_draft_tokens_total": (
        "Draft tokens that were verified, alternatives included.", lambda it: it.stats.verified),
    "spec_decode_num_accepted_tokens_total": (
        "Draft tokens that the target agreed with.", lambda it: it.stats.accepted),
    "prompt_tokens_total": ("Tokens of prompts.", lambda it: it.stats.prompt_tokens),
    "prompt_tokens_cached_total": ("Tokens of prompts that were not read again.", lambda it: it.stats.reused_tokens),
    "prompt_seconds_total": ("Time of reading prompts.", lambda it: it.stats.ttft_ms / 1e3),
    "generation_tokens_total": ("Tokens of answers.", lambda it: len(it.tokens)),
    "generation_seconds_total": ("Time of steps.", lambda it: it.stats.decode_s),
}  # fmt: skip
"""What each answer adds to a counter."""
_COUNTERS: Mapping[str, str] = {name: help for name, (help, _) in _OF_ANSWERS.items()} | {
    "spec_decode_num_accepted_tokens_per_pos_total": "Steps whose accepted path reached a position of the draft.",
    "spec_decode_num_drafted_tokens_per_pos_total": "Steps that drafted a position.",
    "requests_total": "Responses by path and status.",
    "request_success_total": "Answers by what ended them.",
    "requests_cancelled_total": "Answers whose client went away.",
    "requests_failed_total": "Answers that the engine failed at.",
    "guard_actions_total": "Interventions of guards.",
    "grammar_compile_seconds_total": "Time of compiling schemas and grammars.",
}
_HISTOGRAMS: Mapping[str, str] = {
    "time_to_first_token_seconds": "From the request to its first token.",
    "inter_token_latency_seconds": "Mean time between tokens of an answer.",
    "request_queue_time_seconds": "Time in the queue.",
    "e2e_request_latency_seconds": "From the request to the end of its response.",
}
PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
)  # fmt: skip
"""Paths that are counted by name; all else counts as "other"."""


class Metrics:
    """Counts since the start. Thread-safe."""

    def __init__(self, depth: int) -> None:
        """`depth`: positions that the drafter proposes tokens for."""
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, float]] = {name: defaultdict(int) for name in _COUNTERS}
        self._histograms: dict[str, list[int]] = {name: [0] * (len(_SECONDS) + 1) for name in _HISTOGRAMS}
        self._sums = dict.fromkeys(_HISTOGRAMS, 0.0)
        self.acceptance_length = 0.0
        for name, counts in self._counts.items():
            if name.endswith("per_pos_total"):
                counts.update({f'{{position="{at}"}}': 0 for at in range(depth)})
            elif name not in ("requests_total", "request_success_total", "guard_actions_total"):
                counts[""] = 0

    def request(self, path: str, status: int, seconds: float) -> None:
        """A response is over."""
        path = path if path in PATHS else "other"
        with self._lock:
            self._add("requests_total", 1, f'{{path="{path}",status="{status}"}}')
            self._took("e2e_request_latency_seconds", seconds)

    def compiled(self, seconds: float) -> None:
        """A schema or grammar was compiled, or refused."""
        with self._lock:
            self._add("grammar_compile_seconds_total", seconds)

    def ended(self, job: Job, last: Ended | Failed) -> None:
        """An answer is over."""
        with self._lock:
            if isinstance(last, Failed):
                self._add("requests_failed_total", 1)
                return
            if last.why == "cancelled":
                self._add("requests_cancelled_total", 1)
            else:
                self._add("request_success_total", 1, f'{{finished_reason="{last.why}"}}')
            self._took("request_queue_time_seconds", last.queue_ms / 1e3)
            if last.report is not None:
                self._took("time_to_first_token_seconds", last.ttft_ms / 1e3)
                self._answered(last.report)

    def _answered(self, report: TurnReport) -> None:
        stats, tokens = report.stats, len(report.tokens)
        if tokens > 1:
            self._took("inter_token_latency_seconds", stats.decode_s / (tokens - 1))
        for name, (_, value) in _OF_ANSWERS.items():
            self._add(name, value(report))
        for at, (count, rate) in enumerate(zip(stats.drafted_by_depth, stats.accept_rate_by_depth)):
            place = f'{{position="{at}"}}'
            self._add("spec_decode_num_drafted_tokens_per_pos_total", count, place)
            self._add("spec_decode_num_accepted_tokens_per_pos_total", round(count * rate), place)
        for event in report.guards:
            self._add("guard_actions_total", 1, f'{{trigger="{event.trigger}"}}')
        self.acceptance_length = stats.acceptance_length

    def _add(self, name: str, amount: float, labels: str = "") -> None:
        self._counts[name][labels] += amount

    def _took(self, name: str, seconds: float) -> None:
        self._histograms[name][bisect_left(_SECONDS, seconds)] += 1
        self._sums[name] += seconds

    def text(self, gauges: Mapping[str, tuple[str, Mapping[str, float]]]) -> str:
        """All of them. `gauges`: by name, the help and the values by labels."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines(gauges))

    def _lines(self, gauges: Mapping[str, tuple[str, Mapping[str, float]]]) -> Iterator[str]:
        for name, help in _COUNTERS.items():
            yield from _samples(name, help, "counter", self._counts[name])
        for name, help in _HISTOGRAMS.items():
            found = list(accumulate(self._histograms[name]))
            bounds = [*(f"{bound:g}" for bound in _SECONDS), "+Inf"]
            samples: dict[str, float] = {f'_bucket{{le="{bound}"}}': count for bound, count in zip(bounds, found)}
            samples |= {"_sum": round(self._sums[name], 6), "_count": found[-1]}
            yield from _samples(name, help, "histogram", samples)
        for name, (help, values) in gauges.items():
            yield from _samples(name, help, "gauge", values)


def _samples(name: str, help: str, kind: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {help}"
    yield f"# TYPE {PREFIX}{name} {kind}"
    yield from (f"{PREFIX}{name}{labels} {value}" for labels, value in values.items())
