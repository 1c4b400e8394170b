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

from dflash_core.backends.cuda import pack_folder, pack_grids, pack_low, pack_nvfp4
from dflash_core.backends.cuda.tile_parts import (
    bits_of,
    blocks_of_32,
    lane_bits,
    lane_codes,
    lane_nibbles,
    lane_pairs,
    lane_registers,
    per_row,
    rotated_nibbles,
    row_pairs,
    split_nibbles,
    split_pairs,
    unit_planes,
    whole_tile,
)
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
    pack = _pack_bf16 if name == "BF16" else kind.pack
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


# Below, `blocks` has the shape (b, 16, groups, bytes of 256 weights). Packers return (b, groups, tile bytes).


def _k_nibbles(qs: Tensor) -> Tensor:
    """The nibbles of Q4_K and Q5_K from their 128 bytes: 32 bytes hold 64 weights, low nibbles first."""
    b, rows, groups, _ = qs.shape
    split = qs.reshape(b, rows, groups, 4, 1, 32)
    return torch.cat((split & 15, split >> 4), dim=4).flatten(3)


def _pack_q4_k(blocks: Tensor) -> Tensor:
    return whole_tile(per_row(blocks[..., :16]), unit_planes(lane_nibbles(_k_nibbles(blocks[..., 16:]))))


def _pack_q5_k(blocks: Tensor) -> Tensor:
    b, rows, groups, _ = blocks.shape
    place = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    fifth = (blocks[..., None, 16:48] >> place[:, None] & 1).reshape(b, rows, groups, GROUP)
    low = _k_nibbles(blocks[..., 48:])
    return whole_tile(per_row(blocks[..., :16]), unit_planes(lane_nibbles(low), lane_bits(fifth, range(8))))


def _pack_q6_k(blocks: Tensor) -> Tensor:
    b, rows, groups, _ = blocks.shape
    # Two halves of 128 weights: low nibbles of 64 bytes, then their high nibbles; a byte of `high` has four bit pairs.
    low = blocks[..., :128].reshape(b, rows, groups, 2, 1, 64)
    low = torch.cat((low & 15, low >> 4), dim=4).flatten(3)
    place = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device)
    high = blocks[..., 128:192].reshape(b, rows, groups, 2, 1, 32) >> place[:, None] & 3
    high = high.flatten(3) ^ 2  # q - 32 in two's complement
    scales, d = blocks[..., 192:208], blocks[..., 208:210]
    return whole_tile(per_row(scales), row_pairs(d), unit_planes(rotated_nibbles(low, 2), lane_pairs(high)))


def _pack_q3_k(blocks: Tensor) -> Tensor:
    b, rows, groups, _ = blocks.shape
    place = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device)
    pairs = split_pairs(blocks[..., 32:96])  # a high bit that is not set subtracts 4
    lifted = bits_of(blocks[..., :32]).transpose(-1, -2).flatten(3)
    codes = unit_planes(lane_pairs((lifted ^ 1) << 1 | pairs >> 1), lane_bits(pairs & 1, (5, 4, 3, 2, 1, 0, 7, 6)))
    # Scales 0..7 and 8..15 are the nibbles of eight bytes; four bytes hold the high bit pairs of every fourth scale.
    packed = blocks[..., 96:104]
    low = torch.cat((packed & 15, packed >> 4), dim=-1).view(b, rows, groups, 2, 2, 4)
    low = (low[..., 0, :] | low[..., 1, :] << 4).flatten(3)
    high = blocks[..., 104:108, None] >> place & 3 ^ 2
    high = (high << (6 - place)).sum(-1, dtype=torch.uint8)
    return whole_tile(per_row(low), per_row(high), row_pairs(blocks[..., 108:110]), codes)


def _table_nibbles(values: Tensor) -> Tensor:
    """Four bits per weight, a register's four weights adjacent, the upper row's first: (b, groups, 4, 512)."""
    codes = lane_codes(values)
    return (codes[..., ::2] | codes[..., 1::2] << 4).flatten(3)


def _pack_iq4_nl(blocks: Tensor) -> Tensor:
    subs = blocks_of_32(blocks, 18)
    return whole_tile(per_row(subs[..., :2].flatten(3)), unit_planes(_table_nibbles(split_nibbles(subs[..., 2:]))))


def _pack_mxfp4(blocks: Tensor) -> Tensor:
    subs = blocks_of_32(blocks, 17)
    return whole_tile(per_row(subs[..., 0]), unit_planes(_table_nibbles(split_nibbles(subs[..., 1:]))))


def _pack_iq4_xs(blocks: Tensor) -> Tensor:
    b, rows, groups, _ = blocks.shape
    place = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device)
    high = (blocks[..., 2:4, None] >> place & 3 ^ 2).view(b, rows, groups, 4, 2)  # pairs of subs
    high = (high << (6 - place)[:, None]).sum(-2, dtype=torch.uint8)
    packed = blocks[..., 4:8]
    low = torch.stack((packed & 15, packed >> 4), dim=-1).view(b, rows, groups, 2, 4)
    low = low[..., 0, :] | low[..., 1, :] << 4
    codes = split_nibbles(blocks[..., 8:].reshape(b, rows, groups, 8, 16))
    return whole_tile(per_row(torch.cat((blocks[..., :2], high, low), dim=-1)), unit_planes(_table_nibbles(codes)))


def _pack_iq3_s(blocks: Tensor) -> Tensor:
    b, rows, groups, _ = blocks.shape
    index, ninth = blocks[..., 2:66], bits_of(blocks[..., 66:74]).flatten(3)
    places = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    high = (lane_registers(ninth) << places).sum(-1, dtype=torch.uint8)
    signs = lane_bits(bits_of(blocks[..., 74:106]).flatten(3), range(8))
    packed = blocks[..., 106:110]
    scale = torch.stack((packed & 15, packed >> 4), dim=-1).view(b, rows, groups, 2, 4)
    scale = scale[..., 0, :] | scale[..., 1, :] << 4
    units = unit_planes(lane_registers(index.contiguous()).flatten(3), signs, high.flatten(3))
    return whole_tile(per_row(scale), row_pairs(blocks[..., :2]), units)


def _sub_fifth(qh: Tensor) -> Tensor:
    """(..., 8, 4) bytes of fifth bits to (..., 256)."""
    return bits_of(qh).flatten(3)


def _pack_q8_0(blocks: Tensor) -> Tensor:
    subs = blocks_of_32(blocks, 34)
    codes = lane_codes(subs[..., 2:].flatten(3))  # (b, groups, unit, g, t, sub, half, row half, byte)
    fragments = codes.permute(0, 1, 2, 5, 3, 4, 6, 7, 8)
    return whole_tile(per_row(subs[..., :2].flatten(3)), fragments.flatten(2))


def _pack_q4_0(blocks: Tensor) -> Tensor:
    subs = blocks_of_32(blocks, 18)
    return whole_tile(per_row(subs[..., :2].flatten(3)), unit_planes(lane_nibbles(split_nibbles(subs[..., 2:]) ^ 8)))


def _pack_q5_0(blocks: Tensor) -> Tensor:
    subs = blocks_of_32(blocks, 22)
    low, fifth = split_nibbles(subs[..., 6:]), _sub_fifth(subs[..., 2:6]) ^ 1
    return whole_tile(
        per_row(subs[..., :2].flatten(3)), unit_planes(rotated_nibbles(low, 3), lane_bits(fifth, range(7, -1, -1)))
    )


def _pack_q4_1(blocks: Tensor) -> Tensor:
    subs = blocks_of_32(blocks, 20)
    d, m = (per_row(subs[..., at : at + 2].flatten(3)) for at in (0, 2))
    return whole_tile(d, m, unit_planes(lane_nibbles(split_nibbles(subs[..., 4:]))))


def _pack_q5_1(blocks: Tensor) -> Tensor:
    subs = blocks_of_32(blocks, 24)
    d, m = (per_row(subs[..., at : at + 2].flatten(3)) for at in (0, 2))
    low, fifth = split_nibbles(subs[..., 8:]), _sub_fifth(subs[..., 4:8])
    return whole_tile(d, m, unit_planes(lane_nibbles(low), lane_bits(fifth, range(8))))


def _half_tile(parts: list[Tensor], scale: Tensor) -> Tensor:
    """f16 values (b, 16, groups, 256), whose parts are added to one sum, and scales (b, 16) to tiles."""
    b, _, groups, _ = parts[0].shape
    split = torch.stack(parts).view(len(parts), b, 2, 8, groups, 16, 4, 2, 2)  # rows: half, g; k: chunk, t, pair, two
    fragments = split.permute(1, 4, 5, 0, 3, 6, 7, 2, 8).contiguous().view(torch.uint8).flatten(2)
    head = scale.float()[:, None, :].expand(b, groups, ROWS).contiguous().view(torch.uint8)
    return whole_tile(head, fragments)


def _pack_f16(blocks: Tensor) -> Tensor:
    values = blocks.contiguous().view(torch.float16)
    return _half_tile([values], torch.ones(blocks.shape[:2], device=blocks.device))


def _row_scale(values: Tensor) -> Tensor:
    """A power of two per row (b, 16); dividing by it brings the largest magnitude into [2^14, 2^15)."""
    largest = values.abs().amax(dim=(2, 3))
    _, exponent = torch.frexp(torch.where(largest.isfinite(), largest, 1.0))
    # Clamped so that 1 / scale is a normal f32 number too.
    return torch.ldexp(torch.ones_like(largest), (exponent - 15).clamp(-126, 126))


def _pack_bf16(blocks: Tensor) -> Tensor:
    """The 8 significant bits of a bf16 fit an f16; values below 2^-29 of their row's largest lose some of them."""
    values = blocks.contiguous().view(torch.bfloat16).float()
    scale = _row_scale(values)
    return _half_tile([(values / scale[:, :, None, None]).half()], scale)


def _pack_f32(blocks: Tensor) -> Tensor:
    """Two f16 numbers hold 22 significant bits, for values down to 2^-39 of the row's largest."""
    values = blocks.contiguous().view(torch.float32)
    scale = _row_scale(values)
    scaled = values / scale[:, :, None, None]
    upper = scaled.half()
    return _half_tile([upper, (scaled - upper.float()).half()], scale)


TILE_TYPES: dict[str, TileType] = {
    kind.name: kind
    for kind in (
        TileType("F32", 0, 16448, _pack_f32, half_activations=True),
        TileType("F16", 1, 8256, _pack_f16, half_activations=True),
        TileType("Q4_0", 2, 2304, _pack_q4_0),
        TileType("Q4_1", 3, 2560, _pack_q4_1),
        TileType("Q5_0", 6, 2816, _pack_q5_0, plane_bits=3),
        TileType("Q5_1", 7, 3072, _pack_q5_1, plane_bits=3),
        TileType("Q8_0", 8, 4352, _pack_q8_0),
        TileType("Q4_K", 12, 2304, _pack_q4_k),
        TileType("Q5_K", 13, 2816, _pack_q5_k, plane_bits=3),
        TileType("Q6_K", 14, 3360, _pack_q6_k, plane_bits=2),
        TileType("Q3_K", 11, 1760, _pack_q3_k),
        TileType("IQ4_NL", 20, 2304, _pack_iq4_nl),
        TileType("IQ4_XS", 23, 2176, _pack_iq4_xs, plane_bits=2),
        TileType("MXFP4", 39, 2176, _pack_mxfp4),
        TileType("IQ3_S", 21, 1760, _pack_iq3_s, table=8192),
        TileType("IQ3_XXS", 18, 1568, pack_grids.pack_iq3_xxs, table=8192),
        TileType("Q2_K", 10, 1344, pack_low.pack_q2_k, plane_bits=2),
        TileType("IQ2_XXS", 16, 1056, pack_grids.pack_iq2_xxs, table=8192),
        TileType("IQ2_XS", 17, 1184, pack_grids.pack_iq2_xs, table=8192),
        TileType("IQ2_S", 22, 1312, pack_grids.pack_iq2_s, table=8192),
        TileType("IQ1_S", 19, 800, pack_grids.pack_iq1_s, plane_bits=3, table=16384),
        TileType("IQ1_M", 29, 896, pack_grids.pack_iq1_m, plane_bits=3, table=16384),
        TileType("TQ1_0", 34, 864, pack_low.pack_tq1_0),
        TileType("TQ2_0", 35, 1056, pack_low.pack_tq2_0),
        TileType("NVFP4", 40, 2320, pack_nvfp4.pack_nvfp4, half_activations=True),
        TileType("Q1_0", 41, 576, pack_low.pack_q1_0),
        TileType("Q2_0", 42, 1152, pack_low.pack_q2_0),
        TileType("INT4_32", 200, 2432, partial(pack_folder.pack_int4, group=32)),
        TileType("INT4_64", 201, 2240, partial(pack_folder.pack_int4, group=64)),
        TileType("INT4_128", 202, 2144, partial(pack_folder.pack_int4, group=128)),
        TileType("INT4S_128", 204, 2176, pack_folder.pack_symmetric),
        TileType("F8_E4M3", 203, 4224, pack_folder.pack_f8, half_activations=True),
    )
}
