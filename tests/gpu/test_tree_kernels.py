"""Candidates, tree and accept on the device against dflash_core.tree and the decoder's own rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dflash_core import tree as ddtree
from dflash_core.backends.cuda import state
from dflash_core.backends.cuda.device_state import BLOCKS, DEFINES
from dflash_core.backends.cuda.state import MAX_DEPTH, MAX_NODES, MAX_WIDTH, StopCode
from dflash_core.backends.cuda.step_graphs import TREE_THREADS
from dflash_core.drafters.ngram_table import LONGEST, NgramTable, Successor
from dflash_core.policy import best_first
from dflash_core.policy.values import CLASSES, FEATURES, Learned, Stated, start_weights
from dflash_core.tree import Candidates, Tree
from support.engines import At, Engine
from support.step_state import fresh_state, put_tree, random_candidates, random_tree


@pytest.mark.parametrize("ties", [False, True])
def test_the_tree_is_the_twins(engine: Engine, rng: np.random.Generator, ties: bool) -> None:
    build = engine.kernel("tree.cu", "tree_build")
    for _ in range(60):
        depths = int(rng.integers(0, 18)) if rng.random() < 0.9 else MAX_DEPTH
        tokens, log_probs = random_candidates(rng, depths, ties=ties)
        width, budget = int(rng.integers(1, MAX_WIDTH + 1)), int(rng.choice([1, 2, 7, 15, 22, 63, 64, 100, 255]))
        p_min, seed = float(rng.choice([0.0, 0.01, 0.2, 0.9])), bool(rng.integers(2))
        st = fresh_state()
        st["root"], st["budget"], st["width"], st["draft_depth"] = 77, budget, width, depths
        st["chain_seed"], st["log_p_min"] = seed, math.log(p_min) if p_min else -np.inf
        st["candidate"][:depths], st["candidate_log_prob"][:depths] = tokens, log_probs
        drafts = Candidates(tokens[:, :width].astype(np.int64), log_probs[:, :width].astype(np.float64))
        expected = ddtree.build(77, drafts, budget, p_min=p_min, chain_seed=seed)
        device = engine.array(st)
        build(1, TREE_THREADS, [device, engine.poisoned(state.STAMPS, np.uint64)])
        found = device.numpy()
        n = int(found["n"])
        assert n == len(expected)
        assert tuple(found["token"][:n]) == expected.tokens
        assert tuple(found["parent"][:n]) == expected.parents
        assert tuple(found["depth"][:n]) == expected.depths
        np.testing.assert_array_equal(found["path_log_prob"][:n], np.float32(expected.path_log_probs))
        np.testing.assert_array_equal(found["log_prob"][:n], np.float32(expected.log_probs))
        bits = np.unpackbits(found["mask"][:n].view(np.uint8).reshape(n, -1), axis=1, bitorder="little")
        np.testing.assert_array_equal(bits[:, :n].astype(bool), ddtree.ancestors(expected.parents))
        assert not bits[:, n:].any()
        assert (found["token"][n:] == 0x7F7F7F7F).all()


def test_merged_draws_take_the_lowest_of_equals_and_refuse_what_is_no_number(
    engine: Engine, rng: np.random.Generator
) -> None:
    parts, rows, node0 = 70, 8, 64
    table = np.zeros((rows, parts), state.BEST_PART)
    table["value"] = np.round(rng.standard_normal((rows, parts)), 1)
    table["id"] = rng.permutation(parts * 100)[:parts]
    expected = [min((-v, i) for v, i in row)[1] for row in table.tolist()]
    table["value"][3] = -np.inf
    table["value"][4, 7] = np.inf
    expected[3] = expected[4] = -1
    st = fresh_state()
    st["n"] = node0 + rows - 1
    device = engine.array(st)
    engine.kernel("tree.cu", "merge_draws")(rows, 32, [device, engine.array(table), np.int32(parts), np.int32(node0)])
    found = device.numpy()["draw"]
    assert found[node0 : node0 + rows - 1].tolist() == expected[: rows - 1]
    assert found[node0 + rows - 1] == 0x7F7F7F7F


def check(record: np.ndarray, **expected: int) -> None:
    """Compare scalars of a struct."""
    assert {name: int(record[name]) for name in expected} == {name: int(value) for name, value in expected.items()}


class Accept:
    """The accept kernel with its ring, flag and stamps."""

    SLOTS = 4

    def __init__(self, engine: Engine, trace: np.ndarray | None = None) -> None:
        self.kernel = engine.kernel("accept.cu", "accept")
        self.ring = engine.poisoned(self.SLOTS, state.RING_SLOT)
        self.cancel = engine.array(np.zeros(1, np.int32))
        self.stamps = engine.array(np.arange(state.STAMPS, dtype=np.uint64))
        self.trace = None if trace is None else engine.array(trace)
        self.steps = np.int32(0 if trace is None else len(trace))

    def __call__(self, device: Any) -> tuple[np.ndarray, np.ndarray]:
        """The state afterwards and the slot of the step."""
        step = int(device.numpy()["steps"])
        trace = np.uint64(0) if self.trace is None else self.trace
        arguments = [device, self.ring, np.int32(self.SLOTS), self.cancel, trace, self.steps, self.stamps]
        self.kernel(1, state.MAX_NODES, arguments)
        return device.numpy(), self.ring.numpy()[step % self.SLOTS]


def random_draws(rng: np.random.Generator, tree: Tree) -> np.ndarray:
    """Draws that follow the tree with high probability, so that deep and off-spine walks occur."""
    draws = rng.integers(6000, 7000, len(tree))
    for parent, token in zip(tree.parents, tree.tokens):
        if parent >= 0 and rng.random() < 0.7:
            draws[parent] = token
    return draws.astype(np.int32)


def until_stop(
    tokens: list[int], answered: int, prompt: int, stop_ids: set[int], max_tokens: int, context: int, halt_at: int
) -> tuple[list[int], StopCode]:
    """An independent implementation of Decoder._until_stop."""
    for i, token in enumerate(tokens):
        count = answered + i + 1
        if token in stop_ids:
            return tokens[: i + 1], StopCode.STOP_TOKEN
        if count >= max_tokens:
            return tokens[: i + 1], StopCode.MAX_TOKENS
        if prompt + count >= context:
            return tokens[: i + 1], StopCode.CONTEXT_FULL
        if 0 < halt_at <= count:
            return tokens[: i + 1], StopCode.HALTED
    return tokens, StopCode.RUNNING


def test_accept_walks_stops_and_moves_the_state_on(engine: Engine, rng: np.random.Generator) -> None:
    accept = Accept(engine)
    seen = set()
    for trial in range(150):
        tree = random_tree(rng)
        draws = random_draws(rng, tree)
        walk = ddtree.walk(tree, lambda node, path, draws=draws: int(draws[node]))
        tokens = [tree.tokens[node] for node in walk.path[1:]] + [walk.next_token]
        answered, prompt = int(rng.integers(1, 700)), int(rng.integers(1, 1000))
        stop_ids = {int(rng.choice(tokens))} if rng.random() < 0.3 else {9999}
        max_tokens = answered + int(rng.integers(1, 12)) if rng.random() < 0.3 else 1 << 20
        context = prompt + answered + int(rng.integers(1, 12)) if rng.random() < 0.3 else 1 << 20
        halt_at = answered + int(rng.integers(1, 12)) if rng.random() < 0.3 else 0
        cancelled = bool(rng.random() < 0.2)
        kept, stop = until_stop(tokens, answered, prompt, stop_ids, max_tokens, context, halt_at)
        if stop is StopCode.RUNNING and cancelled:
            stop = StopCode.CANCELLED
        seen.add(stop)

        st = fresh_state()
        put_tree(st, tree)
        st["draw"][: len(tree)] = draws
        st["answered"], st["prompt_length"], st["max_tokens"], st["context_length"] = (
            answered,
            prompt,
            max_tokens,
            context,
        )
        st["halt_at"] = halt_at
        st["length"] = prompt + answered - 1
        st["stop_ids"][: len(stop_ids)] = sorted(stop_ids)
        st["steps"], st["parity"], st["draft_length"] = trial, trial & 1, 3
        st["draft_depth"] = int(rng.integers(0, 16))
        history = rng.integers(0, 5000, state.HISTORY).astype(np.int32)
        st["history"] = history
        tokens_c, log_probs_c = random_candidates(rng, MAX_DEPTH)
        st["candidate"], st["candidate_log_prob"] = tokens_c, log_probs_c
        accept.cancel.set(np.full(1, int(cancelled), np.int32))
        device = engine.array(st)
        after, slot = accept(device)

        path = list(walk.path[: len(kept)])
        for i, token in enumerate(kept):
            history[(answered + i) % state.HISTORY] = token
        length = int(st["length"])
        check(
            after,
            stop=stop,
            length=length + len(kept),
            answered=answered + len(kept),
            root=kept[-1],
            steps=trial + 1,
            parity=1 - (trial & 1),
            accepted=len(kept),
            pending=len(kept),
            draft_length=length if st["draft_depth"] else 3,
        )
        assert after["path"][: len(kept)].tolist() == after["pending_path"][: len(kept)].tolist() == path
        np.testing.assert_array_equal(after["history"], history)
        untouched = ("mask", "seed", "token", "parent", "draw", "budget", "stop_ids", "candidate")
        assert all((after[name] == st[name]).all() for name in untouched)

        n, depth = len(tree), int(st["draft_depth"])
        check(
            slot,
            ready=trial + 1,
            stop=stop,
            n=n,
            length=after["length"],
            answered=after["answered"],
            tokens=len(kept),
            accepted=len(walk.path),
            bonus=walk.next_token,
        )
        np.testing.assert_array_equal(slot["candidate"][:depth], tokens_c[:depth])
        np.testing.assert_array_equal(slot["candidate_log_prob"][:depth], log_probs_c[:depth])
        event = state.step_event(slot, None, "tree", "", state.Knobs())
        described = (event.tree.tokens, event.tree.parents, event.tree.depths, event.tree.accepted)
        assert described == (tree.tokens, tree.parents, tree.depths, walk.path)
        assert (event.tokens, event.drafted_depth) == (tuple(kept), max(tree.depths))
        assert event.stop == state.REASONS.get(stop)

        # Once stopped, another replay is a no-op.
        if stop is not StopCode.RUNNING:
            device.set(after)
            ring = accept.ring.numpy()
            again, _ = accept(device)
            assert again["accepted"] == 0
            assert all((again[name] == after[name]).all() for name in again.dtype.names if name != "accepted")
            assert accept.ring.numpy().tobytes() == ring.tobytes()
    assert seen == set(StopCode) - {StopCode.BROKEN}


def test_a_draw_that_is_no_token_keeps_nothing(engine: Engine, rng: np.random.Generator) -> None:
    tree = random_tree(rng)
    st = fresh_state()
    put_tree(st, tree)
    st["root"], st["draft_depth"], st["pending"] = 5, 1, 3
    st["draw"][: len(tree)] = -1
    st["draw"][0] = tree.tokens[1]
    after, slot = Accept(engine)(engine.array(st))
    assert after["stop"] == slot["stop"] == StopCode.BROKEN
    assert (after["length"], after["accepted"], after["root"], slot["tokens"]) == (0, 0, 5, 0)
    assert after["pending"] == 0  # the pass committed it; a second commit would corrupt the recurrent states


def test_a_forced_walk_overrides_the_targets_choice_alone(engine: Engine, rng: np.random.Generator) -> None:
    trace = np.zeros((5, 1 + MAX_DEPTH), np.int32)
    tree = random_tree(rng)
    walks: list[list[int]] = []
    for row in trace:
        node = int(rng.integers(len(tree)))
        path = [node]
        while tree.parents[path[0]] >= 0:
            path.insert(0, tree.parents[path[0]])
        walks.append(path)
        row[0] = len(path) - 1
        row[1 : len(path)] = path[1:]
    accept = Accept(engine, trace)
    for step in range(7):
        st = fresh_state()
        put_tree(st, tree)
        st["steps"] = step
        st["draw"][: len(tree)] = rng.integers(0, 5000, len(tree))
        after, slot = accept(engine.array(st))
        path = walks[step % 5]
        assert slot["path"][: slot["accepted"]].tolist() == path
        assert after["path"][: after["accepted"]].tolist() == path
        assert after["root"] == st["draw"][path[-1]]


def test_commit_moves_the_paths_rows(engine: Engine, rng: np.random.Generator) -> None:
    chunks, streams, positions = 5, 3, 400
    commit = engine.kernel("accept.cu", "kv_commit")
    for _ in range(20):
        n, length = int(rng.integers(1, 256)), int(rng.integers(0, 100))
        count = int(rng.integers(1, min(n, 40) + 1))
        path = np.concatenate([[0], np.sort(rng.choice(np.arange(1, n), count - 1, replace=False))]).astype(np.int32)
        cache = rng.integers(0, 2**32, (streams, positions, chunks * 4), np.uint32)
        st = fresh_state()
        st["length"], st["accepted"], st["path"][:count] = length + count, count, path
        device = engine.array(cache)
        bases = np.array([At(device, i * positions * chunks * 4).address for i in range(streams)], np.uint64)
        stamps = engine.poisoned(state.STAMPS, np.uint64)
        commit(streams, 4, [engine.array(st), engine.array(bases), np.int32(chunks), stamps])
        expected = cache.copy()
        expected[:, length : length + count] = cache[:, length + path]
        np.testing.assert_array_equal(device.numpy(), expected)
        assert stamps.numpy()[state.Stamp.COMMIT_END] != 0x7F7F7F7F7F7F7F7F
    assert MAX_NODES == 256


def test_nothing_stands_below_a_stop_token(engine: Engine, rng: np.random.Generator) -> None:
    build = engine.kernel("tree.cu", "tree_build")
    for _ in range(20):
        depths = int(rng.integers(1, 18))
        tokens, log_probs = random_candidates(rng, depths, vocab=40)
        stops = rng.choice(40, 3, replace=False).tolist()
        st = fresh_state()
        st["root"], st["budget"], st["draft_depth"] = stops[0], 40, depths
        st["chain_seed"] = bool(rng.integers(2))
        st["stop_ids"][:3] = stops
        st["candidate"][:depths], st["candidate_log_prob"][:depths] = tokens, log_probs
        drafts = Candidates(tokens.astype(np.int64), log_probs.astype(np.float64))
        expected = ddtree.build(stops[0], drafts, 40, chain_seed=bool(st["chain_seed"]), stops=stops)
        assert not any(parent and expected.tokens[parent] in stops for parent in expected.parents[1:])
        device = engine.array(st)
        build(1, TREE_THREADS, [device, engine.poisoned(state.STAMPS, np.uint64)])
        found = device.numpy()
        n = int(found["n"])
        assert tuple(found["token"][:n]) == expected.tokens
        assert tuple(found["parent"][:n]) == expected.parents


def test_the_tree_with_copied_text_is_the_twins(engine: Engine, rng: np.random.Generator) -> None:
    """Candidate for candidate, on random texts that repeat themselves, of which the device knows the first part."""
    build = engine.kernel("tree.cu", "tree_build", DEFINES)
    copies = on_the_spine = 0
    for trial in range(60):
        vocab, depths = int(rng.choice([4, 30, 300])), int(rng.integers(1, 18))
        tokens, log_probs = random_candidates(rng, depths, vocab=max(vocab, 300))
        width, budget, rows = (
            int(rng.integers(1, MAX_WIDTH + 1)),
            int(rng.choice([7, 23, 63])),
            int(rng.integers(1, 33)),
        )
        text = rng.integers(0, vocab, int(rng.integers(2, 400)))
        text = np.concatenate([text, text[len(text) // 3 :], text[len(text) // 2 :]]).tolist()
        known = len(text) - int(rng.integers(0, min(20, len(text) - 1)))
        prompt = int(rng.integers(1, known + 1))
        prompt = max(prompt, len(text) - state.HISTORY)
        known = max(known, prompt)
        table, whole = NgramTable(text[:known]), NgramTable(text)
        root, stops, left = text[-1], rng.choice(300, 2, replace=False).tolist(), int(rng.integers(1, 25))
        if trial % 2:  # some of what the drafter says is what the text says
            tail = whole.tail()
            for depth in range(depths):
                found = table.after(tail)
                if found is None or found.token in tokens[depth]:
                    break
                tokens[depth][int(rng.integers(0, MAX_WIDTH))] = found.token
                tail = (*tail[1 - LONGEST :], found.token)
        weights = (start_weights() + rng.normal(0, 0.4, (CLASSES, FEATURES))).astype(np.float32).astype(np.float64)
        st = fresh_state()
        st["root"], st["budget"], st["width"], st["draft_depth"] = root, budget, width, depths
        st["by_value"], st["rows"], st["weights"] = 1, rows, weights
        answer = text[prompt:]
        st["prompt_length"], st["answered"] = prompt, len(answer)
        st["max_tokens"], st["context_length"], st["steps"] = len(answer) + left, 10_000, trial
        for place, token in enumerate(answer):
            st["history"][place % state.HISTORY] = token
        st["stop_ids"][:2] = stops
        st["candidate"][:depths], st["candidate_log_prob"][:depths] = tokens, log_probs
        stated = Stated(tokens[:, :width].astype(np.int64), log_probs[:, :width].astype(np.float64))
        expected = best_first.build(
            stated, Learned(weights), Lagging(table, whole), root, stops, budget, min(left - 1, depths)
        )
        device, copied = engine.array(st), engine.poisoned(5, np.uint64)
        both = np.concatenate([table.last.reshape(-1), table.tokens, np.full(-len(table) % 4, -1, np.int32)])
        arrays = [engine.array(both), np.int32(len(both))]
        build(BLOCKS, TREE_THREADS, [device, engine.poisoned(state.STAMPS, np.uint64), *arrays, copied, np.int32(5)])
        found, bits = device.numpy(), int(copied.numpy()[trial % 5])
        built = int(found["built"])
        assert found["token"][:built].tolist() == expected.tokens
        assert found["parent"][:built].tolist() == expected.parents
        assert found["depth"][:built].tolist() == expected.depths
        assert [bool(bits >> node & 1) for node in range(built)] == expected.copied
        assert int(found["n"]) == min(built, rows)
        np.testing.assert_allclose(found["value"][:built], expected.values, rtol=1e-5)
        np.testing.assert_allclose(found["log_prob"][:built], expected.log_probs, rtol=1e-6)
        copies += sum(expected.copied)
        on_the_spine += sum(one is not None for one in expected.found) - sum(expected.copied)
    assert copies > 50
    assert on_the_spine > 50


@dataclass
class Lagging:
    """A device's copy of a text, which has grown since."""

    table: NgramTable
    whole: NgramTable

    def tail(self) -> tuple[int, ...]:
        return self.whole.tail()

    def after(self, tail: Sequence[int]) -> Successor | None:
        return self.table.after(tail)


@pytest.mark.parametrize("learned", [False, True])
def test_the_tree_by_value_is_the_twins(engine: Engine, rng: np.random.Generator, learned: bool) -> None:
    """Nodes, order, values and masks are those of policy/best_first.py for the same weights; passes run the first
    ones."""
    build = engine.kernel("tree.cu", "tree_build")
    sizes = set()
    for _ in range(40):
        depths = int(rng.integers(0, 18))
        tokens, log_probs = random_candidates(rng, depths, vocab=300)
        width, budget, rows = (
            int(rng.integers(1, MAX_WIDTH + 1)),
            int(rng.choice([1, 7, 31, 63])),
            int(rng.integers(1, 33)),
        )
        stops, left = rng.choice(300, 2, replace=False).tolist(), int(rng.integers(1, 25))
        weights = np.zeros((CLASSES, FEATURES))
        weights[:] = start_weights()
        if learned:
            weights += rng.normal(0, 0.4, weights.shape)
        weights = weights.astype(np.float32).astype(np.float64)
        st = fresh_state()
        st["root"], st["budget"], st["width"], st["draft_depth"] = 77, budget, width, depths
        st["by_value"], st["rows"], st["weights"] = 1, rows, weights
        st["answered"], st["max_tokens"] = 5, 5 + left
        st["stop_ids"][:2] = stops
        st["candidate"][:depths], st["candidate_log_prob"][:depths] = tokens, log_probs
        stated = Stated(tokens[:, :width].astype(np.int64), log_probs[:, :width].astype(np.float64))
        expected = best_first.build(stated, Learned(weights), None, 77, stops, budget, left - 1)
        device = engine.array(st)
        build(1, TREE_THREADS, [device, engine.poisoned(state.STAMPS, np.uint64)])
        found = device.numpy()
        built, n = int(found["built"]), int(found["n"])
        assert (built, n) == (len(expected), min(len(expected), rows))
        assert found["token"][:built].tolist() == expected.tokens
        assert found["parent"][:built].tolist() == expected.parents
        assert found["depth"][:built].tolist() == expected.depths
        np.testing.assert_allclose(found["value"][:built], expected.values, rtol=1e-5)
        np.testing.assert_allclose(found["log_prob"][:built], expected.log_probs, rtol=1e-6)
        bits = np.unpackbits(found["mask"][:built].view(np.uint8).reshape(built, -1), axis=1, bitorder="little")
        np.testing.assert_array_equal(bits[:, :built].astype(bool), ddtree.ancestors(expected.parents))
        sizes.add(built)
    assert len(sizes) > 2  # trees of many sizes, whatever the seed
