"""The GGUF reader: valid files are compared with gguf's own reader, invalid ones are written byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from dflash_core.formats.gguf import open_gguf
from dflash_core.formats.quants import SUPPORTED, UNSUPPORTED, to_float32
from support.formats import (
    ARRAY,
    CODES,
    STRING,
    U32,
    array,
    entry,
    header,
    refused,
    scalar,
    tensor,
    text,
    weights,
    write_bytes,
    write_gguf,
)
from support.golden import goldens

NEWER = ("Q2_0",)
UNDECODED = ("Q1_0", *NEWER)
"""Types that the gguf package does not know, and that it knows but does not decode."""


def quantised_file(path: Path, name: str, shape: tuple[int, ...]) -> tuple[Path, np.ndarray]:
    """A file with one tensor `w` of random blocks, and those blocks."""
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(1).integers(0, 256, (*shape[:-1], shape[-1] // block * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(path, "none")
    writer.add_tensor("w", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, raw


@pytest.mark.parametrize("path", goldens("**/*.gguf"), ids=lambda path: path.stem)
def test_golden_files_agree_with_ggufs_reader(path: Path) -> None:
    opened, oracle = open_gguf(path), gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in oracle.fields.items() if not key.startswith("GGUF.")}
    assert dict(opened.metadata) == fields
    assert list(opened.tensors) == [item.name for item in oracle.tensors]
    for item in oracle.tensors:
        info = opened.tensors[item.name]
        assert info.shape == tuple(int(size) for size in reversed(item.shape))
        assert (info.type, info.n_bytes, info.offset) == (item.tensor_type.name, item.n_bytes, item.data_offset)
        assert info.n_elements == item.n_elements
        assert np.array_equal(opened.raw(item.name).ravel(), item.data.ravel().view(np.uint8))
        expected = dequantize(item.data, item.tensor_type).reshape(info.shape)
        assert np.array_equal(opened.float32(item.name), expected)


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    for number, kind in SUPPORTED.items():
        if kind.name not in NEWER:
            theirs = gguf.GGMLQuantizationType(number)
            assert (kind.name, (kind.block, kind.size)) == (theirs.name, gguf.GGML_QUANT_SIZES[theirs])
    named = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    assert named.items() <= ({n: kind.name for n, kind in SUPPORTED.items()} | UNSUPPORTED).items()


@pytest.mark.parametrize("name", [kind.name for kind in SUPPORTED.values() if kind.name not in UNDECODED])
def test_every_type_dequantises_like_the_oracle(tmp_path: Path, name: str) -> None:
    path, raw = quantised_file(tmp_path / "a.gguf", name, (37, 512))
    opened = open_gguf(path)
    with np.errstate(all="ignore"):
        expected = dequantize(raw, gguf.GGMLQuantizationType[name])
    assert np.array_equal(opened.raw("w"), raw)
    assert np.array_equal(opened.float32("w"), expected, equal_nan=True)
    for rows in (slice(0, 1), slice(5, 30), slice(-3, None), slice(4, 4)):
        assert np.array_equal(opened.float32("w", rows), expected[rows], equal_nan=True)
    values = opened.float32("w")
    assert values.dtype == np.float32
    assert values.flags.writeable


@pytest.mark.parametrize(("name", "bits", "values"), [("Q1_0", 1, (-1, 1)), ("Q2_0", 2, (-1, 0, 1, 2))])
def test_types_that_the_gguf_package_lacks(tmp_path: Path, name: str, bits: int, values: tuple[int, ...]) -> None:
    number, kind = next((number, kind) for number, kind in SUPPORTED.items() if kind.name == name)
    blocks = np.random.default_rng(1).integers(0, 256, (5, 512 // kind.block, 18), dtype=np.uint8)
    path = write_bytes(tmp_path / "a.gguf", header([], [tensor("w", [512, 5], number)]) + blocks.tobytes())
    found = open_gguf(path).float32("w").reshape(-1, kind.block)
    for block, row in zip(blocks.reshape(-1, 18), found, strict=True):
        (d,) = struct.unpack("<e", block[:2].tobytes())
        codes = int.from_bytes(block[2:].tobytes(), "little")
        want = [float(d) * values[codes >> bits * i & (1 << bits) - 1] for i in range(kind.block)]
        assert np.array_equal(row, np.array(want), equal_nan=True)
    assert open_gguf(path).float32("w", slice(2, 2)).shape == (0, 512)


@pytest.mark.parametrize("exponent", [0, 1, 2, 127, 254, 255])
def test_mxfp4_scales_to_the_ends_of_float32(exponent: int) -> None:
    raw = np.array([[exponent, *(code | code << 4 for code in range(16))]], np.uint8)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    with np.errstate(over="ignore"):
        want = np.ldexp(np.concatenate([values, -values] * 2), exponent - 127).astype(np.float32)
    assert np.array_equal(to_float32(raw, "MXFP4")[0], want)


def test_three_dimensions_and_vectors(tmp_path: Path) -> None:
    path, raw = quantised_file(tmp_path / "a.gguf", "Q4_0", (3, 5, 64))
    opened = open_gguf(path)
    expected = dequantize(raw, gguf.GGMLQuantizationType.Q4_0)
    assert opened.raw("w").shape == (15, 36)
    with np.errstate(all="ignore"):
        assert np.array_equal(opened.float32("w", slice(1, 3)), expected[1:3], equal_nan=True)
    vector, raw = quantised_file(tmp_path / "b.gguf", "Q8_0", (64,))
    expected = dequantize(raw, gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(open_gguf(vector).float32("w", slice(10, 20)), expected[10:20], equal_nan=True)


def test_all_metadata_types(tmp_path: Path) -> None:
    values = {0: 200, 1: -5, 2: 60_000, 3: -30_000, 4: 4_000_000_000, 5: -2_000_000_000, 6: 0.5, 7: True}
    values |= {10: 2**63 + 1, 11: -(2**62), 12: 1e300}
    entries = [scalar(f"scalar.{kind}", kind, value) for kind, value in values.items()]
    for kind, value in values.items():
        code = CODES[kind]
        entries.append(entry(f"array.{kind}", ARRAY, array(kind, 2, struct.pack(f"<2{code}", value, 1))))
    entries += [
        entry("text", STRING, text("Ġ\n日本")),
        entry("texts", ARRAY, array(STRING, 3, text("a") + text("") + text("ü"))),
        entry("none", ARRAY, array(STRING, 0, b"")),
        entry("nested", ARRAY, array(ARRAY, 2, array(U32, 1, b"\1\0\0\0") + array(STRING, 1, text("x")))),
    ]
    for version in (2, 3):
        opened = open_gguf(write_bytes(tmp_path / "a.gguf", header(entries, version=version)))
        assert opened.version == version
        for kind, value in values.items():
            found, listed = opened.metadata[f"scalar.{kind}"], opened.metadata[f"array.{kind}"]
            assert (found, type(found)) == (value, type(value))
            assert listed == [value, 1]
            assert isinstance(listed, list)
            assert type(listed[0]) is type(value)
        assert opened.metadata["text"] == "Ġ\n日本"
        assert opened.metadata["texts"] == ["a", "", "ü"]
        assert opened.metadata["none"] == []
        assert opened.metadata["nested"] == [[1], ["x"]]


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_alignment_of_the_file_is_used(tmp_path: Path, alignment: int) -> None:
    content = header(
        [scalar("general.alignment", U32, alignment)],
        [tensor("a", [4]), tensor("b", [4], offset=alignment * 16)],
        data=alignment * 16 + 16,
        alignment=alignment,
    )
    opened = open_gguf(write_bytes(tmp_path / "a.gguf", content))
    assert opened.tensors["a"].offset % alignment == 0
    assert opened.tensors["b"].offset - opened.tensors["a"].offset == alignment * 16
    assert np.array_equal(opened.raw("a")[0], np.arange(16, dtype=np.uint8))


def test_a_real_size_vocabulary(tmp_path: Path) -> None:
    tokens = [f"Ġtok{index}" for index in range(248_320)]
    keys = {"tokens": tokens, "types": [1] * 248_320, "merges": tokens[:247_587]}
    opened = open_gguf(write_gguf(tmp_path / "a.gguf", keys, {}))
    assert opened.metadata["tokens"] == tokens
    assert opened.metadata["types"] == [1] * 248_320
    assert opened.metadata["merges"] == tokens[:247_587]


# Split files


def split(folder: Path, count: int = 3, name: str = "m") -> list[Path]:
    """The small target's tensors over `count` shards, the first one without any, as gguf-split may do."""
    small = list(weights({f"t{index}": (8, 32) for index in range(7)}).items())
    paths = []
    for index in range(count):
        writer = gguf.GGUFWriter(folder / f"{name}-{index + 1:05d}-of-{count:05d}.gguf", "none")
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(small))
        if index == 0:
            writer.add_string("only.first", "yes")
        for key, value in small[index - 1 :: count - 1] if index else []:
            writer.add_tensor(key, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(folder / f"{name}-{index + 1:05d}-of-{count:05d}.gguf")
    return paths


def test_any_shard_opens_the_whole_split_file(tmp_path: Path) -> None:
    expected = weights({f"t{index}": (8, 32) for index in range(7)})
    for path in split(tmp_path):
        opened = open_gguf(path)
        assert opened.metadata["only.first"] == "yes"
        assert len(opened.shards) == 3
        assert {name: info.shard for name, info in opened.tensors.items()}.keys() == expected.keys()
        for name, values in expected.items():
            assert np.array_equal(opened.float32(name), values)


def test_broken_splits_are_refused(tmp_path: Path) -> None:
    first, second, third = split(tmp_path)
    aside = third.rename(tmp_path / "aside")
    assert refused(open_gguf, first) == (
        "m-00001-of-00003.gguf is split into 3 shards, and m-00003-of-00003.gguf is not there; download that too"
    )
    third.write_bytes(second.read_bytes())
    assert "says it is shard 1 of 3 (from 0), expected 2 of 3" in refused(open_gguf, first)
    third.unlink()
    aside.rename(third)
    renamed = first.rename(tmp_path / "model.gguf")
    assert "model.gguf is one of 3 shards, but its name does not end in -00001-of-00003.gguf" in refused(
        open_gguf, renamed
    )


def shard(index: int, total: int, *names: str) -> bytes:
    entries = [scalar("split.no", 2, index), scalar("split.count", 2, 2), scalar("split.tensors.count", 5, total)]
    return header(entries, [tensor(name, [8], offset=32 * at) for at, name in enumerate(names)], data=32 * len(names))


def test_shards_that_do_not_add_up(tmp_path: Path) -> None:
    first = write_bytes(tmp_path / "m-00001-of-00002.gguf", shard(0, 3, "a", "b"))
    write_bytes(tmp_path / "m-00002-of-00002.gguf", shard(1, 3, "b"))
    assert "tensor b is also in an earlier shard" in refused(open_gguf, first)
    write_bytes(tmp_path / "m-00002-of-00002.gguf", shard(1, 4, "c"))
    assert open_gguf(first).tensors.keys() == {"a", "b", "c"}
    write_bytes(tmp_path / "m-00002-of-00002.gguf", shard(1, 4))
    assert "the 2 shards hold 2 tensors, expected 3" in refused(open_gguf, first)
    write_bytes(tmp_path / "m-00002-of-00002.gguf", b"GGUF")
    assert "m-00002-of-00002.gguf: the header breaks off inside the version" in refused(open_gguf, first)
