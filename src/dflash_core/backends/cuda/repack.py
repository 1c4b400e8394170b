"""Converts GGUF blocks to super-tiles: 16 rows x 256 k in the order in which a warp's lanes feed them to tensor cores.

The layouts are those of kernels/formats/*.cuh; a tile has as many bytes as the file's blocks. The conversion is torch
arithmetic on whole chunks of a tensor, so it runs on the device (from a staging buffer) and on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dflash_core.backends.cuda import packers
from dflash_core.errors import Code, UnsupportedError
from dflash_core.formats.quants import BY_NAME

ROWS = 16
GROUP = 256
# Weights repacked at a time: this limits scratch memory, which is about 20 bytes per weight.
CHUNK = 1 << 25


@dataclass(frozen=True, slots=True)
class TileType:
    """A format of kernels/formats: its number there, the bytes of a tile, what packs a file's blocks, whether it reads
    f16 activations, and the most bits of a second plane of int8 activations."""

    name: str
    number: int
    bytes: int
    pack: Callable[[Tensor], Tensor]
    half_activations: bool = False
    plane_bits: int = 4
    table: int = 0  # bytes of shared memory that its kernels need for lookup tables


def tile_type(name: str) -> TileType:
    """The device format of tensors of the ggml type `name`. Raises UnsupportedError for types without one."""
    stored = "F16" if name == "BF16" else name
    if stored not in TILE_TYPES:
        natives = " ".join(["BF16", *TILE_TYPES])
        raise UnsupportedError(
            f"tensor type {name} has no CUDA kernel, expected one of {natives}; quantise the model to one of these or"
            " run it on the CPU",
            code=Code.NOT_ON_THIS_DEVICE,
        )
    return TILE_TYPES[stored]


def blocks_of(rows: int) -> int:
    """Blocks of 16 rows; the last one is padded."""
    return -(-rows // ROWS)


def groups_of(columns: int) -> int:
    """Tiles along K; the last one is padded."""
    return -(-columns // GROUP)


def packed_bytes(name: str, rows: int, columns: int) -> int:
    """Bytes of a matrix on the device."""
    return blocks_of(rows) * groups_of(columns) * tile_type(name).bytes


def repack(raw: Tensor, name: str, columns: int, out: Tensor | None = None) -> Tensor:
    """From `raw` (rows, bytes per row) uint8, as in the file, to tiles (blocks of 16 rows, tiles along K, bytes) uint8.

    Rows and columns are padded with zero weights. `out`: destination of the tiles. Works on any device, in chunks.
    Raises UnsupportedError for a type without tiles.
    """
    kind = tile_type(name)
    pack = packers.pack_bf16 if name == "BF16" else kind.pack
    blocks, groups = blocks_of(raw.shape[0]), groups_of(columns)
    if out is None:
        out = torch.empty(blocks, groups, kind.bytes, dtype=torch.uint8, device=raw.device)
    stored = BY_NAME[name]
    group_bytes = GROUP // stored.block * stored.size
    step = max(1, CHUNK // (ROWS * GROUP * groups))
    for at in range(0, blocks, step):
        part = raw[at * ROWS : (at + step) * ROWS]
        count = min(step, blocks - at)
        if part.shape != (count * ROWS, groups * group_bytes):
            padded = part.new_zeros(count * ROWS, groups * group_bytes)
            padded[: part.shape[0], : part.shape[1]] = part
            part = padded
        out[at : at + count] = pack(part.reshape(count, ROWS, groups, group_bytes))
    return out


TILE_TYPES: dict[str, TileType] = {
    kind.name: kind
    for kind in (
        TileType("F32", 0, 16448, packers.pack_f32, half_activations=True),
        TileType("F16", 1, 8256, packers.pack_f16, half_activations=True),
        TileType("Q4_0", 2, 2304, packers.pack_q4_0),
        TileType("Q4_1", 3, 2560, packers.pack_q4_1),
        TileType("Q5_0", 6, 2816, packers.pack_q5_0, plane_bits=3),
        TileType("Q5_1", 7, 3072, packers.pack_q5_1, plane_bits=3),
        TileType("Q8_0", 8, 4352, packers.pack_q8_0),
        TileType("Q4_K", 12, 2304, packers.pack_q4_k),
        TileType("Q5_K", 13, 2816, packers.pack_q5_k, plane_bits=3),
        TileType("Q6_K", 14, 3360, packers.pack_q6_k, plane_bits=2),
        TileType("Q3_K", 11, 1760, packers.pack_q3_k),
        TileType("IQ4_NL", 20, 2304, packers.pack_iq4_nl),
        TileType("IQ4_XS", 23, 2176, packers.pack_iq4_xs, plane_bits=2),
        TileType("MXFP4", 39, 2176, packers.pack_mxfp4),
        TileType("IQ3_S", 21, 1760, packers.pack_iq3_s, table=8192),
        TileType("IQ3_XXS", 18, 1568, packers.pack_iq3_xxs, table=8192),
        TileType("Q2_K", 10, 1344, packers.pack_q2_k, plane_bits=2),
        TileType("IQ2_XXS", 16, 1056, packers.pack_iq2_xxs, table=8192),
        TileType("IQ2_XS", 17, 1184, packers.pack_iq2_xs, table=8192),
        TileType("IQ2_S", 22, 1312, packers.pack_iq2_s, table=8192),
        TileType("IQ1_S", 19, 800, packers.pack_iq1_s, plane_bits=3, table=16384),
        TileType("IQ1_M", 29, 896, packers.pack_iq1_m, plane_bits=3, table=16384),
        TileType("TQ1_0", 34, 864, packers.pack_tq1_0),
        TileType("TQ2_0", 35, 1056, packers.pack_tq2_0),
        TileType("NVFP4", 40, 2320, packers.pack_nvfp4, half_activations=True),
        TileType("Q1_0", 41, 576, packers.pack_q1_0),
        TileType("Q2_0", 42, 1152, packers.pack_q2_0),
        TileType("INT4_32", 200, 2432, partial(packers.pack_int4, group=32)),
        TileType("INT4_64", 201, 2240, partial(packers.pack_int4, group=64)),
        TileType("INT4_128", 202, 2144, partial(packers.pack_int4, group=128)),
        TileType("INT4S_128", 204, 2176, packers.pack_symmetric),
        TileType("F8_E4M3", 203, 4224, packers.pack_f8, half_activations=True),
    )
}
