"""What the app costs the decoder, as `tools.bench.ui` measures it in the app."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Sequence

import pytest
from textual.pilot import Pilot
from tools.bench import ui_tax
from tools.bench.ui_tax import MAX_TURNS, Place, UiTax, measure_lag, measure_tax, tax_notes, tax_table

from dflash_core.errors import DFlashError
from dflash_tui.app import DFlashApp
from dflash_tui.widgets.strip import TitleRow

from .fake import FakeSession
from .scenes import answered, send
from .support import idle, loaded, shows, wait_until

MakeApp = Callable[..., DFlashApp]


def place(app: DFlashApp) -> Place:
    return Place(app.state, app.chat, app.chat.gauges.frame)


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


async def test_it_leaves_the_conversation_as_it_is(make_app: MakeApp) -> None:
    session = FakeSession(pace=0.001)
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await answered(pilot)
        before = list(session.conversation.messages)
        flow, used = app.chat.parts.sending.flow, app.chat.query_one(TitleRow).context
        assert used[0] > 0
        assert isinstance(await taxed(app, pilot, ("one",), 1), UiTax)
        assert app.chat.parts.sending.flow is flow
        assert session.conversation.messages == before
        assert len(app.chat.transcript.turns) == 1
        await app.chat.gauges.tick()
        await pilot.pause()
        assert app.chat.query_one(TitleRow).context == used, "what is measured is none of the conversation's"


async def test_it_is_refused_while_an_answer_is_written(make_app: MakeApp) -> None:
    app = make_app(FakeSession(gate=threading.Semaphore(3)))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, "hi")
        await shows(pilot, "writing")
        with pytest.raises(DFlashError, match="an answer is being written"):
            await measure_lag(place(app), ("prose",))
        app.chat.parts.sending.flow.stop()
        await idle(pilot)


async def test_bench_counts_what_both_arms_decoded(make_app: MakeApp) -> None:
    session = FakeSession(pace=0.001)
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        tax = await taxed(app, pilot, ("one", "two"), 2)
        assert isinstance(tax, UiTax)
        # What auto chooses between, and nothing that a policy learns from times.
        assert [(pair.mode, pair.prompt) for pair in tax.pairs] == [
            (mode, prompt) for mode in ("plain", "tree") for prompt in ("one", "two")
        ]
        assert {knobs.mode for _, knobs in session.asked} == {"plain", "tree"}
        for pair in tax.pairs:
            assert len(pair.headless) == len(pair.app)
            assert len(pair.app) in range(2, 2 * MAX_TURNS + 1, 2), "short turns are run again, in each round as often"
            assert len({(one.tokens, one.steps) for one in (*pair.headless, *pair.app)}) == 1
            assert all(one.app_s > 0 for one in (*pair.headless, *pair.app))
        headless, shown = tax.rates
        assert tax.loss == pytest.approx(1 - shown / headless)
        low, high = tax.spread
        assert low <= high
        assert tax_table(tax).splitlines()[-1].startswith("all")
        assert "plain: one" in tax_table(tax)
        assert "tree: two" in tax_table(tax)
        assert "middle half of 2" in tax_notes(tax)


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
    async def fewer(*args: object) -> ui_tax.Timed:
        timed = await headless(*args)  # type: ignore[arg-type]
        return dataclasses.replace(timed, steps=timed.steps - 1)

    headless = ui_tax._headless
    monkeypatch.setattr(ui_tax, "_headless", fewer)
    app = make_app(FakeSession(pace=0.001))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        refused = await taxed(app, pilot, ("one",), 1)
        assert "in different steps" in str(refused)


async def test_a_fed_document_is_shown_whole(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = {name: text[:900] for name, text in ui_tax.DOCUMENTS.items()}
    monkeypatch.setattr(ui_tax, "DOCUMENTS", documents)
    monkeypatch.setattr(ui_tax, "RATE", 3_000)
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
