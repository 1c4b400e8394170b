"""The target's head: logits of verify rows and of draft rows, or only the best of each row."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.launch import WARP, Argument, At, Launch, ceil_div
from dflash_core.backends.cuda.plan import WARPS
from dflash_core.backends.cuda.projection import Acts, Projection
from dflash_core.backends.cuda.state import BEST_PART, PASS_ROWS, TOP_PART
from dflash_core.backends.cuda.target_model import DeviceTarget

TOP_THREADS = 256
SAMPLE_THREADS = 512
TOP_PARTS = 64  # parts of the vocabulary that head_top looks at side by side, at most


class Head:
    """One matrix, one k slice: a logit is whole when it leaves its thread block.

    `room`: memory that idles while logits are looked at; they lie there where it is large enough.
    """

    def __init__(self, target: DeviceTarget, state: DeviceState | None, room: Tensor | None = None) -> None:
        device = target.device.torch_device
        self._state, self.vocab = state, target.output.rows
        self.full = Projection(target.device, [target.output], half=target.half, split_k=1)
        self.stride = self.full.width
        wanted = PASS_ROWS * self.stride
        shared = None if room is None else room.view(torch.float32)
        self.shares = shared is not None and shared.numel() >= wanted
        flat = shared[:wanted] if shared is not None and self.shares else torch.zeros(wanted, device=device)
        self.rows = flat.view(PASS_ROWS, self.stride)
        self.best = torch.zeros(PASS_ROWS * self.full.plan.grid * BEST_PART.itemsize, dtype=torch.uint8, device=device)
        self.top_parts = min(TOP_PARTS, ceil_div(self.vocab, TOP_THREADS))  # a part is whole steps of a thread block
        self.top = torch.zeros(PASS_ROWS * self.top_parts * TOP_PART.itemsize, dtype=torch.uint8, device=device)

    @property
    def state(self) -> DeviceState:
        assert self._state is not None, "launches of a head that has no sequence"
        return self._state

    @property
    def nbytes(self) -> int:
        return (0 if self.shares else self.rows.nbytes) + self.best.nbytes + self.top.nbytes

    def launches(self, acts: Acts, rows: int) -> list[Launch]:
        """Logits of `rows` rows, into `rows`."""
        return self.full.launches(acts, self.rows, rows)

    def draw_launches(self, acts: Acts, rows: int, node0: int) -> list[Launch]:
        """Greedy: the best token after each node becomes its draw."""
        plan = self.full.plan
        table = plan.pack([matrix.tiles.data_ptr() for matrix in self.full.matrices])
        argmax = [
            Launch(
                "head.cu", "head_argmax", plan.defines(count), plan.grid, WARPS * WARP,
                [table, *self.full.wanted(acts), self.best, np.int32(first // 8)], plan.shared_bytes(count),
            )
            for first, count in plan.passes(rows)
        ]  # fmt: skip
        merge = Launch(
            "tree.cu", "merge_draws", {}, rows, WARP,
            [self.state.pointer, self.best, np.int32(plan.grid), np.int32(node0)],
        )  # fmt: skip
        return [*argmax, merge]

    def sample_launch(self, rows: int, node0: int) -> Launch:
        """From logits to draws by the turn's sampling knobs and every node's own path."""
        args: list[Argument] = [
            self.state.pointer,
            self.rows,
            np.int32(self.vocab),
            np.int32(self.stride),
            np.int32(node0),
        ]
        return Launch("sample.cu", "sample", {"THREADS": SAMPLE_THREADS}, rows, SAMPLE_THREADS, args)

    def candidate_launches(self, depths: int) -> list[Launch]:
        """From the logits of a draft block to candidates; draft position r is row r + 1 of the block."""
        return [
            Launch(
                "head.cu", "head_top", {}, (self.top_parts, depths), TOP_THREADS,
                [self.state.pointer, At(self.rows, self.stride), np.int32(self.vocab), np.int32(self.stride), self.top],
            ),
            Launch(
                "tree.cu", "merge_candidates", {}, depths, WARP,
                [self.state.pointer, self.top, np.int32(self.top_parts)],
            ),
        ]  # fmt: skip

    def logits(self, rows: int) -> Tensor:
        """(rows, vocab) of the last `launches`."""
        return self.rows[:rows, : self.vocab]

    def draft_logits(self, block: int) -> Tensor:
        """(block - 1, vocab) of the last `launches` for a draft block."""
        return self.rows[1:block, : self.vocab]
