"""The rows across the chat: title, status strip, how far a load is."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.cells import cell_len
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from dflash_core.clean import one_line
from dflash_core.knobs import SPEC, Knobs
from dflash_core.memory import MemoryBreakdown
from dflash_core.text.reasoning import Reasoning
from dflash_tui.application.amounts import seconds, short, speed
from dflash_tui.application.figures.meter import Verdict
from dflash_tui.text.bars import clip, fit, meter

_GIB = 1 << 30
WIDE = 100  # cells from which on the gauge is drawn, too
MIN_TITLE = 24  # cells of a conversation's title for which the pair's name is shortened
NEARLY_FULL = 0.8
"""The share of the context from which on a warning says that it fills up."""
MANY = 10  # times the context, from which on words are clearer than a share


class TitleRow(Widget):
    """The conversation and the model pair at the left; downloads, context and memory at the right.

    `context`: positions of the conversation, tokens of what is being typed, positions there are. `downloads`: how far
    they are, and in which style.
    """

    title: reactive[str] = reactive("")
    conversation: reactive[str] = reactive("")
    system: reactive[str] = reactive("")
    context: reactive[tuple[int, int, int]] = reactive((0, 0, 0))
    memory: reactive[MemoryBreakdown | None] = reactive[MemoryBreakdown | None](None, repaint=False)
    downloads: reactive[tuple[str, str]] = reactive(("", ""))

    def validate_title(self, title: str) -> str:
        return one_line(title)

    def validate_conversation(self, title: str) -> str:
        return one_line(title)

    def watch_memory(self, before: MemoryBreakdown | None, memory: MemoryBreakdown | None) -> None:
        """Measured once a second; it seldom changes."""
        if (before and _of(before)) != (memory and _of(memory)):
            self.refresh()

    def render(self) -> Content:
        width, (downloads, style) = self.size.width, self.downloads
        available = width - 9  # for what is left of the row, each part after those that matter more
        context = clip(self._gauge(), max(available - 3, 0))
        available -= len(context)
        known = self.memory is not None and self.memory.total and width >= 70
        memory = clip(f"  mem {_of(self.memory)} " if known and self.memory else " ", max(available - 3, 0))
        available -= len(memory)
        downloads = clip(f" {downloads} ", max(available - 3, 0)) if downloads else ""
        available -= len(downloads)
        system = "  system message" if self.system and available >= 50 else " sys" if self.system else ""
        left = fit(self._names(available - len(system)) + system, available)
        warns = "bold $warning" if self._share >= NEARLY_FULL else ""
        return Content.assemble((" dflash  ", "bold $primary"), left, (downloads, style), (context, warns), memory)

    def _names(self, available: int) -> str:
        """The pair and the conversation. Where not both fit, the pair is its first word."""
        if not self.conversation or available < 30:
            return clip(self.title, available)
        if cell_len(f"{self.title} · {self.conversation}") <= available:
            return f"{self.title} · {self.conversation}"
        short_title = self.title.split(" ")[0] if cell_len(self.title) > available - MIN_TITLE else self.title
        return clip(f"{clip(short_title, available // 2)} · {self.conversation}", available)

    @property
    def _share(self) -> float:
        used, draft, length = self.context
        return (used + draft) / length if length else 0.0

    def _gauge(self) -> str:
        used, draft, length = self.context
        if not length:
            return ""
        typed = f"+{short(draft)}" if draft else ""
        share = f"{self._share:.0%}" if self._share < MANY else "too long"
        full = f" {share}: /full" if self._share >= NEARLY_FULL else ""
        drawn = f" {meter(self._share)}" if self.size.width >= WIDE else ""
        # Context lengths are powers of two: 32,768 is 32k.
        whole = f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else short(length)
        return f" ctx {short(used)}{typed}/{whole}{drawn}{full}"


def _of(memory: MemoryBreakdown) -> str:
    """Used and total memory of the device, as 19.6/24G."""
    used = memory.measured or memory.predicted
    return f"{used / _GIB:.1f}/{memory.total / _GIB:.0f}G"


@dataclass(frozen=True, slots=True)
class Status:
    """What the strip shows."""

    measured: bool = False  # a speed, if only 0
    rate: float = 0.0
    acceptance: float = 0.0
    knobs: Knobs = field(default_factory=Knobs)
    used: Knobs = field(default_factory=Knobs)
    mode: str = ""
    reason: str = ""
    reasoning: Reasoning | None = None
    against: Verdict | None = None  # None where plain decoding has not been measured
    taken: frozenset[str] | None = None  # the knobs that another engine takes
    client: str = ""  # the program that the answer is for, where it is not the user


# What is shown of the knobs, and which of them each part covers.
_SHOWN = (
    ("drafting", "", {"drafting"}), ("p_min", "p_min ", {"p_min"}), ("temperature", "T ", {"temperature"}),
    ("thinking", "think ", {"thinking", "reasoning_effort"}),
)  # fmt: skip
MIN_REASON = 12  # cells
_MORE = " …"


class StatusStrip(Widget):
    """The speed, first relative to plain decoding; then the knobs of the next turn (`•` marks changes), and what
    really ran and why."""

    status: reactive[Status] = reactive(Status())

    def render(self) -> Content:
        it, width = self.status, self.size.width - 1
        parts: list[tuple[str, str]] = []
        if it.measured or it.rate:
            parts.append((f"{speed(it.rate)} tok/s", "bold"))
            if it.against is not None and it.against.ratio:
                style = "bold $error" if it.against.slower else "bold $success"
                parts.append((f" · {it.against.ratio} plain", style))
                if it.against.slower:
                    parts.append((", F8 finds better", "$error"))
            if it.acceptance and it.mode != "plain":
                parts.append((f" · {it.acceptance:.1f} tok/step", "bold"))
            parts.append(("  │", "$foreground 40%"))
        staged = {name for name in SPEC if getattr(it.knobs, name) != getattr(it.used, name)}
        shown = [row for row in _SHOWN if it.taken is None or row[0] in it.taken]
        for place, (name, label, names) in enumerate(shown):
            lead = f"{' · ' if place else ' ' if parts else ''}{'•' if staged & names else ''}"
            parts.append((f"{lead}{label}{self._value(name)}", "bold $accent" if staged & names else ""))
        if others := staged.difference(*(names for _, _, names in _SHOWN)):
            parts.append((f" · •{len(others)} more", "bold $accent"))
        head = f"{it.client}: {it.mode}" if it.client else it.mode
        available = width - sum(cell_len(text) for text, _ in parts)
        reason = "  │ " + one_line(f"{head}: {it.reason}" if it.reason else head) if it.mode else ""
        if cell_len(reason) > available:  # a few letters of a reason are not readable
            fits = available >= cell_len(f"  │ {head}: ") + MIN_REASON
            reason = clip(reason, available) if fits else f"  │ {head}…"
        return _clipped([*parts, (reason, "$foreground 80%")], width)

    def _value(self, name: str) -> str:
        knobs, value = self.status.knobs, getattr(self.status.knobs, name)
        if name == "thinking" and self.status.reasoning is not None:
            return self.status.reasoning.level(knobs)
        shown: str = f"{value:g}" if isinstance(value, float) else SPEC[name].show(value)
        return shown[1:] if name == "p_min" and shown.startswith("0.") else shown


def _clipped(parts: list[tuple[str, str]], width: int) -> Content:
    """As many parts as fit completely, and … for the others; the first is cut if it does not fit."""
    taken: list[tuple[str, str] | str] = [" "]
    available = width
    for place, (text, style) in enumerate(parts):
        shown = text if place else clip(text, available)
        rest = len(_MORE) if 0 < place < len(parts) - 1 else 0
        if cell_len(shown) > available - rest:
            if taken[-1][0].strip() == "│":  # the part after the separator does not fit
                taken.pop()
            taken.append((_MORE, "$foreground 80%"))
            break
        taken.append((shown, style))
        available -= cell_len(shown)
    return Content.assemble(*taken)


class LoadingLine(Widget):
    """What the loader is doing, how far it is, how long it has taken."""

    phase: reactive[str] = reactive("")
    fraction: reactive[float] = reactive(0.0)
    elapsed: reactive[float] = reactive(0.0)

    def __init__(self) -> None:
        super().__init__(id="loading")
        self._began = time.monotonic()

    def begin(self) -> None:
        self._began = time.monotonic()
        self.phase, self.fraction, self.elapsed = "starting", 0.0, 0.0
        self.display = True

    def show(self, phase: str, fraction: float) -> None:
        self.phase, self.fraction = phase, fraction
        self.elapsed = time.monotonic() - self._began

    def validate_phase(self, phase: str) -> str:
        return one_line(phase)

    def render(self) -> Content:
        width = self.size.width - 2
        known = f" {meter(self.fraction, 12)} {self.fraction * 100:.0f}%" if self.fraction > 0 else ""
        rest = f"{known}  {seconds(self.elapsed)}"
        return Content.assemble((f" {clip(f'loading: {self.phase}', width - len(rest))}", "$accent"), rest)
