"""The token embedding in main memory: the same bits from the same kernels, and the card holds that much less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dflash_core import load_draft, load_target
from dflash_core.arch.spec import ModelSpec
from dflash_core.backends.cuda import session as cuda_session
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.drafters.base import on_device
from dflash_core.backends.cuda.memory_estimator import Footprint
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload, aligned
from dflash_core.drafters.mtp import find_head
from dflash_core.knobs import Knobs
from dflash_core.runner import Runner
from support.device_pairs import device_named
from support.golden import golden, other_targets
from support.grids import full
from support.mtp_files import with_head
from support.shallow import shallow, shallow_draft

CONTEXT = 256


def sessions(device_name: str, name: str, draft: str, folder: Any) -> tuple[CudaSession, CudaSession, ModelSpec]:
    """One with its embedding on the device, one with it in main memory."""
    device = device_named(device_name)
    if draft == "mtp":
        target = load_target(with_head(folder / "whole.gguf"))
        config, weights = find_head("mtp", target.file, target.config)
    else:
        tiny = name.startswith("tiny")
        target = load_target(shallow(name) if tiny else other_targets(name)[0])
        opened = load_draft(shallow_draft() if tiny else other_targets(draft)[0], target)
        config, weights = opened.config, opened.file
    found = []
    for on_host in (False, True):
        with device.stream():
            upload = DeviceUpload(device, target.file)
            model = DeviceTarget(device, upload, target.config, CHOICES["f16"], embedding_on_host=on_host)
            other = DeviceUpload(device, weights)
            drafter = on_device(config, other, model, CHOICES["f16"])
            upload.close()
            other.close()
        found.append(CudaSession(model, drafter, context=CONTEXT))
    return found[0], found[1], target.config


def tokens(session: CudaSession, spec: ModelSpec, ids: Sequence[int], **way: Any) -> list[int]:
    runner = Runner(session, frozenset(), CONTEXT, spec.vocab_size)
    knobs = Knobs(drafting="auto up to 6", max_tokens=6, ignore_eos=True).replace(**way)
    return [token for event in runner.generate(ids, knobs) for token in event.tokens]


@pytest.mark.parametrize(
    ("name", "draft"),
    [("tiny-Q4_K_M.gguf", "tiny-dflash"), full("q3-F16.gguf", "q3-dflash"), ("tiny", "mtp")],
)
def test_the_same_bits(
    device_name: str, name: str, draft: str, tmp_path: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in passes and in chunks, drafts, trees, and steps that the device runs by itself."""
    on_card, on_host, spec = sessions(device_name, name, draft, tmp_path)
    ids = rng.integers(0, 250, 24).tolist()
    for least in (10_000, 1):
        monkeypatch.setattr(cuda_session, "MIN_ROWS", least)
        for session in (on_card, on_host):
            session.restore(None)
        assert np.array_equal(on_card.prefill(ids), on_host.prefill(ids))
        assert np.array_equal(on_card.draft(3, 0), on_host.draft(3, 0))
        tree = [3, 4, 5, 6, 7], [-1, 0, 0, 1, 1]
        assert np.array_equal(on_card.verify(*tree), on_host.verify(*tree))
    for session in (on_card, on_host):
        session.restore(None)
    assert tokens(on_card, spec, ids, mode="tree") == tokens(on_host, spec, ids, mode="tree")


@pytest.mark.parametrize("name", ["tiny-Q4_K_M.gguf", "targets/q3-F16.gguf"])
def test_the_card_holds_so_much_less(device_name: str, name: str) -> None:
    """A head that shares the tensor has tiles of its own there, and keeps them."""
    target, device = load_target(golden(name)), device_named(device_name)
    here, there = (Footprint(target.file, target.config, device.card, embedding_on_host=on) for on in (False, True))
    embedding = target.file.tensors["token_embd.weight"].n_bytes
    assert here.target_bytes - there.target_bytes == aligned(embedding)
    assert (here.host_bytes, there.host_bytes) == (0, embedding)
    for one in (here, there):
        assert one.weights(on_host=False) == here.target_bytes
        assert one.weights(on_host=True) == there.target_bytes
    assert there.target.output.tiles.shape == here.target.output.tiles.shape
