"""StepState on the device, and the host's copy of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from dflash_core.backends.cuda.launch import At
from dflash_core.backends.cuda.sending import send
from dflash_core.backends.cuda.state import AFTER_KNOBS, FIRST_KNOB, STEP_STATE, StopCode
from dflash_core.tree import ancestors


class DeviceState:
    """`host` is a STEP_STATE record; what is written there counts from the next `push`, what ran shows after `pull`."""

    def __init__(self, device: torch.device) -> None:
        self.bytes = torch.zeros(STEP_STATE.itemsize, dtype=torch.uint8, device=device)
        self._copy = np.zeros(1, STEP_STATE)
        self.host = self._copy[0]

    @property
    def pointer(self) -> At:
        return At(self.bytes, 0)

    def at(self, field: str) -> At:
        """The address of a field."""
        return At(self.bytes, _offset(field))

    def push(self, first: str = "mask", end: str | None = None) -> None:
        """Copy fields `first` up to `end` (not included; None: all that follow) to the device."""
        begin, stop = _offset(first), _offset(end) if end else STEP_STATE.itemsize
        send(self._copy.view(np.uint8)[begin:stop], self.bytes[begin:stop])

    def push_knobs(self) -> None:
        """Copy what state.write_knobs sets: it may change while steps are queued."""
        self.push(FIRST_KNOB, AFTER_KNOBS)

    def pull(self) -> None:
        """Copy all of it from the device; waits for what was launched."""
        self._copy.view(np.uint8)[:] = self.bytes.cpu().numpy()

    def plant(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Make `tokens` with these parents the tree of the next pass. On the host's side only."""
        n, state = len(tokens), self.host
        related = ancestors(parents)
        state["n"] = n
        state["token"][:n], state["parent"][:n] = tokens, parents
        state["depth"][:n] = related.sum(axis=1) - 1
        bits = np.zeros((n, 256), np.uint8)
        bits[:, :n] = related
        state["mask"][:n] = np.packbits(bits, axis=1, bitorder="little").view("<u8")
        state["stop"] = StopCode.RUNNING

    def commit(self, path: Sequence[int]) -> None:
        """What the accept kernel does for an accepted path; recurrent states follow with the next pass."""
        state, count = self.host, len(path)
        state["path"][:count] = state["pending_path"][:count] = path
        state["accepted"] = state["pending"] = count
        state["length"] += count
        state["parity"] ^= 1

    def chains(self, passes: Sequence[Sequence[int]]) -> list[npt.NDArray[np.uint8]]:
        """What passes over these chains of tokens would find on the device one after the other, each committed before
        the next, as bytes. Nothing changes."""
        before, found = self._copy.copy(), []
        for tokens in passes:
            self.plant(tokens, range(-1, len(tokens) - 1))
            found.append(self._copy.view(np.uint8).copy())
            self.commit(range(len(tokens)))
        self._copy[:] = before
        return found


def _offset(field: str) -> int:
    fields = STEP_STATE.fields
    assert fields is not None
    return int(fields[field][1])
