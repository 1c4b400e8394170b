"""Marks for a terminal without Unicode."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

import dflash_tui
from dflash_tui.terminal import output

output.register_marks()
FOLDER = Path(dflash_tui.__file__).parent
WORDS = re.compile(r'"[^"\n]*[^\x00-\x7f][^"\n]*"')


def test_every_mark_that_the_app_draws_has_one_of_ascii() -> None:
    drawn = {mark for path in FOLDER.rglob("*.py") for text in WORDS.findall(path.read_text("utf-8")) for mark in text}
    for mark in sorted(one for one in drawn if not one.isascii() and one != "\ufffd"):
        shown = mark.encode("ascii", output.MARKS).decode()
        assert shown != "?", f"{mark} U+{ord(mark):04X}"
        assert len(shown) == cell_len(mark)


def test_taken_and_in_vain_differ() -> None:
    assert "✓ ✗ ◆ ★".encode("ascii", output.MARKS) == b"v x @ *"
    assert "é".encode("latin-1", output.MARKS) == b"\xe9", "what the locale has stays"
    assert "日本".encode("ascii", output.MARKS) == b"??"


def test_bytes_are_not_its_business() -> None:
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", output.MARKS)
