"""The figures of the running turn, or of the last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content

from dflash_core.events import STAGES, FoundRow, PartStats, TurnReport, TurnStats, so_far
from dflash_core.lab.plain import PlainSpeed
from dflash_core.record import TurnRecord
from dflash_tui.figures.deltas import on_the_way
from dflash_tui.figures.meter import Meter
from dflash_tui.figures.plain_speeds import when
from dflash_tui.figures.speeds import course
from dflash_tui.text.bars import bar, seconds, short, spark, speed
from dflash_tui.text.blocks import Block, beside, content, line, wrapped
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.panel import Panel
from dflash_tui.widgets.roomy import redraw


@dataclass(frozen=True, slots=True)
class Figures:
    """What the panel shows. `stats` is None until the prompt has been read; `changes` are lines on knobs changed on
    the way."""

    title: str
    stats: TurnStats | None
    mode: str
    reason: str
    rates: Sequence[float]
    lengths: Sequence[int]
    changes: Sequence[str] = ()
    plain: PlainSpeed | None = None
    learned: Sequence[FoundRow] = ()


def of_turn(
    record: TurnRecord, report: TurnReport, plain: PlainSpeed | None, learned: Sequence[FoundRow] = ()
) -> Figures:
    """A finished turn's figures: the decoder's own."""
    lengths = [len(step.tokens) for step in record.steps]
    changes = on_the_way(record)
    return Figures(
        "Last turn", report.stats, report.mode, report.reason, course(record), lengths, changes, plain, learned
    )


def of_meter(
    meter: Meter,
    report: TurnReport | None,
    plain: PlainSpeed | None,
    *,
    running: bool,
    learned: Sequence[FoundRow] = (),
) -> Figures:
    """The figures of a turn so far, or of one that left no record."""
    event = meter.last or meter.prefill
    stats = report.stats if report is not None else None
    if stats is None and meter.prefill is not None:
        stats = so_far(meter.prefill, meter.totals, meter.decode_s, meter.parts)
    mode, reason = (event.mode, event.reason) if event is not None else ("", "")
    title = "This turn" if running else "Last turn"
    return Figures(title, stats, mode, reason, list(meter.rates), list(meter.lengths), plain=plain, learned=learned)


class StatsPanel(Panel):
    """Speed, acceptance per step and per draft position, time by stage."""

    def __init__(self) -> None:
        super().__init__("stats")
        self._figures: Figures | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(_EMPTY, id="stats-body")

    def show(self, figures: Figures | None) -> None:
        """Draw the figures of a turn; None before the first."""
        self._figures = figures
        self.draw()

    def draw(self) -> None:
        body = self.query_one("#stats-body", Static)
        width = max(self.query_one(VerticalScroll).scrollable_content_region.width, 24)
        redraw(body, _EMPTY if self._figures is None else drawn(self._figures, width))


_EMPTY = Content.assemble(
    ("No turn yet\n", "bold"), ("send a message to see speed and acceptance here", "$foreground 70%")
)
_DIM = "$foreground 70%"
_TWO_COLUMNS = 72
_FIGURES = 19  # cells before a bar
_SIZES = ((0, 0), (1, 3), (4, 7), (8, 15), (16, 23), (24, 31), (32, 47), (48, 255))


def drawn(it: Figures, width: int) -> Content:
    """One column, or two where the panel is a drawer that is wide and low."""
    if it.stats is None:
        return content([line((it.title, "bold")), line(("the prompt is being read", _DIM))])
    stats = it.stats
    if width < _TWO_COLUMNS:
        return content(
            [
                *_numbers(it, stats, width), *_changes(it, width), *_sparks(it, width), *_positions(stats, width),
                *_stages(stats, width), *_lengths(stats, width), *_sizes(stats, width), *_totals(stats, width),
                *_drafters(stats), *_parts(stats), *_learned(it),
            ]
        )  # fmt: skip
    half = (width - 2) // 2
    left = [*_numbers(it, stats, half), *_changes(it, half), *_stages(stats, half)]
    left += [*_totals(stats, half), *_drafters(stats), *_parts(stats), *_learned(it)]
    right = [*_positions(stats, half)[1:], *_sparks(it, half), *_lengths(stats, half), *_sizes(stats, half)]
    return content(beside(left, right, half))


def _numbers(it: Figures, stats: TurnStats, width: int) -> Block:
    steps = f"{stats.steps / stats.decode_s:.1f} steps/s  " if stats.decode_s > 0 else ""
    read = stats.prompt_tokens - stats.reused_tokens
    prompt = f"prompt {short(read)} tok, {short(stats.prefill_tokens_per_second)} tok/s"
    reused = f"; {stats.reused_tokens:,} of {stats.prompt_tokens:,} tokens reused" if stats.reused_tokens else ""
    kept = f"; keys and values {stats.kv}" if stats.kv else ""
    speeds = (f"{speed(stats.tokens_per_second)} tok/s", "bold $primary")
    return [
        line((it.title, "bold")),
        line(speeds, f"  first token {seconds(stats.ttft_ms / 1000)}"),
        line((f"accept {stats.acceptance_length:.2f}", "bold $success"), " tok/step"),
        line(f"{steps}{short(stats.tokens)} tok"),
        *wrapped(_against(it, stats), width, _DIM),
        *wrapped(prompt + reused + kept, width, _DIM),
        *wrapped(f"{it.mode}: {it.reason}" if it.reason else it.mode, width, _DIM),
    ]


def _against(it: Figures, stats: TurnStats) -> str:
    """How much faster than plain decoding, and what that rests on."""
    plain = it.plain
    if it.mode == "ar":
        return ""
    if plain is None:
        return "plain decoding not measured; /plain times it"
    ratio = f"{stats.tokens_per_second / plain.tokens_per_second:.1f}x plain decoding, "
    place = f"{plain.steps} steps at context length {short(plain.positions)}"
    when_taken = when(plain.taken, datetime.now(UTC))
    return f"{ratio}{speed(plain.tokens_per_second)} tok/s: {plain.how}, {place}, {when_taken}"


def _sparks(it: Figures, width: int) -> Block:
    return [
        *_spark("tok/s", list(it.rates), width, "$primary"),
        *_spark("accepted length per step", [float(length) for length in it.lengths], width, "$success"),
    ]


def _spark(title: str, values: list[float], width: int, color: str) -> Block:
    newest = values[-width * 4 :]
    top = max(newest, default=0.0)
    head = line(title, (f"  max {top:.0f}", _DIM) if top else "")
    return [line(), head, *[line((row, color)) for row in spark(newest, width, rows=2)]]


def _positions(stats: TurnStats, width: int) -> Block:
    head: Block = [line(), line("accept rate by position")]
    if not stats.drafted_by_depth:
        return [*head, line(("nothing drafted: plain decoding" if stats.steps else "", _DIM))]
    rows: Block = [line((" pos      n  rate", _DIM))]
    for position, (count, rate) in enumerate(zip(stats.drafted_by_depth, stats.accept_rate_by_depth), 1):
        figures = f" {position:>3} {short(count):>6} {rate * 100:>4.0f}%  "
        rows.append(line(figures, (bar(rate, max(width - _FIGURES, 4)), "$success")))
    return [*head, *rows]


def _stages(stats: TurnStats, width: int) -> Block:
    total = stats.stage_ms.total
    if total <= 0:
        return []
    rows: Block = [line(), line("time per step", (f"  {total:.1f} ms", _DIM))]
    for name in STAGES:
        milliseconds = getattr(stats.stage_ms, name)
        figures = f" {name:<7}{milliseconds:>8.2f}  "
        rows.append(line(figures, (bar(milliseconds / total, max(width - _FIGURES, 4)), "$primary")))
    return rows


def _lengths(stats: TurnStats, width: int) -> Block:
    """The histogram of tokens per step."""
    if stats.steps == 0 or len(stats.lengths) < 3:
        return []
    rows: Block = [line(), line("steps by tokens committed"), line((" tok  steps share", _DIM))]
    for length, count in enumerate(stats.lengths[1:], 1):
        share = count / stats.steps
        figures = f" {length:>3} {short(count):>6} {share * 100:>4.0f}%  "
        rows.append(line(figures, (bar(share, max(width - _FIGURES, 4)), "$success")))
    return rows


def _totals(stats: TurnStats, width: int) -> Block:
    """Drafts in all. The nodes of a tree are alternatives, so most cannot be accepted even from a perfect drafter."""
    if not stats.verified:
        return []
    steps = max(stats.steps, 1)
    rows: tuple[tuple[str, int, str], ...] = (
        ("drafted", stats.drafted, "positions"),
        ("verified", stats.verified, "nodes"),
        ("accepted", stats.accepted, f"nodes, {stats.accepted / stats.verified:.0%} of verified"),
    )
    if stats.copied:
        drafter, taken = stats.verified - stats.copied, stats.accepted - stats.copied_accepted
        rows += (
            ("drafter", drafter, f"nodes, {taken / drafter:.0%} taken" if drafter else "nodes"),
            ("text", stats.copied, f"nodes, {stats.copied_accepted / stats.copied:.0%} taken"),
        )
    block: Block = [line(), line("drafts in all", (" and per step", _DIM))]
    for name, count, what in rows:
        block.append(line(f" {name:<8} {short(count):>6} {count / steps:>6.1f}  ", (what, _DIM)))
    return block


def _drafters(stats: TurnStats) -> Block:
    """Acceptance by drafter, where several took turns."""
    if len(stats.drafters) < 2:
        return []
    block: Block = [line(), line("drafters", ("    steps tok/step  nodes taken  tok/s", _DIM))]
    for one in stats.drafters:
        taken = f"{one.accepted / one.verified:.0%}" if one.verified else "-"
        fast = speed(one.tokens / one.ms * 1e3) if one.ms > 0 else "-"
        block.append(
            line(f" {one.kind:<9}{short(one.steps):>7}{one.tokens / one.steps:>9.2f}{short(one.verified):>7}"
                 f"{taken:>6}{fast:>7}")
        )  # fmt: skip
    return block


def _sizes(stats: TurnStats, width: int) -> Block:
    """The histogram of tree sizes, where the steps' differ."""
    counts = [(low, high, sum(stats.nodes[low : high + 1])) for low, high in _SIZES]
    rows = [(low, high, count) for low, high, count in counts if count]
    if len(rows) < 2:
        return []
    block: Block = [line(), line("steps by nodes verified"), line(("  nodes  steps share", _DIM))]
    for low, high, count in rows:
        span = str(low) if low == high else f"{low}-{high}" if high < _SIZES[-1][1] else f"{low}+"
        figures = f" {span:>6} {short(count):>6} {count / stats.steps * 100:>4.0f}%  "
        block.append(line(figures, (bar(count / stats.steps, max(width - _FIGURES - 2, 4)), "$primary")))
    return block


def _learned(it: Figures) -> Block:
    """What the drafter states of its candidates, what was learned, and what was found."""
    if not it.learned:
        return []
    block: Block = [line(), line("candidates", ("      tried stated learned found", _DIM))]
    for row in it.learned:
        block.append(
            line(f" {row.kind:<15}{short(row.trials):>6}{row.stated:>7.2f}{row.learned:>8.2f}{row.found:>6.2f}")
        )
    return block


def _parts(stats: TurnStats) -> Block:
    """Thinking and answer apart, where there was any thinking."""
    if not stats.thinking.tokens:
        return []
    block: Block = [line(), line(("             tok  tok/s accept", _DIM))]
    parts: tuple[tuple[str, PartStats], ...] = (("thinking", stats.thinking), ("answer", stats.answer))
    for name, part in parts:
        figures = f" {name:<9}{short(part.tokens):>6} {speed(part.tokens_per_second):>6} {part.acceptance_length:>6.2f}"
        block.append(line(figures))
    return block


def _changes(it: Figures, width: int) -> Block:
    if not it.changes:
        return []
    return [line(), line("changed on the way"), *(row for text in it.changes for row in wrapped(f" {text}", width))]
