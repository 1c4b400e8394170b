"""Cache rows of each type in plain torch: for the CPU's cache, and as the reference for the card's kernels.

An integer type stores, of a row's groups of GROUP numbers: codes; planes of single bits; a scale per group, as a half;
zeros up to whole chunks. Element e of group j has its code's low bits in byte e of a run of GROUP bytes that 8 / low
groups share, the first of them in the lowest bits; of each plane it has bit e of the group's 32.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_core.cache_types import GROUP, TYPES, CacheType

BITS = 8


class Floats:
    """Rows as floats of a type of their own."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def elements(self, numbers: int) -> int:
        """Stored elements of a row of `numbers` numbers."""
        return numbers

    def pack(self, rows: Tensor) -> Tensor:
        """Rows (..., numbers) as they are stored, (..., elements)."""
        return rows.to(self.dtype)

    def unpack(self, stored: Tensor, numbers: int, dtype: torch.dtype) -> Tensor:
        """Stored rows (..., elements) as floats (..., numbers)."""
        return stored.to(dtype)


class Packed:
    """As `Floats`: codes 0..2^bits - 1 under a scale per group.

    A number is (code - `zero`) * scale. `centred`: zero is between the two middle codes, else the upper one of them.
    `reach`: how many scales the largest magnitude of a group is; without, the number that has it becomes code 0.
    """

    dtype = torch.uint8

    def __init__(self, kind: CacheType, *, centred: bool = False, reach: float = 0.0) -> None:
        self.kind, self.reach = kind, reach
        self.codes = 1 << (kind.low + kind.high)
        self.zero = (self.codes - 1) / 2 if centred else self.codes / 2

    def elements(self, numbers: int) -> int:
        return self.kind.row_bytes(numbers)

    def _scales(self, groups: Tensor) -> Tensor:
        if self.reach:
            return groups.abs().amax(-1, keepdim=True) / self.reach
        largest = groups.abs().argmax(-1, keepdim=True)
        return groups.gather(-1, largest) / -self.zero

    def pack(self, rows: Tensor) -> Tensor:
        kind, numbers, lead = self.kind, rows.shape[-1], rows.shape[:-1]
        groups = F.pad(rows.float(), (0, -numbers % GROUP)).reshape(*lead, -1, GROUP)
        scales = self._scales(groups).half()
        factor = scales.float()
        ratio = groups / torch.where(factor == 0, 1.0, factor)
        codes = (ratio + self.zero).round().clamp(0, self.codes - 1).to(torch.uint8)
        shared = BITS // kind.low
        low = F.pad(codes & ((1 << kind.low) - 1), (0, 0, 0, -codes.shape[-2] % shared))
        low = low.view(*lead, -1, shared, GROUP) << self._places(shared, kind.low, rows.device)[:, None]
        parts = [low.sum(-2, dtype=torch.uint8).view(*lead, -1)]
        for plane in range(kind.high):
            bits = (codes >> (kind.low + plane) & 1).view(*lead, -1, BITS) << self._places(BITS, 1, rows.device)
            parts.append(bits.sum(-1, dtype=torch.uint8))
        parts.append(scales.view(*lead, -1).view(torch.uint8))
        packed = torch.cat(parts, -1)
        return F.pad(packed, (0, self.elements(numbers) - packed.shape[-1]))

    def unpack(self, stored: Tensor, numbers: int, dtype: torch.dtype) -> Tensor:
        kind, lead, on = self.kind, stored.shape[:-1], stored.device
        groups, shared = -(-numbers // GROUP), BITS // kind.low
        at = -(-groups // shared) * GROUP
        low = stored[..., :at].reshape(*lead, -1, 1, GROUP) >> self._places(shared, kind.low, on)[:, None]
        codes = (low & ((1 << kind.low) - 1)).view(*lead, -1, GROUP)[..., :groups, :]
        for plane in range(kind.high):
            end = at + groups * GROUP // BITS
            bits = (stored[..., at:end, None] >> self._places(BITS, 1, on) & 1).view(*lead, groups, GROUP)
            codes, at = codes | bits << (kind.low + plane), end
        scales = stored[..., at : at + 2 * groups].contiguous().view(torch.float16).to(dtype)
        floats: Tensor = (codes.to(dtype) - self.zero) * scales[..., None]
        return floats.reshape(*lead, -1)[..., :numbers]

    @staticmethod
    def _places(count: int, bits: int, device: torch.device) -> Tensor:
        """The first bits of the codes that share a byte."""
        return torch.arange(0, count * bits, bits, dtype=torch.uint8, device=device)


Codec = Floats | Packed
CODECS: dict[str, Codec] = {
    "f16": Floats(torch.float16),
    "bf16": Floats(torch.bfloat16),
    "q8_0": Packed(TYPES["q8_0"], reach=127.0),
    "q5_0": Packed(TYPES["q5_0"]),
    "q4_0": Packed(TYPES["q4_0"]),
    "tq3_0": Packed(TYPES["tq3_0"], centred=True, reach=3.75),
}
"""A codec for every name of cache_types.TYPES."""


def hadamard(x: Tensor) -> Tensor:
    """The orthonormal Hadamard transform of `x` (..., numbers), its own inverse; where the numbers are no power of two,
    in pieces of the largest that divides them."""
    numbers = x.shape[-1]
    size = numbers & -numbers
    rows, half = x.reshape(-1, size), 1
    while half < size:
        pairs = rows.view(-1, size // (2 * half), 2, half)
        rows = torch.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), 2).view(-1, size)
        half *= 2
    return (rows / math.sqrt(size)).view(x.shape)
