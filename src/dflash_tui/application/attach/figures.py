"""What other engines tell of an answer, in its stream or by counters for Prometheus, and the report made of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

from dflash_core.errors import FormatError
from dflash_core.events import StageTimes, Stop
from dflash_core.knobs import Knobs
from dflash_core.turn_check import check_new_report
from dflash_core.turn_stats import MAX_DEPTH, PartStats, TurnReport, TurnStats
from dflash_tui.application.attach.reading import count, counts, number

Paths = Mapping[str, tuple[str, ...]]
"""Where a piece of a stream has a figure: paths, of which the first one that is there counts; "a+b" is a sum. `decode`
and `first_token` are times, and LISTS have a count for each number of accepted drafts, or for each step."""
LISTS = ("histogram", "accepted_each", "drafted_each")
COUNTS = ("prompt_tokens", "cached_tokens", "tokens", "thinking_tokens", "steps", "drafted", "accepted")

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_POSITION = re.compile(r'position="(\d{1,4})"')
MAX_POSITIONS = 256


@dataclass(frozen=True, slots=True)
class Figures:
    """None or empty where an engine does not report it.

    `tokens`: of the answer, the first and the stop token included; `thinking_tokens` and `thinking_s`: those of its
    reasoning, and the time it took. `first_token_ms`: from the request to the first token. `decode_s`: the time after
    it. `steps`: those that verified drafts; `drafted` and `accepted`: draft tokens of them. `reached[d]`: steps that
    accepted more than d drafts; `drafted_at[d]`: those that drafted so many, empty where that is not known: all did
    then. `lengths[n]`: steps that committed n tokens.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tokens: int | None = None
    thinking_tokens: int | None = None
    thinking_s: float | None = None
    first_token_ms: float | None = None
    decode_s: float | None = None
    tokens_per_second: float | None = None
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    reached: tuple[int, ...] = ()
    drafted_at: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()

    def with_(self, other: Figures) -> Figures:
        """These, replaced by those that the other has."""
        names = (one.name for one in fields(other))
        known = {name: value for name in names if (value := getattr(other, name)) not in (None, ())}
        return replace(self, **known) if known else self


UNKNOWN = Figures()


def of_histogram(accepted: Sequence[int]) -> Figures:
    """Steps by how many drafts they accepted: `accepted[k]` steps took k."""
    steps = sum(accepted)
    reached = tuple(sum(accepted[depth:]) for depth in range(1, len(accepted)))
    total = sum(count * taken for taken, count in enumerate(accepted))
    return Figures(steps=steps, accepted=total, reached=reached, lengths=(0, *accepted))


def of_reached(steps: int, reached: Sequence[int]) -> Figures:
    """Of so many steps, `reached[d]` accepted more than d drafts, one after the other."""
    falls = [before - after for before, after in pairwise((steps, *reached, 0))]
    return Figures(steps=steps, reached=tuple(reached), lengths=(0, *falls) if min(falls) >= 0 else ())


def of_steps(accepted: Sequence[int], drafted: Sequence[int]) -> Figures:
    """Of each step how many drafts it had, and how many of them it accepted."""
    histogram = [0] * (max(accepted, default=0) + 1)
    for taken in accepted:
        histogram[taken] += 1
    depths = max(drafted, default=0)
    drafted_at = tuple(sum(count > depth for count in drafted) for depth in range(depths))
    found = of_histogram(histogram)
    reached = (*found.reached, *[0] * (depths - len(found.reached)))
    return replace(found, drafted=sum(drafted), drafted_at=drafted_at, reached=reached)


def figures_of(found: Mapping[str, Any], paths: Paths, second: float) -> Figures:
    """What a piece of a stream tells. `second`: in the unit of its times."""

    def first(name: str, read: Callable[[object, str], float | None]) -> Any:
        sums = (_sum(found, path.split("+"), read) for path in paths.get(name, ()))
        return next((value for value in sums if value is not None), None)

    histogram, accepted, drafted = (counts(found, *paths.get(name, ("",))) for name in LISTS)
    depths = of_histogram(histogram) if histogram else UNKNOWN
    if accepted and len(accepted) == len(drafted):
        depths = depths.with_(of_steps(accepted, drafted))
    first_token, decode = first("first_token", number), first("decode", number)
    return depths.with_(
        Figures(
            **{name: first(name, count) for name in COUNTS},
            tokens_per_second=first("tokens_per_second", number),
            first_token_ms=first_token / second * 1e3 if first_token is not None else None,
            decode_s=decode / second if decode is not None else None,
        )
    )


def _sum(found: object, paths: Sequence[str], read: Callable[[object, str], float | None]) -> float | None:
    """The first of several, and the others where they are there."""
    value = read(found, paths[0])
    return None if value is None else value + sum(read(found, path) or 0 for path in paths[1:])


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


def report(
    it: Figures, text: str, thinking: str, stop: Stop, knobs: Knobs, reason: str, source: str, *, drawn: bool
) -> TurnReport:
    """The report of an answer. `drawn`: the seed was drawn for it. Figures of drafts that contradict each other are
    left out."""
    steps, tokens, accepted = it.steps or 0, it.tokens or 0, it.accepted or 0
    depths = (it.drafted_at or (steps,) * len(it.reached)) if steps else ()
    rates = tuple(reached / drafted if drafted else 0.0 for reached, drafted in zip(it.reached, depths, strict=False))
    rate = it.tokens_per_second or 0.0
    # Without a speed of its own: tokens after the first, over the time after it.
    if not rate and it.decode_s and tokens > 1:
        rate = (tokens - 1) / it.decode_s
    stats = TurnStats(
        steps=steps,
        tokens=tokens,
        acceptance_length=1 + accepted / steps if steps else 0.0,
        accept_rate_by_depth=rates[:MAX_DEPTH],
        drafted_by_depth=depths[: len(rates)][:MAX_DEPTH],
        tokens_per_second=rate,
        ttft_ms=it.first_token_ms or 0.0,
        decode_s=it.decode_s or 0.0,
        prompt_tokens=it.prompt_tokens or 0,
        reused_tokens=min(it.cached_tokens or 0, it.prompt_tokens or 0),
        stage_ms=StageTimes(),
        drafted=it.drafted or 0,
        verified=it.drafted or 0,
        accepted=accepted,
        lengths=it.lengths if steps else (),
        thinking=PartStats(tokens=it.thinking_tokens or 0, seconds=it.thinking_s or 0.0),
    )
    found = TurnReport(
        text, thinking, (), "remote", reason, stop, knobs, stats, source=source,
        seed_source="random" if drawn else "fixed",
    )  # fmt: skip
    try:
        check_new_report(found)
    except FormatError:
        without = replace(it, steps=None, drafted=None, accepted=None, reached=(), drafted_at=(), lengths=())
        if without == it:
            raise
        source = f"{source}; its figures of drafts contradict each other and are left out"
        return report(without, text, thinking, stop, knobs, reason, source, drawn=drawn)
    return found
