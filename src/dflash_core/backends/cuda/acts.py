"""Activations as the matmuls read them, in numpy: the twin of kernels/acts.cuh for tests and measurements."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ROWS, GROUP = 64, 256
Q8_BLOCK, F16_BLOCK = 2208, 4384
Q8_GROUP, F16_GROUP = 16 * Q8_BLOCK, 8 * F16_BLOCK  # bytes of 64 rows x 256 k

Bytes = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]


def q8_read(plane_bits: int, spans: int) -> int:
    """Bytes that a launch reads of an int8 block and its second one."""
    return Q8_BLOCK + (Q8_BLOCK if plane_bits else 32 if spans > 1 else 0)


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
    """(rows <= 64, k) to a whole buffer, (groups, first or second, 8, 2208); rows that do not exist, and what is not
    used, are zeros."""
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
    # In the kernel's order: eight in sequence by each of four lanes, then pairs of lanes.
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
    """(64, groups, n) of a row's own to (groups, 8, bytes)."""
    split = values.reshape(8, 8, values.shape[1], -1).transpose(2, 0, 1, 3)
    return np.ascontiguousarray(split).view(np.uint8).reshape(values.shape[1], 8, -1)
