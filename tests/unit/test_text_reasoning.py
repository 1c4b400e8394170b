"""Levels of reasoning, and histories that keep it: what templates are found to support, and what they then get."""

from __future__ import annotations

from functools import cache

import pytest
from fake_engine import FakeEngine
from text_data import QWEN_TEMPLATE, tiny

from dflash_core.conversation import Conversation
from dflash_core.errors import KnobError
from dflash_core.knobs import EFFORTS, Knobs, parse_settings
from dflash_core.limits import Limits
from dflash_core.messages import Message
from dflash_core.text.reasoning import Reasoning
from dflash_core.text.template import ChatTemplate
from support import qwen3_templates, qwen38_templates
from support.qwen38_templates import ADDED, PACKAGED, PUBLISHED

USER = {"role": "user", "content": " Hi\n"}
SYSTEM = {"role": "system", "content": "Be Finn."}
ASKED = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"
LEVELS = ("low", "medium", "xhigh")
# Reads the level, and is given nothing else: it writes it down as it is.
ANY_LEVEL = "{{ messages[0].content }}{% if reasoning_effort is defined %} {{ reasoning_effort }}{% endif %}"
# The generation between: what a history keeps has to be asked for.
KEEPS_IF_ASKED = (
    "{% for m in messages %}{% if preserve_thinking is defined and preserve_thinking %}{{ m.reasoning_content }}"
    "{% endif %}{{ m.content }}{% endfor %}"
)


@cache
def template_of(source: str | None) -> ChatTemplate:
    """Each template is made once, as an unknown template has a process of its own."""
    return ChatTemplate(source)


@pytest.fixture(params=qwen38_templates.TEMPLATES)
def template(request: pytest.FixtureRequest) -> ChatTemplate:
    return template_of(qwen38_templates.TEMPLATES[request.param])


def given(template: ChatTemplate, **settings: str) -> dict[str, str | bool]:
    return dict(template.reasoning.variables(Knobs(thinking=True).replace(**parse_settings(settings))))


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_level_adds(template: ChatTemplate, level: str) -> None:
    """Golden renderings. The level first, then the user's system prompt, in one message; medium adds nothing."""
    variables = given(template, reasoning_effort=level)
    added = ADDED.get(level, "")
    alone = f"<|im_start|>system\n{added}<|im_end|>\n" if added else ""
    assert template.render([USER], thinking=True, variables=variables) == alone + ASKED
    both = f"<|im_start|>system\n{added}{chr(10) * 2 if added else ''}Be Finn.<|im_end|>\n"
    assert template.render([SYSTEM, USER], thinking=True, variables=variables) == both + ASKED
    assert template.render([USER], thinking=False, variables=variables) == ASKED + "\n</think>\n\n"


def test_what_a_history_keeps(template: ChatTemplate) -> None:
    said = {"role": "assistant", "content": "One.", "reasoning_content": "a digit"}
    begin = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    kept, gone = (f"{begin}{block}One.<|im_end|>\n{ASKED}" for block in ("<think>\na digit\n</think>\n\n", ""))
    found = {
        word: template.render([USER, said, USER], thinking=True, variables=given(template, preserve_thinking=word))
        for word in ("auto", "on", "off", "true", "false")
    }
    assert found == {"auto": kept, "on": kept, "true": kept, "off": gone, "false": gone}
    assert template.reasoning.preserves


def test_the_levels_are_those_that_the_template_takes() -> None:
    published, packaged = (template_of(source).reasoning for source in (PUBLISHED, PACKAGED))
    low, high = ADDED["low"], ADDED["xhigh"]
    assert published == Reasoning(LEVELS, LEVELS, (low, "", high), preserves=True)
    packed = Reasoning(EFFORTS, LEVELS, (low, "", high, high), preserves=True)
    assert packaged == packed, "high is another's name"
    assert [published.adds(level) for level in ("off", "on", *LEVELS)] == ["", "", low, "", high]
    assert template_of(ANY_LEVEL).reasoning.levels == EFFORTS
    assert template_of(KEEPS_IF_ASKED).reasoning == Reasoning(preserves=True)


@pytest.mark.parametrize("source", [None, QWEN_TEMPLATE, *qwen3_templates.TEMPLATES.values()])
def test_older_templates_have_on_and_off(source: str | None) -> None:
    template = template_of(source)
    assert template.reasoning == Reasoning()
    assert given(template, reasoning_effort="low", preserve_thinking="on") == {}


@pytest.mark.parametrize("source", ["{{ raise_exception('no') }}", "{{ messages[0].content.nothing.x }}"])
def test_a_template_that_fails_reads_nothing(source: str) -> None:
    assert template_of(source).reasoning == Reasoning()


def test_a_level_that_the_template_refuses() -> None:
    said = r"^reasoning_effort=high: the model's template refuses it; expected low, medium, xhigh$"
    limits = Limits(None, 512, reasoning=template_of(PUBLISHED).reasoning)
    high = Knobs(thinking=True, reasoning_effort="high")
    for refused in (
        lambda: limits.check(high, ["reasoning_effort"]),
        lambda: limits.check_possible(high, ["reasoning_effort"]),
        lambda: conversation(PUBLISHED).ask("Hi", high),
    ):
        with pytest.raises(KnobError, match=said):
            refused()
    Limits(None, 512, reasoning=template_of(PACKAGED).reasoning).check(high, ["reasoning_effort"])
    conversation(PUBLISHED).ask("Hi", high.replace(thinking=False))  # no level is asked for then
    with pytest.raises(KnobError, match=r"^reasoning_effort=hard: expected low, medium, high, xhigh$"):
        parse_settings({"reasoning_effort": "hard"})


def test_a_default_that_the_template_refuses_is_left_to_it() -> None:
    source = (
        "{% if reasoning_effort is defined and reasoning_effort not in ['low', 'high'] %}{{ raise_exception('no') }}"
    )
    template = template_of(source + "{% endif %}{{ messages[0].content }}{{ reasoning_effort }}")
    assert template.reasoning.levels == ("low", "high")
    assert given(template) == {}
    assert template.reasoning.level(Knobs(thinking=True)) == "on"


def test_what_it_does_not_read_is_refused_by_name_or_kept_for_another() -> None:
    limits = Limits(None, 512, reasoning=Reasoning())
    low = Knobs(reasoning_effort="low", preserve_thinking="off")
    for name in ("reasoning_effort", "preserve_thinking"):
        with pytest.raises(KnobError, match=f"^{name} has no effect: the model's template does not read it$"):
            limits.check(low, [name])
    limits.check_possible(low, ["reasoning_effort", "preserve_thinking"])
    Limits(None, 512).check(low, ["reasoning_effort", "preserve_thinking"])


def conversation(source: str, *answers: str) -> Conversation:
    return Conversation(FakeEngine(*(answers or ("why\n</think>\n\nHello.",))), tiny(), template_of(source))


def test_thinking_and_answer_stay_apart_with_a_history_that_keeps_it() -> None:
    talk = conversation(PUBLISHED, "why\n</think>\n\nHello.", "so\n</think>\n\nAgain </think>.", "off it goes")
    for level, question, parts in (
        ("low", "Hi", ("why", "Hello.")),
        ("xhigh", "And?", ("so", "Again </think>.")),
        ("off", "Last", ("", "off it goes")),
    ):
        turn = talk.ask(question, Knobs().replace(**talk.template.reasoning.changes(level)))
        list(turn)
        assert (turn.thinking, turn.text) == parts
        assert turn.prompt.opens_thinking == (level != "off")
        assert turn.prompt.text.count("Reasoning effort is set to") == (level != "off")
    assert "<think>\nwhy\n</think>\n\nHello.<|im_end|>" in turn.prompt.text
    assert "<think>\nso\n</think>\n\nAgain </think>.<|im_end|>" in turn.prompt.text
    answers = [message for message in talk.messages if message.role == "assistant"]
    assert [message.thinking for message in answers] == ["why", "so", ""]
    assert [message.report.effort for message in answers if message.report] == ["low", "xhigh", ""]


def test_levels_and_knobs_say_the_same() -> None:
    reasoning = template_of(PUBLISHED).reasoning
    for level in ("off", *LEVELS):
        assert reasoning.level(Knobs().replace(**reasoning.changes(level))) == level
    assert Reasoning().level(Knobs(thinking=True)) == "on"
    assert Reasoning().changes("on") == {"thinking": True}


def test_the_next_prompt_begins_as_this_one() -> None:
    """If the history keeps its reasoning, all of the prompt but the opening of the answer stays."""
    talk = conversation(PUBLISHED)
    talk.set_messages([Message("user", "1?"), Message("assistant", "One.", "a digit")])
    turn = talk.ask("2?", Knobs(thinking=True, reasoning_effort="low"))
    assert len(turn.prompt.ids) - turn.prompt.stable <= len(tiny().encode("<|im_start|>assistant\n<think>\n"))


def test_the_preview_is_the_prompt() -> None:
    talk = conversation(PACKAGED)
    knobs = Knobs(thinking=True, reasoning_effort="low")
    shown = talk.preview("2?", knobs)
    assert shown == talk.ask("2?", knobs).prompt.text
    assert shown.startswith(f"<|im_start|>system\n{ADDED['low']}<|im_end|>")
    assert len(talk.messages) == 1
