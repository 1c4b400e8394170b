"""A packed cache with its last positions as halves, on the CPU: what a row reads as halves follows from its own
position, in every mode, chunk and state."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.attention_window import AttentionWindow
from dflash_core.backends.base import PREFILL_CHUNK, Logits
from dflash_core.backends.cpu.machine import RECENT_CAPACITY
from dflash_core.backends.cpu.session import CpuSession
from dflash_core.backends.cpu.target import CpuTarget
from dflash_core.backends.opened import Target
from dflash_core.cache_types import F16, CachePair
from dflash_core.drafters.draft import Draft
from dflash_core.events import PrefillEvent
from dflash_core.models.attention import Attention
from dflash_core.models.cache_rows import CODECS, hadamard
from dflash_core.models.kv_cache import KVCache, RecentCache
from dflash_core.models.rows import Inputs, Rows
from dflash_core.snapshots.base import Rows as Page
from dflash_core.snapshots.base import Snapshot, SnapshotError
from dflash_core.snapshots.folder import StateFolder
from dflash_core.snapshots.store import SnapshotStore
from support import demo_pair
from support.golden import golden, other_targets
from support.grids import full

KV = "q4_0/tq3_0+256"  # few bits, so that a position in the wrong form is seen


def ids_of(count: int, seed: int = 1) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, 250, count)]


def stored(rows: torch.Tensor, name: str, *, keys: bool) -> torch.Tensor:
    """What comes back of rows that were packed."""
    codec, turned = CODECS[name], keys and name in ("q5_0", "q4_0", "tq3_0")
    found = codec.unpack(codec.pack(hadamard(rows) if turned else rows), rows.shape[-1], torch.float64)
    return hadamard(found) if turned else found


@pytest.mark.parametrize(("kv", "size", "sinks"), [("q4_0+256", 0, 0), ("q8_0/tq3_0+384", 0, 0), ("q5_0+256", 300, 7)])
def test_a_layer_against_the_definition(kv: str, size: int, sinks: int) -> None:
    """One layer in float64, from its queries, keys and values on: each row reads the same positions as halves, however
    many rows a pass has. With a window of attention too."""
    target = load_target(golden("tiny-F16.gguf"), dtype=torch.float64)
    assert isinstance(target, CpuTarget)
    mixer = next(block.mixer for block in target.model.blk if isinstance(block.mixer, Attention))
    spec, n, rng = mixer.spec, 1100, np.random.default_rng(6)
    names, _, recent = kv.partition("+")
    x = torch.from_numpy(rng.standard_normal((n, target.config.embedding_length)))
    angles = mixer.rotary.angles(torch.arange(n))
    q, gate = mixer.queries(x, angles)
    k, v = mixer.keys_values(x, angles)
    packed = stored(k, names.split("/")[0], keys=True), stored(v, names.split("/")[-1], keys=False)
    turned = names.split("/")[0] in ("q5_0", "q4_0")
    halves = (hadamard(hadamard(k).half().double()) if turned else k.half().double()), v.half().double()
    out, whole = torch.zeros(n, spec.heads, spec.head_dim, dtype=torch.float64), list[float]()
    for at in [*range(0, n, 29), *range(381, 386), *range(509, 514), *range(637, 641)]:
        border = 0
        while at + 1 - (border + 128) >= int(recent):
            border += 128
        seen = [key for key in range(at + 1) if not size or key < sinks or key > at - size]
        rows = [
            torch.stack([two[key >= border][:, key] for key in seen], 1) for two in zip(packed, halves, strict=True)
        ]
        for head in range(spec.heads):
            own = head // (spec.heads // spec.kv_heads)
            weights = torch.softmax(rows[0][own] @ q[head, at] / spec.head_dim**0.5, 0)
            out[at, head] = weights @ rows[1][own]
        whole.append(at)
    expected = mixer.output(out.view(n, -1), gate)[whole]

    for widths in ([1100], [300, 82, 1, 1, 1, 708, 7], [5] * 40 + [150] * 6):
        cache, found = mixer.new_state(CachePair.parse(kv)), list[torch.Tensor]()
        at = 0
        for width in widths:
            rows_of = Rows.of([0] * width, range(-1, width - 1), at, AttentionWindow(size, sinks))
            found.append(mixer(x[at : at + width], Inputs(rows_of, x[at : at + width], cache)))
            cache.commit(at, range(width))
            at += width
        torch.testing.assert_close(torch.cat(found)[whole], expected, rtol=0, atol=1e-9)
    assert isinstance(cache, RecentCache)
    assert cache.first > 0, "halves that are all there would pass as well"
    wrong = mixer(x[-7:], Inputs(Rows.of([0] * 7, range(-1, 6), n - 7), x[-7:], _all_packed(mixer, k, v, names)))
    assert not torch.allclose(wrong, torch.cat(found)[-7:], rtol=0, atol=1e-6), "so would a type that rounds nothing"


def _all_packed(mixer: Attention, k: torch.Tensor, v: torch.Tensor, names: str) -> KVCache:
    cache = mixer.new_cache(CachePair.parse(names))
    cache.store(0, k[:, :-7], v[:, :-7])
    return cache


@cache
def exact() -> CpuTarget:
    """In float64 the order of a sum does not change a code. Attention layers alone."""
    found = load_target(other_targets("q3-F16.gguf")[0], dtype=torch.float64)
    assert isinstance(found, CpuTarget)
    return found


def session(kv: str = KV) -> CpuSession:
    return exact().session(kv=CachePair.parse(kv))


def after(ids: list[int], kv: str = KV) -> Logits:
    """Logits after all of them, read at once."""
    return session(kv).prefill(ids)


@pytest.mark.parametrize("length", [382, 509, 511, 512])
def test_a_tree_is_decoding_its_paths(length: int) -> None:
    """Nodes on both sides of a border, and what follows a commit."""
    tokens, parents = [5, 17, 40, 41, 99, 7], [-1, 0, 0, 1, 1, 4]
    ids = ids_of(length)
    tree, plain, chain = sessions = session(), session(), session()
    for at in range(0, length, 150):
        tree.prefill(ids[at : at + 150])
    chain.prefill(ids)
    plain.prefill(ids[:-1])
    plain.prefill(ids[-1:])
    kept = [one.checkpoint() for one in sessions]
    for path in ([0, 1, 4, 5], [0, 2]):
        for one, point in zip(sessions, kept, strict=True):
            one.restore(point)
        one_by_one = []
        for node in path:
            one_by_one.append(plain.verify([tokens[node]], [-1])[0])
            plain.commit([0])
        one_by_one.append(plain.verify([8], [-1])[0])
        nodes = tree.verify(tokens, parents)
        tree.commit(path)
        found = np.concatenate([nodes[path], tree.verify([8], [-1])])
        assert np.abs(found - np.stack(one_by_one)).max() < 1e-5
        straight = chain.verify([*(tokens[node] for node in path), 8], range(-1, len(path)))
        assert np.abs(straight - np.stack(one_by_one)).max() < 1e-5


def test_a_window_of_halves_is_nearer_to_halves() -> None:
    ids = ids_of(700)
    best = after(ids, "f16")
    far, near = (np.abs(after(ids, kv) - best).max() for kv in ("tq3_0", "tq3_0+512"))
    assert 0 < near < far / 2
    assert np.abs(after(ids[:380], "tq3_0+256") - after(ids[:380], "f16")).max() < 1e-3, "all of them are halves"


def test_what_was_dropped_is_not_cut_to() -> None:
    """A session returns to positions whose halves it has, and refuses the others without a change."""
    ids, one = ids_of(1500), session()
    point = None
    for at in range(0, 1500, 100):
        one.prefill(ids[at : at + 100])
        if one.length == 400:
            point = one.checkpoint()
    assert point is not None
    assert not one.cut(450)
    assert one.length == 1500
    np.testing.assert_allclose(one.prefill([9]), after([*ids, 9]), rtol=0, atol=1e-5)
    assert one.cut(1480)
    np.testing.assert_allclose(one.prefill([9]), after([*ids[:1480], 9]), rtol=0, atol=1e-5)
    for _ in range(2):
        one.restore(point)
        assert one.length == 400
        np.testing.assert_allclose(one.prefill(ids[400:700]), after(ids[:700]), rtol=0, atol=1e-5)
    one.restore(None)
    np.testing.assert_allclose(one.prefill(ids[:500]), after(ids[:500]), rtol=0, atol=1e-5)
    assert one.cut(1)


def test_memory_does_not_grow_with_the_halves() -> None:
    """And is no more than the plan has."""
    pair, taken = CachePair.parse(KV), list[int]()
    for length in (1000, 3000, 5000):
        both, packed = RecentCache(1, 64, torch.float32, pair), KVCache(1, 64, torch.float32, pair.past)
        for at in range(0, length, 50):
            for one in (both, packed):
                one.store(at, *torch.ones(2, 1, 50, 64))
                one.commit(at, range(50))
        taken.append(both.nbytes - packed.nbytes)
    assert taken == [taken[0]] * 3
    assert 0 < taken[0] <= RECENT_CAPACITY * (pair.most_recent + PREFILL_CHUNK) * F16.row_bytes(64)


def test_snapshots_of_every_length() -> None:
    """A state that is stored has the halves that its next row reads. One with others is refused."""
    ids = ids_of(900)
    for length in (5, 300, 900):
        one, other = session(), session()
        for at in range(0, length, 128):
            one.prefill(ids[at : min(at + 128, length)])
        spans = [(at, min(at + 512, length)) for at in range(0, length, 512)]
        pages = tuple(Page(*span, one.rows(*span)) for span in spans)
        whole = Snapshot(np.asarray(ids[:length], np.int32), pages, one.checkpoint())
        other.prefill(ids_of(700, 8))
        other.resume(whole)
        assert other.length == length
        np.testing.assert_allclose(other.prefill([4, 5]), after([*ids[:length], 4, 5]), rtol=0, atol=1e-5)
    with pytest.raises(SnapshotError, match="expected one like"):
        other.state_of(900, [tensor[:, 1:] for tensor in whole.state.tensors])


@cache
def pair(name: str) -> tuple[Target, Draft]:
    if name == "demo":
        return demo_pair.target(), demo_pair.draft()
    found = load_target(other_targets("q3-F16.gguf")[0])
    return found, load_draft(other_targets("q3-dflash")[0], found)


def engine(name: str, kv: str, states: SnapshotStore | None = None) -> Engine:
    return Engine(*pair(name), kv=kv, context_length=1500, states=SnapshotStore(0) if states is None else states)


def answers(one: Engine, ids: list[int], keep: Sequence[int] = (), **values: object) -> tuple[int, list[int]]:
    """Tokens that were reused, and those of the answer."""
    events = list(one.generate(ids, Knobs(max_tokens=12, ignore_eos=True).replace(**values), keep=keep))
    assert isinstance(events[0], PrefillEvent)
    return events[0].reused_tokens, [token for event in events for token in event.tokens]


@pytest.mark.parametrize(
    ("name", "drawn"),
    [("q3", {"temperature": 0.0}), full("q3", {"temperature": 0.9, "seed": 4}), ("demo", {"temperature": 0.0})],
)
def test_every_mode_writes_the_same(name: str, drawn: dict[str, object]) -> None:
    """Across a border, and again after the session went back, also past what it has as halves."""
    one = engine(name, "q4_0+256")
    assert str(one.kv.pair) == "q4_0+256"
    assert "q4_0+256" in next(part.detail for part in one.memory().components if part.name == "target KV")
    ids, first = ids_of(376), dict[str, list[int]]()
    for mode in ("plain", "chain", "tree", "auto") if name == "q3" else ("plain", "tree"):
        _, first[mode] = answers(one, ids, [300], mode=mode, **drawn)
        if name == "q3":
            answers(one, [*ids, *ids_of(700, 3)], mode=mode, **drawn)
            assert answers(one, ids, mode=mode, **drawn) == (300, first[mode])
    assert all(found == first["plain"] for found in first.values())


def test_states_on_disk_come_back(tmp_path: Path) -> None:
    """And are not those of a cache without halves."""

    def made(kv: str) -> Engine:
        return engine("q3", kv, SnapshotStore(1 << 30, 128, StateFolder(tmp_path, 2)))

    ids, one = ids_of(700), made("q4_0+256")
    ids += [*answers(one, ids)[1], 7]
    one.leave()
    expected = answers(engine("q3", "q4_0+256"), ids)[1]
    assert answers(made("q4_0+256"), ids) == (len(ids) - 2, expected)
    assert answers(made("q4_0"), ids)[0] == 0
