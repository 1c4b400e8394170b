"""The downloads of one chat. They continue under any screen; how one ended is shown, and kept until it is seen."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_core.files import write_whole
from dflash_tui.chat.desk import Desk
from dflash_tui.log import LOG
from dflash_tui.settings.keys import retold
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.strip import TitleRow

if TYPE_CHECKING:
    from dflash_tui.chat.fetching import Fetching
    from dflash_tui.hub.catalogue import Pair
    from dflash_tui.hub.fetch import Wanted

AT_ONCE = 2
LOOK_S = 0.25
TOAST_S = 12.0  # the user may be reading something else; the title row says it as long as it is not seen
KEY = "Ctrl+G"


def in_background(name: str) -> str:
    """What is said of a download that goes on."""
    return f"{name} is fetched in the background"


class Downloads:
    """At most one of a pair, and `AT_ONCE` that run: others wait, and so does one that shares a file with these.

    `tell` is called with the seconds that one took and with how it ended, for a user who is elsewhere.
    """

    def __init__(self, desk: Desk, tell: Callable[[float, str], None]) -> None:
        self._desk, self._tell = desk, tell
        self._all: dict[str, Fetching] = {}
        self._open: list[Fetching] = []  # whose end was not noticed yet
        self.watched: Fetching | None = None  # a dialog shows it: how it ends is seen there
        self.handed_over: tuple[str, ...] = ()  # the names of those that go on in the next process

    def __iter__(self) -> Iterator[Fetching]:
        return iter(list(self._all.values()))

    def of(self, name: str) -> Fetching | None:
        """The download of a pair by its name; also one that is over, until that was seen."""
        return self._all.get(name)

    @property
    def next(self) -> Fetching | None:
        """What to show first, as the title row does: what failed, what is here, what runs, what waits."""
        order = ("failed", "fetched", "running")
        return min(self, key=lambda one: order.index(one.state) if one.state in order else len(order), default=None)

    @property
    def under_way(self) -> list[Fetching]:
        """Those that are not over. Asked for on their threads too."""
        return [one for one in [*self._open] if not one.over]

    def before(self, it: Fetching) -> set[Wanted]:
        """The files of those whose turn comes before that of `it`."""
        return {file for one in takewhile(lambda one: one is not it, self.under_way) for file in one.files}

    def new(self, pair: Pair, make: type[Fetching] | None = None) -> Fetching:
        """One of a pair, which has not begun."""
        from dflash_tui.chat.fetching import Fetching
        from dflash_tui.hub.places import downloads

        it = (make or Fetching)(pair, downloads())
        it.others = lambda: self.before(it)
        return it

    def begin(self, it: Fetching) -> None:
        """The user has agreed to it: fetch it now, or when its turn comes."""
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
        """The user knows how it ended."""
        if it.over and self.of(it.pair.name) is it:
            del self._all[it.pair.name]
            self._show()

    def stop(self, timeout: float = 0.0) -> None:
        """Stop all of them, and wait `timeout` seconds at most for their threads; what is here stays."""
        left = self.under_way
        for one in left:
            one.stop()
        end = time.monotonic() + timeout
        for one in left:
            one.join(max(end - time.monotonic(), 0.0))

    @property
    def _kept(self) -> Path:
        return self._desk.past.folder / "downloads.json"

    def hand_over(self) -> None:
        """The program is about to begin again in a new process: what is under way goes on there."""
        names = tuple(one.pair.name for one in self.under_way if not one.stopping)
        with suppress(OSError):  # then they stop, as at any end
            if names:
                write_whole(self._kept, json.dumps(names).encode())
            self.handed_over = names

    def take_over(self) -> None:
        """Go on with those that the process before this one has handed over; the user had agreed to them."""
        try:
            written = self._kept.read_bytes()
        except OSError:  # there are none, nearly always
            return
        names: object = None
        with suppress(OSError, ValueError):
            self._kept.unlink()
            names = json.loads(written)
        if not isinstance(names, list):
            return
        from dflash_tui.hub.catalogue import load_catalogue

        pairs = load_catalogue().pairs
        found = [pairs[name] for name in names if isinstance(name, str) and name in pairs]
        for pair in found:
            it = self.new(pair)
            it.start()
            self.begin(it)
        if found:
            said = f"{', '.join(pair.name for pair in found)}: the download goes on, {KEY} shows it"
            self._desk.say(retold(said, self._desk.screen.app))

    def last_words(self) -> list[str]:
        """After the app's end: a line for each that is not complete, and does not go on by itself."""
        return [
            f"the download of {one.pair.name} {'failed' if one.state == 'failed' else 'stopped'} at {one.percent} %;"
            f" dflash-tui get {one.pair.name} goes on with it"
            for one in self
            if one.state != "fetched" and one.pair.name not in self.handed_over
        ]

    def _look(self) -> None:
        """Who is over, and whose turn it is; and again soon, while any is under way."""
        for one in [one for one in self._open if one.over]:
            self._open.remove(one)
            self._ended(one)
        self._give_turns()
        if self._open and self._desk.screen.is_running:
            self._desk.screen.set_timer(LOOK_S, self._look)

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
        if self.of(name) is not it:  # seen before this look, or begun again
            return
        for flash in self._desk.screen.query(Flash):
            flash.outdated(in_background(name))
        if state == "stopped":
            del self._all[name]
        elif it is not self.watched:
            app, taken = self._desk.screen.app, time.monotonic() - it.began
            if state == "fetched":
                app.notify(retold(f"{name} is here. {KEY}, then Enter, loads it.", app), timeout=TOAST_S)
                self._tell(taken, f"{name} is here")
            else:
                text = retold(f"{it.why}. {KEY} shows it.", app)
                app.notify(text, title=f"{name} at {it.percent} %", severity="error", timeout=TOAST_S)
                self._tell(taken, f"the download of {name} failed")

    def _show(self) -> None:
        """The figure of the title row."""
        for row in self._desk.screen.query(TitleRow):
            row.downloads = self._figure()

    def _figure(self) -> tuple[str, str]:
        """How far all of them are, or how the last one ended, and in which colour."""
        states = [one.state for one in self]
        key = retold(KEY, self._desk.screen.app)
        if "failed" in states:
            return f"get failed: {key}", "bold $error"
        if left := self.under_way:
            done, size = sum(one.done for one in left), sum(one.size for one in left)
            count = f"{len(left)}, " if len(left) > 1 else ""
            return f"get {count}{100 * done // max(size, 1)} %", ""
        return (f"get done: {key}", "bold $success") if "fetched" in states else ("", "")
