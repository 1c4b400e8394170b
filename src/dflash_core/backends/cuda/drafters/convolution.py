"""The convolutions before and after a sub-layer of a DFlash block: weights and launches, see kernels/conv.cu."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dflash_core.arch import draft_heads
from dflash_core.backends.cuda.activations import Rounding
from dflash_core.backends.cuda.launch import WARP, At, Device, Launch, ceil_div
from dflash_core.backends.cuda.layers.base import PassBuffers, Upload
from dflash_core.backends.cuda.products import TensorSpec
from dflash_core.backends.cuda.projection import Projection
from dflash_core.backends.cuda.repack import GROUP


class ConvolutionRows(NamedTuple):
    """What the convolution before a sub-layer leaves for the one after it, for a block of `rows` rows: the normed input
    (rows, hidden), and its part of the second convolution's coefficients (rows, taps, groups)."""

    normed: Tensor
    later: Tensor

    @staticmethod
    def pieces(spec: draft_heads.Convolution, rows: int, hidden: int) -> Sequence[TensorSpec]:
        return [((rows, hidden), torch.float32), ((rows, spec.kernel, hidden // spec.group), torch.float32)]


class DeviceConvolution:
    """The two convolutions around one sub-layer. `name`: the tensor prefix, such as blk.0.attn."""

    def __init__(
        self, device: Device, upload: Upload, name: str, spec: draft_heads.Convolution, rounding: Rounding
    ) -> None:
        self.spec = spec
        self.base = upload.vector(name + "_conv_base")  # (2, taps, hidden)
        self.proj = Projection(device, [upload.matrix(name + "_conv_proj.weight")], rounding)

    @property
    def hidden(self) -> int:
        return self.base.shape[2]

    def _defines(self, split_k: int) -> dict[str, object]:
        return {"WIDTH": self.hidden, "TAPS": self.spec.kernel, "CHANNELS": self.spec.group, "SPLIT_K": split_k}

    def before(self, buffers: PassBuffers, scratch: ConvolutionRows, reader: Projection, rows: int) -> Iterator[Launch]:
        """Launches from the normed rows, and their activations for `proj`, to the activations of `reader`."""
        yield from self.proj.launches(buffers.acts, buffers.wide, rows)
        yield Launch(
            "conv.cu", "conv_before", {**self._defines(self.proj.split_k), **reader.forms},
            (ceil_div(self.hidden, GROUP), rows), WARP,
            [scratch.normed, buffers.wide, np.int32(rows), np.int32(self.proj.width), self.base, scratch.later,
             *reader.act_args(buffers.acts)],
        )  # fmt: skip

    def after(self, buffers: PassBuffers, scratch: ConvolutionRows, output: Projection, rows: int) -> Launch:
        """Add the sub-layer's output, convolved from the partials of `output`, to the residual stream."""
        other: Tensor | At = At(self.base, self.base[0].numel())
        return Launch(
            "conv.cu", "conv_after", self._defines(output.split_k), (ceil_div(self.hidden, GROUP), rows), WARP,
            [buffers.h, buffers.narrow, np.int32(rows), other, scratch.later],
        )  # fmt: skip
