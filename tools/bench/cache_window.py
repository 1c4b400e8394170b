"""What cache types cost on a long text, with and without a recent window of halves. On the CPU.

python -m tools.bench.cache_window TARGET --text FILE.. [--positions 8192] [--rows 1024] --case q4_0 q4_0+1024 ..

A case is a cache type as of `--kv`. The whole text is read with each; the figures are KL divergences of the logits of
the last `--rows` positions from those of a cache of halves, in nats, and the processor time of reading.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from dflash_core.backends.opened import Target
from dflash_core.cache_types import F16, CachePair
from dflash_core.loading import load_target
from tools.bench.tool import run_tool

PASS = 256  # rows


def last_logits(target: Target, ids: list[int], kv: CachePair, rows: int) -> npt.NDArray[np.float32]:
    """Log-probabilities (rows, vocab) of the last positions."""
    session, begin, found = target.session(context=len(ids), kv=kv), len(ids) - rows, []
    for at in range(0, begin, PASS):
        session.prefill(ids[at : min(at + PASS, begin)])
    for at in range(begin, len(ids), PASS):
        part = ids[at : at + PASS]
        logits = torch.from_numpy(session.verify(part, range(-1, len(part) - 1)))
        session.commit(range(len(part)))
        found.append(torch.log_softmax(logits, -1).numpy())
    return np.concatenate(found)


def measure(path: Path, texts: list[Path], positions: int, rows: int, cases: list[str]) -> None:
    """Print a line per case as it comes."""
    target = load_target(path)
    ids = [int(one) for one in target.tokenizer.encode("\n".join(text.read_text() for text in texts))][:positions]
    exact = torch.from_numpy(last_logits(target, ids, F16, rows))
    for case in cases:
        began = time.process_time()
        found = torch.from_numpy(last_logits(target, ids, CachePair.parse(case), rows))
        taken, parts = time.process_time() - began, list[torch.Tensor]()
        for at in range(0, rows, PASS):
            p, q = exact[at : at + PASS].double(), found[at : at + PASS].double()
            parts.append((p.exp() * (p - q)).sum(-1))
        kl, top = torch.cat(parts), (exact.argmax(-1) == found.argmax(-1)).double().mean()
        sys.stdout.write(
            f"{case:16} {len(ids)} positions, mean KL {kl.mean():.2e}, median {kl.median():.2e},"
            f" 99 % {kl.quantile(0.99):.2e}, top-1 {top:.2%}, {taken:.0f} s\n"
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
    parser.add_argument("--case", nargs="+", required=True, metavar="TYPE")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    measure(args.target, args.text, args.positions, args.rows, args.case)


if __name__ == "__main__":
    run_tool(main)
