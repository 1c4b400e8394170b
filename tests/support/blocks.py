"""Random tensors in ggml's block types: every code and every scale field occurs, values stay of order one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dflash_core.formats.quants import BY_NAME, Bytes

# Byte offsets of the half-precision fields in a block, and what the codes times scales after them reach.
HALVES: dict[str, tuple[tuple[int, float], ...]] = {
    "Q8_0": ((0, 127),),
    "Q4_0": ((0, 8),),
    "Q4_1": ((0, 15), (2, 1)),
    "Q5_0": ((0, 16),),
    "Q5_1": ((0, 31), (2, 1)),
    "Q2_K": ((80, 45), (82, 15)),
    "Q3_K": ((108, 128),),
    "Q4_K": ((0, 945), (2, 63)),
    "Q5_K": ((0, 1953), (2, 63)),
    "Q6_K": ((208, 4096),),
    "IQ4_NL": ((0, 127),),
    "IQ4_XS": ((0, 4064),),
    "IQ3_S": ((0, 465),),
    "IQ3_XXS": ((0, 480),),
    "IQ2_XXS": ((0, 167),),
    "IQ2_XS": ((0, 167),),
    "IQ2_S": ((0, 167),),
    "IQ1_S": ((0, 17),),
    "TQ1_0": ((52, 1),),
    "TQ2_0": ((64, 2),),
    "Q1_0": ((0, 1),),
    "Q2_0": ((0, 2),),
}


def random_blocks(rng: np.random.Generator, name: str, rows: int, columns: int) -> Bytes:
    """(rows, bytes per row) of a tensor of ggml type `name`."""
    kind = BY_NAME[name]
    if name in ("F32", "F16", "BF16"):
        values = (rng.normal(size=(rows, columns)) * np.exp(rng.normal(size=(rows, 1)))).astype(np.float32)
        return stored(values, name)
    count = -(-columns // kind.block)
    raw = rng.integers(0, 256, (rows, count, kind.size), dtype=np.uint8)
    if name == "MXFP4":  # exponents of neighbours differ by up to 2^8
        raw[..., 0] = rng.integers(118, 127, (rows, count))
    if name == "NVFP4":  # two bits of exponent
        raw[..., :4] = 0x20 | raw[..., :4] & 0x1F
    if name == "IQ1_M":  # the f16 number is spread over the high nibbles of four words
        d = (rng.uniform(0.2, 1.0, (rows, count)) / 17 * rng.choice([-1, 1], (rows, count))).astype(np.float16)
        for i in range(4):
            raw[..., 49 + 2 * i] = raw[..., 49 + 2 * i] & 15 | (d.view(np.uint16) >> 4 * i & 15) << 4
    if name.startswith("INT4"):  # half of the scales are bf16
        _with_zeros(rng, raw, rng.integers(0, 17, raw.shape[:2]) if "S" not in name else np.full(raw.shape[:2], 8))
    if name == "F8_E4M3":
        scale = np.exp(rng.normal(size=(rows, count))) * rng.choice([-1, 1], (rows, count)) / 100
        raw[..., :4] = scale.astype(np.float32)[..., None].view(np.uint8)
        raw[..., 4:] = np.where(raw[..., 4:] & 0x7F == 0x7F, 0x42, raw[..., 4:])  # no NaN
    for offset, reach in HALVES.get(name, ()):
        d = (rng.uniform(0.2, 1.0, (rows, count)) / reach * rng.choice([-1, 1], (rows, count))).astype(np.float16)
        raw[..., offset : offset + 2] = d[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


def _with_zeros(rng: np.random.Generator, raw: Bytes, zeros: npt.NDArray[np.int64]) -> None:
    """Scales of order one over the largest code, and zeros, in blocks (rows, count, bytes) of INT4."""
    scale = rng.uniform(0.2, 1.0, zeros.shape) / 15 * rng.choice([-1, 1], zeros.shape)
    bf16 = rng.integers(0, 2, zeros.shape).astype(bool)
    wide = (scale.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    bits = np.where(bf16, wide, scale.astype(np.float16).view(np.uint16))
    raw[..., :2] = bits[..., None].view(np.uint8)
    raw[..., 2] = zeros | np.where(bf16, 0x80, 0)


def stored(values: npt.NDArray[np.float32], name: str) -> Bytes:
    """The bytes of `values` in a float type."""
    if name == "BF16":
        return np.ascontiguousarray((values.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8)
    return np.ascontiguousarray(values.astype(np.float16 if name == "F16" else np.float32)).view(np.uint8)
