"""The four kinds of experiments: a sweep, A against B, a tuning, and the speed of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import ClassVar

from dflash_core.bench.prompts import PROMPTS, Task
from dflash_core.errors import DFlashError
from dflash_core.lab import candidates
from dflash_core.lab.experiment import Case, Design, plain_design
from dflash_core.lab.grid import settings
from dflash_core.lab.results import Result, plain_of_result
from dflash_core.text.prompt import Prompt
from dflash_tui.application.amounts import counted, short, speed
from dflash_tui.application.figures.measurements import What, when
from dflash_tui.application.lab_request import AB, SWEEP, parse_ab, parse_options, parse_sweep
from dflash_tui.application.session import SessionLike
from dflash_tui.chat.parts import ChatParts
from dflash_tui.screens.experiment import ExperimentScreen

LAST = 4  # questions of the conversation that a tuning uses
TOKENS = 96  # of each answer of a tuning, at most
LIMIT_S = 600.0  # of a tuning


class SweepScreen(ExperimentScreen):
    """One or two parameters over ranges."""

    HEADING: ClassVar[str] = "Sweep"
    WHAT: ClassVar[What] = "sweep"
    EXAMPLE: ClassVar[str] = SWEEP
    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "Enter measures on the last prompt; an empty line runs the first example."),
        (SWEEP, "a range"),
        ("p_min=0..0.5:0.1", "a range in steps of 0.1"),
        ("budget=4,15,22", "these values"),
        ("budget=4,15,22 p_min=0,0.1", "two parameters: a field of speeds"),
    )

    def plan(self, text: str, session: SessionLike) -> Design:
        axes, options = parse_sweep(text or SWEEP)
        grid, cases = settings(axes, self.base, session.limits), options.cases(self.asked())
        return Design(grid, cases, options.rounds(len(cases)), tuple(axis.name for axis in axes))


class ABScreen(ExperimentScreen):
    """One setting against another. The default comparison is tree against chain."""

    HEADING: ClassVar[str] = "A against B"
    WHAT: ClassVar[What] = "ab"
    EXAMPLE: ClassVar[str] = AB
    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "Enter measures on the last prompt; an empty line runs the first example."),
        (AB, "one setting against another"),
        ("budget=40", "against the current setting"),
    )

    def plan(self, text: str, session: SessionLike) -> Design:
        pair, options = parse_ab(text, self.base, session.limits)
        cases = options.cases(self.asked())
        return Design(pair, cases, options.rounds(len(cases)), base=0)


class TuneScreen(ExperimentScreen):
    """Finds the fastest of many settings on the user's own prompts; it measures when it opens."""

    HEADING: ClassVar[str] = "Tune"
    WHAT: ClassVar[What] = "tune"
    BRIEF: ClassVar[tuple[str, ...]] = ("max_tokens",)
    OF: ClassVar[str] = "this conversation"
    EXAMPLE: ClassVar[str] = "the prompts of this conversation"
    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "Enter measures many settings on your last prompts, or on examples."),
    )
    OPTIONS: ClassVar[tuple[tuple[str, str], ...]] = (("prompts=FILE samples=6", "on this many prompts of a file"),)

    def plan(self, text: str, session: SessionLike) -> Design:
        if session.limits.drafter is None and session.limits.taken is None:
            raise DFlashError(
                "no drafter is loaded, so there is nothing to tune: /load names one, or start with --draft"
            )
        options, asked = parse_options(text), self.asked(LAST)
        examples = [Case.of(Task(f"example {number}", one)) for number, one in enumerate(PROMPTS[:LAST], 1)]
        cases = options.cases(asked or examples)
        self._on = f"{counted(len(cases), 'prompt')} of {options.prompts}" if options.prompts else (
            f"the last {counted(len(asked), 'prompt').removeprefix('1 ')} of {self.OF}" if asked
            else f"{counted(len(cases), 'example')}; prompts=FILE takes yours"
        )  # fmt: skip
        limits, knobs = session.limits, self.base
        brief = knobs.replace(max_tokens=min(knobs.max_tokens, TOKENS))
        return Design(
            tuple(candidates.arms(brief, limits)), cases, base=0, halving=True, limit_s=LIMIT_S,
            around=lambda arm, longest: candidates.around(arm.knobs, limits, longest),
        )  # fmt: skip


class RequestsTuneScreen(TuneScreen):
    """A tuning on the prompts that one program has sent."""

    HEADING: ClassVar[str] = "Tune for a program"
    OF: ClassVar[str] = "one program"
    EXAMPLE: ClassVar[str] = "the prompts of one program"
    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = (("", "Enter measures many settings on its last prompts."),)

    def __init__(self, chat: ChatParts, client: str, prompts: Sequence[Prompt]) -> None:
        super().__init__(chat, at_once=True)
        self._cases = [Case(f"{client} {number}", (), prompt=one) for number, one in enumerate(prompts, 1)]

    def asked(self, count: int = 1) -> list[Case]:
        return self._cases[-count:]


class PlainScreen(ExperimentScreen):
    """The speed of plain decoding, which others are compared with; it measures when it opens."""

    HEADING: ClassVar[str] = "Plain decoding on this machine"
    WHAT: ClassVar[What] = "plain"
    BRIEF: ClassVar[tuple[str, ...]] = ("max_tokens", "ignore_eos")
    EXAMPLE: ClassVar[str] = "the last prompt"
    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "Enter times steps without drafts after the last prompt; the conversation stays as it is."),
    )

    def plan(self, text: str, session: SessionLike) -> Design:
        options = parse_options(text)
        cases = options.cases(self.asked())
        design = plain_design(cases[0], self.base)
        return replace(design, cases=cases, repeats=options.repeats or design.repeats)

    def finding(self, result: Result) -> str:
        it = plain_of_result(result, "timed separately")
        if it is None:
            return "too few steps so far" if self.running else "stopped early: too few steps; r measures again"
        text = (
            f"{speed(it.tokens_per_second)} tok/s without drafts: {counted(it.steps, 'step')} at context length "
            f"{short(it.positions)}, {when(it.taken, datetime.now(UTC))}"
        )
        known = self.chat.gauges.plain
        if self.running or known is None or known.steps <= it.steps:
            return text
        basis = f"{speed(known.tokens_per_second)} tok/s of {counted(known.steps, 'step')}"
        return f"{text}; answers are compared with the {basis}, a longer measurement"
