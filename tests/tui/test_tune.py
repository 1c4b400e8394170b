"""The Tune screen over the demo pair: the best setting by one key; Esc keeps what is done, Enter uses it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dflash_core.knobs import Knobs
from dflash_core.lab import candidates
from dflash_core.lab.grid import Setting
from dflash_core.lab.halving import Arm, Run
from dflash_core.limits import Limits
from dflash_tui.app import DFlashApp
from dflash_tui.figures.measurements import Measurements
from dflash_tui.screens.tune import PastScreen, TuneScreen
from dflash_tui.text import tune as tune_text
from dflash_tui.widgets.line_dialog import LineScreen
from dflash_tui.widgets.literal import Static

from .fake import FakeSession
from .support import leave, loaded, shows, wait_until
from .test_lab import KNOBS, asked, demo, finished

MakeApp = Callable[..., DFlashApp]
FEW = ((4, 0.0), (15, 0.1))


@pytest.fixture
def app(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> DFlashApp:
    """The demo pair with short answers, and few settings to try: how they are chosen has tests of its own."""

    def few(now: Knobs, limits: Limits) -> list[Arm]:
        found = [Arm(Setting("auto", now), "now"), Arm(Setting("plain", now.replace(mode="ar")), "plain")]
        for budget, p_min in FEW:
            knobs = now.replace(mode="tree", policy="fixed", budget=budget, p_min=p_min)
            found.append(Arm(Setting(candidates.label(knobs), knobs)))
        return found

    monkeypatch.setattr(candidates, "arms", few)
    monkeypatch.setattr("dflash_core.lab.tune.around", lambda *_: [])
    return make_app(load=demo, knobs=KNOBS)


async def test_one_key_to_the_best_setting_on_the_conversations_prompts(app: DFlashApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await asked(pilot)
        messages = list(app.chat.session.conversation.messages)  # type: ignore[union-attr]
        await pilot.press("f8")
        await wait_until(pilot, lambda: isinstance(app.screen, TuneScreen))
        await shows(pilot, "on the last 1 prompt of this conversation")
        await finished(pilot)
        screen = app.screen
        assert isinstance(screen, TuneScreen)
        tune = screen.tune
        assert tune is not None
        assert tune.complete
        assert {one.role for one in tune.standings} >= {"now", "plain"}
        await shows(pilot, "now", "plain", "tree 4", "tree 15, p_min 0.1", "★")
        assert tune.verdict is not None
        words = str(screen.query_one("#tune-words", Static).content)
        assert tune.arms[tune.verdict.best].setting.label in words
        if tune.arms[tune.verdict.best].role == "now":
            await pilot.press("down")
        await pilot.press("enter")
        await shows(pilot, "from the next turn; s keeps it as a preset")
        await pilot.press("s")
        await wait_until(pilot, lambda: isinstance(app.screen, LineScreen))
        await pilot.press("enter")
        await shows(pilot, "preset tuned is kept")
        assert "tuned" in app.chat.tuning.presets.names
        await pilot.press("h")
        await wait_until(pilot, lambda: isinstance(app.screen, PastScreen))
        await shows(pilot, "tune", "tree 4")
        await pilot.press("enter", "down", "enter")
        await shows(pilot, "from the next turn")
        await pilot.press("escape", "escape")
        await wait_until(pilot, lambda: app.screen is app.chat)
        assert list(app.chat.session.conversation.messages) == messages  # type: ignore[union-attr]
        kept = Measurements(app.chat.past.folder, "demo pair").newest_first
        assert [one.what for one in kept] == ["tune"]
        assert sum(row.mark == "best" for row in kept[0].rows) == 1


async def test_esc_keeps_what_is_done_and_examples_do_without_a_conversation(app: DFlashApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("f8")
        await shows(pilot, "on 4 examples; f measures on a file of yours")
        screen = app.screen
        assert isinstance(screen, TuneScreen)
        await wait_until(pilot, lambda: screen.tune is not None and len(screen.tune.standings) > 1, timeout=60)
        await pilot.press("escape")
        await finished(pilot)
        assert app.screen is screen
        await shows(pilot, "so far:", "auto")
        assert screen.tune is not None
        assert screen.tune.standings
        await leave(pilot)


async def test_without_a_drafter_there_is_nothing_to_tune(make_app: MakeApp) -> None:
    class Bare(FakeSession):
        def laboratory(self):
            class Lab:
                limits = self.limits

            return Lab()

    app = make_app(Bare(draft_block=0))
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await pilot.press("f8")
        await shows(pilot, "no drafter is loaded, so there is nothing to tune")
        await pilot.press("escape")
        app.chat.open_page("whatif")
        await shows(pilot, "No drafter is loaded")


def standings(speeds: dict[str, float], pairs: int):
    from dflash_core.lab.halving import Halving

    arms = [
        Arm(Setting(name, Knobs(mode="tree", budget=n + 1)), "now" if name == "now" else "")
        for n, name in enumerate(speeds)
    ]
    it = Halving(arms)
    while (one := it.next()) is not None and one.pair < pairs:
        speed = speeds[it.arms[one.arm].setting.label] + one.pair
        it.add(one, Run(speed, 3.5, 21.0, 0.1))
    return it


def test_every_share_is_of_the_figures_beside_it() -> None:
    it = standings({"now": 140.0, "fast": 165.0}, 8)
    verdict = it.verdict()
    assert verdict is not None
    said = tune_text.words(it.arms, verdict, running=False, complete=True)
    assert said == f"fast: {verdict.tok_s:.0f} tok/s, now {verdict.now_tok_s:.0f}: +17 %; real: 8 of 8 pairs"
    assert f"{(verdict.tok_s / verdict.now_tok_s - 1) * 100:.0f}" == "17"
    same = standings({"now": 140.0, "slow": 120.0}, 8)
    assert tune_text.words(same.arms, same.verdict(), running=True, complete=False).startswith(
        "so far: the present setting is the best: now"
    )
    rows = tune_text.lines(it.standings(), verdict, width=120)
    assert rows[0].cells[0] == "★"
    assert rows[1].cells[4] == "now"
    assert "(8 of 8)" in rows[0].cells[4]
    assert len(tune_text.headings(width=120)) == len(rows[0].cells)
    assert len(tune_text.headings(width=80)) == len(tune_text.lines(it.standings(), verdict, width=80)[0].cells)
    few = standings({"now": 140.0, "fast": 165.0}, 2)
    assert "too few pairs to tell yet" in tune_text.words(few.arms, few.verdict(), running=False, complete=False)
