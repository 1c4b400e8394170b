"""The figures of the running turn, or of the last one, drawn for their panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from textual.content import Content

from dflash_core.events import STAGES
from dflash_core.lab.results import PlainSpeed
from dflash_core.record import TurnRecord
from dflash_core.turn_stats import FoundRow, TurnReport, TurnStats
from dflash_tui.application.amounts import counted, rates, seconds, short, speed
from dflash_tui.application.conversations.comparing import along_the_steps
from dflash_tui.application.figures.measurements import when
from dflash_tui.application.figures.meter import Meter, Verdict, course
from dflash_tui.text.bars import bar, columns, spark
from dflash_tui.text.blocks import Block, beside, content, dotted, line, wrapped


@dataclass(frozen=True, slots=True)
class Figures:
    """What the panel shows. `stats` is None until the prompt has been read; `changes` are lines on knobs changed
    during the turn."""

    title: str
    stats: TurnStats | None
    mode: str
    reason: str
    rates: Sequence[float]
    lengths: Sequence[int]
    changes: Sequence[str] = ()
    plain: PlainSpeed | None = None
    learned: Sequence[FoundRow] = ()
    verdict: Verdict | None = None
    source: str = ""  # of another engine's figures

    def drawn(self, width: int) -> Content:
        return drawn(self, width)

    @property
    def remote(self) -> bool:
        """The figures are another engine's: what is 0 there is not known."""
        return self.mode == "remote"


def figures(meter: Meter, report: TurnReport | None, record: TurnRecord | None, *, running: bool) -> Figures:
    """The decoder's own figures of a finished turn; those so far of a turn that runs, or left no record."""
    source = report.source if report is not None else ""
    if record is not None and report is not None:
        lengths = [len(step.tokens) for step in record.steps]
        changes = along_the_steps(record)
        return Figures("Last turn", *meter.shown(report), course(record), lengths, changes, source=source)
    title = "This turn" if running else "Last turn"
    return Figures(title, *meter.shown(report), [*meter.rates], [*meter.lengths], source=source)


_DIM = "$foreground 70%"
_TWO_COLUMNS = 72
_FIGURES = 19  # cells before a bar
_STAGE = 16  # the same, of a stage's time
_CHART_ROWS = 3
_LITTLE = 0.02  # of a step: stages that take less are one line where the panel is low
_SIZES = ((0, 0), (1, 3), (4, 7), (8, 15), (16, 23), (24, 31), (32, 47), (48, 255))


def drawn(it: Figures, width: int) -> Content:
    """One column, or two where the panel is a drawer that is wide and low. Acceptance and times come first: they are
    on the screen together, without scrolling, at 80x24 already."""
    if it.stats is None:
        return content([line((it.title, "bold")), line(("the prompt is being read", _DIM))])
    stats = it.stats
    if width < _TWO_COLUMNS:
        blocks = [
            [*_numbers(it, stats, width), *_about(it, stats, width)], _changes(it, width), _depths(it, stats, width),
            _lengths_by_step(it, width), _stages(stats, width), _rates(it, width), _lengths(stats, width),
            _sizes(stats, width), *_tables(it, stats),
        ]  # fmt: skip
        return content(_apart(blocks))
    half = (width - 2) // 2
    stages = _stages(stats, half, min_share=_LITTLE)
    left = [*_numbers(it, stats, half), *(stages or _about(it, stats, half))]
    right = [*_depths(it, stats, half), *_lengths_by_step(it, half)]
    histograms = beside(_lengths(stats, half), _apart([_rates(it, half), _sizes(stats, half)]), half)
    about = _about(it, stats, width) if stages else []  # another engine has no stages: there it is beside the depths
    # Sentences and tables are wider than a column.
    blocks = [beside(left, right, half), about, _changes(it, width), histograms, *_tables(it, stats)]
    return content(_apart(blocks))


def _tables(it: Figures, stats: TurnStats) -> list[Block]:
    return [_totals(stats), _drafters(stats), _parts(it, stats), _learned(it)]


def _apart(blocks: Sequence[Block]) -> Block:
    joined: Block = []
    for block in blocks:
        if block:
            joined += [line(), *block] if joined else block
    return joined


def _numbers(it: Figures, stats: TurnStats, width: int) -> Block:
    steps = [f"{stats.steps / stats.decode_s:.1f} steps/s"] if stats.steps and stats.decode_s > 0 else []
    count = [] if it.remote and not stats.tokens else [f"{short(stats.tokens)} tok"]
    figures = [f"first token {seconds(stats.ttft_ms / 1000)}", *steps, *count]
    per_second, per_step = rates(stats.tokens_per_second, stats.acceptance_length)
    main: list[tuple[str, str] | str] = []
    if stats.tokens_per_second or not it.remote:
        main += [(f"{per_second} tok/s", "bold $primary"), "  "]
    if stats.steps or not it.remote:
        main.append((f"{per_step} tok/step", "bold $success"))
    return [line((it.title, "bold")), *([line(*main)] if main else []), *map(line, dotted(figures, width))]


def _about(it: Figures, stats: TurnStats, width: int) -> Block:
    """The speed relative to plain decoding, how the prompt was read, and what ran."""
    read = stats.prompt_tokens - stats.reused_tokens
    known = stats.prompt_tokens or not it.remote
    prompt = [f"prompt {short(read)} tok, {short(stats.prefill_tokens_per_second)} tok/s"] if known else []
    if stats.reused_tokens:
        prompt.append(f"{stats.reused_tokens:,} of {stats.prompt_tokens:,} tokens reused")
    if stats.kv:
        prompt.append(f"keys and values {stats.kv}")
    again = f"{stats.read_again:,} tokens read again: {stats.read_why}" if stats.read_again else ""
    return [
        *wrapped(_against(it), width, _DIM),
        *wrapped("; ".join(prompt), width, _DIM),
        *wrapped(again, width, _DIM),
        *wrapped(f"{it.mode}: {it.reason}" if it.reason else it.mode, width, _DIM),
        *wrapped(it.source, width, _DIM),
    ]


def _against(it: Figures) -> str:
    """How much faster than plain decoding, and the measurement behind it."""
    plain = it.plain
    if it.mode == "plain" or it.remote:
        return ""
    if plain is None or it.verdict is None:
        return "plain decoding not measured; /plain times it"
    ratio = f"{it.verdict.ratio} plain decoding:" if it.verdict.ratio else f"plain decoding {it.verdict.open}:"
    place = f"{counted(plain.steps, 'step')}, context length {short(plain.positions)}"
    when_taken = when(plain.taken, datetime.now(UTC))
    return f"{ratio} {speed(plain.tokens_per_second)} tok/s, {plain.how} {when_taken} ({place})"


def _rates(it: Figures, width: int) -> Block:
    return _spark("tok/s", list(it.rates), width, "$primary")


def _lengths_by_step(it: Figures, width: int) -> Block:
    return _spark("tokens by step", [float(length) for length in it.lengths], width, "$success")


def _spark(title: str, values: list[float], width: int, color: str) -> Block:
    newest = values[-width * 4 :]
    top = max(newest, default=0.0)
    if not top:
        return []
    head = line(title, (f"  max {top:.0f}", _DIM))
    return [head, *[line((row, color)) for row in spark(newest, width, rows=2)]]


def _depths(it: Figures, stats: TurnStats, width: int) -> Block:
    """How often a draft was accepted, with a column for each depth; depths never accepted are left out."""
    rates = list(stats.accept_rate_by_depth)
    while rates and rates[-1] <= 0:
        rates.pop()
    if it.remote and not stats.drafted_by_depth:
        return []
    head = line("accepted by depth", ("  %" if rates else "", _DIM))
    if not stats.drafted_by_depth:
        return [head, *wrapped(_undrafted(stats), width, _DIM)]
    if not rates:
        return [head, line((f"none of {stats.drafted:,} positions", _DIM))]
    shown = [f"{share * 100:.0f}" for share in rates]
    cell = max(min(width // len(rates), 4), 1)
    del rates[width:]
    figures = all(len(text) < cell for text in shown[1:]) and cell > 2
    rows = [
        line(("".join(glyph * max(cell - 1, 1) + " " * (cell > 1) for glyph in row[: width // cell]), "$success"))
        for row in columns(rates, _CHART_ROWS)
    ]
    if figures:
        rows.append(line("".join(f"{text:<{cell}}" for text in shown).rstrip()))
    if cell > 2:
        labels = [f"{depth:<{cell}}" for depth in range(1, len(rates) + 1)]
    else:  # every fifth depth fits
        labels = [f"{1:<{cell * 4}}", *(f"{depth:<{cell * 5}}" for depth in range(5, len(rates) + 1, 5))]
    return [head, *rows, line(("".join(labels)[:width].rstrip(), _DIM))]


def _undrafted(stats: TurnStats) -> str:
    """Why no depth has a rate: nothing was drafted, or what was drafted was not worth a row."""
    if stats.drafted:
        return f"{counted(stats.drafted, 'position')} drafted, none worth verifying"
    return "nothing drafted: plain decoding" if stats.steps else "no step"


def _stages(stats: TurnStats, width: int, min_share: float = 0.0) -> Block:
    """The time of a step by stage. Stages without time are left out; those below `min_share` take one line."""
    total = stats.stage_ms.total
    if total <= 0:
        return []
    taken_by = [(name, float(getattr(stats.stage_ms, name))) for name in STAGES]
    shown = [(name, taken) for name, taken in taken_by if taken > 0 and taken >= min_share * total]
    if others := sum(taken for name, taken in taken_by if taken > 0 and taken < min_share * total):
        shown.append(("others", others))
    drawn_bars = [(bar(taken / total, max(width - _STAGE, 4)), "$primary") for _, taken in shown]
    rows = [line(f" {name:<7}{taken:>6.2f}  ", one) for (name, taken), one in zip(shown, drawn_bars)]
    return [line("time by stage", (f"  {total:.1f} ms a step", _DIM)), *rows]


def _lengths(stats: TurnStats, width: int) -> Block:
    rows = [(f" {length:>3}", count) for length, count in enumerate(stats.lengths) if length and count]
    if stats.steps == 0 or len(stats.lengths) < 3:
        return []
    heads = [line("steps by tokens committed"), line((" tok  steps share", _DIM))]
    return [*heads, *_histogram(rows, stats.steps, width - _FIGURES, "$success")]


def _histogram(rows: Sequence[tuple[str, int]], steps: int, width: int, color: str) -> Block:
    """A row each: its name, how many of the `steps` it has, and a bar of `width` cells."""
    return [
        line(f"{name} {short(count):>6} {count / steps * 100:>4.0f}%  ", (bar(count / steps, max(width, 4)), color))
        for name, count in rows
    ]


def _totals(stats: TurnStats) -> Block:
    """Totals of drafts. A tree's nodes are alternatives, so most cannot be accepted even with a perfect drafter."""
    if not stats.verified:
        return []
    rows: tuple[tuple[str, int, str], ...] = (
        ("drafted", stats.drafted, "positions"),
        ("verified", stats.verified, "nodes"),
        ("accepted", stats.accepted, f"nodes, {stats.accepted_per_verified:.0%} taken"),
    )
    if stats.copied:
        drafter, taken = stats.verified - stats.copied, stats.accepted - stats.copied_accepted
        rows += (
            ("drafter", drafter, f"nodes, {taken / drafter:.0%} taken" if drafter else "nodes"),
            ("text", stats.copied, f"nodes, {stats.copied_accepted / stats.copied:.0%} taken"),
        )
    block: Block = [line("drafts in all", (" and per step" if stats.steps else "", _DIM))]
    for name, count, what in rows:
        per_step = f"{count / stats.steps:>6.1f}" if stats.steps else ""
        figures = f" {name:<8} {short(count):>6} {per_step}  "
        block.append(line(figures, (what, _DIM)))
    return block


def _drafters(stats: TurnStats) -> Block:
    if len(stats.drafters) < 2:
        return []
    block: Block = [line("drafters", ("   steps tok/step  nodes taken tok/s", _DIM))]
    for one in stats.drafters:
        taken = f"{one.accepted / one.verified:.0%}" if one.verified else "-"
        fast = speed(one.tokens / one.ms * 1e3) if one.ms > 0 else "-"
        figures = f"{short(one.steps):>6}{one.tokens / one.steps:>9.2f}{short(one.verified):>7}{taken:>6}{fast:>6}"
        block.append(line(f" {one.kind:<9}{figures}"))
    return block


def _sizes(stats: TurnStats, width: int) -> Block:
    rows = []
    for low, high in _SIZES:
        span = str(low) if low == high else f"{low}-{high}" if high < _SIZES[-1][1] else f"{low}+"
        if count := sum(stats.nodes[low : high + 1]):
            rows.append((f" {span:>6}", count))
    if len(rows) < 2:
        return []
    heads = [line("steps by nodes verified"), line(("  nodes  steps share", _DIM))]
    return [*heads, *_histogram(rows, stats.steps, width - _FIGURES - 2, "$primary")]


def _learned(it: Figures) -> Block:
    """Probabilities of candidates, over all turns: stated by the drafter, learned by the program, and observed."""
    head = line("all candidates", ("   tried stated learned found", _DIM))
    rows = [
        line(f" {row.kind:<15}{short(row.trials):>6}{row.stated:>7.2f}{row.learned:>8.2f}{row.found:>6.2f}")
        for row in it.learned
    ]
    return [head, *rows] if rows else []


def _parts(it: Figures, stats: TurnStats) -> Block:
    """Figures of thinking and answer separately, if there was any thinking."""
    if not stats.thinking.tokens or it.remote:
        return []
    rows = [
        line(f" {name:<9}{short(one.tokens):>6} {per_second:>6} {per_step:>6}")
        for name, one in (("thinking", stats.thinking), ("answer", stats.answer))
        for per_second, per_step in [rates(one.tokens_per_second, one.acceptance_length)]
    ]
    return [line(("             tok  tok/s accept", _DIM)), *rows]


def _changes(it: Figures, width: int) -> Block:
    if not it.changes:
        return []
    rows = (row for text in it.changes for row in wrapped(f" {text}", width))
    return [line("changed during the answer"), *rows]
