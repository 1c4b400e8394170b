"""The store of snapshots: pages are shared, the least recently used go first, and the cap of bytes holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dflash_core.snapshots.base import Snapshot
from dflash_core.snapshots.store import SnapshotStore, default_cap

PAGE, ROW, STATE = 8, 16, 100


@dataclass(frozen=True)
class Point:
    length: int

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (torch.full((STATE,), self.length % 100, dtype=torch.uint8),)

    @property
    def nbytes(self) -> int:
        return STATE


def put(store: SnapshotStore, tokens: Sequence[int], space: str = "a") -> bool:
    """Store rows that hold, for each position, its token."""

    def rows(begin: int, end: int) -> tuple[Tensor, ...]:
        return (torch.tensor(tokens[begin:end], dtype=torch.uint8)[:, None].expand(-1, ROW).contiguous(),)

    return store.put(space, tokens, Point(len(tokens)), rows)


def check(snapshot: Snapshot) -> None:
    """It covers its tokens, with rows of these very tokens."""
    rows = torch.cat([page.tensors[0] for page in snapshot.pages])
    assert rows[:, 0].tolist() == [token % 256 for token in snapshot.tokens.tolist()]
    assert snapshot.state.length == len(snapshot.tokens)


def test_the_longest_beginning_is_found() -> None:
    store, whole = SnapshotStore(1 << 20, PAGE), list(range(50))
    for length in (10, 24, 33):
        assert put(store, whole[:length])
    for asked, length in ((50, 33), (33, 33), (32, 24), (24, 24), (23, 10), (9, 0)):
        found = store.find("a", whole[:asked])
        assert (found[1] if found else 0) == length
        if found:
            check(found[0])
    assert store.find("b", whole) is None
    assert store.find("a", [7, *whole]) is None


def test_any_beginning_where_sequences_can_be_cut() -> None:
    store, whole = SnapshotStore(1 << 20, PAGE), list(range(50))
    put(store, whole[:33])
    put(store, [*whole[:20], 200, 201, 202, 203])
    for asked, length in (
        (whole[:50], 33),
        (whole[:21], 21),
        ([*whole[:20], 200, 201, 9], 22),
        ([*whole[:3], 99], 3),
        ([99], 0),
    ):
        found = store.find("a", asked, cut=True)
        assert (found[1] if found else 0) == length, asked


def test_pages_are_shared() -> None:
    store, whole = SnapshotStore(1 << 20, PAGE), list(range(40))
    put(store, whole)
    alone = store.nbytes
    put(store, [*whole[:32], 99])
    assert store.nbytes - alone == STATE + ROW
    assert put(store, whole)
    assert store.nbytes == alone + STATE + ROW, "it was there"
    put(store, whole, "b")
    assert store.nbytes == 2 * alone + STATE + ROW
    store.clear()
    assert (store.nbytes, len(store), store.find("a", whole)) == (0, 0, None)


def test_what_keeping_a_sequence_would_copy() -> None:
    store, whole = SnapshotStore(1 << 20, PAGE), list(range(20))
    assert store.missing("a", whole) == [(0, 8), (8, 16), (16, 20)]
    put(store, whole)
    assert store.has("a", whole)
    assert store.missing("a", whole) == []
    assert store.missing("a", [*whole, 7]) == [(16, 21)]
    assert not store.has("a", whole[:16])
    assert not store.has("b", whole)


def test_what_was_asked_after_counts_as_used() -> None:
    size = STATE + PAGE * ROW
    store = SnapshotStore(2 * size, PAGE)
    first, second, third = ([base] * PAGE for base in (1, 2, 3))
    put(store, first)
    put(store, second)
    assert store.has("a", first)
    put(store, third)
    assert [store.has("a", tokens) for tokens in (first, second, third)] == [True, False, True]


def test_the_least_recently_used_goes_first() -> None:
    size = STATE + 2 * PAGE * ROW
    store = SnapshotStore(3 * size, PAGE)
    first, second, third, fourth = ([base] * 2 * PAGE for base in (1, 2, 3, 4))
    for tokens in (first, second, third):
        assert put(store, tokens)
    assert store.find("a", first) is not None
    put(store, fourth)
    assert [store.find("a", tokens) is not None for tokens in (first, second, third, fourth)] == [
        True,
        False,
        True,
        True,
    ]
    assert store.nbytes == 3 * size
    assert not put(store, [5] * 12 * PAGE), "larger than all there is"
    assert len(store) == 3, "and nothing goes for it"


def test_nothing_is_kept_without_room() -> None:
    store = SnapshotStore(0, PAGE)
    assert not put(store, [1, 2, 3])
    assert not put(SnapshotStore(1 << 20, PAGE), [])
    assert 0 < default_cap() <= 8 << 30


def test_a_snapshot_made_elsewhere_is_kept() -> None:
    store, other = SnapshotStore(1 << 20, PAGE), SnapshotStore(1 << 20, PAGE)
    put(store, range(20))
    found = store.find("a", range(20))
    assert found is not None
    assert other.add("a", found[0])
    assert other.nbytes == store.nbytes
    check(other.find("a", range(30))[0])  # type: ignore[index]
    assert not SnapshotStore(1 << 20, PAGE + 1).add("a", found[0]), "cut into other pages"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.booleans()), max_size=30),
    st.integers(0, 4000),
)
def test_the_cap_holds_whatever_is_put(work: list[tuple[int, int, bool]], most: int) -> None:
    """And what is found is what was put; forgotten pages are gone."""
    store = SnapshotStore(most, PAGE)
    for base, length, ask in work:
        tokens = [base if at < 12 else base * 50 + at for at in range(length)]
        if ask:
            if (found := store.find("a", tokens)) is not None:
                assert found[0].tokens.tolist() == tokens[: found[1]]
                check(found[0])
        else:
            put(store, tokens)
        assert store.nbytes <= most
        kept = list(store.snapshots("a"))
        pages = {id(page): page.nbytes for one in kept for page in one.pages}
        assert store.nbytes == sum(pages.values()) + STATE * len(kept)


def test_what_a_conversation_begins_with_goes_after_it() -> None:
    """An agent's system message and tools (root), its turns, and side requests between them."""
    size = STATE + PAGE * ROW
    store = SnapshotStore(5 * size, PAGE)
    root = [1] * PAGE
    turns = [[*root, *([at] * PAGE * at)] for at in range(1, 4)]
    for tokens in (root, *turns[:2]):
        assert put(store, tokens)
    for side in range(20, 24):  # each needs a place of its own
        assert put(store, [side] * PAGE)
        assert store.find("a", [*turns[1], 9]) is not None, "the newest turn is used again"
    assert store.has("a", root)
    assert not store.has("a", turns[0])
    assert put(store, turns[2])
    assert store.has("a", root), "nor does the turn that comes next take its place"
    assert store.nbytes <= store.max_bytes


def test_a_beginning_of_nothing_goes_by_its_age() -> None:
    size = STATE + PAGE * ROW
    store = SnapshotStore(3 * size, PAGE)
    root = [1] * PAGE
    put(store, root)
    put(store, [2] * PAGE, "b")
    put(store, [*root, 2], "b")  # of another pair
    put(store, [3] * PAGE)
    assert not store.has("a", root)
    store = SnapshotStore(2 * size, PAGE)
    put(store, root)
    assert put(store, [*root, *[4] * PAGE]), (
        "shares its page, and the place of a root is free for it if there is no other"
    )
    assert put(store, [5] * 2 * PAGE)
    assert store.nbytes <= store.max_bytes
