"""Sweeps: every setting on every prompt, several times, interleaved; a cancelled sweep keeps its finished runs.

Before the first measured run every setting answers once, briefly, and that is discarded: first runs compile, fill
caches and raise clocks. A prompt with an empty answer cannot be measured; it is left out and counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dflash_core.bench.answering import Answerer
from dflash_core.bench.interleave import Slot, interleave
from dflash_core.bench.prompts import Task
from dflash_core.bench.scoring import is_right
from dflash_core.bench.statistics import FEWEST_PAIRS
from dflash_core.conversation import Message
from dflash_core.errors import ContextError, DFlashError
from dflash_core.events import TurnReport
from dflash_core.knobs import Knobs
from dflash_core.lab.grid import Setting
from dflash_core.lab.progress import ExperimentProgress

WARM_UP_TOKENS = 16
ENDED_AT_ONCE = "the answer ended with its first token"


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt to measure: messages that end with a user's, and the right answer where it can be scored."""

    name: str
    messages: tuple[Message, ...]
    reference: str = ""

    @staticmethod
    def of(task: Task) -> Case:
        return Case(task.name, (Message("user", task.text),), task.reference)


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured run. `right` is None where the answer cannot be scored, or was cut off by max_tokens."""

    setting: int
    prompt: int
    repeat: int
    report: TurnReport
    right: bool | None = None

    @property
    def pair(self) -> tuple[int, int]:
        """The key that this run shares with runs of other settings."""
        return self.prompt, self.repeat


@dataclass(frozen=True, slots=True)
class Excluded:
    """A prompt that was left out, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The measured runs. `about` names machine and models; `complete` is False if the sweep was cancelled."""

    settings: tuple[Setting, ...]
    axes: tuple[str, ...]
    prompts: tuple[str, ...]
    repeats: int
    trials: tuple[Trial, ...]
    excluded: tuple[Excluded, ...]
    complete: bool
    about: tuple[tuple[str, str], ...] = ()


def default_repeats(prompts: int) -> int:
    """The fewest repeats that can show a difference; one if there are enough prompts."""
    return math.ceil(FEWEST_PAIRS / prompts)


class Experiment:
    """The common part of experiments: they answer prompts, and can be cancelled."""

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer
        self._cancelled = False

    def cancel(self) -> None:
        """End after the step under way; its run is dropped, all earlier ones are kept. Callable from any thread."""
        self._cancelled = True
        self._answerer.stop()

    def _answer(self, messages: Sequence[Message], knobs: Knobs) -> TurnReport | str | None:
        """One answer; None where it was cancelled, and why where its prompt has to be left out."""
        try:
            report = self._answerer.answer(messages, knobs)
        except ContextError as error:
            return str(error)
        return ENDED_AT_ONCE if report is not None and report.stats.steps == 0 else report


class Sweep(Experiment):
    """Iterate it once, in any one thread; `result` is the state so far, readable at any time and from any thread.

    The engine's session is restored afterwards. Raises what answering raises; a prompt
    that does not fit the context is left out instead.
    """

    def __init__(
        self,
        answerer: Answerer,
        settings: Sequence[Setting],
        cases: Sequence[Case],
        repeats: int,
        axes: Sequence[str] = (),
        about: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(answerer)
        self._settings, self._cases, self._repeats = tuple(settings), tuple(cases), repeats
        self._axes, self._about = tuple(axes), tuple(about)
        self._trials: list[Trial] = []
        self._excluded: dict[int, str] = {}
        self._complete = False
        self._seconds: dict[int, list[float]] = {}

    @property
    def result(self) -> SweepResult:
        left_out = dict(self._excluded)
        return SweepResult(
            settings=self._settings,
            axes=self._axes,
            prompts=tuple(case.name for case in self._cases),
            repeats=self._repeats,
            trials=tuple(trial for trial in tuple(self._trials) if trial.prompt not in left_out),
            excluded=tuple(Excluded(self._cases[prompt].name, reason) for prompt, reason in left_out.items()),
            complete=self._complete,
            about=self._about,
        )

    def __iter__(self) -> Iterator[ExperimentProgress]:
        """Yields before every run and at the end."""
        with self._answerer.engine.scratch():
            yield from self._warm_up()
            yield from self._measure()
        if not self._cancelled:
            if not self._trials:
                reasons = "; ".join(f"{one.name}: {one.reason}" for one in self.result.excluded[:3])
                raise DFlashError(f"no prompt could be measured ({reasons}); give other prompts")
            self._complete = True
            done = len(self._trials)
            yield ExperimentProgress(done, done, 0.0, "done")

    def _warm_up(self) -> Iterator[ExperimentProgress]:
        total = len(self._settings)
        for number, setting in enumerate(self._settings):
            brief = setting.knobs.replace(max_tokens=min(setting.knobs.max_tokens, WARM_UP_TOKENS))
            while not self._cancelled and (prompt := self._first()) is not None:
                yield ExperimentProgress(number, total, None, f"warming up: {setting.label}")
                if self._run(prompt, brief) is not None:
                    break

    def _first(self) -> int | None:
        return next((prompt for prompt in range(len(self._cases)) if prompt not in self._excluded), None)

    def _measure(self) -> Iterator[ExperimentProgress]:
        slots = list(interleave(len(self._settings), len(self._cases), self._repeats))
        for at, slot in enumerate(slots):
            rest = [one for one in slots[at:] if one.prompt not in self._excluded]
            if self._cancelled:
                return
            if slot.prompt in self._excluded:
                continue
            setting, case = self._settings[slot.setting], self._cases[slot.prompt]
            done = len(self.result.trials)
            yield ExperimentProgress(done, done + len(rest), self._left(rest), f"{setting.label} · {case.name}")
            began = time.perf_counter()
            report = self._run(slot.prompt, setting.knobs)
            if report is not None:
                self._seconds.setdefault(slot.setting, []).append(time.perf_counter() - began)
                self._trials.append(Trial(slot.setting, slot.prompt, slot.repeat, report, _score(case, report)))

    def _run(self, prompt: int, knobs: Knobs) -> TurnReport | None:
        """One answer; None where it was cancelled or its prompt had to be left out."""
        found = self._answer(self._cases[prompt].messages, knobs)
        if isinstance(found, str):
            self._excluded[prompt] = found
            return None
        return found

    def _left(self, rest: Sequence[Slot]) -> float | None:
        """Estimated seconds of the remaining runs, by the mean of each setting, or of all where it has no runs yet."""
        every = [seconds for times in self._seconds.values() for seconds in times]
        if not every:
            return None
        mean = sum(every) / len(every)
        means = {setting: sum(times) / len(times) for setting, times in self._seconds.items()}
        return sum(means.get(slot.setting, mean) for slot in rest)


def _score(case: Case, report: TurnReport) -> bool | None:
    if not case.reference or report.stop != "stop token":
        return None
    return is_right(report.text, case.reference)
