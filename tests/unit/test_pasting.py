"""What a terminal sends as a paste arrives as one, whatever stands in it and however it is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual._xterm_parser import XTermParser
from textual.events import Key, Paste
from textual.message import Message

from dflash_tui.pasting import BEGIN, END, PasteParser

COLOURED = "A\r\nB \x1b[1;31mred\x1b[0m C\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\rD \x1b"
PLAIN = "A\r\nB red Clink\rD "


def told(events: list[Message]) -> list[str]:
    """Keys by their name, pastes by their text."""
    return [
        event.key if isinstance(event, Key) else f"pasted {event.text}"
        for event in events
        if isinstance(event, (Key, Paste))
    ]


def fed(parser: XTermParser, *pieces: str) -> list[str]:
    return told([event for piece in pieces for event in parser.feed(piece)])


def test_a_coloured_paste_is_one_event() -> None:
    assert fed(PasteParser(), f"a{BEGIN}{COLOURED}{END}b{BEGIN}2{END}") == ["a", f"pasted {PLAIN}", "b", "pasted 2"]


@settings(deadline=None)
@given(st.lists(st.integers(0, len(COLOURED + END)), max_size=6))
def test_however_it_is_cut(places: list[int]) -> None:
    """Behind the mark that begins it, which terminals send in one piece."""
    whole = COLOURED + END + "z"
    cuts = [0, *sorted(set(places)), len(whole)]
    pieces = [whole[a:b] for a, b in itertools.pairwise(cuts) if b > a]
    assert fed(PasteParser(), BEGIN, *pieces) == [f"pasted {PLAIN}", "z"]


@pytest.mark.parametrize("text", ["", "ESC", f"{BEGIN} inside"])
def test_odd_pastes(text: str) -> None:
    assert fed(PasteParser(), f"{BEGIN}{text}{END}") == ["pasted " + text.replace(BEGIN, "")]


def test_keys_are_textuals_own() -> None:
    keys = ["a", "\x1b[A", "\x1bt", "\x1b[<0;3;4M", "é", "\x1b[15~"]
    textual = XTermParser()
    expected = told([event for key in keys for event in textual.feed(key)])
    assert "up" in expected
    assert fed(PasteParser(), *keys) == expected


def test_the_end_of_the_stream_ends_it() -> None:
    parser = PasteParser()
    assert fed(parser, "a", "") == ["a"]
    assert parser.is_eof
