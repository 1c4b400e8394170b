"""A target with only attention layers truncates to any earlier position without a checkpoint, if its drafter can."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dflash_core import load_draft, load_target
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.drafters import base
from dflash_core.backends.cuda.drafters.base import on_device
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from support.device_pairs import device_named, pair
from support.golden import other_targets

WINDOW, CONTEXT, SPARE = 24, 256, 40


@pytest.mark.parametrize("sliding", [False, True])
def test_a_cut_sequence_is_a_shorter_one(
    device_name: str, sliding: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "SPARE", SPARE)
    device, target = device_named(device_name), load_target(other_targets("q3-F16.gguf")[0])
    opened = load_draft(other_targets("q3-dflash")[0], target)
    config = replace(opened.config, sliding_window=WINDOW, sliding=(True, False)) if sliding else opened.config
    with device.stream():
        uploads = [DeviceUpload(device, weights) for weights in (target.file, opened.file)]
        model = DeviceTarget(device, uploads[0], target.config, CHOICES["f16"])
        draft = on_device(config, uploads[1], model, CHOICES["f16"])
        for upload in uploads:
            upload.close()
    ids = [int(token) for token in rng.integers(0, 300, 120)]
    session, fresh = (CudaSession(model, draft, context=CONTEXT) for _ in range(2))
    session.prefill(ids)
    session.draft(7, 0)
    for length in (110, 80, 79, 30):
        # A ring of 64 slots holds what a block of 16 after so many positions sees.
        held = not sliding or length - WINDOW + 1 >= 120 + 16 - 64
        assert session.cut(length) == held
        if not held:
            assert session.length == (110 if sliding else length)
            continue
        assert session.length == length
        fresh.restore(None)
        fresh.prefill(ids[:length])
        assert np.array_equal(session.draft(7, 0), fresh.draft(7, 0))
        assert np.array_equal(session.verify([3, 4], [-1, 0]), fresh.verify([3, 4], [-1, 0]))
    if sliding:  # overwritten slots stay lost, even if the sequence is shorter now
        assert not session.cut(80)


def test_recurrent_states_are_not_cut(device_name: str) -> None:
    ours, reference = pair(device_name, "tiny-F16.gguf").sessions()
    for session in (ours, reference):
        session.prefill([1, 2, 3])
        assert not session.cut(2)
        assert session.length == 3
