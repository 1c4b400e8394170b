"""Activations as the matmuls read them, in numpy: the twin of kernels/acts.cuh for tests and measurements."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ROWS, GROUP = 64, 256
Q8_BLOCK, F16_BLOCK = 2208, 4384

Bytes = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]


def _groups(x: Float32) -> Float32:
    """(rows, k) to (rows, groups, 256), padded with zeros."""
    rows, k = x.shape
    padded = np.zeros((rows, -(-k // GROUP) * GROUP), np.float32)
    padded[:, :k] = x
    return padded.reshape(rows, -1, GROUP)


def quantize_q8(x: Float32) -> tuple[npt.NDArray[np.int8], Float32]:
    """(rows, k) to int8 (rows, groups, 256) and scales (rows, groups): x = scale * q."""
    groups = _groups(x)
    largest = np.abs(groups).max(axis=-1)
    scale = (largest / np.float32(127)).astype(np.float32)
    inverse = np.where(largest > np.float32(1e-35), np.float32(127) / np.maximum(largest, np.float32(1e-35)), 0)
    return np.rint(groups * inverse[..., None].astype(np.float32)).astype(np.int8), scale


def quantize_f16(x: Float32) -> tuple[npt.NDArray[np.float16], Float32]:
    """(rows, k) to halves under 1024 (rows, groups, 256) and powers of two (rows, groups): x = scale * h."""
    groups = _groups(x)
    largest = np.abs(groups).max(axis=-1)
    exponent = np.frexp(largest)[1]
    live = largest >= np.float32(2.0**-117)
    scale = np.where(live, np.ldexp(np.float32(1), exponent - 10), 0).astype(np.float32)
    inverse = np.where(live, np.ldexp(np.float32(1), 10 - exponent), 0).astype(np.float32)
    return (groups * inverse[..., None]).astype(np.float16), scale


def pack_q8(x: Float32) -> Bytes:
    """(rows <= 64, k) to a whole buffer, (groups, 8, 2208); rows that do not exist hold zeros."""
    q, scale = quantize_q8(_all_rows(x))
    groups = q.shape[1]
    out = np.zeros((groups, 8, Q8_BLOCK), np.uint8)
    # rows: block, r; k: unit, sub, half, t, byte
    split = q.reshape(8, 8, groups, 4, 2, 2, 4, 4).transpose(2, 0, 3, 1, 6, 4, 5, 7)
    out[..., :2048] = np.ascontiguousarray(split).view(np.uint8).reshape(groups, 8, 2048)
    out[..., 2048:2080] = _by_row(scale[..., None])
    sums = q.astype(np.int32).reshape(ROWS, groups, 8, 32).sum(-1).astype(np.float16)
    out[..., 2080:] = _by_row(sums)
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
