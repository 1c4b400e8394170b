"""Tune: find the best setting on the user's own prompts with one key. Sweep, A/B and what-if are other lab views."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget

from dflash_core.bench.prompts import PROMPTS, Task, read_prompts, sample
from dflash_core.conversation import Message
from dflash_core.errors import DFlashError, KnobError
from dflash_core.lab import candidates
from dflash_core.lab.sweep import Case
from dflash_core.lab.tune import Tune
from dflash_tui.chat.experiment import Experiment
from dflash_tui.chat.host import ChatHost
from dflash_tui.figures.measurements import Measurement, Measurements, Row
from dflash_tui.screens.lab import LabScreen
from dflash_tui.settings.keys import bindings
from dflash_tui.text import tune as tune_text
from dflash_tui.text.ago import ago
from dflash_tui.text.bars import clip, counted
from dflash_tui.text.glossary import sentence
from dflash_tui.widgets.line_dialog import LineScreen
from dflash_tui.widgets.literal import DataTable, Static, row_key

LAST = 4  # how many questions of the conversation are used
SAMPLES = 6  # how many prompts of a file are used
REDRAW_S = 0.5
_BEFORE_FOUND = 30  # cells of the columns before the result, and of the margins


class TuneScreen(LabScreen):
    """Measures when it opens. Enter uses the setting under the cursor, which follows the best one until it is moved."""

    SCOPE: ClassVar[str] = "tune"
    HEADING: ClassVar[str] = "Tune"
    WIDTH: ClassVar[int] = 148
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE)]
    AUTO_FOCUS = "#tune-table"

    def __init__(self, chat: ChatHost, file: str = "") -> None:
        super().__init__(chat)
        self._file = file  # the last prompt file that could be read
        self._named = file  # the last file name typed
        self.tune: Tune | None = None
        self._on = ""  # the source of the prompts, in words
        self._own = True  # the prompts are the user's
        self._none = False  # there is nothing to tune
        self._drawn_at = 0.0

    def body(self) -> Iterable[Widget]:
        yield Static("", id="tune-words")
        yield Static("", id="tune-on")
        yield Vertical(_Table(id="tune-table"), classes="lab-body")

    def on_mount(self) -> None:
        super().on_mount()
        self.call_after_refresh(self.action_start)

    def hint(self, action: str, label: str) -> str:
        if action == "save" and not self.query_one(_Table).row_count:
            return ""
        if action in ("start", "file") and self._none:
            return ""
        return super().hint(action, "Measure" if action == "start" and self.tune is None else label)

    # Prompts

    def cases(self) -> tuple[list[Case], str]:
        """The prompts and their source in words. Raises DFlashError."""
        if self._file:
            tasks = sample(read_prompts(Path(self._file).expanduser()), SAMPLES)
            return [Case.of(task) for task in tasks], f"{counted(len(tasks), 'prompt')} of {self._file}"
        session = self.chat.session
        messages = list(session.conversation.messages) if session is not None else []
        asked = [place for place, one in enumerate(messages) if one.role == "user"][-LAST:]
        if not asked:
            examples = [Task(f"example {number}", text) for number, text in enumerate(PROMPTS[:LAST], 1)]
            return [Case.of(task) for task in examples], counted(len(examples), "example")
        found = []
        for number, place in enumerate(asked, 1):
            until = tuple(Message(one.role, one.content, one.thinking) for one in messages[: place + 1])
            found.append(Case(f"prompt {number}", until))
        return found, f"the last {counted(len(found), 'prompt').removeprefix('1 ')} of this conversation"

    # The run

    def action_start(self) -> None:
        """Measure, from the beginning."""
        try:
            self._start()
        except DFlashError as error:
            self.say(error)

    def _start(self) -> None:
        """Begin, or say why not. Raises DFlashError if the prompts cannot be read."""
        lab = self.laboratory()
        if lab is None:
            if self.tune is None:  # the notice that says why fades
                self._say_words("nothing is measured yet: r measures once nothing else runs")
            return
        self._none = lab.limits.drafter is None
        if self._none:
            self._say_words("no drafter is loaded, so there is nothing to tune: /load names one, or start with --draft")
            return
        cases, self._on = self.cases()
        self._own = bool(self._file or self.last_prompt())
        self.tune = lab.tune(candidates.arms(self.chat.knobs, lab.limits), cases)
        self.query_one(_Table).follow = True
        self.begin(iter(self.tune), self._ended, self.tune.cancel)
        self.draw()

    def looked(self) -> None:
        now = time.monotonic()
        if now - self._drawn_at > REDRAW_S:
            self._drawn_at = now
            self.draw()

    def _ended(self, experiment: Experiment) -> None:
        self.draw()
        tune, kept = self.tune, self.measurements
        if tune is None or kept is None or not tune.standings:
            return
        best = tune.verdict.best if tune.verdict is not None else -1
        rows = [
            Row(
                one.setting.label, one.setting.knobs, one.tok_s, one.acceptance, one.step_ms, one.pairs,
                "best" if one.arm == best else one.role, one.now_tok_s if one.role != "now" else None,
            )
            for one in tune.standings
        ]  # fmt: skip
        kept.add("tune", self._words(), rows)
        plain = next((one for one in tune.standings if one.role == "plain" or one.setting.label == "plain"), None)
        if plain is not None:
            self.chat.gauges.measured_plain(plain.tok_s, plain.pairs)

    def _words(self) -> str:
        tune = self.tune
        assert tune is not None
        return tune_text.words(tune.arms, tune.verdict, running=self.running, complete=tune.complete)

    def _say_words(self, text: str) -> None:
        self.query_one("#tune-words", Static).update(sentence(text, otherwise="median"))

    def draw(self) -> None:
        tune = self.tune
        if tune is None:
            return
        self._say_words(self._words())
        left_out = tune.left_out
        out = f"; left out: {', '.join(left_out)} ({next(iter(left_out.values()))})" if left_out else ""
        yours = "" if self._own or self.running else "; f measures on a file of yours"
        self.query_one("#tune-on", Static).update(sentence(clip(f"on {self._on}{yours}{out}", self.room - 2)))
        width = self.room
        rows = tune_text.lines(tune.standings, tune.verdict, width=width)
        self.query_one(_Table).show(tune_text.headings(width=width), tune_text.figures(width=width), rows)

    # Actions

    @on(DataTable.RowSelected)
    def _chosen(self, event: DataTable.RowSelected) -> None:
        if (key := row_key(event)) is not None:
            self._use(int(key))

    def _use(self, arm: int) -> None:
        tune = self.tune
        if tune is None:
            return
        knobs = tune.arms[arm].setting.knobs
        try:
            self.chat.set_all_knobs(knobs)
        except KnobError as error:
            self.say(error)
            return
        self.chat.show_knobs()
        way = "Esc stops" if self.running else "Esc goes to the chat"
        self.say(f"{tune.arms[arm].setting.label} from the next turn; s keeps it as a preset, {way}")

    def action_save(self) -> None:
        """Keep the setting under the cursor as a preset of this model."""
        tune, arm = self.tune, self.query_one(_Table).chosen
        if tune is None or arm is None:
            self.say("nothing to keep yet")
            return
        setting = tune.arms[arm].setting

        def named(name: str | None) -> None:
            if name is None:
                return
            try:
                self.chat.tuning.presets.save(name, setting.knobs, f"tuned: {setting.label}", self.chat.model)
            except DFlashError as error:
                self.say(error)
                return
            self.chat.show_knobs()
            self.say(f"preset {name} is kept: F9 in the chat, or /preset {name}")

        self.app.push_screen(LineScreen("A name for the preset: a to z, 0 to 9, - and _", "tuned"), named)

    def action_file(self) -> None:
        """Measure on a file of prompts instead."""

        def named(name: str | None) -> None:
            if name is None:
                return
            before, self._named, self._file = self._file, name, name
            try:
                self._start()
            except DFlashError as error:  # r uses the last readable file; f offers the typed name for correction
                self._file = before
                self.say(error)

        if self.running:
            self.say("an experiment is running: Esc stops it")
        else:
            self.app.push_screen(LineScreen("A file of prompts; empty takes the conversation's", self._named), named)

    def action_view(self, page: str) -> None:
        """Another view of the lab: sweep, A/B, what-if, earlier measurements."""
        if self.running:
            self.say("an experiment is running: Esc stops it")
        else:
            self.chat.open_page(page)


class _Table(DataTable):
    """Settings, the fastest first. The cursor follows the best until it is moved."""

    HELP = "↑ and ↓ choose a setting, Enter uses it from the next turn, s keeps it as a preset."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Use"),
        Binding("up", "move(-1)", "up", show=False),
        Binding("down", "move(1)", "down", show=False),
    ]
    follow = True

    def action_move(self, count: int) -> None:
        """The user moves along the rows."""
        self.follow = False
        self.move_cursor(row=min(max(self.cursor_row + count, 0), self.row_count - 1))

    @property
    def chosen(self) -> int | None:
        """The setting under the cursor."""
        return int(self.cursor_key) if self.cursor_key is not None else None

    def show(self, headings: Sequence[str], figures: Sequence[str], lines: list[tune_text.Line]) -> None:
        """Refill the table."""
        before = self.chosen
        self.clear(columns=True)
        self.add_headings(headings, figures)
        for line in lines:
            color = "success" if line.cells[0] == "★" else "primary"
            self.add_texts(line.cells, key=str(line.arm), colors={tune_text.BAR_CELL: color})
        best = next((place for place, line in enumerate(lines) if line.cells[0] == "★"), 0)
        same = next((place for place, line in enumerate(lines) if line.arm == before), best)
        if lines:
            self.move_cursor(row=best if self.follow else same)


class PastScreen(LabScreen):
    """Earlier measurements of this pair: the list, and the rows of the one under the cursor."""

    SCOPE: ClassVar[str] = "past"
    HEADING: ClassVar[str] = "Measured before"
    WIDTH: ClassVar[int] = 120
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE)]
    AUTO_FOCUS = "#past-list"

    def __init__(self, chat: ChatHost) -> None:
        super().__init__(chat)
        self._all = Measurements(chat.past.folder, chat.model).newest_first if chat.model else ()
        self._rows: tuple[Row, ...] = ()

    def body(self) -> Iterable[Widget]:
        yield Static("" if self._all else "Nothing measured yet: F8 in the chat tunes.", id="past-words")
        yield Vertical(_List(id="past-list"), _Rows(id="past-rows"), classes="lab-body")

    def on_mount(self) -> None:
        super().on_mount()
        table = self.query_one(_List)
        table.add_headings(("when", "what", "found"), ("date", "", "median"))
        for place, one in enumerate(self._all):
            table.add_texts(
                (ago(one.taken.timestamp(), time.time()), one.what, self._found(one)),
                key=str(place),
            )

    def _found(self, one: Measurement) -> str:
        """The result, cut to its row; the line above shows it whole."""
        return clip(one.words, max(self.room - _BEFORE_FOUND, 8))

    @on(DataTable.RowHighlighted, "#past-list")
    def _looked_at(self, event: DataTable.RowHighlighted) -> None:
        if (key := row_key(event)) is not None:
            self._open(self._all[int(key)])

    def _open(self, one: Measurement) -> None:
        self._rows = one.rows
        words = self.query_one("#past-words", Static)
        words.update(sentence(one.words, otherwise="median"))
        words.set_class(self._found(one) == one.words, "-in-the-row")
        table = self.query_one("#past-rows", DataTable)
        table.clear(columns=True)
        table.add_headings(
            ("", "setting", "tok/s", "now", "difference", "tok/step", "ms/step", "runs"),
            ("", "", "median", "median", "difference", "acceptance", "step_ms", "runs"),
        )
        for place, row in enumerate(one.rows):
            mark = "★" if row.mark == "best" else ""
            name = row.label + (f"  {row.mark}" if row.mark and row.mark not in ("best", row.label) else "")
            speeds = (tune_text.rate(row.tok_s), *tune_text.beside(row.tok_s, row.now_tok_s))
            cells = (mark, name, *speeds, f"{row.acceptance:.2f}", f"{row.step_ms:.1f}", str(row.runs))
            table.add_texts(cells, key=str(place))

    @on(DataTable.RowSelected)
    def _chosen(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "past-list":
            self.query_one("#past-rows", DataTable).focus()
        elif (key := row_key(event)) is not None:
            row = self._rows[int(key)]
            try:
                self.chat.set_all_knobs(row.knobs)
            except KnobError as error:
                self.say(error)
            else:
                self.say(f"{row.label} from the next turn")


class _List(DataTable):
    """Measurements, the newest first."""

    HELP = "↑ and ↓ show another measurement, Enter goes to its settings, Enter there uses one."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Settings")]


class _Rows(DataTable):
    """The settings of a measurement."""

    HELP = "↑ and ↓ choose a setting, Enter uses it from the next turn, Tab goes to the list."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Use")]
