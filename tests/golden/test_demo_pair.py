"""The demo pair that ships: lossless on real text, accepted more than once per step, and it stops by itself."""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import FrameType

import pytest

import dflash_core
from dflash_core import Engine, Knobs
from dflash_core.arch.kinds import Attention, DeltaNet
from dflash_core.conversation import Conversation
from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.engine import load_pair
from dflash_core.events import StepEvent
from dflash_core.messages import Message
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting
from support import demo_pair
from support.compare import Comparison, generated
from support.grids import full

QUESTIONS = [
    "hi",
    "What is p_min?",
    "Write a function that reverses a list.",
    "What is 37 + 48?",
    "Tell me about speculative decoding.",
    "How many days are there in three weeks?",
]
SAMPLED = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 11}
BUDGETS = [1, 4, 15, 16, 22, 40, 63, 256]


@cache
def engine() -> Engine:
    return demo_pair.new_engine()


def prompt(question: str, thinking: bool = False) -> list[int]:
    target = engine().target
    return list(build_prompt(Prompting(target.tokenizer, target.template, thinking), [Message("user", question)]).ids)


@cache
def plain(question: str, sampled: bool) -> list[int]:
    knobs = Knobs(drafting="plain", max_tokens=32, **SAMPLED if sampled else {})
    return generated(engine(), prompt(question), knobs)


def test_the_pair_is_small_and_of_the_real_architecture() -> None:
    assert demo_target_path().stat().st_size + demo_draft_path().stat().st_size < 20_000_000
    config = engine().target.config
    delta, attention = config.of(DeltaNet), config.of(Attention)
    assert delta[0].value_heads == 3 * delta[0].key_heads
    assert (delta[0].key_dim, attention[0].head_dim) == (128, 256)
    assert len(attention) > 0 < len(delta)
    assert not config.tied_output
    assert engine().draft is not None
    assert engine().draft.config.block_size == 16


# Each case over a quarter of the budgets; with `full` over all.
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.full)], ids=["quarter", "all"])
@pytest.mark.parametrize(("p_min", "sampled"), [(0.0, False), full(0.0, True), full(0.3, False), (0.3, True)])
def test_speculation_is_lossless(sampled: bool, p_min: float, every: int) -> None:
    comparison = Comparison()
    for index, budget in list(enumerate(BUDGETS))[(sampled + 2 * (p_min > 0)) % every :: every]:
        for mode in ("tree", "chain"):
            question = QUESTIONS[index % len(QUESTIONS)]
            sampling = SAMPLED if sampled else {}
            knobs = Knobs(p_min=p_min, max_tokens=32, **sampling).replace(mode=mode, budget=budget)
            comparison.add(engine(), prompt(question), plain(question, sampled), knobs)
    comparison.check()


def test_drafts_are_accepted() -> None:
    steps = tokens = 0
    for question in QUESTIONS:
        events = list(engine().generate(prompt(question), Knobs(drafting="tree 22", max_tokens=32)))
        steps += len(events) - 1
        tokens += sum(len(event.tokens) for event in events[1:])
    assert tokens / steps > 2


def test_answers_are_whole_sentences_that_end() -> None:
    ended = Counter[str]()
    for question in QUESTIONS:
        conversation = Conversation(engine(), engine().target.tokenizer, engine().target.template)
        turn = conversation.ask(question, Knobs(max_tokens=256))
        list(turn)
        assert turn.report is not None
        assert turn.report.text.strip()
        assert "<|im_end|>" not in turn.report.text
        assert not turn.report.thinking
        ended[turn.report.stop] += 1
    assert ended["stop token"] >= len(QUESTIONS) - 1


def test_a_conversation_goes_on_from_its_own_state() -> None:
    """The second turn reuses the first one's prefix, and answers as a fresh engine given the same ids would."""
    mine = load_pair(demo_target_path(), demo_draft_path())
    conversation = Conversation(mine, mine.target.tokenizer, mine.target.template)
    list(conversation.ask("hi", Knobs(max_tokens=20)))
    second = conversation.ask("What is 12 + 7?", Knobs(max_tokens=20))
    list(second)
    assert second.report is not None
    assert second.report.stats.reused_tokens > 0
    fresh = generated(Engine(mine.target, mine.draft), second.prompt.ids, Knobs(drafting="plain", max_tokens=20))
    assert list(second.report.tokens) == fresh


def test_thinking_comes_apart_from_the_answer() -> None:
    conversation = Conversation(engine(), engine().target.tokenizer, engine().target.template)
    turn = conversation.ask("What is 37 + 48?", Knobs(thinking=True, max_tokens=300))
    list(turn)
    assert turn.report is not None
    assert turn.report.thinking.strip()
    assert "</think>" not in turn.report.text + turn.report.thinking


@pytest.mark.parametrize(("drafting", "files"), [("tree 16", 25), ("chain 15", 26), ("auto", 31)])
def test_a_step_goes_through_few_files(drafting: str, files: int) -> None:
    """What a reader follows from one step's event to the next: files of the decoder, and calls where a tree is set."""
    source = str(Path(dflash_core.__file__).parent)
    events = traced_steps(engine(), prompt(QUESTIONS[2]), Knobs(drafting=drafting, max_tokens=40), source)
    assert any(len(event.tree.tokens) > 1 for event, _ in events)
    assert max(len(calls) for _, calls in events) <= files
    assert drafting == "auto" or max(sum(calls.values()) for _, calls in events) <= 900


def traced_steps(pair: Engine, ids: list[int], knobs: Knobs, source: str) -> list[tuple[StepEvent, Counter[str]]]:
    """Each step of an answer, with the calls of functions of each file under `source`."""
    calls: Counter[str] = Counter()
    found = []

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(source):
            calls[frame.f_code.co_filename] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for event in pair.generate(ids, knobs):
            if isinstance(event, StepEvent):
                found.append((event, Counter(calls)))
            calls.clear()
    finally:
        sys.setprofile(before)
    return found
