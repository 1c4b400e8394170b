"""Plain decoding is timed while the user reads, and only then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from textual.pilot import Pilot

from dflash_core.engine import Engine
from dflash_core.lab import experiment as lab_experiment
from dflash_core.lab.experiment import Design, Laboratory
from dflash_core.lab.results import ExperimentProgress, Result
from dflash_tui.app import DFlashApp
from dflash_tui.chat import background_plain

from .lab_pair import KNOBS, QUESTION, demo
from .support import ask, idle, loaded, wait_until

MakeApp = Callable[..., DFlashApp]
NOTHING = Result((), (), (), 1, (), (), complete=False)


class Endless:
    """A measurement that only something else ends."""

    result = NOTHING
    started = 0

    def __init__(self, lab: Laboratory, design: Design) -> None:
        Endless.started += 1

    def cancel(self) -> None:
        """Its thread ends it."""

    def __iter__(self) -> Iterator[ExperimentProgress]:
        return (ExperimentProgress(done, 1 << 40, None, "decoding plainly") for done in count())


@pytest.fixture
def app(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> DFlashApp:
    """The app over the demo pair, which measures as soon as an answer is complete, however slow the machine is."""
    for name, value in (("QUIET_S", 0.001), ("LOOK_S", 0.001), ("SLOW_MS", 1e9)):
        monkeypatch.setattr(background_plain, name, value)
    monkeypatch.setattr(lab_experiment, "PLAIN_TOKENS", 12)
    return make_app(load=demo, knobs=KNOBS)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endless, "started", 0)
    monkeypatch.setattr(Laboratory, "experiment", lambda self, design: Endless(self, design))


async def test_it_is_measured_once_after_an_answer(app: DFlashApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        assert app.chat.gauges.plain is None
        await ask(pilot, QUESTION)
        await wait_until(pilot, lambda: app.chat.gauges.plain is not None)
        assert not app.chat.parts.plain.running
        app.chat.parts.plain._begin()
        assert not app.chat.parts.plain.running, "it is known"


async def timing(pilot: Pilot[int], app: DFlashApp) -> None:
    """An answer, after which plain decoding is being timed."""
    await loaded(pilot)
    await ask(pilot, QUESTION)
    await wait_until(pilot, lambda: app.chat.parts.plain.running)


async def test_a_message_comes_first(app: DFlashApp, endless: None) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await timing(pilot, app)
        turns = len(app.chat.transcript.turns)
        await ask(pilot, "More?")
        await idle(pilot)
        assert len(app.chat.transcript.turns) == turns + 1
        await wait_until(pilot, lambda: Endless.started == 2)  # it is tried again after that answer
        assert app.chat.gauges.plain is None


async def test_a_typed_character_stops_it(app: DFlashApp, endless: None) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await timing(pilot, app)
        app.chat.prompt.focus()
        await pilot.press("m")
        await wait_until(pilot, lambda: not app.chat.parts.plain.running)
        app.chat.parts.plain._begin()
        assert not app.chat.parts.plain.running, "a message is being typed"
        assert Endless.started == 1
        assert app.chat.gauges.plain is None


async def test_a_look_at_a_stopped_one_leaves_the_next_alone(
    app: DFlashApp, endless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer of the first is still pending when the second begins."""
    async with app.run_test(size=(120, 40)) as pilot:
        monkeypatch.setattr(background_plain, "QUIET_S", 3600)
        await loaded(pilot)
        await ask(pilot, QUESTION)
        await idle(pilot)
        plain, pending = app.chat.parts.plain, list[Callable[[], None]]()
        monkeypatch.setattr(app.chat, "set_timer", lambda after, then: pending.append(then))
        plain._begin()
        plain.stop()
        plain._begin()
        assert plain._experiment is not None
        plain._experiment.stop()
        assert plain._experiment.join(background_plain.JOIN_S)
        first, second = pending
        first()
        assert plain.running
        second()
        assert not plain.running


async def test_a_prompt_under_way_holds_back_no_key_and_the_next_turn_waits_for_its_end(
    app: DFlashApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, cancelled = threading.Event(), threading.Event()

    class Reading:
        """A measurement that is in the midst of a long prompt."""

        result = NOTHING

        def cancel(self) -> None:
            """The session's own does it."""

        def __iter__(self) -> Iterator[ExperimentProgress]:
            over.wait()
            yield from ()

    monkeypatch.setattr(Laboratory, "experiment", lambda self, design: Reading())
    monkeypatch.setattr(Engine, "cancel", lambda self: cancelled.set())
    async with app.run_test(size=(120, 40)) as pilot:
        await timing(pilot, app)
        app.chat.prompt.focus()
        await pilot.press("m")
        await wait_until(pilot, cancelled.is_set)
        assert app.chat.parts.plain.running, "nothing has waited for its end"
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.chat.state.busy)
        running = app.chat.state.turn.running
        assert running is not None
        assert running.turn is None
        over.set()
        await idle(pilot)
        assert running.turn is not None


async def test_not_on_a_machine_that_is_slow(app: DFlashApp, endless: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is sent meanwhile would wait for the end of a step."""
    monkeypatch.setattr(background_plain, "SLOW_MS", 0.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, QUESTION)
        await idle(pilot)
        app.chat.parts.plain._begin()
        assert Endless.started == 0
