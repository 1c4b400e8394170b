"""Uploads weight files to the device: a thread reads and stages one part while the card repacks the previous part."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.launch import At, Device, HasAddress
from dflash_core.backends.cuda.packers import set_factors
from dflash_core.backends.cuda.projection import Matrix
from dflash_core.backends.cuda.repack import ROWS, blocks_of, groups_of, repack, tile_type
from dflash_core.errors import UnsupportedError, cpu_only
from dflash_core.formats.quants import BY_NAME, FLOATS
from dflash_core.formats.weights import TensorInfo, WeightFile

STAGE_BYTES = 32 << 20
# Types to which matrices can be requantised when they are loaded, and the types of such matrices.
PACKED = {"q8_0": FLOATS, "q4_0": (*FLOATS, "Q8_0")}
ALIGNMENT = 256  # enough for vector loads and fast for the library's products


def stored_type(kind: str, requantise: str = "") -> str:
    """The ggml type in which a matrix of type `kind` is stored. `requantise`: a type of PACKED, to which matrices of
    larger types are requantised, or "" for none.

    Raises UnsupportedError for any other value.
    """
    if requantise and requantise not in PACKED:
        raise UnsupportedError(f"weights requantised to {requantise!r}, expected {' or '.join(PACKED)}")
    return requantise.upper() if requantise and kind in PACKED[requantise] else kind


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to ALIGNMENT, for tensors that share memory."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Upload:
    """The tensors of a weight file, as layers ask for them. This class makes empty ones of their shapes, on the
    device without memory; `DeviceUpload` fills them.

    `requantise`: see stored_type. `pinned`: names of matrices that stay in host memory, where kernels read them.
    `nbytes`: bytes on the card of all tensors so far; `host_bytes`: of those that `on_host` gave. Raises
    UnsupportedError for types without a kernel.
    """

    def __init__(self, file: WeightFile, requantise: str = "", pinned: Collection[str] = ()) -> None:
        self.file, self.requantise, self.pinned = file, requantise, pinned
        self.nbytes = self.host_bytes = 0

    def matrix(self, name: str) -> Matrix:
        """As super-tiles."""
        info = self.file.tensors[name]
        rows, columns = info.n_elements // info.shape[-1], info.shape[-1]
        kind = stored_type(info.type, self.requantise)
        shape = (blocks_of(rows), groups_of(columns), tile_type(kind).bytes)
        tiles, memory = self._pinned(shape) if name in self.pinned else (self._empty(shape, torch.uint8), None)
        return Matrix(kind, rows, columns, tiles, memory)

    def vector(self, name: str) -> Tensor:
        """As f32, in torch order."""
        return self._empty(self.file.tensors[name].shape, torch.float32)

    def raw(self, name: str) -> tuple[str, Tensor]:
        """Type and blocks as in the file, (rows, bytes per row)."""
        info, shape = self._blocks(name)
        return info.type, self._empty(shape, torch.uint8)

    def on_host(self, name: str) -> tuple[str, HasAddress]:
        """The same as `raw`, but in host memory that kernels can read."""
        info, shape = self._blocks(name)
        self.host_bytes += info.n_bytes
        return info.type, self._pinned(shape)[1]

    def _blocks(self, name: str) -> tuple[TensorInfo, tuple[int, int]]:
        """A tensor whose blocks are read as stored, and their shape. Raises UnsupportedError where the tensor has a
        factor beside them."""
        info = self.file.tensors[name]
        if info.factors:
            raise cpu_only(
                f"{info.name} as {info.type} with a factor of the whole tensor, which no embedding kernel reads"
            )
        rows = info.n_elements // info.shape[-1]
        return info, (rows, info.n_bytes // rows)

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.nbytes += aligned(math.prod(shape) * dtype.itemsize)
        return torch.empty(shape, dtype=dtype, device="meta")

    def _pinned(self, shape: tuple[int, ...]) -> tuple[Tensor, HasAddress]:
        """Bytes of host memory, and the same as kernels get it."""
        tensor = torch.empty(shape, dtype=torch.uint8, device="meta")
        return tensor, At(tensor, 0)


class DeviceUpload(Upload):
    """Uploads one file. `nbytes`: bytes of all its tensors, as `Upload` counts them. The tensors are then contiguous,
    in the order of the requests, so that scratch memory of repacking leaves no holes between them."""

    def __init__(
        self,
        device: Device,
        file: WeightFile,
        requantise: str = "",
        nbytes: int = 0,
        pinned: Collection[str] = (),
    ) -> None:
        super().__init__(file, requantise, pinned)
        self.device = device
        on_card = device.torch_device.type == "cuda"
        self._stages = [torch.empty(STAGE_BYTES, dtype=torch.uint8, pin_memory=on_card) for _ in range(2)]
        self._arena = torch.empty(nbytes, dtype=torch.uint8, device=device.torch_device)
        self._reader = ThreadPoolExecutor(1, "reader")

    def close(self) -> None:
        """Free the staging memory."""
        self._reader.shutdown()
        self._stages.clear()

    def vector(self, name: str) -> Tensor:
        values = torch.from_numpy(np.ascontiguousarray(self.file.float32(name)))
        return super().vector(name).copy_(values)

    def raw(self, name: str) -> tuple[str, Tensor]:
        kind, out = super().raw(name)
        for begin, part in self._parts(name, 1):
            out[begin : begin + len(part)] = part
        return kind, out

    def on_host(self, name: str) -> tuple[str, HasAddress]:
        info, shape = self._blocks(name)
        pinned = self.device.pinned(shape, np.uint8)
        self.file.raw(name, out=pinned.array)
        return info.type, pinned

    def matrix(self, name: str) -> Matrix:
        info, found = self.file.tensors[name], super().matrix(name)
        for begin, part in self._parts(name, ROWS):
            block = begin // ROWS
            blocks = part if found.type == info.type else QUANTISE[found.type](_floats(part, info.type))
            repack(blocks, found.type, found.columns, out=found.tiles[block : block + blocks_of(len(part))])
        if info.factors:
            set_factors(found.tiles, info.factors)
        return found

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """In the shared memory if that has enough left."""
        size = math.prod(shape) * dtype.itemsize
        begin, end = self.nbytes, self.nbytes + aligned(size)
        if end > len(self._arena):
            return torch.empty(shape, dtype=dtype, device=self.device.torch_device)
        self.nbytes = end
        return self._arena[begin : begin + size].view(dtype).view(shape)

    def _pinned(self, shape: tuple[int, ...]) -> tuple[Tensor, HasAddress]:
        memory = self.device.pinned(shape, np.uint8)
        return torch.from_numpy(memory.array), memory

    def _parts(self, name: str, multiple: int) -> Iterator[tuple[int, Tensor]]:
        """Rows of a tensor on the device, in parts that fit the staging memory: each a multiple of `multiple` rows."""
        info = self.file.tensors[name]
        rows = info.n_elements // info.shape[-1]
        width = info.n_bytes // rows
        step = max(STAGE_BYTES // width // multiple, 1) * multiple
        if step * width > STAGE_BYTES:
            raise UnsupportedError(f"rows of {width:,} bytes, expected at most {STAGE_BYTES // multiple:,}")
        begins = list(range(0, rows, step))

        def stage(turn: int) -> Tensor:
            part = slice(begins[turn], min(begins[turn] + step, rows))
            to = self._stages[turn % 2][: (part.stop - part.start) * width].view(-1, width)
            self.file.raw(name, part, out=to.numpy())
            return to

        ahead = self._reader.submit(stage, 0)
        for turn, begin in enumerate(begins):
            staged = ahead.result()
            part = staged.to(self.device.torch_device)  # waits for the copy, so the stage can be reused
            if turn + 1 < len(begins):
                ahead = self._reader.submit(stage, turn + 1)
            yield begin, part


def _floats(raw: Tensor, kind: str) -> Tensor:
    if kind == "Q8_0":
        blocks = raw.view(len(raw), -1, BY_NAME[kind].size)
        scales, codes = blocks[..., :2].contiguous().view(torch.float16), blocks[..., 2:].contiguous().view(torch.int8)
        return (scales.float() * codes.float()).view(len(raw), -1)
    types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    return raw.contiguous().view(types[kind]).float()


def _groups(values: Tensor, kind: str) -> Tensor:
    """(rows, columns) f32 as (rows, blocks, 32). Raises UnsupportedError if columns are not whole blocks."""
    block = BY_NAME[kind].block
    rows, columns = values.shape
    if columns % block:
        raise UnsupportedError(f"rows of {columns} weights for {kind}, expected a multiple of {block}")
    return values.view(rows, -1, block)


def quantise_q8_0(values: Tensor) -> Tensor:
    """(rows, columns) f32 to Q8_0 blocks (rows, bytes): 32 int8 numbers with one f16 scale of max|x| / 127.

    Raises UnsupportedError for rows that are not whole blocks.
    """
    groups = _groups(values, "Q8_0")
    scale = groups.abs().amax(-1, keepdim=True) / 127
    half = scale.half()
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    codes = (groups * inverse).round().clamp(-127, 127).to(torch.int8)
    return torch.cat((half.view(torch.uint8), codes.view(torch.uint8)), dim=-1).view(len(values), -1)


def quantise_q4_0(values: Tensor) -> Tensor:
    """(rows, columns) f32 to Q4_0 blocks (rows, bytes): 32 codes of 4 bits with one f16 scale. Code c means
    (c - 8) * scale, and the scale is chosen so that the number of the largest magnitude is -8 * scale.

    Raises UnsupportedError for rows that are not whole blocks.
    """
    groups = _groups(values, "Q4_0")
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scale = largest / -8
    inverse = torch.where(scale != 0, 1 / scale, 0.0)
    codes = (groups * inverse + 8.5).floor().clamp(0, 15).to(torch.uint8)
    packed = codes[..., :16] | codes[..., 16:] << 4
    return torch.cat((scale.half().view(torch.uint8), packed), dim=-1).view(len(values), -1)


QUANTISE = {"Q8_0": quantise_q8_0, "Q4_0": quantise_q4_0}
