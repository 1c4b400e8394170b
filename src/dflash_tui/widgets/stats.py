"""The figures of the running turn, or of the last one."""

from __future__ import annotations

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from dflash_core.events import TurnReport
from dflash_tui.meter import Meter
from dflash_tui.widgets.bars import bar, seconds, short, spark, speed
from dflash_tui.widgets.blocks import Block, beside, content, line
from dflash_tui.widgets.panel import Panel


@dataclass(frozen=True, slots=True)
class Figures:
    """What the panel shows, from a meter while a turn runs and from its report afterwards."""

    title: str
    rate: float
    acceptance: float
    tokens: int
    steps: int
    decode_s: float
    ttft_ms: float | None
    prompt: int
    reused: int
    accept: tuple[float, ...]
    drafted: tuple[int, ...]
    stages: tuple[tuple[str, float], ...]
    mode: str
    reason: str


def figures(meter: Meter, report: TurnReport | None) -> Figures:
    """The report's figures where there is one: they are the decoder's own."""
    stages = report.stats.stage_ms if report else meter.totals.stage_ms
    named = tuple((name, getattr(stages, name)) for name in ("draft", "tree", "verify", "accept", "commit"))
    if report is not None:
        stats = report.stats
        return Figures(
            "Last turn", stats.tokens_per_second, stats.acceptance_length, stats.tokens, stats.steps, stats.decode_s,
            stats.ttft_ms, stats.prompt_tokens, stats.reused_tokens, stats.accept_rate_by_depth,
            stats.drafted_by_depth, named, report.mode, report.reason,
        )  # fmt: skip
    prefill, event = meter.prefill, meter.last or meter.prefill
    return Figures(
        "This turn", meter.overall_rate, meter.totals.acceptance_length, meter.tokens,
        meter.totals.steps, meter.decode_s,
        prefill.elapsed_ms if prefill else None, prefill.prompt_tokens if prefill else 0,
        prefill.reused_tokens if prefill else 0, meter.totals.accept_rates, tuple(meter.totals.drafted), named,
        event.mode if event else "", event.reason if event else "",
    )  # fmt: skip


class StatsPanel(Panel):
    """Speed, acceptance per step and per draft position, time by stage."""

    def __init__(self) -> None:
        super().__init__("stats")
        self._meter: Meter | None = None
        self._report: TurnReport | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(_EMPTY, id="stats-body")

    def show(self, meter: Meter | None, report: TurnReport | None) -> None:
        """Draw the figures of `meter`, or of the finished turn's `report`."""
        self._meter, self._report = meter, report
        self.draw()

    def draw(self) -> None:
        meter, report = self._meter, self._report
        body = self.query_one("#stats-body", Static)
        width = max(self.query_one(VerticalScroll).scrollable_content_region.width, 24)
        body.update(_EMPTY if meter is None else _drawn(meter, figures(meter, report), width))


_EMPTY = Content.assemble(
    ("No turn yet\n", "bold"), ("send a message to see speed and acceptance here", "$foreground 70%")
)
_DIM = "$foreground 70%"
_TWO_COLUMNS = 72


def _drawn(meter: Meter, it: Figures, width: int) -> Content:
    """One column, or two where the panel is a drawer that is wide and low."""
    if width < _TWO_COLUMNS:
        return content([*_numbers(it), *_sparks(meter, width), *_positions(it, width), *_stages(it, width)])
    half = (width - 2) // 2
    left = [*_numbers(it), *_stages(it, half)]
    right = [*_positions(it, half)[1:], *_sparks(meter, half)]
    return content(beside(left, right, half))


def _numbers(it: Figures) -> Block:
    ttft = f"  first token {seconds(it.ttft_ms / 1000)}" if it.ttft_ms is not None else ""
    steps = f"{it.steps / it.decode_s:.1f} steps/s  " if it.decode_s > 0 else ""
    return [
        line((it.title, "bold")),
        line((f"{speed(it.rate)} tok/s", "bold $primary"), ttft),
        line((f"accept {it.acceptance:.2f}", "bold $success"), " tok/step"),
        line(f"{steps}{short(it.tokens)} tok"),
        line((f"prompt {short(it.prompt)} tok, {short(it.reused)} reused", _DIM)),
        line((f"{it.mode}: {it.reason}" if it.reason else it.mode, _DIM)),
    ]


def _sparks(meter: Meter, width: int) -> Block:
    lengths = [float(length) for length in meter.lengths]
    return [
        *_spark("tok/s", list(meter.rates), width, "$primary"),
        *_spark("accepted length per step", lengths, width, "$success"),
    ]


def _spark(title: str, values: list[float], width: int, color: str) -> Block:
    newest = values[-width * 4 :]
    top = max(newest, default=0.0)
    head = line(title, (f"  max {top:.0f}", _DIM) if top else "")
    return [line(), head, *[line((row, color)) for row in spark(newest, width, rows=2)]]


def _positions(it: Figures, width: int) -> Block:
    head: Block = [line(), line("accept rate by position")]
    if not it.drafted:
        return [*head, line(("nothing drafted: plain decoding" if it.steps else "", _DIM))]
    rows: Block = [line((" pos      n  rate", _DIM))]
    for position, (count, rate) in enumerate(zip(it.drafted, it.accept), 1):
        figures = f" {position:>3} {short(count):>6} {rate * 100:>4.0f}%  "
        rows.append(line(figures, (bar(rate, max(width - 19, 4)), "$success")))
    return [*head, *rows]


def _stages(it: Figures, width: int) -> Block:
    total = sum(milliseconds for _, milliseconds in it.stages)
    if total <= 0:
        return []
    rows: Block = [line(), line("time per step", (f"  {total:.1f} ms", _DIM))]
    for name, milliseconds in it.stages:
        figures = f" {name:<7}{milliseconds:>8.2f}  "
        rows.append(line(figures, (bar(milliseconds / total, max(width - 19, 4)), "$primary")))
    return rows
