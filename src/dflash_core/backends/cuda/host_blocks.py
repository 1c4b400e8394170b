"""Host memory for copies of sequences: page-locked, so that the card reads it at full speed without the host.

Page-locking takes time and holds the driver's lock, so a thread does it between turns: for memory with new copies, and
for memory that the next copies will need. A block whose tensors are freed is reused.
"""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash_core.errors import DFlashError

LOG = logging.getLogger(__name__)
MIN_LOCKED = 1 << 20  # bytes; smaller pieces get no block of their own
STEPS = 8  # block sizes between one power of two and the next
HUGE = getattr(mmap, "MADV_HUGEPAGE", None)


@dataclass(slots=True, eq=False)
class _Block:
    memory: mmap.mmap
    nbytes: int
    address: int
    locked: bool = False


class HostBlocks:
    """Host memory for a device's copies of sequences. `lock` (address, bytes) page-locks memory for the card, `unlock`
    (address) undoes it. If `lock` raises DFlashError, memory stays unlocked, and a warning is logged."""

    def __init__(self, lock: Callable[[int, int], object], unlock: Callable[[int], object]) -> None:
        self._lock, self._unlock = lock, unlock
        self._blocks: dict[int, _Block] = {}  # all blocks, by address
        self._free: list[_Block] = []
        self._returned: deque[int] = deque()  # addresses of blocks; tensors can be freed in any thread at any time
        self._guard = threading.RLock()
        self._worker = ThreadPoolExecutor(1, "host blocks")
        self._requested: deque[int] = deque()  # sizes of the blocks to prepare
        self._locking: _Block | None = None
        self._fresh: _Block | None = None  # that one, until it is among the unused
        self._paused = self._refused = self._closed = False

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor in host memory."""
        count = math.prod(shape)
        nbytes = count * dtype.itemsize
        if nbytes < MIN_LOCKED or self._refused or self._closed:
            return torch.empty(tuple(shape), dtype=dtype)
        with self._guard:
            block = self._take(nbytes) or self._new(nbytes)
        array = np.frombuffer(block.memory, np.uint8, nbytes)
        weakref.finalize(array, self._returned.append, block.address).atexit = False
        return torch.from_numpy(array).view(dtype).view(tuple(shape))

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes of all blocks, and of the unused ones."""
        with self._guard:
            self._collect()
            return sum(block.nbytes for block in self._blocks.values()), sum(block.nbytes for block in self._free)

    def prepare(self, sizes: Sequence[int], limit: int) -> None:
        """Prepare blocks for the next copies, between turns. `sizes`: bytes of the pieces; `limit`: the most bytes of
        all prepared blocks."""
        if self._refused or self._closed:
            return
        with self._guard:
            self._collect()
            requested = sorted((size for size in sizes if size >= MIN_LOCKED), reverse=True)
            spare, left = [*self._free, *([self._fresh] if self._fresh else [])], limit
            self._requested.clear()
            for size in requested:
                if (block := _fitting(spare, size)) is not None:
                    spare.remove(block)
                    left -= block.nbytes
                elif block_size(size) <= left:
                    self._requested.append(block_size(size))
                    left -= block_size(size)
            left = min(left, sum(requested))
            for block in spare:  # no more unused memory stays than was requested
                left -= block.nbytes
                if left < 0 and block is not self._locking:
                    self._drop(block)
            if self._requested or any(not block.locked for block in self._blocks.values()):
                self._start()

    def pause(self) -> None:
        """Begin no further block while a turn runs; `prepare` or `settle` ends the pause."""
        self._paused = True

    def settle(self) -> None:
        """Wait until everything requested is prepared."""
        if not self._closed:
            wait([self._start()])

    def close(self) -> None:
        """Free what is not in use and lock nothing any more; existing copies stay valid."""
        with self._guard:
            self._closed = True
            self._requested.clear()
        self._worker.shutdown()
        with self._guard:
            self._collect()
            for block in list(self._free):
                self._drop(block)
            for block in self._blocks.values():
                self._release(block)
            self._blocks.clear()

    # ---- Blocks ------------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        while self._returned:
            block = self._blocks.get(self._returned.popleft())
            if block is not None:
                self._free.append(block)

    def _take(self, nbytes: int) -> _Block | None:
        self._collect()
        if (block := _fitting(self._free, nbytes)) is not None:
            self._free.remove(block)
        return block

    def _new(self, nbytes: int) -> _Block:
        size = block_size(nbytes)
        memory = mmap.mmap(-1, size)  # its pages hold nothing else
        if HUGE is not None:
            with suppress(OSError):  # the system has no huge pages
                memory.madvise(HUGE)
        address = np.frombuffer(memory, np.uint8).ctypes.data
        block = self._blocks[address] = _Block(memory, size, address)
        return block

    def _drop(self, block: _Block) -> None:
        self._release(block)
        self._free.remove(block)
        del self._blocks[block.address]

    def _release(self, block: _Block) -> None:
        if block.locked:
            block.locked = False
            self._unlock(block.address)

    # ---- The thread --------------------------------------------------------------------------------------------------

    def _start(self) -> Future[None]:
        self._paused = False
        job = self._worker.submit(self._lock_all)
        job.add_done_callback(_report)
        return job

    def _lock_all(self) -> None:
        while not (self._paused or self._closed or self._refused):
            with self._guard:
                block = next((block for block in self._blocks.values() if not block.locked), None)
                fresh = self._fresh = None
                if block is None:
                    if not self._requested:
                        return
                    block = fresh = self._fresh = self._new(self._requested.popleft())
                self._locking = block
            if fresh is not None:
                # Touch all pages now: otherwise the driver does it while it holds its lock.
                ctypes.memset(fresh.address, 0, fresh.nbytes)
            try:
                self._lock(block.address, block.nbytes)
            except DFlashError as error:
                LOG.warning("copies of conversations are in memory that is not page-locked, which is slower: %s", error)
                self._refused = True
            else:
                block.locked = True
            with self._guard:
                self._locking = self._fresh = None
                if fresh is not None:
                    self._free.append(fresh)


def _report(job: Future[None]) -> None:
    if (error := job.exception()) is not None:
        LOG.error("copies of conversations are in memory that is not page-locked, which is slower: %r", error)


def _fitting(blocks: Sequence[_Block], nbytes: int) -> _Block | None:
    """The smallest block for `nbytes` bytes, of those that are at most about twice that; locked ones are preferred."""
    found = [block for block in blocks if nbytes <= block.nbytes <= 2 * block_size(nbytes)]
    return min(found, key=lambda block: (not block.locked, block.nbytes), default=None)


def block_size(nbytes: int) -> int:
    """The block size for a piece of `nbytes` bytes: for large pieces at most an eighth more."""
    step = max(1 << max(nbytes.bit_length() - 1, 0), STEPS * mmap.PAGESIZE) // STEPS
    return -(-nbytes // step) * step
