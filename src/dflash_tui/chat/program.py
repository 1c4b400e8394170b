"""The chat screen's actions on the whole program: change of model and theme, the log, notice of a long answer."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

from dflash_core.errors import DFlashError, KnobError
from dflash_core.memory import OTHERS
from dflash_tui.application.hub.places import Place, places
from dflash_tui.application.log import LOG, log_file
from dflash_tui.application.session import Loader, LoadRequest
from dflash_tui.application.settings.config import Settings
from dflash_tui.application.settings.presets import Profile
from dflash_tui.chat import collector
from dflash_tui.chat.background_plain import BackgroundPlain
from dflash_tui.chat.conversation import ConversationController
from dflash_tui.chat.desk import Desk
from dflash_tui.chat.loading import PairLoading
from dflash_tui.chat.tuning import Tuning
from dflash_tui.text.notices import Notices
from dflash_tui.widgets.text_dialog import TextScreen

TIDY_S = 1.0  # after an answer, once its last frames are drawn


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pair to load, and to remember once it has loaded. `profile`: its parameters then apply."""

    request: LoadRequest
    profile: Profile | None = None


class Program(Protocol):
    """The part of the app that outlives its screens."""

    settings: Settings
    notices: Notices

    @property
    def request(self) -> LoadRequest:
        """What was loaded last, or is being loaded."""

    def asked_for(self, target: Path | None, draft: Path | None, context: int, kv: str) -> LoadRequest: ...
    def open_model(self, request: LoadRequest) -> tuple[Loader, str]: ...
    def open_again(self, context: int, kv: str) -> tuple[Loader, str]: ...
    def check(self, request: LoadRequest) -> None: ...
    def stay_with(self, request: LoadRequest) -> None: ...
    def restart(self, conversation: str, context: int, kv: str) -> None: ...
    def remember_model(self, target: Path | None, draft: Path | None) -> str: ...
    def remember_setting(self, name: str, value: str) -> str: ...
    def choose_theme(self, name: str) -> str: ...
    def tell_away(self, seconds: float, what: str) -> None: ...
    def copy(self, text: str, what: str) -> None: ...


class ProgramController:
    """Belongs to one chat screen."""

    def __init__(
        self,
        desk: Desk,
        conversation: ConversationController,
        tuning: Tuning,
        loading: PairLoading,
        plain: BackgroundPlain,
    ) -> None:
        self._desk = desk
        self._loading = loading
        self._plain = plain
        self._conversation = conversation
        self._tuning = tuning
        self._wanted: Wanted | None = None
        self.presets = tuning.presets
        self.present: LoadRequest | None = None  # the loaded pair, or the last one

    @property
    def _program(self) -> Program:
        return cast(Program, self._desk.screen.app)

    def places(self) -> list[Place]:
        """The places to search for models."""
        return places(self._program.settings.model_folders)

    @property
    def given_back(self) -> int:
        """Bytes of device memory that the present pair holds, and releases before another one is loaded."""
        session = self._desk.session
        if session is None:
            return 0
        held = session.memory().components
        return sum(one.bytes if one.measured is None else one.measured for one in held if one.name != OTHERS)

    def planned(self, target: Path | None, draft: Path | None, context: int | None = None, kv: str = "") -> LoadRequest:
        """What `change_model` would load."""
        tuning = self._tuning
        return self._program.asked_for(target, draft, tuning.context if context is None else context, kv or tuning.kv)

    def change_model(
        self, target: Path | None, draft: Path | None, *, same: bool = False, context: int | None = None, kv: str = ""
    ) -> None:
        """Load another pair, and remember it if it loads; None: the demo pair. `same`: it is loaded already. `context`
        and `kv`: those chosen for it, otherwise as before."""
        self._change(Wanted(self.planned(target, draft, context, kv)), same=same)

    def use_profile(self, profile: Profile) -> None:
        """Load a profile's pair; its parameters apply once it is loaded, and not at all if it does not load."""
        request = self.planned(profile.target, profile.draft, profile.context, profile.kv)
        self._change(Wanted(replace(request, knobs=profile.knobs), profile))

    @property
    def refusal(self) -> str:
        """Why no other model can be loaded now; "" if one can."""
        desk = self._desk
        if desk.no_model:
            return desk.no_model
        if desk.busy or desk.loading_now or desk.experiment is not None:
            return "a load or an answer is running: change the model after its end"
        return ""

    def _change(self, wanted: Wanted, *, same: bool = False) -> None:
        if not same and (refusal := self.refusal):
            self._desk.say(refusal)
            return
        self._wanted = wanted
        if same:
            self.loaded()
        else:
            self._replace(*self._program.open_model(wanted.request))

    def _replace(self, loader: Loader, title: str) -> None:
        self._plain.stop()
        request, program = self._program.request, self._program
        self._loading.replace(loader, title, lambda: program.check(request))

    def kept(self) -> None:
        """The requested pair failed its check: a reload means the present one again."""
        self._wanted = None
        if self.present is not None:
            self._program.stay_with(self.present)

    def came_back(self) -> None:
        """The requested pair did not load; the previous one did, with the context and cache type that it had."""
        self.kept()
        if self.present is not None:
            self._tuning.context, self._tuning.kv = self.present.context, self.present.kv

    def not_loaded(self) -> None:
        """No pair is loaded. Unless another one is requested, the next load is the last one that was loaded."""
        if self.present is not None:
            self.kept()

    def loaded(self) -> None:
        """The requested pair is loaded: open it at the next start."""
        self.present, wanted, self._wanted = self._program.request, self._wanted, None
        if wanted is None:
            return
        request = wanted.request
        if problem := self._program.remember_model(request.target, request.draft):
            self._desk.screen.notify(problem, title="Not remembered", severity="warning")
        self._tuning.context, self._tuning.kv = request.context, request.kv
        if wanted.profile is not None:
            self._take_knobs(wanted.profile)

    def _take_knobs(self, profile: Profile) -> None:
        """The profile's pair is loaded: apply its parameters, all or none."""
        self.presets.used(profile.name)
        try:
            self._tuning.set_all(profile.knobs)
        except KnobError as error:
            self._desk.say(f"profile {profile.name}: {error}; the parameters are unchanged")
        else:
            session = self._desk.session
            has = session.context_length if session is not None else profile.context
            self._desk.say(f"profile {profile.name}: {profile.within(has).words}")

    def reload(self) -> None:
        """Load the present pair again, with the settings that need a load."""
        desk = self._desk
        if desk.no_model:
            desk.say(desk.no_model)
        elif desk.busy or desk.loading_now or desk.experiment is not None:
            desk.say("a load or an answer is running: reload after its end")
        elif desk.flow.lost:
            self._program.restart(self._conversation.resumable, self._tuning.context, self._tuning.kv)
        else:
            self._replace(*self._program.open_again(self._tuning.context, self._tuning.kv))

    def use_theme(self, name: str) -> None:
        """Change the colours and remember them. Raises DFlashError for an unknown theme."""
        known = self._desk.screen.app.available_themes
        if name not in known:
            raise DFlashError(f"no theme {name!r}; there are {', '.join(sorted(known))}")
        self._desk.say(self._program.choose_theme(name) or f"theme {name}, from now on")

    def remember_system(self, text: str) -> str:
        """Start new conversations with this system message, from now on. Returns the problem, or ""."""
        self._conversation.current.default_system = text
        return self._program.remember_setting("system", text)

    def show_notices(self) -> None:
        """Show the earlier messages that have disappeared."""
        self._desk.screen.app.push_screen(TextScreen("Notices", self._program.notices.page()))

    def say_where_the_log_is(self) -> None:
        self._desk.say(f"the log is {log_file()}")

    def copy(self, text: str, what: str) -> None:
        """Copy a text, and say where it went; `what` names it."""
        self._program.copy(text, what)

    def tell_away(self, seconds: float, what: str) -> None:
        """A task that took `seconds` has ended: the user may be elsewhere."""
        self._program.tell_away(seconds, what)

    def turn_ended(self, *, refused: bool) -> None:
        """Log the turn's figures, notify a user who is elsewhere, and use the pause for garbage collection."""
        desk, meter = self._desk, self._desk.flow.meter
        if meter is not None and not refused:  # after a refusal they are those of the turn before
            spent = time.monotonic() - meter.started
            figures = (meter.tokens, meter.totals.steps, meter.overall_rate, spent)
            LOG.info("turn: %d tokens, %d steps, %.1f tok/s, %.1f s", *figures)
            self.tell_away(spent, "the answer has failed" if desk.flow.error else "the answer is complete")
        desk.screen.set_timer(TIDY_S, self._tidy)

    def _tidy(self) -> None:
        if not self._desk.busy and self._desk.experiment is None:
            collector.tidy()
