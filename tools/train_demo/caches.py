"""Measures the accuracy that a KV cache type costs: logits and acceptance length, compared with an f16 cache.

    python -m tools.train_demo.caches [TARGET ...] [--ids FILE.npz] [--documents 24] [--answers 6] [KV ...]

Arithmetic is float32 on the CPU, so the difference is that of the cache alone. Over all positions of the text:

    KL = sum_v p(v) * (log p(v) - log q(v))    p with f16, q with the type; mean and 99th percentile, nats
    top-1                                       share of positions where both have the same best token

Acceptance length: tokens per step of the built-in pair, chains of its block, over `--answers` greedy answers; drafter
and target keep their caches in the type.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dflash_core.backends.opened import Target
from dflash_core.bench.prompts import PROMPTS
from dflash_core.cache_types import TYPES, CachePair
from dflash_core.conversation import Conversation
from dflash_core.demo import demo_draft, demo_target_path
from dflash_core.engine import load_pair
from dflash_core.knobs import Knobs
from dflash_core.loading import load_target

from .numerics import Difference, difference, held_out

USUAL = (*TYPES, "q8_0/q5_0", "q8_0/q4_0", "q5_0/q4_0", "q4_0/tq3_0")
POSITION = 1024  # numbers in a key row, and in a value row, for which bits per number are computed


def differences(target: Target, texts: Sequence[Sequence[int]], names: Sequence[str]) -> dict[str, Difference]:
    """The difference between each cache type and f16, over independent token sequences."""

    def logits(name: str) -> np.ndarray:
        return np.concatenate([target.logits(ids, kv=name) for ids in texts])

    exact = logits("f16")
    return {name: difference(exact, logits(name)) for name in names}


def acceptance_length(name: str, answers: int) -> float:
    """Tokens per step of the built-in pair with this cache."""
    engine = load_pair(demo_target_path(), demo_draft(None), kv=name)
    knobs = Knobs(drafting="chain 22", temperature=0.0, max_tokens=64)
    tokens = steps = 0
    for prompt in PROMPTS[:answers]:
        conversation = Conversation(engine, engine.target.tokenizer, engine.target.template)
        turn = conversation.ask(prompt, knobs)
        for _ in turn:
            pass
        assert turn.report is not None, "an answer that was not interrupted"
        tokens += turn.report.stats.tokens - 1
        steps += turn.report.stats.steps
    return tokens / max(steps, 1)


def main() -> None:
    """Print a table per target."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", nargs="*", type=Path, default=[demo_target_path()], help="GGUF files (default: demo)")
    parser.add_argument("--kv", nargs="*", default=list(USUAL), help="cache types, or two as K/V")
    parser.add_argument("--ids", type=Path, help="an .npz file with the text's token ids in `ids`")
    parser.add_argument("--documents", type=int, default=24, help="held-out documents of the demo's corpus")
    parser.add_argument("--answers", type=int, default=6, help="answers to measure acceptance on; 0: none")
    options = parser.parse_args()
    for path in options.target:
        target = load_target(path)
        ids = np.load(options.ids)["ids"] if options.ids else None
        texts = held_out(target, options.documents) if ids is None else [[int(i) for i in ids]]
        demo = path == demo_target_path() and options.answers
        print(f"{path.name}, {sum(map(len, texts))} positions")  # noqa: T201
        head = f"  {'keys/values':14} {'bits':>6} {'mean KL':>9} {'99 %':>9} {'top-1':>7}"
        print(head + ("  acceptance length" if demo else ""))  # noqa: T201
        for name, found in differences(target, texts, options.kv).items():
            bits = 4 * CachePair.parse(name).row_bytes(POSITION) / POSITION
            line = f"  {name:14} {bits:6.2f} {found.mean_kl:9.2e} {found.high_kl:9.2e} {found.top1:7.2%}"
            length = f"{acceptance_length(name, options.answers):19.2f}" if demo else ""
            print(line + length, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
