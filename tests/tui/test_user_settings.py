"""The user's own settings in the app: keys that are mapped otherwise, and what is wrong with a file of settings."""

from __future__ import annotations

from collections.abc import Callable

from dflash_tui.app import DFlashApp
from dflash_tui.application.settings.config import Config, Settings, load_config, user_file
from dflash_tui.cli.command_line import key_rules
from dflash_tui.widgets.flash import Note

from .scenes import answered
from .support import idle, loaded, screen_text, shows, wait_until

MakeApp = Callable[..., DFlashApp]


async def test_wrong_settings_are_told_once_the_app_is_there(make_app: MakeApp) -> None:
    user_file().parent.mkdir(parents=True, exist_ok=True)
    user_file().write_text('mouse = 1\n[keys]\n"turn.retri" = "f10"\n')
    app = make_app(config=load_config({}, {}, key_rules=key_rules))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await loaded(pilot)
        await shows(pilot, "line 1: mouse", "turn.retri: no such action")


async def test_a_key_for_an_action_that_has_none_and_none_for_one_that_has(make_app: MakeApp) -> None:
    app = make_app(config=Config(Settings(keys={"lab.sweep": "f10", "view.side": "", "turn.retry": ""})))
    async with app.run_test(size=(120, 40)) as pilot:
        await answered(pilot)
        shown = app.chat.has_class("-side")
        await pilot.press("ctrl+b", "f12", "ctrl+r")
        await pilot.pause()
        assert app.chat.has_class("-side") == shown
        assert len(app.chat.transcript.turns[-1].answers) == 1
        assert "F1 Help  Retry" in screen_text(app), "without a key it can still be clicked"
        await pilot.press("f10")
        await wait_until(pilot, lambda: app.screen is not app.chat)
        await shows(pilot, "Sweep")


async def test_what_names_a_key_names_the_users(make_app: MakeApp) -> None:
    keys = {"turn.retry": "f10,alt+y", "view.params": "", "view.stats": "alt+s", "lab.sweep": "ctrl+s"}
    keys["lab.tune"] = "alt+u"
    app = make_app(config=Config(Settings(keys=keys)))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        app.chat.parts.tour_seen()
        await pilot.press("ctrl+b")
        await shows(pilot, "Alt+U finds the best setting", "‹Stats› Alt+S")
        app.chat.say("F2 tunes the next turn. F3 shows speed")
        await shows(pilot, "/params tunes the next turn. Alt+S shows speed")
        app.chat.say("Ctrl+R answers again, F4 and F12 are as they were")
        await shows(pilot, "F10 answers again, F4 and F12 are as they were")
        await app.chat.transcript.mount(Note("it failed", "Ctrl+R tries again."))
        await shows(pilot, "F10 tries again.")


async def test_a_remapped_key_works_and_is_shown(make_app: MakeApp) -> None:
    app = make_app(config=Config(Settings(keys={"turn.retry": "f10", "view.side": ""})))
    async with app.run_test(size=(120, 40)) as pilot:
        await answered(pilot)
        await pilot.press("f10")
        await wait_until(pilot, lambda: len(app.chat.transcript.turns[-1].answers) == 2)
        await idle(pilot)
        await shows(pilot, "F10 Retry")
        await pilot.press("ctrl+r")
        await pilot.pause()
        assert len(app.chat.transcript.turns[-1].answers) == 2, "the old key does nothing"
        await pilot.press("f1")
        await shows(pilot, "F10")
        assert "Ctrl+R" not in screen_text(app)
