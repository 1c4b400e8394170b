"""markov.cu and what candidates.cu does for it against the formulas in float64: sizes, types, vocabularies, heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dflash_core.backends.cuda.state import MAX_WIDTH, PAIR_CANDIDATES, PAIRING
from dflash_core.formats.quants import to_float32
from support.blocks import random_blocks, stored
from support.engines import At, Engine
from support.step_state import fresh_state

NULL = np.uint64(0)
PAIR_THREADS = 32 * PAIR_CANDIDATES


@dataclass(frozen=True)
class Shape:
    """`vocab`: the target's tokens; `own`: rows of the drafter's head, 0 for all of them."""

    vocab: int
    rank: int
    depths: int
    own: int = 0
    offsets: bool = False
    above: str = "F32"
    below: str = "F32"
    width: int = 48
    confidence: str = ""  # "", "hidden" or "joined"
    scaled: bool = False
    temperature: float = 1.0
    lists: str = "i64"


SHAPES = [
    Shape(700, 8, 4, confidence="joined"),
    Shape(1000, 32, 3, above="Q8_0", below="Q4_0", scaled=True, temperature=0.6),
    Shape(900, 40, 3, own=333, above="F16", below="BF16", confidence="hidden"),
    Shape(450, 64, 5, own=100, offsets=True, below="Q8_0", confidence="joined", width=600, temperature=1.7),
    Shape(60, 3, 2, own=9, lists="i32", confidence="joined"),
    pytest.param(
        Shape(20_011, 256, 7, confidence="joined", width=1024, above="BF16", below="BF16"), marks=pytest.mark.full
    ),
]  # fmt: skip


def table(rng: np.random.Generator, kind: str, rows: int, rank: int) -> np.ndarray:
    """Weights whose products are of the same size as the logits."""
    if kind in ("F32", "F16", "BF16"):
        return stored((rng.standard_normal((rows, rank)) * 1.5 / rank**0.25).astype(np.float32), kind)
    return random_blocks(rng, kind, rows, rank)


class Case:
    """Random numbers of a shape, on an engine, and what the launches of a step leave."""

    def __init__(self, engine: Engine, rng: np.random.Generator, shape: Shape, by_parent: bool = True) -> None:
        self.engine, self.shape = engine, shape
        self.count = shape.own or shape.vocab
        raw = [table(rng, kind, rows, shape.rank)
               for kind, rows in ((shape.above, shape.vocab), (shape.below, self.count))]  # fmt: skip
        w1, w2 = (to_float32(x, kind).astype(np.float64) for x, kind in zip(raw, (shape.above, shape.below)))
        # Of a size that counts beside the logits.
        self.scale = np.float32(3 / (np.abs(w1 @ w2[:40].T).std() + 1e-9)) if shape.scaled else np.float32(1)
        self.w1, self.w2 = w1, w2
        self.logits = rng.standard_normal((shape.depths, self.count)).astype(np.float32) * 3
        self.normed = rng.standard_normal((shape.depths, shape.width)).astype(np.float32)
        inputs = {"": 0, "hidden": shape.width, "joined": shape.width + shape.rank}[shape.confidence]
        self.head = (rng.standard_normal(inputs) * 0.1).astype(np.float32)
        self.offset = np.float32(rng.normal())
        self.targets = np.sort(rng.permutation(shape.vocab)[: self.count]) if shape.own else np.arange(shape.vocab)
        self.root = int(rng.integers(shape.vocab))
        self._run(raw, by_parent)

    def _run(self, raw: list[np.ndarray], by_parent: bool) -> None:
        engine, shape, array = self.engine, self.shape, self.engine.array
        state = fresh_state()
        state["root"], state["draft_depth"], state["by_parent"] = self.root, shape.depths, by_parent
        state["inv_tree_temperature"] = 1 / shape.temperature
        device, blocks = array(state), -(-self.count // 16)
        padded = np.full((shape.depths, blocks * 16), -np.inf, np.float32)
        padded[:, : self.count] = self.logits
        maxima = padded.reshape(shape.depths, blocks, 16).max(-1)
        sums = np.exp((padded.reshape(shape.depths, blocks, 16) - maxima[..., None]) / shape.temperature).sum(-1)
        logits, maxima, sums = array(padded), array(maxima), array(sums.astype(np.float32))
        w1, w2 = map(array, raw)
        scale = array(np.array([self.scale])) if shape.scaled else NULL
        ids, slots = (engine.poisoned((shape.depths, PAIR_CANDIDATES), np.int32) for _ in range(2))
        marginal = engine.poisoned((shape.depths, PAIR_CANDIDATES), np.float32)
        path, table = engine.poisoned(shape.depths, np.int32), engine.poisoned(
            (shape.depths, PAIR_CANDIDATES, MAX_WIDTH, 4), np.int32)  # fmt: skip
        biased, bounds = engine.poisoned(blocks * 16, np.float32), engine.poisoned(blocks, np.float32)
        held = self.targets - np.arange(self.count) if shape.offsets else self.targets
        targets = [array(held.astype({"i32": np.int32, "i64": np.int64}[shape.lists]))] if shape.own else []
        defines = {"ABOVE": shape.above, "BELOW": shape.below, "RANK": shape.rank, "WIDTH": shape.width,
                   "CONFIDENCE": len(self.head)}  # fmt: skip
        chosen = {"PAIRS": PAIR_CANDIDATES, "MARKOV": 1, **({"TARGETS": shape.lists} if shape.own else {}),
                  **({"OFFSETS": 1} if shape.offsets else {})}  # fmt: skip
        bias = engine.kernel("markov.cu", "markov_bias", defines)
        candidates = engine.kernel("candidates.cu", "candidates", chosen)
        for position in range(shape.depths):
            at = [At(x, position * width) for x, width in ((logits, blocks * 16), (maxima, blocks), (sums, blocks))]
            bias(-(-blocks // 8), 256, [device, at[0], w1, w2, scale, path, np.int32(self.count), np.int32(position),
                                        biased, bounds])  # fmt: skip
            sizes = [np.int32(self.count), np.int32(blocks * 16), np.int32(position)]
            candidates(1, 512, [device, *at, *sizes, ids, marginal, *targets, biased, bounds, slots, path])
        head = array(self.head) if len(self.head) else NULL
        offset = array(np.array([self.offset])) if len(self.head) else NULL
        normed = array(self.normed) if len(self.head) else NULL
        engine.kernel("markov.cu", "markov_scores", defines)(
            (shape.depths, PAIR_CANDIDATES), PAIR_THREADS,
            [device, ids, slots, marginal, scale, normed, head, offset, w1, w2, table],
        )  # fmt: skip
        self.state, self.ids, self.marginal = device.numpy(), ids.numpy(), marginal.numpy()
        self.path = path.numpy()
        self.table = np.frombuffer(table.numpy().tobytes(), PAIRING).reshape(shape.depths, PAIR_CANDIDATES, MAX_WIDTH)

    def row_of(self, token: int) -> int:
        return int(np.flatnonzero(self.targets == token)[0])

    def pairs(self, above: int) -> np.ndarray:
        """What the token above adds to every row of the draft vocabulary."""
        return self.w2 @ self.w1[above] * float(self.scale)

    def said(self, depth: int, above: int) -> float:
        joined = np.concatenate([self.normed[depth], self.w1[above]])[: len(self.head)]
        return float(1 / (1 + np.exp(-(self.head.astype(np.float64) @ joined + float(self.offset)))))

    def log_softmax(self, depth: int) -> np.ndarray:
        scaled = self.logits[depth].astype(np.float64) / self.shape.temperature
        return scaled - scaled.max() - np.log(np.exp(scaled - scaled.max()).sum())


@pytest.mark.parametrize("shape", SHAPES)
def test_candidates_and_scores_are_the_formulas(engine: Engine, rng: np.random.Generator, shape: Shape) -> None:
    case = Case(engine, rng, shape)
    most = min(PAIR_CANDIDATES, case.count)
    near = 1e-4 * (1 + float(np.abs(case.logits).max() + max(np.abs(case.pairs(t)).max() for t in range(0, 60, 7))))
    above = case.root
    for depth in range(shape.depths):
        biased = case.logits[depth] + case.pairs(above)
        rows = [case.row_of(token) for token in case.ids[depth, :most]]
        assert len(set(rows)) == most
        assert (case.ids[depth, most:] == -1).all()
        assert biased[rows].min() >= np.sort(biased)[-most] - near, "the best after the path's last token"
        above = int(case.path[depth])
        assert biased[case.row_of(above)] >= biased.max() - near
        marginal = case.log_softmax(depth)[rows]
        np.testing.assert_allclose(case.marginal[depth, :most], marginal, atol=1e-4, rtol=1e-5)
        assert (np.diff(case.marginal[depth, :most]) <= 0).all(), "best first by themselves"
        kept = min(MAX_WIDTH, most)
        assert case.state["candidate"][depth, :kept].tolist() == case.ids[depth, :kept].tolist()
        for slot, parent in enumerate([case.root] if depth == 0 else case.ids[depth - 1, :most].tolist()):
            check_row(case, depth, slot, parent, rows, near)


def check_row(case: Case, depth: int, slot: int, parent: int, rows: list[int], near: float) -> None:
    shape, most = case.shape, len(rows)
    marginal = case.log_softmax(depth)[rows]
    scores = marginal + case.pairs(parent)[rows] / shape.temperature
    expected = scores - np.log(np.exp(scores - scores.max()).sum()) - scores.max()
    expected += np.log(np.exp(marginal).sum())
    if len(case.head):
        p, said = np.exp(expected), case.said(depth, parent)
        best = int(p.argmax())
        p = p * min((1 - said) / (1 - p[best]) if p[best] < 1 else 0.0, said / p[best])
        p[best] = said
        expected = np.log(np.maximum(p, 1e-300))
    found = case.table[depth, slot]
    live = found[found["slot"] >= 0]
    assert len(live) == min(MAX_WIDTH, most)
    assert len(set(live["slot"].tolist())) == len(live)
    near = near * 4 / min(shape.temperature, 1)
    # The order follows the scores, the best first.
    assert (np.diff(scores[live["slot"]]) <= near).all()
    assert scores[live["slot"]].min() >= np.sort(scores)[-len(live)] - near
    gap = np.diff(np.sort(scores))[-1] if most > 1 else 1.0
    if gap > near:  # else either of the best two may be the one that the confidence is of
        np.testing.assert_allclose(live["log_prob"], expected[live["slot"]], atol=near, rtol=1e-4)
    p = np.exp(live["log_prob"].astype(np.float64))
    np.testing.assert_allclose(live["p"], p, rtol=1e-5)
    kept = np.clip(p, 1e-4, 1 - 1e-4)
    np.testing.assert_allclose(live["odds"], np.log(kept / (1 - kept)), atol=1e-4)


def test_by_depth_alone_candidates_are_the_logits_best(engine: Engine, rng: np.random.Generator) -> None:
    """The knob is read in the step: the same launches then leave out the head."""
    case = Case(engine, rng, SHAPES[0], by_parent=False)  # type: ignore[arg-type]
    for depth in range(case.shape.depths):
        best = np.argsort(-case.logits[depth], kind="stable")[:MAX_WIDTH]
        assert case.state["candidate"][depth].tolist() == best.tolist()
    assert (case.table["slot"] == 0x7F7F7F7F).all(), "nothing was scored"


def test_logits_that_are_no_numbers_are_said(engine: Engine, rng: np.random.Generator) -> None:
    class Broken(Case):
        def _run(self, raw: list[Any], by_parent: bool) -> None:
            self.logits[1] = np.nan
            super()._run(raw, by_parent)

    case = Broken(engine, rng, SHAPES[0])  # type: ignore[arg-type]
    assert np.isnan(case.state["candidate_log_prob"][1]).any()
    assert np.isfinite(case.state["candidate_log_prob"][0]).all()
