"""Page-locked memory for copies: locked only between turns, reused, never above its limit, and released."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from dflash_core.backends.cuda.host_blocks import MIN_LOCKED, HostBlocks, block_size
from dflash_core.errors import KernelError

MIB = 1 << 20


class System:
    """Locks memory, as far as it may. `locked`: bytes by address."""

    def __init__(self, most: int = 1 << 40) -> None:
        self.most, self.locked = most, dict[int, int]()

    def lock(self, address: int, nbytes: int) -> None:
        assert address not in self.locked, "locked twice"
        if sum(self.locked.values()) + nbytes > self.most:
            raise KernelError("page-locking memory failed (operating system)")
        self.locked[address] = nbytes

    def unlock(self, address: int) -> None:
        del self.locked[address]


@contextmanager
def room(system: System) -> Iterator[HostBlocks]:
    made = HostBlocks(system.lock, system.unlock)
    yield made
    made.close()
    assert not system.locked, "all is given back"


def ready(on: HostBlocks, *sizes: int, most: int = 1 << 40) -> None:
    on.prepare(sizes, most)
    on.settle()


def piece(on: HostBlocks, nbytes: int = 2 * MIB) -> Tensor:
    return on.empty((nbytes // 4,), torch.float32)


def locked(on: HostBlocks, tensor: Tensor) -> bool:
    """Whether the memory of a tensor is page-locked."""
    block = on._blocks.get(tensor.untyped_storage().data_ptr())
    return block is not None and block.locked


def test_what_a_turn_makes_is_locked_behind_it() -> None:
    system = System()
    with room(system) as made:
        made.pause()
        first, small = piece(made), piece(made, MIN_LOCKED // 2)
        first[:] = 7
        assert not locked(made, first)
        assert not system.locked
        ready(made)
        assert locked(made, first)
        assert locked(made, first.view(2, -1)[1:])
        assert not locked(made, small)
        assert first.eq(7).all()


def test_a_paused_room_waits() -> None:
    system = System()
    with room(system) as made:
        first = piece(made)
        made.prepare((4 * MIB,), 1 << 40)
        made.settle()
        made.pause()
        second = piece(made, 8 * MIB)
        assert locked(made, first)
        assert not locked(made, second)


def test_memory_is_ready_and_used_again() -> None:
    system = System()
    with room(system) as made:
        ready(made, 2 * MIB, 3 * MIB, MIN_LOCKED // 4)
        assert made.nbytes == (5 * MIB, 5 * MIB)
        first = piece(made)
        where = first.data_ptr()
        assert locked(made, first)
        ready(made, 3 * MIB)
        assert made.nbytes == (5 * MIB, 3 * MIB), "nothing new for what is ready"
        part = first[:10]
        del first
        assert piece(made).data_ptr() != where, "a part of it is still in use"
        del part
        assert piece(made).data_ptr() == where


def test_every_request_is_served() -> None:
    """Each request is a job of its own, whatever the one before it still does."""
    with room(System()) as made:
        made.prepare((2 * MIB,), 1 << 40)
        made.prepare((2 * MIB, 3 * MIB), 1 << 40)
        made.settle()
        assert made.nbytes == (5 * MIB, 5 * MIB)


def test_a_block_that_is_being_locked_is_not_made_again() -> None:
    system, begun, go_on = System(), threading.Event(), threading.Event()

    def lock(address: int, nbytes: int) -> None:
        begun.set()
        go_on.wait()
        system.lock(address, nbytes)

    with room(system) as made:
        made._lock = lock
        made.prepare((2 * MIB,), 1 << 40)
        begun.wait()
        made.prepare((2 * MIB, 3 * MIB), 1 << 40)
        go_on.set()
        made.settle()
        assert made.nbytes == (5 * MIB, 5 * MIB)


def test_a_failure_is_logged_and_the_next_request_is_served(caplog: pytest.LogCaptureFixture) -> None:
    system = System()
    with room(system) as made, caplog.at_level(logging.ERROR):
        made._lock = lambda *_: 1 // 0
        ready(made, 2 * MIB)
        made._lock = system.lock
        ready(made, 2 * MIB, 3 * MIB)
        assert locked(made, piece(made, 3 * MIB))
    assert caplog.records
    assert all("ZeroDivisionError" in record.message for record in caplog.records)


def test_what_is_ready_takes_no_more_than_it_may() -> None:
    system = System()
    with room(system) as made:
        ready(made, *[2 * MIB] * 5, most=7 * MIB)
        assert made.nbytes == (6 * MIB, 6 * MIB)
        ready(made, 4 * MIB, most=7 * MIB)
        assert made.nbytes == (6 * MIB, 6 * MIB), "other sizes go for it"
        ready(made, most=0)
        assert made.nbytes == (0, 0)
        assert not system.locked


def test_where_locking_is_refused_memory_is_plain(caplog: pytest.LogCaptureFixture) -> None:
    system = System(most=3 * MIB)
    with room(system) as made, caplog.at_level(logging.WARNING):
        first, second = piece(made), piece(made)
        first[:], second[:] = 1, 2
        ready(made, 8 * MIB)
        assert [locked(made, one) for one in (first, second)] == [True, False]
        ready(made, 8 * MIB)
        assert not locked(made, piece(made))
        assert first.eq(1).all()
        assert second.eq(2).all()
    assert [record.message for record in caplog.records] == [
        "copies of conversations are in memory that is not page-locked, which is slower: page-locking memory failed "
        "(operating system)"
    ]


def test_copies_outlast_a_closed_room() -> None:
    system = System()
    with room(system) as made:
        first = piece(made)
        first[:] = 3
        ready(made, 2 * MIB)
        made.close()
        assert not system.locked
        assert not locked(made, first)
        assert first.eq(3).all()
        assert piece(made).numel() == MIB // 2


def test_blocks_are_hardly_larger_than_what_lies_in_them() -> None:
    for nbytes in (MIN_LOCKED, 16 * MIB, 144 * MIB, 5 * MIB + 12345, 150_994_944):
        assert nbytes <= block_size(nbytes) <= nbytes * 9 / 8
    assert block_size(144 * MIB) == 144 * MIB
