"""Conversations as files: exports are readable, and those in JSON can be imported again completely."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dflash_core.errors import FormatError
from dflash_core.record import pack
from dflash_tui.application.conversations.branches import Branches, Node
from dflash_tui.application.conversations.exchange import file_name, from_json, import_file, to_json
from dflash_tui.application.conversations.store import Card, Store, StoredConversation
from dflash_tui.application.conversations.store.conversations import ENDING
from dflash_tui.application.conversations.store.rows import MAX_TITLE
from dflash_tui.text.pages import to_markdown, to_svg
from support.stored import a_report, a_turn


def a_conversation() -> StoredConversation:
    """Two answers to one question, and an edited first message; the older answer is the present one."""
    card = Card("Trees & <chains>", "Be brief.", "pair", "c0", 1_700_000_000.0, 1_700_000_100.0)
    question = Node("user", "Why *trees*?\n\n```py\nif a < b: pass\n```", id="q", created=1.0)
    answers = [
        Node("assistant", "Because `x`.\x1b[31m", "q", "hm", "", a_report(), "a1", 2.0),
        Node("assistant", "", "q", "", "failed", None, "a2", 3.0),
    ]
    other = Node("user", "other", id="q2", created=4.0)
    return StoredConversation(card, Branches([question, *answers, other], "a1"), {"a1": pack(a_turn())})


def test_json_there_and_back_is_the_same_conversation(tmp_path: Path) -> None:
    one = a_conversation()
    [read] = from_json(to_json([one]))
    assert (read.card, read.records) == (one.card, one.records)
    assert (read.branches.nodes, read.branches.leaf) == (one.branches.nodes, "a1")
    store = Store(tmp_path)
    assert import_file(store, read) == one.card
    stored = store.stored(one.card.id)
    assert (stored.card, stored.records) == (one.card, one.records)
    assert (stored.branches.nodes, stored.branches.path) == (one.branches.nodes, one.branches.path)
    assert to_json([stored]) == to_json([one])


def test_a_conversation_that_is_there_already_comes_in_as_a_second(tmp_path: Path) -> None:
    store, one = Store(tmp_path), a_conversation()
    import_file(store, one)
    second = import_file(store, one)
    assert second.id != one.card.id
    copy = store.stored(second.id)
    assert [node.content for node in copy.branches.path] == [node.content for node in one.branches.path]
    assert list(copy.records.values()) == list(one.records.values())
    assert not {node.id for node in copy.branches.nodes} & {node.id for node in one.branches.nodes}
    assert len(store.list()) == 2


def spoilt(change: Callable[[dict[str, Any]], object]) -> bytes:
    file = json.loads(to_json([a_conversation()]))
    change(file)
    return json.dumps(file).encode()


def first(file: dict[str, Any]) -> dict[str, Any]:
    conversation: dict[str, Any] = file["conversations"][0]
    return conversation


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda file: file.update(version=2), "an export of version 2; this program reads version 1"),
        (lambda file: file.update(format="other"), "format: found "),
        (lambda file: file.pop("version"), "version"),
        (lambda file: first(file)["messages"][1].update(role="system"), "conversations[0].messages[1].role: found "),
        (lambda file: first(file)["messages"][1].update(created="now"), "messages[1].created"),
        (
            lambda file: first(file)["messages"][1].update(created=1e300),
            "conversations[0].messages[1].created: expected a number <= 253402300799.0",
        ),
        (
            lambda file: first(file)["card"].update(updated=-1),
            "conversations[0].card.updated: expected a number >= 0.0",
        ),
        (lambda file: first(file)["messages"][1].update(id="q"), "two messages have the id 'q'"),
        (lambda file: first(file)["messages"][1].update(parent="a1"), "follows 'a1', which is not before it"),
        (lambda file: first(file)["messages"].pop(0), "follows 'q', which is not before it"),
        (
            lambda file: first(file)["messages"][0].update(role="assistant"),
            "is of the assistant, and none is before it; expected the user's first",
        ),
        (lambda file: first(file)["messages"][1].update(role="user"), "is of the user, like the one before it"),
        (lambda file: first(file)["messages"][3].update(role="assistant"), "is of the assistant"),
        (lambda file: first(file).update(leaf="x"), "ends with 'x'"),
        (lambda file: first(file)["turns"].update(x=[]), "the record of 'x'"),
        (lambda file: first(file)["turns"].update(a1=[]), "the record of 'a1' is not that of one turn"),
        (lambda file: first(file)["turns"]["a1"].pop(0), "the record of 'a1' has a step without its turn"),
        (
            lambda file: first(file)["turns"]["a1"][2]["event"].update(drafted_depth=2**53),
            "the record of 'a1' has a drafted depth of 9,007,199,254,740,992; expected the tree's 1",
        ),
        (lambda file: first(file)["messages"][1]["report"].update(tokens=[]), "message 'a1' has a report of 3 tokens"),
        (
            lambda file: first(file)["messages"][1]["report"]["stats"].update(drafted=10**400),
            "messages[1].report.stats.drafted: expected a whole number <= ",
        ),
        (lambda file: first(file)["turns"]["a1"].extend(first(file)["turns"]["a1"]), "not that of one turn"),
        (lambda file: first(file)["messages"][1]["report"]["knobs"].update(drafting="tree 0"), "drafting"),
        (
            lambda file: first(file)["messages"][1]["report"]["stats"].update(decode_s=1e308),
            "message 'a1' has",
        ),
        (lambda file: first(file)["turns"]["a1"][2]["event"].update(accepted_depth=2**53), "the record of 'a1'"),
        (
            lambda file: first(file)["turns"].update(q=first(file)["turns"]["a1"]),
            "the record of 'q', which is not an answer",
        ),
    ],
)
def test_a_file_that_is_not_right_is_refused_in_one_line(change: Callable[[dict[str, Any]], object], says: str) -> None:
    with pytest.raises(FormatError) as refusal:
        from_json(spoilt(change))
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff\xfe", b"PK\x03\x04", b"[" * 100_000, b'{"a": 1}'])
def test_what_is_no_export_at_all_is_refused(data: bytes) -> None:
    what = "the file is empty" if not data else ""
    with pytest.raises(FormatError, match=f"not an export of conversations: {what}"):
        from_json(data)


def test_markdown_has_the_present_branch() -> None:
    text = to_markdown(a_conversation())
    assert text.startswith(
        "# Trees & <chains>\n\n*pair · 14 November 2023*\n\n## System\n\nBe brief.\n\n## You\n\nWhy *trees*?"
    )
    assert "```py\nif a < b: pass\n```" in text
    assert "<details><summary>Thinking</summary>\n\nhm\n\n</details>\n\nBecause `x`." in text
    assert "acceptance length 2.00" in text
    assert "failed" not in text
    assert "other" not in text


def test_a_picture_shows_every_message_and_fetches_nothing() -> None:
    picture = to_svg(a_conversation())
    texts = "".join(ElementTree.fromstring(picture).itertext()).replace("\xa0", " ")
    for shown in ("Trees & <chains>", "❯ Why *trees*?", "if a < b: pass", "hm", "Because x.", "acceptance length"):
        assert shown in texts
    assert not [word for word in ("url(", "href", "src=", "@import") if word in picture.replace("url(#", "")]
    assert "\x1b" not in picture


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("What is it?", "What-is-it.md"),
        ("../../etc/passwd", "etc-passwd.md"),
        ("…", "conversation.md"),
        ("木", "木.md"),
    ],
)
def test_file_names_are_made_of_words(title: str, name: str) -> None:
    assert file_name(Card(title), "md") == name
    assert len(file_name(Card("word " * 1000), "json")) < 80


@pytest.mark.parametrize("id", ["", " ", "-rf", "all", "a b", "\x1b[2J", "../x", "é", "x" * 65])
def test_an_id_that_no_command_could_name_is_replaced(tmp_path: Path, id: str) -> None:
    store = Store(tmp_path)
    [read] = from_json(spoilt(lambda file: first(file)["card"].update(id=id)))
    card = import_file(store, read)
    assert card.id != id
    [read] = from_json(to_json([StoredConversation(read.card, Branches([Node("user", "text", id=id)]))]))
    assert id not in [node.id for node in store.branches(import_file(store, read).id).nodes]
    for entry in store.list():
        store.delete(store.find(entry.card.id).id)
    assert store.list() == []


def test_a_long_title_is_cut(tmp_path: Path) -> None:
    [read] = from_json(spoilt(lambda file: first(file)["card"].update(title="word\n" * 1_000_000)))
    assert len(read.card.title) == MAX_TITLE
    assert import_file(Store(tmp_path), read).title == read.card.title
    [read] = from_json(spoilt(lambda file: first(file)["card"].update(title=" \n")))
    assert read.card.title == "Why *trees*?"


def test_the_time_of_a_long_conversation_is_that_of_its_messages(tmp_path: Path) -> None:
    """Counted, not timed: no step from message to message is taken more often than there are messages."""
    branches = Branches()
    for number in range(6000):
        branches.add(Node("assistant" if number % 2 else "user", f"message {number}", branches.leaf))
    [read] = from_json(to_json([StoredConversation(Card("long"), branches)]))
    store, shares, steps = Store(tmp_path), [], 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count)
    try:
        card = import_file(store, read, shares.append)
        opened = store.branches(card.id)
    finally:
        sys.setprofile(None)
    assert opened.path == branches.path
    assert shares == [1999 / 6000, 3999 / 6000, 5999 / 6000]
    assert steps < 100 * 6000
    assert [node.id for node in store.ending(card.id)] == [node.id for node in branches.path[-ENDING:]]


@pytest.mark.parametrize("leaf", [None, "0", "1", "4", "7"])
def test_branches_read_at_once_stand_as_if_each_message_was_added(leaf: str | None) -> None:
    parents = [None, "0", "1", "1", "2", None, "5", "0", "4"]
    nodes = [Node("user", "", parent, id=str(number)) for number, parent in enumerate(parents)]
    at_once, one_by_one = Branches(nodes, leaf), Branches()
    for node in nodes:
        one_by_one.add(node)
    if leaf is not None:
        one_by_one.go(leaf)
    for id in map(str, range(len(nodes))):
        for by in (-1, 1):
            assert at_once.switch(id, by) == one_by_one.switch(id, by)
            assert at_once.path == one_by_one.path
    with pytest.raises(ValueError, match="two messages"):
        at_once.add(nodes[3])
