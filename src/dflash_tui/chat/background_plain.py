"""Plain decoding, timed automatically while the user reads, as the baseline for other speeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_core.errors import DFlashError
from dflash_core.lab.results import plain_of_result
from dflash_tui.application.background import Experiment
from dflash_tui.application.log import LOG
from dflash_tui.chat.controller import Controller
from dflash_tui.chat.gauges import Gauges

if TYPE_CHECKING:
    from dflash_core.lab.experiment import Experiment as LabExperiment

QUIET_S = 2.5  # seconds after an answer without typing or another task
LOOK_S = 0.2
JOIN_S = 5.0
SLOW_MS = 300  # per step: a message sent meanwhile waits for the end of a step
LONGEST_PROMPT = 8_192  # positions: prefilling a longer prompt again takes too long for a background task


@dataclass(eq=False)
class BackgroundPlain(Controller):
    """Belongs to one chat. Whatever the user starts has priority: the run is stopped and tried again later."""

    _gauges: Gauges
    _experiment: Experiment | None = None
    _typed = ""

    @property
    def running(self) -> bool:
        return self._experiment is not None

    def turn_ended(self) -> None:
        """An answer is complete: measure after a pause without user activity."""
        if self._gauges.plain is None:
            self._typed = self.prompt.text
            self.screen.set_timer(QUIET_S, self._begin)

    def yield_to_turn(self) -> Callable[[], None]:
        """Something else needs the decoder: stop the measurement. Returns a function that waits for its end, which is
        not for the app's thread: a part of a prompt takes a while."""
        experiment, self._experiment = self._experiment, None
        if experiment is None:
            return lambda: None
        experiment.stop()

        def ended() -> None:
            while not experiment.join(LOOK_S):
                experiment.stop()  # again: a prompt that begins just now has not seen it

        return ended

    def stop(self) -> None:
        """As `yield_to_turn`, and wait here, though not for long."""
        experiment = self._experiment
        self.yield_to_turn()
        if experiment is not None:
            experiment.join(JOIN_S)

    def _begin(self) -> None:
        state, session = self.state, self.state.session
        if session is None or state.busy or state.loading or state.experiment is not None or self.running:
            return
        if state.serving or self.prompt.text != self._typed:  # a request, or a message, may come at any time
            return
        if self._gauges.plain is not None or session.limits.drafter is None or not session.turns:
            return
        record = session.turns[-1]
        slow = sum(step.stages.total for step in record.steps) > SLOW_MS * len(record.steps)
        if slow or not 0 < len(record.start.prompt_ids) <= LONGEST_PROMPT:
            return
        from dflash_core.lab.experiment import last_prompts, plain_design

        cases = last_prompts(session.conversation.messages)
        if not cases:
            return
        try:
            run = session.experiment(plain_design(cases[0], record.knobs))
        except DFlashError:  # a replay has nothing to measure with
            return

        def stop() -> None:
            run.cancel()
            session.cancel()  # a prompt that is being read

        self._experiment = experiment = Experiment(state.decoder, iter(run), stop)
        experiment.start()
        self.screen.set_timer(LOOK_S, lambda: self._look(experiment, run))

    def _look(self, experiment: Experiment, run: LabExperiment) -> None:
        if experiment is not self._experiment:  # it was stopped, and another may have begun since
            return
        if not experiment.over:
            if self.prompt.text != self._typed:  # the next message is being sent
                experiment.stop()
            self.screen.set_timer(LOOK_S, lambda: self._look(experiment, run))
            return
        self._experiment = None
        if experiment.error is not None:
            LOG.warning("plain decoding was not measured: %s", experiment.error)
        elif (speed := plain_of_result(run.result, "timed separately")) is not None and run.result.complete:
            self._gauges.took_plain_speed(speed)
