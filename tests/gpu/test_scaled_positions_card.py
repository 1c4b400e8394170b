"""Scaled rotary positions, and files whose Q, K and V are one tensor, on a device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from dflash_core import load_target
from dflash_core.backends.cuda import session as cuda_session
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from support import random_family, random_model
from support.device_pairs import TOLERANCE, device_named, pair_of
from support.gguf_copy import stored, with_fused_qkv, write_copy
from support.golden import golden, reference
from support.mtp_device import mtp_pair_on
from support.mtp_files import HEAD
from support.on_a_device import in_passes
from support.random_rope import Scaled

NAMES = ["qwen35", *random_family.MODELS]


def session(device_name: str, path: Path) -> CudaSession:
    device, target = device_named(device_name), load_target(path)
    with device.stream():
        upload = DeviceUpload(device, target.file)
        on_device = DeviceTarget(device, upload, target.config, CHOICES["f16"])
        upload.close()
    return CudaSession(on_device, context=192)


def made(name: str, seed: int, path: Path) -> Any:
    """A random model that the kernels have shapes for, by Hugging Face, written to `path`."""
    rng, rope = np.random.default_rng(seed), Scaled.random(seed)
    kv_heads, head_dim = int(rng.integers(1, 3)), int(rng.choice([64, 128]))
    shape = replace(
        random_model.Shape.random(seed), layers=4 if name == "smollm3" else 2, interval=2, hidden=64,
        heads=2 * kv_heads, kv_heads=kv_heads, head_dim=head_dim, rope=64, k_heads=1, v_heads=2, k_size=128,
        v_size=128, kernel=4,
    )  # fmt: skip
    if name == "qwen35":
        model = random_model.hugging_face(shape, seed, rope)
        random_model.write_gguf(model, shape, path, rope)
        return model
    # All experts are taken: which are, rounding could not change.
    drawn = replace(random_family.Drawn.random(seed), shape=shape, experts=4, used=4, width=32, shared=32)
    model = random_family.hugging_face(name, drawn, seed, rope)
    random_family.write_gguf(name, model, drawn, path, rope)
    return model


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 10))]
)  # fmt: skip
def test_random_configurations(
    device_name: str, name: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(name, seed, tmp_path / "random.gguf")
    on_device = session(device_name, tmp_path / "random.gguf")
    ids = [int(token) for token in np.random.default_rng(seed).integers(0, random_model.VOCAB, 80)]
    with torch.no_grad():
        expected = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    monkeypatch.setattr(cuda_session, "MIN_ROWS", 65)  # a chunk of the prompt, then passes
    found = [on_device.prefill(ids[:70])]
    found = [*found, *on_device.verify(ids[70:], range(-1, len(ids) - 71))]
    assert np.abs(np.array(found) - expected[69:]).max() < TOLERANCE * max(1.0, float(expected.std()))


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24, "attention_factor": 1.25}


def test_a_drafter_of_scaled_positions(device_name: str, tmp_path: Path) -> None:
    folder = tmp_path / "drafter"
    folder.mkdir()
    plain = golden("targets/q3-dflash")
    settings = json.loads((plain / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"rope_scaling": YARN}))
    (folder / "model.safetensors").symlink_to(plain / "model.safetensors")
    drafts = []
    for files in (folder, plain):
        pair = pair_of(device_named(device_name), golden("targets/q3-F16.gguf"), files, half=True)
        ids = [int(token) for token in reference(golden("targets/q3-F16.gguf"))["ids"]][:24]
        for one in pair.sessions():
            one.prefill(ids)
            drafts.append(one.draft(7, 0))
    scaled, on_cpu, unscaled, _ = drafts
    assert np.abs(scaled - on_cpu).max() < TOLERANCE
    assert np.abs(scaled - unscaled).max() > 2 * TOLERANCE


def test_an_mtp_head_of_scaled_positions(device_name: str, tmp_path: Path) -> None:
    """A head takes the scaling of its file, which usually equals its target's."""
    told = Scaled("yarn", 4.0, 24, 1.25, None).keys("qwen35")
    reader = gguf.GGUFReader(HEAD)
    head = write_copy(tmp_path / "head.gguf", reader, stored(reader), told)
    drafts = []
    for file in (head, HEAD):
        pair = mtp_pair_on(device_named(device_name), head_file=file)
        for one in pair.sessions():
            one.prefill([*range(40, 90)])
            drafts.append(one.draft(7, 0)[0])
    scaled, on_cpu, unscaled, _ = drafts
    assert np.abs(scaled - on_cpu).max() < TOLERANCE
    assert np.abs(scaled - unscaled).max() > 2 * TOLERANCE


@pytest.mark.parametrize("name", ["targets/q3-Q8_0.gguf", "targets/q35moe-F16.gguf"])
def test_one_tensor_of_queries_keys_and_values(device_name: str, name: str, tmp_path: Path) -> None:
    """What is loaded is, bit for bit, what three tensors give."""
    fused = with_fused_qkv(tmp_path / "fused.gguf", golden(name))
    ids = [int(token) for token in reference(golden(name))["ids"]]
    found = [in_passes(session(device_name, path), ids) for path in (fused, golden(name))]
    assert np.array_equal(*found)
