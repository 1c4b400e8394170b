"""Log-probabilities on a card: those that the reference decoder records from the same logits, whatever drafted the
step; and the text of an answer without them."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from tools.bench.replay import GivenCosts

from dflash_core import Knobs
from dflash_core.backends.base import AnswerOptions
from dflash_core.backends.cuda import state
from dflash_core.backends.cuda.layers.head import LIST_THREADS
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.step_graphs import TOPS, StepKind
from dflash_core.constraints.grammar import Grammar, Grammars
from dflash_core.events import GuardEvent, StepEvent
from dflash_core.knobs import Value
from dflash_core.log_probs import MAX_TOP, Drawn, LogProbs
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.costs import H200
from dflash_core.policy.queued import QueuedPolicy
from dflash_core.runner import Runner
from dflash_core.tree import Tree
from support.device_pairs import CONTEXT, pair, prompt
from support.drafted import proven
from support.engines import Engine, missing
from support.host_drafts import PrimedText
from support.host_runner import HostRunner
from support.planted_device import planted
from support.sampling import BEHIND, block_maxima, turn_state

FILE = "tiny-F16.gguf"
IDS = prompt()[:7]
GRAMMAR = Grammar("regex", "(alpha|beta) is [0-9]{2,4}, which ends it: [a-z ]{5,20}!")
SETTINGS: dict[str, dict[str, Value]] = {
    "greedy": {"temperature": 0.0},
    "listed": {"temperature": 1.0, "top_k": 50, "seed": 3},
    "front": {"temperature": 1.0, "top_k": 0, "top_p": 0.9, "seed": 5},
    "penalties": {"temperature": 0.9, "repetition_penalty": 1.5, "presence_penalty": 0.4, "frequency_penalty": 0.3},
}
AROUND = [0, 0, 0, 2, 0, 1, 1]  # the rank of the right token by depth
MODES: list[dict[str, Value]] = [
    {"mode": "plain"},
    {"mode": "chain", "budget": 5},
    {"mode": "tree", "budget": 30, "tree_width": 4},
    {"mode": "tree", "budget": 70, "tree_width": 8},  # two passes
    {"mode": "auto"},
]
ROUNDED = 2e-6  # what sums in float32 differ by from those in float64, of log-probabilities of a few tens


def expected_of(row: np.ndarray, top: int) -> tuple[np.ndarray, list[int]]:
    """The log-probabilities of a row, and its likeliest tokens."""
    scores = row.astype(np.float64)
    most = scores.max()
    with np.errstate(under="ignore"):
        return scores - most - np.log(np.exp(scores - most).sum()), np.argsort(-row, kind="stable")[:top].tolist()


def random_rows(rng: np.random.Generator, rows: int, vocab: int) -> np.ndarray:
    """Rows of the kinds that occur: peaked, flat, all equal, with many ties, with tokens ruled out, and with a few."""
    logits = rng.standard_normal((rows, vocab)) * rng.choice([1e-3, 2, 30], (rows, 1))
    logits[1::6] = np.round(logits[1::6])
    logits[2::6, rng.random(vocab) < 0.5] = -np.inf
    logits[3::6] = rng.choice([0.0, -0.0], logits[3::6].shape)
    logits[4::6, 3:] = -np.inf
    logits[5::6, 17] += 60
    return logits.astype(np.float32)


@pytest.mark.parametrize("top", TOPS)
def test_the_kernel_gives_those_of_each_row(engine: Engine, rng: np.random.Generator, top: int) -> None:
    """The likeliest tokens in order, ties to the lower id, also where too many are equal for a list."""
    rows, node0, slots, nodes, step = 6, 2, 3, 9, 5
    for vocab in (50, 5003, 248_320) if engine.real else (50, 5003):
        logits = np.concatenate([random_rows(rng, rows, vocab), np.full((rows, BEHIND), 1e30, np.float32)], axis=1)
        tree = Tree((3,) * 7, (-1, *range(6)), tuple(range(7)), (0.0,) * 7, (0.0,) * 7)
        st = turn_state(tree, Knobs(), [5], 9)
        st["steps"] = step
        maxima = block_maxima(logits[:, :vocab])
        padded = np.full((rows, maxima.shape[1] * 16), -np.inf, np.float32)
        padded[:, :vocab] = logits[:, :vocab]
        with np.errstate(invalid="ignore"):
            parts = np.exp(padded.reshape(rows, -1, 16) - maxima[:, :, None])
        sums = np.nan_to_num(parts).sum(axis=2, dtype=np.float32)
        totals = engine.poisoned((rows,), state.ROW_TOTAL)
        found = engine.poisoned((slots, nodes), state.NODE_LOG_PROBS)
        engine.kernel("log_probs.cu", "log_probs")(
            rows, LIST_THREADS,
            [engine.array(st), engine.array(logits), np.int32(vocab), np.int32(logits.shape[1]), np.int32(node0),
             engine.array(maxima), engine.array(sums), np.int32(top), totals, found, np.int32(slots), np.int32(nodes)],
        )  # fmt: skip
        mine, untouched = found.numpy()[step % slots], found.numpy().view(np.uint8).reshape(slots, -1)
        for row, node in enumerate(range(node0, len(tree))):
            scores, best = expected_of(logits[row, :vocab], top)
            best = [token for token in best if scores[token] > -np.inf]
            total = totals.numpy()[row]
            assert total["best"] == logits[row, :vocab].max()
            one = mine[node]
            assert one["id"][: one["count"]].tolist() == best, (vocab, row)
            assert np.allclose(one["value"][: len(best)], scores[best], rtol=1e-6, atol=ROUNDED)
            assert (one["value"][: len(best)] <= 0).all()
            drawn = int(rng.integers(vocab))
            if scores[drawn] > -np.inf:
                log_prob = np.float32(logits[row, drawn] - total["best"]) - total["log_total"]
                assert np.isclose(log_prob, scores[drawn], rtol=1e-6, atol=ROUNDED)
        others = np.delete(untouched, step % slots, axis=0)
        assert (others == others.flat[0]).all(), "another step's slot"
        past = mine[np.r_[:node0, len(tree) : nodes]].copy().view(np.uint8)
        assert (past == others.flat[0]).all(), "nodes that are not in the pass or not in the tree"


@functools.cache
def grammars() -> Grammars:
    target = pair("emulated", FILE).target
    return Grammars(target.tokenizer, target.config.vocab_size)


def runner_on(session: CudaSession, policy: QueuedPolicy | None = None) -> Runner:
    target = pair("emulated", FILE).target
    return Runner(session, target.tokenizer.stop_ids, CONTEXT, target.config.vocab_size, policy=policy)


@functools.cache
def runner(device_name: str) -> Runner:
    return runner_on(pair(device_name, FILE).sessions()[0])


def answer(
    one: Runner, record: LogProbs | None, grammar: Grammar | None = None, **knobs: Value
) -> tuple[list[int], list[StepEvent]]:
    constraint = None if grammar is None else grammars().constraint(grammar)
    asked = Knobs(max_tokens=8 if grammar is None else 20).replace(**knobs)
    events = list(one.generate(IDS, asked, constraint=constraint, log_probs=record))
    return [token for event in events for token in event.tokens], [it for it in events if isinstance(it, StepEvent)]


@functools.cache
def reference(device_name: str, settings: str, grammar: Grammar | None = None) -> list[Drawn]:
    """An answer of the reference decoder, in plain decoding."""
    record = LogProbs(MAX_TOP)
    text, _ = answer(HostRunner.of(runner(device_name)), record, grammar, **{**SETTINGS[settings], "mode": "plain"})
    assert [it.token for it in record.drawn] == text
    return record.drawn


def check(found: list[Drawn], expected: list[Drawn], top: int) -> None:
    assert [one.token for one in found] == [one.token for one in expected]
    for mine, other in zip(found, expected):
        assert mine.log_prob == pytest.approx(other.log_prob, rel=1e-6, abs=ROUNDED)
        assert [token for token, _ in mine.top] == [token for token, _ in other.top[:top]]
        values = [value for _, value in other.top[:top]]
        assert [value for _, value in mine.top] == pytest.approx(values, rel=1e-6, abs=ROUNDED)


# Each with a part of the modes; the others with `full`.
QUICK = {
    "free": {"greedy": (1,), "listed": (0,), "front": (4,), "penalties": (2,)},
    "grammar": {"greedy": (3,), "listed": (), "front": (1,), "penalties": (4,)},
}
CASES = [
    pytest.param(
        settings, None if name == "free" else GRAMMAR, mode, id=f"{settings}-{name}-{number}",
        marks=() if number in QUICK[name][settings] else pytest.mark.full,
    )
    for name in QUICK for settings in SETTINGS for number, mode in enumerate(MODES)
]  # fmt: skip


@pytest.mark.emulator
@pytest.mark.parametrize(("settings", "grammar", "mode"), CASES)
def test_they_are_the_reference_decoders(
    device_name: str, settings: str, grammar: Grammar | None, mode: dict[str, Value]
) -> None:
    """And the text is that of an answer without them."""
    one, knobs, expected = (
        runner(device_name),
        {**SETTINGS[settings], **mode},
        reference(device_name, settings, grammar),
    )
    top = (3, 0, MAX_TOP, 1, 5)[MODES.index(mode)]
    record = LogProbs(top)
    found, _ = answer(one, record, grammar, **knobs)
    check(record.drawn, expected, top)
    assert found == [it.token for it in expected]
    assert answer(one, None, grammar, **knobs)[0] == found, "without them"


@pytest.mark.emulator
@pytest.mark.parametrize("settings", ["greedy", "front"])
def test_along_walks_that_leave_the_spine(settings: str) -> None:
    if (why := missing("emulated")) is not None:
        pytest.skip(why)
    expected = reference("emulated", settings)
    session = planted(FILE, [it.token for it in expected], AROUND)[0]
    learned = QueuedPolicy(Arm(session.capabilities, PairState(), GivenCosts(H200)))
    proven(learned)
    trees: list[dict[str, Value]] = [{"mode": "tree", "budget": budget} for budget in (15, 70)]
    for tree, policy in (*((tree, None) for tree in trees[: 1 + (settings == "greedy")]), ({}, learned)):
        record = LogProbs(2)
        _, steps = answer(runner_on(session, policy), record, **SETTINGS[settings], **tree)
        session.restore(None)
        assert max(step.accepted_depth for step in steps) > 2
        assert any(step.tree.accepted != tuple(range(len(step.tree.accepted))) for step in steps)
        check(record.drawn, expected, 2)


@pytest.mark.emulator
def test_with_a_drafter_on_the_host(device_name: str) -> None:
    expected = reference(device_name, "greedy")
    text = PrimedText([*IDS, *(it.token for it in expected)])
    session = CudaSession(pair(device_name, FILE).device_target, host_drafter=text, context=CONTEXT)
    record = LogProbs(2)
    _, steps = answer(runner_on(session), record, temperature=0.0)
    assert max(step.accepted_depth for step in steps) > 2
    check(record.drawn, expected, 2)


@pytest.mark.emulator
def test_a_token_that_was_not_drawn_has_none(device_name: str) -> None:
    """What a guard inserts, and what it puts in place of a stop token."""
    expected = reference(device_name, "greedy")
    one, record = runner(device_name), LogProbs(1)
    one.reset()
    decoder = one.session.decoder(
        AnswerOptions(Knobs(temperature=0.0, max_tokens=20), frozenset(), CONTEXT, log_probs=record)
    )
    decoder.first(one.session.prefill(IDS))
    decoder.halt_at(3)
    while not decoder.halted:
        decoder.step()
    decoder.inject((90, 91), GuardEvent("thinking budget", "thinking", "close", "told to"))
    decoder.put(92)
    decoder.step()
    decoder.finish()
    check(record.drawn[:3], expected[:3], 1)
    assert record.drawn[3:5] == [Drawn(90, None), Drawn(92, None)]
    assert [it.token for it in record.drawn[: len(decoder.answer)]] == decoder.answer
    assert all(it.log_prob is not None for it in record.drawn[5:])
    one.reset()


@pytest.mark.emulator
def test_steps_without_them_have_the_launches_that_they_had(device_name: str) -> None:
    """tests/unit/test_launch_lists.py has the lists; here, that nothing of an answer with them stays."""
    session = runner(device_name).session
    given = 5, Knobs(temperature=0.0), session.head.vocab
    kinds = [StepKind.holding(*given, drafts=True, log_probs=record) for record in (None, LogProbs(0), LogProbs(6))]
    assert [kind.top for kind in kinds] == [None, 0, MAX_TOP]
    without, least, most = ([(it.file, dict(it.defines)) for it in session.steps.launches(kind)] for kind in kinds)
    assert not [it for it in without if it[0] in ("log_probs.cu", "sample.cu", "logits.cu") and "SUMS" not in it[1]]
    assert least == most
    assert len([file for file, _ in least if file == "log_probs.cu"]) == 1
