"""Reads metrics in Prometheus' text form, and what an answer added to counters of speculative decoding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dflash_tui.application.attach.figures import UNKNOWN, Figures, of_reached

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_POSITION = re.compile(r'position="(\d{1,4})"')
MAX_POSITIONS = 256


@dataclass(frozen=True, slots=True)
class Metrics:
    """Values by name, summed over their labels, without a `_total` at the end; counters by the label `position`."""

    values: Mapping[str, float]
    by_position: Mapping[str, Mapping[int, float]]

    def get(self, name: str) -> float | None:
        return self.values.get(name)


def parse(text: str) -> Metrics:
    """The samples of a page of metrics; lines that are none are skipped."""
    values: dict[str, float] = {}
    positions: dict[str, dict[int, float]] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found is None:
            continue
        name, labels = found[1].removesuffix("_total"), found[2] or ""
        try:
            value = float(found[3])
        except ValueError:
            continue
        if not 0 <= value < 2**53:  # no NaN either
            continue
        values[name] = values.get(name, 0.0) + value
        if (position := _POSITION.search(labels)) and int(position[1]) < MAX_POSITIONS:
            by = positions.setdefault(name, {})
            by[int(position[1])] = by.get(int(position[1]), 0.0) + value
    return Metrics(values, positions)


def added(before: Metrics, after: Metrics, prefix: str, generated: str, tokens: int) -> Figures | None:
    """What one answer of so many tokens added to the counters under `prefix`, as in `vllm:spec_decode_num_`.

    None where the counter `generated` of all tokens did not grow by just these: others used the server too, or it has
    not counted yet.
    """

    def grown(name: str) -> int:
        return round((after.get(name) or 0) - (before.get(name) or 0))

    if after.get(generated) is None or grown(generated) != tokens:
        return None
    steps, drafted = grown(f"{prefix}drafts"), grown(f"{prefix}draft_tokens")
    accepted = grown(f"{prefix}accepted_tokens")
    if min(steps, drafted, accepted) < 0:  # it was started again
        return None
    now = after.by_position.get(f"{prefix}accepted_tokens_per_pos", {})
    earlier = before.by_position.get(f"{prefix}accepted_tokens_per_pos", {})
    reached = [round(now.get(n, 0) - earlier.get(n, 0)) for n in range(max(now, default=-1) + 1)]
    by_depth = of_reached(steps, reached) if steps and reached else UNKNOWN
    return by_depth.with_(Figures(steps=steps, drafted=drafted, accepted=accepted))
