"""The shipped drafter of SmolLM2-135M-Instruct: against a float64 twin, and with its target where that is installed."""

from __future__ import annotations

from functools import cache

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.config import DraftConfig
from dflash_core.demo import demo_target_path, smollm2_draft_path
from dflash_core.drafters.draft import Draft
from dflash_core.engine import load_pair
from dflash_core.errors import MismatchError
from dflash_core.events import StepEvent
from dflash_core.messages import Message
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting
from support.behind import draft_logits
from support.chosen import chosen_path
from support.compare import Comparison, generated
from support.draft_files import behind_ends
from support.draft_twin import Arrays, drafted, greedy_path
from support.grids import full
from support.real_models import smollm2

QUESTIONS = (
    "Write a Python function that returns the largest of three numbers.",
    "What is the capital of Portugal?",
    "Tom has 12 apples and buys 7 more. How many apples does he have?",
)
VOCAB = 600  # tokens of the stand-in for a target; the drafter's tables are cut to them
CONTEXT = 12
TOKENS = 16  # of an answer


@cache
def engine() -> Engine:
    target = load_target(smollm2(), device="cpu")
    return Engine(target, load_draft(smollm2_draft_path(), target=target))


def prompt(question: str) -> list[int]:
    target = engine().target
    return list(build_prompt(Prompting(target.tokenizer, target.template, False), [Message("user", question)]).ids)


@cache
def plain(question: str, heat: float) -> list[int]:
    return generated(engine(), prompt(question), Knobs(drafting="plain", max_tokens=TOKENS, temperature=heat, seed=3))


def its_weights() -> Arrays:
    """The tensors by ggml's own reader."""
    reader = gguf.GGUFReader(smollm2_draft_path())
    return {one.name: np.asarray(dequantize(one.data, one.tensor_type), np.float64) for one in reader.tensors}


def agree(draft: Draft, embedding: np.ndarray, head: np.ndarray, features: np.ndarray, anchor: int) -> None:
    """The drafter's scores and its selector's path are the twin's."""
    config: DraftConfig = draft.config
    w = its_weights()
    for name in ("selector_predecessor.weight", "selector_successor.weight"):
        w[name] = w[name][: len(head)]
    rows, logits = drafted(config, w, embedding, head, features, anchor)
    assert np.abs(draft_logits(draft, features, anchor) - logits).max() < 1e-3
    assert chosen_path(draft, features, anchor) == greedy_path(config, w, rows, logits, anchor)


def test_it_is_small() -> None:
    """A wheel has 40 MB at most, with the demo pair."""
    assert smollm2_draft_path().stat().st_size < 10_000_000


def test_the_twin_agrees_behind_made_up_ends() -> None:
    random = np.random.default_rng(7)
    embedding, head = 0.1 * random.standard_normal((2, VOCAB, 576)).astype(np.float32)
    draft = behind_ends(smollm2_draft_path(), embedding, head, double=True)
    features = random.standard_normal((CONTEXT, 5 * 576)).astype(np.float32)
    agree(draft, embedding, head, features, anchor=300)


def test_the_twin_agrees_behind_its_target() -> None:
    target, draft = engine().target, engine().draft
    ids = prompt(QUESTIONS[0])
    features = np.asarray(target.hidden(ids[:-1], layers=draft.config.target_layers)).swapaxes(0, 1)
    ends = target.model.token_embd.rows(range(target.config.vocab_size)).numpy()
    agree(draft, ends, ends, features.reshape(len(ids) - 1, -1), anchor=ids[-1])


def test_another_target_refuses_it() -> None:
    with pytest.raises(MismatchError) as refused:
        load_pair(demo_target_path(), smollm2_draft_path())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("drafting", "heat", "questions"),
    [
        ("tree 22", 1.0, QUESTIONS[:1]),
        ("auto", 0.0, QUESTIONS[1:2]),
        full("tree 22", 1.0, QUESTIONS),
        full("auto", 0.0, QUESTIONS),
    ],
    ids=["tree", "auto", "tree, each question", "auto, each question"],
)
def test_text_is_plain_decodings(drafting: str, heat: float, questions: tuple[str, ...]) -> None:
    compared = Comparison()
    for question in questions:
        knobs = Knobs(drafting=drafting, max_tokens=TOKENS, temperature=heat, seed=3)
        compared.add(engine(), prompt(question), plain(question, heat), knobs)
    compared.check()


def test_drafts_are_accepted_and_a_chain_is_plain_decodings() -> None:
    """Far more of them than those of a drafter that reads other layers or another position would be."""
    knobs = Knobs(drafting="chain 7", max_tokens=TOKENS, temperature=0)
    answers = [list(engine().generate(prompt(question), knobs)) for question in QUESTIONS]
    steps = [event for events in answers for event in events if isinstance(event, StepEvent)]
    assert sum(len(event.tokens) for event in steps) > 2.2 * len(steps)
    for question, events in zip(QUESTIONS, answers, strict=True):
        assert [token for event in events for token in event.tokens] == plain(question, 0.0)
