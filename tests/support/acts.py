"""Activations as kernels/acts.cuh stores them, in numpy: packed, and read back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dflash_core.backends.cuda.activations import F16_BLOCK, F16_GROUP, GROUP, Q8_BLOCK, Q8_GROUP, ROWS

__all__ = ["F16_GROUP", "Q8_GROUP", "acts_f16", "acts_q8", "pack_f16", "pack_q8", "quantize_f16", "quantize_q8"]

Bytes = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]


def acts_f16(blocks: npt.NDArray[np.uint8], rows: int, width: int) -> npt.NDArray[np.float64]:
    """(groups, F16_GROUP) -> (rows, width)."""
    groups = len(blocks)
    blocks = blocks.reshape(groups, 8, F16_BLOCK)
    values = np.ascontiguousarray(blocks[..., :4096]).view(np.float16).reshape(groups, 8, 8, 8, 4, 2, 4)
    scales = np.ascontiguousarray(blocks[..., 4096:4128]).view(np.float32)
    # [group, row block, sub, row, t, half of sub, i] -> [row block, row, group, sub, half of sub, t, i]
    x = values.transpose(1, 3, 0, 2, 5, 4, 6).reshape(64, groups, 256).astype(np.float64)
    x = x * scales.transpose(1, 2, 0).reshape(64, groups, 1)
    return x.reshape(64, groups * 256)[:rows, :width]


def acts_q8(
    blocks: npt.NDArray[np.uint8], rows: int, width: int, bits: int = 0, spans: int = 1
) -> tuple[npt.NDArray[np.float64], ...]:
    """(groups, Q8_GROUP) -> values (rows, width), and the rounding step of each. `bits`: those of the lower plane."""
    groups = len(blocks)
    blocks = blocks.reshape(groups, 2, 8, Q8_BLOCK)
    first, second = blocks[:, 0], blocks[:, 1]

    def words(block: npt.NDArray[np.uint8]) -> npt.NDArray[np.int16]:
        """[group, row block, unit, row, t, two, two, i]"""
        values = np.ascontiguousarray(block[..., :2048]).view(np.int8).reshape(groups, 8, 4, 8, 4, 2, 2, 4)
        return values.astype(np.int16)

    split = words(first)  # sub, half of sub
    if bits:
        both = np.stack((split, words(second)), axis=5)  # sub, half of sub, plane
        split = both[..., 0, :] * 2**bits + both[..., 1, :]
    # -> [row block, row, group, unit, sub, half of sub, t, i]
    q = split.transpose(1, 3, 0, 2, 5, 6, 4, 7).reshape(64, groups, 256).astype(np.float64)
    scales = [first[..., 2048:2080], second[..., 2048:2080]][:spans]
    of_rows = [np.ascontiguousarray(s).view(np.float32).transpose(1, 2, 0).reshape(64, groups) for s in scales]
    step = np.repeat(np.stack(of_rows, axis=-1), 256 // spans, axis=-1).astype(np.float64)
    return tuple(x.reshape(64, groups * 256)[:rows, :width] for x in (q * step, step))


def _groups(x: Float32) -> Float32:
    """(rows, k) to (rows, groups, 256), padded with zeros."""
    rows, k = x.shape
    padded = np.zeros((rows, -(-k // GROUP) * GROUP), np.float32)
    padded[:, :k] = x
    return padded.reshape(rows, -1, GROUP)


def quantize_q8(x: Float32, plane_bits: int = 0, spans: int = 1) -> tuple[npt.NDArray[np.int16], Float32]:
    """(rows, k) to integers q (rows, groups, 256) and scales (rows, groups, spans), one per 256 / spans k:
    x = scale * q, |q| <= 127 << plane_bits."""
    groups = _groups(x)
    split = groups.reshape(*groups.shape[:2], spans, GROUP // spans)
    largest, most = np.abs(split).max(axis=-1), np.float32(127 << plane_bits)
    scale = (largest / most).astype(np.float32)
    inverse = np.where(largest > np.float32(1e-35), most / np.maximum(largest, np.float32(1e-35)), 0)
    with np.errstate(invalid="ignore"):  # a group with an infinity or a NaN has that as its scale, and any codes
        q = np.rint(split * inverse[..., None].astype(np.float32)).astype(np.int16)
    return q.reshape(groups.shape), scale


def quantize_f16(x: Float32) -> tuple[npt.NDArray[np.float16], Float32]:
    """(rows, k) to halves under 1024 (rows, groups, 256) and powers of two (rows, groups): x = scale * h."""
    groups = _groups(x)
    largest = np.abs(groups).max(axis=-1)
    exponent = np.frexp(largest)[1]
    live = largest >= np.float32(2.0**-117)
    scale = np.where(live, np.ldexp(np.float32(1), exponent - 10), 0).astype(np.float32)
    inverse = np.where(live, np.ldexp(np.float32(1), 10 - exponent), 0).astype(np.float32)
    return (groups * inverse[..., None]).astype(np.float16), scale


def planes_of(q: npt.NDArray[np.int16], plane_bits: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """Integers to both planes: q = (values << plane_bits) + lower."""
    values = q + (1 << plane_bits >> 1) >> plane_bits
    return values.astype(np.int8), (q - (values << plane_bits)).astype(np.int8)


def pack_q8(x: Float32, plane_bits: int = 0, spans: int = 1) -> Bytes:
    """(rows <= 64, k) to a whole buffer, (groups, first or second, 8, 2208); rows that are missing and parts that are
    not used are zeros."""
    q, scale = quantize_q8(_all_rows(x), plane_bits, spans)
    groups = q.shape[1]
    out = np.zeros((groups, 2, 8, Q8_BLOCK), np.uint8)
    first, second = out[:, 0], out[:, 1]
    # rows: block, r; k: unit, sub, half, t, byte
    split = (plane.reshape(8, 8, groups, 4, 2, 2, 4, 4) for plane in planes_of(q, plane_bits))
    planes = [plane.transpose(2, 0, 3, 1, 6, 4, 5, 7) for plane in split]
    if plane_bits:
        both = np.stack(planes, axis=-2)  # (groups, block, unit, r, t, sub, half, plane, byte)
        parts = zip((first, second), (both[..., 0, :, :, :], both[..., 1, :, :, :]))
    else:
        parts = zip((first,), planes[:1])
    for block, values in parts:
        block[..., :2048] = np.ascontiguousarray(values).view(np.uint8).reshape(groups, 8, 2048)
    first[..., 2048:2080] = _by_row(scale[..., :1])
    sums = q.astype(np.float32).reshape(ROWS, groups, 8, 32).sum(-1)
    high = sums.astype(np.float16)
    first[..., 2080:] = _by_row(high)
    if plane_bits:
        second[..., 2080:] = _by_row((sums - high).astype(np.float16))
    if spans > 1:
        second[..., 2048:2080] = _by_row(scale[..., 1:])
    return out


def pack_f16(x: Float32) -> Bytes:
    """(rows <= 64, k) to a whole buffer, (groups, 8, 4384)."""
    h, scale = quantize_f16(_all_rows(x))
    groups = h.shape[1]
    out = np.zeros((groups, 8, F16_BLOCK), np.uint8)
    # rows: block, r; k: sub, chunk, t, four
    split = h.reshape(8, 8, groups, 8, 2, 4, 4).transpose(2, 0, 3, 1, 5, 4, 6)
    out[..., :4096] = np.ascontiguousarray(split).view(np.uint8).reshape(groups, 8, 4096)
    out[..., 4096:4128] = _by_row(scale[..., None])
    # Summed in the kernel's order: eight in sequence by each of four lanes, then pairs of lanes.
    lanes = np.add.accumulate(h.astype(np.float32).reshape(ROWS, groups, 8, 4, 8), axis=-1)[..., -1]
    sums = (lanes[..., 0] + lanes[..., 1]) + (lanes[..., 2] + lanes[..., 3])
    high = sums.astype(np.float16)
    out[..., 4128:4256] = _by_row(high)
    out[..., 4256:] = _by_row((sums - high).astype(np.float16))
    return out


def _all_rows(x: Float32) -> Float32:
    full = np.zeros((ROWS, x.shape[1]), np.float32)
    full[: x.shape[0]] = x
    return full


def _by_row(values: npt.NDArray[np.generic]) -> Bytes:
    """(64, groups, n) values of each row to (groups, 8, bytes)."""
    split = values.reshape(8, 8, values.shape[1], -1).transpose(2, 0, 1, 3)
    return np.ascontiguousarray(split).view(np.uint8).reshape(values.shape[1], 8, -1)
