"""What a packed cache would gain from a recent window, and the first positions, kept as halves. On the CPU.

python -m tools.bench.cache_window TARGET --text FILE.. [--positions 8192] [--rows 1024] --case q4_0:0:0 q4_0:1024:64 ..

A case is TYPE:WINDOW:FIRST. A row at position p reads position j as halves where p - j < WINDOW or j < FIRST, and as
the packed type elsewhere. The last `--rows` positions run with that, behind keys and values that were computed exactly;
the figures are KL divergences of their logits from those of a cache of halves, in nats. Models of attention layers
without a window and without sinks only.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from dflash_core.backends.cpu.target import CpuTarget
from dflash_core.cache_types import CachePair
from dflash_core.loading import load_target
from dflash_core.models.attention import Attention
from dflash_core.models.cache_rows import CODECS, hadamard
from dflash_core.models.rows import Inputs, NoState, Rows
from dflash_core.models.target import TargetModel
from tools.bench.tool import run_tool

PASS = 256  # rows


class Mixed(NoState):
    """Keys and values of a layer, (kv_heads, positions, head_dim) each: as halves and as packed. What a row reads of
    both is chosen by `window` and `first`. Without a type all are halves."""

    def __init__(self, kv: CachePair | None, window: int, first: int) -> None:
        self.kv, self.window, self.first = kv, window, first
        self.halves: list[Tensor] = []
        self.packed: list[Tensor] = []

    def store(self, rows: tuple[Tensor, Tensor]) -> None:
        halves = [one.half().float() for one in rows]
        packed = halves if self.kv is None else [self._packed(halves[0], keys=True), self._packed(halves[1])]
        for held, new in ((self.halves, halves), (self.packed, packed)):
            held[:] = [torch.cat(pair, 1) for pair in zip(held, new)] if held else new

    def _packed(self, rows: Tensor, *, keys: bool = False) -> Tensor:
        assert self.kv is not None
        kind = self.kv.k if keys else self.kv.v
        codec, turned = CODECS[kind.name], keys and kind.rotated
        found = codec.unpack(codec.pack(hadamard(rows) if turned else rows), rows.shape[-1], torch.float32)
        return hadamard(found) if turned else found

    def near(self, positions: Tensor) -> Tensor:
        """Which of all positions each of these rows reads as halves."""
        keys = torch.arange(self.halves[0].shape[1])
        return (positions[:, None] - keys < self.window) | (keys < self.first) | (self.kv is None)


class MixedAttention(Attention):
    """Attention over a `Mixed` cache."""

    def __call__(self, x: Tensor, inputs: Inputs) -> Tensor:
        cache, positions = inputs.state, inputs.rows.positions
        assert isinstance(cache, Mixed)
        angles = self.rotary.angles(positions)
        q, gate = self.queries(x, angles)
        cache.store(self.keys_values(x, angles))
        (keys, values), (packed_keys, packed_values) = cache.halves, cache.packed
        heads, n, d = q.shape
        groups, near = len(keys), cache.near(positions).repeat(heads // len(keys), 1)
        visible = (torch.arange(keys.shape[1]) <= positions[:, None]).repeat(heads // groups, 1)
        rows = q.reshape(groups, -1, d)
        scores = torch.where(near, rows @ keys.transpose(1, 2), rows @ packed_keys.transpose(1, 2))
        shares = torch.softmax((scores * self.spec.score_scale).masked_fill(~visible, -math.inf), -1)
        mixed = (shares * near) @ values + (shares * ~near) @ packed_values
        return self.output(mixed.view(heads, n, d).transpose(0, 1).reshape(n, heads * d), gate)


def hidden(model: TargetModel, ids: list[int], caches: list[Mixed], begin: int) -> Tensor:
    """Outputs (n, hidden) of positions from `begin` on."""
    found = []
    for at in range(begin, len(ids), PASS):
        part = ids[at : at + PASS]
        found.append(model.forward(Rows.of(part, range(-1, len(part) - 1), at), caches)[0])
    return torch.cat(found)


def divergence(model: TargetModel, exact: Tensor, other: Tensor) -> tuple[Tensor, float]:
    """KL of each row's logits, and the share of rows with the same best token."""
    found, same = [], 0
    for at in range(0, len(exact), PASS):
        p, q = (torch.log_softmax(model.logits(h[at : at + PASS]).double(), -1) for h in (exact, other))
        found.append((p.exp() * (p - q)).sum(-1))
        same += int((p.argmax(-1) == q.argmax(-1)).sum())
    return torch.cat(found), same / len(exact)


@torch.inference_mode()
def measure(path: Path, texts: list[Path], positions: int, rows: int, cases: list[str]) -> None:
    """Print a line per case as it comes."""
    target = load_target(path)
    assert isinstance(target, CpuTarget)
    model = target.model
    ids = [int(one) for one in target.tokenizer.encode("\n".join(text.read_text() for text in texts))][:positions]
    for block in model.blk:
        assert type(block.mixer) is Attention, "attention layers alone"
        block.mixer.__class__ = MixedAttention
    exact = [Mixed(None, 0, 0) for _ in model.blk]
    reference, begin = hidden(model, ids, exact, 0)[-rows:], len(ids) - rows
    for case in cases:
        began = time.perf_counter()
        kind, window, first = case.split(":")
        caches = [Mixed(CachePair.parse(kind), int(window), int(first)) for _ in model.blk]
        for cache, known in zip(caches, exact):
            cache.store((known.halves[0][:, :begin], known.halves[1][:, :begin]))
        kl, top = divergence(model, reference, hidden(model, ids, caches, begin))
        sys.stdout.write(
            f"{case:16} {len(ids)} positions, mean KL {kl.mean():.2e}, median {kl.median():.2e},"
            f" 99 % {kl.quantile(0.99):.2e}, top-1 {top:.2%}, {time.perf_counter() - began:.0f} s\n"
        )
        sys.stdout.flush()


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.cache_window")
    parser.add_argument("target", type=Path, metavar="TARGET", help="a model file")
    parser.add_argument("--text", type=Path, nargs="+", required=True, metavar="FILE", help="what it reads")
    parser.add_argument("--positions", type=int, default=8192, metavar="N")
    parser.add_argument("--rows", type=int, default=1024, metavar="N", help="the last positions, which are compared")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--case", nargs="+", required=True, metavar="TYPE:WINDOW:FIRST")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    measure(args.target, args.text, args.positions, args.rows, args.case)


if __name__ == "__main__":
    run_tool(main)
