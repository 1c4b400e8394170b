"""The model of the chat: loading a pair after the first frame, changing it, and what is remembered for the next start.

If another pair does not load, the previous one is used again: it stays loaded or is loaded again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from dflash_core.errors import DFlashError, KnobError
from dflash_core.memory import OTHERS, PROGRAM
from dflash_core.progress import Progress
from dflash_tui.application import collector
from dflash_tui.application.advice import explain, is_final, needs_restart
from dflash_tui.application.background import Background
from dflash_tui.application.log import LOG
from dflash_tui.application.session import Loader, LoadRequest, SessionLike
from dflash_tui.application.settings.config import ConfigError, remember
from dflash_tui.application.settings.presets import Profile
from dflash_tui.chat.background_plain import BackgroundPlain
from dflash_tui.chat.controller import Controller, PairLoaded, Restart
from dflash_tui.chat.conversation import ConversationController
from dflash_tui.chat.gauges import Gauges
from dflash_tui.chat.sending import Sending
from dflash_tui.chat.tuning import Tuning
from dflash_tui.widgets.flash import Note
from dflash_tui.widgets.strip import LoadingLine, TitleRow

FIRST_LOOK_S, LOOK_S = 0.05, 0.1
KEYS = "Ctrl+R loads again, /load another. Ctrl+Q quits; dflash-tui doctor looks at the machine."
KEYS_WITHOUT_AGAIN = "/load loads another model. Ctrl+Q quits."
TAKEN_BACK = "messages for the other model are back in the prompt"


class Loading(Background):
    """`start` it, then poll `phase`, `fraction` and `over`."""

    def __init__(self, loader: Loader) -> None:
        super().__init__("dflash-load")
        self._loader = loader
        self.phase = "starting"
        self.fraction = 0.0
        self.session: SessionLike | None = None

    def work(self) -> None:
        def progress(phase: str, fraction: float) -> None:
            self.phase, self.fraction = phase, min(max(fraction, 0.0), 1.0)

        self.session = self._loader(progress)


@dataclass(eq=False)
class ProgramController(Controller):
    _gauges: Gauges
    _tuning: Tuning
    _plain: BackgroundPlain
    _conversation: ConversationController
    _sending: Sending
    _chosen: bool = False  # the user chose the requested pair: the next start loads it
    _profile: Profile | None = None  # of the requested pair: its parameters apply once that is loaded
    _last: Loader | None = None  # that of the newest pair that loaded
    _title: str = ""  # of that pair
    _why: Note | None = None  # while the last one is loaded again: why the new one did not load
    _before: list[SessionLike] = field(default_factory=list)  # to release once the files of the next one are checked
    running: Loading | None = None  # also set between its end and the check of its result

    def __post_init__(self) -> None:
        self._asked = self._loader = self.state.loader  # the requested loader; what `begin` calls for it

    # Requests

    @property
    def releasable(self) -> int:
        """Bytes of device memory that the present pair uses, and releases before another one is loaded."""
        session = self.state.session
        if session is None or self.state.attached:
            return 0
        released = (one for one in session.memory().components if one.name not in (OTHERS, PROGRAM))
        return sum(one.bytes if one.measured is None else one.measured for one in released)

    def planned(self, target: Path | None, draft: Path | None, context: int | None = None, kv: str = "") -> LoadRequest:
        """What `change_model` would load: like the present pair, except for the arguments."""
        state = self.state
        context = state.context if context is None else context
        return replace(state.request, target=target, draft=draft, context=context, kv=kv or state.kv, attach="")

    def change_model(
        self, target: Path | None, draft: Path | None, *, same: bool = False, context: int | None = None, kv: str = ""
    ) -> None:
        """Load another pair, and remember it if it loads; None: the demo pair. `same`: it is loaded already. `context`
        and `kv`: those chosen for it, otherwise as before."""
        request = self.planned(target, draft, context, kv)
        if same:
            self._chosen, self._profile = False, None
            self._remember(request)
        else:
            self._change(request)

    def use_profile(self, profile: Profile) -> None:
        """Load a profile's pair; its parameters apply once it is loaded, and not at all if it does not load."""
        request = self.planned(profile.target, profile.draft, profile.context, profile.kv)
        self._change(replace(request, knobs=profile.knobs), profile)

    def attach(self, url: str, key: str, model: str) -> None:
        self._change(replace(self.state.request, attach=url, attach_key=key, attach_model=model))

    def detach(self) -> None:
        """Load the pair that was there before, in place of the model of a server. Raises DFlashError without one."""
        if not self.state.request.attach:
            raise DFlashError("the model is in this program; /attach uses that of a server")
        self._change(replace(self.state.request, attach=""))

    @property
    def refusal(self) -> str:
        """Why no other model can be loaded now; "" if one can."""
        return self.state.no_model or self._busy("change the model after its end")

    def _busy(self, remedy: str) -> str:
        state = self.state
        if state.serving:
            return f"other programs use the model at {state.serving}; /serve off ends that"
        runs = state.busy or state.loading or state.experiment is not None
        return f"a load or an answer is running: {remedy}" if runs else ""

    def _change(self, request: LoadRequest, profile: Profile | None = None) -> None:
        if refusal := self.refusal:
            self.say(refusal)
        else:
            self._chosen, self._profile = True, profile
            self._replace(request)

    def reload(self) -> None:
        """Load the present pair again, with the settings that need a load."""
        state = self.state
        if refusal := state.no_model or self._busy("reload after its end"):
            self.say(refusal)
        elif state.turn.lost:
            self.screen.post_message(Restart())
        else:
            self._replace(replace(state.request, context=state.context, kv=state.kv))

    # Loading

    def begin(self) -> None:
        """Start the loader's thread; the first frame is on the screen by now."""
        self.state.loading = True
        self.running = Loading(self._loader)
        self.running.start()
        self._line.begin()
        self.screen.set_timer(FIRST_LOOK_S, self._look)

    def _replace(self, request: LoadRequest) -> None:
        """Replace the present pair by another one, and continue the conversation. If the check of its files fails, the
        present pair stays."""
        self._plain.stop()
        state = self.state
        state.request = request
        # After a device failure the session must not be used.
        self._before = [state.session] if state.session is not None and not state.turn.lost else []
        self._asked = state.loaders(request)
        self._loader = partial(self._after_release, request, self._asked)
        state.session = None
        self._show_title(request.title(endings=True))
        self.begin()

    def _after_release(self, request: LoadRequest, loader: Loader, progress: Progress) -> SessionLike:
        """On the loader's thread: the present session saves its conversation's state and is released first, because two
        models may not fit the machine. If the check of the files raises, that session stays."""
        if self._before:
            progress("looking at the files", 0.0)
            self.state.check(request)
            progress("saving the conversation's state", 0.0)
            try:
                self._before.pop().leave()
            except Exception:  # only an optimization: on any failure the conversation is prefilled again
                LOG.warning("the state of the conversation is not saved", exc_info=True)
        collector.release()
        return loader(progress)

    @property
    def _line(self) -> LoadingLine:
        return self.screen.query_one(LoadingLine)

    def _show_title(self, title: str) -> None:
        self.screen.query_one(TitleRow).title = title

    async def _look(self) -> None:
        loading = self.running
        if loading is None:
            return
        over = loading.over  # before its figures: they are the last ones to appear
        self._line.show(loading.phase, loading.fraction)
        if not over:
            self.screen.set_timer(LOOK_S, self._look)
            return
        self._line.display = False
        self.running = None
        self.state.loading = False
        if loading.session is not None:
            await self._there(loading.session)
        elif loading.error is not None:
            await self._not_there(loading.error, loading.trace)

    async def _there(self, session: SessionLike) -> None:
        why, self._why = self._why, None
        self.state.session = session
        self._last, self._title = self._asked, session.title
        LOG.info("loaded %s", session.title)
        self._show_title(session.title)
        if why is not None:
            why.advise(f"{session.title} is loaded again; the conversation goes on.")
            await self._came_back()
            return
        for note in session.notes:
            await self.transcript.mount(Note(note, kind="info"))
        await self.loaded()

    async def _not_there(self, error: Exception, trace: str) -> None:
        """A load has failed. If there is an earlier pair, continue with it."""
        turn, last, again = self.state.turn, self._last, self._why is not None
        message, advice = explain(error, trace, self.state.past.folder)
        LOG.error("not loaded: %s\n%s", message, trace)
        turn.lost = turn.lost or needs_restart(error)
        what = f"{self._title} did not load again" if again else "the model did not load"
        note = Note(f"{what}: {message}", KEYS_WITHOUT_AGAIN if is_final(error) else KEYS)
        self._why = None
        await self.transcript.mount(note)
        if self._before:  # the files failed the check, and the present pair was not released
            await self._keep(note, self._before.pop())
        elif last is not None and not turn.lost and not again:  # it was released: load it again
            self._why, self._asked = note, last
            note.advise(f"{self._title} is being loaded again.")
            self._loader = partial(self._after_release, self.state.request, last)
            self._show_title(self._title)
            self.begin()
        else:
            if turn.lost:
                note.advise(advice)
            self.not_loaded()
            self.say("no model is loaded; your text stays in the prompt" if self.prompt.text else "no model is loaded")

    # How a load ended

    async def loaded(self) -> None:
        state, chosen, self._chosen = self.state, self._chosen, False
        state.present = state.request
        if chosen:
            self._remember(state.request)
        await self._use_session()
        await self._sending.next()
        self.screen.post_message(PairLoaded())

    async def _came_back(self) -> None:
        """The requested pair did not load; the previous one did, with the context and cache type that it had."""
        state = self.state
        self._stay()
        state.context, state.kv = state.request.context, state.request.kv
        await self._use_session()
        self.screen.refresh_bindings()
        await self._sending.take_all_back(TAKEN_BACK)

    async def _keep(self, note: Note, session: SessionLike) -> None:
        """The requested pair is not usable; the previous one has not been released."""
        self.state.session = session
        self._show_title(session.title)
        note.advise(f"{session.title} stays loaded.")
        self._stay()
        self._gauges.context()
        collector.calm()
        self.screen.refresh_bindings()
        await self._sending.take_all_back(TAKEN_BACK)

    def not_loaded(self) -> None:
        """No pair is loaded. Unless another one is requested, the next load is the last one that was loaded."""
        if self.state.present is not None:
            self._stay()
        collector.calm()
        for block in self.state.queue:
            block.queued("waits for a model")
        self._gauges.start()
        self.screen.refresh_bindings()

    def _stay(self) -> None:
        """The requested pair did not load: a reload means the present one again."""
        self._chosen, self._profile = False, None
        if self.state.present is not None:
            self.state.request = self.state.present

    async def _use_session(self) -> None:
        self._tuning.loaded()
        self._conversation.model_loaded()
        self._gauges.context()
        await self._gauges.memory()
        collector.calm()

    # What the next start remembers

    def _remember(self, request: LoadRequest) -> None:
        """Open this pair, which is loaded, at the next start."""
        profile, self._profile = self._profile, None
        if request.attach:
            return
        problem = _remembered("target", request.target or "") or _remembered("draft", request.draft or "")
        if problem:
            self.screen.notify(problem, title="Not remembered", severity="warning")
        self.state.context, self.state.kv = request.context, request.kv
        if profile is not None:
            self._take_knobs(profile)

    def _take_knobs(self, profile: Profile) -> None:
        """The profile's pair is loaded: apply its parameters, all or none."""
        self.state.presets.used(profile.name)
        try:
            self._tuning.set_all(profile.over(self.state.recommended))
        except KnobError as error:
            self.say(f"profile {profile.name}: {error}; the parameters are unchanged")
        else:
            session = self.state.session
            has = session.context_length if session is not None else profile.context
            self.say(f"profile {profile.name}: {profile.within(has).words}")

    def use_theme(self, name: str) -> None:
        """Change the colours and remember them. Raises DFlashError for an unknown theme."""
        app = self.screen.app
        if name not in app.available_themes:
            raise DFlashError(f"no theme {name!r}; there are {', '.join(sorted(app.available_themes))}")
        app.theme = name
        self.say(_remembered("theme", name) or f"theme {name}, from now on")

    def remember_system(self, text: str) -> str:
        """Start new conversations with this system message, from now on. Returns the problem, or ""."""
        self.state.conversation.default_system = text
        return _remembered("system", text)


def _remembered(name: str, value: str | Path) -> str:
    """Store a setting for the next start. Returns the problem, or ""."""
    try:
        remember(name, value)
    except ConfigError as error:
        return str(error)
    return ""
