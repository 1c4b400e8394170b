"""Golden pairs with a random cache type, context and settings: on a card any drafting gives the tokens and the
log-probabilities of plain decoding, through the whole of a load, with prefixes that are reused, grammars, and parts
of the weights in main memory on one side only."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import pytest

from dflash_core import Engine, Knobs
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.constraints.grammar import Grammar, Grammars
from dflash_core.engine import load_pair
from dflash_core.fits import CardOptions
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
GRAMMARS = (
    Grammar("regex", "(alpha|beta) is [0-9]{2,4}: qzx jvk!"),
    Grammar("regex", "[a-z ]{4,30}(!|\\?) [0-9a-f]+"),
    Grammar.schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
)
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


@dataclass(frozen=True, slots=True)
class Asked:
    """A turn. `recorded`: how many of the likeliest tokens are recorded, None for no log-probabilities; `change`: from
    which event on other settings hold."""

    ids: list[int]
    knobs: Knobs
    recorded: int | None = None
    grammar: Grammar | None = None
    change: tuple[int, Knobs] | None = None

    @staticmethod
    def drawn(rng: np.random.Generator, ids: list[int]) -> Asked:
        knobs, other = knobs_of(rng), knobs_of(rng)
        change = int(rng.integers(12)), knobs.replace(**{name: getattr(other, name) for name in SHAPE})
        return Asked(
            ids, knobs, int(rng.integers(6)) if not rng.integers(4) else None,
            GRAMMARS[int(rng.integers(len(GRAMMARS)))] if not rng.integers(4) else None,
            change if not rng.integers(4) else None,
        )  # fmt: skip

    @property
    def plain(self) -> Asked:
        return replace(self, knobs=self.knobs.replace(drafting="plain"), change=None)


def answer(engine: Engine, asked: Asked, grammars: Grammars) -> tuple[list[int], str | None, list[Drawn]]:
    """Tokens, why they end, and their log-probabilities if they are recorded."""
    tokens, stop, change = list[int](), None, asked.change
    log_probs = LogProbs(asked.recorded) if asked.recorded is not None else None
    constraint = grammars.constraint(asked.grammar) if asked.grammar else None
    with closing(engine.generate(asked.ids, asked.knobs, log_probs=log_probs, constraint=constraint)) as events:
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
    card = CardOptions(activations=str(rng.choice(list(CHOICES))), reading=str(rng.choice(["auto", "passes"])))
    places = {"embedding": str(rng.choice(["card", "host"]))} | ({"experts": "host"} if "moe" in target else {})
    drafting, plain = (
        load_pair(path(target), draft and path(draft), "cuda", context_length=context, kv=kv, card=one)
        for one in (replace(card, **places), card)
    )
    vocab, before = drafting.target.config.vocab_size, list[int]()
    grammars = Grammars(drafting.target.tokenizer, vocab)
    for _ in range(TURNS):
        ids = rng.integers(0, vocab, int(rng.choice(LENGTHS))).tolist()
        if before and rng.integers(2):  # goes on, or branches off
            ids = before[: int(rng.choice([len(before), rng.integers(len(before))]))] + ids[:40]
        ids = ids[: context - 1]
        asked = Asked.drawn(rng, ids)
        found = answer(drafting, asked, grammars)
        assert found == answer(plain, asked.plain, grammars), f"{target}, {kv}, {card}, context {context}: {asked}"
        before = [*ids, *found[0]]
