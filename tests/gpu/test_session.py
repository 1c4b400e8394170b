"""Whole passes and steps of the CUDA backend against the CPU reference: emulated, and on a GPU where there is one.

The tiny golden pair; f16 activations, so that only rounding differs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dflash_core import Knobs
from dflash_core.errors import ContextError
from dflash_core.events import Event, StepEvent
from dflash_core.knobs import Value
from dflash_core.runner import Runner
from support.device_pairs import CONTEXT, close, pair, prompt, same_candidates
from support.steps import random_parents


@pytest.mark.parametrize("file", ["tiny-F16.gguf", "tiny-Q4_K_M.gguf"])
def test_passes_and_drafts_are_the_references(device_name: str, file: str) -> None:
    ours, reference = pair(device_name, file).sessions()
    ids = prompt()[:21]
    close(ours.prefill(ids), reference.prefill(ids))
    close(ours.draft(ids[-1], 0), reference.draft(ids[-1], 0))
    close(ours.draft(ids[-1], 6), reference.draft(ids[-1], 6))
    close(ours.draft(ids[4], 0, 4), reference.draft(ids[4], 0, 4))
    close(ours.draft(ids[-1], 0), reference.draft(ids[-1], 0))  # drafting elsewhere has left no trace


def test_any_tree_and_any_path_through_it(device_name: str, rng: np.random.Generator) -> None:
    ours, reference = pair(device_name, "tiny-F16.gguf").sessions()
    ours.prefill(prompt()[:9])
    reference.prefill(prompt()[:9])
    for nodes in (1, 5, 16, 2, 30, 1):
        parents = random_parents(nodes, rng)
        tokens = rng.integers(0, 700, nodes).tolist()
        close(ours.verify(tokens, parents), reference.verify(tokens, parents))
        close(ours.features(), reference.features())
        path = [int(rng.integers(nodes))]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        ours.commit(path)
        reference.commit(path)
        assert ours.length == reference.length
    close(ours.draft(7, 0), reference.draft(7, 0))
    ours_state, state = ours.checkpoint(), reference.checkpoint()
    s = np.stack([tensor.numpy() for tensor in state.tensors[::2]])  # of each delta net layer: s, then conv
    assert np.abs(ours_state.tensors[0].numpy() - s).max() < 1e-2 * np.abs(s).max()


def test_what_is_no_tree_and_no_path_is_refused(device_name: str) -> None:
    """Regression: the CPU ended in an IndexError of a layer, and a card read what is no embedding."""
    for session in pair(device_name, "tiny-F16.gguf").sessions():
        session.prefill(prompt()[:5])
        with pytest.raises(ContextError, match="found node 0 of 0 after the committed state, expected a path"):
            session.commit([0])  # without a tree
        for tokens, parents, why in (
            ([], [], "found 0 tokens and 0 parents, expected at least one token"),
            ([1, 2], [-1], "found 2 tokens and 1 parents"),
            ([1, 2], [-1, 1], "node 1 has the parent 1, expected a node before it or -1"),
            ([1], [-2], "node 0 has the parent -2"),
            ([1, 10**6], [-1, 0], "token 1000000 is outside the vocabulary of 768"),
        ):
            with pytest.raises(ContextError, match=why):
                session.verify(tokens, parents)
        with pytest.raises(ContextError, match="outside the vocabulary"):
            session.draft(-1, 0)
        session.verify([1, 2, 3], [-1, 0, 0])
        for path in ([1], [0, 3], [0, 1, 2], [-1]):
            with pytest.raises(ContextError, match="expected a path of the tree of the last verify"):
                session.commit(path)
        session.commit([0, 2])
        assert session.length == 7


def test_trees_of_several_passes(device_name: str, rng: np.random.Generator) -> None:
    ours, reference = pair(device_name, "tiny-F16.gguf").sessions()
    ours.prefill(prompt()[:5])
    reference.prefill(prompt()[:5])
    for nodes in (70, 131) if device_name == "cuda" else (70,):
        parents = [-1, *(int(rng.integers(max(0, node - 12), node)) for node in range(1, nodes))]
        tokens = rng.integers(0, 700, nodes).tolist()
        close(ours.verify(tokens, parents), reference.verify(tokens, parents))
        path = [nodes - 1]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        ours.commit(path)
        reference.commit(path)
    close(ours.verify([3], [-1]), reference.verify([3], [-1]))


def test_checkpoints_return_to_where_they_were_taken(device_name: str) -> None:
    ours, _ = pair(device_name, "tiny-F16.gguf").sessions()
    ids = prompt()[:12]
    ours.prefill(ids[:8])
    kept = ours.checkpoint()
    first = ours.prefill(ids[8:])
    ours.verify([1, 2, 3], [-1, 0, 1])
    ours.commit([0, 1])
    ours.restore(kept)
    assert ours.length == 8
    assert np.array_equal(ours.prefill(ids[8:]), first)
    ours.restore(None)
    assert ours.length == 0
    fresh, _ = pair(device_name, "tiny-F16.gguf").sessions()
    assert np.array_equal(ours.prefill(ids[:5]), fresh.prefill(ids[:5]))


def runners(device_name: str, context: int = CONTEXT, stops: frozenset[int] = frozenset()) -> tuple[Runner, Runner]:
    ours, reference = pair(device_name, "tiny-F16.gguf").sessions()
    vocab = pair(device_name, "tiny-F16.gguf").target.config.vocab_size
    return Runner(ours, stops, context, vocab), Runner(reference, stops, context, vocab)


def answer(runner: Runner, ids: tuple[int, ...], **knobs: Value) -> tuple[list[int], list[Event]]:
    events = list(runner.generate(ids, Knobs().replace(**{"temperature": 0.0, "max_tokens": 10, **knobs})))  # type: ignore[arg-type]
    return [token for event in events for token in event.tokens], events


GREEDY: list[dict[str, Value]] = [
    {"mode": "plain"}, {"mode": "tree", "budget": 7}, {"mode": "chain", "budget": 15},
    {"mode": "tree", "budget": 22, "p_min": 0.01}, {"mode": "tree", "budget": 65},
    {"mode": "tree", "budget": 12, "chain_seed": True, "tree_width": 3},
]  # fmt: skip
SAMPLED: list[dict[str, Value]] = [
    {"temperature": 0.9, "top_k": 20, "seed": 4}, {"temperature": 1.3, "top_p": 0.9, "seed": 5},
    {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.3, "presence_penalty": 0.4, "seed": 6},
    {"frequency_penalty": 0.7},
]  # fmt: skip


# On the emulator every second way; with `full` all.
@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.full)])
def test_all_ways_of_drafting_give_plain_decodings_tokens(device_name: str, every: int) -> None:
    ours, reference = runners(device_name)
    count = 10 if device_name == "cuda" else 6
    expected, _ = answer(reference, prompt()[:7], mode="plain", max_tokens=count)
    for knobs in GREEDY if device_name == "cuda" else GREEDY[every - 1 :: every]:
        ours.reset()
        found, events = answer(ours, prompt()[:7], max_tokens=count, **knobs)
        assert found == expected, knobs
        steps = [event for event in events if isinstance(event, StepEvent)]
        assert steps[-1].stop == "max tokens"
        assert ours.session.length == 7 + count - 1
        assert all(len(step.tree.tokens) <= 1 + int(knobs.get("budget", 22)) for step in steps)


@pytest.mark.parametrize("knobs", [*(pytest.param(one, marks=pytest.mark.full) for one in SAMPLED[:2]), *SAMPLED[2:]])
def test_sampled_answers_do_not_depend_on_the_drafts(device_name: str, knobs: dict[str, Value]) -> None:
    ours, reference = runners(device_name)
    plain, _ = answer(ours, prompt()[:7], mode="plain", **knobs)
    ours.reset()
    drafted, _ = answer(ours, prompt()[:7], mode="tree", budget=15, **knobs)
    assert drafted == plain
    assert answer(reference, prompt()[:7], mode="plain", **knobs)[0] == plain


def test_a_step_tells_what_the_reference_tells(device_name: str) -> None:
    ours, reference = runners(device_name)
    mine, theirs = (answer(r, prompt()[:7], mode="tree", budget=11, max_tokens=4)[1][1] for r in (ours, reference))
    assert isinstance(mine, StepEvent)
    assert isinstance(theirs, StepEvent)
    assert (mine.tree.tokens, mine.tree.parents, mine.tree.depths) == (
        theirs.tree.tokens,
        theirs.tree.parents,
        theirs.tree.depths,
    )
    assert np.allclose(mine.tree.path_probs, theirs.tree.path_probs, rtol=0.05)
    assert (mine.tokens, mine.accepted_depth, mine.bonus) == (theirs.tokens, theirs.accepted_depth, theirs.bonus)
    same_candidates(mine.drafts, theirs.drafts)
    assert mine.knobs.budget == 11
    assert mine.stages.verify > 0


def after(runner: Runner, ids: tuple[int, ...]) -> Iterator[int]:
    """A second turn after whatever the first one left."""
    yield from answer(runner, ids, mode="tree", budget=7, max_tokens=3)[0]


@pytest.mark.parametrize("kind", ["stop token", "max tokens", "context full", "cancelled"])
def test_a_turn_after_each_kind_of_stop_is_that_of_a_fresh_prompt(device_name: str, kind: str) -> None:
    plain = answer(runners(device_name)[1], prompt()[:7], mode="plain", max_tokens=12)[0]
    context = 7 + 9 if kind == "context full" else CONTEXT
    stops = frozenset({plain[6]}) if kind == "stop token" else frozenset[int]()
    ours, _ = runners(device_name, context, stops)
    events: list[Event] = []
    tokens = 9 if kind == "max tokens" else 40
    for event in ours.generate(prompt()[:7], Knobs(drafting="tree 7", temperature=0, max_tokens=tokens)):
        events.append(event)
        if kind == "cancelled" and len(events) == 3:
            ours.cancel()
    found = [token for event in events for token in event.tokens]
    assert found == plain[: len(found)] or len(found) > len(plain)
    assert events[-1].stop == kind or (kind == "cancelled" and events[-1].stop is None)
    said = (*prompt()[:7], *found[:-1])
    assert ours.session.length == len(said)
    if kind == "context full":
        return  # there is no room for another turn
    follow = (*said, *prompt()[:3])
    fresh, _ = runners(device_name, context, stops)
    assert list(after(ours, follow)) == list(after(fresh, follow))


def test_a_tree_that_grows_in_mid_turn_leaves_the_answer_as_it_is(device_name: str) -> None:
    """Its passes are more, and what the last step accepted is still to be committed."""
    ours, _ = runners(device_name)
    expected, _ = answer(ours, prompt()[:7], mode="plain", max_tokens=9)
    ours.reset()
    found: list[int] = []
    for count, event in enumerate(
        ours.generate(prompt()[:7], Knobs(drafting="auto up to 7", temperature=0, max_tokens=9))
    ):
        found += event.tokens
        if count == 2:
            ours.change(Knobs(drafting="auto up to 70", temperature=0))
    assert found == expected
