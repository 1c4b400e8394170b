"""Experiments on a loaded engine. They do not affect the conversation that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dflash_core.lab.experiment import Answerer, Design, Experiment
from dflash_core.lab.whatif import ExactReplay, drafted_by
from dflash_core.limits import Limits
from dflash_core.record import TurnRecord
from dflash_core.runner import Runner
from dflash_core.text.template import ChatTemplate
from dflash_core.text.tokenizer import Tokenizer


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
        return replace(self._engine.limits, reasoning=self._template.reasoning)

    def experiment(self, design: Design, others: Sequence[Runner] = ()) -> Experiment:
        """Arms on prompts. `others`: further engines of the same target, for arms whose `model` is 1 and more."""
        engines = (self._engine, *others)
        return Experiment([Answerer(one, self._tokenizer, self._template) for one in engines], design, self._about)

    def replay(
        self, record: TurnRecord, budgets: Sequence[int], drafter: str = "", p_min: float | None = None
    ) -> ExactReplay:
        """The turn as other budgets would have drafted it, by the named one of several drafters.

        Raises DFlashError for a turn without a step.
        """
        answer = [token for event in record.events for token in event.tokens]
        engine, ids, knobs = self._engine, record.start.prompt_ids, drafted_by(record.knobs, drafter)
        if p_min is not None:
            knobs = replace(knobs, p_min=p_min)
        return ExactReplay(engine.propose, ids, answer, knobs, budgets, engine.limits.context_length, engine.stop_ids)
