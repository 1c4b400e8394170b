"""Chat templates of Qwen3's generations: what they write, what of a history they keep, and who opens the think
block."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine
from text_data import qwen, tiny

from dflash_core.conversation import Conversation
from dflash_core.events import GuardEvent
from dflash_core.guards.turn import TurnGuard
from dflash_core.knobs import Knobs
from dflash_core.messages import Message
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting
from dflash_core.text.template import ChatTemplate
from support.qwen3_templates import TEMPLATES

pytestmark = pytest.mark.usefixtures("templates_here")
OPENING = {  # what an answer begins after, with thinking and without
    "hybrid": ("", "<think>\n\n</think>\n\n"),
    "instruct": ("", ""),
    "thinking": ("<think>\n", "<think>\n"),
    "coder": ("", ""),
}
REASONS = {"hybrid", "thinking"}


@pytest.fixture(params=TEMPLATES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def template(name: str) -> ChatTemplate:
    return ChatTemplate(TEMPLATES[name])


def test_what_an_answer_begins_behind(name: str, template: ChatTemplate) -> None:
    asked = [{"role": "user", "content": " Hi\n"}]
    for thinking, opening in zip((True, False), OPENING[name], strict=True):
        # Contents are not trimmed.
        expected = f"<|im_start|>user\n Hi\n<|im_end|>\n<|im_start|>assistant\n{opening}"
        assert template.render(asked, thinking=thinking) == expected
    with_system = template.render([{"role": "system", "content": "S"}, *asked], thinking=True, generate=False)
    assert with_system == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n Hi\n<|im_end|>\n"


def test_what_cannot_be_chosen_is_said(name: str, template: ChatTemplate) -> None:
    never = {True: "this model does not support thinking: thinking on changes nothing"}
    always = {False: "this model always thinks before it answers: thinking off changes nothing"}
    assert template.without_effect == {"hybrid": {}, "instruct": never, "thinking": always, "coder": never}[name]
    assert ChatTemplate(None).without_effect == {}, "of plain ChatML nothing is known"
    assert ChatTemplate(None, chatml=False).without_effect == never, "a base model has no thinking"
    assert qwen().without_effect == {}
    assert ChatTemplate("{{ raise_exception('no') }}").without_effect == {}


def test_reasoning_of_earlier_turns_goes(name: str, template: ChatTemplate) -> None:
    answered = [
        {"role": "user", "content": "1?"},
        {"role": "assistant", "content": "One.", "reasoning_content": "a digit"},
    ]
    kept = "<think>\na digit\n</think>\n\n" if name in REASONS else ""
    begin = "<|im_start|>user\n1?<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(answered, thinking=True, generate=False) == f"{begin}{kept}One.<|im_end|>\n"
    later = template.render([*answered, {"role": "user", "content": "2?"}], thinking=True, generate=False)
    assert later == f"{begin}One.<|im_end|>\n<|im_start|>user\n2?<|im_end|>\n"


def test_a_turn_splits_the_block_whoever_opens_it(name: str, template: ChatTemplate) -> None:
    for thinking, opening in zip((True, False), OPENING[name], strict=True):
        thought = name in REASONS and not opening.endswith("</think>\n\n")
        said = ("<think>\n" if not opening else "") + "why\n</think>\n\nHello." if thought else "Hello."
        conversation = Conversation(FakeEngine(said, "Again."), tiny(), template)
        turn = conversation.ask("Hi", Knobs(thinking=thinking))
        list(turn)
        assert turn.prompt.opens_thinking == (opening == "<think>\n")
        assert (turn.thinking, turn.text) == ("why" if thought else "", "Hello.")
        second = conversation.ask("And?", Knobs(thinking=thinking))
        list(second)
        assert "why" not in second.prompt.text


def test_the_history_is_what_the_next_prompt_begins_with(template: ChatTemplate) -> None:
    """`stable` says how much of a prompt the next one shares: all but the opening of the answer."""
    messages = [Message("user", "What is a tree?")]
    prompt = build_prompt(Prompting(tiny(), template, True), messages)
    after = [*messages, Message("assistant", "A graph.", "so"), Message("user", "And a chain?")]
    later = build_prompt(Prompting(tiny(), template, True), after)
    assert later.ids[: prompt.stable] == prompt.ids[: prompt.stable]
    assert len(prompt.ids) - prompt.stable == len(tiny().encode(prompt.text[prompt.text.rindex("<|im_start|>") :]))


def test_a_budget_counts_the_reasoning_that_the_model_opens_itself() -> None:
    guard = TurnGuard(tiny(), Knobs(thinking=True, thinking_budget=6), opens_thinking=False)
    guard.see(tiny().encode("<think>\n"))
    assert guard.intervention is None
    while guard.intervention is None:
        guard.see(tiny().encode(" so")[:1])
        assert guard.limit is not None
    assert isinstance(guard.intervention.event, GuardEvent)
    assert guard.intervention.event.trigger == "thinking budget"
