"""The demo pair for tests of the lab: how they open a screen, and wait for what runs on it."""

from __future__ import annotations

from functools import cache

from textual.pilot import Pilot
from textual.widgets import Static

from dflash_core.demo import demo_draft, demo_draft_path, demo_target_path
from dflash_core.engine import Engine, load_pair
from dflash_core.events import StageTimes, StepEvent
from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.application.engine_session import EngineSession
from dflash_tui.screens.experiment import ExperimentScreen
from dflash_tui.screens.lab import LabScreen
from dflash_tui.screens.whatif import WhatIfScreen
from dflash_tui.widgets.flash import Flash
from support.turns import step_of, tree_of

from .scenes import send
from .support import loaded, wait_until

QUESTION = "Tell me a story about a fox."
# What auto picks goes by times, and may be no draft at all. Answers are short, as every experiment gives several.
KNOBS = Knobs(drafting="tree 8", max_tokens=8)


@cache
def engine() -> Engine:
    return load_pair(demo_target_path(), demo_draft_path(), context_length=1024)


def demo(_: object) -> EngineSession:
    engine().reset()
    return EngineSession(engine(), "demo pair", KNOBS, ())


@cache
def engine_of_two() -> Engine:
    return load_pair(demo_target_path(), demo_draft("dflash2+mtp"), context_length=1024)


def two_drafters(_: object) -> EngineSession:
    engine_of_two().reset()
    return EngineSession(engine_of_two(), "demo pair", KNOBS, ())


async def asked(pilot: Pilot[int], question: str = QUESTION) -> None:
    app = pilot.app
    assert isinstance(app, DFlashApp)
    await loaded(pilot)
    before = len(app.chat.transcript.turns)
    await send(pilot, question)
    await wait_until(pilot, lambda: len(app.chat.transcript.turns) > before)
    await wait_until(pilot, lambda: not app.chat.state.busy)


async def opened(pilot: Pilot[int], command: str, screen: type[LabScreen]) -> LabScreen:
    """Type a command and wait for its screen, and for what it starts."""
    await send(pilot, command)
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, screen))
    found = pilot.app.screen
    assert isinstance(found, screen)
    await wait_until(pilot, lambda: begun(found))
    await finished(pilot)
    return found


def begun(screen: LabScreen) -> bool:
    """Whether an experiment has begun, which happens after the screen is drawn, or the screen says why not."""
    none = isinstance(screen, WhatIfScreen) and bool(text_of(screen, "#whatif-finding"))
    return screen._then is not None or bool(said(screen)) or none


async def finished(pilot: Pilot[int]) -> None:
    """Wait for the end of the experiment, which has begun or is about to."""
    app = pilot.app
    assert isinstance(app, DFlashApp)
    await pilot.pause(0.1)
    await wait_until(pilot, lambda: app.chat.state.experiment is None)
    await pilot.pause()  # what came of it is drawn


async def started(pilot: Pilot[int]) -> ExperimentScreen:
    """Wait until some runs are in."""
    app = pilot.app
    assert isinstance(app, DFlashApp)

    def some() -> bool:
        screen = app.screen
        return isinstance(screen, ExperimentScreen) and bool(screen.experiment and screen.experiment.result.trials)

    await wait_until(pilot, some)
    assert isinstance(app.screen, ExperimentScreen)
    return app.screen


def said(screen: LabScreen) -> str:
    return screen.query_one(Flash).text


def text_of(screen: LabScreen, selector: str) -> str:
    return str(screen.query_one(selector, Static).content)


def timed(nodes: int) -> StepEvent:
    """A step whose time follows from its number of nodes."""
    return step_of(tree_of(*((0, 0) for _ in range(nodes))), stages=StageTimes(verify=10 + nodes * 0.2))
