"""Messages in the form that a template takes, whatever a client sends; parts of requests that need no engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_core.arch.recommended import recommended
from dflash_core.knobs import Knobs
from dflash_core.limits import Limits
from dflash_core.messages import Call, Message
from dflash_core.text.reasoning import Reasoning
from dflash_core.text.tool_calls.answer import StopStrings
from dflash_core.text.tool_calls.support import ToolSupport
from dflash_tui.server.asked import Asked
from dflash_tui.server.parts import normalised
from dflash_tui.server.request_error import RequestError
from dflash_tui.server.sampling import Defaults, knobs_of, nearest

STRICT = ToolSupport(renders=True, consecutive=True)
USER, SYSTEM = Message("user", "q"), Message("system", "s")
CALLED = Message("assistant", "", calls=(Call("1", "f", {}),))
SAID = Message("assistant", "a")
RESULT = Message("tool", "r", call_id="1")


def text(message: str) -> str:
    return f"<system>\n{message}\n</system>"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([SYSTEM, SYSTEM, USER], [Message("system", "s\n\ns"), USER]),
        ([USER, SYSTEM], [Message("user", "q\n\n" + text("s"))]),
        ([USER, SAID, SYSTEM, USER], [USER, SAID, Message("user", text("s")), USER]),
        ([USER, CALLED, RESULT, SYSTEM], [USER, CALLED, Message("tool", "r\n\n" + text("s"), call_id="1")]),
        ([USER, CALLED, SYSTEM, RESULT], [USER, CALLED, Message("tool", "r\n\n" + text("s"), call_id="1")]),
        (
            [USER, CALLED, SYSTEM, CALLED, SAID, SYSTEM, RESULT],
            [USER, CALLED, replace(CALLED, content="a"), replace(RESULT, content=f"r\n\n{text('s')}\n\n{text('s')}")],
        ),
        ([USER, USER], [USER, USER]),
        (
            [USER, Message("assistant", "", "t"), Message("assistant", "a"), CALLED, RESULT],
            [USER, Message("assistant", "a", "t", calls=CALLED.calls), RESULT],
        ),
        (
            [USER, Message("assistant", "<think>\nt\n</think>\n\na"), USER],
            [USER, Message("assistant", "a", "t"), USER],
        ),
        ([USER, Message("assistant", "say <think> a </think>"), USER], None),
        # A history behind a summary, and the turn with a tool after it.
        ([SYSTEM, SAID], [SYSTEM, SAID, Message("user", "continue")]),
        ([SYSTEM, SAID, CALLED, RESULT], [SYSTEM, SAID, Message("user", "continue"), CALLED, RESULT]),
    ],
)  # fmt: skip
def test_messages_keep_their_places(given: list[Message], expected: list[Message] | None) -> None:
    assert list(normalised(given, STRICT)) == (expected if expected is not None else given)


def test_templates_that_can_take_more_get_it_as_it_is() -> None:
    late = [USER, Message("assistant", "a"), SYSTEM, USER]
    assert list(normalised(late, ToolSupport(late_system=True, consecutive=True))) == late
    assert list(normalised([USER, USER], ToolSupport())) == [Message("user", "q\n\nq")]


def test_a_greeting_has_a_user_message_before_it_where_roles_must_alternate() -> None:
    for first in ([], [SYSTEM]):
        given = [*first, SAID, USER]
        assert list(normalised(given, ToolSupport())) == [*first, Message("user", ""), SAID, USER]
        assert list(normalised(given, STRICT)) == given


@pytest.mark.parametrize("wrong", [[], [SYSTEM], [USER, SAID, CALLED], [CALLED, RESULT]])
def test_what_has_no_question_is_refused(wrong: list[Message]) -> None:
    with pytest.raises(RequestError) as refused:
        normalised(wrong, STRICT)
    assert refused.value.param == "messages"


@given(st.text("ab ", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_a_stop_string_does_not_depend_on_the_pieces(answer: str, strings: list[str], data: st.DataObject) -> None:
    found = [answer.find(one) for one in strings if one in answer]
    expected = answer[: min(found)] if found else answer
    stops = StopStrings(strings)
    said, at = "", 0
    while at < len(answer):
        size = data.draw(st.integers(1, 5))
        said += stops.push(answer[at : at + size])
        assert expected.startswith(said)
        at += size
    said += stops.finish()
    assert said == expected
    assert bool(stops.found) == bool(found)
    assert stops.dropped == len(answer) - len(expected)


def test_the_model_file_recommends_and_the_user_decides() -> None:
    file: dict[str, Any] = {
        "general.sampling.temp": 0.6, "general.sampling.top_k": 40, "general.sampling.top_p": 7.0, "general.name": "m",
    }  # fmt: skip
    found = recommended(file)
    assert found.plain == {"temperature": 0.6, "top_k": 40}
    limits = Limits(None, 100)

    def knobs(defaults: Defaults, asked: Asked | None = None) -> Knobs:
        return knobs_of(asked or Asked(), defaults, limits, 50)

    assert knobs(Defaults(recommended=found)).temperature == 0.6
    assert knobs(Defaults(recommended=found), Asked(thinking="on")).temperature == 0.6
    chosen = Defaults(Knobs(temperature=0.1), frozenset({"temperature"}), found)
    assert (knobs(chosen).temperature, knobs(chosen).top_k) == (0.1, 40)
    assert knobs(chosen, Asked(changes={"temperature": 1.5})).temperature == 1.5
    assert knobs(Defaults(chosen=frozenset({"temperature"}), recommended=found)).top_k == 0  # greedy, all of it
    qwen = Defaults(recommended=recommended({"general.name": "Qwen3.5-27B"}))
    assert (knobs(qwen).temperature, knobs(qwen).presence_penalty) == (0.7, 1.5)
    assert knobs(qwen, Asked(thinking="on")).temperature == 1.0
    assert knobs(Defaults(greedy=True)).temperature == 0
    assert knobs(Defaults()).temperature == 0.7
    assert knobs(Defaults(), Asked(thinking="on")).temperature == 1.0


def test_limits_are_clamped_and_reasoning_leaves_half() -> None:
    limits, defaults = Limits(None, 1000), Defaults()
    assert knobs_of(Asked(), defaults, limits, 600).max_tokens == 600
    assert knobs_of(Asked(max_tokens=32_000), defaults, limits, 600).max_tokens == 600
    assert knobs_of(Asked(max_tokens=5), defaults, limits, 600).max_tokens == 5
    assert knobs_of(Asked(thinking="on"), defaults, limits, 600).thinking_budget == 300
    small = Asked(thinking="on", changes={"thinking_budget": 20})
    assert knobs_of(small, defaults, limits, 600).thinking_budget == 20
    assert knobs_of(Asked(), defaults, limits, 600).answer_loop_guard == "off"
    wide = Limits(None, 1000, reasoning=Reasoning(accepted=("low", "high"), levels=("low", "high")))
    assert knobs_of(Asked(thinking="on", effort="xhigh"), defaults, wide, 600).reasoning_effort == "high"


def test_the_nearest_level_is_taken() -> None:
    assert nearest("medium", ("low", "high")) == "low"
    assert nearest("xhigh", ("low", "medium")) == "medium"
    assert nearest("low", ("low", "high")) == "low"
