"""Quantised matrices of folders: the values of the golden file and of layouts written from their definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from dflash_core.backends.cuda.layers.embedding import Embedding
from dflash_core.backends.cuda.upload import Upload
from dflash_core.errors import UnsupportedError
from dflash_core.formats.folders.file import folder_file
from dflash_core.formats.folders.layouts import Modules
from dflash_core.formats.folders.parts import rows_in_order, stack
from dflash_core.formats.quants import to_float32
from dflash_core.formats.safetensors import open_safetensors
from support.quantised import LAYOUTS, Tensors, awq, in_layout


def opened(path: Path, tensors: Tensors, plus_one: bool = True) -> Modules:
    save_file({name: one.contiguous() for name, one in tensors.items()}, path)
    return Modules.of(open_safetensors(path, packed=True), plus_one)


@pytest.mark.parametrize("at_once", [256, 8])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_are_those_of_the_definition(
    layout: str, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where several threads unpack parts of the rows."""
    monkeypatch.setattr("dflash_core.formats.folders.parts.AT_ONCE", at_once)
    rng = np.random.default_rng(0)
    tensors, values = in_layout(rng, "a.b", layout, rng.normal(size=(136, 256)))
    modules = opened(tmp_path / "a.safetensors", tensors, layout != "gptq-v2")
    file = folder_file(tmp_path, modules.file, {}, {"x": modules.part("a.b")})
    found = file.float32("x")
    assert found.shape == values.shape
    assert np.array_equal(found, values.astype(np.float32)), "the products of code and scale, rounded once"
    assert np.array_equal(file.float32("x", slice(17, 103)), found[17:103])
    assert np.array_equal(file.raw("x", slice(17, 103)), file.raw("x")[17:103])


def test_symmetric_groups_of_128_have_a_type_of_their_own(tmp_path: Path) -> None:
    """Where all zeros are 8: what the folder says of them until a load has read them."""
    rng = np.random.default_rng(0)
    tensors, values = in_layout(rng, "a", "gptq-128-signed", rng.normal(size=(64, 256)))
    modules = opened(tmp_path / "a.safetensors", tensors)
    assert modules.part("a").type == "INT4S_128"
    unsaid = Modules.of(modules.file, symmetric=False).part("a")
    assert unsaid.type == "INT4_128"
    assert unsaid.settled().type == "INT4S_128"
    tensors["a.qzeros"][1, 2] += 1 << 8
    other = opened(tmp_path / "b.safetensors", tensors).part("a")
    assert other.type == "INT4S_128"
    assert other.settled().type == rows_in_order(other, tuple(range(64))).settled().type == "INT4_128"
    both = stack((modules.part("a"), other)).settled()
    assert both.type == "INT4_128"
    assert np.array_equal(to_float32(both.read(0, 64), both.type), values.astype(np.float32))
    alike = stack((modules.part("a"), modules.part("a")))
    assert alike.type == "INT4S_128"


def test_a_matrix_of_awq_without_zeros_has_zeros_of_8(tmp_path: Path) -> None:
    weight = np.random.default_rng(2).standard_normal((64, 256))
    tensors, values = awq(np.random.default_rng(2), "a", weight, group=128, symmetric=True, bf16=False)
    del tensors["a.qzeros"]
    part = opened(tmp_path / "a.safetensors", tensors).part("a").settled()
    assert part.type == "INT4S_128"
    assert np.array_equal(to_float32(part.read(0, 64), part.type), values.astype(np.float32))


GOLDEN = Path(__file__).parent / "data/layouts.safetensors"


@pytest.mark.parametrize("name", ["gptq_sym", "gptq_asym", "gptq_asym64", "awq", "nvfp4_modelopt", "nvfp4_ct"])
def test_golden_layouts(name: str) -> None:
    modules = Modules.of(open_safetensors(GOLDEN, packed=True), zeros_plus_one=True)
    file = folder_file(GOLDEN, modules.file, {}, {"x": modules.part(name)})
    expected = np.load(GOLDEN.with_suffix(".npz"))
    assert np.array_equal(file.float32("x"), expected["nvfp4_modelopt" if name == "nvfp4_ct" else name])
    if name.startswith("nvfp4"):
        assert np.array_equal(file.raw("x"), expected["nvfp4_ggml_bytes"])


def test_an_embedding_with_a_factor_is_refused_on_a_card(tmp_path: Path) -> None:
    """Its kernel reads blocks as they are stored. The plan says so, before anything is read."""
    tensors, _ = in_layout(np.random.default_rng(0), "a", "nvfp4-modelopt", np.ones((64, 128)))
    modules = opened(tmp_path / "a.safetensors", tensors)
    file = folder_file(tmp_path, modules.file, {}, {"token_embd.weight": modules.part("a")})
    upload = Upload(file)
    with pytest.raises(UnsupportedError, match=r"NVFP4 with a factor of the whole tensor.*; run it on the CPU"):
        Embedding(upload, 128)
    with pytest.raises(UnsupportedError, match="with a factor"):
        Embedding(upload, 128, on_host=True)
