"""What the screens of the lab share: one experiment at a time, its progress, adopting its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

from dflash_core.errors import DFlashError, KnobError
from dflash_core.knobs import Value, spec_of
from dflash_core.lab.grid import show
from dflash_core.lab.results import ExperimentProgress
from dflash_tui.application import advice
from dflash_tui.application.background import Experiment
from dflash_tui.application.faults import fault, keep_trace
from dflash_tui.application.figures.measurements import Measurements
from dflash_tui.application.session import SessionLike
from dflash_tui.chat.parts import ChatParts
from dflash_tui.screens.help import HelpScreen
from dflash_tui.screens.palette import ActionProvider
from dflash_tui.screens.passing import Passing
from dflash_tui.text import lab as lab_text
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.key_line import KeyLine
from dflash_tui.widgets.literal import Static

LOOK_S = 0.1
NARROW = 110
WIDE = 160
TALL = 30  # minimum number of rows for blank lines between the parts of a page


class LabScreen(Passing, Screen[None]):
    """A screen over the chat. Esc stops the experiment first and closes when none runs."""

    SCOPE: ClassVar[str] = ""
    HEADING: ClassVar[str] = ""
    WIDTH: ClassVar[int] = 176
    """Maximum width of the page in cells; it is centered in a wide terminal."""
    NOT_WHILE_RUNNING: ClassVar[frozenset[str]] = frozenset({"exact", "start", "view('past')"})
    COMMANDS = Screen.COMMANDS | {ActionProvider}

    def __init__(self, chat: ChatParts) -> None:
        super().__init__(classes="lab")
        self.chat = chat
        self._mine: Experiment | None = None  # the experiment that began here
        self._then: Callable[[Experiment], None] | None = None

    def body(self) -> Iterable[Widget]:
        """The widgets between heading and progress."""
        raise NotImplementedError

    def draw(self) -> None:
        """Show what is known, at the current size."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="lab-main"):
            yield Static(self._heading(), classes="lab-heading")
            with Vertical(classes="lab-middle"), Vertical(classes="lab-column"):
                yield from self.body()
                yield Static("", id="lab-progress")
            yield KeyLine()
        yield Flash()

    def on_mount(self) -> None:
        self.set_interval(LOOK_S, self._look)

    def on_resize(self) -> None:
        self.set_class(self.size.width < NARROW, "-narrow")
        self.set_class(self.size.height >= TALL, "-tall")
        self.query_one(".lab-column").styles.width = self.text_width
        self.call_after_refresh(self.draw)

    @property
    def text_width(self) -> int:
        """Width of the page's column, in cells."""
        width = self.app.size.width
        return min(width, self.WIDTH) if width >= WIDE else width

    def fit(self, *beside: int) -> None:
        """Give the results no more rows than they need, so that the notes come right below them. `beside`: the rows of
        each part, which may be stacked."""
        body = self.query_one(".lab-body")
        stacked = body.has_class("-below") or (self.has_class("-narrow") and body.has_class("stacked"))
        body.styles.max_height = sum(beside) + 1 if stacked else max(beside)

    def _heading(self) -> Content:
        model = self.chat.state.model or "no model"
        return Content.assemble((f" {self.HEADING}", "bold $primary"), (f"   {model}", "$foreground 70%"))

    def say(self, what: str | Exception) -> None:
        for flash in self.query(Flash):  # none once the page is closed
            flash.say(what)

    def hint(self, action: str, label: str) -> str:
        """The footer's label of an action. While an experiment runs, Esc stops it and no other can begin."""
        if action == "back":
            return "Stop" if self.running else label
        return "" if self.running and action in self.NOT_WHILE_RUNNING else label

    # Experiments

    @property
    def running(self) -> bool:
        return self.chat.state.experiment is not None

    @property
    def measurements(self) -> Measurements | None:
        session = self.chat.state.session
        return Measurements(self.chat.state.past.folder, session.title) if session is not None else None

    def measurable(self) -> SessionLike | None:
        """The session to measure with; None, and a notice why, if nothing can be measured now."""
        session = self.chat.state.session
        if session is None:
            self.say(self.chat.state.no_pair)
        elif self.chat.state.busy:
            self.say("an answer is being written: Esc, wait for its end or stop it, then come back")
        elif self.running:
            self.say("an experiment is running: Esc stops it")
        elif self.chat.state.no_model:
            self.say(DFlashError(self.chat.state.no_model))
        else:
            self.chat.plain.stop()
            return session
        return None

    def begin(
        self,
        run: Iterator[ExperimentProgress],
        then: Callable[[Experiment], None],
        stop: Callable[[], None] | None = None,
        *,
        decodes: bool = True,
    ) -> None:
        """Run an experiment. `then` is called in this thread when it has ended, also after an error or a stop. One that
        does not decode runs beside an answer too."""
        decoder = self.chat.state.decoder if decodes else None
        self.chat.state.experiment = self._mine = Experiment(decoder, run, stop)
        self._then = then
        self._mine.start()
        self._look()

    def _look(self) -> None:
        """The timer also runs while another screen covers this one, and its experiment has its own end."""
        experiment = self._mine
        if experiment is None:
            return
        over = experiment.over  # read before the progress, which then cannot change any more
        line = self.query_one("#lab-progress", Static)
        if not over:
            text = lab_text.progress(experiment.progress) if experiment.progress else "starting"
            stopping = "stopping after this step · " if experiment.stopping else ""
            line.update(f" {stopping}{text}")
            self.looked()
            return
        line.update("")
        self.chat.state.experiment = self._mine = None
        if experiment.error is not None:
            self.say(self._explained(experiment.error, experiment.trace))
        if self._then is not None:
            self._then(experiment)

    def looked(self) -> None:
        """Called while an experiment runs."""

    def _explained(self, error: Exception, trace: str) -> str:
        if isinstance(error, DFlashError):
            return advice.in_app(error)
        return f"{fault(error)}; {keep_trace(trace, self.chat.state.past.folder)}"

    # Actions

    def action_back(self) -> None:
        if self.chat.state.experiment is None:
            self.dismiss()
        elif not self.chat.state.experiment.stopping:
            self.chat.state.experiment.stop()

    def action_help(self) -> None:
        about = getattr(self.focused, "HELP", None) or ""
        self.app.push_screen(HelpScreen(about, self.SCOPE))

    def adopt(self, changes: dict[str, Value]) -> None:
        """Use what was found for the next turn."""
        try:
            self.chat.tuning.set(**changes)
        except KnobError as error:
            self.say(error)
            return
        values = ", ".join(f"{spec_of(name).label} {show(spec_of(name), value)}" for name, value in changes.items())
        self.say(f"{values} from the next turn")
