"""The GGUF reader on files that are wrong: a named refusal, in little time and memory."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_core.errors import InputError, UnsupportedError
from dflash_core.formats import gguf as ours
from dflash_core.formats.gguf import open_gguf
from support.formats import (
    ARRAY,
    SMALL_GGUF,
    STRING,
    TARGET_KEYS,
    U32,
    array,
    entry,
    header,
    peak_of_reading,
    refused,
    scalar,
    tensor,
    text,
    write_bytes,
    write_target,
)
from support.golden import goldens
from support.mutation import HUGE, INTERESTING


def named(value: object) -> str:
    """Test ids without the bytes of a file in them."""
    return value[:40] if isinstance(value, str) else "file"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"\x80\x02ckpt.pkl",
            "a.gguf is not a GGUF file: it starts with the bytes 80 02 63 6b 70 74 2e 70, expected 'GGUF'; check",
        ),
        (b"", "is empty (0 bytes); download or copy it again"),
        (b"GG", "it starts with 'GG', expected 'GGUF'"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "it looks like a Git LFS pointer, not the file itself"),
        (b"\n<!DOCTYPE html><html>", "it looks like a web page; the download saved a login or error page"),
        (b"<html lang=en>", "it looks like a web page"),
        (b"\x50\x09\0\0\0\0\0\0{\"a\"", "it looks like a safetensors file; a target must be GGUF"),
        (b"PK\x03\x04abc", "it looks like a zip archive, perhaps a PyTorch checkpoint; convert it to GGUF first"),
        (b"FUGG\0\0\0\3", "it looks like a big-endian GGUF file"),
        (b"tjgg\3\0\0\0", "it looks like a GGML file older than GGUF"),
    ],
    ids=named,
)  # fmt: skip
def test_not_a_gguf_file(tmp_path: Path, content: bytes, message: str) -> None:
    assert message in refused(open_gguf, write_bytes(tmp_path / "a.gguf", content))


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    assert "does not exist; check the path" in refused(open_gguf, tmp_path / "absent.gguf")
    assert "is a folder, expected a file" in refused(open_gguf, tmp_path)
    assert "is a device, expected a regular file; name another" in refused(open_gguf, Path("/dev/null"), InputError)
    assert "cannot be read" in refused(open_gguf, tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(version=1), "a.gguf is GGUF version 1, expected 2 or 3"),
        (header(version=4), "a.gguf is GGUF version 4, expected 2 or 3"),
        (header(version=3 << 24), "a.gguf is a big-endian GGUF file, expected little-endian"),
        (header([], [tensor("w", [256], 15)], data=292), "tensor w is stored as Q8_K, expected one of F32 F16 BF16"),
        (header([], [tensor("w", [64], 28)], data=512), "tensor w is stored as F64, expected one of"),
        (header([], [tensor("w", [64], 777)], data=36), "tensor w is stored as unknown type 777, expected one of"),
    ],
    ids=named,
)
def test_unsupported_files(tmp_path: Path, content: bytes, message: str) -> None:
    assert message in refused(open_gguf, write_bytes(tmp_path / "a.gguf", content), UnsupportedError)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(counts=(0, HUGE)), "the header claims 18,446,744,073,709,551,615 metadata entries, but at most"),
        (header(counts=(HUGE, 0)), "claims 18,446,744,073,709,551,615 tensors, but at most 0 are possible"),
        (header([struct.pack("<Q", HUGE) + bytes(20)]), "inside the name of metadata entry 0, which needs 18,446,744"),
        (header([entry("k", STRING, struct.pack("<Q", 1 << 40))]), "inside metadata k, which needs 1,099,511,627,776"),
        (header([entry("k", ARRAY, array(STRING, HUGE, b""))]), "metadata k claims 18,446,744,073,709,551,615 strings"),
        (header([entry("k", ARRAY, array(U32, 1 << 62, b""))]), "metadata k claims 4,611,686,018,427,387,904 numbers"),
        (header([entry("k", ARRAY, array(ARRAY, 1 << 33, b""))]), "metadata k claims 8,589,934,592 arrays"),
        (
            header([entry("k", ARRAY, array(STRING, 2, text("ab") + struct.pack("<Q", 1 << 50)))]),
            "inside string 1 of metadata k, which needs",
        ),
        (header([entry("k", ARRAY, array(13, 1, bytes(99)))]), "metadata k is an array of unknown type 13"),
        (header([entry("k", 99, bytes(8))]), "metadata k has unknown type 99"),
        (header([entry("", U32, bytes(4))]), "metadata entry 0 has an empty name"),
        (header([entry("k", U32, bytes(4)), entry("k", U32, bytes(4))]), "metadata entry 1 has 'k' twice"),
        (header([entry(b"\xff", U32, bytes(4))]), r"name of metadata entry 0 is not UTF-8 text: the bytes ff;"),
        (header([entry("k", STRING, text(b"\xc3"))]), r"metadata k is not UTF-8 text: the bytes c3;"),
        (header([entry("k", ARRAY, array(STRING, 1, text(b"\xc3")))]), r"metadata k is not UTF-8 text: the bytes c3;"),
        (header([scalar("general.alignment", U32, 0)]), "general.alignment is 0, expected a power of two"),
        (header([scalar("general.alignment", U32, 48)]), "general.alignment is 48, expected a power of two"),
        (header([entry("general.alignment", STRING, text("x"))]), "general.alignment is 'x', expected a power of two"),
        (header([], [tensor("", [8])], data=32), "tensor 0 has an empty name"),
        (header([], [tensor("w", [8]), tensor("w", [8])], data=32), "tensor 1 has 'w' twice"),
        (header([], [tensor("w", [])], data=64), "tensor w has 0 dimensions, expected 1 to 4"),
        (header([], [tensor("w", [1] * 5)], data=64), "tensor w has 5 dimensions, expected 1 to 4"),
        (header([], [tensor("w", [8, 0])], data=64), "tensor w has dimensions [8, 0], expected positive sizes"),
        (header([], [tensor("w", [2**63])], data=64), "expected positive sizes"),
        (header([], [tensor("w", [48], 8)], data=64), "tensor w has rows of 48 elements, expected a multiple of 32"),
        (header([], [tensor("w", [8], offset=8)], data=64), "starts at offset 8, expected a multiple of the alignm"),
        (
            header([], [tensor("w", [8]), tensor("v", [8], offset=32)], data=40),
            "a.gguf is truncated: tensor v ends 24 bytes past the end, and 24 bytes of 160 are missing in all",
        ),
        (
            header([], [tensor("u", [8], offset=64), tensor("w", [16]), tensor("v", [8], offset=32)], data=96),
            "a.gguf: tensors w and v share 32 bytes at offset 160, expected each to have its own; the file is damaged",
        ),
        (header([], [tensor("w", [1 << 47] * 4)], data=64), "is truncated: tensor w ends"),
        (header([], [tensor("w", [8], offset=2**64 - 32)], data=64), "is truncated: tensor w ends"),
        (header([], [tensor("bad\nname\x1b[31m", [7], 8)], data=64), r"tensor 'bad\nname\x1b[31m' has rows of 7"),
    ],
    ids=named,
)  # fmt: skip
def test_damaged_files(tmp_path: Path, content: bytes, message: str) -> None:
    assert message in refused(open_gguf, write_bytes(tmp_path / "a.gguf", content))


def test_arrays_nest_only_so_deep(tmp_path: Path) -> None:
    nested = array(U32, 1, bytes(4))
    for _ in range(5_000):
        nested = array(ARRAY, 1, nested)
    assert "metadata k nests arrays more than 4 deep" in refused(
        open_gguf, write_bytes(tmp_path / "a.gguf", header([entry("k", ARRAY, nested)]))
    )


def test_supported_types_are_listed(tmp_path: Path) -> None:
    message = refused(
        open_gguf, write_bytes(tmp_path / "a.gguf", header([], [tensor("w", [256], 9)], data=64)), UnsupportedError
    )
    assert message == (
        "a.gguf: tensor w is stored as Q8_1, expected one of F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K"
        " Q5_K Q6_K IQ4_NL IQ4_XS IQ3_S IQ3_XXS IQ2_XXS IQ2_XS IQ2_S IQ1_S IQ1_M TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0 Q2_0;"
        " use the model's file in one of those types, such as Q4_K_M"
    )


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (142, "PQ2_0 (of the PrismML fork)"),
        (143, "PTQ1_0 (of the PrismML fork)"),
        (137, "a type of the ik_llama.cpp fork"),
        (999, "unknown type 999"),
    ],
)
def test_types_of_forks_are_named(tmp_path: Path, number: int, name: str) -> None:
    path = write_bytes(tmp_path / "a.gguf", header([], [tensor("w", [256], number)], data=64))
    message = refused(open_gguf, path, UnsupportedError)
    assert f"tensor w is stored as {name}, expected one of" in message
    assert message.endswith("; use the model's file in one of those types, such as Q4_K_M")


@pytest.mark.parametrize("last", [True, False])
def test_groups_of_128_under_the_number_of_groups_of_64(tmp_path: Path, last: bool) -> None:
    """The fork's blocks are 34 bytes for 128 weights, 3,264 for these; with groups of 64 they are 3,456."""
    tensors = [tensor("w", [256, 48], 42), *([] if last else [tensor("v", [8], offset=3264)])]
    path = write_bytes(tmp_path / "a.gguf", header([], tensors, data=3264 + 32 * (not last)))
    assert refused(open_gguf, path, UnsupportedError) == (
        "a.gguf: tensor w is stored as Q2_0 with groups of 128 (of the PrismML fork), expected groups of 64; use the"
        " model's file that llama.cpp reads"
    )
    whole = write_bytes(tmp_path / "b.gguf", header([], [tensor("w", [256, 48], 42)], data=3456))
    assert open_gguf(whole).float32("w").shape == (48, 256)
    short = write_bytes(tmp_path / "c.gguf", header([], [tensor("w", [256, 48], 42)], data=3200))
    assert "is truncated" in refused(open_gguf, short)


# Truncation, forgery, noise: an error, in little time and memory


def test_the_small_file_is_good(tmp_path: Path) -> None:
    opened = open_gguf(write_bytes(tmp_path / "a.gguf", SMALL_GGUF))
    assert [opened.float32(name).shape for name in opened.tensors] == [(2, 32), (2, 2, 8), (4,)]


def test_truncation_at_every_byte(tmp_path: Path) -> None:
    messages = set()
    for length in range(len(SMALL_GGUF)):
        messages.add(
            refused(open_gguf, write_bytes(tmp_path / "a.gguf", SMALL_GGUF[:length]))
            .split(" at offset")[0]
            .split(", but")[0]
        )
    sections = " ".join(messages)
    for section in (
        "is empty",
        "not a GGUF",
        "inside the version",
        "counts",
        "metadata tokens",
        "string 3 of metadata",
    ):
        assert section in sections
    for section in ("name of tensor", "description of tensor c", "tensor a.weight ends", "tensor b.weight", "tensor c"):
        assert section in sections


def test_truncation_of_a_real_file(tmp_path: Path) -> None:
    whole = goldens("tiny-Q4_K_M.gguf")[0].read_bytes()
    opened = open_gguf(goldens("tiny-Q4_K_M.gguf")[0])
    starts = [info.offset for info in opened.tensors.values()]
    path = write_bytes(tmp_path / "a.gguf", whole)
    for length in sorted({len(whole) - 1, *starts, *(start + 1 for start in starts), *range(0, starts[0], 997)})[::-1]:
        with path.open("r+b") as file:
            file.truncate(length)
        message = refused(open_gguf, path)
        if length >= starts[0]:
            assert f"bytes of {len(whole):,} are missing in all" in message


def test_oversized_counts_of_a_sparse_file_stay_cheap(tmp_path: Path) -> None:
    """A forged count that would be plausible in a file of many gigabytes must cost neither time nor memory."""
    claims = [
        (array(0, 1 << 33, b""), "numbers"),
        (array(STRING, 1 << 31, b""), "strings"),
        (array(ARRAY, 1 << 30, b""), "arrays"),
    ]
    start = time.process_time()
    for claim, what in claims:
        path = write_bytes(tmp_path / "a.gguf", header([entry("k", ARRAY, claim)]))
        with path.open("r+b") as file:
            file.truncate(1 << 36)
        tracemalloc.start()
        assert f"{what}, but at most" in refused(open_gguf, path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20
    path = write_bytes(tmp_path / "a.gguf", header([entry("k", STRING, struct.pack("<Q", 1 << 35))]))
    with path.open("r+b") as file:
        file.truncate(1 << 36)
    assert "which needs 34,359,738,368 bytes" in refused(open_gguf, path)
    assert time.process_time() - start < 2


def test_many_arrays_share_one_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "MAX_ITEMS", 100)
    entries = [entry(f"k{index}", ARRAY, array(0, 30, bytes(30))) for index in range(4)]
    assert "metadata k3 claims 30 numbers, but at most 6 are possible" in refused(
        open_gguf, write_bytes(tmp_path / "a.gguf", header(entries))
    )


def opens_or_refuses(path: Path, size: int) -> None:
    assert peak_of_reading(open_gguf, path) < 300_000 + 40 * size


FUZZ = settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@FUZZ
@given(
    changes=st.lists(st.tuples(st.integers(0, len(SMALL_GGUF) - 1), st.integers(0, 255)), min_size=1, max_size=8),
    length=st.integers(0, len(SMALL_GGUF) + 64),
)
def test_fuzz_bytes(tmp_path: Path, changes: list[tuple[int, int]], length: int) -> None:
    content = bytearray(SMALL_GGUF)
    for at, value in changes:
        content[at] = value
    content = content[:length] + bytes(max(0, length - len(SMALL_GGUF)))
    opens_or_refuses(write_bytes(tmp_path / "a.gguf", bytes(content)), len(content))


@FUZZ
@given(at=st.integers(4, len(SMALL_GGUF) - 8), value=st.sampled_from(INTERESTING), wide=st.booleans())
def test_fuzz_fields(tmp_path: Path, at: int, value: int, wide: bool) -> None:
    content = bytearray(SMALL_GGUF)
    content[at : at + (8 if wide else 4)] = value.to_bytes(8, "little")[: 8 if wide else 4]
    opens_or_refuses(write_bytes(tmp_path / "a.gguf", bytes(content)), len(content))


@FUZZ
@given(content=st.binary(max_size=600))
def test_fuzz_noise_after_the_magic(tmp_path: Path, content: bytes) -> None:
    opens_or_refuses(write_bytes(tmp_path / "a.gguf", b"GGUF\x03\0\0\0" + content), len(content))


def test_every_field_of_a_target_forged(tmp_path: Path) -> None:
    """Every 8-byte place in a real header set to absurd values; the ones that matter must be refused."""
    path = write_target(tmp_path / "a.gguf", {key: TARGET_KEYS[key] for key in list(TARGET_KEYS)[:4]}, {"w": (2, 2)})
    whole = path.read_bytes()
    for at in range(4, len(whole) - 24):
        for value in (2**32 - 1, 2**63, HUGE):
            content = whole[:at] + value.to_bytes(8, "little") + whole[at + 8 :]
            path.write_bytes(content)
            opens_or_refuses(path, len(content))
