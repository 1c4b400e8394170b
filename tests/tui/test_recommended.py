"""Sampling that is recommended for the loaded model: the defaults of the panel, and greedy by one key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dflash_core.arch.recommended import recommended
from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.application.lab_request import adopted
from dflash_tui.application.session import LoadRequest
from dflash_tui.screens.experiments import SweepScreen

from .fake import FakeSession, loader
from .scenes import send
from .support import loaded, shows, wait_until

MakeApp = Callable[..., DFlashApp]
QWEN3 = recommended({"general.name": "Qwen3 8B"})
GEMMA = recommended({"general.name": "Gemma 3 4B It"})
WARM = Knobs(temperature=0.7, top_p=0.8, top_k=20)


async def test_they_are_the_defaults_of_the_panel(make_app: MakeApp) -> None:
    app = make_app(FakeSession(recommended=QWEN3))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        assert app.chat.state.knobs == app.chat.state.used == WARM
        await pilot.press("f2")
        row = app.chat.inspector.params_panel.row("temperature")
        row.focus()
        await shows(pilot, "default 0.70, as", "recommended for Qwen3")
        assert row.at_default
        await pilot.press("right")
        await wait_until(pilot, lambda: app.chat.state.knobs.temperature > 0.7)
        await pilot.press("backspace")
        await wait_until(pilot, lambda: app.chat.state.knobs == WARM)
        assert app.chat.tuning.preset == "default"


async def test_greedy_is_a_key_away_and_back(make_app: MakeApp) -> None:
    app = make_app(FakeSession(recommended=QWEN3))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("alt+g")
        await shows(pilot, "greedy from the next turn")
        assert app.chat.state.knobs == Knobs()
        await pilot.press("alt+g")
        await shows(pilot, "sampling as recommended for Qwen3 from the next turn: temperature 0.70, top_k 20")
        assert app.chat.state.knobs == WARM


async def test_without_a_recommendation_the_key_says_so(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("alt+g")
        await shows(pilot, "no sampling is recommended for this model")
        assert app.chat.state.knobs == Knobs()


async def test_thinking_takes_its_own_and_leaves_what_was_set(make_app: MakeApp) -> None:
    app = make_app(FakeSession(recommended=QWEN3))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, "/set top_k 7")
        await send(pilot, "/think on")
        await wait_until(pilot, lambda: app.chat.state.knobs.thinking)
        assert app.chat.state.knobs == Knobs(thinking=True, temperature=0.6, top_p=0.95, top_k=7)
        await send(pilot, "/think off")
        await wait_until(pilot, lambda: app.chat.state.knobs == replace(WARM, top_k=7))
        await send(pilot, "/reset")
        await wait_until(pilot, lambda: app.chat.state.knobs == WARM)


async def test_another_model_brings_its_own(make_app: MakeApp) -> None:
    def loaders(request: LoadRequest) -> object:
        return loader(FakeSession(title="other", recommended=GEMMA))

    app = make_app(FakeSession(recommended=QWEN3), loaders=loaders)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        app.chat.tuning.set(top_k=7)
        app.chat.parts.program.change_model(None, None)
        await wait_until(pilot, lambda: app.chat.state.model == "other")
        await wait_until(pilot, lambda: app.chat.state.knobs == Knobs(temperature=1.0, top_p=0.95, top_k=7))


async def test_values_of_the_command_line_win(make_app: MakeApp) -> None:
    app = make_app(FakeSession(recommended=QWEN3), Knobs(max_tokens=99))
    app.state.request = replace(app.state.request, chosen=frozenset({"temperature"}))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        assert app.chat.state.knobs == Knobs(max_tokens=99)


async def test_the_lab_measures_greedily_and_leaves_the_sampling(make_app: MakeApp) -> None:
    session = FakeSession(recommended=QWEN3)
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, "hi")
        await wait_until(pilot, lambda: bool(session.turns) and not app.chat.state.busy)
        screen = SweepScreen(app.chat.parts)
        arms = screen.plan("budget=4,15", session).arms
        assert {arm.knobs.temperature for arm in arms} == {0.0}
        assert adopted(arms[0], arms, WARM, ()) == replace(WARM, drafting="tree 4")
        heated = screen.plan("temperature=0,1", session).arms
        assert adopted(heated[0], heated, WARM, ()).temperature == 0
