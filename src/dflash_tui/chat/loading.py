"""Loading on its own thread. torch is imported there, after the first frame has been drawn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dflash_core.progress import Progress
from dflash_tui.application.background import Background
from dflash_tui.application.log import LOG
from dflash_tui.application.session import Loader, SessionLike
from dflash_tui.chat import collector
from dflash_tui.chat.desk import Desk
from dflash_tui.chat.flow import explain, needs_restart
from dflash_tui.widgets.loading_line import LoadingLine
from dflash_tui.widgets.note import Note
from dflash_tui.widgets.strip import TitleRow

FIRST_LOOK_S, LOOK_S = 0.05, 0.1
KEYS = "Ctrl+R loads again, /load another. Ctrl+Q quits; dflash-tui doctor looks at the machine."


class Loading(Background):
    """`start` it, then poll `phase`, `fraction` and `over`."""

    def __init__(self, loader: Loader) -> None:
        super().__init__("dflash-load")
        self._loader = loader
        self.phase = "starting"
        self.fraction = 0.0
        self.session: SessionLike | None = None

    def _progress(self, phase: str, fraction: float) -> None:
        self.phase, self.fraction = phase, min(max(fraction, 0.0), 1.0)

    def work(self) -> None:
        self.session = self._loader(self._progress)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A pair that was loaded: its loader and its name."""

    loader: Loader
    title: str


class PairLoading:
    """Loads the pair of one chat, shows the progress, and reports the desk's new session or the failure.

    If another pair does not load, the previous one is used again: it is either kept or loaded again.
    """

    def __init__(
        self,
        desk: Desk,
        loader: Loader,
        loaded: Callable[[], Awaitable[None]],
        failed: Callable[[], None],
        kept: Callable[[], Awaitable[None]],
        came_back: Callable[[], Awaitable[None]],
    ) -> None:
        self._desk = desk
        self._asked = self._loader = loader  # the requested loader; what `begin` calls for it
        self._loaded = loaded
        self._failed = failed
        self._kept = kept
        self._came_back = came_back
        self._last: _Pair | None = None  # the newest that loaded
        self._why: Note | None = None  # while the last one is loaded again: why the new one did not load
        self._before: list[SessionLike] = []  # the pair to release once the files of the next one are checked
        self.running: Loading | None = None  # also set between its end and the check of its result
        self._due = True  # the first load comes after the first frame

    @property
    def now(self) -> bool:
        """A pair is being loaded, or is about to be."""
        return self._due or self.running is not None

    def begin(self) -> None:
        """Start the loader's thread; the first frame is on the screen by now."""
        self._due = False
        self.running = Loading(self._loader)
        self.running.start()
        self._line.begin()
        self._desk.screen.set_timer(FIRST_LOOK_S, self._look)

    def replace(self, loader: Loader, title: str, check: Callable[[], None]) -> None:
        """Replace the present pair by another one, and continue the conversation. If `check` raises DFlashError on the
        loader's thread, the present pair stays."""
        desk = self._desk
        # After a device failure the session must not be used.
        self._before = [desk.session] if desk.session is not None and not desk.flow.lost else []
        self._asked, self._loader = loader, _behind(self._before, loader, check)
        desk.session = None
        desk.screen.query_one(TitleRow).title = title
        self.begin()

    @property
    def _line(self) -> LoadingLine:
        return self._desk.screen.query_one(LoadingLine)

    async def _look(self) -> None:
        desk, loading = self._desk, self.running
        if loading is None:
            return
        over = loading.over  # before its figures: they are the last ones to appear
        self._line.show(loading.phase, loading.fraction)
        if not over:
            desk.screen.set_timer(LOOK_S, self._look)
            return
        self._line.display = False
        self.running = None
        if loading.session is not None:
            await self._there(loading.session)
        elif loading.error is not None:
            await self._not_there(loading.error, loading.trace)

    async def _there(self, session: SessionLike) -> None:
        """A pair has been loaded: the requested one, or the previous one."""
        desk, why = self._desk, self._why
        desk.session = session
        self._last, self._why = _Pair(self._asked, session.title), None
        LOG.info("loaded %s", session.title)
        desk.screen.query_one(TitleRow).title = session.title
        if why is not None:
            why.advise(f"{session.title} is loaded again; the conversation goes on.")
            await self._came_back()
            return
        for note in session.notes:
            await desk.transcript.note(Note(note, kind="info"))
        await self._loaded()

    async def _not_there(self, error: Exception, trace: str) -> None:
        """A load has failed. If there is an earlier pair, continue with it."""
        desk, last, again = self._desk, self._last, self._why is not None
        message, advice = explain(error, trace, desk.past.folder)
        LOG.error("not loaded: %s\n%s", message, trace)
        desk.flow.lost = desk.flow.lost or needs_restart(error)
        what = f"{last.title} did not load again" if last is not None and again else "the model did not load"
        note = Note(f"{what}: {message}", KEYS)
        self._why = None
        await desk.transcript.note(note)
        if self._before:  # the files failed the check, and the present pair was not released
            await self._keep(note, self._before.pop())
        elif last is not None and not desk.flow.lost and not again:
            self._load_again(note, last)
        else:
            if desk.flow.lost:
                note.advise(advice)
            self._failed()
            desk.say("no model is loaded; what you typed is kept" if desk.prompt.text else "no model is loaded")

    async def _keep(self, note: Note, session: SessionLike) -> None:
        self._desk.session = session
        self._desk.screen.query_one(TitleRow).title = session.title
        note.advise(f"{session.title} is still there.")
        await self._kept()

    def _load_again(self, note: Note, last: _Pair) -> None:
        """Load the previous pair again: it was released for the one that did not load."""
        self._why = note
        note.advise(f"{last.title} is being loaded again.")
        self._asked, self._loader = last.loader, _behind([], last.loader, lambda: None)
        self._desk.screen.query_one(TitleRow).title = last.title
        self.begin()


def _behind(before: list[SessionLike], loader: Loader, check: Callable[[], None]) -> Loader:
    """A loader that first has the session in `before` save its conversation's state, and releases it: two models may
    not fit the machine. If `check` raises, the session stays."""

    def load(progress: Progress) -> SessionLike:
        if before:
            progress("looking at the files", 0.0)
            check()
            progress("keeping the conversation's state", 0.0)
            try:
                before.pop().leave()
            except Exception:  # only an optimization: on any failure the conversation is prefilled again
                LOG.warning("the state of the conversation is not kept", exc_info=True)
        collector.release()
        return loader(progress)

    return load
