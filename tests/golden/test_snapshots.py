"""Conversations resume at once: state that a session is about to lose is kept, found again by its tokens, and equals
that of a fresh read, drafter included. On the CPU; tests/gpu/test_snapshots_card.py is for cards."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.backends.opened import Session, Target
from dflash_core.events import PrefillEvent
from dflash_core.snapshots.base import Rows, Snapshot, SnapshotError
from dflash_core.snapshots.store import LOG, SnapshotStore
from support.golden import other_targets
from support.mtp_files import with_head
from support.shallow import shallow, shallow_draft

GREEDY = Knobs(drafting="tree 6", temperature=0.0, max_tokens=6)
PAGE = 32


@cache
def loaded(name: str) -> Target:
    if name == "mtp":
        import tempfile

        return load_target(with_head(Path(tempfile.mkdtemp()) / "whole.gguf"))
    return load_target(shallow(name) if name.startswith("tiny") else other_targets(name)[0])


def drafted(name: str, kind: str) -> Any:
    if not kind:
        return None
    path: Any = {"dflash": shallow_draft(), "q3-dflash": other_targets("q3-dflash")[0]}.get(kind, kind)
    path = other_targets(kind)[0] if kind.endswith(".gguf") else path
    return load_draft(path, loaded(name))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(13)


PAIRS = [
    ("tiny-F16.gguf", ""), ("tiny-F16.gguf", "dflash"), ("tiny-F16.gguf", "ngram"),
    pytest.param("mtp", "mtp", marks=pytest.mark.full), ("mtp", "mtp+ngram"), ("q3-F16.gguf", "q3-dflash"),
    ("gemma4-e-F16.gguf", "gemma4-e-assistant-F16.gguf"),
]  # fmt: skip


def prompts(rng: np.random.Generator, *lengths: int) -> list[list[int]]:
    return [[int(token) for token in rng.integers(0, 250, length)] for length in lengths]


def read(engine: Engine, ids: Sequence[int], keep: Sequence[int] = ()) -> tuple[int, list[int]]:
    """Answer a prompt: how many of its tokens were reused, and the answer."""
    events = list(engine.generate(ids, GREEDY.replace(mode="tree" if engine.draft else "plain"), keep=keep))
    assert isinstance(events[0], PrefillEvent)
    return events[0].reused_tokens, [token for event in events for token in event.tokens]


def same(session: Session, fresh: Session, *, exact: bool = False) -> None:
    """Two sessions give the same next logits, and their drafters the same drafts."""
    assert session.length == fresh.length
    bound = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-4, "atol": 2e-4}
    if session.capabilities is not None and session.capabilities.kind not in ("ngram", "mtp+ngram"):
        np.testing.assert_allclose(session.draft(7, 0), fresh.draft(7, 0), **bound)
    tree = [3, 4, 5], [-1, 0, 0]
    np.testing.assert_allclose(session.verify(*tree), fresh.verify(*tree), **bound)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_two_conversations_and_back(name: str, kind: str, rng: np.random.Generator) -> None:
    """Each conversation goes on with its own text; only what is new is read, and the state equals a fresh read."""
    a, b, more = prompts(rng, 150, 100, 9)
    engine = Engine(loaded(name), drafted(name, kind), states=SnapshotStore(1 << 30, PAGE))
    fresh = Engine(loaded(name), drafted(name, kind), states=SnapshotStore(0))
    _, said = read(engine, a, keep=[140])
    _, other = read(engine, b, keep=[90])
    longer = [*a, *said, *more]
    reused, answer = read(engine, longer)
    assert reused == len(a) + len(said) - 1, "all but the last token drawn, which was not yet run"
    _, expected = read(fresh, longer)
    assert answer == expected
    same(engine.session, fresh.session)
    reused, _ = read(engine, [*b, *other, *more])
    assert reused == len(b) + len(other) - 1
    fresh.reset()
    read(fresh, [*b, *other, *more])
    same(engine.session, fresh.session)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_an_early_edit_goes_on_from_the_longest_boundary(name: str, kind: str, rng: np.random.Generator) -> None:
    """More boundaries than a session holds by itself; attention alone goes back to any place."""
    (whole,) = prompts(rng, 200)
    engine = Engine(loaded(name), drafted(name, kind), states=SnapshotStore(1 << 30, PAGE))
    boundaries = list(range(20, 200, 20))
    read(engine, whole, keep=boundaries)
    for edited in (31, 95, 179):
        ids = [*whole[:edited], 251, *whole[edited + 1 :]]
        reused, answer = read(engine, ids, keep=boundaries)
        anywhere = not engine.target.config.recurrent
        assert reused == (edited if anywhere else max(n for n in boundaries if n <= edited))
        fresh = Engine(loaded(name), drafted(name, kind), states=SnapshotStore(0))
        assert answer == read(fresh, ids)[1]
        same(engine.session, fresh.session)


@pytest.mark.parametrize(("name", "kind"), [("tiny-F16.gguf", "dflash"), ("q3-F16.gguf", "q3-dflash")])
def test_what_is_kept_already_is_not_copied_again(
    name: str, kind: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Back and forth between two conversations that say nothing new; room is made for what leaving one would take."""
    a, b = prompts(rng, 70, 50)
    engine = Engine(loaded(name), drafted(name, kind), states=SnapshotStore(1 << 30, PAGE))
    copied, room = list[int](), list[tuple[Any, int]]()
    plain = engine.session.checkpoint
    monkeypatch.setattr(engine.session, "checkpoint", lambda: copied.append(engine.session.length) or plain())
    monkeypatch.setattr(engine.session, "reserve_host_memory", lambda spans, most: room.append((spans, most)))
    said = [read(engine, one)[1] for one in (a, b)]
    assert [spans for spans, _ in room] == [[(0, 32), (32, 64), (64, 75)], [(0, 32), (32, 55)]]
    assert room[0][1] > room[1][1] > 0
    assert copied == [75]
    assert [read(engine, one)[1] for one in (a, b, a)] == [said[0], said[1], said[0]]
    assert copied == [75, 55], "both were kept when they were left for the first time"
    assert room[-1][0] == []


def test_a_restored_state_is_the_one_that_was_kept(rng: np.random.Generator) -> None:
    """Bit for bit, where nothing is read after it."""
    (ids,) = prompts(rng, 130)
    engine, other = (Engine(loaded("tiny-F16.gguf"), drafted("tiny-F16.gguf", "dflash")) for _ in range(2))
    engine.session.prefill(ids)
    other.session.prefill(ids[:40])  # it held something else
    other.session.resume(taken(engine.session, ids))
    same(other.session, engine.session, exact=True)


def taken(session: Session, ids: Sequence[int], page: int = PAGE) -> Snapshot:
    spans = [(begin, min(begin + page, len(ids))) for begin in range(0, len(ids), page)]
    pages = tuple(Rows(begin, end, session.rows(begin, end)) for begin, end in spans)
    return Snapshot(np.asarray(ids, np.int32), pages, session.checkpoint())


def test_the_next_engine_goes_on_where_this_one_was(rng: np.random.Generator) -> None:
    """A reload, with a longer context: the store outlives the engine."""
    store = SnapshotStore(1 << 30, PAGE)
    ids, more = prompts(rng, 100, 9)
    engine = Engine(loaded("tiny-F16.gguf"), drafted("tiny-F16.gguf", "dflash"), context_length=256, states=store)
    _, said = read(engine, ids)
    engine.leave()
    longer = Engine(loaded("tiny-F16.gguf"), drafted("tiny-F16.gguf", "dflash"), context_length=512, states=store)
    assert read(longer, [*ids, *said, *more])[0] == len(ids) + len(said) - 1
    plain = Engine(loaded("tiny-F16.gguf"), context_length=512, states=store)
    assert read(plain, [*ids, *said, *more])[0] == 0, "another pair's states are none of its"


def test_experiments_leave_the_state_where_it_was(rng: np.random.Generator) -> None:
    a, b = prompts(rng, 120, 80)
    engine = Engine(loaded("tiny-F16.gguf"), drafted("tiny-F16.gguf", "dflash"))
    _, said = read(engine, a, keep=[100])
    kept = len(engine.snapshots.store)
    with engine.scratch():
        read(engine, b, keep=[70])
    assert engine.session.length == len(a) + len(said) - 1
    assert len(engine.snapshots.store) - kept <= 2, "what was tried is not kept"
    fresh = Engine(loaded("tiny-F16.gguf"), drafted("tiny-F16.gguf", "dflash"))
    fresh.session.prefill([*a, *said[:-1]])
    same(engine.session, fresh.session)


def test_a_snapshot_that_does_not_fit_is_dropped_and_read_again(
    rng: np.random.Generator, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = prompts(rng, 100, 60)
    engine = Engine(loaded("tiny-F16.gguf"), drafted("tiny-F16.gguf", "dflash"))
    _, said = read(engine, a, keep=[90])
    read(engine, b)
    snapshots = engine.snapshots
    page = next(snapshots.store.snapshots(snapshots.space)).pages[-1]
    monkeypatch.setattr(type(engine.session), "rows", lambda self, begin, end: page.tensors[:1])
    LOG.addHandler(caplog.handler)  # also after a command line has set up the program's log
    reused, answer = read(engine, [*a, *said, 5])
    LOG.removeHandler(caplog.handler)
    assert reused == 0
    found = snapshots.store.find(snapshots.space, [*a, *said])
    assert found is not None
    assert found[1] == 90, "the other one of this conversation"
    assert "a stored state is dropped, its conversation is read again" in caplog.text
    monkeypatch.undo()
    assert answer == read(Engine(loaded("tiny-F16.gguf")), [*a, *said, 5])[1]


@pytest.mark.parametrize("damage", ["pages", "tensors", "shape", "type", "order", "state", "empty"])
def test_what_is_not_of_this_model_is_refused(damage: str, rng: np.random.Generator) -> None:
    (ids,) = prompts(rng, 70)
    engine = Engine(loaded("tiny-F16.gguf"), drafted("tiny-F16.gguf", "dflash"))
    engine.session.prefill(ids)
    whole = taken(engine.session, ids)
    first, *rest = whole.pages
    short = tuple(tensor[:, :-1] for tensor in first.tensors)
    pages, state = {
        "pages": (tuple(rest), whole.state),
        "tensors": ((Rows(0, PAGE, first.tensors[:-1]), *rest), whole.state),
        "shape": ((Rows(0, PAGE, short), *rest), whole.state),
        "type": ((Rows(0, PAGE, tuple(tensor.half() for tensor in first.tensors)), *rest), whole.state),
        "order": ((*rest, first), whole.state),
        "state": (whole.pages, type(whole.state)(70, [])),  # type: ignore[call-arg]
        "empty": ((), whole.state),
    }[damage]
    with pytest.raises(SnapshotError):
        engine.session.resume(Snapshot(whole.tokens, pages, state))
    assert engine.session.length == 0
    engine.session.resume(whole)
    assert engine.session.length == 70
