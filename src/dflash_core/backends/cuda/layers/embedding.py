"""The embedding on a card: rows of the matrix, in the file's own block format, become rows of the residual stream."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from dflash_core.backends.cuda.launch import At, HasAddress, Launch, ceil_div
from dflash_core.backends.cuda.layers.base import Upload

EMBED_THREADS = 256
TOKENS = "token_embd.weight"
NO_MASK = -1


class Embedding:
    """token_embd as in the file, or a similar matrix. `on_host`: in host memory; the kernel reads the few rows that
    a pass needs over the bus, so that a step stays one CUDA graph."""

    def __init__(self, upload: Upload, width: int, name: str = TOKENS, *, on_host: bool = False) -> None:
        self.blocks: Tensor | HasAddress
        self.width = width
        self.type, self.blocks = upload.on_host(name) if on_host else upload.raw(name)

    def launch(
        self,
        h: Tensor,
        tokens: Tensor | HasAddress,
        count: At,
        rows: int,
        node0: int = 0,
        mask_token: int = NO_MASK,
        scale: float = 1.0,
    ) -> Launch:
        """Embeddings of `tokens` times `scale` into rows of `h`; with a mask token, all rows but the first embed it."""
        scaled = {"SCALE": scale} if scale != 1 else {}
        return Launch(
            "embed.cu", "embed", {"FORMAT": self.type, "WIDTH": self.width, **scaled},
            (ceil_div(self.width, EMBED_THREADS), rows), EMBED_THREADS,
            [h, self.blocks, tokens, np.int32(mask_token), count, np.int32(node0)],
        )  # fmt: skip
