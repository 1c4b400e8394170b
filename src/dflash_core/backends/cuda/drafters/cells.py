"""A Gemma assistant's head on a card: over all tokens, or over those of a few cells that centroids choose."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dflash_core.arch.assistant import AssistantConfig
from dflash_core.backends.cuda.activations import Rounding
from dflash_core.backends.cuda.launch import WARP, Device, Launch, ceil_div
from dflash_core.backends.cuda.layers.base import PassBuffers, Upload
from dflash_core.backends.cuda.layers.head import CANDIDATE_THREADS, Head
from dflash_core.backends.cuda.projection import AnyProjection, Projection
from dflash_core.backends.cuda.repack import ROWS
from dflash_core.errors import UnsupportedError

TOKENS = "token_embd.weight"
CELL_WARPS = 8  # warps of a block of kernels/cells.cu
ORDERS = {"F32": "float", "I32": "i32", "I64": "i64"}  # by the type of the list of tokens


class AssistantHead:
    """Logits of one row, and the candidates of a draft's position among them: by the matrix of all tokens."""

    projections: Sequence[AnyProjection] = ()
    """Products whose results are in the pass's memory."""
    row: Tensor | None = None
    """Where the row is also needed in f32."""

    def __init__(self, upload: Upload) -> None:
        self.matrix = upload.matrix(TOKENS)

    def reader(self, head: Head) -> AnyProjection:
        """What reads the row's activations. `head`: the target's, whose memory of logits may be used."""
        return head.of(self.matrix).full

    def launches(self, head: Head, buffers: PassBuffers, depth: int) -> list[Launch]:
        return head.of(self.matrix).candidate_launches(buffers.acts, 1, position=depth)

    def on_host(self, head: Head) -> Tensor:
        """Logits (1, vocab) of the last launches; -inf for tokens without."""
        return head.on_host(1)


class CellHead(AssistantHead):
    """By centroids: over the tokens of the cells whose centroids suit the row best."""

    row: Tensor

    def __init__(self, device: Device, upload: Upload, config: AssistantConfig, rounding: Rounding) -> None:
        on, self.config = device.torch_device, config
        self.centroids = Projection(device, [upload.matrix("masked_embd_centroids.weight")], rounding)
        self.projections = (self.centroids,)
        self.type, self.rows = upload.raw(TOKENS)
        order, self.order = upload.raw("masked_embd_ordering")
        if order not in ORDERS:
            raise UnsupportedError(f"masked_embd_ordering is {order}, expected one of {', '.join(ORDERS)}")
        self.used = min(config.cells_used, config.cells)
        self.each = config.vocab_size // config.cells
        self.tokens = self.used * self.each
        self._order, blocks = ORDERS[order], ceil_div(self.tokens, ROWS)
        self.ids = torch.zeros(self.tokens, dtype=torch.int32, device=on)
        self.logits = torch.zeros(self.tokens, device=on)
        self.maxima, self.sums = (torch.zeros(blocks, device=on) for _ in range(2))
        self.row = torch.zeros(1, config.embedding_length, device=on)

    def reader(self, head: Head) -> AnyProjection:
        return self.centroids

    def launches(self, head: Head, buffers: PassBuffers, depth: int) -> list[Launch]:
        cells, threads = {"CELLS": self.config.cells, "USED": self.used, "EACH": self.each}, WARP * CELL_WARPS
        vocab, found = np.int32(self.tokens), (self.logits, self.maxima, self.sums)
        return [
            *self.centroids.launches(buffers.acts, buffers.wide, 1),
            Launch(
                "cells.cu", "choose_cells", {**cells, "SPLIT_K": self.centroids.split_k, "ORDER": self._order},
                ceil_div(self.config.cells, CELL_WARPS), threads,
                [buffers.wide, np.int32(self.centroids.width), self.order, self.ids],
            ),
            Launch(
                "cells.cu", "cell_logits", {**cells, "FORMAT": self.type, "WIDTH": self.config.embedding_length},
                ceil_div(self.tokens, ROWS), threads,
                [head.state.pointer, self.ids, self.rows, self.row, self.logits, self.maxima, self.sums],
            ),
            Launch(
                "candidates.cu", "candidates", {"TARGETS": "i32"}, 1, CANDIDATE_THREADS,
                [head.state.pointer, *found, vocab, vocab, np.int32(depth), self.ids],
            ),
        ]  # fmt: skip

    def on_host(self, head: Head) -> Tensor:
        full = torch.full((1, self.config.vocab_size), -math.inf)
        full[0, self.ids.cpu().long()] = self.logits.cpu()
        return full
