"""A model that forgets to close its reasoning, and calls from within it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tool_calls import BY_NAME, EXPECTED, ONE, TOOLS, calls, text

from dflash_core.text.thinking import ThinkingSplit
from dflash_core.text.tool_calls.answer import AnswerParts
from dflash_core.text.tool_calls.parts import Part, Thinking, merged

FORMS = ("hermes", "qwen xml", "gemma")


def read(form: str, pieces: list[str], *, cut: bool = False) -> list[Part]:
    """The parts of an answer that begins inside the reasoning."""
    split, answer = ThinkingSplit(start_inside=True), AnswerParts(BY_NAME[form], TOOLS)
    parts: list[Part] = []
    for piece in pieces:
        parts += answer.push(*split.push(piece))
    return merged([*parts, *answer.push(*split.finish()), *answer.finish(cut=cut)])


def thinking(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Thinking))


@pytest.mark.parametrize("form", FORMS)
def test_a_call_of_a_known_tool_ends_the_reasoning(form: str) -> None:
    parts = read(form, [f"I look.\n\n{ONE[form]}\n{ONE[form]}"])
    assert calls(parts) == EXPECTED * 2
    assert (thinking(parts).strip(), text(parts)) == ("I look.", "")
    parts = read(form, [f"I look.\n</think>\n\n{ONE[form]}"])
    assert calls(parts) == EXPECTED
    assert (thinking(parts), text(parts)) == ("I look.", "")


@pytest.mark.parametrize("form", FORMS)
def test_other_markup_in_the_reasoning_is_reasoning(form: str) -> None:
    begins = BY_NAME[form].begins
    unknown = ONE[form].replace('"f"', '"h"').replace("=f>", "=h>").replace(":f{", ":h{")
    for said in (f"A call begins with {begins}, they say.", unknown, f"{begins}\nnothing like it\n", begins):
        parts = read(form, [f"{said}\n</think>\n\nDone."])
        assert calls(parts) == []
        assert (thinking(parts).strip(), text(parts)) == (said.strip(), "Done.")
    parts = read(form, [f"It begins with {begins} as ever.\n\n{ONE[form]}"])
    assert calls(parts) == EXPECTED
    assert thinking(parts).strip() == f"It begins with {begins} as ever."


def test_a_call_that_is_cut_off_in_the_reasoning_is_none() -> None:
    begun = ONE["qwen xml"][: ONE["qwen xml"].index("5")]
    for cut in (False, True):
        parts = read("qwen xml", [f"so\n{begun}"], cut=cut)
        assert calls(parts) == []
        assert thinking(parts) == f"so\n{begun}"
    whole = ONE["qwen xml"].removesuffix("\n</function>\n</tool_call>")
    assert calls(read("qwen xml", [whole])) == EXPECTED, "all its values are there"
    assert calls(read("qwen xml", [whole], cut=True)) == []


def test_harmony_needs_none_of_this() -> None:
    split = AnswerParts(BY_NAME["harmony"], TOOLS)
    assert split.push("so", ONE["harmony"])[0] == Thinking("so")


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_parts_do_not_depend_on_how_the_answer_is_cut(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(FORMS))
    pieces = [ONE[form], BY_NAME[form].begins, "a", "\n", "</think>", ONE[form][:-9], ONE[form].replace("f", "h"), "<"]
    answer = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=8)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(answer)), max_size=12)))
    cut = data.draw(st.booleans())
    parts = [answer[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(answer)])]
    assert read(form, parts, cut=cut) == read(form, [answer], cut=cut) == read(form, list(answer), cut=cut)
