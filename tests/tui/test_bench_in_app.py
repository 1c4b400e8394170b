"""What the app costs the decoder, measured in the app."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence

import pytest
from textual.pilot import Pilot

from dflash_core.errors import DFlashError
from dflash_tui.app import DFlashApp
from dflash_tui.chat.ui_bench import MOST_TURNS, Place, Timed, UiTax, measure_lag, measure_tax, tax_notes, tax_table
from dflash_tui.screens import bench
from dflash_tui.screens.bench import BenchScreen
from dflash_tui.widgets.strip import TitleRow
from dflash_tui.widgets.transcript import Transcript

from .fake import FakeSession
from .scenes import answered, send
from .support import idle, leave, loaded, shows, wait_until

MakeApp = Callable[..., DFlashApp]


def place(app: DFlashApp) -> Place:
    return Place(app.state, app.chat, app.chat.gauges.frame)


async def test_bench_in_the_app_leaves_the_conversation(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 1)
    session = FakeSession(pace=0.001)
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await answered(pilot)
        before = list(session.conversation.messages)
        turn, used = app.chat.state.turn, app.chat.query_one(TitleRow).context
        assert used[0] > 0
        await send(pilot, "/bench")
        await wait_until(pilot, lambda: isinstance(app.screen, BenchScreen))
        await shows(pilot, "What the app costs the decoder", "They are no part of the conversation")
        await shows(pilot, "headless", "in the app", "lost")
        await leave(pilot)
        assert app.chat.state.turn is turn
        assert session.conversation.messages == before
        assert len(app.chat.transcript.turns) == 1
        await app.chat.gauges.tick()
        await pilot.pause()
        assert app.chat.query_one(TitleRow).context == used, "the prompts of the bench are none of the conversation's"


async def test_esc_ends_bench_and_keeps_what_is_measured(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 1_000)  # it does not end by itself meanwhile
    monkeypatch.setattr(bench, "measure_tax", functools.partial(measure_tax, prompts=("one",)))
    session = FakeSession(pace=0.001)
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await answered(pilot)
        await send(pilot, "/bench")
        await shows(pilot, "round 2 of 1,000 · prompt", "Esc Stop")
        turns = app.chat.transcript.turns
        assert len(turns) == 1, "what is measured is on a screen of its own"
        await pilot.press("escape")
        await shows(pilot, "of 1,000 rounds", "headless", "Esc Back")
        assert app.chat.state.experiment is None
        assert app.screen.query_one(Transcript).turns == []
        await leave(pilot)


@pytest.mark.parametrize("arm", ["_headless", "_in_app"])
async def test_bench_is_stopped_in_either_arm(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, arm: str) -> None:
    """The turn never ends by itself, so stopping the benchmark must stop the turn."""
    from dflash_tui.chat import ui_bench

    session = FakeSession(gate=threading.Semaphore(3))
    began = threading.Event()

    async def begin(*args: object) -> object:
        began.set()
        return await run(*args)

    async def skip(*args: object) -> Timed:
        return Timed(1, ui_bench.SPAN_S, 1)

    run = getattr(ui_bench, arm)
    for name in ("_headless", "_in_app"):
        monkeypatch.setattr(ui_bench, name, begin if name == arm else skip)
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, "/bench")
        await wait_until(pilot, began.is_set)
        await shows(pilot, "Esc Stop")
        await pilot.press("escape")
        await shows(pilot, "nothing was measured: it was stopped before the first prompt was measured")
        assert app.chat.state.experiment is None


async def test_the_prompts_of_a_first_round_are_kept(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_tui.chat import ui_bench

    turns: list[str] = []

    async def timed(chat: object, prompt: str, *args: object) -> Timed:
        turns.append(prompt)
        return Timed(8, ui_bench.SPAN_S, 4, 0.01)

    monkeypatch.setattr(ui_bench, "_headless", timed)
    monkeypatch.setattr(ui_bench, "_in_app", timed)
    app = make_app()
    async with app.run_test() as pilot:
        await loaded(pilot)
        app.chat.tuning.set(mode="chain")
        # Two turns of warming up and two of a round for each prompt.
        tax = await measure_tax(place(app), ("one", "two", "three"), 2, stopping=lambda: len(turns) > 10)
        assert [pair.prompt for pair in tax.pairs] == ["one", "two"]
        assert (tax.rounds, tax.left) == (1, "stopped in the first round, after 2 of 3 prompts")
        assert tax.left in tax_notes(tax)
        assert "middle half" not in tax_notes(tax), "one round has none"
        turns.clear()
        tax = await measure_tax(place(app), ("one", "two"), 3, stopping=lambda: len(turns) > 9)
        assert [len(pair.app) for pair in tax.pairs] == [1, 1]
        assert (tax.rounds, tax.left) == (1, "stopped after 1 of 3 rounds")


async def test_the_app_may_end_while_bench_runs(make_app: MakeApp) -> None:
    app = make_app(FakeSession(pace=0.001))
    async with app.run_test() as pilot:
        await loaded(pilot)
        await send(pilot, "/bench")
        await wait_until(
            pilot, lambda: isinstance(app.screen, BenchScreen) and bool(app.screen.query_one(Transcript).turns)
        )
    assert not app.fault


@pytest.mark.parametrize("ask", [lambda app: app.chat.say("late"), lambda app: app.screen])
async def test_a_worker_that_outlives_the_screens_is_no_fault(
    make_app: MakeApp, ask: Callable[[DFlashApp], object]
) -> None:
    app = make_app(FakeSession())
    ended = asyncio.Event()

    async def late() -> None:
        await ended.wait()
        ask(app)

    close_all = app._close_all

    async def slowly() -> None:
        await close_all()
        ended.set()
        await worker._task  # on a slow machine a worker runs here, after its screen and before it is cancelled

    app._close_all = slowly  # type: ignore[method-assign]
    async with app.run_test() as pilot:
        await loaded(pilot)
        worker = app.run_worker(late())
    assert not app.fault


async def taxed(app: DFlashApp, pilot: Pilot[int], prompts: Sequence[str], rounds: int) -> UiTax | Exception:
    found: list[UiTax | Exception] = []

    async def run() -> None:
        try:
            found.append(await measure_tax(place(app), prompts, rounds=rounds))
        except DFlashError as error:
            found.append(error)

    app.chat.run_worker(run())
    await wait_until(pilot, lambda: bool(found))
    return found[0]


async def test_bench_counts_what_both_arms_decoded(make_app: MakeApp) -> None:
    session = FakeSession(pace=0.001)
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        tax = await taxed(app, pilot, ("one", "two"), 2)
        assert isinstance(tax, UiTax)
        # What auto chooses between, and nothing that a policy learns from times.
        assert [(pair.mode, pair.prompt) for pair in tax.pairs] == [
            (mode, prompt) for mode in ("ar", "tree") for prompt in ("one", "two")
        ]
        assert {knobs.policy for _, knobs in session.asked} == {"fixed"}
        for pair in tax.pairs:
            assert len(pair.headless) == len(pair.app)
            assert len(pair.app) in range(2, 2 * MOST_TURNS + 1, 2), "short turns are run again, in each round as often"
            assert len({(one.tokens, one.steps) for one in (*pair.headless, *pair.app)}) == 1
            assert all(one.app_s > 0 for one in (*pair.headless, *pair.app))
        headless, shown = tax.rates
        assert tax.loss == pytest.approx(1 - shown / headless)
        low, high = tax.spread
        assert low <= high
        assert tax_table(tax).splitlines()[-1].startswith("all")
        assert "plain: one" in tax_table(tax)
        assert "tree: two" in tax_table(tax)


async def test_bench_measures_the_mode_that_is_asked_for(make_app: MakeApp) -> None:
    app = make_app(FakeSession(pace=0.001))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        app.chat.tuning.set(mode="chain")
        tax = await taxed(app, pilot, ("one",), 1)
        assert isinstance(tax, UiTax)
        assert [pair.mode for pair in tax.pairs] == ["chain"]


async def test_arms_that_take_other_steps_are_no_measurement(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dflash_tui.chat import ui_bench

    async def fewer(*args: object) -> Timed:
        timed = await headless(*args)  # type: ignore[arg-type]
        return dataclasses.replace(timed, steps=timed.steps - 1)

    headless = ui_bench._headless
    monkeypatch.setattr(ui_bench, "_headless", fewer)
    app = make_app(FakeSession(pace=0.001))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        refused = await taxed(app, pilot, ("one",), 1)
        assert "in different steps" in str(refused)


async def test_bench_is_refused_where_it_would_mislead(make_app: MakeApp) -> None:
    session = FakeSession(gate=threading.Semaphore(3))
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, "hi")
        await shows(pilot, "writing")
        await send(pilot, "/bench")
        await shows(pilot, "no answer under way")
        app.chat.parts.sending.flow.stop()
        await idle(pilot)


async def test_a_fed_document_is_shown_whole(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_tui.chat import ui_bench

    documents = {name: text[:900] for name, text in ui_bench.DOCUMENTS.items()}
    monkeypatch.setattr(ui_bench, "DOCUMENTS", documents)
    monkeypatch.setattr(ui_bench, "RATE", 3_000)
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        found = []

        async def run() -> None:
            found.extend(await measure_lag(place(app), tuple(documents)))

        app.chat.run_worker(run())
        await wait_until(pilot, lambda: len(found) == len(documents))
        assert [lag.document for lag in found] == list(documents)
        for lag in found:
            assert lag.tokens == 225
            assert 0 <= lag.percentile(0.5) <= lag.percentile(0.95) <= max(lag.late_ms)
