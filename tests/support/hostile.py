"""A text that attacks a terminal, and the check that a terminal receives none of its control codes."""

from __future__ import annotations

import os
import re
import sys
import threading
import tty
from collections.abc import Callable
from pathlib import Path

import pytest

SEEN = "hostile"  # an output that shows the text contains this word
MARKUP = "[@click=app.quit]quit[/]"
HOSTILE = (
    f"{SEEN}\x1b]52;c;aGk=\x07\x1b]0;owned\x07\x1b]777;notify;a;b\x1b\\\x1b[31337m\x1b[2J\x9b31337m\x90q\x9c\x9d0;owned\x07"
    f"\u202e\u2066\x7f\x08\x00\ud800\uffff{MARKUP}"
)
TEXT = HOSTILE.replace("\ud800", "")  # where UTF-8 is kept
NAME = TEXT.translate(dict.fromkeys(map(ord, "\x00\\/")))  # of a file
# Codes that Textual and `Notes` write themselves: the cursor, colours, modes, the shape of the pointer.
_OURS = re.compile(r"\x1b\[[0-9;:]*[ABCDHJKm]|\x1b\[[?<>=][0-9;]*[hlu]|\x1b[78]|\x1b\]22;[a-z-]*\x07")
_OBEYED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufffe\uffff]")


def assert_harmless(data: bytes, *, seen: int = 1) -> None:
    """Assert that the bytes sent to a terminal contain the text, at least `seen` times, and none of its codes."""
    text = data.decode("utf-8")  # not even half a character
    assert text.count(SEEN) >= seen, f"the text never came this way: {text[-2000:]!r}"
    assert "31337m" not in "".join(_OURS.findall(text))
    left = _OURS.sub("", text).replace("\r", "")
    found = _OBEYED.search(left)
    assert found is None, f"{found[0]!r} in {left[max(found.start() - 200, 0) : found.end() + 50]!r}"
    assert "\x1b[2J" not in text.partition(SEEN)[2]


def on_a_terminal(run: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> tuple[int, bytes]:
    """Run something with both outputs on a terminal: its exit code, and every byte that the terminal got."""
    master, slave = os.openpty()
    tty.setraw(slave)  # no translation of line ends
    parts: list[bytes] = []

    def read() -> None:
        while True:
            try:
                part = os.read(master, 1 << 16)
            except OSError:  # Linux says so when the other end has closed
                return
            if not part:
                return
            parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with open(slave, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            patch.setattr(sys, "stderr", stream)
            try:
                code = run()
            except SystemExit as error:  # argparse
                code = int(error.code or 0)
    finally:
        reader.join(600)  # the whole output, on however slow a machine
        os.close(master)
    return code, b"".join(parts)


def replaced_template(source: Path, target: Path, template: str) -> Path:
    """A copy of a GGUF file with another chat template, of the same length in bytes."""
    data = source.read_bytes()
    key = b"tokenizer.chat_template"
    at = data.index(key) + len(key) + 4
    length = int.from_bytes(data[at : at + 8], "little")
    new = template.encode()
    assert len(new) <= length
    target.write_bytes(data[: at + 8] + new.ljust(length) + data[at + 8 + length :])
    return target
