"""Long texts as a few words: whatever is shown stands for the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_tui.application.pasted import ENDS, LIMIT, MAX_REMOVED, SMALL, Pasted, clipped, ends


def test_a_short_text_is_shown_as_it_is_and_a_long_one_by_its_ends() -> None:
    pasted = Pasted()
    assert pasted.shown("x" * LIMIT) == "x" * LIMIT
    assert pasted.taken("x" * SMALL, LIMIT) == "x" * SMALL
    assert pasted.taken("x" * (LIMIT - 7), 7) == "x" * (LIMIT - 7)
    text = "Explain this: " + "word " * LIMIT + "\nWhat does it mean?"
    shown = pasted.shown(text)
    assert shown.startswith("Explain this: word ")
    assert "[pasted 1: 320kB]" in shown
    assert shown.endswith("kB]\nWhat does it mean?")
    assert len(shown) < 3 * ENDS
    assert pasted.whole(shown) == text


def test_a_text_in_one_word_has_no_ends() -> None:
    assert ends("x" * LIMIT) == ("", "x" * LIMIT, "")
    assert clipped("x" * 10_000_000) == ("", "[10MB more]", "")
    assert clipped("a few words") == ("a few words", "", "")


@pytest.mark.parametrize("first", [0, 1])
def test_what_was_pasted_gets_its_words_again(first: int) -> None:
    """Also where one text is a part of another, and where the words of one stand in another."""
    pasted = Pasted()
    inner = "inner " * LIMIT
    texts = [inner, f"before {inner} after"]
    words = [pasted.put(text) for text in (texts if first == 0 else texts[::-1])]
    words = words if first == 0 else words[::-1]
    for word, text in zip(words, texts, strict=True):
        assert pasted.shown(f"Look: {text}\nWhy?") == f"Look: {word}\nWhy?"
    quoting = pasted.put(f"{words[0]} is no paste here. " * LIMIT)
    assert pasted.whole(f"{quoting} {words[1]}") == f"{words[0]} is no paste here. " * LIMIT + f" {texts[1]}"


def test_texts_that_nothing_can_bring_back_are_let_go() -> None:
    pasted = Pasted()
    first = pasted.put("first")
    words = [pasted.put(str(number)) for number in range(2 * MAX_REMOVED)]
    pasted.keep(f"{first} and more")
    assert [*pasted.texts] == [first, *words[-MAX_REMOVED:]]


PARTS = st.tuples(st.sampled_from(["word ", "\n", "x", "äß", "[pasted "]), st.sampled_from([1, 50, 900, 30_000]))


@given(st.lists(st.lists(PARTS, max_size=6), max_size=12))
def test_whatever_is_folded_comes_back(texts: list[list[tuple[str, int]]]) -> None:
    pasted, before = Pasted(), ""
    for parts in texts:
        text = before + "".join(part * count for part, count in parts)
        shown = pasted.shown(text)
        assert pasted.whole(shown) == text
        assert len(shown) <= LIMIT
        before = text if len(text) < 4 * LIMIT else ""
