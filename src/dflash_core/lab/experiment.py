"""The one experiment: arms on prompts, interleaved and paired; it can be cancelled and keeps its finished runs.

A sweep, A against B, a tuning, a comparison of modes and the speed of plain decoding fill it in four forms. Before
the first measured run every arm answers once, briefly, and that is discarded: first runs compile, fill caches and raise
clocks. A prompt with an empty answer cannot be measured; it is left out and counted.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from dflash_core.answer import Answer
from dflash_core.bench.prompts import Task
from dflash_core.bench.scoring import is_right
from dflash_core.bench.statistics import MIN_PAIRS
from dflash_core.conversation import Conversation
from dflash_core.errors import ContextError, DFlashError
from dflash_core.knobs import Knobs
from dflash_core.lab.grid import Arm
from dflash_core.lab.results import Excluded, ExperimentProgress, Result, Trial
from dflash_core.lab.schedule import Schedule, Slot
from dflash_core.lab.table import ranked
from dflash_core.lab.whatif import ExactReplay, drafted_by
from dflash_core.limits import Limits
from dflash_core.messages import Message
from dflash_core.record import Start, TurnRecord
from dflash_core.runner import Runner
from dflash_core.text.prompt import Prompt
from dflash_core.text.template import ChatTemplate
from dflash_core.text.tokenizer import Tokenizer
from dflash_core.turn_stats import TurnReport

WARM_UP_TOKENS = 16
PLAIN_REPEATS, PLAIN_TOKENS = 2, 64
FINE = 4  # when this few arms are left, neighbours of the best one are added
ENDED_AT_ONCE = "the answer ended with its first token"


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt to measure: messages that end with a user's, and the right answer where it can be scored. `prompt`: in
    place of messages, as a model got it."""

    name: str
    messages: tuple[Message, ...]
    reference: str = ""
    prompt: Prompt | None = None

    @staticmethod
    def of(task: Task) -> Case:
        return Case(task.name, (Message("user", task.text),), task.reference)


def last_prompts(messages: Sequence[Message], count: int = 1) -> list[Case]:
    """The last questions of a conversation, each with what stands before it."""
    places = [place for place, one in enumerate(messages) if one.role == "user"][-count:]
    names = [f"prompt {number}" for number in range(1, len(places) + 1)] if len(places) > 1 else ["the last prompt"]
    return [Case(name, tuple(messages[: place + 1])) for name, place in zip(names, places)]


@dataclass(frozen=True, slots=True)
class Design:
    """What is run. `axes`: the parameters of a sweep. `base`: the arm that others are compared with; None: the best.

    `halving`: drop slow arms; `limit_s`: end after so long; `around`: further arms near the leading one, given it and
    the longest prompt.
    """

    arms: tuple[Arm, ...]
    cases: tuple[Case, ...]
    repeats: int = 1
    axes: tuple[str, ...] = ()
    base: int | None = None
    halving: bool = False
    limit_s: float = math.inf
    around: Callable[[Arm, int], Sequence[Arm]] | None = None


def plain_design(case: Case, knobs: Knobs) -> Design:
    """The experiment that times plain decoding after a prompt."""
    arm = Arm("plain", knobs.replace(drafting="plain", ignore_eos=True, max_tokens=PLAIN_TOKENS), "plain")
    return Design((arm,), (case,), PLAIN_REPEATS)


def default_repeats(prompts: int) -> int:
    """The fewest repeats that can show a difference; one if there are enough prompts."""
    return math.ceil(MIN_PAIRS / prompts)


class Answerer:
    """Answers prompts on an engine, each as a conversation of its own. One at a time; `stop` from any thread."""

    def __init__(self, engine: Runner, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.engine, self.tokenizer, self.template = engine, tokenizer, template
        self._lock = threading.RLock()  # a signal handler may call `stop` on the thread that has the lock
        self._turn: Answer | None = None
        self._stopped = threading.Event()

    def answer(self, asked: Sequence[Message] | Prompt, knobs: Knobs) -> TurnReport | None:
        """The answer to a prompt, or to the last of some messages, a user's; None where it was stopped before its end.

        Raises TemplateError, ContextError, and what the engine raises.
        """
        turn: Answer
        if isinstance(asked, Prompt):
            unread = Start("", "", "", "", "", asked.ids, knobs)  # nobody reads this record
            turn = Answer(self.engine, self.tokenizer, asked, knobs.fixed(), lambda prompt, knobs: unread)
        else:
            conversation = Conversation(self.engine, self.tokenizer, self.template)
            conversation.set_messages(asked[:-1])
            turn = conversation.ask(asked[-1].content, knobs.fixed())
        with self._lock:
            self._turn = turn
            if self._stopped.is_set():
                return None
        try:
            for _ in turn:
                pass
        finally:
            with self._lock:
                self._turn = None
        if self._stopped.is_set():
            return None
        if turn.report is None:
            raise DFlashError("the engine ended an answer before its first token; expected at least one")
        return turn.report

    def stop(self) -> None:
        """End the running answer after its step, and every later one before it begins."""
        with self._lock:
            self._stopped.set()
            if self._turn is not None:
                self._turn.stop()


class Experiment:
    """Iterate it once, in any one thread; `result` is the state so far, readable at any time and from any thread.

    `answerers`: of each loaded pair that arms name. Their sessions are restored afterwards. Raises what answering
    raises; a prompt that does not fit the context is left out instead.
    """

    def __init__(self, answerers: Sequence[Answerer], design: Design, about: Sequence[tuple[str, str]] = ()) -> None:
        self._answerers, self._design, self._about = tuple(answerers), design, tuple(about)
        self._arms = list(design.arms)
        self._schedule = Schedule(design.arms, len(design.cases), design.repeats, halving=design.halving)
        self._trials: list[Trial] = []
        self._excluded: dict[int, str] = {}
        self._complete = self._cancelled = self._refined = False
        self._seconds: dict[int, list[float]] = {}
        self._began = 0.0

    def cancel(self) -> None:
        """End after the step under way; its run is dropped, all earlier ones stay. Callable from any thread."""
        self._cancelled = True
        for answerer in self._answerers:
            answerer.stop()

    @property
    def result(self) -> Result:
        left_out, it = dict(self._excluded), self._design
        return Result(
            tuple(self._arms), it.axes, tuple(case.name for case in it.cases), it.repeats,
            tuple(trial for trial in tuple(self._trials) if trial.prompt not in left_out),
            tuple(Excluded(it.cases[at].name, reason) for at, reason in left_out.items()), self._complete, self._about,
            it.base, frozenset(self._schedule.left) if it.halving else None,
        )  # fmt: skip

    def __iter__(self) -> Iterator[ExperimentProgress]:
        """Yields before every run and at the end."""
        with ExitStack() as stack:
            for answerer in self._answerers:
                stack.enter_context(answerer.engine.scratch())
            yield from self._warm_up()
            ran = yield from self._measure()
        if not ran:
            return
        if not self._trials:
            reasons = "; ".join(f"{one.name}: {one.reason}" for one in self.result.excluded[:3])
            raise DFlashError(f"no prompt could be measured ({reasons}); give other prompts")
        self._complete = True
        done = len(self._trials)
        yield ExperimentProgress(done, done, 0.0, "done")

    def _warm_up(self) -> Iterator[ExperimentProgress]:
        prompts = range(len(self._design.cases))
        for number, arm in enumerate(self._arms):
            while not self._cancelled and (left := [one for one in prompts if one not in self._excluded]):
                yield ExperimentProgress(number, len(self._arms), None, f"warming up: {arm.label}")
                if self._run(left[0], arm, WARM_UP_TOKENS) is not None:
                    break

    def _measure(self) -> Generator[ExperimentProgress, None, bool]:
        """Returns whether every run was made; a cancel after the last one changes nothing."""
        self._began = time.monotonic()
        while (slot := self._next()) is not None:
            if self._cancelled:
                return False
            arm, case = self._arms[slot.setting], self._design.cases[slot.prompt]
            done, waiting = len(self.result.trials), self._schedule.waiting
            total = done + len(waiting) + self._schedule.ahead()
            yield ExperimentProgress(done, total, self._left(waiting), f"{arm.label} · {case.name}")
            began = time.perf_counter()
            report = self._run(slot.prompt, arm)
            if report is not None:
                self._seconds.setdefault(slot.setting, []).append(time.perf_counter() - began)
                scored = case.reference and report.stop == "stop token"
                right = is_right(report.text, case.reference) if scored else None
                self._trials.append(Trial(slot.setting, slot.prompt, slot.repeat, report, right))
                self._schedule.done(slot, report.stats.tokens)
        return True

    def _next(self) -> Slot | None:
        if time.monotonic() - self._began > self._design.limit_s:
            return None
        slot = self._schedule.next(self._ranked)
        around, left = self._design.around, self._schedule.left
        if slot is None or around is None or self._refined or len(left) > FINE or len(left) == len(self._arms):
            return slot
        self._refined = True
        longest = max(trial.report.stats.prompt_tokens for trial in self._trials)
        known = {arm.knobs for arm in self._arms}
        best = self._arms[self._ranked(left)[0]]
        more = [arm for arm in around(best, longest) if arm.knobs not in known]
        self._arms += more
        self._schedule.extend(more)
        return self._schedule.next(self._ranked)

    def _ranked(self, arms: Sequence[int]) -> list[int]:
        return ranked(self.result, arms)

    def _run(self, prompt: int, arm: Arm, most: int | None = None) -> TurnReport | None:
        """One answer; None where it was cancelled or its prompt had to be left out."""
        knobs = arm.knobs if most is None else arm.knobs.replace(max_tokens=min(arm.knobs.max_tokens, most))
        try:
            case = self._design.cases[prompt]
            report = self._answerers[arm.model].answer(case.prompt or case.messages, knobs)
        except ContextError as error:
            why = str(error)
        else:
            if report is None or report.stats.steps:
                return report
            why = ENDED_AT_ONCE
        self._excluded[prompt] = why
        self._schedule.exclude(prompt)
        return None

    def _left(self, waiting: Sequence[Slot]) -> float | None:
        """Estimated seconds of the remaining runs, by the mean of each arm, or of all where it has no runs yet."""
        every = [seconds for times in self._seconds.values() for seconds in times]
        if not every:
            return None
        mean = sum(every) / len(every)
        means = {setting: sum(times) / len(times) for setting, times in self._seconds.items()}
        rest = sum(means.get(slot.setting, mean) for slot in waiting) + self._schedule.ahead() * mean
        return max(min(rest, self._design.limit_s - (time.monotonic() - self._began)), 0.0)


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
