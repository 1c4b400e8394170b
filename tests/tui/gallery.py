"""Every screen of the app in the states that people see, one after the other: for pictures, and for tests of looks."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from textual.pilot import Pilot

from dflash_core.events import StageTimes, StepEvent
from dflash_core.knobs import Knobs
from dflash_core.lab.grid import Arm
from dflash_core.lab.results import Result, Trial
from dflash_core.lab.whatif import Acceptance, StepTimes
from dflash_tui.app import DFlashApp
from dflash_tui.application.figures.measurements import MeasuredRow, Measurements
from dflash_tui.application.hub.files import FileRequest, HubError
from dflash_tui.screens import pages
from dflash_tui.screens.experiment import ExperimentScreen
from dflash_tui.screens.experiments import ABScreen, RequestsTuneScreen, SweepScreen, TuneScreen
from dflash_tui.screens.explain import ExplainScreen, figures
from dflash_tui.screens.get import GetScreen
from dflash_tui.screens.page import HelpScreen
from dflash_tui.screens.palette import Palette
from dflash_tui.screens.plan import PlanScreen
from dflash_tui.screens.tour import TourScreen
from dflash_tui.screens.whatif import WhatIfScreen
from dflash_tui.widgets.calls import CallScreen
from dflash_tui.widgets.dialogs import ConfirmScreen, LineScreen, OfferScreen, TextScreen
from dflash_tui.widgets.find_bar import FindBar
from dflash_tui.widgets.flash import Flash, Note
from support.measured import report_of, sweep_of
from support.turns import step_of, tree_of

from .fake import FakeSession
from .scenes import answered, send, still
from .support import idle, loaded, settled, shows, wait_until
from .test_every_key import TINY, NoHub, card
from .tool_stub import CALL, READ, with_stub

Show = Callable[[DFlashApp, Pilot[int]], Awaitable[None]]
SHOWN: dict[str, Show] = {}
BUDGETS = (4, 8, 15, 22, 32, 48)


def shown(show: Show) -> Show:
    """One entry of the gallery, by the function's name. It begins in the chat, after one answer."""
    SHOWN[show.__name__.replace("_", "-")] = show
    return show


def tuned() -> Result:
    """The results of a finished tuning, without measuring a pair."""
    now = Knobs(drafting="auto")
    arms = [Arm("tree 22", now, "now"), Arm("plain", now.replace(mode="plain"), "plain")]
    arms += [Arm("auto", now.replace(mode="auto"), "auto")]
    for budget, p_min in ((15, 0.1), (8, 0.0), (32, 0.05), (48, 0.0)):
        knobs = now.replace(mode="tree", budget=budget, p_min=p_min)
        arms.append(Arm(f"tree {budget}" + (f", p_min {p_min:g}" if p_min else ""), knobs))
    speeds, left = (140.0, 21.0, 151.0, 165.0, 133.0, 138.0, 126.0), frozenset({0, 2, 3})
    trials = []
    for repeat in range(3):
        for prompt, scale in enumerate((1.6, 1, 0.9, 1.2)):  # prompts differ more than settings
            for at, arm in enumerate(arms):
                if repeat == 0 or at in left:
                    trials.append(Trial(at, prompt, repeat, report_of(speeds[at] * scale, speeds[at] / 25, arm.knobs)))
    names = tuple(f"prompt {number}" for number in range(1, 5))
    return Result(tuple(arms), (), names, 1, tuple(trials), (), complete=True, base=0, left=left)


def timed(nodes: int) -> StepEvent:
    """A step whose time follows from its number of nodes."""
    return step_of(tree_of(*((0, 0) for _ in range(nodes))), stages=StageTimes(verify=10 + nodes * 0.2))


async def home(app: DFlashApp, pilot: Pilot[int]) -> None:
    """Back to the chat, nothing open, nothing typed."""
    app.clear_notifications()
    while app.screen is not app.chat:
        app.pop_screen()
        await pilot.pause()
    app.chat.prompt.text = ""
    app.chat.parts.conversation.branching.leave_edit()
    app.chat.query_one(FindBar).display = False
    app.chat.query_one(Flash).hide()
    if app.chat.has_class("-drawer"):
        app.chat.action_side()
    app.chat.prompt.focus()
    await pilot.pause()


async def walk(app: DFlashApp, pilot: Pilot[int]) -> AsyncIterator[str]:
    """The name of each entry while it is on the screen. Needs an app over a `FakeSession`."""
    await loaded(pilot)
    yield "empty"
    app.chat.action_think()
    await answered(pilot)
    yield "answer"
    for name, show in SHOWN.items():
        await show(app, pilot)
        await settled(pilot)
        yield name
        await home(app, pilot)


async def _panel(app: DFlashApp, pilot: Pilot[int], name: str) -> None:
    app.chat.action_panel(name)
    still(app)
    await pilot.pause()


@shown
async def params(app: DFlashApp, pilot: Pilot[int]) -> None:
    await _panel(app, pilot, "params")
    await pilot.press("right", "right")


@shown
async def params_all(app: DFlashApp, pilot: Pilot[int]) -> None:
    await _panel(app, pilot, "params")
    app.chat.inspector.params_panel.unfold(True)
    await pilot.press(*["down"] * 8)


@shown
async def stats(app: DFlashApp, pilot: Pilot[int]) -> None:
    app.chat.inspector.params_panel.unfold(False)
    await _panel(app, pilot, "stats")


@shown
async def tree(app: DFlashApp, pilot: Pilot[int]) -> None:
    await _panel(app, pilot, "tree")


@shown
async def memory(app: DFlashApp, pilot: Pilot[int]) -> None:
    await _panel(app, pilot, "memory")


@shown
async def completion(app: DFlashApp, pilot: Pilot[int]) -> None:
    await pilot.press("slash", "t")


@shown
async def chosen(app: DFlashApp, pilot: Pilot[int]) -> None:
    await pilot.press("alt+up")


@shown
async def thinking_open(app: DFlashApp, pilot: Pilot[int]) -> None:
    app.chat.action_fold()


@shown
async def found(app: DFlashApp, pilot: Pilot[int]) -> None:
    app.chat.action_fold()
    app.chat.action_find()
    await pilot.press(*"path", "enter")


@shown
async def note(app: DFlashApp, pilot: Pilot[int]) -> None:
    await pilot.press("escape")
    await app.chat.transcript.mount(Note("the device was lost in mid-step", "Ctrl+R loads the model again.", "error"))
    await app.chat.transcript.mount(Note("auto takes the tree for now", kind="info"))


@shown
async def notices(app: DFlashApp, pilot: Pilot[int]) -> None:
    app.chat.say("copied the answer, 412 characters")
    app.notify("trace.jsonl: No space left on device", title="Trace", severity="error", timeout=60)


@shown
async def answering(app: DFlashApp, pilot: Pilot[int]) -> None:
    session = app.chat.state.session
    assert isinstance(session, FakeSession)
    session.gate = threading.Semaphore(20)
    await send(pilot, "And once more, in one line?")
    await wait_until(pilot, lambda: app.chat.state.busy)
    await send(pilot, "This one waits until the answer is there.")
    await shows(pilot, "queued")
    await pilot.pause(0.5)


@shown
async def retried(app: DFlashApp, pilot: Pilot[int]) -> None:
    session = app.chat.state.session
    assert isinstance(session, FakeSession)
    assert session.gate is not None
    session.gate.release(10_000)
    await idle(pilot)
    await wait_until(pilot, lambda: not app.chat.state.waiting and not app.chat.state.busy)
    session.gate = None
    await pilot.press("ctrl+r")
    await idle(pilot)
    still(app)


@shown
async def help_page(app: DFlashApp, pilot: Pilot[int]) -> None:
    app.push_screen(HelpScreen())


@shown
async def palette(app: DFlashApp, pilot: Pilot[int]) -> None:
    app.push_screen(Palette(id="--command-palette"))
    await pilot.pause()
    await pilot.press("s", "t")
    await shows(pilot, "Stats")


async def _page(app: DFlashApp, pilot: Pilot[int], name: str) -> None:
    app.push_screen(pages.page(name, app.chat.parts, ""))
    await pilot.pause()


@shown
async def steps(app: DFlashApp, pilot: Pilot[int]) -> None:
    await _page(app, pilot, "steps")
    await pilot.press("right", "right")


@shown
async def steps_text(app: DFlashApp, pilot: Pilot[int]) -> None:
    await steps(app, pilot)
    await pilot.press("v")


@shown
async def steps_calibration(app: DFlashApp, pilot: Pilot[int]) -> None:
    await steps(app, pilot)
    await pilot.press("v", "v")


@shown
async def requests(app: DFlashApp, pilot: Pilot[int]) -> None:
    """Two requests of other programs, one of which waits."""
    served = app.state.requests
    served.over(served.add("claude-cli/2.1.197 (cli)", "/v1/messages", "demo"), "end", app.state.shown.report)
    served.add("codex_cli_rs/0.171.0", "/v1/responses", "demo")
    await _page(app, pilot, "requests")


@shown
async def requests_tune(app: DFlashApp, pilot: Pilot[int]) -> None:
    await app.push_screen(RequestsTuneScreen(app.chat.parts, "claude-cli", ()))


@shown
async def tools(app: DFlashApp, pilot: Pilot[int]) -> None:
    """Servers of tools: one is on, one failed, one is off."""
    with_stub(app)
    await _page(app, pilot, "tools")


@shown
async def call(app: DFlashApp, pilot: Pilot[int]) -> None:
    await app.push_screen(CallScreen(CALL, READ))


@shown
async def chats(app: DFlashApp, pilot: Pilot[int]) -> None:
    await _page(app, pilot, "chats")


@shown
async def chats_found(app: DFlashApp, pilot: Pilot[int]) -> None:
    await _page(app, pilot, "chats")
    await pilot.press("slash", *"path")


@shown
async def tune(app: DFlashApp, pilot: Pilot[int]) -> None:
    screen = TuneScreen(app.chat.parts)
    screen.action_start = lambda: None  # type: ignore[method-assign]
    await app.push_screen(screen)
    screen.result, screen._on = tuned(), "the last 4 prompts of this conversation"
    screen.draw()
    await pilot.pause()


@shown
async def tune_running(app: DFlashApp, pilot: Pilot[int]) -> None:
    await tune(app, pilot)
    app.screen.query_one("#lab-progress").update(" tree 15, p_min 0.1 · prompt 2 · 34 of 52 · 18 s left")  # type: ignore[attr-defined]


@shown
async def past(app: DFlashApp, pilot: Pilot[int]) -> None:
    assert app.chat.state.session is not None
    kept = Measurements(app.chat.state.past.folder, app.chat.state.session.title)
    if not kept.newest_first:
        more = "+18 % (+14 to +21 %)"
        rows = [
            MeasuredRow(
                "tree 15, p_min 0.1", Knobs(drafting="auto up to 15", p_min=0.1), 165.0, 6.6, 25.0, 10, "best", more
            )
        ]
        rows += [
            MeasuredRow("tree 22", Knobs(), 140.0, 5.6, 25.0, 10, "now"),
            MeasuredRow("plain", Knobs(drafting="plain"), 21.0, 1, 47, 1),
        ]
        kept.add("sweep", "best: tree 15, 152.0 tok/s", rows[:2])
        kept.add(
            "tune", "tree 15, p_min 0.1: 165 tok/s, +18 % against tree 22 (+14 to +21 %, 9 of 10 paired runs)", rows
        )
    await _page(app, pilot, "past")


@shown
async def plain(app: DFlashApp, pilot: Pilot[int]) -> None:
    await _page(app, pilot, "plain")


@shown
async def whatif(app: DFlashApp, pilot: Pilot[int]) -> None:
    screen = WhatIfScreen(app.chat.parts)
    await app.push_screen(screen)
    await wait_until(pilot, lambda: app.chat.state.experiment is None)  # what the fake turn gives, before these figures
    screen.costs = StepTimes(timed(nodes) for nodes in BUDGETS for _ in range(6))
    lengths = [(budget, 8 - 6.2 / (1 + budget / 9)) for budget in screen.budgets]
    screen.take("estimate", tuple(Acceptance(budget, length, budget, 40) for budget, length in lengths))
    screen.draw()
    await pilot.pause()


async def _measured(app: DFlashApp, pilot: Pilot[int], screen: ExperimentScreen, *axes: str, **more: object) -> None:
    await app.push_screen(screen)
    await pilot.pause()
    screen.query_one("#lab-table").focus()
    screen.result = sweep_of(*axes, **more)  # type: ignore[arg-type]
    screen.draw()


@shown
async def sweep(app: DFlashApp, pilot: Pilot[int]) -> None:
    await _measured(app, pilot, SweepScreen(app.chat.parts, "budget=4,12,20,28"), "budget=4,12,20,28")


@shown
async def sweep_field(app: DFlashApp, pilot: Pilot[int]) -> None:
    axes = ("budget=4,12,20,28", "p_min=0..0.2:0.1")
    await _measured(app, pilot, SweepScreen(app.chat.parts, " ".join(axes)), *axes, prompts=8, repeats=1)


@shown
async def sweep_asked(app: DFlashApp, pilot: Pilot[int]) -> None:
    await _page(app, pilot, "sweep")


@shown
async def ab(app: DFlashApp, pilot: Pilot[int]) -> None:
    screen = ABScreen(app.chat.parts, "drafting=chain | drafting=tree")
    await _measured(app, pilot, screen, "mode=chain,tree", speeds=(104.2, 131.7), lengths=(4.71, 6.18), base=0)
    assert screen.result is not None
    screen.result = replace(screen.result, axes=())
    screen.draw()


@shown
async def explain(app: DFlashApp, pilot: Pilot[int]) -> None:
    await app.push_screen(ExplainScreen("What the figures here mean", figures("stats")))


@shown
async def tour(app: DFlashApp, pilot: Pilot[int]) -> None:
    await app.push_screen(TourScreen(app.chat.parts))


@shown
async def models(app: DFlashApp, pilot: Pilot[int]) -> None:
    await _page(app, pilot, "models")


@shown
async def get(app: DFlashApp, pilot: Pilot[int]) -> None:
    app.push_screen(GetScreen(app.chat.parts, TINY, NoHub))
    await shows(pilot, "Get ")


class Running(NoHub):
    """A download that stays half done."""

    def work(self) -> None:
        self.files = [FileRequest(self.pair.target, "m.gguf", 18 << 30)]
        self.ready = True
        self.done, self.file = 7 << 30, "m.gguf"
        while not self.stopping:
            self.wait()


@shown
async def get_running(app: DFlashApp, pilot: Pilot[int]) -> None:
    screen = GetScreen(app.chat.parts, TINY, Running)
    app.push_screen(screen)
    await shows(pilot, "Enter fetches it")
    await pilot.press("enter")
    await shows(pilot, "The download continues when you leave")


@shown
async def get_behind(app: DFlashApp, pilot: Pilot[int]) -> None:
    await shows(pilot, "get 38 %")


@shown
async def get_failed(app: DFlashApp, pilot: Pilot[int]) -> None:
    [it] = app.chat.parts.downloads
    it.error = HubError("o/n/m.gguf: the connection broke off; the received part is saved")
    it._over.set()
    await shows(pilot, "get failed: Ctrl+G", "tiny at 38 %")


@shown
async def get_failed_seen(app: DFlashApp, pilot: Pilot[int]) -> None:
    app.chat.action_download()
    await shows(pilot, "Enter tries again")
    [it] = app.chat.parts.downloads
    app.chat.parts.downloads.seen(it)
    it.stop()


@shown
async def plan(app: DFlashApp, pilot: Pilot[int]) -> None:
    app.push_screen(PlanScreen(app.chat.parts, None, None, card))
    await shows(pilot, "positions")


@shown
async def themes(app: DFlashApp, pilot: Pilot[int]) -> None:
    await _page(app, pilot, "themes")


@shown
async def prompt(app: DFlashApp, pilot: Pilot[int]) -> None:
    await _page(app, pilot, "prompt")


@shown
async def full(app: DFlashApp, pilot: Pilot[int]) -> None:
    await _page(app, pilot, "full")


@shown
async def confirm(app: DFlashApp, pilot: Pilot[int]) -> None:
    app.push_screen(ConfirmScreen("An answer is being written.", "stop it and quit", "go on"))


@shown
async def offer(app: DFlashApp, pilot: Pilot[int]) -> None:
    app.push_screen(OfferScreen("The program ended in the middle of an answer.", "go on with it", "start a new one"))


@shown
async def one_line(app: DFlashApp, pilot: Pilot[int]) -> None:
    app.push_screen(LineScreen("A name for the preset: a to z, 0 to 9, - and _", "tuned"))


@shown
async def one_text(app: DFlashApp, pilot: Pilot[int]) -> None:
    app.push_screen(TextScreen("A trace", "a text"))
