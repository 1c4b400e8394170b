"""Passes that run layer by layer in turns while a conversation is copied leave the bits of passes run one by one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.backends.cuda import host_room
from dflash_core.backends.cuda.drafters import caches
from dflash_core.backends.cuda.drafters.dflash import DFlashOnDevice
from dflash_core.backends.cuda.drafters.mtp import Mtp
from dflash_core.backends.cuda.launch import Run
from dflash_core.backends.cuda.products import Arena
from dflash_core.backends.cuda.prompts import NEVER
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.turns import Turns
from dflash_core.cache_types import F16, CachePair
from dflash_core.progress import silent
from dflash_core.snapshots.base import Rows, Snapshot
from support import device_pairs
from support.device_pairs import Pair, device_named, pair_of
from support.golden import target_path
from support.grids import full
from support.mtp_device import mtp_pair

CONTEXT, BEFORE, NEXT = 640, 70, [5, 6, 7]  # chunks of so many rows leave room for all passes
TINY = "tiny-F16.gguf"  # of two layers; the others are whole
MODELS = {"q3-F16.gguf": "q3-dflash", "q35moe-F16.gguf": "q35moe-dflash"}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every piece large enough to be page-locked, and give rings 64 slots."""
    monkeypatch.setattr(host_room, "LEAST_LOCKED", 1)
    monkeypatch.setattr(caches, "SPARE", 40)


@functools.cache
def pair(device_name: str, target: str) -> Pair:
    if target == TINY:
        return device_pairs.pair(device_name, target)
    return pair_of(device_named(device_name), target_path(target), target_path(MODELS[target]), half=True)


def session(device_name: str, target: str = TINY, kv: CachePair = F16) -> CudaSession:
    made = pair(device_name, target)
    return CudaSession(made.device_target, DFlashOnDevice(made.device_draft), context=CONTEXT, kv=kv)


def numbers(rng: np.random.Generator, count: int) -> list[int]:
    return [int(token) for token in rng.integers(0, 250, count)]


def taken(on: CudaSession, ids: Sequence[int]) -> Snapshot:
    pages = (Rows(0, len(ids), on.rows(0, len(ids))),)
    return Snapshot(np.asarray(ids, np.int32), pages, on.checkpoint())


def read(on: CudaSession, ids: Sequence[int]) -> list[Tensor]:
    """All results of reading a prompt: logits, features, state, drafts, and a pass after it."""
    found = [torch.from_numpy(on.prefill(ids)), torch.from_numpy(on.features())]
    found += [one.clone() for one in (*on.rows(0, on.length), *on.checkpoint().tensors)]
    length = torch.tensor(on.length)
    return [*found, length, torch.from_numpy(on.draft(7, 0)), torch.from_numpy(on.verify(NEXT, range(-1, 2)))]


def same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected))


def check(one: CudaSession, other: CudaSession, new: int, rng: np.random.Generator) -> list[int | str]:
    """`other` resumes at the position of `one`, and both read on. Returns the copies that `other` waited for, and the
    passes that it ran."""
    ids, more = numbers(rng, BEFORE), numbers(rng, new)
    one.prefill(ids)
    whole = taken(one, ids)
    other.prefill(numbers(rng, 90))
    other.resume(whole)
    log = followed(other)
    same(read(other, more), read(one, more))
    return log


def followed(on: CudaSession) -> list[int | str]:
    """A log of a resume: numbers of copied parts as they are waited for, and widths of passes as their parts run."""
    log, arriving, parts_of = list[int | str](), on._arriving, on._pass_parts
    assert arriving is not None

    def note(what: int | str, run: Run) -> None:
        log.append(what)
        run()

    def parts(width: int, node0: int, *, windowed: bool) -> list[Run]:
        return [partial(note, f"pass {width}", run) for run in parts_of(width, node0, windowed=windowed)]

    arriving.waits = [partial(note, at, wait) for at, wait in enumerate(arriving.waits)]
    on._pass_parts = parts  # type: ignore[method-assign]
    return log


@pytest.mark.parametrize(
    ("target", "new", "kv", "window"),
    [
        full(TINY, 60, "f16", EVERYTHING),
        (TINY, 49, "f16", EVERYTHING),
        (TINY, 30, "q8_0/q4_0", AttentionWindow(40, 4)),
        ("q3-F16.gguf", 60, "f16", EVERYTHING),
        ("q35moe-F16.gguf", 30, "f16", EVERYTHING),
    ],
)
def test_all_is_as_after_passes_one_by_one(
    device_name: str, target: str, new: int, kv: str, window: AttentionWindow, rng: np.random.Generator
) -> None:
    one, other = (session(device_name, target, CachePair.parse(kv)) for _ in range(2))
    for each in (one, other):
        each.look_back(window)
    log = check(one, other, new, rng)
    passes = ["pass 24"] * (new // 24) + (["pass 1"] if new % 24 == 1 else ["pass 24"])
    parts = [at for at in log if isinstance(at, int)]
    layers = max(parts) - 1  # then comes what a drafter keeps
    assert log[: layers * (1 + len(passes))] == [step for part in range(layers) for step in (part, *passes)]


def test_an_mtp_head_reads_what_passes_captured(device_name: str, rng: np.random.Generator) -> None:
    one, other = (mtp_pair(device_name).sessions(CONTEXT)[0] for _ in range(2))
    assert isinstance(other.drafter, Mtp)
    assert len(other.drafter.memory.hidden) == 64  # 64 tokens fill the ring: all restored slots are overwritten
    check(one, other, 64, rng)


def test_wide_passes_take_turns_too(device_name: str, rng: np.random.Generator) -> None:
    one, other = (session(device_name) for _ in range(2))
    for each in (one, other):
        each.read_in_passes(NEVER, silent)
    log = check(one, other, 100, rng)
    assert log[:3] == [0, "pass 64", "pass 64"]


@pytest.mark.parametrize("count", [0, full(1), 2])
def test_those_that_there_is_no_room_for_come_behind(device_name: str, count: int, rng: np.random.Generator) -> None:
    one, other = (session(device_name) for _ in range(2))
    idle, tokens = other.memory.idle.bytes, [[0] * 24] * 3
    assert Turns(other.memory, tokens).count == 3
    for size in range(len(idle)):
        other.memory.idle = Arena(idle[: size << 10])
        if Turns(other.memory, tokens).count == count:
            break
    together = max(count, 1)
    assert check(one, other, 60, rng)[: 2 + together] == [0, *["pass 24"] * together, 1]


def test_a_pass_that_fails_in_between_leaves_nothing(
    device_name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (session(device_name) for _ in range(2))
    ids, more = numbers(rng, BEFORE), numbers(rng, 60)
    one.prefill(ids)
    whole = taken(one, ids)
    expected = read(one, more)
    parts_of = other._pass_parts

    def fail() -> None:
        raise KeyboardInterrupt

    def parts(width: int, node0: int, *, windowed: bool) -> list[Run]:
        first, second, *others = parts_of(width, node0, windowed=windowed)
        return [first, fail if failing else second, *others]

    monkeypatch.setattr(other, "_pass_parts", parts)
    other.resume(whole)
    failing = True
    with pytest.raises(KeyboardInterrupt):
        other.prefill(more)
    failing = False
    other.restore(None)
    other.prefill(ids)
    same(read(other, more), expected)
    other.resume(whole)
    same(read(other, more), expected)
