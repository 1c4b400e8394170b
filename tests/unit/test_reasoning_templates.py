"""Templates that read a level of reasoning in different ways: what is accepted, offered and added."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dflash_core.knobs import EFFORTS, Knobs
from dflash_core.text.reasoning import Reasoning
from dflash_core.text.template import ChatTemplate

pytestmark = pytest.mark.usefixtures("templates_here")
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
ASK, SYSTEM = [{"role": "user", "content": "Hi"}], [{"role": "system", "content": "Be brief."}]
REFUSE = "{{ raise_exception('no such effort') }}"


@dataclass(frozen=True)
class Case:
    """The expected `accepted`, `levels` and additions of each accepted level for the template `source`."""

    source: str
    accepted: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    required: bool = False


LOW_MID_HIGH = ("low", "medium", "high")
CASES = {
    "default filter and a list": Case(
        "{% set e = reasoning_effort | default('medium', true) | lower %}"
        f"{{% if e not in ['low', 'medium', 'high'] %}}{REFUSE}{{% endif %}}"
        "{% if e != 'medium' %}[{{ e }}]{% endif %}" + CHAT,
        LOW_MID_HIGH, LOW_MID_HIGH, ("[low]", "", "[high]"),
    ),
    "a chain without an end": Case(
        "{% if reasoning_effort is defined %}{% if reasoning_effort == 'low' %}Be short.{% elif reasoning_effort == "
        "'high' %}Take your time.{% endif %}{% endif %}" + CHAT,
        EFFORTS, LOW_MID_HIGH, ("Be short.", "", "Take your time.", ""),
    ),
    "a chain whose end is the highest": Case(
        "{% set e = reasoning_effort or 'medium' %}{% if e == 'low' %}S.{% elif e == 'medium' %}{% else %}Long."
        "{% endif %}" + CHAT,
        EFFORTS, ("low", "medium", "xhigh"), ("S.", "", "Long.", "Long."),
    ),
    "a chain that ends in a refusal": Case(
        "{% if reasoning_effort is not defined or reasoning_effort == 'xhigh' %}XH{% elif reasoning_effort == 'low' %}L"
        f"{{% elif reasoning_effort == 'medium' %}}{{% else %}}{REFUSE}{{% endif %}}" + CHAT,
        ("low", "medium", "xhigh"), ("low", "medium", "xhigh"), ("L", "", "XH"),
    ),
    "a table with a gap": Case(
        "{% set t = {'low': 'few words', 'high': 'many words'} %}{{ t.get(reasoning_effort, '') }}" + CHAT,
        EFFORTS, LOW_MID_HIGH, ("few words", "", "many words", ""),
    ),
    "a table that fails for others": Case(
        "{% set t = {'low': 512, 'medium': 2048, 'high': 8192} %}"
        "<budget>{{ t[reasoning_effort | default('medium')] + 0 }}</budget>" + CHAT,
        LOW_MID_HIGH, LOW_MID_HIGH, ("", "2048", "8192"),
    ),
    "a macro": Case(
        "{% macro effort(level) %}{% if level in ('low', 'medium', 'xhigh') %}Effort: {{ level }}. {% else %}"
        f"{REFUSE}{{% endif %}}{{% endmacro %}}"
        "{% if reasoning_effort is defined %}{{ effort(reasoning_effort) }}{% endif %}" + CHAT,
        ("low", "medium", "xhigh"), ("low", "medium", "xhigh"),
        ("Effort: low.", "Effort: medium.", "Effort: xhigh."),
    ),
    "a loop and a namespace": Case(
        "{% set ns = namespace(text=none) %}{% for name, text in [('low', 'A'), ('medium', 'B'), ('high', 'C')] %}"
        "{% if name == reasoning_effort | default('medium') %}{% set ns.text = text %}{% endif %}{% endfor %}"
        f"{{% if ns.text is none %}}{REFUSE}{{% endif %}}{{{{ ns.text }}}}:" + CHAT,
        LOW_MID_HIGH, LOW_MID_HIGH, ("", "B", "C"),
    ),
    "the word as it is": Case(
        "{% if reasoning_effort is defined and reasoning_effort is not none %}Reasoning: {{ reasoning_effort | upper }}"
        "{% endif %}" + CHAT,
        EFFORTS, EFFORTS, tuple(f"Reasoning: {level.upper()}" for level in EFFORTS),
    ),
    "without a default": Case(
        f"{{% if reasoning_effort not in ['low', 'high'] %}}{REFUSE}{{% endif %}}{{{{ reasoning_effort }}}}:" + CHAT,
        ("low", "high"), ("low", "high"), ("", "high"), required=True,
    ),
    "inside the system message alone": Case(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'system' and reasoning_effort is defined "
        "and reasoning_effort != 'medium' %} ({{ reasoning_effort }}){% endif %}{% endfor %}",
        EFFORTS, EFFORTS, ("(low)", "", "(high)", "(xhigh)"),
    ),
    "without system messages": Case(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ 'short ' if reasoning_effort == 'low' else '' }}" + CHAT,
        EFFORTS, ("low", "medium"), ("short", "", "", ""),
    ),
    "behind the question": Case(
        CHAT + "{% if add_generation_prompt %}<assistant>{{ {'low': '<quick>', 'medium': '<think>', 'xhigh': "
        "'<think hard>'}[reasoning_effort | default('medium')] ~ '' if reasoning_effort | default('medium') in "
        "['low', 'medium', 'xhigh'] else raise_exception('no') }}{% endif %}",
        ("low", "medium", "xhigh"), ("low", "medium", "xhigh"), ("", "think", "think hard"),
    ),
    "two that are one": Case(
        "{% set e = {'low': 'medium', 'high': 'xhigh'}.get(reasoning_effort, reasoning_effort) | default('medium') %}"
        f"{{% if e not in ('medium', 'xhigh') %}}{REFUSE}{{% endif %}}{{{{ '+' if e == 'xhigh' }}}}" + CHAT,
        EFFORTS, ("medium", "xhigh"), ("", "", "+", "+"),
    ),
    "only where thinking is on": Case(
        "{% if enable_thinking and reasoning_effort in ['low', 'medium', 'xhigh'] %}{{ '*' * (reasoning_effort | "
        "length) }}{% elif enable_thinking and reasoning_effort %}" + REFUSE + "{% endif %}" + CHAT,
        ("low", "medium", "xhigh"), ("low", "medium", "xhigh"), ("***", "******", "*****"),
    ),
    "named and not read": Case("{# reasoning_effort #}{% set x = reasoning_effort | default('low') %}" + CHAT),
    "read for tools alone": Case("{% if tools and reasoning_effort == 'low' %}x{% endif %}" + CHAT),
    "none of ours": Case(
        f"{{% if reasoning_effort is defined and reasoning_effort not in ['none'] %}}{REFUSE}{{% endif %}}" + CHAT
    ),
    "nothing at all": Case(f"{{% if reasoning_effort != 'max' %}}{REFUSE}{{% endif %}}" + CHAT),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_template_takes(name: str) -> None:
    case, template = CASES[name], ChatTemplate(CASES[name].source)
    found = template.reasoning
    assert found == Reasoning(case.accepted, case.levels, case.added, required=case.required)
    for level in found.levels:  # what is offered renders
        knobs = Knobs().replace(**found.changes(level))
        variables = found.variables(knobs)
        assert variables == {"reasoning_effort": level}
        messages = SYSTEM + ASK if name == "inside the system message alone" else ASK
        assert found.adds(level) in template.render(messages, thinking=True, variables=variables)
    for thinking in (True, False):  # and so do the defaults
        if name != "nothing at all":
            knobs = Knobs(thinking=thinking)
            assert template.render(ASK, thinking=thinking, variables=found.variables(knobs))


KEPT = "{% for m in messages %}<{{ m.role }}>PART{{ m.content }}{% endfor %}"
PRESERVING = {
    "by default": ("{{ m.reasoning_content if preserve_thinking | default(true) }}", True),
    "when asked": ("{{ m.reasoning_content if preserve_thinking is defined and preserve_thinking }}", True),
    "unless told": ("{% if not (preserve_thinking is defined and preserve_thinking == false) %}"
                    "{{ m.reasoning_content }}{% endif %}", True),
    "always": ("{{ m.reasoning_content }}", False),
    "behind the last question": ("{% if preserve_thinking or loop.last %}{{ m.reasoning_content }}{% endif %}", True),
}  # fmt: skip


@pytest.mark.parametrize("name", PRESERVING)
def test_what_a_template_keeps(name: str) -> None:
    part, preserves = PRESERVING[name]
    assert ChatTemplate(KEPT.replace("PART", part)).reasoning.preserves == preserves


def test_a_template_that_needs_a_level_keeps_too() -> None:
    needs = f"{{% if reasoning_effort not in ['low', 'medium'] %}}{REFUSE}{{% endif %}}"
    found = ChatTemplate(needs + KEPT.replace("PART", PRESERVING["when asked"][0])).reasoning
    assert (found.levels, found.required, found.preserves) == (("medium",), True, True)
