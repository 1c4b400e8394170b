"""A monkey test of the app: random terminal input, and after each action the invariants of `agreement`."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from textual.events import Resize
from textual.geometry import Size
from textual.message_pump import MessagePump
from textual.widgets import TextArea

from abuse import agreement
from abuse.actions import EDITING, SIZES, Action, load, random_actions, save, sequence
from abuse.agreement import WORD, Words, at_rest
from abuse.home import at_home
from abuse.report import Finding, Report, Watermark
from abuse.scripted import ANSWERS, Scripted, scripted
from dflash_core.engine import Engine
from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.application.engine_session import EngineSession
from dflash_tui.application.session import LoadRequest, SessionLike
from dflash_tui.terminal.key_order import PasteParser

LIFE = 150  # actions on one data folder, over as many starts as it takes
REAL = 6  # one life in so many has the demo pair
DRAWN = 4  # one action in so many is followed by drawing the whole screen
AUDITED = 25  # and one in so many by an audit of every text ever sent
PATIENCE_S = 600.0  # for parts to agree; only a hang takes so long
TURN_S = 600.0  # for a load, a turn, or the app to answer: of the machine's own time, whatever a test's patience is
EDITS = frozenset(map(sequence, (*EDITING, "up", "down", "delete")))
SHORT = Knobs(max_tokens=24)


class FaultError(Exception):
    """An invariant is violated."""


@cache
def engine() -> Engine:
    """The demo pair, loaded once."""
    from dflash_core.demo import demo_draft_path, demo_target_path
    from dflash_core.engine import load_pair

    return load_pair(demo_target_path(), demo_draft_path(), context_length=1024)


def demo() -> EngineSession:
    engine().reset()
    return EngineSession(engine(), "demo pair", SHORT, ())


class LostError(FaultError):
    """Text that was typed is lost."""


class Life:
    """One data folder, and the starts of the app on it."""

    def __init__(self, folder: Path, session: Callable[[], SessionLike], report: Report) -> None:
        self.session, self.report = session, report
        self.data = folder / "data" / "dflash-tui"
        self.words = Words(self.data)
        self.size = SIZES[1]
        self.done: list[Action] = []

    async def start(self, actions: Iterator[Action]) -> bool:
        """Start the app and do actions until it ends; False when there are no more. Raises what is wrong."""
        session = self.session()

        def load(_: object) -> SessionLike:
            return session

        app = DFlashApp(LoadRequest(), load, SHORT, data_dir=self.data)
        app.animation_level = "none"
        self.report.counts["starts"] += 1
        async with app.run_test(size=self.size, notifications=True) as pilot:
            hand = Hand(app)
            try:
                await hand.settle()
                await self._until(hand, lambda: self._lost_drafts(app), LostError)
                for action in actions:
                    self.done.append(action)
                    self.report.counts["actions"] += 1
                    await self._act(hand, action)
                    if app._exit:
                        return True
                return False
            finally:
                if app._exception is None:
                    app.chat.parts.sending.flow.stop()
                    await self._over(app)
                del pilot

    async def _over(self, app: DFlashApp) -> None:
        """Quitting waits two seconds for a turn at most; the demo pair's may be longer on a busy machine."""
        running = app.chat.state.turn.running or app.chat.state.experiment
        if running is not None:
            running.stop()
            running.join(TURN_S)

    def _lost_drafts(self, app: DFlashApp) -> list[str]:
        """A start gives back what was in the prompt; these are the words that it does not."""
        gone = self.words.drafted - set(WORD.findall(app.chat.prompt.text))
        return [f"{word} was in the prompt and does not come back" for word in sorted(gone)]

    async def _act(self, hand: Hand, action: Action) -> None:
        app, words, number = hand.app, self.words, len(self.done)
        focused, prompt = app.screen.focused, app.chat.prompt
        typing = action.kind in ("type", "send", "burst", "paste")
        reaches = app.screen is app.chat and not app.chat.has_class("-tiny") and focused in (prompt, None)
        inside = prompt.cursor_location != prompt.document.end or not prompt.selection.is_empty
        turns, before = app.chat.state.turn.running, set(words.drafted)
        unselected = outside_selection(prompt)
        await hand.do(action)
        await hand.settle()
        if app._exception is not None:
            raise app._exception
        if app._exit:
            return
        if typing and reaches and not (inside and action.data.count("\n")):
            words.typed(action.data)
        one_key = action.kind in ("letter", "bound") and in_order(unselected, prompt.text)
        replaced = inside and (typing or action.kind == "command")
        if (
            replaced
            or one_key
            or action.kind in ("edit", "empty")
            or EDITS & {action.data, action.data[:3]}
            or "\t" in action.data
        ):
            words.forget(app, before)
        await self._until(hand, lambda: [f"{word} is nowhere" for word in sorted(words.missing(app))], LostError)
        await self._until(hand, lambda: list(agreement.disagreements(app)))
        if turns is not None and turns is not app.chat.state.turn.running and app.chat.state.turn.running is None:
            self.report.counts["turns"] += 1
        if action.kind == "wait" and turns is not None and app.screen is app.chat:
            await self._until(hand, lambda: list(agreement.just_ended(app)))
        if number % DRAWN == 0:
            agreement.rendered(app)
        if number % AUDITED == 0:
            gone = "{} was sent and is gone".format
            await self._until(hand, lambda: [gone(word) for word in sorted(words.audit(app))], LostError)

    async def _until(self, hand: Hand, wrong: Callable[[], list[str]], error: type[FaultError] = FaultError) -> None:
        """Wait until `wrong` finds nothing; raise `error` if something stays wrong."""
        end = time.monotonic() + PATIENCE_S
        pause = 0.001
        while found := wrong():
            if time.monotonic() > end:
                raise error(found[0])
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.2)
            await hand.settle()
            if hand.app._exception is not None:
                raise hand.app._exception
            if hand.app._exit:
                return


class Hand:
    """Sends an app what a terminal would."""

    def __init__(self, app: DFlashApp) -> None:
        self.app = app
        self._parser = PasteParser()

    def feed(self, data: str) -> None:
        driver = self.app._driver
        assert driver is not None
        for event in self._parser.feed(data):
            driver.process_message(event)
        for _ in range(2):  # after the read, and after a pause: no more of it comes
            if self._parser._timeout_time is not None:
                self._parser._timeout_time = 0.0
            for event in self._parser.tick():
                driver.process_message(event)

    async def settle(self) -> None:
        """Wait until the app, its screens and the prompt have handled what they were sent, and what that sent in turn.

        This costs a tenth of Pilot's check of every widget; what takes longer is waited for where it matters.
        """
        app = self.app
        await asyncio.sleep(0)
        for _ in range(3):
            stack = app.screen_stack
            for pump in (app, app.chat, stack[-1] if stack else None, app.chat.prompt if app.chat.is_mounted else None):
                await self._idle(pump)

    async def _idle(self, pump: MessagePump | None) -> None:
        done = asyncio.Event()
        if pump is None or not pump.is_running or not pump.call_later(done.set):
            return
        end, pause = time.monotonic() + TURN_S, 0.0
        while not done.is_set() and pump.is_running and self.app._exception is None:
            if time.monotonic() > end:
                raise FaultError(f"{type(pump).__name__} does not come back")
            await asyncio.sleep(pause)
            pause = min(pause + 0.0002, 0.01)

    async def do(self, action: Action) -> None:
        """Do one action; `random_actions` makes its data."""
        app, (kind, data) = self.app, action
        match kind:
            case "type" | "bound" | "move" | "edit" | "letter" | "enter" | "escape":
                self.feed(data)
            case "burst":
                self.feed(data)
            case "send" | "command":
                self.feed(data + "\r")
            case "paste":
                self.feed(f"\x1b[200~{data}\x1b[201~")
            case "click":
                self._mouse("0", data, "Mm")
            case "drag":
                parts = data.split()
                self._mouse("0", " ".join(parts[:2]), "M")
                self._mouse("32", " ".join(parts[2:]), "M")
                self._mouse("0", " ".join(parts[2:]), "m")
            case "scroll":
                way, spot = data.split(" ", 1)
                self._mouse("64" if way == "up" else "65", spot, "M")
            case "resize":
                width, height = map(int, data.split())
                size = Size(width, height)
                app._driver._size = size  # type: ignore[union-attr, assignment]
                app.post_message(Resize(size, size))
            case "empty":
                app.chat.prompt.text = ""
            case "answer" if isinstance(app.chat.state.session, Scripted):
                app.chat.state.session.answer = ANSWERS[int(data)]
                app.chat.state.session.arm("")
            case "fault" if isinstance(app.chat.state.session, Scripted):
                app.chat.state.session.arm(data)
            case "pause":
                await asyncio.sleep(float(data))
            case "wait":
                end = time.monotonic() + TURN_S
                while under_way(app) and app._exception is None and not app._exit:
                    if time.monotonic() > end:
                        raise FaultError("the turn does not end")
                    await asyncio.sleep(0.01)
            case "quit":
                self.feed("\x11")

    def _mouse(self, button: str, spot: str, states: str) -> None:
        x, y = (float(part) for part in spot.split())
        width, height = self.app.size
        for state in states:
            self.feed(f"\x1b[<{button};{1 + int(x * width)};{1 + int(y * height)}{state}")


def under_way(app: DFlashApp) -> bool:
    """Whether a load or a turn is under way. A message for a model that did not load waits for ever and does not
    count."""
    return app.chat.state.loading or (app.chat.state.session is not None and not at_rest(app))


def outside_selection(prompt: TextArea) -> tuple[str, str]:
    """The text before the selection, or the cursor, and the text after it: what a typed character leaves there."""
    first, last = sorted(map(prompt.document.get_index_from_location, prompt.selection))
    return prompt.text[:first], prompt.text[last:]


def in_order(parts: tuple[str, str], text: str) -> bool:
    """Both parts are in the text, the second after the first."""
    before, after = parts
    at = text.find(before)
    return at >= 0 and text.find(after, at + len(before)) >= 0


def where(error: BaseException) -> str:
    """The innermost frame of our own."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "dflash" in one.filename]
    return f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "outside"


def live(
    seed: str, actions: Sequence[Action], folder: Path, report: Report, *, session: Callable[[], SessionLike]
) -> None:
    """One life: actions on an empty data folder. A fault is in `report` with the actions that lead to it."""
    life = Life(folder, session, report)
    left = iter(actions)
    with at_home(folder):
        try:
            while asyncio.run(life.start(left)):
                pass
            if said := agreement.damaged(life.data):
                raise FaultError(f"the database is damaged: {said}")
        except Exception as error:
            kept = save(folder / f"{seed}.actions", life.done)
            (folder / f"{seed}.trace").write_text("".join(traceback.format_exception(error)))
            what, at = str(error), f"at action {len(life.done)}"
            if not isinstance(error, FaultError):
                kind = f"{type(error).__name__} in {where(error)}"
                report.crashes.append(Finding(kind, seed, f"{what} {at}", str(kept)))
            elif isinstance(error, LostError):
                report.lost.append(Finding("text is lost", seed, f"{what} {at}", str(kept)))
            else:
                report.differences.append(Finding("parts do not agree", seed, f"{what} {at}", str(kept)))


def _session(life: int) -> Callable[[], SessionLike]:
    return demo if life % REAL == REAL - 1 else scripted


def run(seed: int, folder: Path, *, actions: int = 0, seconds: float = 0.0, replay: Path | None = None) -> Report:
    """Lives of `LIFE` actions until `actions` are done or `seconds` are over; or one, of a saved list."""
    report, watermark, began = Report("monkey", seed), Watermark(), time.monotonic()
    if replay is not None:
        live(replay.stem, load(replay), folder / "replay", report, session=_session(int(replay.stem.split("y")[1])))
        return report
    for number in itertools.count():
        left = actions - report.counts["actions"] if actions else LIFE
        if left <= 0 or (seconds and time.monotonic() - began > seconds):
            break
        name = f"{seed}y{number}"
        rng = random.Random(name)
        todo = list(random_actions(rng, min(LIFE, left), f"m{name}"))
        live(name, todo, folder / name, report, session=_session(number))
        if number >= REAL:
            watermark.look(report)
    report.seconds = time.monotonic() - began
    return report
