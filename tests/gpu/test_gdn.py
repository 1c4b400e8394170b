"""The gated delta net's kernels against the recurrence in float64, and trees against one row at a time bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dflash_core.backends.cuda.layers.delta_shapes import (
    DIM,
    MAKERS,
    MAX_MADE_ROWS,
    DeltaLaunch,
    DeltaShape,
)
from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.state import WIDTHS, width_for
from dflash_core.errors import UnsupportedError
from support import oracles
from support.acts import F16_GROUP, Q8_GROUP, acts_f16
from support.engines import Engine
from support.gdn_layer import (
    AMPERE,
    EPS,
    GEFORCE,
    HOPPER,
    PASS,
    SMALL,
    SPLITS,
    TURING,
    Cut,
    Layer,
    Projected,
    bushy,
    chain,
    close,
    equal,
    flush,
    one_by_one,
    path_to,
    star,
    started,
    states,
)
from support.grids import full
from support.oracles import DeltaState, DeltaWeights
from support.steps import random_parents


# Each size in one shape, the largest in all; with `full` all.
@pytest.mark.parametrize(
    ("kind", "n"),
    [
        pytest.param(kind, n, marks=() if at % 3 == turn or n == 64 else pytest.mark.full)
        for at, n in enumerate((1, 2, 7, 8, 9, 16, 24, 33, 48, 64))
        for turn, kind in enumerate(("random", "chain", "star"))
    ],
)
def test_a_tree_is_the_recurrence_along_each_of_its_paths(
    engine: Engine, rng: np.random.Generator, n: int, kind: str
) -> None:
    layer, state = started(engine, rng)
    parents = {"chain": chain, "star": star, "random": lambda n: random_parents(n, rng)}[kind](n)
    projected = Projected.random(rng, layer.weights, n)
    parity = int(rng.integers(2))
    out = layer.run(projected, parents, nodes=max(1, -(-n // 8) * 8 if n > 1 else 1), parity=parity)
    nodes = projected.oracle(layer.weights, parents, state)

    close(out, np.stack([node.out for node in nodes]), 2e-5)
    m = {k: v.numpy() for k, v in layer.memory.items()}
    close(m["k"][parity, :, :n], np.stack([node.k for node in nodes], 1), 1e-5)
    close(m["u"][:, :n], np.stack([node.u for node in nodes], 1), 2e-5)
    own = [node.decay - (nodes[parent].decay if parent >= 0 else 0) for node, parent in zip(nodes, parents)]
    np.testing.assert_allclose(m["decay"][parity, :, :n], np.exp(np.stack(own, 1)), rtol=1e-5)
    np.testing.assert_allclose(m["inputs"][:n], oracles.planes_sum(projected.qkv), atol=3e-6)
    # Nothing was pending: the committed state stands. And no row after the tree's was touched.
    np.testing.assert_array_equal(m["s"], state.s.astype(np.float32))
    np.testing.assert_array_equal(m["conv"], state.conv.astype(np.float32))
    for rest in (m["k"][parity, :, n:], m["k"][1 - parity], m["u"][:, n:], m["inputs"][n:], m["decay"][1 - parity]):
        assert np.isnan(rest).all()


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("n", [1, 3, 24, 64])
def test_the_next_step_commits_the_accepted_path(
    engine: Engine, rng: np.random.Generator, n: int, flushed: bool
) -> None:
    layer, state = started(engine, rng)
    parents = random_parents(n, rng) if n < 64 else chain(n)
    first = Projected.random(rng, layer.weights, n)
    layer.run(first, parents, parity=1)
    nodes = first.oracle(layer.weights, parents, state)
    pending = path_to(n - 1 if n == 64 else int(rng.integers(n)), parents)
    after = nodes[pending[-1]].after
    if flushed:
        layer.flush(pending, parity=0, stop=1)
        layer.check_state(after)
        return
    # The next tree overwrites the rows that its commit comes from.
    parents = random_parents(16, rng)
    second = Projected.random(rng, layer.weights, 16)
    out = layer.run(second, parents, nodes=16, pending=pending, parity=0)
    layer.check_state(after)
    close(out, np.stack([node.out for node in second.oracle(layer.weights, parents, after)]), 4e-5)


def test_every_length_of_path(engine: Engine, rng: np.random.Generator) -> None:
    """1..16 accepted nodes of one tree, on the spine and off it: the convolution reaches back into the old state."""
    layer, state = started(engine, rng, (1, 1))
    parents = [*chain(16), 0, 16, 3, 18, 19]
    projected = Projected.random(rng, layer.weights, len(parents))
    layer.run(projected, parents, parity=1)
    nodes = projected.oracle(layer.weights, parents, state)
    kept = {name: array.numpy() for name, array in layer.memory.items()}
    for last in range(len(parents)):
        for name in ("s", "conv"):
            layer.memory[name].set(kept[name])
        layer.flush(path_to(last, parents), parity=0)
        layer.check_state(nodes[last].after)


@pytest.mark.parametrize("n", [65, full(100), full(200), 256])
def test_large_trees_take_several_passes(engine: Engine, rng: np.random.Generator, n: int) -> None:
    layer, state = started(engine, rng, (1, 1), capacity=256)
    # Paths that leave a pass and are met again in a later one.
    parents = [-1] + [int(rng.integers(max(0, node - int(rng.integers(1, 150))), node)) for node in range(1, n)]
    projected = Projected.random(rng, layer.weights, n)
    out = layer.run(projected, parents, parity=1)
    nodes = projected.oracle(layer.weights, parents, state)
    close(out, np.stack([node.out for node in nodes]), 2e-5)
    last = nodes[(n - 1) // PASS * PASS :]  # of one row where n is 65
    q, v, beta = (layer.scratch[name].numpy()[:, : len(last)] for name in ("q", "v", "beta"))
    close(q, np.stack([node.q for node in last], 1), 1e-5)
    close(v, np.stack([node.v for node in last], 1), 1e-5)
    np.testing.assert_allclose(beta, np.stack([node.beta for node in last], 1), rtol=1e-5)
    pending = path_to(n - 1, parents)
    one = Projected.random(rng, layer.weights, 1)
    out = layer.run(one, [-1], pending=pending, parity=0)
    after = nodes[-1].after
    layer.check_state(after)
    close(out, one.oracle(layer.weights, [-1], after)[0].out[None], 4e-5)


@pytest.mark.parametrize("accepted", [1, full(5), 70])
def test_a_chain_over_several_passes_with_a_commit_in_the_first(
    engine: Engine, rng: np.random.Generator, accepted: int
) -> None:
    layer, state = started(engine, rng, (1, 1), capacity=128)
    first, second = Projected.random(rng, layer.weights, 70), Projected.random(rng, layer.weights, 90)
    layer.run(first, chain(70), parity=0)
    out = layer.run(second, chain(90), pending=range(accepted), parity=1)
    after = first.oracle(layer.weights, chain(70), state)[accepted - 1].after
    nodes = second.oracle(layer.weights, chain(90), after)
    close(out, np.stack([node.out for node in nodes]), 6e-5)
    layer.check_state(after)


def test_many_steps_are_one_row_at_a_time(engine: Engine, rng: np.random.Generator) -> None:
    """Trees with commits, prefill chunks and single rows in any order leave the state that the recurrence leaves;
    float32 errors do not accumulate."""
    layer, state = started(engine, rng, (1, 1))
    pending: list[int] = []
    parity, expected = 0, state
    for step in range(10 if not engine.real else 20):
        n = [1, 24, 64, 1, 8][step % 5]
        parents = chain(n) if n == 64 else random_parents(n, rng)
        projected = Projected.random(rng, layer.weights, n)
        out = layer.run(projected, parents, nodes=n, pending=pending, parity=parity)
        layer.check_state(expected, 1e-4)
        nodes = projected.oracle(layer.weights, parents, expected)
        close(out, np.stack([node.out for node in nodes]), 1e-4)
        pending = path_to(n - 1 if n == 64 else int(rng.integers(n)), parents)
        expected, parity = nodes[pending[-1]].after, 1 - parity
    layer.flush(pending, parity)
    layer.check_state(expected, 1e-4)


CUTS = (
    Cut(HOPPER),
    *(
        Cut(columns=c, warps=w, shared_levels=levels, makers=makers)
        for c, w, levels, makers in ((2, 6, 0, 10), (3, 4, 1, 8), (3, 8, 0, 3), (4, 4, 2, 0), (2, 4, 1, 5))
    ),
    Cut(GEFORCE),
)


@pytest.mark.parametrize("n", [1, full(2), 5, full(8), full(13), 24, full(40), 64])
def test_a_tree_is_decoding_its_paths_one_by_one(engine: Engine, rng: np.random.Generator, n: int) -> None:
    """Bit for bit, outputs and committed states: for any tree, width and division of the states."""
    weights = DeltaWeights.random(rng, *SMALL)
    state = DeltaState.random(rng, weights)
    projected = Projected.random(rng, weights, n)
    for number, parents in enumerate((chain(n), random_parents(n, rng), bushy(n, rng))):
        trees = []
        for cut, nodes in zip(CUTS[number::3], (width_for(n), 64)):
            layer = Layer(engine, weights, state, 64)
            trees.append((layer, layer.run(projected, parents, nodes=nodes, parity=1, cut=cut)))
        for other in trees[1:]:
            np.testing.assert_array_equal(other[1], trees[0][1])
        path = path_to(n - 1 if number else int(rng.integers(n)), parents)
        outputs, after = one_by_one(Layer(engine, weights, state, 1), projected, path)
        np.testing.assert_array_equal(trees[0][1][path], np.stack(outputs))
        for (layer, _), cut in zip(trees, CUTS[number::3]):
            layer.flush(path, parity=0, cut=cut)
            equal(states(layer), after)


# Pending nodes of each step, as many as the tree before has: at most one batch, two, and paths into the old state.
PATHS = (0, 1, 2, 3, 8, 16, 20)


@pytest.mark.parametrize(
    ("cut", "widths"),
    [
        pytest.param(Cut(HOPPER), (8, 24, 16), id="hopper"),
        pytest.param(Cut(columns=2, warps=6, makers=10), (2, 8, 8), id="2x6+10"),
        full(Cut(GEFORCE), (2, 8, 16), id="geforce"),
        full(Cut(columns=3, warps=4, shared_levels=1, makers=4), (16, 24, 24), id="3x4+4"),
        pytest.param(Cut(columns=3, warps=8, makers=3), (5, 24), id="3x8+3"),
        full(Cut(columns=3, warps=8, makers=3), (5, 16, 24), id="3x8+3-more-widths"),
        full(Cut(columns=4, warps=6, shared_levels=1, makers=11), (23, 16, 24), id="4x6+11"),
    ],
)
def test_makers_leave_what_gdn_prepare_leaves(
    engine: Engine, rng: np.random.Generator, cut: Cut, widths: tuple[int, ...]
) -> None:
    """Every bit of outputs and memory, step after step, behind accepted paths of all lengths, with rows that are not
    live."""
    weights = DeltaWeights.random(rng, *SMALL)
    state = DeltaState.random(rng, weights)
    made, given = (Layer(engine, weights, state, 128) for _ in range(2))
    parents, parity = [-1, *((node - 1) // 2 * 2 for node in range(1, 40))], 0  # a spine of even nodes, and leaves
    steps = [(length, widths[at % len(widths)]) for at, length in enumerate(PATHS)]
    for at, (length, nodes) in enumerate(steps):
        if length:
            before = Projected.random(rng, weights, len(parents))
            for layer in (made, given):
                layer.run(before, parents, nodes=40, parity=parity, cut=replace(cut, makers=0))
            parity ^= 1
        pending = range(0, 2 * length, 2)
        n = max(2, nodes - int(rng.integers(4)))
        tree = (chain, lambda n: random_parents(n, rng), lambda n: bushy(n, rng))[at % 3](n)
        projected = Projected.random(rng, weights, n)
        outputs = [
            layer.run(projected, tree, nodes=nodes, pending=pending, parity=parity, cut=one)
            for layer, one in ((made, cut), (given, replace(cut, makers=0)))
        ]
        equal([outputs[0]], [outputs[1]])
        equal(*([layer.memory[name].numpy() for name in made.memory] for layer in (made, given)))


@pytest.mark.parametrize("n", [65, full(130), 255])
def test_trees_of_several_passes_are_decoding_one_by_one(engine: Engine, rng: np.random.Generator, n: int) -> None:
    """Ancestors from earlier passes are computed again; they need more levels than fit in shared memory."""
    weights = DeltaWeights.random(rng, 1, 1)
    state = DeltaState.random(rng, weights)
    projected = Projected.random(rng, weights, n)
    for parents in (bushy(n, rng), random_parents(n, rng), chain(n)):
        trees = [Layer(engine, weights, state, 256) for _ in range(2)]
        cuts = Cut(HOPPER), Cut(columns=2, warps=4, shared_levels=1)
        found = [layer.run(projected, parents, parity=1, cut=cut) for layer, cut in zip(trees, cuts)]
        np.testing.assert_array_equal(found[0], found[1])
        for node in (n - 1, int(rng.integers(n))):
            path = path_to(node, parents)
            outputs, _ = one_by_one(Layer(engine, weights, state, 1), projected, path)
            np.testing.assert_array_equal(found[0][path], np.stack(outputs))


@pytest.mark.parametrize("nodes", [1, 24, 64])
def test_a_step_behind_a_commit_is_that_of_plain_decoding(engine: Engine, rng: np.random.Generator, nodes: int) -> None:
    """A wide pass that first commits a path off the spine, against one row at a time, step after step."""
    weights = DeltaWeights.random(rng, *SMALL)
    state = DeltaState.random(rng, weights)
    tree, plain = Layer(engine, weights, state, 64), Layer(engine, weights, state, 1)
    pending: list[int] = []
    before: list[int] = []
    plain_parity = 0
    for step in range(4):
        n = min(nodes, 40)
        parents, projected = random_parents(n, rng), Projected.random(rng, weights, n)
        out = tree.run(projected, parents, nodes=nodes, pending=pending, parity=step % 2, cut=CUTS[step])
        pending = path_to(n - 1, parents)
        for node in pending:
            alone = plain.run(projected.rows([node]), [-1], pending=before, parity=plain_parity)[0]
            np.testing.assert_array_equal(out[node], alone)
            before, plain_parity = [0], plain_parity ^ 1
    tree.flush(pending, parity=0)
    plain.flush([0], plain_parity)
    equal(states(tree), states(plain))


@pytest.mark.parametrize("accepted", [2, 4, full(16), 17, 40])
def test_plain_decoding_behind_a_path_of_any_length(engine: Engine, rng: np.random.Generator, accepted: int) -> None:
    """The first plain step after a tree has the same bits as after the same tokens one by one; the path skips nodes."""
    weights = DeltaWeights.random(rng, *SMALL)
    state = DeltaState.random(rng, weights)
    parents = [*chain(20), 0, *range(20, 60)]
    path = path_to(18 + accepted, parents)
    assert len(path) == accepted
    projected, after = Projected.random(rng, weights, len(parents)), Projected.random(rng, weights, 1)
    tree, plain = Layer(engine, weights, state, 64), Layer(engine, weights, state, 1)
    tree.run(projected, parents, parity=1)
    found = tree.run(after, [-1], pending=path, parity=0)
    one_by_one(plain, projected, path)
    np.testing.assert_array_equal(found, plain.run(after, [-1], parity=0))
    equal(states(tree), states(plain))


@pytest.mark.parametrize("n", [1, 8])
def test_a_stopped_turn_leaves_no_trace(engine: Engine, rng: np.random.Generator, n: int) -> None:
    layer, _ = started(engine, rng)
    layer.run(Projected.random(rng, layer.weights, 8), chain(8), parity=1)
    before = {name: array.numpy() for name, array in layer.memory.items()}
    layer.run(Projected.random(rng, layer.weights, n), chain(n), pending=[0, 1], parity=0, stop=1)
    for name, array in layer.memory.items():
        np.testing.assert_array_equal(array.numpy(), before[name])
    assert np.isnan(layer.scratch["out"].numpy()).all()


def test_flush_takes_all_layers_at_once(engine: Engine, rng: np.random.Generator) -> None:
    layers, expected = [], []
    parents, pending = random_parents(12, rng), [0]
    pending = path_to(11, parents)
    for _ in range(3):
        layer, state = started(engine, rng)
        projected = Projected.random(rng, layer.weights, 12)
        layer.run(projected, parents, parity=1)
        layers.append(layer)
        expected.append(projected.oracle(layer.weights, parents, state)[11].after)
    flush(layers, [], parity=0)
    before = [layer.memory["s"].numpy() for layer in layers]
    flush(layers, pending, parity=0, stop=2)
    for layer, after, old in zip(layers, expected, before):
        layer.check_state(after)
        assert not np.array_equal(layer.memory["s"].numpy(), old)


def test_strong_and_weak_decay(engine: Engine, rng: np.random.Generator) -> None:
    """Log decays of -60 a row, of almost nothing, and of -2000 in front of small ones: no overflow, no lost digits."""
    weights = DeltaWeights.random(rng, 1, 3)
    weights = replace(weights, a=np.array([-60, -1, -1e-6], np.float32), dt=np.array([0, -3, 100], np.float32))
    state = DeltaState.random(rng, weights)
    for parents in (chain(64), random_parents(64, rng)):
        projected = Projected.random(rng, weights, 64)
        projected.alpha[0, 0, 1] += 2000
        layer = Layer(engine, weights, state, 64)
        out = layer.run(projected, parents)
        nodes = projected.oracle(weights, parents, state)
        close(out, np.stack([node.out for node in nodes]), 3e-5)
        layer.flush(path_to(63, parents), parity=1)
        layer.check_state(nodes[63].after, 3e-5)


@pytest.mark.parametrize(("value_heads", "rows", "warps"), [(2, 1, 1), (3, 5, 2), (6, 24, 3)])
def test_gdn_out_norms_and_gates(
    engine: Engine, rng: np.random.Generator, value_heads: int, rows: int, warps: int
) -> None:
    weights = DeltaWeights.random(rng, 1, value_heads)
    shape = DeltaShape(1, value_heads)
    live = max(1, rows - 1)
    projected = Projected.random(rng, weights, live)
    planes, starts = projected.planes(rows)
    out = np.full(shape.pass_shapes()["out"], np.nan, np.float32)
    out[:live] = rng.standard_normal((live, value_heads, DIM))
    groups = -(-value_heads // 2)
    acts = [engine.poisoned((groups, size), np.uint8) for size in (Q8_GROUP, F16_GROUP)]
    arguments = [engine.array(out), engine.array(planes), np.int32(rows), np.int32(planes.shape[-1])]
    arguments += [np.int32(starts["gate"]), engine.array(weights.norm), np.float32(EPS), *acts]
    arguments += [engine.array(np.array([live], np.int32)), np.int32(0)]
    launch = DeltaLaunch(shape, rows)
    kernel = engine.kernel("gdn.cu", "gdn_out", {**launch.pass_defines, "SPLIT_K": SPLITS})
    kernel((-(-groups // warps), rows), 32 * warps, arguments)
    gate = oracles.silu(oracles.planes_sum(projected.gate)).reshape(live, value_heads, DIM)
    expected = oracles.rms_norm(out[:live].astype(np.float64), weights.norm, EPS) * gate
    expected = expected.reshape(live, -1)
    found = acts_f16(acts[1].numpy(), live, groups * 256)
    np.testing.assert_allclose(found[:, : expected.shape[1]], expected, rtol=2**-11, atol=1e-5 * np.abs(expected).max())
    assert not found[:, expected.shape[1] :].any(), "an odd head's padding is zero"


def test_launches_fit_the_cards() -> None:
    shape = DeltaShape.of(16, 48, 128, 128, 4)
    for nodes in WIDTHS:
        for card in (HOPPER, AMPERE, GEFORCE, Card(128, 101_376), Card(170, 101_376)):
            launch = DeltaLaunch.of(shape, nodes, card)
            assert launch.shared <= card.shared_bytes
        # All of the card at once, kept states in shared memory but for one, and room for the L1 beside it.
        launch = DeltaLaunch.of(shape, nodes, HOPPER)
        assert launch.grid == 128
        assert launch.far_levels(later_pass=False) == (nodes == 64)
        assert launch.shared <= 160 << 10
        if nodes > MAX_MADE_ROWS:
            assert not launch.makers
            continue
        # As many warps on each scheduler.
        assert launch.makers >= MAKERS
        assert (launch.warps + launch.makers) % 4 == 0
    # So many warps with the state that makers' registers are missing.
    assert not DeltaLaunch.of(shape, 24, GEFORCE).makers
    assert DeltaLaunch.of(shape, 32, TURING).shared <= TURING.shared_bytes
    with pytest.raises(UnsupportedError, match="run it on the CPU"):
        DeltaLaunch.of(shape, 64, TURING)
    with pytest.raises(UnsupportedError, match="heads of 64"):
        DeltaShape.of(2, 6, 64, 128, 4)
    with pytest.raises(UnsupportedError, match="34 delta net value heads over 2 key heads, expected at most 16"):
        DeltaShape.of(2, 34, 128, 128, 4)
