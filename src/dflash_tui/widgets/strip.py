"""The title row and the status strip."""

from __future__ import annotations

from dataclasses import dataclass, field

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from dflash_core.clean import one_line
from dflash_core.knobs import SPEC, Knobs, Value
from dflash_core.memory import MemoryBreakdown
from dflash_core.text.reasoning import Reasoning
from dflash_tui.text.bars import clip, fit, meter, short, spark, speed

_GIB = 1 << 30


class TitleRow(Widget):
    """Model pair at the left; context and memory at the right."""

    title: reactive[str] = reactive("")
    context: reactive[tuple[int, int]] = reactive((0, 0))
    memory: reactive[MemoryBreakdown | None] = reactive[MemoryBreakdown | None](None)

    def validate_title(self, title: str) -> str:
        return one_line(title)

    def render(self) -> Content:
        width = self.size.width
        right = ""
        used, length = self.context
        if length:
            right = f"ctx {short(used)}/{_length(length)} {meter(used / length)}"
        if self.memory is not None and width >= 70:
            right += f"  mem {_of(self.memory)}"
        right = clip(f" {right} ", max(width - 12, 0)) if right else ""
        left = fit(f" dflash  {self.title}", width - len(right))
        full = length and used / length > 0.9
        return Content.assemble((left[:8], "bold $primary"), left[8:], (right, "bold $warning" if full else ""))


def _length(count: int) -> str:
    """Context lengths are powers of two: 32,768 is 32k."""
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else short(count)


def _of(memory: MemoryBreakdown) -> str:
    """What is used of what the device has, as 19.6/24G."""
    used = memory.measured or memory.predicted
    return f"{used / _GIB:.1f}/{memory.total / _GIB:.0f}G"


@dataclass(frozen=True, slots=True)
class Status:
    """What the strip shows."""

    rates: tuple[float, ...] = ()
    rate: float = 0.0
    acceptance: float = 0.0
    knobs: Knobs = field(default_factory=Knobs)
    used: Knobs = field(default_factory=Knobs)
    mode: str = ""
    reason: str = ""
    reasoning: Reasoning | None = None


# What is shown of the knobs, and which of them each part tells of.
_SHOWN = (
    ("budget", "B", {"budget", "policy"}), ("p_min", "p", {"p_min"}), ("temperature", "T", {"temperature"}),
    ("thinking", "think ", {"thinking", "reasoning_effort"}),
)  # fmt: skip
_TOLD = {name for _, _, names in _SHOWN for name in names}


class StatusStrip(Widget):
    """tok/s, acceptance length, the knobs of the next turn (`•` where they change), what really ran and why."""

    status: reactive[Status] = reactive(Status())

    def render(self) -> Content:
        it = self.status
        width = self.size.width - 1
        parts: list[tuple[str, str]] = []
        if it.rates or it.rate:
            parts.append((spark(it.rates, 12)[0], "$primary"))
            parts.append((f" {speed(it.rate)} tok/s  acc {it.acceptance:.1f}", "bold"))
        else:
            parts.append(("– tok/s  acc –", "$foreground 70%"))
        for name, label, names in _SHOWN:
            changed = any(getattr(it.knobs, one) != getattr(it.used, one) for one in names)
            lead = "  •" if changed else "  "
            parts.append((f"{lead}{label}{self._shown(name)}", "bold $warning" if changed else ""))
        others = sum(getattr(it.knobs, name) != getattr(it.used, name) for name in SPEC if name not in _TOLD)
        if others:
            parts.append((f"  •{others} more", "bold $warning"))
        asked = f"mode {it.knobs.mode}" if not it.mode else it.mode if not it.reason else f"{it.mode}: {it.reason}"
        parts.append((f"  {one_line(asked)}", "$foreground 70%"))
        return _clipped(parts, width)

    def _shown(self, name: str) -> str:
        knobs = self.status.knobs
        if name == "budget" and knobs.mode == "auto" and knobs.policy != "fixed":
            unset = knobs.policy == "auto" and knobs.budget == SPEC[name].default
            return "auto" if unset else f"auto≤{knobs.budget}"
        if name == "thinking" and self.status.reasoning is not None:
            return self.status.reasoning.level(knobs)
        return _value(name, getattr(knobs, name))


def _value(name: str, value: Value) -> str:
    shown = SPEC[name].show(value)
    return shown[1:] if name == "p_min" and shown.startswith("0.") else shown


def _clipped(parts: list[tuple[str, str]], width: int) -> Content:
    """As many parts as fit; the one that does not is cut with an ellipsis."""
    taken: list[tuple[str, str] | str] = [" "]
    room = width
    for text, style in parts:
        if room < 4:
            break
        shown = clip(text, room)
        taken.append((shown, style))
        room -= len(shown)
    return Content.assemble(*taken)
