from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_core.text.thinking import ThinkingSplit, opens_thinking

# Output, whether it begins inside a block, reasoning, answer.
CASES = [
    ("", False, "", ""),
    ("", True, "", ""),
    ("Hello.", False, "", "Hello."),
    ("why\n</think>\n\nHello.", True, "why", "Hello."),
    ("\n\nwhy\nnot\n\n</think>Hello.", True, "why\nnot", "Hello."),
    ("<think>\nwhy\n</think>\n\nHello.\n", False, "why", "Hello.\n"),
    (" \n<think>why</think>Hello.", False, "why", "Hello."),
    ("<think>\n\n</think>\n\nHello.", False, "", "Hello."),
    ("\n</think>\n\nHello.", True, "", "Hello."),
    ("cut off\n", True, "cut off\n", ""),
    ("cut off</thi", True, "cut off</thi", ""),
    ("<thi", False, "", "<thi"),
    ("\n Hello", False, "", "\n Hello"),
    ("why</think>\n\n", True, "why", ""),
    ("why</think>\n ", True, "why", " "),
    ("a <think> tag and a </think> tag", False, "", "a <think> tag and a </think> tag"),
    ("a <think> tag</think>yes</think>", True, "a <think> tag", "yes</think>"),
    ("one</think>\n<think>two</think>Hello.", True, "one\n\ntwo", "Hello."),
    ("one</think>\nYes.\n<think>\ntwo\n</think>\n\nNo.", True, "one\n\ntwo", "Yes.\nNo."),
    ("Yes.\n\n<think>\ntwo", False, "two", "Yes.\n\n"),
    ("one</think>Yes.\n</think>\nNo.\n</think>\n", True, "one", "Yes.\nNo.\n</think>\n"),
    ("</think>\n\nHello.</think>", False, "", "Hello.</think>"),
    ("</think></think>\nHello.", True, "", "Hello."),
    ("</think>\n\n" * 5, True, "", "</think>\n\n" * 3),
    ("<think>\n</think>\n" * 4, False, "", "<think>\n<think>\n</think>\n"),
    ("Yes.\n</think>\nNo.", False, "", "Yes.\n</think>\nNo."),
    ("```\n<think>\n</think>\n```\n<think>\nhm\n</think>\nNo.", False, "hm", "```\n<think>\n</think>\n```\nNo."),
    ("Yes.\n<think> is\n  <think>", False, "", "Yes.\n<think> is\n"),
    ("a < b </ c </thin </think>d", True, "a < b </ c </thin ", "d"),
    ("a\n\nb\n</think", True, "a\n\nb\n</think", ""),
]


def run(pieces: list[str], start_inside: bool) -> tuple[str, str]:
    split = ThinkingSplit(start_inside)
    parts = [*(split.push(piece) for piece in pieces), split.finish()]
    return "".join(thinking for thinking, _ in parts), "".join(answer for _, answer in parts)


@pytest.mark.parametrize(("output", "inside", "thinking", "answer"), CASES)
def test_split_at_every_two_positions(output: str, inside: bool, thinking: str, answer: str) -> None:
    for first in range(len(output) + 1):
        for second in range(first, len(output) + 1):
            pieces = [output[:first], output[first:second], output[second:]]
            assert run(pieces, inside) == (thinking, answer), pieces
    assert run(list(output), inside) == (thinking, answer)


@given(st.lists(st.sampled_from(["<", "think", "/think", ">", "<think>", "</think>", "\n", " ", "a"])), st.booleans())
def test_character_by_character_equals_at_once(parts: list[str], inside: bool) -> None:
    output = "".join(parts)
    assert run(list(output), inside) == run([output], inside) == run(parts, inside)


@given(st.lists(st.sampled_from(["<", "think", "</think", "\n", "a b"])), st.booleans())
def test_nothing_but_tags_and_line_breaks_is_lost(parts: list[str], inside: bool) -> None:
    output = "".join(parts)
    thinking, answer = run(parts, inside)
    assert (thinking + answer).replace("\n", "") == output.replace("\n", "")


def test_text_is_not_held_back_longer_than_needed() -> None:
    split = ThinkingSplit(start_inside=True)
    assert split.push("so <") == ("so ", "")
    assert split.push("b\n") == ("<b", "")
    assert split.push("</think>") == ("", "")
    assert split.push("\n\nHi <th") == ("", "Hi <th")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n", False),
        ("what does <think> mean?<|im_end|>\n<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_prompts_that_open_a_block(prompt: str, expected: bool) -> None:
    assert opens_thinking(prompt) is expected
