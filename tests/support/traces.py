"""A trace of three turns, as JSON to change, and every view that a trace can come to."""

from __future__ import annotations

import dataclasses
import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dflash_core.draft_quality import first_rejection, rejected
from dflash_core.errors import DFlashError
from dflash_core.events import StepTree
from dflash_core.knobs import Knobs
from dflash_core.lab import whatif
from dflash_core.lab.results import plain_of_turn
from dflash_core.lab.whatif import StepTimes
from dflash_core.memory import Component, MemoryBreakdown
from dflash_core.record import Loaded, Turns, encode, lines
from dflash_core.trace import HEADER, Trace
from dflash_tui.application.conversations import comparing
from dflash_tui.application.figures import measurements
from dflash_tui.application.figures.meter import Meter, course
from dflash_tui.application.replay import ReplaySession, reported
from dflash_tui.cli.replay import summary
from dflash_tui.text import step_text
from dflash_tui.widgets import panels, slider, stats
from support.stored import a_turn
from support.turns import ROOT, step_of, tree_of, turn_of

LOADED = Loaded("a pair", 4096, MemoryBreakdown("this machine", (Component("target", 5, "1 layer", 4),), 10, 5, 6))
BRANCHED = tree_of((0, 0), (1, 0), (0, 1), (3, 0), accepted=(0, 3))
STEPS = (step_of(), step_of(BRANCHED, bonus=9), step_of(knobs=Knobs(drafting="auto up to 3", p_min=0.25))) * 4
PLAIN = dataclasses.replace(step_of(StepTree((ROOT,), (-1,), (0,), (1.0,), (1.0,), (0,))), mode="plain")


def a_trace() -> list[dict[str, Any]]:
    """Its lines after the header, as JSON."""
    records = (turn_of(STEPS, thinking_steps=2), turn_of([PLAIN] * 20), a_turn())
    written = [LOADED, *(line for record in records for line in lines(record))]
    return [json.loads(encode(line)) for line in written]


def write(path: Path, told: list[dict[str, Any]]) -> Path:
    head = msgspec.json.encode(HEADER).decode()
    path.write_bytes(gzip.compress("\n".join([head, *map(json.dumps, told), ""]).encode(), 1, mtime=0))
    return path


def look_at(trace: Trace) -> None:
    """Open every view that shows turns, their steps or what they ran on."""
    session = ReplaySession(trace, Path("a.trace"))
    panels.drawn(session.memory(), 40)
    session.count("text")
    json.dumps(summary(trace), allow_nan=False)
    for record in map(reported, trace.turns):
        speed = plain_of_turn(record)
        if speed is not None:
            measurements.when(speed.taken, datetime.now(UTC))
        meter = Meter.of(record)
        shown = [stats.figures(meter, None, None, running=True)]
        if record.report is not None:
            shown.append(stats.figures(meter, record.report, record, running=False))
        for one in shown:
            for width in (24, 90):
                stats.drawn(replace(one, plain=speed), width)
        course(record)
        slider.spark([float(len(step.tokens)) for step in record.steps], 40)
        comparing.measured(record)
        comparing.along_the_steps(record)
        text = step_text.StepText(record, 40)
        step_text.drawn_calibration(record.steps, 60, "this turn")
        for number, step in enumerate(record.steps, 1):
            text.drawn(number, "depth")
            text.line_of(number)
            for left_out in (True, False):
                step_text.drawn(step, record.token_text, 40, left_out=left_out)
                step_text.drawn(step, record.token_text, 90, left_out=left_out, taken_only=True)
            step_text.rejection_line(step, record.token_text)
            rejected(step), first_rejection(step)
        costs = StepTimes(record.steps)
        try:
            reach = whatif.estimate(record.steps, (1, 8, 64))
        except DFlashError:  # a turn that drafted nothing
            continue
        whatif.curve("estimate", reach, costs, record.knobs.budget)
    assert list(Turns(trace.turns)) == list(trace.turns)
