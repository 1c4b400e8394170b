"""A target on a device, and what its logits are held to: those of the CPU."""

from __future__ import annotations

import functools

import numpy as np
import torch

from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.launch import Device
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target import check_supported
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.backends.opened import Target
from support.bits import Plain, check_walk
from support.device_pairs import device_named
from support.emulated_device import EmulatedDevice

CONTEXT = 640
KL_BAR = 5e-6


@functools.cache
def device_of_rare_models(name: str) -> Device:
    """Most kernels of these models run in one test alone."""
    return EmulatedDevice(busy=False) if name == "emulated" else device_named(name)


def session_of(device_name: str, target: Target, activations: str = "f16", context: int = CONTEXT) -> CudaSession:
    """A session of an opened target, without a drafter."""
    check_supported(target.config)
    device = device_of_rare_models(device_name)
    with device.stream():
        upload = DeviceUpload(device, target.file)
        model = DeviceTarget(device, upload, target.config, CHOICES[activations])
        upload.close()
    return CudaSession(model, context=context)


def in_passes(session: CudaSession, ids: list[int]) -> np.ndarray:
    """Logits after each of `ids` (n, vocabulary), committed in passes of 24 rows, then of 8: those of check_bits, since
    each width is another program to compile."""
    found, at = [], 0
    while at < len(ids):
        rows = min(24 if len(ids) - at >= 24 else 8, len(ids) - at)
        found.append(session.verify(ids[at : at + rows], range(-1, rows - 1)))
        session.commit(range(rows))
        at += rows
    return np.concatenate(found)


def divergences(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """KL divergence of `found` logits from `expected` ones, row by row, in float64."""
    ours, theirs = (torch.log_softmax(torch.from_numpy(np.array(rows, np.float64)), -1) for rows in (found, expected))
    return (theirs.exp() * (theirs - ours)).sum(-1).numpy()


def chain(n: int, rng: np.random.Generator) -> list[int]:
    return list(range(-1, n - 1))


def bushy(n: int, rng: np.random.Generator) -> list[int]:
    reach = int(rng.integers(1, n + 1))
    return [-1, *(int(rng.integers(max(0, node - reach), node)) for node in range(1, n))]


def check_bits(session: CudaSession, rng: np.random.Generator, begin: int = 30, positions: int = 10) -> None:
    """Chains and trees leave the bits of plain decoding, in logits, keys and values. Emulated trees take passes of 8
    and 24 rows, since each width is another program to compile for each launch: test_same_bits has all of them."""
    vocab, emulated = session.target.spec.vocab_size, isinstance(session.device, EmulatedDevice)
    chains, trees = ((4, 7), (6, 23)) if emulated else ((1, 7, 15), (4, 11, 63))
    ids = rng.integers(0, vocab, begin + positions).tolist()
    plain = Plain.of(session, ids[:begin], ids[begin:])
    for shape, budgets in ((chain, chains), (bushy, trees)):
        check_walk(session, plain, shape, budgets, vocab, rng)
