"""When the app draws a running answer: with simulated clocks, so nothing depends on the machine."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_tui.chat.flow import FIRST_S, LOOK_S, SHARE, SLOWEST_S, Flow, Frames, next_look
from dflash_tui.chat.state import ShownTurn


def drawn(length: float, frame: float) -> tuple[int, float]:
    """An answer of `length` seconds that always has new text, whose frames take `frame` seconds each: the number of
    frames, and the share of the time that they took."""
    frames, cpu, count, now = Frames(0.0, 0.0), 0.0, 0, 0.0
    while now < length:
        frames.arrived(now, cpu)
        if (wait := frames.wait(now, cpu)) <= 0:
            frames.drawn(now, cpu)
            cpu, count, wait = cpu + frame, count + 1, LOOK_S
        now += next_look(wait)
    return count, cpu / length


@pytest.mark.parametrize("length", [0.1, 0.15, 0.2])
def test_a_short_answer_is_drawn_at_its_end_alone(length: float) -> None:
    assert drawn(length, 0.02) == (0, 0.0)


@pytest.mark.parametrize("length", [0.3, 0.4, 0.7, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("frame", [0.002, 0.01, 0.015])
def test_no_answer_costs_more_than_its_share(length: float, frame: float) -> None:
    count, share = drawn(length, frame)
    assert count
    assert share <= SHARE + 1e-9


@pytest.mark.parametrize("frame", [0.001, 0.002, 0.004])
def test_quick_frames_are_smooth(frame: float) -> None:
    """A frame is drawn when it is due, not one check later."""
    count, _ = drawn(10.0, frame)
    assert count / 10.0 >= min(1 / LOOK_S, SHARE / frame) * 0.75


def test_frames_that_take_long_still_come() -> None:
    count, _ = drawn(10.0, 0.2)
    assert count >= (10.0 - FIRST_S) / (SLOWEST_S + LOOK_S) - 1


def test_text_after_a_long_prompt_waits_as_the_first_does() -> None:
    frames = Frames(0.0, 0.0)
    frames.arrived(20.0, 1.0)
    assert frames.wait(20.1, 1.0) == pytest.approx(FIRST_S - 0.1)
    assert frames.wait(20.0 + FIRST_S, 1.0) <= 0


async def test_a_look_sends_a_message_only_where_something_is_to_be_drawn() -> None:
    """Twenty checks a second while an answer is decoded."""
    sent: list[object] = []
    state: Any = SimpleNamespace(turn=ShownTurn())
    flow = Flow(state, SimpleNamespace(call_next=sent.append), lambda: None)  # type: ignore[arg-type]
    flow._figures_at = math.inf
    for arrived, over, first in ((False, False, 0.0), (True, False, math.inf), (True, False, 0.0), (False, True, 0.0)):
        state.turn.running = SimpleNamespace(arrived=arrived, over=over, waits=False)
        flow._frames = Frames(first, 0.0)
        flow._frames.wait = lambda now, cpu, first=first: first  # type: ignore[method-assign,misc]
        flow._look()
        assert len(sent) == (over or (arrived and first <= 0))
        sent.clear()
