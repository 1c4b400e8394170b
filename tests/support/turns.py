"""Turns made by hand, for whatever keeps, shows or replays them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dflash_core.events import Piece, PrefillEvent, StageTimes, StepDrafts, StepEvent, StepTree
from dflash_core.knobs import Knobs
from dflash_core.record import Line, Recorder, Start, TurnRecord
from dflash_core.turn_stats import TurnReport, TurnTotals

ROOT, WANTED = 100, 7
STAGES = StageTimes(2.0, 0.5, 10.0, 0.25, 1.0, 0.25)
DRAFTS = StepDrafts(
    tokens=((1, 2, 3), (4, 5, 6), (7, 8, 9)),
    log_probs=tuple(tuple(map(math.log, row)) for row in ((0.6, 0.3, 0.05), (0.5, 0.2, 0.1), (0.4, 0.35, 0.1))),
)


def tree_of(*nodes: tuple[int, int], accepted: Sequence[int] = (0,), drafts: StepDrafts = DRAFTS) -> StepTree:
    """A tree from (parent, rank) of each node below the root."""
    tokens, depths, probs, paths = [ROOT], [0], [1.0], [1.0]
    for parent, rank in nodes:
        depth = depths[parent] + 1
        depths.append(depth)
        tokens.append(drafts.tokens[depth - 1][rank])
        probs.append(math.exp(drafts.log_probs[depth - 1][rank]))
        paths.append(paths[parent] * probs[-1])
    parents = (-1, *(parent for parent, _ in nodes))
    return StepTree(tuple(tokens), parents, tuple(depths), tuple(probs), tuple(paths), tuple(accepted))


CHAIN = tree_of((0, 0), (1, 0), (2, 0), accepted=(0, 1, 2))


def step_of(
    tree: StepTree = CHAIN,
    bonus: int = WANTED,
    knobs: Knobs | None = None,
    drafts: StepDrafts = DRAFTS,
    stages: StageTimes = STAGES,
) -> StepEvent:
    """The step that walked `tree` as it says, and drew `bonus` after it."""
    path = tree.accepted[1:]
    tokens = (*(tree.tokens[node] for node in path), bonus)
    depth = max(tree.depths)
    return StepEvent(
        tokens, tree, depth, len(path), 40, stages, "tree", "asked for",
        drafts=drafts, bonus=bonus, knobs=knobs or Knobs(),
    )  # fmt: skip


def turn_of(
    steps: Sequence[StepEvent],
    *,
    prompt: str = "Why?",
    knobs: Knobs | None = None,
    thinking_steps: int = 0,
    step_s: float = 0.02,
    watchers: Sequence[Callable[[Line], None]] = (),
    text: Callable[[int], str] = "t{} ".format,
    created: str = "2026-01-01T12:00:00.000+00:00",
) -> TurnRecord:
    """A whole turn of a prefill and `steps`, the first few of them reasoning; a step takes `step_s`."""
    knobs = knobs or Knobs()
    recorder = Recorder(Start(created, "target.gguf", "draft", "Be brief.", prompt, (1, 2, 3), knobs, 4), text)
    recorder.begin(watchers)
    totals, at = TurnTotals(), 0.1
    prefill = PrefillEvent((ROOT,), 30, 10, 100.0, "tree", "asked for")
    for number, event in enumerate((prefill, *steps)):
        words = "".join(map(text, event.tokens))
        thinks = number < thinking_steps
        piece = Piece(event, "" if thinks else words, words if thinks else "", at)
        totals.add(piece)
        recorder.add(piece)
        at += step_s
    record = recorder.end(None)
    tokens = tuple(token for event in record.events for token in event.tokens)
    stats = totals.stats(prefill, step_s * len(steps))
    report = TurnReport(record.text, record.thinking, tokens, "tree", "asked for", "stop token", knobs, stats)
    return TurnRecord(record.start, record.pieces, report, record.texts, ended=True)
