"""Speed at other budgets: acceptance from the last turn, step times from the session, speed from both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from textual import on
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_core.knobs import SPEC, Value
from dflash_core.lab import whatif
from dflash_core.lab.candidates import BUDGETS, P_MINS
from dflash_core.lab.results import ExperimentProgress
from dflash_core.record import TurnRecord
from dflash_tui.application import advice
from dflash_tui.application.amounts import change, counted, percent
from dflash_tui.application.background import Experiment
from dflash_tui.screens.lab import HIGHEST, CurveView, LabScreen
from dflash_tui.screens.page import Rows
from dflash_tui.text import lab as lab_text
from dflash_tui.text.bars import LINE, Mark
from dflash_tui.widgets.literal import DataTable, Static, row_key

TURNS = 8  # step times come from this many of the newest turns
AUTO = "auto"
SIGNS = {"★": "best", "◆": "now", "●": "timed", LINE: "computed"}
SHOWN = (1, 2, 4, 6, 8, 10, 12, 15, 18, 20, 22, 24, 28, 32, 36, 40, 48, 56, 64)


class WhatIfScreen(LabScreen):
    """One turn at every budget. The curve is an estimate until the drafter has run again."""

    SCOPE = "whatif"
    HEADING = "What if: other budgets"
    WIDTH = 144
    AUTO_FOCUS = "#whatif-table"

    record: TurnRecord | None = None
    curve: whatif.Curve | None = None
    auto: whatif.AutoTurn | None = None
    drafter = ""  # the shown drafter, if several are loaded

    def body(self) -> Iterable[Widget]:
        yield Static("", id="whatif-finding")
        yield Horizontal(
            Rows("Use", "↑ and ↓ choose a budget, Enter takes it over for the next turn.", id="whatif-table"),
            Vertical(CurveView("whatif-speed"), CurveView("whatif-length"), classes="curves"),
            classes="lab-body",
        )
        yield Static("", id="whatif-notes")

    def on_mount(self) -> None:
        self.costs = whatif.StepTimes()
        self._estimate: tuple[whatif.Acceptance, ...] = ()
        self.p_min = self._own_p_min = 0.0
        session, none = self.chat.state.session, ""
        turns = session.turns if session is not None else ()
        if session is not None and session.limits.drafter is None:
            none = session.missing.get("steps") or (
                "No drafter is loaded, so there is no budget to choose. /load names one, or start with --draft ngram."
            )
        elif not turns:
            none = "No turn yet: send a message first, then come back."
        elif self.running:
            none = "A measurement is running: Esc stops it, then come back."
        if none:
            self.query_one("#whatif-finding", Static).update(none)
            return
        self.record = turns[-1]
        self.drafter = self._first()
        self.p_min = self._own_p_min = self.record.knobs.p_min
        self._begin()

    def _begin(self) -> None:
        """Estimate from the beginning. Unpacking and rebuilding the trees of long turns takes a while, so it is an
        experiment too."""
        self.costs, self._estimate, self.curve = whatif.StepTimes(), (), None
        self.begin(self._estimate_turn(), self._estimated, decodes=False)

    def _estimate_turn(self) -> Iterator[ExperimentProgress]:
        assert self.record is not None
        turns = self.chat.state.session.turns[-TURNS:] if self.chat.state.session is not None else ()
        for number, turn in enumerate(turns):
            yield ExperimentProgress(number, len(turns), None, "reading the session's step times")
            for step in whatif.of_drafter(turn.steps, self.drafter) if self.drafter else turn.steps:
                self.costs.add(step)
        self.auto = whatif.auto_turn(self.record.steps)
        self._estimate = whatif.estimate(self.record.steps, self.budgets, self.drafter, self.p_min)
        self.take("estimate", self._estimate)

    def _estimated(self, experiment: Experiment) -> None:
        """Show the estimate; if Esc stopped it, there is nothing to show, so close."""
        if experiment.stopping:
            self.dismiss()
        else:
            self.draw()
            if experiment.error is not None and not self.drafter:  # the notice goes, and the page would be empty
                self.query_one("#whatif-finding", Static).update(one_line(str(experiment.error)))

    def hint(self, action: str, label: str) -> str:
        if self.record is None or (self.chat.state.attached and action in ("exact", "measure")):
            return label if action in ("back", "help") else ""
        return label if action == "back" and self._then == self._estimated else super().hint(action, label)

    @property
    def drafters(self) -> tuple[str, ...]:
        """Kinds of the drafters, if several are loaded."""
        loaded = self.chat.state.session.limits.drafter if self.chat.state.session is not None else None
        return tuple(one.kind for one in loaded.parts) if loaded is not None else ()

    def _first(self) -> str:
        """The drafter of most steps of the turn, if there are several."""
        assert self.record is not None
        kinds = Counter(
            step.drafter for step in whatif.of_drafter(self.record.steps, "") if step.drafter in self.drafters
        )
        return next((kind for kind, _ in kinds.most_common(1)), self.drafters[0] if self.drafters else "")

    @property
    def budgets(self) -> tuple[int, ...]:
        """Every budget on the slider, and the turn's own."""
        low, high = SPEC["drafting"].slider or (1, 64)
        own = self.record.knobs.budget if self.record is not None else int(low)
        return tuple(sorted({*range(int(low), int(high) + 1), own}))

    def take(self, kind: whatif.Kind, acceptance: tuple[whatif.Acceptance, ...]) -> None:
        """Add the session's step times to these acceptance lengths."""
        assert self.record is not None
        own = (
            whatif.own_ms(self.record.steps, self.drafter)
            if self.auto is None and self.p_min == self._own_p_min
            else None
        )
        self.curve = whatif.curve(kind, acceptance, self.costs, self.record.knobs.budget, own)

    # Actions

    def action_drafter(self) -> None:
        if len(self.drafters) < 2:
            self.say("one drafter is loaded; start with --draft A --draft B to compare several")
            return
        if self.record is None or self.measurable() is None:
            return
        self.drafter = self.drafters[(self.drafters.index(self.drafter) + 1) % len(self.drafters)]
        self._begin()

    def action_p_min(self) -> None:
        if self.record is None or self.running:
            return
        values = sorted({*P_MINS, self._own_p_min})
        self.p_min = values[(values.index(self.p_min) + 1) % len(values)]
        self._begin()

    def action_export(self) -> None:
        rows = [
            {**asdict(p.acceptance), "p_min": self.p_min, "ms": p.ms, "source": p.source, "tok_s": p.tok_s}
            for p in (self.curve.points if self.curve is not None else ())
        ]
        self.export_rows(rows, "whatif.csv")

    def action_exact(self) -> None:
        session = self.measurable()
        if session is None or self.record is None:
            return
        try:
            replay = session.what_if(self.record, self.budgets, self.drafter, self.p_min)
        except DFlashError as error:
            self.say(advice.in_app(error))
            return

        def replayed(_: Experiment) -> None:
            if replay.acceptance:
                self.take("exact", replay.acceptance)
            self.draw()

        self.begin(iter(replay), replayed)

    def action_measure(self) -> None:
        if self.record is None or self.running:
            return
        budgets = sorted({*BUDGETS, self.record.knobs.budget})
        also = [f"draft={self.drafter}"] if self.drafter else []
        self.chat.open_page("sweep", " ".join([f"budget={','.join(map(str, budgets))}", *also]))

    def action_adopt(self) -> None:
        best = self.curve.best if self.curve is not None else None
        if best is None:
            self.say("no best budget yet: step times of other budgets are not known; m measures")
        else:
            self.adopt(self._with(best.budget))

    @on(DataTable.RowSelected)
    def _chosen(self, event: DataTable.RowSelected) -> None:
        key = row_key(event)
        if key == AUTO:
            self.adopt({"drafting": "auto", **({"draft": "auto"} if self.drafter else {})})
        elif key is not None:
            self.adopt(self._with(int(key)))

    def _with(self, budget: int) -> dict[str, Value]:
        """A size, and the drafter that it was chosen for."""
        p_min: dict[str, Value] = {"p_min": self.p_min} if self.p_min != self._own_p_min else {}
        kind = "chain" if self.chat.state.knobs.mode == "chain" else "tree"
        return {"drafting": f"{kind} {budget}", **p_min, **({"draft": self.drafter} if self.drafter else {})}

    # Drawing

    def draw(self) -> None:
        it, table = self.curve, self.query_one(Rows)
        if it is None:
            if self.drafter:
                none = f"{self.drafter} drafted nothing in the last turn: e replays the turn with it, d shows the next"
                self.query_one("#whatif-finding", Static).update(none)
                table.clear()
                for view in self.query(CurveView):
                    view.show([], "not known")
            return
        self.query_one("#whatif-finding", Static).update("\n".join(self._finding(it)))
        self.query_one("#whatif-notes", Static).update("\n".join(self._notes(it)))
        self._fill(table, it)
        self.fit(table.row_count + 1, 2 * HIGHEST + 1)
        best = it.best
        # The best and the current one last, so that they show where points share a cell.
        points = sorted(it.points, key=lambda p: (p is best, p.budget == it.current))

        def sign(point: whatif.Point, ran: bool) -> str:
            """Stars and points for what `ran`; computed values are only dots of the line."""
            if point is best and ran:
                return "★"
            return "◆" if point.budget == it.current else "●" if ran else LINE

        speeds = [Mark(p.budget, p.tok_s, sign(p, p.source == "measured")) for p in points if p.tok_s is not None]
        # Timed steps of a budget do not show what it drafts in this turn; only the exact replay does.
        lengths = [Mark(p.budget, p.acceptance.length, sign(p, it.kind == "exact")) for p in points]
        span = (float(self.budgets[0]), float(self.budgets[-1]))
        seen = {mark.sign for mark in speeds} | {LINE}
        known = "  ".join(["tok/s", *(f"{sign} {name}" for sign, name in SIGNS.items() if sign in seen)])
        self.query_one("#whatif-speed", CurveView).show(speeds, known if speeds else "tok/s: not known yet", span)
        name = "estimated" if it.kind == "estimate" else "exact"
        self.query_one("#whatif-length", CurveView).show(lengths, f"tokens per step, {name}", span)

    def _fill(self, table: Rows, it: whatif.Curve) -> None:
        best, exact = it.best, it.kind == "exact"
        rows: dict[str, list[str]] = {}
        if self.auto is not None:
            length, *rest = lab_text.auto_cells(self.auto)
            rows[AUTO] = [AUTO, length, *(["–"] if exact else []), *rest]
        shown = [p for p in it.points if p.budget in SHOWN or p is best or p.budget == it.current]
        before = {one.budget: f"{one.length:.2f}" for one in self._estimate}
        for point, (budget, length, *rest) in zip(shown, lab_text.whatif_table(shown, it.current, best)):
            rows[str(point.budget)] = [budget, length, *([before.get(point.budget, "–")] if exact else []), *rest]
        headings = ["budget", "tok/step", *(["estimate"] if exact else []), "ms", "tok/s"]
        table.fill(headings, rows, None if table.cursor_key in rows.keys() - {AUTO} else str(it.current))

    def _finding(self, it: whatif.Curve) -> Iterator[str]:
        steps = self.record.steps if self.record is not None else ()
        if it.kind == "estimate":
            had = self.record.knobs.drafting if self.record is not None else ""
            drafted = whatif.of_drafter(steps, self.drafter)
            some = f"{len(drafted)} of " if len(drafted) < len(steps) else ""
            by = f"drafter {self.drafter}, " if self.drafter else ""
            yield f"ESTIMATE from {some}{counted(len(steps), 'step')} of the last turn ({by}{had})"
        elif not self._estimate:
            yield f"EXACT: {self.drafter} ran again as the only drafter, and drafted nothing in the turn itself"
        else:
            # The estimate's errors as shares of the exact lengths, both as rounded in the table.
            pairs = zip(self._estimate, it.points)
            errors = {a.budget: change(f"{a.length:.2f}", f"{p.acceptance.length:.2f}") for a, p in pairs}
            worst = max(errors, key=lambda budget: abs(errors[budget]), default=it.current)
            off = f"the estimate was off by up to {percent(errors.get(worst, 0.0))} (budget {worst})"
            ran = f"{self.drafter} ran again as the only drafter" if self.drafter else "the drafter ran again"
            yield f"EXACT: {ran}; {off}"
        yield lab_text.best_line(it)
        if self.auto is not None:
            yield lab_text.auto_line(self.auto, it)

    def _notes(self, it: whatif.Curve) -> Iterator[str]:
        yield lab_text.sources(it)
        if self.p_min != self._own_p_min:
            yield f"with p_min {self.p_min:g}, the turn had {self._own_p_min:g}; p shows the next"
        if it.kind == "estimate":
            yield "under another budget steps begin at other tokens: e gives exact figures"
        if len(self.drafters) > 1:
            yield f"drafters: {', '.join(self.drafters)}; d shows the next one; adopting a budget also sets its drafter"
