"""What a terminal sends as a paste arrives as one, whatever stands in it and however it is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._xterm_parser import XTermParser
from textual.events import Key, Paste
from textual.message import Message

from dflash_tui.terminal.key_order import _LONGER, BEGIN, END, PasteParser

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
    """After the mark that begins it, which terminals send in one piece."""
    whole = COLOURED + END + "z"
    cuts = [0, *sorted(set(places)), len(whole)]
    pieces = [whole[a:b] for a, b in itertools.pairwise(cuts) if b > a]
    assert fed(PasteParser(), BEGIN, *pieces) == [f"pasted {PLAIN}", "z"]


@pytest.mark.parametrize("text", ["", "ESC", f"{BEGIN} inside"])
def test_odd_pastes(text: str) -> None:
    assert fed(PasteParser(), f"{BEGIN}{text}{END}") == ["pasted " + text.replace(BEGIN, "")]


def test_more_keys_begin_with_what_we_wait_behind() -> None:
    assert {keys[:2] for keys in ANSI_SEQUENCES_KEYS if keys[0] == "\x1b" and len(keys) > 2} == _LONGER


LETTERS = "abcdefghijklmnopqrstuvwxyzABKOPX019,./[é"
ALT = [f"\x1b{letter}" for letter in LETTERS]
OTHERS = ["a", "Z", "é", "\r", "\x1b[A", "\x1b[1;3D", "\x1b[1;2A", "\x1bOP", "\x1b[15~", "\x1b[107;3u", "\x1b[<0;3;4M"]


def alone(*keys: str) -> list[str]:
    """What Textual makes of each key where a pause follows it."""
    found: list[str] = []
    for key in keys:
        parser = XTermParser()
        found += fed(parser, key)
        if parser._timeout_time is not None:
            parser._timeout_time = 0.0
            found += told(list(parser.tick()))
    return found


def at_once(*pieces: str) -> list[str]:
    """The keys and pastes from pieces that come without a pause, except after the last."""
    parser = PasteParser()
    found = fed(parser, *pieces)
    for _ in range(2):  # the driver's tick after the read, and one after a pause
        if parser._timeout_time is not None:
            parser._timeout_time = 0.0
        found += told(list(parser.tick()))
    return found


def test_alt_keys_are_known_alone() -> None:
    assert alone("\x1bk", "\x1bj", "\x1bK", "\x1b[A") == ["alt+k", "alt+j", "alt+shift+k", "up"]
    assert fed(XTermParser(), "\x1bk\x1bj") != ["alt+k", "alt+j"], "Textual has mended it: pasting.py may have less"


@pytest.mark.parametrize("first", ALT)
def test_two_keys_in_one_read(first: str) -> None:
    """Alt and a letter, and whatever follows; Esc, [ and a letter are a key of their own."""
    followers = [*ALT, *(other for other in OTHERS if other[0] == "\x1b" or first[1] not in "[O")]
    for second in followers:
        for at in range(len(first + second) + 1):
            pieces = [piece for piece in ((first + second)[:at], (first + second)[at:]) if piece]
            assert at_once(*pieces) == alone(first, second), pieces


@pytest.mark.parametrize("key", ["\x1bk", "\x1bO", "\x1b[", "\x1b[1;3D"])
def test_a_key_that_is_held(key: str) -> None:
    assert at_once(key * 40) == alone(key) * 40
    assert at_once(*key * 40) == alone(key) * 40, "byte by byte"


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.sampled_from([*(one for one in ALT if one[1] not in "[O"), *(one for one in OTHERS if one != "\r")]),
        max_size=12,
    ),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_keys_however_they_are_cut(keys: list[str], places: list[int]) -> None:
    whole = "".join(keys)
    cuts = [0, *sorted({place for place in places if 0 < place < len(whole)}), len(whole)]
    assert at_once(*(whole[a:b] for a, b in itertools.pairwise(cuts) if b > a)) == alone(*keys)


def test_the_end_of_the_stream_ends_it() -> None:
    parser = PasteParser()
    assert fed(parser, "a", "") == ["a"]
    assert parser.is_eof


@pytest.mark.parametrize(
    "pieces",
    [
        ("def f():\r    return 1\rf()",),
        ("def f():\r", "    return 1\rf()"),  # cut behind a line end: the first part alone is a line and Enter
        ("def f():\r    re", "turn 1", "\rf()"),
        ("\rone\r\rtwo\r",),
        ("one\r\ntwo\t3\nend",),
    ],
)
def test_lines_that_come_at_once_are_a_paste(pieces: tuple[str, ...]) -> None:
    """As terminals send a paste that they do not mark."""
    assert at_once(*pieces) == [f"pasted {''.join(pieces)}"]


@pytest.mark.parametrize("text", ["hi\r", "hi\r\r", "\r\r\r", "\ra", "abc"])
def test_a_line_and_enter_are_keys(text: str) -> None:
    """As programs that type into a terminal send them."""
    assert at_once(text) == alone(*text)


def test_a_key_behind_lines_that_come_at_once() -> None:
    """It comes alone, so it is pressed: after the text, and Enter sends that."""
    assert at_once("one\rtwo", "\r") == ["pasted one\rtwo", "enter"]
    assert at_once("one\rtwo", "\x1b[A") == ["pasted one\rtwo", "up"]
    assert at_once("one\rtwo", f"{BEGIN}x{END}") == ["pasted one\rtwo", "pasted x"]


@pytest.mark.parametrize("text", ["\u00a0", "\u3000", "\u2009", "\u200c", "\u200d", "\u00ad", "\uf8ff", "\U0003ffff"])
def test_every_character_that_is_typed_arrives(text: str) -> None:
    """Also by the keyboard protocol of newer terminals."""
    assert at_once(text) == [f"pasted {text}"]
    assert at_once(f"\x1b[{ord(text)};;{ord(text)}u") == [f"pasted {text}"]
    assert at_once("a\x07\x85") == alone("a", "\x07", "\x85"), "control characters are no text"
