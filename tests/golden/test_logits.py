"""Logits and hidden states of every golden model against Hugging Face's, whatever the chunking."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dflash_core import load_draft, load_target
from dflash_core.backends.cpu.session import CpuSession
from support.behind import draft_logits
from support.golden import golden, goldens, reference

TARGETS = goldens("tiny-[!dl]*.gguf")
DRAFTS = [path for path in goldens("tiny-dflash*") if path.suffix in ("", ".gguf")]


def assert_logits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert np.abs(ours - theirs).max() < 2e-3
    top = np.sort(theirs, axis=-1)
    clear = top[:, -1] - top[:, -2] > 1e-3
    assert (ours.argmax(-1) == theirs.argmax(-1))[clear].all()


@pytest.mark.parametrize("path", TARGETS, ids=lambda path: path.stem)
def test_target_matches_reference(path: Path) -> None:
    target, expected = load_target(path), reference(path)
    assert_logits(target.logits(expected["ids"]), expected["logits"])
    layers = range(target.config.block_count - 1)  # the reference's last row is after the final norm
    hidden = target.hidden(expected["ids"], layers).reshape(len(expected["ids"]), len(layers), -1)
    for layer in layers:
        assert np.abs(hidden[:, layer] - expected["hidden"][layer + 1]).max() < 2e-3


@pytest.mark.parametrize("chunk", [1, 63, 64, 65, 127, 129, 300])
def test_any_chunk_length_gives_the_same_logits(chunk: int) -> None:
    target, expected = load_target(golden("tiny-F16.gguf")), np.load(golden("tiny-long.npz"))
    session, ids, rows = target.session(captured=(0, 1, 2)), [int(i) for i in expected["ids"]], []
    hidden = []
    for at in range(0, len(ids), chunk):
        part = ids[at : at + chunk]
        rows.append(session.verify(part, range(-1, len(part) - 1)))
        hidden.append(session.features().reshape(len(part), 3, -1))
        session.commit(range(len(part)))
    assert_logits(np.concatenate(rows)[::4], expected["logits"])  # what a border spoils, it spoils in all later rows
    every = np.concatenate(hidden).swapaxes(0, 1)[:, ::37]
    assert np.abs(every - expected["hidden"][1:4]).max() < 2e-3


def test_prefill_split_anywhere_gives_the_same_state() -> None:
    target, ids = load_target(golden("tiny-F16.gguf")), [int(i) for i in np.load(golden("tiny-F16.npz"))["ids"]]
    whole = CpuSession(target.model).prefill(ids)
    for cut in range(1, len(ids)):
        session = CpuSession(target.model)
        session.prefill(ids[:cut])
        assert np.abs(session.prefill(ids[cut:]) - whole).max() < 2e-3


def test_packed_weights_give_the_same_logits() -> None:
    expected = reference(golden("tiny-Q4_K_M.gguf"))
    packed = load_target(golden("tiny-Q4_K_M.gguf"), packed=True)
    assert packed.packed
    assert_logits(packed.logits(expected["ids"]), expected["logits"])


@pytest.mark.parametrize("path", DRAFTS, ids=lambda path: path.name)
def test_drafter_matches_reference(path: Path) -> None:
    name = "tiny-dflash-swa" if "swa" in path.name else "tiny-dflash"
    expected = np.load(goldens(f"{name}.npz")[0])
    drafter = load_draft(path, load_target(golden("tiny-F16.gguf")))
    ours = draft_logits(drafter, expected["features"], int(expected["anchor"]))
    f16 = "lucebox" in path.name or "buun" in path.name
    assert np.abs(ours - expected["draft_logits"]).max() < (2e-3 if f16 else 1e-3)


def test_features_are_the_targets_hidden_states() -> None:
    target, expected = load_target(golden("tiny-F16.gguf")), np.load(golden("tiny-dflash.npz"))
    drafter = load_draft(golden("tiny-dflash"), target)
    ids = np.load(golden("tiny-F16.npz"))["ids"]
    assert np.abs(target.hidden(ids, drafter.config.target_layers) - expected["features"]).max() < 2e-3
