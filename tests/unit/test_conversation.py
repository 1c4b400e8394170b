from __future__ import annotations

import itertools

import pytest
from fake_engine import CHATML, KNOBS, THINKING, TINY, FakeEngine, contents, engine_of, start
from hypothesis import given, settings
from hypothesis import strategies as st
from text_data import IM_END, qwen

from dflash_core.conversation import Conversation, Turn
from dflash_core.errors import ContextError, DFlashError, TemplateError
from dflash_core.events import Piece, PrefillEvent, StepEvent
from dflash_core.knobs import Knobs
from dflash_core.messages import Message
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting
from dflash_core.text.template import ChatTemplate
from dflash_core.turn_stats import FoundRow, StepTotals


def test_a_turn_streams_its_text_and_joins_the_conversation() -> None:
    conversation = start("Hello, world! 🙂")
    turn = conversation.ask("Hi", KNOBS)
    assert contents(conversation) == [("user", "Hi")]
    pieces = list(turn)
    assert "".join(piece.text for piece in pieces) == turn.text == "Hello, world! 🙂"
    assert len(pieces) > 3
    assert isinstance(pieces[0].event, PrefillEvent)
    assert contents(conversation) == [("user", "Hi"), ("assistant", "Hello, world! 🙂")]
    assert conversation.messages[1].report is turn.report
    assert list(turn) == []


def test_the_report_sums_the_turn_up() -> None:
    turn = start("one two three four").ask("Hi", KNOBS)
    steps = [piece.event for piece in turn][1:]
    report = turn.report
    assert report is not None
    assert report.text == "one two three four"
    assert report.tokens == (*TINY.encode("one two three four"), IM_END)
    assert (report.mode, report.reason, report.stop, report.knobs) == ("tree", "as asked", "stop token", KNOBS)
    assert report.learned == (FoundRow("first choice", 1, 0.9, 0.8, 0.7),)
    assert report.stats.steps == len(steps)
    assert report.stats.tokens == len(report.tokens)
    assert report.stats.acceptance_length == pytest.approx((len(report.tokens) - 1) / len(steps))
    assert (report.stats.prompt_tokens, report.stats.reused_tokens) == (len(turn.prompt.ids), 2)
    assert report.stats.ttft_ms == 5.0
    assert report.stats.decode_s > 0
    assert report.stats.tokens_per_second > 0


def test_the_rate_counts_all_the_time_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: what happened between two steps was in the times by stage and not in the rate."""
    clock = itertools.count()
    monkeypatch.setattr("dflash_core.answer.time.perf_counter", lambda: float(next(clock)))
    turn, pieces = start("one two three four").ask("Hi", KNOBS), list[Piece]()
    for piece in turn:
        pieces.append(piece)
        next(clock)  # the reader's own time
    assert turn.report is not None
    stats = turn.report.stats
    assert stats.decode_s == pieces[-1].at - pieces[0].at >= 2 * stats.steps
    assert stats.tokens_per_second == (stats.tokens - 1) / stats.decode_s


def test_the_end_of_a_turn_counts_no_step_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are counted while the next one runs. A client that streams would wait for a count at the end."""
    counted, add = list[StepEvent](), StepTotals.add

    def counting(totals: StepTotals, step: StepEvent) -> None:
        counted.append(step)
        add(totals, step)

    monkeypatch.setattr(StepTotals, "add", counting)
    turn = start("one two three four five six").ask("Hi", KNOBS)
    steps, last = 0, False
    while not last:
        event = next(iter(turn)).event
        steps, last = steps + isinstance(event, StepEvent), event.stop is not None
    before = len(counted)
    assert list(turn) == []
    assert turn.report is not None
    assert turn.report.stats.steps == steps > 3
    assert len(counted) == before == steps


def test_a_turn_without_a_seed_draws_one_and_says_which() -> None:
    conversation = start("a", "a", "a")
    reports = []
    for knobs in (Knobs(temperature=1.0), Knobs(temperature=1.0), Knobs(temperature=1.0, seed=7)):
        turn = conversation.retry(knobs) if reports else conversation.ask("Hi", knobs)
        list(turn)
        assert turn.report is not None
        assert turn.record is not None
        assert engine_of(conversation).calls[-1][1].seed == turn.report.knobs.seed == turn.record.knobs.seed
        assert turn.report.to_json()["seed"] == turn.report.knobs.seed >= 0
        assert turn.report.asked == knobs
        reports.append(turn.report)
    assert reports[0].knobs.seed != reports[1].knobs.seed
    assert [report.seed_source for report in reports] == ["random", "random", "fixed"]
    assert reports[0].draws == f"seed {reports[0].knobs.seed}"
    assert reports[2].draws == "seed 7, fixed"
    assert conversation.ask("Hi", KNOBS).knobs.seed == 0


def test_what_a_change_makes_it_read_again_is_known_before_and_said_after() -> None:
    """The fake engine reuses two tokens of any prompt."""
    conversation = start("a", "a", "a", "a", "a", system="Be brief.")
    assert conversation.reading(KNOBS) is None
    list(conversation.ask("Why? " * 40, KNOBS))
    assert conversation.reading(KNOBS) is None
    windowed = conversation.reading(KNOBS.replace(attention_window=64))
    assert windowed is not None
    assert windowed.tokens == windowed.known > 40
    assert windowed.why == "attention window changed"
    conversation.system = "Be long."
    found = conversation.reading(KNOBS)
    assert found is not None
    assert 40 < found.tokens < found.known
    assert found.why == "the system message changed"
    turn = conversation.ask("And?", KNOBS)
    list(turn)
    assert turn.report is not None
    stats = turn.report.stats
    assert (stats.read_again, stats.read_why) == (found.known - 2, "the system message changed")
    assert turn.report.to_json()["stats"]["read_again"] == stats.read_again
    assert turn.record is not None
    assert turn.record.prefill is not None
    assert turn.record.prefill.read_again == stats.read_again
    unchanged = conversation.ask("And?", KNOBS)
    list(unchanged)
    assert unchanged.report is not None
    assert not unchanged.report.stats.read_again
    conversation.set_messages([Message("user", "Another")])
    assert conversation.reading(KNOBS) is None, "another conversation is not read again"


def test_half_a_surrogate_pair_is_replaced() -> None:
    conversation = start("a", "a", system="b\ud83d")
    turn = conversation.ask("a\ud83d", KNOBS)
    list(turn)
    assert turn.record is not None
    assert (turn.record.start.prompt, turn.record.start.system) == ("a?", "b?")
    conversation.set_messages([Message("user", "\udc80"), Message("assistant", "\ud83d", "\ud83d")])
    list(conversation.ask("b", KNOBS))
    assert contents(conversation)[:2] == [("user", "?"), ("assistant", "?")]


def test_an_answer_of_one_token() -> None:
    turn = start("").ask("Hi", KNOBS)
    pieces = list(turn)
    assert (len(pieces), turn.text) == (1, "")
    assert turn.report is not None
    assert (turn.report.tokens, turn.report.stop, turn.report.stats.steps) == ((IM_END,), "stop token", 0)


def test_reasoning_is_told_from_the_answer() -> None:
    conversation = start("because\n</think>\n\nYes.")
    turn = conversation.ask("Why?", THINKING)
    pieces = list(turn)
    assert (turn.thinking, turn.text) == ("because", "Yes.")
    assert ("".join(p.thinking for p in pieces), "".join(p.text for p in pieces)) == ("because", "Yes.")
    assert conversation.messages[-1].thinking == "because"
    assert turn.report is not None
    assert (turn.report.thinking, turn.report.text) == ("because", "Yes.")


def test_the_next_prompt_holds_the_answer_without_its_reasoning() -> None:
    conversation = start("because\n</think>\n\nYes.", "No.", system="Be brief.")
    list(conversation.ask("Why?", THINKING))
    turn = conversation.ask("Sure?", KNOBS)
    assert turn.prompt.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
        "<|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    list(turn)
    ids, knobs, keep = engine_of(conversation).calls[1]
    assert (tuple(ids), knobs, keep) == (turn.prompt.ids, KNOBS, [turn.prompt.stable])


WORDS = st.lists(st.sampled_from(["a", " ", "\n", "<think>", "</think>", "<|im_end|>", "é", "12", "<"])).map("".join)


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from([qwen(), CHATML]), st.lists(st.tuples(WORDS, WORDS, WORDS, st.booleans()), min_size=2, max_size=4)
)
def test_what_is_kept_begins_the_next_prompt(template: ChatTemplate, turns: list[tuple[str, str, str, bool]]) -> None:
    messages: list[Message] = []
    before = None
    for question, thinking, answer, think in turns:
        messages.append(Message("user", question))
        prompt = build_prompt(Prompting(TINY, template, think), messages)
        if before is not None:
            assert before.stable > 0
            assert prompt.ids[: before.stable] == before.ids[: before.stable]
        before = prompt
        messages.append(Message("assistant", answer, thinking))


def test_all_but_the_opening_of_the_answer_is_kept() -> None:
    prompt = build_prompt(Prompting(TINY, qwen(), True), [Message("system", "S"), Message("user", "Hi")])
    assert TINY.decode(prompt.ids[: prompt.stable]) == "system\nS\nuser\nHi\n"
    assert prompt.opens_thinking


def test_a_template_that_moves_the_system_prompt_keeps_less() -> None:
    moving = ChatTemplate(
        "{% for m in messages if m.role != 'system' %}<|im_start|>"
        "{% if loop.last %}{{ messages[0].content }}{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    prompt = build_prompt(Prompting(TINY, moving, False), [Message("system", "S"), Message("user", "Hi")])
    assert prompt.stable == 1


def test_a_template_for_other_roles_is_refused() -> None:
    """It would ask the model nothing; what it does with a system message does not matter."""
    human = ChatTemplate("{% for m in messages if m.role in ('system', 'human') %}{{ m.content }}{% endfor %}GPT:")
    for messages in ([Message("user", "Hi")], [Message("system", "S"), Message("user", "a")]):
        with pytest.raises(TemplateError, match="leaves out messages of the role user, expected one for the roles"):
            build_prompt(Prompting(TINY, human, False), messages)
    conversation = start(template=human)
    with pytest.raises(TemplateError):
        conversation.ask("Hi", KNOBS)
    assert conversation.messages == ()


def test_a_template_that_will_not_render_a_next_turn_keeps_nothing() -> None:
    single = ChatTemplate(
        "{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}{{ messages[0].content }}"
    )
    conversation = start("Ho", template=single)
    turn = conversation.ask("Hi", KNOBS)
    assert turn.prompt.stable == 0
    list(turn)
    assert engine_of(conversation).calls[0][2] == []


def test_retry_answers_the_same_question_again() -> None:
    conversation = start("first", "second", system="S")
    first = conversation.ask("Hi", KNOBS)
    list(first)
    turn = conversation.retry(KNOBS.replace(temperature=1.0))
    assert turn.prompt == first.prompt
    list(turn)
    assert contents(conversation) == [("system", "S"), ("user", "Hi"), ("assistant", "second")]


def test_retry_that_does_not_fit_changes_nothing() -> None:
    conversation = start("first")
    list(conversation.ask("Hi", KNOBS))
    before = conversation.messages
    engine_of(conversation).context_length = 4
    with pytest.raises(ContextError):
        conversation.retry(KNOBS)
    assert conversation.messages == before


def test_retry_of_nothing_is_refused() -> None:
    with pytest.raises(DFlashError, match="nothing to retry"):
        start(system="S").retry(KNOBS)


def test_a_prompt_over_the_context_is_refused_and_not_added() -> None:
    conversation = start("yes")
    engine_of(conversation).context_length = 40
    with pytest.raises(ContextError, match=r"has \d+ tokens .* holds 40"):
        conversation.ask("word " * 40, KNOBS)
    assert conversation.messages == ()
    exact = len(build_prompt(Prompting(TINY, qwen(), False), [Message("user", "Hi")]).ids)
    engine_of(conversation).context_length = exact
    with pytest.raises(ContextError):
        conversation.ask("Hi", KNOBS)
    engine_of(conversation).context_length = exact + 1
    assert "".join(piece.text for piece in conversation.ask("Hi", KNOBS)) == "yes"


def test_megabytes_are_refused_for_the_context_before_the_template_sees_them() -> None:
    source = "{% for m in messages %}{% if m.content|length > 99999 %}{{ raise_exception('too long') }}{% endif %}"
    conversation = start("yes", template=ChatTemplate(source + "{{ m.content|trim }}{% endfor %}"))
    with pytest.raises(ContextError, match=r"tokens at least and the context holds .*; shorten the message"):
        conversation.ask("word " * 2_000_000, KNOBS)
    assert conversation.messages == ()
    with pytest.raises(TemplateError, match="too long"):  # only the template may refuse it
        conversation.ask("word" + " " * 10_000_000, KNOBS)


def test_a_template_that_raises_does_not_add_the_question() -> None:
    conversation = start(template=ChatTemplate("{{ raise_exception('never') }}"))
    with pytest.raises(TemplateError, match="never"):
        conversation.ask("Hi", KNOBS)
    assert conversation.messages == ()
    assert engine_of(conversation).calls == []


def test_reset_and_set_messages() -> None:
    conversation = start("one", "two", system="S")
    list(conversation.ask("Hi", KNOBS))
    saved = conversation.messages
    conversation.reset()
    assert contents(conversation) == [("system", "S")]
    conversation.system = ""
    assert conversation.messages == ()
    conversation.set_messages(saved)
    assert conversation.system == "S"
    conversation.system = "T"
    list(conversation.ask("And?", KNOBS))
    assert [text for _, text in contents(conversation)] == ["T", "Hi", "one", "And?", "two"]


def test_a_turn_that_outlives_its_conversation_is_not_added_to_the_next() -> None:
    conversation = start("one two three")
    turn = conversation.ask("Hi", KNOBS)
    for number, _ in enumerate(turn):
        if number == 1:
            conversation.reset()
    assert conversation.messages == ()
    assert turn.text == "one two three"
    assert turn.report is not None


def test_prefill_progress_is_passed_on() -> None:
    seen: list[tuple[int, int]] = []
    turn = start("yes").ask("Hi", KNOBS, on_prefill=lambda done, total: seen.append((done, total)))
    list(turn)
    assert seen == [(len(turn.prompt.ids),) * 2]


def test_a_stop_during_prefill_reaches_an_engine_that_had_not_begun_to_listen() -> None:
    conversation = start("one two three")
    turns: list[Turn] = []
    turns.append(conversation.ask("Hi", KNOBS, on_prefill=lambda done, total: turns[0].stop()))
    assert len(list(turns[0])) == 1
    assert turns[0].report is not None
    assert turns[0].report.stop == "cancelled"


def test_a_stop_that_the_engine_missed_is_repeated_with_the_next_step() -> None:
    class DeafEngine(FakeEngine):
        asked = 0

        def cancel(self) -> None:
            self.asked += 1
            if self.asked > 1:
                super().cancel()

    turn = Conversation(DeafEngine("one two three four five"), TINY, qwen()).ask("Count", KNOBS)
    for number, _ in enumerate(turn):
        if number == 0:
            turn.stop()
    assert turn.report is not None
    assert turn.report.stop == "cancelled"


def test_template_notice() -> None:
    assert start().template.notice is None
    notice = start(template=CHATML).template.notice
    assert notice is not None
    assert "ChatML" in notice


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=30), st.text(max_size=30), st.integers(1, 5))
def test_text_does_not_depend_on_the_width_of_the_steps(thinking: str, answer: str, width: int) -> None:
    output = f"{thinking}\n</think>\n\n{answer}"
    wide, narrow = FakeEngine(output, width=64), FakeEngine(output, width=width)
    turns = [Conversation(engine, TINY, qwen()).ask("Hi", THINKING) for engine in (wide, narrow)]
    for turn in turns:
        list(turn)
    assert (turns[0].text, turns[0].thinking) == (turns[1].text, turns[1].thinking)
    assert turns[0].report is not None
    assert turns[1].report is not None
    assert turns[0].report.tokens == turns[1].report.tokens
