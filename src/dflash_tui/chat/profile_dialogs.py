"""Saving, renaming, deleting and restoring profiles from a screen: questions and messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from textual.screen import Screen

from dflash_core.errors import DFlashError
from dflash_tui.application.settings.profiles import Profile
from dflash_tui.chat.profiles import ProfileKeeper, suggested
from dflash_tui.widgets.confirm_dialog import ConfirmScreen
from dflash_tui.widgets.line_dialog import LineScreen


class ProfileDialogs:
    """Belongs to one screen. `said` is called with the result, once the action is done or refused."""

    def __init__(self, screen: Screen[None], keeper: ProfileKeeper, said: Callable[[str], None]) -> None:
        self._screen, self._keeper, self._said = screen, keeper, said

    def save(self, pair: tuple[Path | None, Path | None], profile: Profile | None) -> None:
        """Save a pair with the present context, cache type and parameters. `profile`: the profile with this pair."""

        def named(name: str | None) -> None:
            if name is None:
                return
            made, before = self._keeper.of_pair(name, *pair), self._keeper.all
            if name in before and (profile is None or profile.name != name):
                question = f"There is a profile {name}: {before[name].words}."
                self._screen.app.push_screen(
                    ConfirmScreen(question, "replace it", "keep it"), lambda yes: self._kept(made) if yes else None
                )
            else:
                self._kept(made)

        question = "A name for this model with the present context, cache type and parameters"
        self._screen.app.push_screen(LineScreen(question, profile.name if profile else suggested(pair[0])), named)

    def _kept(self, made: Profile) -> None:
        self._do(lambda: self._keeper.save(made))

    def rename(self, profile: Profile) -> None:
        def named(name: str | None) -> None:
            if name is not None:
                self._do(lambda: self._keeper.rename(profile.name, name))

        self._screen.app.push_screen(LineScreen("A new name", profile.name), named)

    def delete(self, profile: Profile) -> None:
        self._do(lambda: self._keeper.delete(profile.name))

    def undo(self) -> None:
        """Restore the profile that was deleted or replaced last."""
        self._do(self._keeper.undo)

    def _do(self, what: Callable[[], str]) -> None:
        try:
            said = what()
        except DFlashError as error:
            said = str(error)
        self._said(said)
