"""Golden pairs with a random cache type, context and settings: on a card any drafting gives the tokens and the
log-probabilities of plain decoding, through the whole of a load and with prefixes that are reused."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from dflash_core import Engine, Knobs
from dflash_core.engine import load_pair
from dflash_core.log_probs import Drawn, LogProbs
from support import on_device
from support.golden import goldens, other_targets
from support.grids import full
from support.soaking import random_knobs

PAIRS = (
    ("tiny-F16.gguf", "tiny-dflash"),
    ("tiny-Q4_K_M.gguf", "tiny-dflash"),
    ("q3-F16.gguf", "q3-dflash"),
    ("q35moe-F16.gguf", "q35moe-dflash"),
    ("q35moe-F16.gguf", "q35moe-dflash2"),
    ("q35moe-mtp-Q8_0.gguf", None),
    ("gemma4-e-F16.gguf", "gemma4-e-assistant-F16.gguf"),
    ("gemma3-Q8_0.gguf", "ngram"),
    ("gptoss-MXFP4.gguf", "ngram"),
    ("laguna-Q8_0.gguf", "ngram"),
    ("llama-mistral-F16.gguf", "ngram"),
)
CACHES = ("f16", "bf16", "q8_0", "q5_0", "q4_0", "tq3_0", "q8_0/q5_0", "f16/q8_0", "q8_0+384", "q5_0/q4_0+512")
CONTEXTS, LENGTHS = (97, 300, 512, 700), (1, 2, 5, 23, 24, 25, 63, 64, 65, 130, 260, 400, 690)
TURNS = 16
SHAPE = {"drafting", "p_min", "tree_temperature", "tree_width", "chain_seed", "by_parent", "draft_window", "mtp_depth"}
"""Settings that a running answer takes, and that change no token."""

SEEDS = [seed if seed < len(PAIRS) else full(seed) for seed in range(8 * len(PAIRS))]

pytestmark = pytest.mark.skipif(on_device.missing() is not None, reason=on_device.missing() or "")


def path(name: str) -> str:
    return name if name == "ngram" else str((goldens(name) or other_targets(name))[0])


def knobs_of(rng: np.random.Generator) -> Knobs:
    """As in a soak, and what it does not draw: `auto up to N`, trees by parent, windows of the target, long chains of a
    head, few draft tokens, extreme truncations."""
    knobs = random_knobs(rng, longest=70)
    if not rng.integers(4):
        knobs = knobs.replace(drafting=f"auto up to {rng.integers(1, 64)}")
    if knobs.temperature and not rng.integers(3):
        knobs = knobs.replace(temperature=float(rng.choice([0.05, 5.0])), top_p=float(rng.choice([0.0, 0.01, 1.0])))
    return knobs.replace(
        by_parent=bool(rng.integers(2)), mtp_depth=int(rng.integers(1, 6)), from_text=bool(rng.integers(2)),
        draft_vocabulary=int(rng.choice([0, 64, 98_304])), attention_window=int(rng.choice([0, 0, 0, 64, 128])),
    )  # fmt: skip


def answer(
    engine: Engine, ids: list[int], knobs: Knobs, recorded: int | None, change: tuple[int, Knobs] | None = None
) -> tuple[list[int], str | None, list[Drawn]]:
    """Tokens, why they end, and their log-probabilities, if the `recorded` likeliest are. `change`: from which event on
    other settings hold."""
    tokens, stop = list[int](), None
    log_probs = LogProbs(recorded) if recorded is not None else None
    with closing(engine.generate(ids, knobs, log_probs=log_probs)) as events:
        for count, event in enumerate(events):
            tokens, stop = [*tokens, *event.tokens], event.stop
            if change is not None and count == change[0]:
                engine.change(change[1])
    return tokens, stop, log_probs.drawn if log_probs is not None else []


@pytest.mark.parametrize("seed", SEEDS)
def test_any_drafting_is_plain_decoding(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target, draft = PAIRS[seed % len(PAIRS)]
    kv, context = str(rng.choice(CACHES)), int(rng.choice(CONTEXTS))
    drafting, plain = (
        load_pair(path(target), draft and path(draft), "cuda", context_length=context, kv=kv) for _ in range(2)
    )
    vocab, before = drafting.target.config.vocab_size, list[int]()
    for _ in range(TURNS):
        ids = rng.integers(0, vocab, int(rng.choice(LENGTHS))).tolist()
        if before and rng.integers(2):  # goes on, or branches off
            ids = before[: int(rng.choice([len(before), rng.integers(len(before))]))] + ids[:40]
        ids = ids[: context - 1]
        knobs, other = knobs_of(rng), knobs_of(rng)
        change = int(rng.integers(12)), knobs.replace(**{name: getattr(other, name) for name in SHAPE})
        recorded = int(rng.integers(6)) if not rng.integers(4) else None
        expected = answer(plain, ids, knobs.replace(drafting="plain"), recorded)
        found = answer(drafting, ids, knobs, recorded, change if not rng.integers(4) else None)
        assert found == expected, f"{target}, {kv}, context {context}, a prompt of {len(ids)}: {knobs}"
        before = [*ids, *found[0]]
