"""Draws of an engine from given logits, by the same launches as in a pass: the fronts, then the draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_core.backends.cuda import state
from dflash_core.backends.cuda.layers.head import DRAW_PART, FRONT_THREADS, LIST_THREADS, PART_THREADS
from dflash_core.knobs import Knobs
from dflash_core.sampling import Sampler
from dflash_core.tree import Tree
from support.engines import Engine
from support.step_state import fresh_state, put_tree

THREADS = 256
BEHIND = 3  # columns of a row after the vocabulary; they are not read


def turn_state(tree: Tree, knobs: Knobs, answer: list[int], length: int) -> npt.NDArray[np.void]:
    """The StepState of a turn with this tree, after the tokens `answer` and at `length` positions."""
    st = fresh_state()
    put_tree(st, tree)
    state.write_knobs(st, knobs, "tree", 16)
    st["seed"], st["length"], st["answered"] = knobs.fixed().seed, length, len(answer)
    for i, token in list(enumerate(answer))[-state.HISTORY :]:
        st["history"][i % state.HISTORY] = token
    return st


def block_maxima(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """(rows, blocks of 16 tokens) as the head leaves them: what is not a number counts as infinite."""
    rows, vocab = logits.shape
    padded = np.full((rows, -(-vocab // 16) * 16), -np.inf, np.float32)
    padded[:, :vocab] = np.where(np.isnan(logits), np.float32(np.inf), logits)
    return padded.reshape(rows, -1, 16).max(axis=2)


class Draws:
    """The results of the launches: draws by node, and what is known of each row."""

    def __init__(
        self,
        engine: Engine,
        st: npt.NDArray[np.void],
        logits: npt.NDArray[np.float32],
        node0: int = 0,
        hidden: npt.NDArray[np.float32] | None = None,
        listed: bool = False,
        behind: int = BEHIND,
    ) -> None:
        """`hidden`: the logits that the last launch reads, if not those from which fronts and maxima were made.
        `listed`: run only the launches of a step whose tokens are all listed. `behind`: instead of BEHIND."""
        rows, stride = logits.shape
        vocab = stride - behind
        parts = -(-vocab // DRAW_PART)
        device, first = engine.array(st), np.int32(node0)
        tokens, fronts = engine.poisoned((rows,), state.ROW_TOKENS), engine.poisoned((rows,), state.ROW_FRONT)
        before = engine.poisoned((rows, parts), state.PART_BEFORE)
        shape = [np.int32(vocab), np.int32(stride), first]
        maxima, seen = engine.array(block_maxima(logits[:, :vocab])), engine.array(logits)
        run, grid = engine.kernel, (parts, rows)
        run("draw_list.cu", "draw_list")(rows, LIST_THREADS, [device, seen, *shape, maxima, tokens])
        if not listed:
            of_front = [device, np.int32(vocab), first, tokens, fronts]
            run("draw_parts.cu", "draw_scan")(grid, PART_THREADS, [device, seen, *shape, tokens])
            run("draw_front.cu", "draw_front")(rows, FRONT_THREADS, of_front)
            run("draw_parts.cu", "draw_weights")(grid, PART_THREADS, [device, seen, *shape, tokens, fronts, before])
        if hidden is not None:
            logits, seen = hidden, engine.array(hidden)
        run("sample.cu", "sample", {"THREADS": THREADS})(
            rows, THREADS, [device, seen, *shape, tokens, fronts, before, np.int32(parts)]
        )
        self.logits = seen.numpy()
        np.testing.assert_array_equal(self.logits, logits)  # penalised ones were put back
        self.tokens: npt.NDArray[np.int32] = device.numpy()["draw"]
        self.rows, self.fronts, self.before = tokens.numpy(), fronts.numpy(), before.numpy()


def expected_draws(
    tree: Tree,
    knobs: Knobs,
    logits: npt.NDArray[np.float32],
    answer: list[int],
    length: int,
    node0: int = 0,
    behind: int = BEHIND,
) -> list[int]:
    """The draws of dflash_core.sampling, from rows without the columns after the vocabulary."""
    sampler = Sampler(knobs)
    tokens = []
    for row, node in zip(logits, range(node0, len(tree))):
        path: list[int] = []
        at = node
        while at > 0:
            path.insert(0, tree.tokens[at])
            at = tree.parents[at]
        tokens.append(sampler.draw(row[: len(row) - behind], length + tree.depths[node] + 1, answer + path))
    return tokens


def exact(**knobs: Any) -> Knobs:
    """Knobs with values that float32 represents exactly, as the device's state holds them."""
    return Knobs(**{k: float(np.float32(v)) if isinstance(v, float) else v for k, v in knobs.items()})
