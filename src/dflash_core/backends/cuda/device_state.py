"""StepState on the device, and the host's copy of it; and the conversation's tokens there, for trees that copy (see
drafters/ngram_table.py, kernels/ngrams.cuh)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_core.backends.cuda.launch import WARP, Argument, At, Device, Launch, PinnedMemory, Run, ceil_div
from dflash_core.backends.cuda.state import AFTER_KNOBS, FIRST_KNOB, STEP_SLOTS, STEP_STATE, StopCode, from_text
from dflash_core.drafters.ngram_table import RUNS, SLOTS, NgramTable
from dflash_core.tree import Tree, ancestors


def send(values: npt.NDArray[Any], to: Tensor) -> None:
    """Copy `values` to a tensor of the same size and type, in stream order; the host does not wait for it.

    The source is page-locked, and torch keeps it until it was read. From other memory, the copy would wait for all
    queued work.
    """
    source = torch.from_numpy(values)
    to.copy_(source.pin_memory() if to.is_cuda else source, non_blocking=True)


class DeviceState:
    """`host`: a STEP_STATE record. `push` copies changes of it to the device, `pull` reads the device's state back."""

    def __init__(self, device: torch.device) -> None:
        self.bytes = torch.zeros(STEP_STATE.itemsize, dtype=torch.uint8, device=device)
        self._copy = np.zeros(1, STEP_STATE)
        self.host = self._copy[0]
        self._arriving: Tensor | None = None

    @property
    def pointer(self) -> At:
        return At(self.bytes, 0)

    def at(self, field: str) -> At:
        """The address of a field."""
        return At(self.bytes, _offset(field))

    def push(self, first: str = "mask", end: str | None = None) -> None:
        """Copy the fields from `first` up to `end` (excluded; None: to the last one) to the device."""
        begin, stop = _offset(first), _offset(end) if end else STEP_STATE.itemsize
        send(self._copy.view(np.uint8)[begin:stop], self.bytes[begin:stop])

    def push_knobs(self) -> None:
        """Copy the fields that state.write_knobs sets: they may change while steps are queued."""
        self.push(FIRST_KNOB, AFTER_KNOBS)

    def pull(self) -> None:
        """Copy the whole state from the device; waits for all launches."""
        self._copy.view(np.uint8)[:] = self.bytes.cpu().numpy()

    def fetch(self) -> None:
        """Queue a copy of the whole state: `receive` takes it, once a mark after it is reached."""
        if self._arriving is None:
            self._arriving = torch.empty_like(self.bytes, device="cpu", pin_memory=self.bytes.is_cuda)
        self._arriving.copy_(self.bytes, non_blocking=True)

    def receive(self) -> None:
        """Make what was fetched the host's copy."""
        assert self._arriving is not None, "nothing was fetched"
        self._copy.view(np.uint8)[:] = self._arriving.numpy()

    def stage_tree(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Make `tokens` with these parents the tree of the next pass, in the host's copy only."""
        n, state = len(tokens), self.host
        related = ancestors(parents)
        state["n"] = n
        state["token"][:n], state["parent"][:n] = tokens, parents
        state["depth"][:n] = related.sum(axis=1) - 1
        bits = np.zeros((n, 256), np.uint8)
        bits[:, :n] = related
        state["mask"][:n] = np.packbits(bits, axis=1, bitorder="little").view("<u8")
        state["stop"] = StopCode.RUNNING

    def built_tree(self, copied: int, *, live: bool = False) -> Tree:
        """All nodes that were built, in the host's copy; `live`: those that passes run. `copied`: a bit for each that
        came from the text."""
        state = self.host
        n = int(state["built" if state["by_value"] and not live else "n"])
        tokens, parents, depths = (tuple(state[name][:n].tolist()) for name in ("token", "parent", "depth"))
        log_probs, paths = (tuple(state[name][:n].tolist()) for name in ("log_prob", "path_log_prob"))
        return Tree(tokens, parents, depths, log_probs, paths, copied=from_text(copied, n))

    def send_tree(self, tree: Tree) -> None:
        """Make `tree` that of the next pass, in stream order. The host's copy must be fresh: `pull`, `receive`."""
        n = len(tree)
        self.stage_tree(tree.tokens, tree.parents)
        self.host["log_prob"][:n], self.host["path_log_prob"][:n] = tree.log_probs, tree.path_log_probs
        self.push("mask", "value")

    def commit(self, path: Sequence[int]) -> None:
        """Do what the accept kernel does for an accepted path; the next pass updates recurrent states."""
        state, count = self.host, len(path)
        state["path"][:count] = state["pending_path"][:count] = path
        state["accepted"] = state["pending"] = count
        state["length"] += count
        state["parity"] ^= 1


def _offset(field: str) -> int:
    fields = STEP_STATE.fields
    assert fields is not None
    return int(fields[field][1])


DEFINES: dict[str, object] = {"TEXT": 1}
BLOCKS = 2  # of tree_build: one builds the tree, the other prefetches the text
MAX_CHANGES = 1024  # the most changed numbers in a list: those of 256 new tokens
CHANGE_THREADS = 4 * WARP


class DeviceNgrams:
    """A copy of a NgramTable's arrays from when the newest step was queued, for up to `slots` tokens: 0.8 MB, and
    4 bytes per token, here and page-locked on the host. It is empty until `follow` is called."""

    def __init__(self, slots: int, device: Device) -> None:
        self._device = device
        self._last = RUNS * SLOTS  # numbers of the table; the tokens follow them
        size = self._last + 4 * ceil_div(slots + 1, 4)  # a multiple of 16 bytes
        self._text = torch.zeros(size, dtype=torch.int32, device=device.torch_device)
        self._sent: Run | None = None  # waits until `_staged` was read
        self._source: NgramTable | None = None
        self._known = self._cuts = 0

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """More arguments of tree_build, before the address for the bits of nodes copied from the text."""
        return self._text, len(self._text)

    def launch(self, changes: int) -> Launch:
        """The launch that applies the list of changes at the address `changes`."""
        return Launch("text_update.cu", "text_update", {}, 1, CHANGE_THREADS, [np.uint64(changes), self._text])

    def follow(self, text: NgramTable) -> None:
        """Update the arrays, after the queued steps: only with new tokens, or completely if the text was cut or has
        grown by many tokens."""
        begin, end = self._known, len(text)
        cut = self._source is not text or self._cuts != text.cuts
        if cut or (1 + RUNS) * (end - begin) > MAX_CHANGES:
            self._send(text)
        elif begin < end:
            self._add(text, begin)
        self._source, self._known, self._cuts = text, end, text.cuts

    def _send(self, text: NgramTable) -> None:
        if self._sent is not None:
            self._sent()
        size = self._last + len(text)
        staged = self._staged[:size].numpy()
        staged[: self._last], staged[self._last :] = text.last.reshape(-1), text.tokens
        self._text[:size].copy_(self._staged[:size], non_blocking=True)
        self._sent = self._device.mark()

    def _add(self, text: NgramTable, begin: int) -> None:
        """Send the tokens that were added to the text since it had `begin` tokens, and the changes to the table."""
        changes, apply = next(self._lists)
        places, tokens = text.places(begin)[0], text.tokens[begin:]
        slots, count = len(places), len(places) + len(tokens)
        changes.array[0, 0] = count
        pairs = changes.array[1 : 1 + count]
        pairs[:slots, 0], pairs[:slots, 1] = places, text.last.reshape(-1)[places]
        pairs[slots:, 0], pairs[slots:, 1] = np.arange(self._last + begin, self._last + len(text)), tokens
        apply()

    def prepare(self) -> None:
        """Page-lock the host's memory, which a step would wait for: 3 to 6 ms, 20 to 40 steps of a small model."""
        self._staged, self._lists  # noqa: B018 - made here

    @cached_property
    def _staged(self) -> Tensor:
        """For complete copies."""
        return torch.empty(self._text.shape, dtype=torch.int32, pin_memory=self._text.is_cuda)

    @cached_property
    def _lists(self) -> Iterator[tuple[PinnedMemory, Run]]:
        """Lists of changes in turn, one for each step that may be queued, and what applies each."""
        return itertools.cycle([self._list() for _ in range(STEP_SLOTS)])

    def _list(self) -> tuple[PinnedMemory, Run]:
        changes = self._device.pinned((1 + MAX_CHANGES, 2), np.int32)
        return changes, self._device.bind([self.launch(changes.address)])
