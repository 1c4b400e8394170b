"""Any turn of the conversation, step by step: its tree, its text by draft depth, the drafter's calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from textual import on
from textual.app import ComposeResult
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content

from dflash_core.clean import one_line
from dflash_core.draft_quality import by_position, by_probability
from dflash_core.events import STAGES, StepEvent
from dflash_core.knobs import LIVE, SPEC
from dflash_core.record import TurnRecord
from dflash_tui.application.amounts import counted
from dflash_tui.chat.parts import ChatParts
from dflash_tui.screens.page import Page
from dflash_tui.text.bars import clip
from dflash_tui.text.blocks import DOT, Block, content, dotted, line, wrapped
from dflash_tui.text.step_text import LEGENDS, By, StepText, drawn, drawn_calibration, legend, rejection_line
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.key_line import KeyLine
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.slider import Scrubber

LOW = 18  # below this many rows the figures take two lines
MAX_TURNS = 20  # calibration over all turns uses at most this many of the newest
VIEWS = ("tree", "text", "calibration")
SHOWN_KNOBS = ("drafting", "p_min", "tree_width", "tree_temperature", "temperature")


class StepsScreen(Page):
    """One view at a time on a narrow terminal, two or three next to each other on a wider one."""

    SCOPE = "steps"
    AUTO_FOCUS = "#scrubber"

    def __init__(self, chat: ChatParts, turns: Sequence[TurnRecord] | None = None) -> None:
        """`turns`: others than those of the conversation."""
        super().__init__(chat)
        own = chat.state.session.turns if chat.state.session is not None else ()
        self.turns: Sequence[TurnRecord] = own if turns is None else turns
        self.turn = len(self.turns) - 1
        self.view = "tree"
        self.by: By = "depth"
        self.left_out = True
        self.taken_only = False
        self.all_turns = False
        self._record: TurnRecord | None = None
        self._steps: tuple[StepEvent, ...] = ()
        self._text: StepText | None = None
        self._boxes = {view: Vertical(id=f"steps-{view}", classes="steps-view") for view in VIEWS}

    def compose(self) -> ComposeResult:
        with Vertical(id="steps-main"):
            yield Static("", id="steps-title")
            yield Scrubber(id="scrubber")
            yield Static("", id="steps-about")
            with Container(id="steps-body"):
                for box in self._boxes.values():
                    with box:
                        yield Static("", classes="steps-heading")
                        with VerticalScroll():
                            yield Static("", classes="steps-content")
            yield KeyLine()
        yield Flash()

    def on_mount(self) -> None:
        self.on_resize()
        self._load()

    def hint(self, action: str, label: str) -> str:
        """The footer's label of an action. Actions of a hidden view and moves to turns that do not exist have none."""
        of_view = {"by": "text", "left_out": "tree", "taken": "tree", "all": "calibration"}
        if action in of_view and not (self._steps and self._boxes[of_view[action]].display):
            return ""
        possible = {
            "turn(-1)": self.turn > 0, "turn(1)": self.turn < len(self.turns) - 1, "all": len(self.turns) > 1,
            "export": bool(self._steps), "view": self._record is not None and not self.has_class("-wide"),
        }  # fmt: skip
        return label if possible.get(action, True) else ""

    def resized(self) -> None:
        """Show the views that fit; their text is drawn once they have their widths."""
        for view in VIEWS:
            self._boxes[view].display = view in self._arrangements[0]
        self.call_after_refresh(self.draw)

    @property
    def _arrangements(self) -> list[tuple[str, ...]]:
        """Views that are shown together: the current ones first, then those that each press of the view key shows."""
        if self.has_class("-wide"):
            return [VIEWS]
        every = [(one,) for one in VIEWS] if self.has_class("-narrow") else [("tree", "text"), ("tree", "calibration")]
        at = next((place for place, views in enumerate(every) if views[-1] == self.view), 0)
        return [*every[at:], *every[:at]]

    # What is shown

    @property
    def step(self) -> int:
        """The shown step, from 1; 0 if the turn has none."""
        return self.query_one(Scrubber).step

    def _load(self) -> None:
        """Show the turn `self.turn` from its first step."""
        self._record = self.turns[self.turn] if self.turns else None
        self._steps = self._record.steps if self._record is not None else ()
        self._text = None
        scrubber = self.query_one(Scrubber)
        scrubber.lengths = tuple(len(step.tokens) for step in self._steps)
        scrubber.step = 1 if self._steps else 0
        self.draw()

    def draw(self) -> None:
        """Draw everything, at the current step and size."""
        if not self.is_mounted:
            return
        self.query_one("#steps-title", Static).update(self._title())
        if self._record is None:
            self.query_one("#steps-about", Static).update("No turn yet: send a message first, then come back.")
            return
        self.query_one("#steps-about", Static).update(self._about())
        for box, view in zip(self._boxes.values(), (self._tree_view, self._text_view, self._calibration_view)):
            if box.display:
                width = max(box.query_one(VerticalScroll).scrollable_content_region.width, 24)
                heading = box.query_one(".steps-heading", Static)
                title, body = view(self._record, width)
                heading.update(title)
                heading.display = bool(title)
                box.query_one(".steps-content", Static).update(body)
        if self._text is not None and self._boxes["text"].display:
            scroll = self._boxes["text"].query_one(VerticalScroll)
            scroll.scroll_to(y=max(self._text.line_of(self.step) - scroll.size.height // 2, 0), animate=False)

    def _title(self) -> Content:
        if self._record is None:
            return Content.styled(" Steps", "bold $primary")
        start = self._record.start
        place = f"  turn {self.turn + 1}/{len(self.turns)}  "
        names = f"  {one_line(start.target)}" + (f" + {one_line(start.draft)}" if start.draft else "")
        available = max(self.size.width - len(place) - 9, 10)
        prompt = clip(one_line(start.prompt), max(available - len(names), 10))
        names = clip(names, available)
        return Content.assemble((" Steps", "bold $primary"), place, (f"❯ {prompt}", "bold"), (names, "$foreground 70%"))

    def _about(self) -> Content:
        """The current step in figures, and where the target rejected the drafts."""
        width = max(self.size.width - 2, 30)
        if not self._steps:
            session = self.chat.state.session
            missing = session.missing.get("steps", "") if session is not None else ""
            drawn = self._record is not None and self._record.pieces
            why = "its first token was its last" if drawn else "it ended before its first token"
            return Content(missing or f"this turn has no step: {why}")
        assert self._record is not None
        step = self._steps[self.step - 1]
        knobs = (f"{name} {SPEC[name].show(getattr(step.knobs, name))}" for name in SHOWN_KNOBS)
        changed = any(getattr(step.knobs, name) != getattr(self._record.knobs, name) for name in LIVE)
        figures = (
            f"{step.mode}: {counted(len(step.tokens), 'token')}",
            f"{len(step.drafts.tokens)} positions drafted",
            f"{len(step.tree.tokens) - 1} nodes verified", f"{step.accepted_depth} accepted",
        )  # fmt: skip
        rejection = f"◆ {rejection_line(step, self._record.token_text)}"
        if self.size.height < LOW:
            return content([line(clip(DOT.join(figures), width)), line((clip(rejection, width), "$secondary"))])
        times = " ".join(f"{name} {getattr(step.stages, name):.1f}" for name in STAGES)
        dim = "$foreground 70%"
        block: Block = [line(text) for text in dotted(figures, width)]
        mark = [" • changed in mid-turn"] if changed else []
        block += [line((text, dim)) for text in dotted([*knobs, *mark], width, " ")]
        block += wrapped(f"{step.stages.total:.1f} ms: {times}", width, dim)
        block += wrapped(rejection, width, "$secondary")
        return content(block)

    # Each view: its heading and its text.

    def _tree_view(self, record: TurnRecord, width: int) -> tuple[Content, Content]:
        if not self._steps:
            return Content.styled("Tree", "bold"), Content("")
        step, shown = self._steps[self.step - 1], {"left_out": self.left_out, "taken_only": self.taken_only}
        heading = Content.assemble(("Tree", "bold"), (f"  {legend(step, **shown)}", "$foreground 70%"))
        if len(step.tree.tokens) == 1 and not step.drafts.tokens:
            return heading, Content.styled("this step drafted nothing: plain decoding", "$foreground 70%")
        return heading, drawn(step, record.token_text, width, **shown)

    def _text_view(self, record: TurnRecord, width: int) -> tuple[Content, Content]:
        parts: list[str | tuple[str, str]] = [("Text", "bold"), f" by {self.by}:"]
        for word, style in LEGENDS[self.by]:
            parts += [" ", (word, style)]
        if self._text is None or self._text.width != width:
            self._text = StepText(record, width)
        return Content.assemble(*parts), self._text.drawn(self.step, self.by)

    def _calibration_view(self, record: TurnRecord, width: int) -> tuple[Content, Content]:
        turns = self._calibrated
        steps = [step for turn in turns for step in turn.steps]
        which = f"the newest {counted(len(turns), 'turn')}" if self.all_turns else "this turn"
        several = len({step.knobs.tree_temperature for step in steps}) > 1
        of = f"{counted(len(steps), 'step')} of {which}{', at several tree temperatures' if several else ''}"
        return Content(""), drawn_calibration(steps, width, of)  # the table has its own heading

    @property
    def _calibrated(self) -> Sequence[TurnRecord]:
        """The turns that the calibration covers."""
        return self.turns[-MAX_TURNS:] if self.all_turns else [self._record] if self._record is not None else []

    # Actions

    @on(Scrubber.Moved)
    def _moved(self, event: Scrubber.Moved) -> None:
        self.query_one(Scrubber).step = event.step
        self.draw()

    def action_step(self, count: int) -> None:
        self.query_one(Scrubber).action_move(count)

    def action_turn(self, count: int) -> None:
        turn = min(max(self.turn + count, 0), len(self.turns) - 1)
        if self.turns and turn != self.turn:
            self.turn = turn
            self._load()

    def action_view(self) -> None:
        every = self._arrangements
        self.view = every[1 % len(every)][-1]
        self.resized()

    def action_by(self) -> None:
        self.by = "step" if self.by == "depth" else "depth"
        self.draw()

    def action_left_out(self) -> None:
        self.left_out = not self.left_out
        self.draw()

    def action_taken(self) -> None:
        self.taken_only = not self.taken_only
        self.draw()

    def action_all(self) -> None:
        self.all_turns = not self.all_turns
        self.draw()

    def action_scroll(self, pages: int) -> None:
        self.action_lines(pages * max(self._first.size.height - 2, 1))

    def action_lines(self, count: int) -> None:
        self._first.scroll_relative(y=count, animate=False)

    @property
    def _first(self) -> VerticalScroll:
        return next(box for box in self._boxes.values() if box.display).query_one(VerticalScroll)

    def action_export(self) -> None:
        if self.view != "calibration":
            self.export_rows([_figures(number, one) for number, one in enumerate(self._steps, 1)], "steps.csv")
            return
        of = [step for turn in self._calibrated for step in turn.steps]
        rows = [{"by": "position", **asdict(one), "low": "", "high": ""} for one in by_position(of)]
        rows += [{"by": "probability", "depth": "", "hit_any": "", **asdict(one)} for one in by_probability(of)]
        self.export_rows(rows, "calibration.csv")


def _figures(number: int, step: StepEvent) -> dict[str, object]:
    return {
        "step": number, "mode": step.mode, "reason": step.reason, "drafter": step.drafter,
        "nodes": len(step.tree.tokens) - 1, "depth": step.drafted_depth, "tokens": len(step.tokens),
        "accepted": len(step.tree.accepted) - 1, **{f"{name}_ms": getattr(step.stages, name) for name in STAGES},
    }  # fmt: skip
