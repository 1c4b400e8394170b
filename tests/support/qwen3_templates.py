"""Chat templates that behave as those of Qwen3's generations do for messages without tools.

hybrid (April 2025): the model opens its think block itself; an empty block in the prompt asks for no thinking.
Reasoning after the last question stays, earlier reasoning is dropped. instruct and coder (July 2025): no thinking,
whatever is asked. thinking (July 2025): the prompt opens the block, whatever is asked.
"""

from __future__ import annotations

_SYSTEM = """\
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' ~ messages[0].content ~ '<|im_end|>\\n' }}
{%- endif %}
"""
_PLAIN_TURNS = """\
{%- for one in messages %}
    {%- if not (loop.first and one.role == 'system') %}
        {{- '<|im_start|>' ~ one.role ~ '\\n' ~ one.content ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
"""
_TURNS = """\
{%- set at = namespace(question=messages|length - 1, searching=true) %}
{%- for one in messages[::-1] %}
    {%- if at.searching and one.role == 'user' and not one.content.startswith('<tool_response>') %}
        {%- set at.question = messages|length - 1 - loop.index0 %}
        {%- set at.searching = false %}
    {%- endif %}
{%- endfor %}
{%- for one in messages %}
    {%- set said = one.content %}
    {%- set thought = '' %}
    {%- if one.role == 'assistant' %}
        {%- if one.reasoning_content is string %}
            {%- set thought = one.reasoning_content %}
        {%- elif '</think>' in said %}
            {%- set thought = said.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set said = said.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > at.question and (loop.last or thought) %}
            {{- '<think>\\n' ~ thought.strip('\\n') ~ '\\n</think>\\n\\n' ~ said.lstrip('\\n') }}
        {%- else %}
            {{- said }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif one.role == 'user' or not loop.first %}
        {{- '<|im_start|>' ~ one.role ~ '\\n' ~ said ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
"""
_ASK = "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n"

HYBRID = (
    _SYSTEM + _TURNS + _ASK + "' }}\n"
    "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
    "        {{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}\n{%- endif %}"
)  # fmt: skip
INSTRUCT = _SYSTEM + _PLAIN_TURNS + _ASK + "' }}\n{%- endif %}"
THINKING = _SYSTEM + _TURNS + _ASK + "<think>\\n' }}\n{%- endif %}"
CODER = (
    "{%- macro described(tool) %}\n"
    "    {{- '<function>\\n<name>' ~ tool.function.name ~ '</name>\\n</function>' }}\n"
    "{%- endmacro %}\n"
    "{%- if messages[0]['role'] == 'system' %}\n    {%- set first, rest = messages[0]['content'], messages[1:] %}\n"
    "{%- else %}\n    {%- set first, rest = none, messages %}\n{%- endif %}\n"
    "{%- if tools is iterable and tools | length > 0 %}\n"
    "    {{- '<|im_start|>system\\n' ~ (first or 'A default.') }}\n"
    "    {%- for tool in tools %}\n        {{- described(tool) }}\n    {%- endfor %}\n    {{- '<|im_end|>\\n' }}\n"
    "{%- elif first is not none %}\n    {{- '<|im_start|>system\\n' ~ first ~ '<|im_end|>\\n' }}\n{%- endif %}\n"
    "{%- for one in rest %}\n"
    "    {{- '<|im_start|>' ~ one.role ~ '\\n' ~ (one.content | string) ~ '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n" + _ASK + "' }}\n{%- endif %}"
)  # fmt: skip
TEMPLATES = {"hybrid": HYBRID, "instruct": INSTRUCT, "thinking": THINKING, "coder": CODER}
