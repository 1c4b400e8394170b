"""Speculation leaves the target's distribution alone: the joint law of three decoded tokens, through the decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import torch

from dflash_core.arch.kinds import Attention, NextN, SwiGLU
from dflash_core.arch.spec import LayerSpec
from dflash_core.backends.base import Logits
from dflash_core.backends.cpu.mtp import CpuMtpDrafter
from dflash_core.backends.decoder import Decoder
from dflash_core.config import MtpConfig
from dflash_core.drafters.base import ranked
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.knobs import Knobs
from dflash_core.models.kv_cache import KVCache
from dflash_core.sampling import philox
from dflash_core.tree import Candidates, Tree, Walk, walk
from support.statistics import chi_square, limit, truncated

VOCAB, ROOT, TURNS = 12, 3, 6000
SAMPLING = {"temperature": 0.8, "top_k": 8, "top_p": 0.95}


class ToyBackend:
    """A Markov chain over a dozen tokens, with a drafter whose first guess is right about half of the time."""

    capabilities = Capabilities("toy", 4)

    def __init__(self) -> None:
        rng = np.random.default_rng(11)
        self.rows = (rng.standard_normal((VOCAB, VOCAB)) * 1.2).astype(np.float32)
        self.noise = (rng.standard_normal((3, VOCAB, VOCAB)) * 1.6).astype(np.float32)
        self.tokens: list[int] = []
        self.nodes: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> Logits:
        self.tokens = list(tokens)
        return self.rows[tokens[-1]]

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        return ranked(self.draft(root, 0), knobs, self.length)

    def draft(self, root: int, window: int, at: int | None = None) -> Logits:
        at, logits = root, []
        for depth in range(3):
            logits.append(self.rows[at] + self.noise[depth, at])
            at = int(logits[-1].argmax())
        return np.stack(logits)

    def verify(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        self.nodes = list(tokens)
        return self.rows[self.nodes]

    def commit(self, path: Sequence[int]) -> None:
        self.tokens += [self.nodes[node] for node in path]


class ToyHead:
    """An MTP head over the same chain, for the real drafter: a hidden is the token that it stands for."""

    config = MtpConfig("toy", 1, LayerSpec(Attention(1, 1, 1, 1, 1.0, 0.0), SwiGLU(1)), NextN(), VOCAB, VOCAB, 0.0)
    enorm = torch.ones(VOCAB)

    def __init__(self, backend: ToyBackend) -> None:
        self.rows, self.noise = torch.from_numpy(backend.rows), torch.from_numpy(backend.noise[0])

    def new_state(self) -> KVCache:
        return KVCache(1, 1, torch.float32)

    def hidden(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs

    def remember(self, tokens: Sequence[int], hidden: torch.Tensor, length: int, cache: KVCache) -> None:
        cache.write(length, torch.zeros(1, len(tokens), 1), torch.zeros(1, len(tokens), 1))

    def forward(self, tokens: Sequence[int], hidden: torch.Tensor, length: int, cache: KVCache) -> torch.Tensor:
        return torch.eye(VOCAB)[list(tokens)]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ (self.rows + self.noise)


class MtpBackend(ToyBackend):
    """The same chain, drafted by the MTP drafter."""

    def __init__(self) -> None:
        super().__init__()
        self.drafter = CpuMtpDrafter(ToyHead(self))  # type: ignore[arg-type]
        self.capabilities = self.drafter.capabilities

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> Logits:
        self.drafter.begin()
        self.drafter.observe(tokens, torch.eye(VOCAB)[list(tokens)])
        return super().prefill(tokens, cancelled)

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        return self.drafter.propose(root, knobs, at)

    def commit(self, path: Sequence[int]) -> None:
        kept = [self.nodes[node] for node in path]
        self.drafter.observe(kept, torch.eye(VOCAB)[kept])
        super().commit(path)


class RatioTestDecoder(Decoder):
    """The biased acceptor seen in the wild: draw from the target first, then accept the draft by min(1, p/q)."""

    def accept(self, tree: Tree, logits: Logits) -> Walk:
        def draw(node: int, path: list[int]) -> int:
            position = self.backend.length + tree.depths[node] + 1
            drawn = self.sampler.draw(logits[node], position, ())
            child = next((at for at, parent in enumerate(tree.parents) if parent == node), None)
            if child is None or tree.tokens[child] == drawn:
                return drawn
            p = truncated(logits[node].astype(np.float64), self.knobs)[tree.tokens[child]]
            q = float(np.exp(tree.log_probs[child]))
            uniform = float(philox(self.knobs.seed, position, np.array([VOCAB + 1]))[0]) / 2**32
            return tree.tokens[child] if uniform < min(1.0, p / q) else drawn

        return walk(tree, draw)


def joint(backend: ToyBackend) -> np.ndarray:
    """The exact distribution of the next three tokens, flattened."""
    step = [truncated(row.astype(np.float64), Knobs(**SAMPLING)) for row in backend.rows]
    cells = [step[ROOT][a] * step[a][b] * step[b][c] for a, b, c in product(range(VOCAB), repeat=3)]
    return np.array(cells)


def statistic(kind: type[Decoder], backend: ToyBackend | None = None, turns: int = TURNS) -> tuple[float, float, float]:
    """Chi-square of three decoded tokens, its limit, and the share of steps with drafts that accepted one."""
    backend = backend or ToyBackend()
    counts, expected = np.zeros(VOCAB**3), joint(backend)
    accepted = steps = 0
    for seed in range(turns):
        knobs = Knobs(mode="tree", budget=7, tree_width=4, max_tokens=3, seed=seed, **SAMPLING)
        decoder = kind(backend, knobs, frozenset(), 1000)  # type: ignore[arg-type]
        logits = backend.prefill([ROOT])
        _, stop = decoder.first(logits)
        while stop is None:
            event = decoder.step()
            stop = event.stop
            accepted += event.accepted_depth > 0
            steps += event.drafted_depth > 0
        a, b, c = decoder.answer
        counts[(a * VOCAB + b) * VOCAB + c] += 1
    # Cells with few expected draws are pooled, as Pearson's test needs.
    rare = expected * turns < 5
    pooled_counts = np.append(counts[~rare], counts[rare].sum())
    pooled = np.append(expected[~rare], expected[rare].sum())
    return chi_square(pooled_counts, pooled), limit(len(pooled) - 1), accepted / steps


def test_speculation_keeps_the_joint_distribution() -> None:
    value, bound, accepted = statistic(Decoder)
    assert 0.4 < accepted < 0.6, "the drafter must be right about half of the time for the test to mean anything"
    assert value < bound


def test_a_ratio_test_acceptor_fails_the_same_test() -> None:
    value, bound, _ = statistic(RatioTestDecoder)
    assert value > 2 * bound


def test_an_mtp_head_keeps_it_too() -> None:
    """The real drafter, whose pairs follow every commit; a chain of its own tokens, and siblings of each."""
    value, bound, accepted = statistic(Decoder, MtpBackend(), 3000)
    assert 0.4 < accepted < 0.6
    assert value < bound
