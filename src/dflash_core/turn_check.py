"""Checks that the parts of a recorded turn are consistent. Everything read from a file is checked before it is shown.

The types of events and reports bound each value by itself. That is not enough: tuples of unequal length, or a parent
after its child, are well-typed and break the first function that computes with them.
"""

from __future__ import annotations

import itertools
from datetime import datetime

import msgspec

from dflash_core.damaged import in_words
from dflash_core.errors import FormatError
from dflash_core.events import MAX_TREE_NODES, Event, PrefillEvent, StepDrafts, StepEvent, StepTree, TextEvent
from dflash_core.knobs import MAX_WIDTH
from dflash_core.turn_stats import MAX_DEPTH, PartStats, TurnReport, TurnStats

LONGEST = 1e9  # seconds: thirty years
SHORTEST = 1e-10  # seconds: under the nanosecond that the clocks tell; speeds are divisions by times
SLACK = 1e-3  # of a probability: float32 rounds some a little above 1


def check_created(created: str) -> None:
    """Check the time at which a turn began. Raises FormatError."""
    try:
        year = datetime.fromisoformat(created).year
    except ValueError:
        year = 0
    if not 1970 <= year < 9999:
        raise FormatError(f"a turn of the time {created[:40]!r}; expected one as in 2026-01-31T12:00:00+00:00")


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
            _read("the prompt", event.prompt_tokens, event.reused_tokens)
            _duration("the time of the prompt", event.elapsed_ms, 1e3)
        elif not isinstance(event, TextEvent):
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
    tree = step.tree
    _check_tree(tree)
    _check_drafts(step.drafts)
    if step.drafted_depth != max(tree.depths):
        raise FormatError(f"a drafted depth of {step.drafted_depth:,}; expected the tree's {max(tree.depths):,}")
    if step.accepted_depth != len(tree.accepted) - 1:
        raise FormatError(f"an accepted depth of {step.accepted_depth:,}; expected {len(tree.accepted) - 1:,}")
    walked = [tree.tokens[node] for node in tree.accepted[1:]]
    path, drawn = step.tokens[: len(walked)], step.tokens[len(walked) :]
    other = drawn and step.bonus not in (None, drawn[0])
    if not step.tokens or list(path) != walked[: len(path)] or len(drawn) > 1 or other:
        raise FormatError(f"a step of {len(step.tokens):,} tokens that are not those of its walk")


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
    if len(tree.values) not in (0, count):
        raise FormatError(f"a tree of {count} nodes with {len(tree.values)} learned values; expected as many, or none")
    if len(tree.copied) > count - 1 or not all(0 < node < count for node in tree.copied):
        raise FormatError(
            f"a tree of {count} nodes, {len(tree.copied)} of them copied, that are not all below its root"
        )
    taken = tree.accepted
    if taken[:1] != (0,) or not all(0 < node < count for node in taken[1:]):
        raise FormatError(f"a walk of {len(taken):,} nodes that is not one of the tree, from its root")
    if any(tree.parents[node] != before for before, node in itertools.pairwise(taken)):
        raise FormatError("a walk that does not go from each node to a child of it")


def _check_drafts(drafts: StepDrafts) -> None:
    widths = {len(row) for row in (*drafts.tokens, *drafts.log_probs)}
    depth = len(drafts.tokens)
    fits = depth == len(drafts.log_probs) <= MAX_DEPTH and len(widths) < 2
    if not fits or not all(0 < width <= MAX_WIDTH for width in widths):
        raise FormatError(
            f"candidates of {depth:,} depths with {len(drafts.log_probs):,} of log-probabilities, {len(widths)} widths;"
            f" expected the same of both, up to {MAX_DEPTH} by {MAX_WIDTH}"
        )


def check_new_report(report: TurnReport) -> None:
    """`check_report` for a report that was not read from a file: the types have not checked its values either. Raises
    FormatError."""
    try:
        msgspec.convert(msgspec.to_builtins(report), TurnReport)
    except msgspec.ValidationError as error:
        raise FormatError(f"a report in which {in_words(error)}") from None
    check_report(report)


def check_report(report: TurnReport) -> None:
    """Check the report of a turn as it was read from a file. Raises FormatError."""
    stats = report.stats
    if stats.tokens != len(report.tokens) and not (report.source and not report.tokens):
        raise FormatError(f"a report of {stats.tokens:,} tokens that lists {len(report.tokens):,}")
    _read("a report's prompt", stats.prompt_tokens, stats.reused_tokens)
    for what, counted in (("trees", stats.nodes), ("lengths", stats.lengths)):
        if counted and sum(counted) != stats.steps:
            raise FormatError(f"a report of {stats.steps:,} steps whose {what} are those of {sum(counted):,}")
    _duration("the time to the first token", stats.ttft_ms, 1e3)
    _duration("the time of the steps", stats.decode_s)
    _check_depths(stats)
    for part in (stats.thinking, stats.answer):
        _check_depths(part)
        _duration("the time of a report's part", part.seconds)


def _check_depths(it: TurnStats | PartStats) -> None:
    steps, rates = (it.steps, *it.drafted_by_depth), it.accept_rate_by_depth
    if len(steps) != len(rates) + 1 or any(a < b for a, b in itertools.pairwise(steps)):
        raise FormatError(
            f"a report of {len(steps) - 1:,} draft positions with {len(rates):,} rates; expected as many, each drafted"
            " in no more steps than the one before"
        )


def _read(what: str, length: int, reused: int) -> None:
    if reused > length:
        raise FormatError(f"{what} of {length:,} tokens, {reused:,} of them reused")


def _duration(what: str, time: float, second: float = 1.0) -> None:
    """`second`: how many of the time's units one has."""
    if time != 0 and not SHORTEST * second <= time <= LONGEST * second:
        raise FormatError(f"{what} is {time / second:g} s; expected 0 to {LONGEST:g}")
