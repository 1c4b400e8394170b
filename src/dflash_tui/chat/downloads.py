"""The downloads of one chat. Downloads continue under any screen; how one ended is shown until the user has seen it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile

from dflash_tui.application.fetching import Fetching
from dflash_tui.application.hub.catalogue import Pair, load_catalogue
from dflash_tui.application.hub.files import FileRequest
from dflash_tui.application.hub.walk import downloads
from dflash_tui.application.json_store import JsonFile
from dflash_tui.application.log import LOG
from dflash_tui.chat.controller import Controller, LongTaskEnded
from dflash_tui.settings.keys import retold
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.strip import TitleRow

AT_ONCE = 2
LOOK_S = 0.25
TOAST_S = 12.0  # the user may be reading something else; the title row shows it until it is seen
KEY = "Ctrl+G"


def in_background(name: str) -> str:
    return f"{name} is being fetched in the background"


@dataclass(eq=False)
class Downloads(Controller):
    """One download per pair; `AT_ONCE` of them run. Others wait, as does one that shares a file with those."""

    _all: dict[str, Fetching] = field(default_factory=dict)
    _open: list[Fetching] = field(default_factory=list)  # whose end has not been processed yet
    watched: Fetching | None = None  # shown in a dialog: the user sees its end there
    handed_over: tuple[str, ...] = ()  # names of those that the next process continues

    def __iter__(self) -> Iterator[Fetching]:
        return iter(list(self._all.values()))

    def of(self, name: str) -> Fetching | None:
        """The download of a pair by its name; also a finished one, until the user has seen it."""
        return self._all.get(name)

    @property
    def next(self) -> Fetching | None:
        """In the order of the title row: failed, complete, running, waiting."""
        order = {"failed": 0, "fetched": 1, "running": 2}
        return min(self, key=lambda one: order.get(one.state, len(order)), default=None)

    @property
    def under_way(self) -> list[Fetching]:
        """The running downloads. Also called on the threads of downloads."""
        return [one for one in [*self._open] if not one.over]

    def before(self, it: Fetching) -> set[FileRequest]:
        return {file for one in takewhile(lambda one: one is not it, self.under_way) for file in one.files}

    def new(self, pair: Pair, make: type[Fetching] | None = None) -> Fetching:
        it = (make or Fetching)(pair, downloads())
        it.others = lambda: self.before(it)
        return it

    def begin(self, it: Fetching) -> None:
        it.agreed, it.began = True, time.monotonic()
        self._all.pop(it.pair.name, None)
        self._all[it.pair.name] = it
        idle = not self._open
        self._open.append(it)
        LOG.info("download of %s into %s", it.pair.name, it.folder)
        if idle:
            self._look()
        else:
            self._give_turns()

    def seen(self, it: Fetching) -> None:
        if it.over and self.of(it.pair.name) is it:
            del self._all[it.pair.name]
            self._show()

    def stop(self, timeout: float = 0.0) -> None:
        """Stop all of them, and wait at most `timeout` seconds for their threads; received bytes stay."""
        left = self.under_way
        for one in left:
            one.stop()
        end = time.monotonic() + timeout
        for one in left:
            one.join(max(end - time.monotonic(), 0.0))

    @property
    def _saved(self) -> JsonFile[list[str]]:
        return JsonFile(self.state.past.folder / "downloads.json", list[str])

    def hand_over(self) -> None:
        """The program is about to restart in a new process, which continues the unfinished downloads."""
        names = tuple(one.pair.name for one in self.under_way if not one.stopping)
        if not names or self._saved.write([*names]):  # else they stop, as at every exit
            self.handed_over = names

    def take_over(self) -> None:
        """Continue those that the previous process handed over; the user had agreed to them."""
        names = self._saved.read() or []
        with suppress(OSError):  # usually there are none
            self._saved.path.unlink()
        pairs = load_catalogue().pairs if names else {}
        found = [pairs[name] for name in names if name in pairs]
        for pair in found:
            it = self.new(pair)
            it.start()
            self.begin(it)
        if found:
            message = f"{', '.join(pair.name for pair in found)}: the download continues, {KEY} shows it"
            self.say(retold(message, self.screen.app))

    def last_words(self) -> list[str]:
        """After the app's end: a line for each that is incomplete and does not continue automatically."""
        return [
            f"the download of {one.pair.name} {'failed' if one.state == 'failed' else 'stopped'} at {one.percent} %;"
            f" dflash-tui get {one.pair.name} resumes it"
            for one in self
            if one.state != "fetched" and one.pair.name not in self.handed_over
        ]

    def _look(self) -> None:
        """Process finished downloads and start waiting ones; repeat while any is running."""
        for one in [one for one in self._open if one.over]:
            self._open.remove(one)
            self._ended(one)
        self._give_turns()
        if self._open and self.screen.is_running:
            self.screen.set_timer(LOOK_S, self._look)

    def _give_turns(self) -> None:
        for it in self.under_way:
            running = [one for one in self.under_way if one.going]
            shared = any(not {*it.files}.isdisjoint(one.files) for one in running)
            if it.state == "waiting" and len(running) < AT_ONCE and not shared:
                it.go()
        self._show()

    def _ended(self, it: Fetching) -> None:
        name, state = it.pair.name, it.state
        LOG.info("download of %s: %s", name, it.words)
        if it.trace:
            LOG.error("a fault of the program:\n%s", it.trace)
        if self.of(name) is not it:  # already seen, or started again
            return
        for flash in self.screen.query(Flash):
            flash.outdated(in_background(name))
        if state == "stopped":
            del self._all[name]
        elif it is not self.watched:
            app, taken = self.screen.app, time.monotonic() - it.began
            if state == "fetched":
                app.notify(retold(f"{name} is complete. {KEY}, then Enter, loads it.", app), timeout=TOAST_S)
                self.screen.post_message(LongTaskEnded(taken, f"{name} is here"))
            else:
                text = retold(f"{it.why}. {KEY} shows it.", app)
                app.notify(text, title=f"{name} at {it.percent} %", severity="error", timeout=TOAST_S)
                self.screen.post_message(LongTaskEnded(taken, f"the download of {name} failed"))

    def _show(self) -> None:
        """In the title row, the progress of all of them, or how the last one ended."""
        states, key, shown, style = [one.state for one in self], retold(KEY, self.screen.app), "", ""
        if "failed" in states:
            shown, style = f"get failed: {key}", "bold $error"
        elif left := self.under_way:
            done, size = sum(one.done for one in left), sum(one.size for one in left)
            count = f"{len(left)}, " if len(left) > 1 else ""
            shown = f"get {count}{100 * done // max(size, 1)} %"
        elif "fetched" in states:
            shown, style = f"get done: {key}", "bold $success"
        for row in self.screen.query(TitleRow):
            row.downloads = shown, style
