"""Sizes of activations in the forms that matmuls read (kernels/acts.cuh)."""

from __future__ import annotations

ROWS, GROUP = 64, 256
Q8_BLOCK, F16_BLOCK = 2208, 4384
Q8_GROUP, F16_GROUP = 16 * Q8_BLOCK, 8 * F16_BLOCK  # bytes of 64 rows x 256 k


def q8_read(plane_bits: int, spans: int) -> int:
    """Bytes that a launch reads of an int8 block, including its second plane or second scales."""
    return Q8_BLOCK + (Q8_BLOCK if plane_bits else 32 if spans > 1 else 0)
