"""Tuning: compares settings on the user's own prompts by successive halving, on the loaded pair."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from dflash_core.bench.answering import Answerer
from dflash_core.errors import DFlashError
from dflash_core.events import TurnReport
from dflash_core.lab.candidates import around
from dflash_core.lab.halving import Arm, Halving, Next, Run, Standing, Verdict
from dflash_core.lab.progress import ExperimentProgress
from dflash_core.lab.sweep import WARM_UP_TOKENS, Case, Experiment
from dflash_core.limits import Limits

TOKENS = 96
"""The most tokens of each answer. They are the same under every setting, so speeds refer to the same text."""
LIMIT_S = 600.0
FINE = 4
"""When this few settings are left, neighbours of the best one are added."""


class Tune(Experiment):
    """Iterate it once, in any one thread; `standings` and `verdict` are what is known so far, from any thread.

    The engine's session is restored afterwards. Raises what answering raises, and
    DFlashError where no prompt can be measured; a prompt that does not fit the context is left out.
    """

    def __init__(self, answerer: Answerer, arms: Sequence[Arm], cases: Sequence[Case], limits: Limits) -> None:
        super().__init__(answerer)
        self._cases, self._limits = list(cases), limits
        self._halving = Halving(arms)
        self._left_out: dict[str, str] = {}
        self._seconds: list[float] = []
        self._began = 0.0
        self._refined = False
        self._positions = 0
        self.standings: list[Standing] = []  # every setting that was measured, the best first
        self.verdict: Verdict | None = None

    @property
    def arms(self) -> tuple[Arm, ...]:
        return self._halving.arms

    @property
    def left_out(self) -> dict[str, str]:
        """Prompts that cannot be measured, by name, and why."""
        return dict(self._left_out)

    @property
    def complete(self) -> bool:
        """It ended by itself."""
        return self._halving.over and not self._cancelled

    def __iter__(self) -> Iterator[ExperimentProgress]:
        """Yields before every run and at the end."""
        self._began = time.monotonic()
        with self._answerer.engine.scratch():
            yield from self._warm_up()
            done = 0
            while not self._cancelled and (it := self._next()) is not None:
                arm, case = self._halving.arms[it.arm], self._cases[it.pair % len(self._cases)]
                left = self._halving.runs_left()
                yield ExperimentProgress(done, done + left, self._left_s(left), f"{arm.setting.label} · {case.name}")
                began = time.perf_counter()
                report = self._run(case, arm)
                if report is None:
                    continue
                done += 1
                self._seconds.append(time.perf_counter() - began)
                self._positions = max(self._positions, report.stats.prompt_tokens)
                stats = report.stats
                step_ms = stats.decode_s / stats.steps * 1e3
                run = Run(stats.tokens_per_second, stats.acceptance_length, step_ms, self._seconds[-1])
                self._halving.add(it, run)
                self.standings, self.verdict = self._halving.standings(), self._halving.verdict()
        if not self._cancelled:
            yield ExperimentProgress(done, done, 0.0, "done")

    def _next(self) -> Next | None:
        if time.monotonic() - self._began > LIMIT_S:
            self._halving.stop()
        it = self._halving.next()
        verdict = self._halving.verdict()
        left = sum(one.left for one in self._halving.standings())
        if it is not None and not self._refined and verdict is not None and it.pair > 0 and left <= FINE:
            self._refined = True
            best = self._halving.arms[verdict.best].setting.knobs
            self._halving.extend(around(best, self._limits, self._positions))
            it = self._halving.next()
        return it

    def _warm_up(self) -> Iterator[ExperimentProgress]:
        """Run every setting once, briefly, and discard it: first runs compile, fill caches and raise clocks."""
        arms = self._halving.arms
        for number, arm in enumerate(arms):
            if self._cancelled:
                return
            yield ExperimentProgress(number, len(arms), None, f"warming up: {arm.setting.label}")
            self._run(self._cases[0], arm, WARM_UP_TOKENS)

    def _run(self, case: Case, arm: Arm, tokens: int = TOKENS) -> TurnReport | None:
        """One answer; None if it was cancelled or the prompt was left out."""
        knobs = arm.setting.knobs.replace(max_tokens=min(arm.setting.knobs.max_tokens, tokens))
        found = self._answer(case.messages, knobs)
        if isinstance(found, str):
            self._leave_out(case, found)
            return None
        return found

    def _leave_out(self, case: Case, why: str) -> None:
        place = self._cases.index(case)
        self._left_out[case.name] = why
        del self._cases[place]
        if not self._cases:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in list(self._left_out.items())[:3])
            raise DFlashError(
                f"no prompt could be measured ({reasons}); ask something longer, or give a file of prompts"
            )
        self._halving.drop(place)

    def _left_s(self, runs: int) -> float | None:
        if not self._seconds:
            return None
        rest = LIMIT_S - (time.monotonic() - self._began)
        return max(min(runs * sum(self._seconds) / len(self._seconds), rest), 0.0)
