"""Text that is safe to show, and error lines of a bounded length."""

from __future__ import annotations

import json
import logging
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dflash_core.clean import LINE, clean, escaped, lines, marked, one_line, stripped
from dflash_core.errors import DFlashError, KernelError
from dflash_tui.application import log
from dflash_tui.application.advice import fault
from dflash_tui.application.conversations.branches import Branches, Node
from dflash_tui.application.conversations.store import Card, StoredConversation
from dflash_tui.terminal.output import Notes, write_err
from dflash_tui.text.pages import to_svg

EVERY = "".join(map(chr, range(0x3000))) + "\ud800 \udfff\ufeff\ufffd\ufffe\uffff😀"
LONG = "found " + "x" * 599_511 + ", expected less"


def obeyed(text: str) -> set[str]:
    """Characters of a text that a terminal obeys, or that turn its writing direction."""
    kinds = {one: unicodedata.category(one) for one in set(text) - {"\n"}}
    turns = {one for one in kinds if unicodedata.bidirectional(one) in ("LRE", "RLE", "LRO", "RLO", "PDF")}
    isolates = {one for one in kinds if unicodedata.bidirectional(one) in ("LRI", "RLI", "FSI", "PDI")}
    return turns | isolates | {one for one, kind in kinds.items() if kind in ("Cc", "Cs", "Zl", "Zp")}


def test_no_character_that_a_terminal_obeys_is_left() -> None:
    assert len(obeyed(EVERY)) > 70
    for safe in (clean(EVERY), one_line(EVERY, 100_000), lines(EVERY, 100_000), stripped(EVERY), escaped(EVERY)):
        assert not obeyed(safe)
    assert obeyed(marked(EVERY)) == {"\t"}
    assert len(marked(EVERY)) == len(EVERY)


def test_what_is_harmless_stays() -> None:
    harmless = "plain text, größer, 漢字, עברית, 😀\nnext line"
    assert clean(harmless) == lines(harmless) == stripped(harmless) == marked(harmless) == harmless


def test_json_keeps_its_value() -> None:
    assert json.loads(escaped(json.dumps({"a": EVERY}, ensure_ascii=False))) == {"a": EVERY}


def test_one_line_keeps_both_ends() -> None:
    assert one_line("a\n b\t c\r\n") == "a b c"
    short = one_line(LONG)
    assert len(short) == LINE
    assert short.startswith("found xxx")
    assert "x…x" in short
    assert short.endswith("xxx, expected less")
    assert one_line("x" * LINE) == "x" * LINE
    assert one_line(" " * 10_000 + "x" + " " * 10_000) == "…"


@pytest.mark.parametrize("error", [DFlashError(LONG), KernelError(LONG, reload=True), DFlashError(f"a\n{EVERY}")])
def test_an_error_is_one_line_of_at_most_500(error: DFlashError, capsys: pytest.CaptureFixture[str]) -> None:
    write_err(f"dflash-tui: {error}")
    [line] = capsys.readouterr().err.splitlines()
    assert len(line) <= LINE
    assert not obeyed(line)
    assert line == f"dflash-tui: {error}"  # not shortened twice


def test_faults_notes_and_the_log_are_bounded_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(fault(ValueError(LONG))) <= LINE
    Notes().line(f"{LONG}\n{EVERY}")
    log.begin("info", path=tmp_path / "log")
    log.LOG.error("not loaded: %s\n%s", LONG, EVERY)
    try:
        raise ValueError(LONG + EVERY)
    except ValueError as error:
        log.LOG.error("fault", exc_info=error)
    logging.shutdown()
    for text in (capsys.readouterr().err, (tmp_path / "log").read_text(encoding="utf-8")):
        assert "found xxx" in text
        assert max(map(len, text.split("\n"))) <= LINE
        assert not obeyed(text)


def test_a_picture_of_hostile_text_is_well_formed() -> None:
    entities = "".join(f"&#{code};" for code in (1, 12, 27, 155, 0x202E, 0xD800, 0xFFFE))
    question = Node("user", EVERY)
    answer = Node(
        "assistant", f"{EVERY}\n\n{entities} [{EVERY[:32]}](http://x/{EVERY[:32]})", question.id, EVERY, EVERY
    )
    card = Card(EVERY, model=EVERY)
    svg = to_svg(StoredConversation(card, Branches([question, answer], answer.id)))
    assert len(list(ElementTree.fromstring(svg).iter())) > 10
    assert not obeyed(svg)
