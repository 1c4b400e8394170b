"""Checks that the parts of a recorded turn are consistent. Everything read from a file is checked before it is shown.

Types are not enough: a depth of 2^53, a time of 1e308 s or tuples of unequal length are well-typed, and break the first
function that computes with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from datetime import datetime
from operator import attrgetter

from dflash_core.drafting import MAX_NODES
from dflash_core.errors import FormatError
from dflash_core.events import (
    SHOWN_ROWS,
    STAGES,
    Event,
    PrefillEvent,
    StageTimes,
    StepDrafts,
    StepEvent,
    StepTree,
    TextEvent,
)
from dflash_core.knobs import MAX_WIDTH
from dflash_core.memory import MemoryBreakdown
from dflash_core.turn_stats import PartStats, TurnReport, TurnStats

MAX_TREE_NODES = 1 + MAX_NODES
MAX_DEPTH = 256  # positions of the longest block that a drafter file may have
MAX_ID = MAX_POSITIONS = 2**31 - 1
MAX_BYTES = 2**60  # of a component
MAX_FOUND_ROWS = 16
MAX_TRIALS = 2**53  # over the life of a pair
LONGEST = 1e9  # seconds: thirty years
SHORTEST = 1e-10  # seconds: under the nanosecond that the clocks tell; speeds are divisions by times
SLACK = 1e-3  # of a probability: float32 rounds some a little above 1
_WIDTHS = frozenset(range(1, MAX_WIDTH + 1))
_stages = attrgetter(*STAGES)


def check_start(created: str, prompt_ids: Collection[int], draft_block: int, sinks: int = 0) -> None:
    """Check the start of a turn. Raises FormatError."""
    try:
        year = datetime.fromisoformat(created).year
    except ValueError:
        year = 0
    if not 1970 <= year < 9999:
        raise FormatError(f"a turn of the time {created[:40]!r}; expected one as in 2026-01-31T12:00:00+00:00")
    _within("a token id of the prompt", prompt_ids, 0, MAX_ID)
    _within("the drafter's block", (draft_block,), 0, MAX_DEPTH)
    _within("the tokens that a window always shows", (sinks,), 0, MAX_POSITIONS)


def check_loaded(context_length: int, memory: MemoryBreakdown) -> None:
    """Check a trace's data about the loaded models. Raises FormatError."""
    _within("the context length", (context_length,), 0, MAX_POSITIONS)
    sizes = [size for one in memory.components for size in (one.bytes, one.measured or 0)]
    _within("a size in the memory breakdown", (*sizes, memory.total, memory.free, memory.measured), 0, MAX_BYTES)


class TurnCheck:
    """Checks one turn piece by piece. Each call raises FormatError for a piece that contradicts earlier ones."""

    def __init__(self) -> None:
        self._at = 0.0
        self._steps = 0
        self._tokens: list[int] = []
        self._last: Event | None = None

    def piece(self, event: Event, at: float) -> None:
        """Check the next piece, `at` seconds after the turn began."""
        if (self._last is None) != isinstance(event, PrefillEvent):
            found = "a step" if self._last is None else "a second prompt"
            raise FormatError(f"{found} in a turn; expected its prompt first, then its steps")
        if self._last is not None and self._last.stop is not None:
            raise FormatError(f"a step after the end of its answer ({self._last.stop})")
        _duration("the time of a piece since the one before it", at - self._at)
        _duration("the time of a piece", at)
        if isinstance(event, PrefillEvent):
            if len(event.tokens) > 1:
                raise FormatError(f"a prompt with {len(event.tokens):,} tokens drawn after it; expected one, or none")
            _within("a token id", event.tokens, 0, MAX_ID)
            _read("the prompt", event.prompt_tokens, event.reused_tokens)
            _within("the tokens that were read again", (event.read_again,), 0, MAX_POSITIONS)
            _duration("the time of the prompt", event.elapsed_ms, 1e3)
        elif isinstance(event, TextEvent):
            _within("a count of tokens", (event.count,), 0, MAX_POSITIONS)
        else:
            check_step(event)
            self._steps += 1
        self._last, self._at = event, at
        self._tokens += event.tokens

    def end(self, report: TurnReport | None) -> None:
        if report is None:
            return
        check_report(report)
        if report.source:
            return
        if report.tokens != tuple(self._tokens) or report.stats.steps != self._steps:
            raise FormatError(
                f"a report of {len(report.tokens):,} tokens in {report.stats.steps:,} steps; "
                f"expected the turn's {len(self._tokens):,} in {self._steps:,}"
            )


def check_step(step: StepEvent) -> None:
    """Check a single step: its tree, its candidates, its walk. Raises FormatError."""
    tree, drafts = step.tree, step.drafts
    _check_tree(tree)
    _check_drafts(drafts)
    if step.drafted_depth != max(tree.depths):
        raise FormatError(f"a drafted depth of {step.drafted_depth:,}; expected the tree's {max(tree.depths):,}")
    if step.accepted_depth != len(tree.accepted) - 1:
        raise FormatError(f"an accepted depth of {step.accepted_depth:,}; expected {len(tree.accepted) - 1:,}")
    if step.bonus is not None:
        _within("a token id", (step.bonus,), 0, MAX_ID)
    walked = [tree.tokens[node] for node in tree.accepted[1:]]
    path, drawn = step.tokens[: len(walked)], step.tokens[len(walked) :]
    other = drawn and step.bonus not in (None, drawn[0])
    if not step.tokens or list(path) != walked[: len(path)] or len(drawn) > 1 or other:
        raise FormatError(f"a step of {len(step.tokens):,} tokens that are not those of its walk")
    _within("a token id", step.tokens, 0, MAX_ID)
    if step.choice is not None:
        if len(step.choice.brings) > len(SHOWN_ROWS):
            raise FormatError(f"{len(step.choice.brings)} expectations of a step; expected {len(SHOWN_ROWS)} at most")
        _within("the tokens that a tree was expected to bring", step.choice.brings, 0, MAX_TREE_NODES)
        _within("the rows of auto", (step.choice.rows,), 0, MAX_TREE_NODES)
    _within("the length after a step", (step.length,), 0, MAX_POSITIONS)
    _check_stages(step.stages)


def _check_tree(tree: StepTree) -> None:
    count = len(tree.tokens)
    columns = (tree.parents, tree.depths, tree.probs, tree.path_probs)
    if not 1 <= count <= MAX_TREE_NODES or any(len(column) != count for column in columns):
        lengths = ", ".join(str(len(column)) for column in (tree.tokens, *columns))
        raise FormatError(f"a tree with columns of {lengths} nodes; expected five of one length, 1 to {MAX_TREE_NODES}")
    if tree.parents[0] != -1 or tree.depths[0] != 0:
        raise FormatError("a tree whose node 0 is no root")
    for node in range(1, count):
        parent = tree.parents[node]
        if not 0 <= parent < node or tree.depths[node] != tree.depths[parent] + 1:
            raise FormatError(
                f"a tree whose node {node} has parent {parent:,} and depth {tree.depths[node]:,}; "
                "expected a parent before it, one less deep"
            )
        if not tree.path_probs[node] <= tree.path_probs[parent] * (1 + SLACK):
            raise FormatError(f"a tree whose node {node} is likelier than the path to its parent")
    _within("a token id", tree.tokens, 0, MAX_ID)
    _within("a probability", (*tree.probs, *tree.path_probs, *tree.values), 0, 1 + SLACK)
    if len(tree.values) not in (0, count):
        raise FormatError(f"a tree of {count} nodes with {len(tree.values)} learned values; expected as many, or none")
    if len(tree.copied) > count - 1:
        raise FormatError(f"a tree of {count} nodes, {len(tree.copied)} of them copied")
    _within("a copied node", tree.copied, 1, count - 1)
    taken = tree.accepted
    if taken[:1] != (0,) or not all(0 < node < count for node in taken[1:]):
        raise FormatError(f"a walk of {len(taken):,} nodes that is not one of the tree, from its root")
    if any(tree.parents[node] != before for before, node in itertools.pairwise(taken)):
        raise FormatError("a walk that does not go from each node to a child of it")


def _check_drafts(drafts: StepDrafts) -> None:
    widths = {len(row) for row in (*drafts.tokens, *drafts.log_probs)}
    depth = len(drafts.tokens)
    if depth != len(drafts.log_probs) or depth > MAX_DEPTH or len(widths) > 1 or not widths <= _WIDTHS:
        raise FormatError(
            f"candidates of {depth:,} depths with {len(drafts.log_probs):,} of log-probabilities, {len(widths)} widths;"
            f" expected the same of both, up to {MAX_DEPTH} by {MAX_WIDTH}"
        )
    for tokens, log_probs in zip(drafts.tokens, drafts.log_probs):
        _within("a candidate's token id", tokens, 0, MAX_ID)
        _within("a log-probability", log_probs, -float("inf"), SLACK)


def check_report(report: TurnReport) -> None:
    """Check the report of a turn. Raises FormatError."""
    stats = report.stats
    _within("a token id", report.tokens, 0, MAX_ID)
    if stats.tokens != len(report.tokens) and not (report.source and not report.tokens):
        raise FormatError(f"a report of {stats.tokens:,} tokens that lists {len(report.tokens):,}")
    counts = (stats.prompt_tokens, stats.reused_tokens, stats.drafted, stats.read_again)
    _within("a count of a report", counts, 0, MAX_POSITIONS)
    _read("a report's prompt", stats.prompt_tokens, stats.reused_tokens)
    trees, lengths = ("trees", "nodes", stats.nodes), ("lengths", "length", stats.lengths)
    for (what, by, counted), most in ((trees, MAX_TREE_NODES), (lengths, MAX_TREE_NODES + 1)):
        if len(counted) > most or (counted and sum(counted) != stats.steps):
            raise FormatError(f"a report of {stats.steps:,} steps whose {what} are those of {sum(counted):,}")
        _within(f"a report's steps by {by}", counted, 0, stats.steps)
    _duration("the time to the first token", stats.ttft_ms, 1e3)
    _duration("the time of the steps", stats.decode_s)
    _check_stages(stats.stage_ms)
    _check_figures(stats)
    for part in (stats.thinking, stats.answer):
        _check_figures(part)
        _duration("the time of a report's part", part.seconds)
    if len(report.learned) > MAX_FOUND_ROWS:
        raise FormatError(f"a report of {len(report.learned):,} kinds of candidates; {MAX_FOUND_ROWS} at most")
    _within("a count of tried candidates", [row.trials for row in report.learned], 1, MAX_TRIALS)
    chances = [chance for row in report.learned for chance in (row.stated, row.learned, row.found)]
    _within("the chance of a candidate", chances, 0, 1 + SLACK)


def _check_figures(it: TurnStats | PartStats) -> None:
    counts = (it.steps, it.tokens, it.verified, it.accepted, it.copied, it.copied_accepted)
    _within("a count of a report", counts, 0, MAX_POSITIONS)
    depths, rates = it.drafted_by_depth, it.accept_rate_by_depth
    if len(depths) != len(rates) or len(depths) > MAX_DEPTH or any(a < b for a, b in itertools.pairwise(depths)):
        raise FormatError(f"a report of {len(depths):,} draft positions with {len(rates):,} rates; expected as many")
    _within("a report's steps by draft position", depths, 0, it.steps)
    _within("a rate", rates, 0, 1)
    _within("an acceptance length", (it.acceptance_length,), 0, MAX_TREE_NODES)
    _within("a speed", (it.tokens_per_second,), 0, MAX_POSITIONS / SHORTEST)


def _check_stages(stages: StageTimes) -> None:
    # Differences of time stamps: one may be slightly negative.
    _within("the time of a stage", _stages(stages), -LONGEST * 1e3, LONGEST * 1e3)


def _read(what: str, length: int, reused: int) -> None:
    if not 0 <= reused <= length <= MAX_POSITIONS:
        raise FormatError(f"{what} of {length:,} tokens, {reused:,} of them reused")


def _duration(what: str, time: float, second: float = 1.0) -> None:
    """`second`: how many of the time's units one has."""
    if time != 0 and not SHORTEST * second <= time <= LONGEST * second:
        raise FormatError(f"{what} is {time / second:g} s; expected 0 to {LONGEST:g}")


def _within(what: str, values: Collection[float], low: float, high: float) -> None:
    # JSON has no NaN, so minimum and maximum suffice: this runs over some 300 numbers of each step.
    if values and not (low <= min(values) and max(values) <= high):
        value = next(value for value in values if not low <= value <= high)
        raise FormatError(f"{what} is {f'{value:,}':.40}; expected {low:g} to {high:g}")
