"""The runner on a scripted backend: prefix reuse, checkpoints, stops, cancel. No model, no torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from dflash_core.backends.base import MAX_CHECKPOINTS, PREFILL_CHUNK, AnswerOptions, PrefillCancelled
from dflash_core.backends.decoder import Decoder
from dflash_core.errors import ContextError, DFlashError, NumericsError
from dflash_core.events import PrefillEvent, StepEvent, Stop
from dflash_core.knobs import Knobs
from dflash_core.policy.base import Decision
from dflash_core.runner import Runner
from support.counting import STOP, VOCAB, CountingBackend


class StoppingBackend(CountingBackend):
    """Ends every answer with the stop token after token 12."""

    def after(self, token: int) -> int:
        return STOP if token == 12 else super().after(token)


def runner(backend: CountingBackend, context: int = 1000) -> Runner:
    return Runner(backend, frozenset({STOP}), context, VOCAB)


def answer(events: Sequence[PrefillEvent | StepEvent]) -> list[int]:
    return [token for event in events for token in event.tokens]


def test_one_prefill_event_then_steps() -> None:
    backend = CountingBackend()
    events = list(runner(backend).generate([1, 2, 3], Knobs(max_tokens=10)))
    assert isinstance(events[0], PrefillEvent)
    assert events[0].tokens == (4,)
    assert all(isinstance(event, StepEvent) for event in events[1:])
    assert answer(events) == list(range(4, 14))
    assert [len(event.tokens) for event in events[1:]] == [4, 4, 1]
    assert [event.stop for event in events] == [None, None, None, "max tokens"]


@pytest.mark.parametrize("right", range(8))
@pytest.mark.parametrize("mode", ["plain", "chain", "tree", "auto"])
def test_every_stop_is_exact(right: int, mode: str) -> None:
    """Text, stop and state are the same wherever in a step the end falls."""
    for limit in range(1, 12):
        backend = StoppingBackend(right)
        events = list(runner(backend).generate([3], Knobs(max_tokens=limit).replace(mode=mode)))
        expected = [4, 5, 6, 7, 8, 9, 10, 11, 12, STOP][:limit]
        assert answer(events) == expected
        assert events[-1].stop == ("stop token" if expected[-1] == STOP else "max tokens")
        assert backend.tokens == [3, *expected[:-1]], "the last token is drawn, not run"


def test_ignore_eos_runs_on() -> None:
    events = list(runner(StoppingBackend()).generate([3], Knobs(max_tokens=20, ignore_eos=True)))
    assert len(answer(events)) == 20


def test_the_end_of_the_context() -> None:
    for context in range(5, 14):
        backend = CountingBackend()
        events = list(runner(backend, context).generate([1, 2, 3], Knobs(max_tokens=100)))
        assert events[-1].stop == "context full"
        assert len(answer(events)) == context - 3
        assert backend.length == context - 1


@pytest.mark.parametrize("ids", [[], [1] * 1000, [3, VOCAB], [-1]])
def test_a_prompt_that_cannot_run_is_refused_before_anything_happens(ids: list[int]) -> None:
    backend = CountingBackend()
    with pytest.raises(ContextError) as refusal:
        runner(backend).generate(ids, Knobs())
    assert "\n" not in str(refusal.value)
    assert not backend.runs


def test_the_next_turn_continues_where_the_last_one_stands() -> None:
    backend = CountingBackend()
    run = runner(backend)
    first = answer(list(run.generate([1, 2, 3], Knobs(max_tokens=6))))
    backend.runs.clear()
    events = list(run.generate([1, 2, 3, *first, 30, 31], Knobs(max_tokens=3)))
    assert backend.runs == [[first[-1], 30, 31]], "only the root and the new tokens are run"
    assert events[0].reused_tokens == 3 + 5
    assert answer(events) == [32, 33, 34]


def test_a_checkpoint_serves_a_prompt_that_departs() -> None:
    backend = CountingBackend()
    run = runner(backend)
    list(run.generate([1, 2, 3, 4, 5], Knobs(max_tokens=6), keep=(3,)))
    assert backend.runs == [[1, 2, 3], [4, 5]]
    backend.runs.clear()
    events = list(run.generate([1, 2, 3, 9], Knobs(max_tokens=2)))
    assert backend.runs == [[9]]
    assert (events[0].prompt_tokens, events[0].reused_tokens) == (4, 3)
    assert backend.tokens == [1, 2, 3, 9, 10]
    backend.runs.clear()
    list(run.generate([1, 2, 3], Knobs(max_tokens=2)))
    assert backend.runs == [[1, 2, 3]], "the last token has to run for its logits"


def test_a_session_without_recurrent_states_goes_back_to_any_prefix() -> None:
    backend = CountingBackend()
    backend.cuts = True
    run = runner(backend)
    first = answer(list(run.generate([1, 2, 3, 4, 5], Knobs(max_tokens=6), keep=(2,))))
    backend.runs.clear()
    for ids, rest in (([1, 2, 3, 4, 5, *first[:3], 9], [9]), ([1, 2, 3, 9], [9]), ([1, 2, 3], [3]), ([8], [8])):
        list(run.generate(ids, Knobs(max_tokens=2)))
        assert backend.runs.pop() == rest
        assert backend.tokens == [*ids, ids[-1] + 1]
    assert not [one for one in backend.runs if len(one) > 1], "nothing was read twice"


def test_the_same_prompt_again() -> None:
    backend = CountingBackend()
    run = runner(backend)
    first = answer(list(run.generate([1, 2, 3, 4], Knobs(max_tokens=6), keep=(2,))))
    backend.runs.clear()
    assert answer(list(run.generate([1, 2, 3, 4], Knobs(max_tokens=6), keep=(2,)))) == first
    assert backend.runs == [[3, 4]]


def test_checkpoints_do_not_pile_up() -> None:
    run = runner(CountingBackend())
    for turn in range(1, 12):
        list(run.generate(list(range(3 * turn)), Knobs(max_tokens=1), keep=(3 * turn - 1,)))
    assert len(run._checkpoints) <= MAX_CHECKPOINTS


def test_cancel_between_steps_keeps_text_and_state() -> None:
    backend = CountingBackend()
    run, seen = runner(backend), []
    for event in run.generate([1], Knobs(max_tokens=100)):
        seen += event.tokens
        if len(seen) > 8:
            run.cancel()
    assert seen == list(range(2, 2 + len(seen)))
    assert len(seen) < 20
    assert backend.tokens == [1, *seen[:-1]]
    again = list(run.generate([1, *seen, 30], Knobs(max_tokens=2)))
    assert answer(again) == [31, 32], "a cancelled turn must not cancel the next one"


def test_cancel_in_the_middle_of_the_prompt() -> None:
    backend = CountingBackend()
    run = runner(backend, context=10_000)
    backend.on_prefill = run.cancel
    ids = [7] * (3 * PREFILL_CHUNK)
    told: list[tuple[int, int]] = []
    events = list(run.generate(ids, Knobs(), on_prefill=lambda done, total: told.append((done, total))))
    assert [(event.tokens, event.stop) for event in events] == [((), "cancelled")]
    assert told == [(PREFILL_CHUNK, len(ids))]
    assert backend.length == PREFILL_CHUNK
    backend.on_prefill = lambda: None
    assert next(iter(run.generate(ids, Knobs(max_tokens=1)))).reused_tokens == PREFILL_CHUNK


def test_cancel_within_one_pass_over_the_prompt() -> None:
    """A backend that reads thousands of tokens in one pass looks for a cancellation in it, and commits nothing."""

    class LongPasses(CountingBackend):
        def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> np.ndarray:
            self.on_prefill()
            if cancelled is not None and cancelled():
                raise PrefillCancelled
            return super().prefill(tokens, cancelled)

    backend = LongPasses()
    run = runner(backend)
    assert answer(list(run.generate([1, 2], Knobs(max_tokens=2)))) == [3, 4]
    held = list(backend.tokens)
    backend.on_prefill = run.cancel
    events = list(run.generate([*held, 9, 9], Knobs()))
    assert [(event.tokens, event.stop) for event in events] == [((), "cancelled")]
    assert backend.tokens == held
    backend.on_prefill = lambda: None
    assert next(iter(run.generate([*held, 9, 9], Knobs(max_tokens=1)))).reused_tokens == len(held)


def test_cancel_after_some_of_many_passes_over_the_prompt() -> None:
    """What the backend had read of it by then is read no more."""

    class ManyPasses(CountingBackend):
        def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> np.ndarray:
            self.on_prefill()
            for at in range(0, len(tokens), 2):
                if cancelled is not None and cancelled():
                    super().prefill(tokens[: at + 2])
                    raise PrefillCancelled(at + 2)
            return super().prefill(tokens)

    backend = ManyPasses()
    run = runner(backend)
    backend.on_prefill = run.cancel
    events = list(run.generate([5, 6, 7, 8], Knobs()))
    assert [(event.tokens, event.stop) for event in events] == [((), "cancelled")]
    assert backend.tokens == [5, 6]
    backend.on_prefill = lambda: None
    assert next(iter(run.generate([5, 6, 7, 8], Knobs(max_tokens=1)))).reused_tokens == 2


def test_cancel_from_another_thread() -> None:
    run = runner(CountingBackend(), context=10**9)
    started = threading.Event()

    def consume() -> None:
        for _ in run.generate([1], Knobs(max_tokens=1_000_000)):
            started.set()

    thread = threading.Thread(target=consume)
    thread.start()
    started.wait()
    run.cancel()
    thread.join(timeout=600)
    assert not thread.is_alive()


def test_an_answer_of_another_thread_is_not_disturbed() -> None:
    run, seen = runner(CountingBackend()), list[int]()
    started, go_on = threading.Event(), threading.Event()

    def consume() -> None:
        for event in run.generate([1], Knobs(max_tokens=20)):
            seen.extend(event.tokens)
            started.set()
            go_on.wait(600)

    thread = threading.Thread(target=consume)
    thread.start()
    started.wait(600)
    try:
        with pytest.raises(DFlashError, match=r"is writing another answer; wait .* or close it in its own thread"):
            run.generate([5], Knobs(max_tokens=3))
    finally:
        go_on.set()
        thread.join(timeout=600)
    assert seen == list(range(2, 22))
    assert answer(list(run.generate([5], Knobs(max_tokens=3)))) == [6, 7, 8]


def test_an_answer_does_not_begin_inside_another() -> None:
    run = runner(CountingBackend())
    with pytest.raises(DFlashError, match="is writing another answer"):
        list(run.generate([1], Knobs(max_tokens=3), on_prefill=lambda done, total: run.generate([5], Knobs())))


def test_a_new_answer_ends_one_that_was_left_unfinished() -> None:
    backend = CountingBackend()
    run = runner(backend)
    left = run.generate([1], Knobs(max_tokens=20))
    next(left)
    assert answer(list(run.generate([30], Knobs(max_tokens=3)))) == [31, 32, 33]
    assert list(left) == []
    assert backend.tokens == [30, 31, 32]


def test_an_answer_that_is_left_early_leaves_a_sound_state() -> None:
    backend = CountingBackend()
    run = runner(backend)
    events = run.generate([1, 2], Knobs(max_tokens=100))
    seen = [*next(events).tokens, *next(events).tokens]
    events.close()  # type: ignore[attr-defined]
    assert backend.tokens == [1, 2, *seen[:-1]] == run._committed


def test_a_pass_that_breaks_leaves_nothing_behind() -> None:
    backend = CountingBackend()
    backend.fail_at = 10
    run = runner(backend)
    with pytest.raises(RuntimeError, match="breaks"):
        list(run.generate([1, 2], Knobs(max_tokens=100)))
    assert backend.length == 0
    backend.fail_at = -1
    assert answer(list(run.generate([1, 2], Knobs(max_tokens=2)))) == [3, 4]


class AheadBackend(CountingBackend):
    """Steps run before anyone asks for them, as a card's do. `fails`: what is under way cannot be ended."""

    fails = False

    def decoder(self, options: AnswerOptions) -> Ahead:  # type: ignore[override]
        return Ahead(Decoder(self, replace(options, policy=None, log_probs=None)), fails=self.fails)


class Ahead:
    def __init__(self, inner: Decoder, *, fails: bool) -> None:
        self.inner, self.fails = inner, fails
        self.answer: list[int] = []
        self.queue: list[StepEvent] = []

    @property
    def decision(self) -> Decision:
        return self.inner.decision

    @property
    def ahead(self) -> bool:
        return bool(self.queue)

    def first(self, logits: np.ndarray) -> tuple[int, Stop | None]:
        token, stop = self.inner.first(logits)
        self.answer.append(token)
        return token, stop

    def take(self, knobs: Knobs) -> None:
        self.inner.take(knobs)

    def step(self) -> StepEvent:
        while len(self.queue) < 3:
            self.queue.append(self.inner.step())
        return self._handed_on()

    def finish(self) -> Sequence[StepEvent]:
        if self.fails:
            raise NumericsError("the target produced numbers that are not finite")
        return [self._handed_on() for _ in tuple(self.queue)]

    def _handed_on(self) -> StepEvent:
        event = self.queue.pop(0)
        self.answer += event.tokens
        return event


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_steps_under_way_belong_to_the_answer_however_many_of_them_are_taken(taken: int) -> None:
    backend = AheadBackend()
    run = Runner(backend, frozenset({STOP}), 1000, VOCAB)
    events = run.generate([1, 2], Knobs(max_tokens=100))
    next(events)
    next(events)
    run.cancel()
    for _ in range(taken):
        next(events)
    events.close()  # type: ignore[attr-defined]
    assert backend.tokens == run._committed == list(range(1, 3 + 3 * 4))


def test_steps_that_cannot_be_ended_leave_nothing_behind() -> None:
    """Also where the answer is given up: some of its tokens are on the device, and the host does not know which."""
    backend = AheadBackend()
    run = Runner(backend, frozenset({STOP}), 1000, VOCAB)
    backend.fails = True
    events = run.generate([1, 2], Knobs(max_tokens=100))
    next(events)
    next(events)
    with pytest.raises(NumericsError):
        events.close()  # type: ignore[attr-defined]
    assert backend.tokens == run._committed == []


def test_a_reset_that_fails_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CountingBackend()
    run = runner(backend)
    list(run.generate([1, 2], Knobs(max_tokens=4)))
    with monkeypatch.context() as patch:
        patch.setattr(backend, "restore", lambda checkpoint: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run.reset()
    assert answer(list(run.generate([1, 2, 3], Knobs(max_tokens=3)))) == [4, 5, 6]
    assert backend.tokens == run._committed == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("mode", "block", "effective", "reason"),
    [
        ("auto", 8, "tree", "a drafter is loaded"),
        ("tree", 8, "tree", "drafting is set"),
        ("chain", 8, "chain", "drafting is set"),
        ("plain", 8, "plain", "drafting is set"),
        ("tree", 0, "plain", "no drafter"),
        ("auto", 0, "plain", "no drafter"),
    ],
)
def test_what_ran_is_what_is_said(mode: str, block: int, effective: str, reason: str) -> None:
    events = list(runner(CountingBackend(block=block)).generate([1], Knobs(max_tokens=8).replace(mode=mode)))
    assert {event.mode for event in events} == {effective}
    assert all(reason in event.reason for event in events)
    widths = {max(event.tree.parents.count(parent) for parent in event.tree.parents) for event in events[1:]}
    assert effective == "tree" or widths == {1}
    assert effective != "plain" or all(event.drafted_depth == 0 for event in events[1:])
