"""A new architecture from one file and a line in a table: CPU, oracle, emulated card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dflash_core import load_target
from dflash_core.arch import registry
from dflash_core.backends.cuda import session as cuda_session
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.plan import KernelConfig
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from support import engines, toy_architecture
from support.device_pairs import close
from support.emulated_device import EmulatedDevice

TOKENS, PARENTS = [5, 17, 40, 41, 99, 7], [-1, 0, 0, 1, 1, 4]
IDS = [3, 141, 59, 26, 53, 58, 97, 93]

pytestmark = pytest.mark.emulator
emulated = pytest.mark.skipif(engines.missing("emulated") is not None, reason=engines.missing("emulated") or "")


@pytest.fixture(scope="module")
def model() -> Any:
    pytest.importorskip("transformers")
    return toy_architecture.oracle()


@pytest.fixture
def file(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(registry.ARCHITECTURES, "toy", toy_architecture.ARCHITECTURE)
    return toy_architecture.write(tmp_path / "toy.gguf", model)


def session_on(target: Any, shared_bytes: int = 227 << 10, way: KernelConfig = KernelConfig()) -> CudaSession:  # noqa: B008 - frozen
    device = EmulatedDevice(shared_bytes=shared_bytes)
    device.card = replace(device.card, config=way)
    upload = DeviceUpload(device, target.file)
    on_device = DeviceTarget(device, upload, target.config, CHOICES["f16"])
    upload.close()
    return CudaSession(on_device, context=64)


def expected(model: Any, ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return np.asarray(model(torch.tensor([ids])).logits[0].float().numpy())


def path_to(node: int) -> list[int]:
    return [*path_to(PARENTS[node]), node] if node >= 0 else []


def check_tree(session: Any) -> None:
    """Every node of a tree has the bits that decoding its path token by token gives; so has what follows a commit."""
    session.restore(None)
    session.prefill(IDS)
    logits = session.verify(TOKENS, PARENTS)
    session.commit([0, 1, 4])
    follows = session.verify([8], [-1])
    session.restore(None)
    session.prefill(IDS)
    for node in path_to(5):
        alone = session.verify([TOKENS[node]], [-1])
        if node == 5:
            break
        assert np.array_equal(alone[0], logits[node])
        session.commit([0])
    assert np.array_equal(session.verify([8], [-1]), follows)


def test_a_toy_architecture_on_the_cpu(model: Any, file: Path) -> None:
    target = load_target(file, dtype=torch.float64)
    assert np.abs(target.logits(IDS) - expected(model, IDS)).max() < 1e-5
    session = target.session()
    session.prefill(IDS)
    logits = session.verify(TOKENS, PARENTS)
    for node in range(len(TOKENS)):
        path = [TOKENS[at] for at in path_to(node)]
        assert np.abs(logits[node] - expected(model, [*IDS, *path])[-1]).max() < 1e-5
    assert session.checkpoint().nbytes == 0


def test_a_toy_architecture_with_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference and a card run it, branches of trees included."""
    pytest.importorskip("transformers")
    monkeypatch.setitem(registry.ARCHITECTURES, "toy", toy_architecture.ARCHITECTURE)
    model = toy_architecture.oracle(window=5)
    test_a_toy_architecture_on_the_cpu(model, toy_architecture.write(tmp_path / "toy.gguf", model))
    session = session_on(load_target(tmp_path / "toy.gguf"))
    close(session.prefill(IDS), expected(model, IDS)[-1])
    check_tree(session)


@emulated
def test_a_toy_architecture_on_a_card_with_little_shared_memory(model: Any, file: Path) -> None:
    """Its matrices are small: only on purpose do they come in chunks, with the same bits."""
    chunks, whole = (
        session_on(load_target(file), 99 << 10, way) for way in (KernelConfig(chunked=True), KernelConfig())
    )
    for session, chunked in ((chunks, True), (whole, False)):
        products = [launch for launch in session.pass_launches(16, 0) if launch.file == "matmul.cu"]
        assert {"CHUNK" in launch.defines for launch in products} == {chunked}
    found = chunks.prefill(IDS)
    close(found, expected(model, IDS)[-1])
    assert np.array_equal(whole.prefill(IDS), found)
    check_tree(chunks)


@emulated
def test_a_toy_architecture_on_a_card(model: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = load_target(file)
    session = session_on(target)
    close(session.prefill(IDS), expected(model, IDS)[-1])
    check_tree(session)
    assert set(session.nbytes) == {"target KV"}
    kept = session.checkpoint()
    assert kept.nbytes == 0
    after = session.prefill([1, 2])
    session.restore(kept)
    assert np.array_equal(session.prefill([1, 2]), after)
    monkeypatch.setattr(cuda_session, "MIN_ROWS", 1)  # prompts in chunks
    session.restore(None)
    close(session.prefill(IDS), expected(model, IDS)[-1], 5e-2)
