"""What the app may draw of a running answer: by clocks that the test turns, so nothing depends on the machine."""

from __future__ import annotations

import pytest

from dflash_tui.chat.frames import FIRST_S, SHARE, SLOWEST_S, Frames

LOOK_S = 0.05


def drawn(length: float, frame: float) -> tuple[int, float]:
    """An answer of `length` seconds that is always ahead, whose frames take `frame` seconds each: how many frames, and
    the share of the time that they took."""
    frames, cpu, count, now = Frames(0.0, 0.0), 0.0, 0, 0.0
    while now < length:
        frames.arrived(now, cpu)
        if frames.due(now, cpu):
            frames.drawn(now, cpu)
            cpu, count = cpu + frame, count + 1
        now += LOOK_S
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


def test_frames_that_take_long_still_come() -> None:
    count, _ = drawn(10.0, 0.2)
    assert count >= (10.0 - FIRST_S) / (SLOWEST_S + LOOK_S) - 1


def test_text_after_a_long_prompt_waits_as_the_first_does() -> None:
    frames = Frames(0.0, 0.0)
    frames.arrived(20.0, 1.0)
    assert not frames.due(20.1, 1.0)
    assert frames.due(20.0 + FIRST_S, 1.0)
