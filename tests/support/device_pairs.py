"""The tiny golden pair on the CPU and on a device, the emulated one or a card: one session of each to compare.

f16 activations unless asked otherwise, so that only rounding differs. The target is cut: see support.shallow.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dflash_core import load_draft, load_target
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.drafters.base import OnDevice, on_device
from dflash_core.backends.cuda.launch import Device
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.backends.opened import Session, Target
from dflash_core.drafters.draft import Draft
from dflash_core.events import StepDrafts
from support.emulated_device import EmulatedDevice
from support.golden import golden
from support.shallow import shallow, shallow_draft

TOLERANCE = 2e-2  # of logits, on the f16 path: halves have 11 bits, and errors add up over the layers
CONTEXT = 192


@functools.cache
def device_named(name: str) -> Device:
    if name == "emulated":
        return EmulatedDevice()
    from dflash_core.backends.cuda.target import open_device

    return open_device(0)


@dataclass(frozen=True)
class Pair:
    """One pair on the CPU and on the device."""

    target: Target
    draft: Draft
    device_target: DeviceTarget
    device_draft: OnDevice

    def sessions(self, context: int = CONTEXT) -> tuple[CudaSession, Session]:
        session = CudaSession(self.device_target, self.device_draft, context=context)
        return session, self.target.session(self.draft)


@functools.cache
def pair(device_name: str, file: str, half: bool = True) -> Pair:
    return pair_on(device_named(device_name), file, half)


@functools.cache
def whole_pair(device_name: str, file: str, half: bool = True) -> Pair:
    """With all layers of the target."""
    return pair_of(device_named(device_name), golden(file), golden("tiny-dflash"), half)


def pair_on(device: Device, file: str, half: bool = True) -> Pair:
    """A golden pair of its own. `half`: activations f16, not int8."""
    return pair_of(device, shallow(file), shallow_draft(), half)


def pair_of(device: Device, target_file: Path, draft_file: Path, half: bool) -> Pair:
    """The same of any files."""
    target = load_target(target_file)
    draft = load_draft(draft_file, target)
    with device.stream():
        uploads = [DeviceUpload(device, weights) for weights in (target.file, draft.file)]
        activations = CHOICES["f16" if half else "mixed"]
        device_target = DeviceTarget(device, uploads[0], target.config, activations)
        device_draft = on_device(draft.config, uploads[1], device_target, activations)
        for upload in uploads:
            upload.close()
    return Pair(target, draft, device_target, device_draft)


@functools.cache
def prompt() -> tuple[int, ...]:
    return tuple(int(token) for token in np.load(golden("tiny-F16.npz"))["ids"])


def close(a: np.ndarray, b: np.ndarray, tolerance: float = TOLERANCE) -> None:
    """Assert a difference that rounding to halves explains: a root mean square of half the tolerance at most, and a
    largest difference of five times it.

    The two bounds differ because a few rows of random tokens magnify rounding: where a layer's rows nearly cancel, a
    norm divides by a small number. In 1,400 random runs, the reference with its products rounded to halves had its
    large errors in the same rows (correlation .99). The largest error was 3e-2, from a tail that falls with the fourth
    power, while the root mean square never exceeded 5e-3.
    """
    assert a.shape == b.shape
    errors = np.abs(a - b)
    assert np.sqrt((errors * errors).mean()) < tolerance / 2
    assert errors.max() < 5 * tolerance


def same_candidates(found: StepDrafts, expected: StepDrafts, tolerance: float = TOLERANCE / 2) -> None:
    """Assert the same tokens in the same order at each depth, except where log-probabilities are nearly equal: there,
    rounding decides which comes first, and which is the last that is listed."""
    assert len(found.tokens) == len(expected.tokens)
    for tokens, said, others, told in zip(found.tokens, found.log_probs, expected.tokens, expected.log_probs):
        assert len(tokens) == len(others) == len(set(tokens))
        known = dict(zip(others, told))
        for token, one, at_its_place in zip(tokens, said, told):
            assert max(abs(one - at_its_place), abs(one - known.get(token, told[-1]))) < tolerance, (tokens, others)
