from __future__ import annotations

import datetime
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_data import QWEN_TEMPLATE, metadata, qwen, tiny

from dflash_core.errors import TemplateError
from dflash_core.text import render_process
from dflash_core.text.reasoning import Reasoning
from dflash_core.text.sandbox import Compiled
from dflash_core.text.template import ChatTemplate
from dflash_core.text.tokenizer import Tokenizer

HI = [{"role": "user", "content": "Hi"}]


def render(source: str) -> str:
    return ChatTemplate(source).render(HI, thinking=False)


def written(source: str, **names: str) -> str:
    """The same in this process, in which a template that ends is as safe."""
    return Compiled(source, names).render(HI, thinking=False, generate=True, variables={}, tools=())


def test_generation_prompt_with_and_without_thinking() -> None:
    start = "<|im_start|>user\nHi<|im_end|>\n"
    assert qwen().render(HI, thinking=True) == start + "<|im_start|>assistant\n<think>\n"
    assert qwen().render(HI, thinking=False) == start + "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert qwen().render(HI, thinking=True, generate=False) == start


def test_history_is_trimmed_and_loses_its_reasoning() -> None:
    messages = [
        {"role": "system", "content": " Be brief.\n"},
        {"role": "user", "content": "\n 1? "},
        {"role": "assistant", "content": "One. ", "reasoning_content": "a digit"},
        {"role": "user", "content": "2?"},
    ]
    assert qwen().render(messages, thinking=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1?<|im_end|>\n"
        "<|im_start|>assistant\nOne.<|im_end|>\n<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.text(max_size=12)},
        optional={"reasoning_content": st.text(max_size=8)},
    ),
    max_size=5,
)


@settings(deadline=None, max_examples=150)
@given(MESSAGES, st.booleans(), st.booleans())
def test_rendering_is_that_of_transformers(messages: list[dict[str, str]], thinking: bool, generate: bool) -> None:
    import transformers

    render = transformers.utils.chat_template_utils.render_jinja_template
    try:
        expected, _ = render(
            [messages], chat_template=QWEN_TEMPLATE, add_generation_prompt=generate, enable_thinking=thinking
        )
    except Exception:
        with pytest.raises(TemplateError):
            qwen().render(messages, thinking=thinking, generate=generate)
        return
    assert [qwen().render(messages, thinking=thinking, generate=generate)] == expected


def test_a_template_may_not_change_the_messages() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(TemplateError, match="unsafe"):
        ChatTemplate("{{ messages.append(1) }}").render(messages, thinking=False)
    assert messages == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("source", [None, "", " \n"])
def test_a_file_without_a_template_gets_chatml_and_says_so(source: str | None) -> None:
    template = ChatTemplate.for_tokenizer(Tokenizer.from_metadata(metadata() | {"tokenizer.chat_template": source}))
    assert template.notice is not None
    assert "ChatML" in template.notice
    messages = [{"role": "system", "content": "S"}, *HI, {"role": "assistant", "content": "Ho"}]
    text = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n"
    assert template.render(messages, thinking=False, generate=False) == text
    assert template.render(messages, thinking=True) == text + "<|im_start|>assistant\n"
    assert qwen().notice is None


def test_what_templates_in_the_wild_count_on() -> None:
    assert written("{% for k, v in {'a': 1}|items %}{{ k }}{{ v }}{% endfor %}") == "a1"
    assert written("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert written("""{{ {'a': '<é&"'}|tojson }}""") == '{"a": "<é&\\""}'
    assert written("{{ ['é']|tojson(ensure_ascii=true) }}") == '["\\u00e9"]'
    assert written("{{ ['é']|tojson(ensure_ascii=False) }}") == '["é"]'
    assert written("{{ {'a': 1}|tojson(indent=2) }}") == '{\n  "a": 1\n}'
    assert written("{{ strftime_now('%Y') }}") == str(datetime.datetime.now().year)
    assert written("{% generation %}x{% endgeneration %}{{ messages[0].content }}") == "xHi"
    assert written("  {% if true %}\n  a\n  {% endif %}\nb") == "  a\nb"
    assert written("{{ bos_token }}{{ nothing }}{{ tools is none }}", bos_token="<s>") == "<s>True"
    assert written("{% for m in messages %}{{ loop.length }}{{ loop.last }}{{ loop.previtem }}{% endfor %}") == "1True"
    assert written("{{ 'since 20240101: %s' % 'x' }}{{ '{} 20240101'.format(1) }}") == "since 20240101: x1 20240101"
    assert written("{% macro m(a, obj=2) %}{{ a }}{{ obj }}{% endmacro %}{{ m(1, obj=3) }}") == "13"


def test_token_names_reach_the_template() -> None:
    keys = metadata(bos_token_id=762) | {"tokenizer.chat_template": "{{ bos_token }}{{ eos_token }}"}
    template = ChatTemplate.for_tokenizer(Tokenizer.from_metadata(keys))
    assert template.render(HI, thinking=False) == "<|endoftext|><|im_end|>"


def test_a_refusal_has_the_words_and_the_line_of_the_template() -> None:
    with pytest.raises(TemplateError) as caught:
        qwen().render([{"role": "assistant", "content": "a"}], thinking=False)
    assert str(caught.value) == "the chat template failed, line 79: No user query found in messages."
    with pytest.raises(TemplateError, match="failed, line 3: no, not so"):
        render("\n\n{{ raise_exception('no,\nnot so') }}")
    with pytest.raises(TemplateError, match="does not compile, line 2: "):
        render("\n{% if %}")
    with pytest.raises(TemplateError, match=r"line 1: 'nothing' is undefined"):
        render("{{ nothing.x }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['sys'] }}",
        "{{ self._TemplateReference__context }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ (messages|map(attribute='__class__')|first).x }}",
        "{{ environment.filters }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages.clear() }}",
    ],
)
def test_no_way_out_of_the_sandbox(source: str) -> None:
    try:
        shown = written(source)
    except TemplateError:
        return
    assert shown == ""  # Jinja shows an attribute that it does not give out as nothing


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ range(99999)|map('string')|join|length }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in [[1]] recursive %}{{ loop([i]) }}{% endfor %}",
        "{{ range(10**9) }}",
        "{{ 'a' * 10**12 }}",
        "{{ 10**12 * 'a' }}",
        "{{ [1] * 10**12 }}",
        "{{ 9**(9**9) }}",
        "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x|replace('a', 'aa') %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x.replace('a', 'aa') %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d'|format(1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 999999999) }}",
        "{{ 'a'|center(999999999) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a\na'|indent(999999999) }}",
        "{{ [1]|tojson(indent=999999999) }}",
        "{{ lipsum(n=999999) }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ 1 }}" * 200_000,
    ],
)
def test_a_template_that_runs_away_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_process, "SECONDS", 0.2)
    start = time.monotonic()
    with pytest.raises(TemplateError) as caught:
        render(source)
    assert time.monotonic() - start < 300  # on a loaded machine a worker takes its time to start; a runaway takes hours
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_template_that_runs_away_is_asked_once_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load would wait a dozen times for its limit otherwise."""
    template = ChatTemplate("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    monkeypatch.setattr(render_process, "SECONDS", 0.2)
    asked = list[object]()
    whole = template._renderer.render

    def counted(*args: Any, **named: Any) -> str:
        asked.append(args)
        return whole(*args, **named)

    monkeypatch.setattr(template._renderer, "render", counted)
    assert template.reasoning == Reasoning()
    assert len(asked) == 1


def test_a_long_conversation_renders_well_within_the_limits() -> None:
    messages = [{"role": role, "content": "word " * 1000} for _ in range(500) for role in ("user", "assistant")]

    def seconds() -> float:
        start = time.thread_time()  # what others have of the processor does not count
        qwen().render(messages, thinking=False)
        return time.thread_time() - start

    assert any(seconds() < render_process.SECONDS / 2 for _ in range(5))


def test_the_golden_template_is_the_published_one() -> None:
    assert tiny().chat_template == QWEN_TEMPLATE
