"""What is reported outside the screen: a long answer that is complete, and the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.widgets._toast import Toast

from dflash_core.errors import DFlashError
from dflash_tui.app import DFlashApp
from dflash_tui.application import log
from dflash_tui.application.advice import at_home
from dflash_tui.application.settings.config import Config, Settings
from dflash_tui.terminal.clipboard import desktop_notice

from .fake import FakeSession
from .scenes import answered
from .support import loaded, screen_text, shows, wait_until

MakeApp = Callable[..., DFlashApp]


async def test_esc_closes_what_is_told_at_the_top_right(make_app: MakeApp) -> None:
    app = make_app(config=Config(problems=("/state/log cannot be written",)))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await loaded(pilot)
        app.notify("/data cannot be written", title="Data folder", timeout=600)
        await shows(pilot, "Settings and log", "/state/log", "Data folder", "Esc Close")
        app.chat.prompt.text = "typed"
        await pilot.press("escape")
        await wait_until(pilot, lambda: not app.screen.query(Toast))
        assert app.chat.prompt.text == "typed"
        assert "/data cannot be written" in app.notices.page()


async def test_many_warnings_leave_the_prompt_readable(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However many there are at a start, on the smallest screen."""
    monkeypatch.setenv("HOME", str(tmp_path))
    app = make_app(
        config=Config(problems=tuple(f"{tmp_path}/config.toml, line {n}: {'wrong ' * 15}" for n in range(9)))
    )
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await loaded(pilot)
        for title in ("Presets", "Data folder", "Trace"):
            app.chat.notify(f"{tmp_path}/{title}: {'cannot be read ' * 8}", title=title, timeout=600)
        await shows(pilot, "Settings and log", "~/config.toml, line 0", "and 7 more in the log", "~/Presets:")
        app.chat.prompt.text = "what I type " * 6
        await shows(pilot, ("what I type " * 6).strip())
        assert str(tmp_path) not in screen_text(app)


@pytest.mark.parametrize(("home", "shown"), [("/home/me", "~/x and /home/men"), ("/", "/home/me/x and /home/men")])
def test_a_home_is_shown_as_one_sign(monkeypatch: pytest.MonkeyPatch, home: str, shown: str) -> None:
    monkeypatch.setenv("HOME", home)
    assert at_home("/home/me/x and /home/men") == shown
    assert at_home("/mnt/home/me/x, 'file.d/home/me'") == "/mnt/home/me/x, 'file.d/home/me'", "another path"


@pytest.mark.parametrize(
    ("how", "seconds", "blurred", "rings"),
    [
        ("bell", 30.0, None, True),
        ("bell", 30.0, True, True),
        ("bell", 30.0, False, False),
        ("bell", 3.0, True, False),
        ("off", 30.0, True, False),
        ("desktop", 30.0, True, True),
    ],
)
async def test_a_long_answer_calls(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, how: str, seconds: float, blurred: bool | None, rings: bool
) -> None:
    app = make_app(config=Config(Settings(notify=how)))
    rung: list[bool] = []
    monkeypatch.setattr(app, "bell", lambda: rung.append(True))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        if blurred is not None:
            (app.on_app_blur if blurred else app.on_app_focus)()
        app.tell_away(seconds, "the answer is complete")
        assert bool(rung) == rings


async def test_only_an_answer_that_is_complete_is_told_as_one(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session, told = FakeSession(), list[str]()
    app = make_app(session)
    monkeypatch.setattr(app, "tell_away", lambda seconds, what: told.append(what))
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot)
        session.fail_after = 2
        await answered(pilot)
        session.refuse = DFlashError("not now")
        caplog.clear()  # another test may have had such messages kept from the beginning
        with caplog.at_level(logging.INFO, log.LOG.name):
            await answered(pilot)
    assert told == ["the answer is complete", "the answer has failed"]
    assert not [one for one in caplog.messages if one.startswith("turn:")], "one that was refused has no figures"


def test_a_desktop_notice_is_safe_and_passes_tmux() -> None:
    assert desktop_notice("done", {}) == "\x1b]9;done\x07"
    assert desktop_notice("x\x1b]0;y\x07", {}).count("\x1b") == 1
    inside = desktop_notice("done", {"TMUX": "/tmp/x"})
    assert inside == "\x1bPtmux;\x1b\x1b]9;done\x07\x1b\\"


# The log


def test_the_log_keeps_figures_and_says_where_it_cannot(tmp_path: Path) -> None:
    assert log.begin("info", path=tmp_path / "a" / "x.log") == ""
    log.LOG.info("loaded %s", "pair")
    log.LOG.debug("not at this level")
    assert (tmp_path / "a" / "x.log").read_text().endswith("INFO loaded pair\n")
    (tmp_path / "file").write_text("")
    assert "this run leaves no log" in log.begin("info", path=tmp_path / "file" / "x.log")
    log.LOG.error("goes nowhere")
    assert all(isinstance(handler, logging.NullHandler) for handler in log.LOG.handlers)


async def test_a_turn_is_logged_without_its_text(make_app: MakeApp, tmp_path: Path) -> None:
    log.begin("debug", path=tmp_path / "x.log")
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot, "a secret question")
    text = (tmp_path / "x.log").read_text()
    assert "loaded Qwen3.5-demo" in text
    assert "turn: 110 tokens" in text
    assert "secret" not in text
    assert "Speculative" not in text
