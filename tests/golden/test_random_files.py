"""Random models in unusual files, with a type for each tensor or with MTP heads, against independent readers."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from dflash_core import load_draft, load_target
from support.mtp_logits import mtp_logits
from support.random_family import first_close
from support.random_files import drawn, head, in_mixed_types, trunk, with_head, written
from support.random_model import VOCAB

NAMES = ("qwen35", "qwen35moe", "qwen3", "qwen3moe")
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 8))]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_type_for_each_tensor(name: str, seed: int, tmp_path: Path) -> None:
    """Unpacked weights are those of the file of floats; packed ones are the same within rounding."""
    written(name, drawn(seed, wide=True), seed, tmp_path / "a.gguf")
    mixed, floats, used = in_mixed_types(tmp_path / "a.gguf", seed)
    assert len(used) >= 6, used
    ids = np.random.default_rng(seed).integers(0, VOCAB, 24)
    expected = load_target(floats).logits(ids)
    assert expected.std() > 0.01
    assert np.array_equal(load_target(mixed, packed=False).logits(ids), expected)
    target = load_target(mixed, packed=True)
    rows = first_close(target, ids)
    assert np.abs(target.logits(ids) - expected)[:rows].max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_mtp_heads(name: str, seed: int, tmp_path: Path) -> None:
    """Against Hugging Face's layer: all pairs of a text, and a chain of four after it."""
    of = drawn(seed)
    model = written(name, of, seed, tmp_path / "a.gguf")
    path = with_head(tmp_path / "a.gguf", tmp_path / "b.gguf", name, seed)
    block = f"blk.{of.shape.layers - 1}.nextn."
    beside = {
        tensor.name.removeprefix(block).removesuffix(".weight"): torch.from_numpy(np.array(tensor.data))
        for tensor in gguf.GGUFReader(path).tensors if tensor.name.startswith(block)
    }  # fmt: skip
    ids = np.random.default_rng(seed).integers(0, VOCAB, 40).tolist()
    target, hidden = load_target(path), trunk(model, ids)
    tokens, before = ids[1:], hidden[:-1]
    rows = first_close(target, ids)
    found = mtp_logits(target, ids)
    assert np.abs(found - head(model, beside, tokens, before)[1].numpy())[: rows - 1].max() < 2e-3
    if rows < len(ids):
        return  # experts were chosen by a tiny margin: what follows may differ
    session = target.session(load_draft("mtp", target))
    session.prefill(ids)
    chain, token, last = session.draft(7, 0)[:4], 7, hidden[-1]
    for row in chain:
        tokens, before = [*tokens, token], torch.cat((before, last[None]))
        made, logits = head(model, beside, tokens, before)
        assert np.abs(row - logits[-1].numpy()).max() < 2e-3
        token, last = int(logits[-1].argmax()), made[-1]
