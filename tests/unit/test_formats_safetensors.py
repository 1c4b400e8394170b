"""The safetensors reader: valid files are compared with the library, invalid headers are written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from dflash_core.errors import UnsupportedError
from dflash_core.formats.safetensors import open_safetensors
from support.formats import F32_4X4 as ONE
from support.formats import SMALL_SAFETENSORS, peak_of_reading, refused, weights, write_bytes, write_safetensors
from support.formats import safetensors_file as content
from support.golden import golden

SHAPES: dict[str, tuple[int, ...]] = {"a": (5, 4), "b": (3,), "c": (2, 3, 4)}


def test_golden_drafter_agrees_with_the_library() -> None:
    path = golden("tiny-dflash") / "model.safetensors"
    opened, oracle = open_safetensors(path), load_file(path)
    assert opened.tensors.keys() == oracle.keys()
    for name, expected in oracle.items():
        assert opened.tensors[name].shape == tuple(expected.shape)
        assert np.array_equal(opened.float32(name), expected.float().numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_types_rows_and_shapes(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {name: torch.from_numpy(values).to(dtype) for name, values in weights(SHAPES).items()}
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt"})
    opened = open_safetensors(tmp_path / "a.safetensors")
    assert opened.tensors.keys() == SHAPES.keys()
    for name, tensor in tensors.items():
        expected = tensor.float().numpy()
        assert np.array_equal(opened.float32(name), expected)
        assert np.array_equal(opened.float32(name, slice(1, 3)), expected[1:3])
    assert opened.raw("c").shape == (6, 4 * dtype.itemsize)


def test_sharded_folder(tmp_path: Path) -> None:
    tensors = weights(SHAPES)
    files = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    files["c"] = files["a"]
    for file in sorted(set(files.values())):
        write_safetensors(tmp_path / file, {name: tensors[name] for name in files if files[name] == file})
    index = tmp_path / "model.safetensors.index.json"
    assert "has 2 .safetensors files and no model.safetensors.index.json; download the whole" in refused(
        open_safetensors, tmp_path
    )
    index.write_text(json.dumps({"weight_map": files}))
    opened = open_safetensors(tmp_path)
    assert all(np.array_equal(opened.float32(name), tensors[name]) for name in SHAPES)

    index.write_text(json.dumps({"weight_map": files | {"b": files["a"]}}))
    assert "b is not in the shard it names" in refused(open_safetensors, tmp_path)
    index.write_text(json.dumps({"weight_map": files | {"b": "../model.safetensors"}}))
    assert "names '../model.safetensors', expected a .safetensors file in its folder" in refused(
        open_safetensors, tmp_path
    )
    index.write_text(json.dumps({"weight_map": files | {"b": "other.safetensors"}}))
    assert "other.safetensors of 2 shards is not there; download it too" in refused(open_safetensors, tmp_path)
    index.write_text(json.dumps({"weight_map": []}))
    assert "model.safetensors.index.json has no weight_map" in refused(open_safetensors, tmp_path)
    index.write_text(json.dumps({"weight_map": files}))
    write_safetensors(tmp_path / files["b"], {"b": tensors["b"], "a": tensors["a"]})
    assert "tensor a is also in an earlier shard" in refused(open_safetensors, tmp_path)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\1\2", "is not a whole safetensors file: it starts with the bytes 01 02, a"),
        ((2**64 - 1).to_bytes(8, "little") + b"{}", "a header length of 18,446,744,073,709,551,615, expected 2 to 2"),
        ((100).to_bytes(8, "little") + b"{}", "a header length of 100, expected 2 to 2; download it again"),
        (content(b""), "a header length of 0"),
        (content(b"[1]"), "a.safetensors is JSON of type list, expected an object"),
        (content(b'{"a": nope}'), "a.safetensors is not valid JSON: Expecting value"),
        (content(b'{"a": 1' + b"0" * 5000 + b"}"), "is not valid JSON: Exceeds the limit"),
        (content(b"\xff\xfe{}"), "is not valid JSON"),
        (content(b"[" * 100_000), "is nested too deeply"),
        (content(b'{"a": {}, "a": {}}'), "an object has one name twice"),
        (content({"a": 3}), "tensor a lacks a proper dtype, shape or data_offsets"),
        (content({"a": ONE | {"shape": [4.0, 4]}}), "tensor a lacks a proper dtype, shape or data_offsets"),
        (content({"a": ONE | {"shape": [True, 4]}}), "tensor a lacks a proper dtype, shape or data_offsets"),
        (content({"a": ONE | {"shape": [-4, -4]}}), "tensor a lacks a proper dtype, shape or data_offsets"),
        (content({"a": ONE | {"data_offsets": [64]}}), "tensor a lacks a proper dtype, shape or data_offsets"),
        (content({"a": ONE | {"shape": []}}), "tensor a has shape [], expected 1 to 4 positive sizes"),
        (content({"a": ONE | {"shape": [0, 4]}}), "tensor a has shape [0, 4], expected 1 to 4 positive sizes"),
        (content({"a": ONE | {"shape": [4, 5]}}), "spans bytes 0 to 64, expected 80 bytes for [4, 5] of F32"),
        (content({"a": ONE | {"data_offsets": [64, 0]}}), "spans bytes 64 to 0, expected 64 bytes"),
        (content({"a": ONE | {"data_offsets": [1 << 40, (1 << 40) + 64]}}), "tensor a ends 1,099,511,627,"),
        (
            content({"b": ONE | {"data_offsets": [60, 124]}, "c": ONE | {"data_offsets": [124, 188]}, "a": ONE}, 188),
            "a.safetensors: tensors a and b share 4 bytes at offset ",
        ),
        (content({"a": ONE}, 60), "a.safetensors is truncated: tensor a ends 4 bytes past the end of the file's"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "file",
)  # fmt: skip
def test_damaged_files(tmp_path: Path, raw: bytes, message: str) -> None:
    assert message in refused(open_safetensors, write_bytes(tmp_path / "a.safetensors", raw))


def test_other_types_are_refused_by_name(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "a.safetensors", content({"a": ONE | {"dtype": "F8_E4M3"}}))
    assert refused(open_safetensors, path, UnsupportedError) == (
        "a.safetensors: tensor a is stored as F8_E4M3, expected one of F32 F16 BF16"
    )


def test_truncation_at_every_byte(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", weights(SHAPES))
    whole = path.read_bytes()
    for length in range(len(whole)):
        refused(open_safetensors, write_bytes(path, whole[:length]))


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    changes=st.lists(st.tuples(st.integers(0, len(SMALL_SAFETENSORS) - 1), st.integers(0, 255)), max_size=6),
    length=st.integers(0, len(SMALL_SAFETENSORS) + 16),
)
def test_fuzz(tmp_path: Path, changes: list[tuple[int, int]], length: int) -> None:
    raw = bytearray(SMALL_SAFETENSORS)
    for at, value in changes:
        raw[at] = value
    path = write_bytes(tmp_path / "a.safetensors", (bytes(raw) + bytes(16))[:length])
    assert peak_of_reading(open_safetensors, path) < 300_000
