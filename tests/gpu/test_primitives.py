"""The basic instructions that kernels use, in both engines, against their definitions in the PTX ISA.

The matrix products are what keeps the emulator honest: numpy multiplies plain matrices, and the fragment layout is
spelled out here once more, from the ISA's formulas.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dflash_core import resources
from support import emulated
from support.emulated import KernelFaultError
from support.engines import Engine

SOURCE = str(Path(__file__).with_name("primitives.cu"))
LANE = np.arange(32)
GROUP, MEMBER = LANE // 4, LANE % 4


def a_fragments(matrix: np.ndarray) -> np.ndarray:
    """Registers (32, n) of the 16 x K operand: PTX ISA, "Matrix Fragments for mma", for its element size."""
    per = 4 // matrix.itemsize
    registers = []
    for r in range(matrix.shape[1] // (2 * per)):
        row = GROUP + 8 * (r % 2)
        columns = 4 * per * (r // 2) + per * MEMBER[:, None] + np.arange(per)
        registers.append(np.ascontiguousarray(matrix[row[:, None], columns]).view(np.uint32))
    return np.concatenate(registers, axis=1)


def b_fragments(matrix: np.ndarray) -> np.ndarray:
    """Registers (32, n) of the K x 8 operand."""
    per = 4 // matrix.itemsize
    registers = []
    for r in range(matrix.shape[0] // (4 * per)):
        rows = 4 * per * r + per * MEMBER[:, None] + np.arange(per)
        registers.append(np.ascontiguousarray(matrix[rows, GROUP[:, None]]).view(np.uint32))
    return np.concatenate(registers, axis=1)


def from_fragments(registers: np.ndarray) -> np.ndarray:
    """The 16 x 8 result of registers (32, 4)."""
    matrix = np.empty((16, 8), registers.dtype)
    for r in range(4):
        matrix[GROUP + 8 * (r // 2), 2 * MEMBER + r % 2] = registers[:, r]
    return matrix


def to_bf16(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize(
    ("name", "depth", "kind"),
    [
        ("mma_s8_16832", 32, "s8"),
        ("mma_s8_16816", 16, "s8"),
        ("mma_f16_16816", 16, "f16"),
        ("mma_f16_1688", 8, "f16"),
        ("mma_bf16_16816", 16, "bf16"),
        ("mma_tf32_1688", 8, "tf32"),
    ],
)
def test_a_matrix_instruction_multiplies(
    engine: Engine, rng: np.random.Generator, name: str, depth: int, kind: str, zero: int
) -> None:
    if kind == "s8":
        a, b = rng.integers(-128, 128, (16, depth), np.int8), rng.integers(-128, 128, (depth, 8), np.int8)
        start = rng.integers(-1000, 1000, (32, 4), np.int32)
        exact_a, exact_b = a.astype(np.int64), b.astype(np.int64)
    else:
        a, b = rng.standard_normal((16, depth)).astype(np.float32), rng.standard_normal((depth, 8)).astype(np.float32)
        start = rng.standard_normal((32, 4)).astype(np.float32)
        if kind == "f16":
            a, b = a.astype(np.float16), b.astype(np.float16)
            exact_a, exact_b = a.astype(np.float64), b.astype(np.float64)
        elif kind == "bf16":
            a, b = to_bf16(a), to_bf16(b)
            exact_a = (a.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
            exact_b = (b.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        else:  # 10 bits of mantissa, rounded to nearest
            rounded = [((m.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32) for m in (a, b)]
            exact_a, exact_b = (m.astype(np.float64) for m in rounded)
    expected = exact_a @ exact_b + (0 if zero else from_fragments(start))
    out = engine.array(start)
    arguments = [out, engine.array(a_fragments(a)), engine.array(b_fragments(b)), np.int32(zero)]
    engine.kernel(SOURCE, f"{name}_kernel")(1, 32, arguments)
    found = from_fragments(out.numpy())
    if kind == "s8":
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("transposed", [0, 1])
def test_ldmatrix_deals_rows_to_lanes(engine: Engine, rng: np.random.Generator, transposed: int) -> None:
    rows = rng.integers(0, 2**16, (4, 8, 8), np.uint16)
    out = engine.poisoned((32, 4), np.uint32)
    engine.kernel(SOURCE, "ldmatrix_kernel")(1, 32, [out, engine.array(rows), np.int32(transposed)])
    matrices = rows.transpose(0, 2, 1) if transposed else rows
    expected = np.stack([np.ascontiguousarray(m).view(np.uint32)[GROUP, MEMBER] for m in matrices], axis=1)
    np.testing.assert_array_equal(out.numpy(), expected)


def test_integer_instructions(engine: Engine, rng: np.random.Generator) -> None:
    a, b, c = rng.integers(0, 2**32, (3, 256), np.uint32)
    c &= 0xFFFF
    c[:64] &= 0x7777  # without the selector's sign bit, and with it
    out = engine.poisoned((256, 3), np.uint32)
    engine.kernel(SOURCE, "integer_kernel")(2, 128, [out, *map(engine.array, (a, b, c))])
    bytes_a, bytes_b = (m.view(np.int8).reshape(-1, 4).astype(np.int64) for m in (a, b))
    dot = (bytes_a * bytes_b).sum(1) + c
    source = np.concatenate([a[:, None].view(np.uint8), b[:, None].view(np.uint8)], axis=1)
    selectors = c[:, None] >> np.arange(0, 16, 4) & 0xF
    picked = np.take_along_axis(source, (selectors & 7).astype(np.int64), 1)
    picked = np.where(selectors & 8, np.where(picked & 0x80, 0xFF, 0), picked).astype(np.uint8)
    table = (a & b) ^ c  # 0x6a is (0xf0 & 0xcc) ^ 0xaa
    expected = np.stack([dot.astype(np.uint32), picked.view(np.uint32)[:, 0], table], axis=1)
    np.testing.assert_array_equal(out.numpy(), expected)


def test_reductions(engine: Engine, rng: np.random.Generator) -> None:
    values = rng.standard_normal(96).astype(np.float32)
    out = engine.poisoned((96, 7), np.float32)
    engine.kernel(SOURCE, "reductions_kernel")(1, 96, [out, engine.array(values)])
    warps, index = values.reshape(3, 32), np.arange(96)
    member = index % 8
    expected = np.stack(
        [
            warps.sum(1).repeat(32),
            warps.max(1).repeat(32),
            np.full(96, values.sum()),
            np.full(96, values.max()),
            (warps > 0).sum(1).repeat(32),
            values[np.where(member + 3 < 8, index + 3, index)],
            values[np.where(member >= 2, index - 2, index)],
        ],
        axis=1,
    )
    np.testing.assert_allclose(out.numpy(), expected, atol=1e-5)


def test_halves_round_once(engine: Engine, rng: np.random.Generator) -> None:
    values = (rng.standard_normal(64) * 10.0 ** rng.integers(-7, 3, 64)).astype(np.float32)
    out = engine.poisoned(32, np.uint32)
    engine.kernel(SOURCE, "halves_kernel")(1, 32, [out, engine.array(values)])
    halves = values.astype(np.float16).astype(np.float64)
    np.testing.assert_array_equal(out.numpy().view(np.float16), (halves * halves + 0.5).astype(np.float16))


def test_dynamic_shared_memory_above_48_kb(engine: Engine) -> None:
    count = 15000
    out = engine.poisoned((2, count), np.int32)
    engine.kernel(SOURCE, "dynamic_kernel")(2, 256, [out, np.int32(4 * count)], shared=4 * count)
    expected = np.arange(count)[::-1] ** 2 + np.arange(2)[:, None]
    np.testing.assert_array_equal(out.numpy(), expected)


def test_barriers_do_not_wait_for_warps_that_have_returned(engine: Engine) -> None:
    out = engine.poisoned(32, np.float32)
    engine.kernel(SOURCE, "leaving_kernel")(1, 96, [out])
    np.testing.assert_array_equal(out.numpy(), 2.0 * (64 + np.arange(32)[::-1]))


def test_arguments_are_checked(engine: Engine) -> None:
    kernel = engine.kernel(SOURCE, "dynamic_kernel")
    out = engine.poisoned(4, np.int32)
    with pytest.raises(TypeError, match="takes arguments"):
        kernel(1, 32, [out])
    with pytest.raises(TypeError, match="takes arguments"):
        kernel(1, 32, [out, np.int64(4)])
    with pytest.raises(TypeError, match="not float"):
        kernel(1, 32, [out, 4.0])


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (1, r"block \(0, 0, 0\) thread \(0, 0, 0\): access outside"),
        (2, "byte 256 of an array of 256 bytes"),
        (3, "divergent barrier, 32 of 64 threads are at __syncthreads"),
        (4, "divergent warp collective.*lanes 0000007f wait at __shfl_sync"),
        (5, "division by zero"),
        (6, "divergent barrier: other threads are at __syncthreads"),
    ],
)
def test_the_emulator_reports(fault: int, words: str) -> None:
    engine = emulator()
    out = engine.poisoned(64, np.float32)
    with pytest.raises(KernelFaultError, match=f"wrong_kernel: .*{words}"):
        engine.kernel(SOURCE, "wrong_kernel")(1, 64, [out, np.int32(fault)])
    # The launch after a failed one is as good as any.
    test_dynamic_shared_memory_above_48_kb(engine)


@pytest.mark.emulator
def test_the_emulator_sees_a_write_beside_an_array() -> None:
    engine = emulator()
    out = engine.poisoned(64, np.float32)
    engine.kernel(SOURCE, "wrong_kernel")(1, 64, [out, np.int32(7)])
    with pytest.raises(KernelFaultError, match="beside"):
        out.numpy()


@pytest.mark.emulator
def test_unwritten_shared_memory_is_poison() -> None:
    engine = emulator()
    out = engine.array(np.zeros(64, np.float32))
    engine.kernel(SOURCE, "wrong_kernel")(1, 64, [out, np.int32(0)])
    assert np.isnan(out.numpy()).all()


@pytest.mark.emulator
def test_what_is_compiled_in_front_of_all_kernels_is_the_same_for_all() -> None:
    """A kernel's own definitions come after this code, so they could not change it."""
    files = [text for path, text in emulated.in_front().items() if path.is_relative_to(resources.kernels_dir())]
    assert len(files) == 1, "kernels/common.cuh"
    conditions = [line for text in files for line in text.splitlines() if line.startswith(("#if", "#elif"))]
    assert set(conditions) <= {"#ifdef DFLASH_EMULATED"}


def emulator() -> Engine:
    from support import engines

    if reason := engines.missing("emulated"):
        pytest.skip(reason)
    return engines.engine_named("emulated")
