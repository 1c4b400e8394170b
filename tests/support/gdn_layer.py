"""A delta net layer on an engine, for tests: inputs, memory, launches, and what a pass or a flush leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dflash_core.backends.cuda.layers.delta_shapes import (
    DIM,
    MAX_MADE_ROWS,
    ORDER_INTS,
    PREPARE_THREADS,
    DeltaLaunch,
    DeltaShape,
)
from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.state import MAX_NODES, width_for
from support import oracles
from support.acts import F16_GROUP, Q8_GROUP
from support.engines import Array, Engine
from support.oracles import DeltaNode, DeltaState, DeltaWeights, Float32s, Floats
from support.steps import tree_state

HOPPER, AMPERE, GEFORCE, TURING = Card(132, 232_448), Card(108, 166_912), Card(82, 101_376), Card(72, 65_536)
SMALL = (1, 3)  # key heads, value heads
SPLITS = 11
EPS = 1e-6
PASS = 64


def chain(n: int) -> list[int]:
    return list(range(-1, n - 1))


def star(n: int) -> list[int]:
    return [-1] + [0] * (n - 1)


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


@dataclass(frozen=True)
class Projected:
    """What the projection gave for the rows of a tree: f32 planes (SPLITS, n, ...) of each part."""

    qkv: Float32s
    gate: Float32s
    alpha: Float32s
    beta: Float32s

    @staticmethod
    def random(rng: np.random.Generator, weights: DeltaWeights, n: int) -> Projected:
        widths = (weights.channels, weights.value_heads * DIM, weights.value_heads, weights.value_heads)
        parts = (rng.standard_normal((SPLITS, n, width)) / np.sqrt(SPLITS / 2) for width in widths)
        return Projected(*(part.astype(np.float32) for part in parts))

    def rows(self, nodes: Any) -> Projected:
        return Projected(*(part[:, nodes] for part in (self.qkv, self.gate, self.alpha, self.beta)))

    def planes(self, rows: int) -> tuple[Float32s, dict[str, int]]:
        """All parts side by side for a pass of `rows`, NaN wherever nothing may be read, and where the parts begin."""
        parts = (self.qkv, self.gate, self.alpha, self.beta)
        starts, width = [], 0
        for part in parts:
            starts.append(width)
            width += -(-part.shape[-1] // 16) * 16
        out = np.full((SPLITS, rows, width), np.nan, np.float32)
        for start, part in zip(starts, parts):
            out[:, : part.shape[1], start : start + part.shape[-1]] = part
        return out, dict(zip(("qkv", "gate", "alpha", "beta"), starts))

    def oracle(self, weights: DeltaWeights, parents: Sequence[int], state: DeltaState) -> list[DeltaNode]:
        qkv, alpha, beta = (oracles.planes_sum(part) for part in (self.qkv, self.alpha, self.beta))
        return oracles.delta_tree(weights, qkv, alpha, beta, parents, state)


@dataclass(frozen=True)
class Cut:
    """How states are divided into blocks: as for `card`, or in lanes of `columns` and blocks of `warps`; and who makes
    the rows of first passes that are narrow enough: so many warps of these blocks, or with 0 gdn_prepare."""

    card: Card = HOPPER
    columns: int = 0
    warps: int = 4
    shared_levels: int = 0
    makers: int | None = None

    def launch(self, shape: DeltaShape, nodes: int, node0: int = 0) -> DeltaLaunch:
        launch = DeltaLaunch.of(shape, nodes, self.card)
        if self.columns:
            launch = DeltaLaunch(shape, nodes, self.columns, self.warps, self.shared_levels)
        makers = 0 if node0 > 0 or nodes > MAX_MADE_ROWS else self.makers
        return launch if makers is None else replace(launch, makers=makers)


class Layer:
    """One layer's memory in an engine, and the kernels that work on it. Everything unwritten is poison."""

    def __init__(self, engine: Engine, weights: DeltaWeights, state: DeltaState, capacity: int) -> None:
        self.engine, self.weights, self.capacity = engine, weights, capacity
        self.shape = DeltaShape.of(weights.key_heads, weights.value_heads, DIM, DIM, oracles.TAPS)
        memory = self.shape.layer_shapes(capacity)
        self.memory = {name: engine.poisoned(shape, np.float32) for name, shape in memory.items()}
        self.memory["s"].set(state.s.astype(np.float32))
        self.memory["conv"].set(state.conv.astype(np.float32))
        self.constants = [engine.array(x) for x in (weights.conv, weights.a, weights.dt)]
        self.scratch: dict[str, Array] = {}

    def run(
        self,
        projected: Projected,
        parents: Sequence[int],
        *,
        nodes: int = 0,
        pending: Sequence[int] = (),
        parity: int = 0,
        cut: Cut = Cut(),
        **state: int,
    ) -> Floats:
        """All passes of one step; returns outputs (n, value_heads, DIM). `nodes`: rows of a pass, or just enough."""
        n = len(parents)
        step = tree_state(parents, 1000, pending=len(pending), parity=parity, **state)
        step["pending_path"][0, : len(pending)] = pending
        st = self.engine.array(step)
        outputs = []
        for node0 in range(0, n, PASS):
            rows = range(node0, min(n, node0 + PASS))
            launch = cut.launch(self.shape, nodes or width_for(len(rows)), node0)
            outputs.append(self.one_pass(st, launch, projected.rows(slice(node0, node0 + PASS)), node0)[: len(rows)])
        return np.concatenate(outputs)

    def one_pass(self, st: Array, launch: DeltaLaunch, projected: Projected, node0: int) -> Floats:
        planes, starts = projected.planes(launch.nodes)
        self.scratch = {
            name: self.engine.poisoned(shape, np.float32) for name, shape in self.shape.pass_shapes().items()
        }
        m, x, node, capacity = self.memory, self.scratch, np.int32(node0), np.int32(self.capacity)
        partials, rows, width = self.engine.array(planes), np.int32(launch.nodes), np.int32(planes.shape[-1])
        projected_rows = [partials, rows, width, np.int32(starts["alpha"]), np.int32(starts["beta"]), *self.constants]
        projected_rows += [m["conv"], m["inputs"]]
        if launch.nodes == 1 and node0 == 0:
            arguments = [st, *projected_rows, *(m[name] for name in ("s", "k", "u", "decay")), x["out"], capacity]
            kernel = self.engine.kernel(
                "gdn_single_row.cu", "gdn_single_row", {**launch.state_defines, "SPLIT_K": SPLITS}
            )
            kernel(launch.grid, launch.single_row_block, arguments)
            self.commit_conv(st, launch, partials, width, starts["gate"])
            return x["out"].numpy().astype(np.float64)
        order = self.engine.poisoned(ORDER_INTS, np.uint32)
        self.engine.kernel("gdn_order.cu", "gdn_order", self.shape.defines)(1, MAX_NODES, [st, node, rows, order])
        if not launch.makers:
            arguments = [st, node, *projected_rows, x["q"], m["k"], x["v"], x["beta"], m["decay"], capacity]
            prepare = self.engine.kernel("gdn.cu", "gdn_prepare", {**launch.pass_defines, "SPLIT_K": SPLITS})
            prepare(launch.shape.chunks, PREPARE_THREADS, arguments)
        far = launch.far_levels(later_pass=node0 > 0)
        levels = self.engine.poisoned((max(far, 1), self.shape.value_heads, DIM, DIM), np.float32)
        arguments = [st, order, m["s"], m["k"], m["u"], m["decay"], x["out"], levels, capacity]
        arguments += projected_rows if launch.makers else [node, x["q"], x["v"], x["beta"]]
        defines = {**launch.defines, **({"SPLIT_K": SPLITS} if launch.makers else {})}
        kernel = self.engine.kernel("gdn_recurrence.cu", "gdn_recurrence", defines)
        kernel(launch.grid, launch.block, arguments, shared=launch.shared)
        if launch.makers:
            self.commit_conv(st, launch, partials, width, starts["gate"])
        return x["out"].numpy().astype(np.float64)

    def commit_conv(self, st: Array, launch: DeltaLaunch, partials: Array, width: np.int32, gate: int) -> None:
        """The commit of the convolution's state and the rows' inputs, which are gdn_out's where gdn_prepare did not
        run."""
        m, groups, n = self.memory, -(-self.shape.value_heads // 2), np.int32(st.numpy()["n"][0])
        acts = [self.engine.poisoned((groups, size), np.uint8) for size in (Q8_GROUP, F16_GROUP)]
        arguments = [self.scratch["out"], partials, np.int32(launch.nodes), width, np.int32(gate)]
        arguments += [self.engine.array(self.weights.norm), np.float32(EPS), *acts]
        arguments += [self.engine.array(np.array([n], np.int32)), np.int32(0)]
        kernel = self.engine.kernel("gdn.cu", "gdn_out", {**launch.pass_defines, "SPLIT_K": SPLITS, "COMMITS_CONV": 1})
        kernel(launch.committing_grid, 32, [*arguments, st, m["conv"], m["inputs"]])

    def flush(self, pending: Sequence[int], parity: int, *, cut: Cut = Cut(), **state: int) -> None:
        flush([self], pending, parity, cut=cut, **state)

    def check_state(self, expected: DeltaState, tolerance: float = 2e-5) -> None:
        close(self.memory["s"].numpy(), expected.s, tolerance)
        close(self.memory["conv"].numpy(), expected.conv, 2e-6)


def flush(layers: Sequence[Layer], pending: Sequence[int], parity: int, *, cut: Cut = Cut(), **state: int) -> None:
    """gdn_flush over layers of one shape; it needs their memory side by side."""
    first = layers[0]
    engine, launch = first.engine, cut.launch(first.shape, 1)
    step = tree_state([-1], 1000, pending=len(pending), parity=parity, **state)
    step["pending_path"][0, : len(pending)] = pending
    joined = {name: engine.array(np.stack([x.memory[name].numpy() for x in layers])) for name in first.memory}
    arguments = [engine.array(step), *(joined[name] for name in ("s", "k", "u", "decay", "conv", "inputs"))]
    kernel = engine.kernel("gdn_flush.cu", "gdn_flush", launch.state_defines)
    kernel(launch.flush_grid(len(layers)), launch.warps * 32, [*arguments, np.int32(first.capacity)])
    for i, layer in enumerate(layers):
        for name in ("s", "conv"):
            layer.memory[name].set(joined[name].numpy()[i])


def close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Relative to the largest expected value of the last two dimensions."""
    scale = np.abs(expected).max(axis=(-2, -1), keepdims=True)
    assert np.isfinite(found).all()
    np.testing.assert_array_less(np.abs(found - expected) / scale, tolerance)


def started(
    engine: Engine, rng: np.random.Generator, heads: tuple[int, int] = SMALL, capacity: int = 64
) -> tuple[Layer, DeltaState]:
    weights = DeltaWeights.random(rng, *heads)
    state = DeltaState.random(rng, weights)
    rounded = DeltaState(*(x.astype(np.float32).astype(np.float64) for x in (state.s, state.conv)))
    return Layer(engine, weights, rounded, capacity), rounded


def one_by_one(
    layer: Layer, projected: Projected, path: Sequence[int], parity: int = 0
) -> tuple[list[Floats], tuple[np.ndarray, ...]]:
    """Plain decoding of a path: a pass of one row per node, each committing the one before; outputs, S and conv."""
    outputs: list[Floats] = []
    for node in path:
        outputs.append(layer.run(projected.rows([node]), [-1], pending=[0] * bool(outputs), parity=parity)[0])
        parity ^= 1
    layer.flush([0], parity)
    return outputs, states(layer)


def states(layer: Layer) -> tuple[np.ndarray, ...]:
    return layer.memory["s"].numpy(), layer.memory["conv"].numpy()


def equal(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def bushy(n: int, rng: np.random.Generator) -> list[int]:
    """A complete binary tree below a short chain, numbered at random with parents first: all levels are kept."""
    parents = [-1, 0, 1][:n]
    open_nodes = [2, 2]
    while len(parents) < n:
        parents.append(open_nodes.pop(int(rng.integers(min(len(open_nodes), 3)))))
        open_nodes += [len(parents) - 1] * 2
    return parents
