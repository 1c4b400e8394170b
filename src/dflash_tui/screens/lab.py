"""What the screens of the lab share: one experiment at a time, its progress, adopting its result; a page of rows.

And the page of what was measured before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

from textual import getters, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget

from dflash_core.errors import DFlashError
from dflash_core.knobs import Value, spec_of
from dflash_core.lab.grid import show
from dflash_core.lab.results import ExperimentProgress
from dflash_tui.application import advice
from dflash_tui.application.advice import fault, keep_trace
from dflash_tui.application.amounts import ago, speed
from dflash_tui.application.background import Experiment
from dflash_tui.application.figures.measurements import MeasuredRow, Measurement, Measurements
from dflash_tui.application.session import SessionLike
from dflash_tui.chat.parts import ChatParts
from dflash_tui.screens.page import WIDE, Page, Rows
from dflash_tui.text import lab as lab_text
from dflash_tui.text.bars import LINE, Mark, clip, plot
from dflash_tui.text.blocks import Span, content, line
from dflash_tui.widgets.flash import Flash, reported
from dflash_tui.widgets.key_line import KeyLine
from dflash_tui.widgets.literal import DataTable, Static, row_key

LOOK_S, UPDATE_S = 0.1, 0.5


class LabScreen(Page):
    """A page over the chat. Esc stops the experiment first and closes when none runs."""

    HEADING: ClassVar[str] = ""
    WIDTH: ClassVar[int] = 176
    """Maximum width of the page in cells; it is centered in a wide terminal."""
    NOT_WHILE_RUNNING: ClassVar[frozenset[str]] = frozenset({"exact", "start", "view('past')"})

    def __init__(self, chat: ChatParts) -> None:
        super().__init__(chat, classes="lab")
        self._mine: Experiment | None = None  # the experiment that began here
        self._then: Callable[[Experiment], None] | None = None

    def body(self) -> Iterable[Widget]:
        """The widgets between heading and progress."""
        raise NotImplementedError

    def draw(self) -> None:
        """Show what is known, at the current size."""

    def looked(self) -> None:
        """Called while an experiment runs."""

    def compose(self) -> ComposeResult:
        heading = (
            (f" {self.HEADING}", "bold $primary"),
            (f"   {self.chat.state.model or 'no model'}", "$foreground 70%"),
        )
        with Vertical(classes="lab-main"):
            yield Static(Content.assemble(*heading), classes="lab-heading")
            with Vertical(classes="lab-middle"), Vertical(classes="lab-column"):
                yield from self.body()
                yield Static("", id="lab-progress")
            yield KeyLine()
        yield Flash()

    def on_mount(self) -> None:
        self.set_interval(LOOK_S, self._look)

    def resized(self) -> None:
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
        state = self.chat.state
        if state.session is None:
            self.say(state.no_pair)
        elif state.busy:
            self.say("an answer is being written: Esc, wait for its end or stop it, then come back")
        elif self.running:
            self.say("an experiment is running: Esc stops it")
        elif state.no_model:
            self.say(DFlashError(state.no_model))
        else:
            self.chat.plain.stop()
            return state.session
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
            line.update(f" {'stopping after this step · ' if experiment.stopping else ''}{text}")
            self.looked()
            return
        line.update("")
        self.chat.state.experiment = self._mine = None
        if isinstance(experiment.error, DFlashError):
            self.say(advice.in_app(experiment.error))
        elif experiment.error is not None:
            self.say(f"{fault(experiment.error)}; {keep_trace(experiment.trace, self.chat.state.past.folder)}")
        if self._then is not None:
            self._then(experiment)

    # Actions

    def action_back(self) -> None:
        if self.chat.state.experiment is None:
            self.dismiss()
        elif not self.chat.state.experiment.stopping:
            self.chat.state.experiment.stop()

    def adopt(self, changes: dict[str, Value]) -> None:
        """Use what was found for the next turn."""
        values = (f"{spec_of(name).label} {show(spec_of(name), value)}" for name, value in changes.items())
        self.tuned(lambda: self.chat.tuning.set(**changes), ", ".join(values))

    def tuned(self, change: Callable[[], object], what: str, more: str = "") -> None:
        """Change the parameters of the next turn, and say so or why not."""
        with reported(self.say):
            change()
            self.say(f"{what} from the next turn{more}")


class RowsScreen(LabScreen):
    """A page of rows, drawn again by a timer: a sentence, and a table below it."""

    WIDTH = 140
    headings: tuple[str, ...]
    ENTER: ClassVar[tuple[str, str]]
    """What Enter does, and the help of the table."""

    def words(self) -> str:
        """The sentence."""
        raise NotImplementedError

    def cells(self) -> dict[str, tuple[str, ...]]:
        """The cells of each row, by its key."""
        raise NotImplementedError

    rows = getters.query_one(Rows)

    def body(self) -> Iterable[Widget]:
        yield Static("", id=f"{self.SCOPE}-words", classes="words")
        yield Vertical(Rows(*self.ENTER, id=f"{self.SCOPE}-list"), classes="lab-body")

    def on_mount(self) -> None:
        self.set_interval(UPDATE_S, self.draw)

    def draw(self) -> None:
        self.query_one(".words", Static).update(self.words())
        self.rows.fill(self.headings, self.cells())


LIST = "Settings", "↑ and ↓ show another measurement, Enter goes to its settings, Enter there uses one."
SETTINGS = "Use", "↑ and ↓ choose a setting, Enter uses it from the next turn, Tab goes to the list."
_BEFORE_FOUND = 30  # cells of the columns before the result, and of the margins


class PastScreen(LabScreen):
    """Earlier measurements of this pair: the list, and the rows of the one under the cursor."""

    SCOPE = "past"
    HEADING = "Measured before"
    WIDTH = 120
    AUTO_FOCUS = "#past-list"

    def __init__(self, chat: ChatParts) -> None:
        super().__init__(chat)
        self._all = Measurements(chat.state.past.folder, chat.state.model).newest_first if chat.state.model else ()
        self._rows: tuple[MeasuredRow, ...] = ()

    def body(self) -> Iterable[Widget]:
        none = "" if self._all else "Nothing measured yet: F8 in the chat tunes."
        yield Static(none, id="past-words", classes="words")
        yield Vertical(Rows(*LIST, id="past-list"), Rows(*SETTINGS, id="past-rows"), classes="lab-body")

    def on_mount(self) -> None:
        rows = ((ago(one.taken.timestamp(), time.time()), one.what, self._found(one)) for one in self._all)
        self.query_one("#past-list", Rows).fill(("when", "what", "found"), _by_place(rows))

    def _found(self, one: Measurement) -> str:
        """The result, cut to its row; the line above shows it whole."""
        return clip(one.words, max(self.text_width - _BEFORE_FOUND, 8))

    @on(DataTable.RowHighlighted, "#past-list")
    def _show(self, event: DataTable.RowHighlighted) -> None:
        if (key := row_key(event)) is None:
            return
        one = self._all[int(key)]
        self._rows = one.rows
        words = self.query_one("#past-words", Static)
        words.update(one.words)
        words.set_class(self._found(one) == one.words, "-in-the-row")
        headings = ("", "setting", "tok/s", "difference", "tok/step", "ms/step", "runs")
        self.query_one("#past-rows", Rows).fill(headings, _by_place(map(_cells, one.rows)), cursor="0")

    @on(DataTable.RowSelected)
    def _chosen(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "past-list":
            self.query_one("#past-rows", Rows).focus()
        elif (key := row_key(event)) is not None:
            row = self._rows[int(key)]
            self.tuned(lambda: self.chat.tuning.set_all(row.knobs), row.label)


def _cells(row: MeasuredRow) -> tuple[str, ...]:
    mark = "★" if row.mark == "best" else ""
    name = row.label + (f"  {row.mark}" if row.mark and row.mark not in ("best", row.label) else "")
    return mark, name, speed(row.tok_s), row.against, f"{row.acceptance:.2f}", f"{row.step_ms:.1f}", str(row.runs)


def _by_place(rows: Iterable[tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {str(place): row for place, row in enumerate(rows)}


HIGHEST = 20  # rows
STYLES = {"★": "bold $success", "◆": "bold $foreground", "●": "$primary", "○": "$primary", LINE: "$foreground 70%"}


class CurveView(Widget):
    """Draws marks at its own size; signs and colours have the same meaning."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id, classes="curve")
        self.styles.max_height = HIGHEST
        self._marks: Sequence[Mark] = ()
        self._title = ""
        self._span: tuple[float, float] | None = None

    def show(self, marks: Sequence[Mark], title: str, span: tuple[float, float] | None = None) -> None:
        """Draw `marks` under `title`; without marks, only the title. `span`: the ends of the horizontal axis, which
        several curves may share."""
        self._marks, self._title, self._span = marks, title, span
        self.refresh()

    def render(self) -> Content:
        lines = plot(self._marks, self.size.width, self.size.height, self._title, self._span)
        if self._marks and len(lines) == 1:  # the curve does not fit, and a title without it means nothing
            return Content("")
        return content([*(line((text, "bold")) for text in lines[:1]), *map(_styled, lines[1:])])


def _styled(text: str) -> list[Span]:
    spans: list[Span] = []
    for character in text:
        style = STYLES.get(character, "")
        if spans and spans[-1][1] == style:
            spans[-1] = (spans[-1][0] + character, style)
        else:
            spans.append((character, style))
    return spans
