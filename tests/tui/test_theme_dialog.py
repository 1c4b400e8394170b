"""Themes in the app: tried under the cursor, kept by Enter, given by name, made by the user, and impossible to keep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dflash_tui.app import DFlashApp
from dflash_tui.application.settings.config import config_folder, load_config, user_file
from dflash_tui.screens.full import ThemesScreen

from .scenes import send
from .support import leave, loaded, shows, wait_until

MakeApp = Callable[..., DFlashApp]


async def test_a_theme_is_tried_and_kept(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "/theme")
        await wait_until(pilot, lambda: isinstance(app.screen, ThemesScreen))
        await pilot.press("down")
        await wait_until(pilot, lambda: app.theme == "dflash-paper")
        assert not user_file().exists(), "trying is not choosing"
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.screen is app.chat)
        assert app.theme == "dflash-paper"
    again = make_app(config=load_config({}, {}, project=Path("none")))
    async with again.run_test(size=(80, 24)):
        assert again.theme == "dflash-paper"


async def test_esc_takes_a_tried_theme_back(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "/theme")
        await wait_until(pilot, lambda: isinstance(app.screen, ThemesScreen))
        await pilot.press("down", "down")
        await wait_until(pilot, lambda: app.theme != "dflash-night")
        await leave(pilot)
        assert app.theme == "dflash-night"
        assert not user_file().exists()


async def test_a_theme_by_name(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(100, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "/theme none such")
        await shows(pilot, "no theme 'none such'; there are")
        await send(pilot, "/theme dflash-paper")
        await shows(pilot, "theme dflash-paper, from now on")


async def test_a_user_theme_comes_from_the_config_folder(make_app: MakeApp) -> None:
    folder = config_folder() / "themes"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('name = "mine"\nprimary = "#ff0000"\n')
    (folder / "bad.toml").write_text('name = "bad"\n\nprimary = "no colour"\n')
    app = make_app(theme="mine")
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await loaded(pilot)
        assert app.theme == "mine"
        await shows(pilot, "bad.toml", "primary")


async def test_a_read_only_config_folder_is_said(make_app: MakeApp) -> None:
    config_folder().parent.mkdir(parents=True, exist_ok=True)
    config_folder().write_text("a file where the folder should be")
    app = make_app()
    async with app.run_test(size=(120, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "/theme dflash-paper")
        await shows(pilot, "cannot", "written")  # the path before it may break the line
        assert app.theme == "dflash-paper", "for as long as the app is open"
