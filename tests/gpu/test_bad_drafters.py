"""Drafter files that do not fit: one line each, the same on the CPU and on a card, and nothing is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_core import load_target
from dflash_core.arch.draft_heads import Convolution, Markov
from dflash_core.backends.cuda import target as cuda_target
from dflash_core.engine import load_pair
from dflash_core.errors import DFlashError
from support import engines
from support.block_device import SIZES
from support.draft_files import changed, config_for, gguf_keys, name_in, random_weights, write_drafter
from support.emulated_device import EmulatedCard
from support.formats import write_gguf
from support.golden import golden

TARGET = golden("tiny-F16.gguf")
HIDDEN, VOCABULARY = 256, 768

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.skipif(engines.missing("emulated") is not None, reason=engines.missing("emulated") or ""),
]


@pytest.fixture(autouse=True)
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the emulator the first card."""
    monkeypatch.setattr(cuda_target, "open_device", lambda index: EmulatedCard())


def damaged(kind: str, changes: dict[str, Any], form: str = "upstream", **config: Any) -> Callable[[Path], Path]:
    """A function that writes a drafter with some tensors replaced, or left out where the replacement is None."""

    def write(folder: Path) -> Path:
        made = config_for(load_target(TARGET), kind, **{**SIZES, **config})
        w = {name: values for name, values in {**random_weights(made), **changes}.items() if values is not None}
        return write_drafter(folder / "d", made, form, weights=w)

    return write


def uneven(folder: Path) -> Path:
    made = config_for(load_target(TARGET), "dflash2")
    other = changed(made, conv=Convolution(2, 12))
    return write_drafter(folder / "d", other, "upstream", weights=random_weights(made))


def mixed(one: str, other: str) -> Callable[[Path], Path]:
    """Half of the layers named in one family, half in the other."""

    def write(folder: Path) -> Path:
        made = config_for(load_target(TARGET), "dflash2")
        w = {name_in(other if "blk.1" in name and "_conv" in name else one, name): values
             for name, values in random_weights(made).items()}  # fmt: skip
        if "z-lab" in (one, other):  # inside a GGUF, whose blocks are named so
            w = {name.replace("layers.", "blk."): values for name, values in w.items()}
        return write_gguf(folder / "d.gguf", gguf_keys(made), w)

    return write


def other_head(kind: str, gguf: bool) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        made = config_for(load_target(TARGET), "dspark")
        if gguf:
            keys = gguf_keys(made) | {"dflash.markov_head_type": kind}
            return write_gguf(folder / "d.gguf", keys, random_weights(made))
        path = write_drafter(folder / "d", made)
        config = json.loads((path / "config.json").read_text())
        config["dflash_config"]["markov_head_type"] = kind
        (path / "config.json").write_text(json.dumps(config))
        return path

    return write


TABLES = ("selector_hidden.weight", "selector_predecessor.weight", "selector_successor.weight")
CASES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no tables": (damaged("dflash2", dict.fromkeys(TABLES)), "tensors are missing: selector_hidden.weight"),
    "no tables, a folder": (damaged("dflash2", dict.fromkeys(TABLES), "z-lab"), "tensors are missing: selector_hidden"),
    "no convolution": (
        damaged("dflash2", {"blk.0.attn_conv_base": None}, "fork"), "tensors are missing: blk.0.attn_conv_base",
    ),
    "another rank": (
        damaged("dflash2", {"selector_successor.weight": np.zeros((VOCABULARY, 4), np.float32)}),
        f"has shape [{VOCABULARY}, 4], expected [{VOCABULARY}, 8]",
    ),
    "another rank, Markov": (
        damaged("dspark", {"markov_w2.weight": np.zeros((VOCABULARY, 6), np.float32)}),
        f"has shape [{VOCABULARY}, 6], expected [{VOCABULARY}, 8]",
    ),
    "half a Markov head": (damaged("dspark", {"markov_w1.weight": None}, "z-lab"), "tensors are missing: markov_w1"),
    "confidence of another width": (
        damaged("dspark", {}, markov=Markov(8, confidence=HIDDEN + 4)),
        f"the confidence head has {HIDDEN + 4} inputs, expected {HIDDEN} or {HIDDEN + 8}",
    ),
    "uneven groups": (uneven, "expected a multiple of conv_group_size (12)"),
    "upstream and fork": (mixed("upstream", "fork"), "mixes two families of tensor names, upstream"),
    "fork and z-lab": (mixed("fork", "z-lab"), "mixes two families of tensor names, fork"),
    "z-lab and upstream": (mixed("upstream", "z-lab"), "mixes two families of tensor names, upstream"),
    "a gated head": (other_head("gated", gguf=False), "has a Markov head of type gated, expected vanilla"),
    "an rnn head": (other_head("rnn", gguf=True), "has a Markov head of type rnn, expected vanilla"),
    "a list that repeats itself": (
        damaged("dspark", {"d2t": np.full(300, 7, np.int64)}, draft_vocab=300),
        f"d2t names tokens 7 to 7 for 300 rows, expected each once and under {VOCABULARY}",
    ),
    "a list beyond the vocabulary": (
        damaged("dspark", {"d2t": np.arange(300) + 500}, draft_vocab=300),
        f"d2t names tokens 500 to 799 for 300 rows, expected each once and under {VOCABULARY}",
    ),
    "a list of another length": (
        damaged("dspark", {"d2t": np.arange(200)}, draft_vocab=300),
        f"has shape [300, {HIDDEN}], expected [200, {HIDDEN}]",
    ),
    "a list of no whole numbers": (
        damaged("dspark", {"d2t": np.arange(300).astype(np.float32)}, draft_vocab=300),
        "d.gguf: tensor d2t is stored as F32, expected a list of I32 or I64; convert the file again",
    ),
    "another vocabulary": (damaged("dspark", {}, vocab_size=700), "vocabulary of 700 tokens, expected 768"),
    "another width": (damaged("dspark", {}, embedding_length=128, markov=Markov(8)), "hidden size 128, expected 256"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_drafter_that_does_not_fit(tmp_path: Path, name: str) -> None:
    make, expected = CASES[name]
    path, said = make(tmp_path), []
    for device in ("cpu", "cuda"):
        with pytest.raises(DFlashError) as caught:
            load_pair(TARGET, path, device, context_length=64)
        said.append(str(caught.value))
    assert expected in said[0]
    assert said[0] == said[1]
    assert "\n" not in said[0]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_drafter_of_another_generation_loads_with_a_note(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = config_for(load_target(TARGET), "dspark", name="Qwen3.6-27B-DSpark", **SIZES)
    path = write_drafter(tmp_path / "Qwen3.6-27B-DSpark", made, "upstream")
    monkeypatch.setattr("dflash_core.config.generation", lambda name: "3.6" if "3.6" in name else "3.8")
    engine = load_pair(TARGET, path, device, context_length=64)
    assert engine.draft is not None
    assert engine.draft.capabilities.kind == "dspark"
    assert [note for note in engine.draft.notes if "made for Qwen3.6, the target is Qwen3.8" in note]
