"""Speculation leaves the target's distribution alone: the joint law of three decoded tokens, through the decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
import torch
from tools.bench.replay import AlwaysDrafting, GivenCosts

from dflash_core.arch.kinds import Attention, NextN, SwiGLU
from dflash_core.arch.spec import LayerSpec
from dflash_core.backends.base import AnswerOptions, Logits
from dflash_core.backends.cpu.chain import CpuMtpDrafter
from dflash_core.backends.decoder import Decoder
from dflash_core.config import MtpConfig
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.draw_noise import ranked
from dflash_core.knobs import Knobs, Value
from dflash_core.models.kv_cache import KVCache
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.auto import AutoPolicy
from dflash_core.policy.costs import CostTable
from dflash_core.sampling import philox
from dflash_core.tree import Candidates, Tree, Walk, walk
from dflash_core.turn_stats import StepTotals
from support.statistics import chi_square, limit, truncated

VOCAB, ROOT, TURNS, FEW = 12, 3, 6000, 900
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
    """An MTP head over the same chain, for the real drafter: a hidden state is its token."""

    config = MtpConfig("toy", 1, LayerSpec(Attention(1, 1, 1, 1, 1.0, 0.0), SwiGLU(1)), NextN(), VOCAB, VOCAB, 0.0)
    enorm = torch.ones(VOCAB)

    def __init__(self, backend: ToyBackend) -> None:
        self.rows, self.noise = torch.from_numpy(backend.rows), torch.from_numpy(backend.noise[0])

    def new_state(self) -> KVCache:
        return KVCache(1, 1, torch.float32)

    def hidden(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs

    def remember(self, tokens: Sequence[int], hidden: torch.Tensor, length: int, cache: KVCache) -> None:
        cache.store(length, torch.zeros(1, len(tokens), 1), torch.zeros(1, len(tokens), 1))

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
    """A biased acceptor that exists in other code: draw from the target, then accept the draft with min(1, p/q)."""

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


TREE = Knobs(drafting="tree 7", tree_width=4, max_tokens=3).replace(**SAMPLING)


def statistic(
    kind: type[Decoder],
    backend: ToyBackend | None = None,
    turns: int = TURNS,
    *,
    knobs: Knobs = TREE,
    policy: AutoPolicy | None = None,
    prompt: Sequence[int] = (ROOT,),
    totals: StepTotals | None = None,
) -> tuple[float, float, float]:
    """Chi-square of three decoded tokens after a prompt that ends with ROOT, its limit, and the share of steps with
    drafts that accepted one. `policy`: learns from turn to turn; `totals`: counts steps."""
    backend = backend or ToyBackend()
    counts, expected = np.zeros(VOCAB**3), joint(backend)
    accepted = steps = 0
    for seed in range(turns):
        options = AnswerOptions(knobs.replace(seed=seed), frozenset(), 1000, policy)
        decoder = kind(backend, options)  # type: ignore[arg-type]
        logits = backend.prefill(prompt)
        token, stop = decoder.first(logits)
        if policy is not None:
            policy.begin([*prompt, token], frozenset())
        while stop is None:
            event = decoder.step()
            stop = event.stop
            accepted += event.accepted_depth > 0
            steps += event.drafted_depth > 0
            if totals is not None:
                totals.add(event)
        a, b, c = decoder.answer
        counts[(a * VOCAB + b) * VOCAB + c] += 1
    # Cells with few expected draws are pooled, as Pearson's test needs.
    rare = expected * turns < 5
    pooled_counts = np.append(counts[~rare], counts[rare].sum())
    pooled = np.append(expected[~rare], expected[rare].sum())
    return chi_square(pooled_counts, pooled), limit(len(pooled) - 1), accepted / steps


# Large enough to see a biased acceptor: two tests below show it.
SLICE = [pytest.param(FEW, id="slice"), pytest.param(TURNS, id="all", marks=pytest.mark.full)]


@pytest.mark.parametrize("turns", SLICE)
def test_speculation_keeps_the_joint_distribution(turns: int) -> None:
    value, bound, accepted = statistic(Decoder, turns=turns)
    assert 0.4 < accepted < 0.8, "the drafter must be right and wrong often for the test to mean anything"
    assert value < bound


def test_a_ratio_test_acceptor_fails_the_same_test() -> None:
    value, bound, _ = statistic(RatioTestDecoder, turns=FEW)
    assert value > 2 * bound


@pytest.mark.parametrize("turns", SLICE)
def test_an_mtp_head_keeps_it_too(turns: int) -> None:
    """The real drafter, whose pairs follow every commit; a chain of its own tokens, and siblings of each."""
    value, bound, accepted = statistic(Decoder, MtpBackend(), turns)
    assert 0.4 < accepted < 0.8
    assert value < bound


FLAT = CostTable({1: 1.0, 64: 1.01}, plain=1.0, draft=0.0)  # rows cost next to nothing, so trees are large


def said(backend: ToyBackend, tokens: int) -> list[int]:
    """A text of the chain itself that ends with ROOT: what follows a word in it has followed it before."""
    rng, text = np.random.default_rng(2), [ROOT]
    rows = [truncated(row.astype(np.float64), TREE) for row in backend.rows]
    while len(text) < tokens:
        text.append(int(rng.choice(VOCAB, p=rows[text[-1]])))
    return [*text, ROOT]


def auto(backend: ToyBackend, turns: int, prompt: Sequence[int], **knobs: Value) -> StepTotals:
    """Steps of answers under `auto`, which learns from each of them; their distribution must be the target's."""
    policy = AlwaysDrafting([Arm(backend.capabilities, PairState(), GivenCosts(FLAT))])
    totals, asked = StepTotals(), TREE.replace(drafting="auto", **knobs)
    value, bound, accepted = statistic(
        Decoder, backend, turns, knobs=asked, policy=policy, prompt=prompt, totals=totals
    )
    assert value < bound
    assert accepted > 0.3
    assert any(row.trials > 100 for row in policy.found()), "what it goes by changes from turn to turn"
    return totals


@pytest.mark.parametrize("turns", SLICE)
def test_auto_keeps_it_with_drafts_and_with_copied_text(turns: int) -> None:
    backend = ToyBackend()
    totals = auto(backend, turns, said(backend, 60))
    assert totals.copied > totals.copied_accepted > turns / 20, "copied text is offered and taken"
    assert totals.accepted - totals.copied_accepted > turns / 4, "and so are drafts"


@pytest.mark.parametrize("turns", SLICE)
def test_auto_keeps_it_with_an_mtp_head(turns: int) -> None:
    assert auto(MtpBackend(), turns, [ROOT], from_text=False).copied == 0


@pytest.mark.parametrize("turns", SLICE)
def test_text_alone_keeps_it(turns: int) -> None:
    """The text drafter: what is verified is what followed the same words, and nothing else."""
    backend = ToyBackend()
    backend.capabilities = Capabilities("ngram", 1)
    prompt, totals = said(backend, 60), StepTotals()
    policy = AlwaysDrafting([Arm(backend.capabilities, PairState(), GivenCosts(FLAT))])
    value, bound, _ = statistic(
        Decoder, backend, turns, knobs=TREE.replace(drafting="auto"), policy=policy, prompt=prompt,
        totals=totals,
    )  # fmt: skip
    assert value < bound
    assert totals.copied > totals.copied_accepted > turns / 20


def test_auto_with_a_ratio_test_acceptor_fails() -> None:
    """The slice is large enough to see a biased acceptor."""
    policy = AlwaysDrafting([Arm(ToyBackend.capabilities, PairState(), GivenCosts(FLAT))])
    value, bound, _ = statistic(RatioTestDecoder, ToyBackend(), FEW, knobs=TREE.replace(drafting="auto"), policy=policy)
    assert value > bound
