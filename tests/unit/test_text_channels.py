"""Models that name the parts of an answer by channels: their reasoning is shown as that of others is."""

from __future__ import annotations

import pytest
from text_data import metadata

from dflash_core.guards.turn import TurnGuard
from dflash_core.knobs import Knobs
from dflash_core.messages import Message
from dflash_core.prompting import going_on
from dflash_core.text.prompt import Prompt
from dflash_core.text.template import ChatTemplate
from dflash_core.text.thinking import ThinkingSplit
from dflash_core.text.tokenizer import Detokenizer, Tokenizer

HARMONY = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"]
SEED = ["<seed:think>", "</seed:think>", "<seed:bos>", "<seed:eos>"]
MISTRAL = ["[THINK]", "[/THINK]", "[INST]", "[/INST]"]
GEMMA = ["<|channel>", "<channel|>", "<|turn>", "<turn|>"]
HARMONY_TEMPLATE = (
    "{% set effort = reasoning_effort if reasoning_effort is defined else 'medium' %}"
    "<|start|>system<|message|>Reasoning: {{ effort }}<|end|>"
    "{% for message in messages %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def tokenizer(names: list[str], template: str | None = None, kind: int = 3) -> Tokenizer:
    """The tiny tokenizer with further special tokens."""
    plain = metadata()
    tokens, types = plain["tokenizer.ggml.tokens"], plain["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    more = metadata(tokens=[*tokens, *names], token_type=[*types, *[kind] * len(names)], eos_token_id=None)
    return Tokenizer.from_metadata(more | ({"tokenizer.chat_template": template} if template else {}))


def parts(of: Tokenizer, written: str, at_once: int) -> tuple[str, str]:
    """Reasoning and answer of what a model wrote, its tokens taken `at_once`."""
    ids, detokenizer, split = of.encode(written), Detokenizer(of), ThinkingSplit(start_inside=False)
    texts = [detokenizer.push(ids[at : at + at_once]) for at in range(0, len(ids), at_once)]
    pushed = [split.push(text) for text in (*texts, detokenizer.finish())] + [split.finish()]
    return "".join(one for one, _ in pushed), "".join(one for _, one in pushed)


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_analysis_is_thinking_and_final_is_the_answer(at_once: int) -> None:
    of = tokenizer(HARMONY)
    told = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>Two.\nÄ"
    assert parts(of, told + "<|return|>", at_once) == ("Let me see.", "Two.\nÄ")
    assert parts(of, "<|channel|>final<|message|>Two.<|return|>", at_once) == ("", "Two.")
    told = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=x<|message|>b<|call|>"
    assert parts(of, told, at_once) == ("a", "b")


@pytest.mark.parametrize("at_once", [1, 3, 100])
@pytest.mark.parametrize("kind", [3, 4])
def test_a_thought_of_gemma_4_is_thinking(at_once: int, kind: int) -> None:
    of = tokenizer(GEMMA, kind=kind)
    assert parts(of, "<|channel>thought\nWell\n\nnow.\n<channel|>The answer.<turn|>", at_once) == (
        "Well\n\nnow.",
        "The answer.",
    )
    assert parts(of, "<|channel>thought\n<channel|>The answer.", at_once) == ("", "The answer.")
    assert parts(of, "thought\nno channel", at_once) == ("", "thought\nno channel")


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_what_mistral_s_tokens_enclose_is_thinking(at_once: int) -> None:
    of = tokenizer(MISTRAL)
    assert parts(of, "[THINK]Well\n\nnow.[/THINK]The answer.", at_once) == ("Well\n\nnow.", "The answer.")
    assert parts(of, "The answer.", at_once) == ("", "The answer.")
    written = "{% for m in messages %}{{ '[INST]' ~ m.content ~ '[/INST]' }}{% endfor %}"
    assert True in ChatTemplate.for_tokenizer(tokenizer(MISTRAL, written)).without_effect
    told = "think like this: [THINK]...[/THINK]" + written
    assert False in ChatTemplate.for_tokenizer(tokenizer(MISTRAL, told)).without_effect


def test_what_seed_oss_s_tokens_enclose_is_thinking() -> None:
    """Its template has a budget of tokens instead of a flag."""
    written = (
        "{% for m in messages %}{{ '<seed:bos>' ~ m.role ~ '\n' ~ m.content ~ '<seed:eos>' }}{% endfor %}"
        "{{ '<seed:bos>assistant\n' }}{% if thinking_budget == 0 %}{{ '<seed:think>\nNone.</seed:think>' }}{% endif %}"
    )
    of = tokenizer(SEED, written)
    assert parts(of, "<seed:think>Well.</seed:think>The answer.", 1) == ("Well.", "The answer.")
    template = ChatTemplate.for_tokenizer(of)
    on, off = (template.render([{"role": "user", "content": "a"}], thinking=one) for one in (True, False))
    assert off == on + "<seed:think>\nNone.</seed:think>"
    assert template.without_effect == {}


def test_the_end_of_a_message_ends_no_answer_that_has_channels() -> None:
    of = tokenizer(HARMONY)
    assert {of.name(id) for id in of.stop_ids} >= {"<|return|>", "<|call|>"}
    assert of.special["<|end|>"] not in of.stop_ids
    phi = tokenizer(["<|end|>", "<|user|>"])
    assert phi.special["<|end|>"] in phi.stop_ids


@pytest.mark.parametrize("names", [HARMONY, GEMMA, MISTRAL, SEED])
def test_a_guard_closes_the_channel(names: list[str]) -> None:
    """What it puts in the model's place leads to the answer, and nothing of it is shown."""
    of = tokenizer(names)
    begun = f"{of.channels.opening if of.channels else ''}So"
    guard = TurnGuard(of, Knobs(thinking_budget=1, temperature=0), opens_thinking=False)
    ids = of.encode(begun)
    guard.see(ids)
    assert guard.intervention is not None
    closing = guard.intervention.tokens
    text = of.decode([*ids, *closing, *of.encode("Now.")])
    split = ThinkingSplit(start_inside=False)
    thinking, answer = split.push(text)
    more = split.finish()
    assert (thinking + more[0], answer + more[1]) == ("So", "Now.")


def test_levels_of_reasoning_are_those_that_the_model_knows() -> None:
    """Its template writes any word; thinking off is the lowest level, since it always reasons."""
    template = ChatTemplate.for_tokenizer(tokenizer(HARMONY, HARMONY_TEMPLATE))
    reasoning = template.reasoning
    assert reasoning.accepted == ("low", "medium", "high")
    assert reasoning.always
    assert reasoning.variables(Knobs(thinking=False)) == {"reasoning_effort": "low"}
    assert reasoning.variables(Knobs(thinking=True, reasoning_effort="high")) == {"reasoning_effort": "high"}
    assert reasoning.level(Knobs(thinking=False)) == "low"
    assert template.without_effect == {
        False: "this model always thinks before it answers: thinking off is its lowest level, low"
    }


@pytest.mark.parametrize(
    ("names", "thinking", "text", "written"),
    [
        (HARMONY, "", "Two", "<|channel|>final<|message|>Two"),
        (HARMONY, "Well", "", "<|channel|>analysis<|message|>Well"),
        (
            HARMONY, "Well", "Two <|end|>",
            "<|channel|>analysis<|message|>Well<|end|><|start|>assistant<|channel|>final<|message|>Two <|end|>",
        ),
        (GEMMA, "", "Two", "Two"),
        (GEMMA, "Well", "", "<|channel>thought\nWell"),
        (GEMMA, "Well", "Two", "<|channel>thought\nWell<channel|>Two"),
        (MISTRAL, "", "Two", "Two"),
        (MISTRAL, "Well", "Two", "[THINK]Well[/THINK]Two"),
    ],
)  # fmt: skip
def test_an_answer_goes_on_in_its_channel(names: list[str], thinking: str, text: str, written: str) -> None:
    of = tokenizer(names)
    prompt = going_on(Prompt((1, 2), "", opens_thinking=False), of, Message("assistant", text, thinking))
    assert prompt.text == written
    assert "".join(of.token_bytes(id).decode() for id in prompt.answered) == written
    typed = text.count("<|end|>")
    assert sum(id in of.special.values() for id in prompt.answered) == len([*of.segments(written)]) - typed - sum(
        isinstance(one, str) for one in of.segments(written)
    )
    # What reads the answer is where the model is.
    detokenizer, split = Detokenizer(of), ThinkingSplit(start_inside=False)
    assert split.push(detokenizer.push(prompt.answered)) == (thinking, text)
    rest = of.encode(f"{names[1]}{'<|start|>assistant<|channel|>final<|message|>' if names is HARMONY else ''}so")
    more = split.push(detokenizer.push(of.encode(" on"))), split.push(detokenizer.push(rest))
    assert more == (((" on", ""), ("", "so")) if not text else (("", " on"), ("", "so")))
