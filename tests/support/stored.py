"""Conversations and turns for tests of the store."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from dflash_core.events import Piece, PrefillEvent, StageTimes, StepDrafts, StepEvent, StepTree
from dflash_core.knobs import Knobs
from dflash_core.record import Line, Start, TurnRecord, pack
from dflash_core.turn_stats import TurnReport, turn_stats
from dflash_tui.application.conversations.branches import Node
from dflash_tui.application.conversations.journal import Journal, Place
from dflash_tui.application.conversations.store import Card, Store, schema, title_of

Kept = TypeVar("Kept", Card, Node)
NOON = 1_767_355_200.0  # of 2 January 2026, in seconds since 1970

KNOBS = Knobs(drafting="auto up to 33", p_min=0.1, temperature=0.7, seed=2**63 - 1, max_tokens=99)
PREFILL = PrefillEvent((7,), 12, 4, 21.5, "tree", "auto takes the tree for now")
STEP = StepEvent(
    tokens=(8, 9),
    tree=StepTree((7, 8, 5), (-1, 0, 0), (0, 1, 1), (1.0, 0.9, 0.05), (1.0, 0.9, 0.05), (0, 1)),
    drafted_depth=1,
    accepted_depth=1,
    length=15,
    stages=StageTimes(1.5, 0.25, 8.0, 0.125, 0.5),
    mode="tree",
    reason="auto takes the tree for now",
    stop="stop token",
    drafts=StepDrafts(((8, 5),), ((-0.105, -3.0),)),
    bonus=9,
    knobs=KNOBS,
)
TEXTS = {5: " no", 7: "Yes", 8: ",", 9: " it is"}


def a_report(text: str = "Yes, it is", knobs: Knobs = KNOBS) -> TurnReport:
    """The report of a turn of one step."""
    stats = turn_stats(PREFILL, [STEP], 0.125)
    return TurnReport(text, "a thought", (7, 8, 9), "tree", PREFILL.reason, "stop token", knobs, stats)


def a_turn() -> TurnRecord:
    """The stored record of a turn of one step."""
    start = Start("2026-01-02T03:04:05Z", "target.gguf", "draft", "", "Is it?", (1, 2, 3), KNOBS, 16)
    pieces = (Piece(PREFILL, "Yes", at=0.02), Piece(STEP, ", it is", at=0.15))
    return TurnRecord(start, pieces, a_report(), TEXTS, ended=True)


def talk(store: Store, *texts: str, title: str = "", ids: Iterator[str] | None = None) -> tuple[Card, list[Node]]:
    """A conversation of alternating messages, the user's first; with `ids` it has the same ids in each run."""

    def of(one: Kept) -> Kept:
        return one if ids is None else replace(one, id=next(ids), created=NOON)

    card = of(Card(title or title_of(texts[0]), model="demo pair"))
    store.begin(card)
    nodes: list[Node] = []
    for place, text in enumerate(texts):
        nodes.append(of(Node("assistant" if place % 2 else "user", text, nodes[-1].id if nodes else None)))
        store.add(card.id, nodes[-1])
    return card, nodes


def stored_file(folder: Path, talks: Iterable[Sequence[str]]) -> bytes:
    """The file of a store with these conversations, titled "number 0" and so on, and a record of each first answer.

    The bytes are the same in each run, so that damage has the same effect in each run.
    """
    ids = (f"{number:016x}" for number in itertools.count(0x1234567890ABCDEF, 0x0123456789ABCD))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema.time, "time", lambda: NOON)  # when a migration was made
        store = Store(folder)
        for number, texts in enumerate(talks):
            _, nodes = talk(store, *texts, title=f"number {number}", ids=ids)
            store.keep(nodes[1].id, pack(a_turn()))
        assert store.close()
    return (folder / "conversations.db").read_bytes()


def killed_app(
    folder: Path, draft: str = "", waiting: Iterable[str] = (), place: Place | None = None, lines: Iterable[Line] = ()
) -> None:
    """What an app leaves in its data folder when it is killed in the middle of a turn."""
    store = Store(folder)
    journal = Journal(store, folder / "journal")
    journal.typed(draft, waiting)
    if place is not None:
        journal.begin(place)
    for line in lines:
        journal.line(line)
    kill(journal)
    assert store.close()


def kill(journal: Journal) -> None:
    """Release the lock, as the system does when a process ends, once everything is written."""
    journal.flush()
    assert journal._lock is not None
    journal._lock.close()


def titles(store: Store, search: str = "") -> list[str]:
    """Of the conversations that a search finds, in the list's order."""
    return [entry.card.title for entry in store.list(search)]
