"""Planted drafts: a backend whose drafter knows the target's own continuation and hides it at chosen ranks.

Random golden drafters are never accepted, so without this no test would ever see a long or an off-spine path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dflash_core.backends.base import AnswerOptions, Checkpoint, Logits
from dflash_core.backends.cpu.session import CpuSession
from dflash_core.backends.decoder import Decoder
from dflash_core.backends.opened import Target
from dflash_core.constraints.base import Constraint
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.draw_noise import ranked
from dflash_core.events import StepEvent
from dflash_core.knobs import Knobs
from dflash_core.pair_scores import Factors, PairScores
from dflash_core.policy.base import Policy
from dflash_core.tree import Candidates, candidates


class PlantedBackend:
    """A CPU session for the target alone, with drafts made from `answer`, the expected continuation of the prompt.

    Each draft is right down to a random depth 0..block-1, often to the last. Down to that depth the right tokens have
    rank 0, or all but one of them have it, or many have lower ranks; wrong tokens take the other ranks. How peaked a
    row is varies, so p_min has an effect too. With `by_parent` a random table adds to every score by the token above,
    as a selector does.
    """

    def __init__(
        self,
        target: Target,
        prompt: Sequence[int],
        answer: Sequence[int],
        seed: int,
        *,
        block: int = 16,
        by_parent: bool = False,
    ) -> None:
        self.inner = CpuSession(target.model)
        self.vocab = target.config.vocab_size
        self.start, self.answer, self.block = len(prompt), list(answer), block
        self.rng = np.random.default_rng(seed)
        self.table = self.rng.standard_normal((self.vocab, 8)) if by_parent else None

    @property
    def length(self) -> int:
        return self.inner.length

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities("planted", self.block)

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> Logits:
        return self.inner.prefill(tokens, cancelled)

    def verify(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        return self.inner.verify(tokens, parents)

    def commit(self, path: Sequence[int]) -> None:
        self.inner.commit(path)

    def checkpoint(self) -> Checkpoint:
        return self.inner.checkpoint()

    def restore(self, checkpoint: Checkpoint | None) -> None:
        self.inner.restore(checkpoint)

    def cut(self, length: int) -> bool:
        return self.inner.cut(length)

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        logits = self.draft(root, 0)
        table = self.table
        if table is None:
            return ranked(logits, knobs, self.length)
        plain = candidates(logits, 16, knobs.tree_temperature)
        factors = Factors(
            self.rng.standard_normal((len(logits), 8)), table[plain.tokens], lambda token: table[token],
            (lambda depth, token: float(abs(table[token, 0]) % 1)) if self.rng.random() < 0.2 else None,
        )  # fmt: skip
        given = PairScores(plain.log_probs, factors, knobs.tree_temperature, self.length)
        return Candidates(plain.tokens, plain.log_probs, given, knobs.tree_width)

    def draft(self, root: int, window: int, at: int | None = None) -> Logits:
        rng, depths = self.rng, self.block - 1
        logits = rng.standard_normal((depths, self.vocab)).astype(np.float32)
        # `at` is the index in the answer of the token drafted at depth 1: the root is the one before it.
        at = self.length + 1 - self.start
        right = depths if rng.random() < 0.25 else int(rng.integers(0, depths + 1))
        ranks = np.zeros(depths, int)
        style = rng.integers(3)
        if style == 1:
            ranks[rng.integers(0, max(1, right))] = rng.integers(1, 3)
        elif style == 2:
            ranks = rng.choice((0, 0, 0, 1, 1, 2, 3), depths)
        for depth, token in enumerate(self.answer[at : at + right]):
            rank = int(ranks[depth])
            others = [int(other) for other in rng.choice(self.vocab, 12, replace=False) if other != token][:8]
            order = [*others[:rank], token, *others[rank:]]
            drop = np.arange(len(order), dtype=np.float32) * (4.0 if style == 1 else rng.uniform(0.3, 4.0))
            if style == 1:
                # One close choice on a likely path makes trees grow deep off their spine.
                drop[: rank + 1] = 0.1 * np.arange(rank + 1)
            logits[depth, order] = 8 - drop
        return logits


def decode(
    backend: PlantedBackend,
    prompt: Sequence[int],
    knobs: Knobs,
    policy: Policy | None = None,
    changes: Mapping[int, Knobs] = {},
    *,
    stops: frozenset[int] = frozenset(),
    constraint: Constraint | None = None,
) -> tuple[list[int], list[StepEvent]]:
    """Decode one answer on a planted backend: its ids and its steps. `changes`: by step, the knobs from there on."""
    decoder = Decoder(backend, AnswerOptions(knobs, stops, 1 << 20, policy, constraint))
    logits = backend.prefill(prompt)
    token, stop = decoder.first(logits)
    if policy is not None:
        policy.begin([*prompt, token], frozenset())
    steps: list[StepEvent] = []
    while stop is None:
        if len(steps) in changes:
            decoder.take(changes[len(steps)])
        steps.append(decoder.step())
        stop = steps[-1].stop
    return decoder.answer, steps
