"""Reads metrics in Prometheus' text form, and what an answer added to counters of speculative decoding."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
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


def parse(text: str) -> Metrics:
    """The samples of a page of metrics; lines that are none are skipped."""
    values: dict[str, float] = defaultdict(float)
    positions: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for found in filter(None, map(_SAMPLE.match, text.splitlines())):
        name = found[1].removesuffix("_total")
        with suppress(ValueError):
            value = float(found[3])
            if 0 <= value < 2**53:  # no NaN either
                values[name] += value
                if (position := _POSITION.search(found[2] or "")) and int(position[1]) < MAX_POSITIONS:
                    positions[name][int(position[1])] += value
    return Metrics(values, positions)


def added(before: Metrics, after: Metrics, prefix: str, generated: str, tokens: int) -> Figures | None:
    """What one answer of so many tokens added to the counters under `prefix`, as in `vllm:spec_decode_num_`.

    None where the counter `generated` of all tokens did not grow by just these: others used the server too, or it has
    not counted yet.
    """
    names = (generated, f"{prefix}drafts", f"{prefix}draft_tokens", f"{prefix}accepted_tokens")
    grown = [round(after.values.get(name, 0) - before.values.get(name, 0)) for name in names]
    # A counter that fell: the server was started again.
    if generated not in after.values or grown[0] != tokens or min(grown) < 0:
        return None
    _, steps, drafted, accepted = grown
    now, earlier = (one.by_position.get(f"{prefix}accepted_tokens_per_pos", {}) for one in (after, before))
    reached = [round(now.get(n, 0) - earlier.get(n, 0)) for n in range(max(now, default=-1) + 1)]
    by_depth = of_reached(steps, reached) if steps and reached else UNKNOWN
    return by_depth.with_(Figures(steps=steps, drafted=drafted, accepted=accepted))
