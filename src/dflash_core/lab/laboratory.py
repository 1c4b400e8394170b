"""Experiments on a loaded engine. They do not affect the conversation that it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from dflash_core.bench.answering import Answerer
from dflash_core.bench.interleave import interleave
from dflash_core.errors import Code, DFlashError
from dflash_core.events import StepEvent
from dflash_core.knobs import SPEC
from dflash_core.lab.cost import StepCosts
from dflash_core.lab.grid import Setting
from dflash_core.lab.halving import Arm
from dflash_core.lab.plain import PlainRun
from dflash_core.lab.progress import ExperimentProgress
from dflash_core.lab.sweep import Case, Sweep
from dflash_core.lab.tune import Tune
from dflash_core.lab.whatif import ExactReplay, drafted_by
from dflash_core.limits import Limits
from dflash_core.record import TurnRecord
from dflash_core.runner import Runner
from dflash_core.text.template import ChatTemplate
from dflash_core.text.tokenizer import Tokenizer

TIMED_ROUNDS = 4
WARM_STEPS, TIMED_STEPS = 1, 3
"""Steps of every budget in every round: discarded, and timed."""
TIMED_BUDGETS = (1, 4, 8, 15, 22, 32, 48, 63)
MOST = int(SPEC["max_tokens"].maximum)


class Laboratory:
    """Experiments with one engine. One at a time, and none while an answer is written.

    `about` are facts of machine and models that go into exports, as (name, value).
    """

    def __init__(
        self, engine: Runner, tokenizer: Tokenizer, template: ChatTemplate, about: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._engine, self._tokenizer, self._template = engine, tokenizer, template
        self._about = tuple(about)

    @property
    def limits(self) -> Limits:
        """The engine's limits."""
        return replace(self._engine.limits, reasoning=self._template.reasoning)

    def sweep(
        self, settings: Sequence[Setting], cases: Sequence[Case], repeats: int, axes: Sequence[str] = ()
    ) -> Sweep:
        """Every setting on every case, `repeats` times."""
        answerer = Answerer(self._engine, self._tokenizer, self._template)
        return Sweep(answerer, settings, cases, repeats, axes, self._about)

    def tune(self, arms: Sequence[Arm], cases: Sequence[Case]) -> Tune:
        """Find the best of several settings on the user's own prompts."""
        answerer = Answerer(self._engine, self._tokenizer, self._template)
        return Tune(answerer, arms, cases, self.limits)

    def replay(self, record: TurnRecord, budgets: Sequence[int], drafter: str = "") -> ExactReplay:
        """The turn as other budgets would have drafted it, by the named one of several drafters.

        Raises DFlashError for a turn without a step.
        """
        answer = [token for event in record.events for token in event.tokens]
        engine, ids, knobs = self._engine, record.start.prompt_ids, drafted_by(record.knobs, drafter)
        return ExactReplay(engine.propose, ids, answer, knobs, budgets, engine.limits.context_length, engine.stop_ids)

    def time_plain(self, record: TurnRecord) -> PlainRun:
        """Measure the speed of plain decoding after the turn's prompt."""
        return PlainRun(self._engine, record)

    def time_steps(
        self, record: TurnRecord, budgets: Sequence[int], costs: StepCosts, drafter: str = ""
    ) -> Iterator[ExperimentProgress]:
        """Time a few steps of each budget after the turn's prompt, into `costs`; their tokens are discarded. `drafter`
        names one of several.

        The budgets are interleaved, so that load on the machine affects all of them alike. Stop iterating to cancel;
        times so far are kept. Raises DFlashError without a drafter, and what the engine raises.
        """
        if self._engine.limits.drafter is None:
            raise DFlashError("no drafter is loaded, so steps have no budget", code=Code.NO_DRAFTER)
        slots = list(interleave(len(budgets), 1, TIMED_ROUNDS))
        with self._engine.scratch():
            for done, slot in enumerate(slots):
                budget = budgets[slot.setting]
                yield ExperimentProgress(done, len(slots), None, f"timing steps of budget {budget}")
                # p_min would make the trees smaller than requested; a stop token would end the run too early.
                asked = drafted_by(record.knobs, drafter)
                knobs = asked.replace(mode="tree", budget=budget, p_min=0.0, ignore_eos=True, max_tokens=MOST)
                ids, sinks = record.start.prompt_ids, record.start.sinks
                events = self._engine.generate(ids, knobs, keep=(len(ids) - 1,), sinks=sinks)
                steps = (event for event in events if isinstance(event, StepEvent))
                for step in islice(steps, WARM_STEPS, WARM_STEPS + TIMED_STEPS):
                    costs.add(step)
        yield ExperimentProgress(len(slots), len(slots), 0.0, "done")
