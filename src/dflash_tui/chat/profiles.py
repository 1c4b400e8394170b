"""Load, save, rename, delete and restore profiles: by commands, and from the list of models with questions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from textual.screen import Screen

from dflash_tui.application.background import aside
from dflash_tui.application.hub.walk import of_name, places
from dflash_tui.application.settings.presets import PresetError, Profile, changed
from dflash_tui.chat.controller import Controller
from dflash_tui.chat.program import ProgramController
from dflash_tui.widgets.dialogs import ConfirmScreen, ask_line
from dflash_tui.widgets.flash import reported

Say = Callable[[str | Exception], None]


@dataclass(eq=False)
class ProfileKeeper(Controller):
    _program: ProgramController
    before: Profile | None = None  # the profile that was deleted or replaced last

    def load(self, name: str, say: Say, begun: Callable[[], None] = lambda: None) -> None:
        """Load a profile, all of it or nothing; `begun` is called when loading starts. If a file is missing, `say`
        tells the user, or a file of the same name elsewhere is offered. Raises PresetError."""
        self.state.presets.read()
        profile = self.state.presets.profile(name)
        gone = profile.gone()
        if gone is None:
            begun()
            self._program.use_profile(profile)
        else:
            say(f"profile {name}: {gone} is not there; looking for {gone.name} elsewhere")
            self.screen.run_worker(self._offer(profile, gone, say, begun), group="profiles", exclusive=True)

    async def _offer(self, profile: Profile, gone: Path, say: Say, begun: Callable[[], None]) -> None:
        folders = places(self.state.settings.model_folders)
        found = await aside(lambda: of_name(gone.name, folders))
        if found is None:
            looked = ", ".join(dict.fromkeys(place.name for place in folders)) or "nowhere: no folder of models exists"
            say(f"profile {profile.name}: {gone} is not there, and no {gone.name} elsewhere ({looked})")
            return

        def answered(yes: bool | None) -> None:
            if not yes:
                say(f"profile {profile.name} stays as it is; nothing was loaded")
                return
            with reported(say):
                self.state.presets.save(profile.moved(gone, found))
                self.load(profile.name, say, begun)

        question = f"{profile.name}: {gone} is not there, but {found} is."
        self.screen.app.push_screen(ConfirmScreen(question, "change the profile, load it", "back"), answered)

    def of_present(self, name: str) -> Profile:
        """A profile of the loaded pair, with the parameters of the next turn. Raises PresetError if none is loaded."""
        request = self.state.present
        if request is None:
            raise PresetError("no model is loaded yet; load one, then save the profile")
        if request.attach:
            raise PresetError("the model is on a server; a profile names files of this machine")
        return self.of_pair(name, request.target, request.draft)

    def of_pair(self, name: str, target: Path | None, draft: Path | None) -> Profile:
        """A profile of a pair with the present context, cache type and parameters."""
        planned = self._program.planned(target, draft)
        changes = changed(self.state.knobs, self.state.recommended)
        return Profile(name, changes=changes, target=target, draft=draft, context=planned.context, kv=planned.kv)

    def save(self, profile: Profile) -> str:
        """Save it, replacing one of the same name; returns a message. Raises PresetError."""
        before = self.state.presets.profiles.get(profile.name)
        path = self.state.presets.save(profile)
        self.before = before or self.before
        how = "replaced; Ctrl+Z in the list brings the old one back" if before else f"saved in {path}"
        return f"profile {profile.name} is {how}: {profile.words}"

    def rename(self, name: str, to: str) -> str:
        """Rename it; returns a message. Raises PresetError."""
        self.state.presets.rename(name, to)
        return f"profile {name} is renamed to {to}"

    def delete(self, name: str) -> str:
        """Delete it; returns a message that says how to restore it. Raises PresetError."""
        self.before = self.state.presets.delete(name)
        return f"profile {name} is deleted; /profile undo brings it back"

    def undo(self) -> str:
        """Restore the profile that was deleted or replaced last; returns a message. Raises PresetError."""
        if self.before is None:
            raise PresetError("no profile was deleted or replaced here")
        self.state.presets.save(self.before)
        name, self.before = self.before.name, None
        return f"profile {name} is restored"

    # From a screen: `say` gets the message of what was done, or why it was refused

    def ask_to_save(
        self, screen: Screen[None], pair: tuple[Path | None, Path | None], profile: Profile | None, say: Say
    ) -> None:
        """Save a pair under a name that is asked for. `profile`: the profile with this pair, if there is one."""

        def named(name: str) -> str:
            made, before = self.of_pair(name, *pair), self.state.presets.profiles.get(name)
            if before is None or (profile is not None and profile.name == name):
                return self.save(made)

            def replace(yes: bool | None) -> None:
                with reported(say):
                    if yes:
                        say(self.save(made))

            question = f"There is a profile {name}: {before.words}."
            screen.app.push_screen(ConfirmScreen(question, "replace it", "keep it"), replace)
            return ""

        question = "A name for this model with the present context, cache type and parameters"
        ask_line(screen.app, question, profile.name if profile else _suggested(pair[0]), named, say)


def _suggested(target: Path | None) -> str:
    stem = re.sub(r"-0000\d-of-\d{5}$", "", target.stem) if target else "demo"
    return re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._")[:48] or "profile"
