"""The target writes documents: many rows at once, each a series of documents, one token of every row in a step.

A row is filled from its first column to its last, as training reads it. A document begins with a script, after which
the target writes a user's turn or an answer; a turn is followed by its answer, an answer by another turn or by the next
document. All of it is tensor code without a branch, so that a CUDA graph can hold a step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tools.train_demo import data
from tools.train_demo.shapes import Weights

from .llama import LlamaCache, LlamaConfig, llama_step
from .scripts import ANSWER, END, MORE, REPLY, USER, Scripts


@dataclass(frozen=True)
class Manner:
    """How the target writes. Of the answers a share of `greedy` has temperature 0, the others `temperature`."""

    greedy: float = 0.6
    temperature: float = 1.0
    user_temperature: float = 0.8
    again: float = 0.35
    """Share of the answers that another turn follows."""
    longest_turn: int = 160
    longest_answer: int = 320


class Writer:
    """B rows of `length` columns. `fill` returns tokens (with the ANSWER bit of `data`) and seg, (B, length) int32."""

    def __init__(
        self, c: LlamaConfig, w: Weights, scripts: Scripts, manner: Manner, *, batch: int, length: int, seed: int
    ) -> None:
        device, dtype = w["token_embd.weight"].device, w["token_embd.weight"].dtype
        self.c, self.w, self.manner, self.batch, self.length = c, w, manner, batch, length
        self.ids, self.sizes, self.kinds, self.order = (
            torch.from_numpy(one).to(device) for one in (scripts.ids, scripts.sizes, scripts.kinds, scripts.order)
        )
        self.head = w["token_embd.weight"].float()  # bfloat16 logits of a size of 16 would be whole eighths
        self.cache = LlamaCache.empty(c, batch, length, dtype, device)
        torch.manual_seed(seed)

        def zeros(kind: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(batch, dtype=kind, device=device)

        self.tokens = torch.zeros(batch, length, dtype=torch.int32, device=device)
        self.seg = self.tokens.clone()
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        self.token, self.script = zeros(torch.int64), zeros(torch.int64)
        self.place, self.kind, self.count, self.first, self.document = zeros(), zeros(), zeros(), zeros(), zeros()
        self.heat, self.fresh = zeros(torch.float32), zeros(torch.bool)
        self.run: Callable[[], None] = self.step

    def begin(self, scripts: Tensor | None = None, heat: float = 0.0) -> None:
        """Begin new rows: with these scripts (B,), answered at the temperature `heat`, or all drawn at random."""
        for one in (self.at, self.place, self.kind, self.count, self.first, self.document):
            one.zero_()
        self.seg.fill_(-2)
        self.fresh.zero_()
        self.script.copy_(self._drawn() if scripts is None else scripts)
        self.heat.copy_(self._drawn_heat() if scripts is None else torch.full_like(self.heat, heat))
        self.token.copy_(self.ids[self.script, 0])
        self.place.fill_(1)
        self.tokens[:, 0] = self.token
        self.seg[:, 0] = 0

    def fill(self, deadline: float = math.inf) -> tuple[Tensor, Tensor]:
        """Write the rows after `begin` to their last column. After the deadline what is missing stays without seg."""
        for column in range(1, self.length):
            self.run()
            if column % 64 == 0:
                self.at.item()  # waits for the card
                if time.monotonic() > deadline:
                    break
        return self.tokens.clone(), self.seg.clone()

    def capture(self) -> None:
        """Make `run` a CUDA graph of a step; the rows must be begun again after it."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        self.run = graph.replay

    def _drawn(self) -> Tensor:
        number = torch.rand(self.batch, device=self.order.device) * len(self.order)
        return self.order[number.long().clamp(max=len(self.order) - 1)].long()

    def _drawn_heat(self) -> Tensor:
        greedy = torch.rand(self.batch, device=self.order.device) < self.manner.greedy
        return torch.where(greedy, 0.0, self.manner.temperature)

    def _chosen(self, hidden: Tensor) -> Tensor:
        """The target's own next tokens (B,): the best of logits + temperature * Gumbel noise, a draw from softmax."""
        logits = hidden @ self.head.T
        heat = torch.where(self.kind == USER, self.manner.user_temperature, self.heat)
        waits = torch.empty_like(logits).exponential_().log_()  # minus Gumbel noise
        return torch.addcmul(logits, heat[:, None], waits, value=-1).argmax(-1)

    @torch.no_grad()
    def step(self) -> None:
        """Feed every row's token, choose the next one and write it down."""
        hidden = llama_step(self.c, self.w, self.cache, self.token, self.first, self.at)
        chosen = self._chosen(hidden)
        size, kind = self.sizes[self.script], self.kind
        reads = self.place < size
        token = torch.where(reads, self.ids[self.script, self.place.clamp(max=self.ids.shape[1] - 1)].long(), chosen)
        opens = reads & self.fresh & (self.place == 0)
        self.at += 1
        self.first.copy_(torch.where(opens, self.at.int(), self.first))
        self.document += opens
        self.fresh &= ~opens
        own = ~reads & (kind == ANSWER)
        self.tokens.index_copy_(1, self.at, (token.int() + own * data.ANSWER)[:, None].int())
        self.seg.index_copy_(1, self.at, self.document[:, None])
        self.token.copy_(token)

        self.place += reads
        self.kind.copy_(torch.where(reads & (self.place == size), self.kinds[self.script], kind))
        self.count.copy_(torch.where(reads, 0, self.count + 1))
        most = torch.where(kind == USER, self.manner.longest_turn, self.manner.longest_answer)
        closed = ~reads & (token == END)
        broken = ~reads & ((token < END) | (self.count >= most)) & ~closed
        replies = closed & (kind == USER)
        more = closed & (kind == ANSWER) & (torch.rand(self.batch, device=token.device) < self.manner.again)
        anew = broken | (closed & (kind == ANSWER) & ~more)
        self.script.copy_(torch.where(replies, REPLY, torch.where(more, MORE, self.script)))
        self.script.copy_(torch.where(anew, self._drawn(), self.script))
        self.place.copy_(torch.where(replies | more | anew, 0, self.place))
        self.count.copy_(torch.where(replies | more | anew, 0, self.count))
        self.fresh |= anew
        self.heat.copy_(torch.where(anew, self._drawn_heat(), self.heat))
