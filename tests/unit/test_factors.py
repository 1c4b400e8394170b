"""What multiplies whole NVFP4 matrices: taken into them, or refused."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from dflash_core.errors import FormatError
from dflash_core.formats.factors import with_factors
from dflash_core.formats.gguf import open_gguf
from dflash_core.formats.weights import in_parts
from support.blocks import random_blocks

UP, EXPERTS = "blk.0.ffn_up", "blk.0.ffn_up_exps"


def write(path: Path, scales: dict[str, tuple[float, ...]]) -> dict[str, np.ndarray]:
    """A file with a matrix and two experts, and `scales`; what the blocks hold without them."""
    rng, kind = np.random.default_rng(3), gguf.GGMLQuantizationType.NVFP4
    writer = gguf.GGUFWriter(path, "none")
    found = {}
    for name, shape in ((f"{UP}.weight", (6, 128)), (f"{EXPERTS}.weight", (2, 3, 128))):
        raw = random_blocks(rng, "NVFP4", 6, 128)
        writer.add_tensor(name, raw.reshape(*shape[:-1], -1), raw_dtype=kind)
        found[name] = gguf.quants.dequantize(raw, kind).reshape(shape)
    for name, values in scales.items():
        writer.add_tensor(name, np.float32(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return found


@pytest.mark.parametrize("ending", ["scale", "weight.scale"])
def test_factors_are_part_of_their_matrices(tmp_path: Path, ending: str) -> None:
    scales = {f"{UP}.{ending}": (0.3,), f"{EXPERTS}.{ending}": (0.5, -7.0), f"{UP}.input_scale": (3.0,)}
    plain = write(tmp_path / "a.gguf", scales)
    file = with_factors(open_gguf(tmp_path / "a.gguf"))
    assert file.tensors.keys() == plain.keys()
    assert np.array_equal(file.float32(f"{UP}.weight"), plain[f"{UP}.weight"] * np.float32(0.3))
    assert np.array_equal(file.float32(f"{UP}.weight", slice(2, 4)), plain[f"{UP}.weight"][2:4] * np.float32(0.3))
    experts = plain[f"{EXPERTS}.weight"] * np.float32([0.5, -7])[:, None, None]
    assert np.array_equal(file.float32(f"{EXPERTS}.weight"), experts)
    assert np.array_equal(file.float32(f"{EXPERTS}.weight", slice(1, 2)), experts[1:])
    parts = in_parts(file.tensors[f"{UP}.weight"], {"a": 2, "b": 4})
    assert {part.factors for part in parts.values()} == {file.tensors[f"{UP}.weight"].factors}


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ({f"{UP}.scale": (1.0, 2.0)}, "blk.0.ffn_up.scale has 2 numbers, expected 1 finite;"),
        ({f"{EXPERTS}.scale": (1.0,)}, "blk.0.ffn_up_exps.scale has 1 numbers, expected 2 finite;"),
        ({f"{UP}.scale": (np.inf,)}, "expected 1 finite; convert it again"),
        ({"blk.9.ffn_up.scale": (1.0,)}, "has no blk.9.ffn_up.weight, which blk.9.ffn_up.scale multiplies;"),
    ],
)
def test_factors_that_fit_no_matrix(tmp_path: Path, scales: dict[str, tuple[float, ...]], message: str) -> None:
    write(tmp_path / "a.gguf", scales)
    with pytest.raises(FormatError, match=message):
        with_factors(open_gguf(tmp_path / "a.gguf"))
