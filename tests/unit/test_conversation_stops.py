"""Turns that end early: a stop, an error of the engine, a turn that was left; and turns that wait for another."""

from __future__ import annotations

import threading

import pytest
from fake_engine import KNOBS, THINKING, TINY, FakeEngine, contents, engine_of, start
from text_data import qwen

from dflash_core.conversation import Conversation
from dflash_core.errors import DFlashError
from dflash_core.events import Piece


def test_stop_keeps_what_there_is() -> None:
    conversation = start("one two three four five six", "again")
    turn = conversation.ask("Count", KNOBS)
    for number, _ in enumerate(turn):
        if number == 1:
            turn.stop()
    assert turn.text
    assert "one two three four five six".startswith(turn.text)
    assert turn.report is not None
    assert turn.report.stop == "cancelled"
    assert contents(conversation) == [("user", "Count"), ("assistant", turn.text)]
    turn.stop()  # too late to do anything
    engine_of(conversation).cancelled.clear()
    assert "".join(piece.text for piece in conversation.ask("And?", KNOBS)) == "again"


def test_stop_from_another_thread() -> None:
    conversation = start("one two three four five six")
    turn = conversation.ask("Count", KNOBS)

    def stop_now(step: int) -> None:
        if step == 2:
            thread = threading.Thread(target=turn.stop)
            thread.start()
            thread.join()

    engine_of(conversation).on_step = stop_now
    assert len(list(turn)) == 3
    assert turn.report is not None
    assert turn.report.stop == "cancelled"


def test_stop_from_a_signal_handler_that_interrupts_a_stop() -> None:
    class InterruptedEngine(FakeEngine):
        def cancel(self) -> None:
            if not self.cancelled.is_set():
                super().cancel()
                turn.stop()  # what a handler would do, on the same thread

    turn = Conversation(InterruptedEngine("one two three"), TINY, qwen()).ask("Count", KNOBS)
    for _ in turn:
        turn.stop()
    assert turn.report is not None
    assert turn.report.stop == "cancelled"


def test_stop_before_the_start_does_not_run_the_engine() -> None:
    conversation = start("unused")
    turn = conversation.ask("Hi", KNOBS)
    turn.stop()
    assert list(turn) == []
    assert engine_of(conversation).calls == []
    assert turn.report is None
    assert turn.done
    assert contents(conversation) == [("user", "Hi"), ("assistant", "")]


def test_an_error_of_the_engine_keeps_what_there_is() -> None:
    conversation = start(["one two", RuntimeError("the GPU went away")], "better")
    turn = conversation.ask("Count", KNOBS)
    pieces: list[Piece] = []
    with pytest.raises(RuntimeError, match="went away"):
        pieces.extend(turn)
    assert turn.text == "one two"
    assert isinstance(turn.error, RuntimeError)
    assert turn.report is not None
    assert turn.report.stop == "cancelled"
    assert contents(conversation) == [("user", "Count"), ("assistant", "one two")]
    assert "".join(piece.text for piece in conversation.ask("Again", KNOBS)) == "better"


def test_an_error_before_the_first_token_loses_nothing_typed() -> None:
    conversation = start([DFlashError("no memory")], "better")
    turn = conversation.ask("Count", KNOBS)
    with pytest.raises(DFlashError, match="no memory"):
        list(turn)
    assert turn.report is None
    assert contents(conversation) == [("user", "Count"), ("assistant", "")]
    assert "".join(piece.text for piece in conversation.retry(KNOBS)) == "better"
    assert contents(conversation) == [("user", "Count"), ("assistant", "better")]


def test_an_engine_that_ends_without_a_stop_was_cancelled() -> None:
    conversation = start("one two three")
    engine = engine_of(conversation)
    run = engine._events

    engine._events = lambda *args: (event for event in list(run(*args))[:2])  # type: ignore[method-assign]
    turn = conversation.ask("Count", THINKING)
    list(turn)
    assert turn.report is not None
    assert turn.report.stop == "cancelled"
    assert turn.report.thinking == turn.thinking == conversation.messages[-1].thinking != ""


def test_text_that_was_held_back_is_kept_too() -> None:
    conversation = start(["a </thi", RuntimeError()])
    turn = conversation.ask("Hi", THINKING)
    with pytest.raises(RuntimeError):
        list(turn)
    assert turn.thinking == "a </thi"


def test_ctrl_c_inside_a_step_keeps_what_there_is() -> None:
    conversation = start("one two three")

    def interrupt(step: int) -> None:
        if step == 2:
            raise KeyboardInterrupt

    engine_of(conversation).on_step = interrupt
    turn = conversation.ask("Count", KNOBS)
    with pytest.raises(KeyboardInterrupt):
        list(turn)
    assert turn.text
    assert contents(conversation)[-1] == ("assistant", turn.text)


def test_a_turn_left_half_way_ends_with_the_next_question() -> None:
    conversation = start("one two three four", "yes")
    turn = conversation.ask("Count", KNOBS)
    for _ in turn:
        break
    assert not turn.done
    second = conversation.ask("And?", KNOBS)
    assert turn.done
    assert engine_of(conversation).closed == 1
    assert [role for role, _ in contents(conversation)] == ["user", "assistant", "user"]
    assert turn.text + "<|im_end|>\n<|im_start|>user\nAnd?" in second.prompt.text
    assert "".join(piece.text for piece in second) == "yes"


def test_a_turn_that_never_began_ends_with_the_next_question() -> None:
    conversation = start("yes")
    turn = conversation.ask("Lost?", KNOBS)
    list(conversation.ask("And?", KNOBS))
    assert turn.done
    assert contents(conversation) == [("user", "Lost?"), ("assistant", ""), ("user", "And?"), ("assistant", "yes")]
    assert list(turn) == []


def test_a_question_while_another_thread_runs_a_turn_is_refused() -> None:
    conversation = start("one two three")
    turn = conversation.ask("Count", KNOBS)
    refused: list[DFlashError] = []

    def ask_now(step: int) -> None:
        if step == 1:
            with pytest.raises(DFlashError, match="stop it first") as caught:
                conversation.ask("And?", KNOBS)
            refused.append(caught.value)

    engine_of(conversation).on_step = ask_now
    list(turn)
    assert len(refused) == 1
    assert contents(conversation) == [("user", "Count"), ("assistant", "one two three")]
