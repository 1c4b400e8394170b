"""Chat templates that behave as the two public ones of Qwen3.8-27B do for messages without tools.

published (August 2026): three levels of reasoning, the highest by default; what a level adds comes before the user's
system prompt, in one system message. Other levels are refused. Reasoning is read from its own field alone, and stays in
the history unless `preserve_thinking` is false; then only messages after the last question keep it. packaged (in GGUF
files of unsloth): the same, and `high` stands for `xhigh`. The sentences that a level adds are stand-ins.
"""

from __future__ import annotations

ADDED = {"low": "Reasoning effort is set to low. Be short.", "xhigh": "Reasoning effort is set to xhigh. Take time."}

_ALIAS = "    {%- if effort == 'high' %}\n        {%- set effort = 'xhigh' %}\n    {%- endif %}\n"


def _template(alias: str) -> str:
    return (
        "{%- if messages|length == 0 %}\n    {{- raise_exception('There is no message.') }}\n{%- endif %}\n"
        "{%- set instruction = '' %}\n"
        "{%- if enable_thinking is not defined or enable_thinking %}\n"
        "    {%- set effort = reasoning_effort|default('xhigh') %}\n" + alias + "    {%- if effort == 'xhigh' %}\n"
        f"        {{%- set instruction = '{ADDED['xhigh']}' %}}\n"
        "    {%- elif effort == 'low' %}\n"
        f"        {{%- set instruction = '{ADDED['low']}' %}}\n"
        "    {%- elif effort != 'medium' %}\n"
        "        {{- raise_exception('No such effort: ' ~ effort) }}\n"
        "    {%- endif %}\n"
        "{%- endif %}\n"
        "{%- set system = messages[0].content|trim if messages[0].role == 'system' else '' %}\n"
        "{%- if instruction or system %}\n"
        "    {{- '<|im_start|>system\\n' ~ [instruction, system]|select|join('\\n\\n') ~ '<|im_end|>\\n' }}\n"
        "{%- endif %}\n"
        "{%- set at = namespace(question=-1) %}\n"
        "{%- for one in messages %}\n"
        "    {%- if one.role == 'user' %}\n        {%- set at.question = loop.index0 %}\n    {%- endif %}\n"
        "{%- endfor %}\n"
        "{%- if at.question < 0 %}\n    {{- raise_exception('Nobody asks.') }}\n{%- endif %}\n"
        "{%- for one in messages %}\n"
        "    {%- if one.role == 'user' %}\n"
        "        {{- '<|im_start|>user\\n' ~ one.content|trim ~ '<|im_end|>\\n' }}\n"
        "    {%- elif one.role == 'assistant' %}\n"
        "        {%- set thought = (one.reasoning_content or '')|trim %}\n"
        "        {{- '<|im_start|>assistant\\n' }}\n"
        "        {%- if preserve_thinking is not defined or preserve_thinking or loop.index0 > at.question %}\n"
        "            {{- '<think>\\n' ~ thought ~ '\\n</think>\\n\\n' }}\n"
        "        {%- endif %}\n"
        "        {{- one.content|trim ~ '<|im_end|>\\n' }}\n"
        "    {%- elif not loop.first %}\n"
        "        {{- raise_exception('A system message comes first.') }}\n"
        "    {%- endif %}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n"
        "    {{- '<|im_start|>assistant\\n<think>\\n' }}\n"
        "    {%- if enable_thinking is defined and not enable_thinking %}\n"
        "        {{- '\\n</think>\\n\\n' }}\n"
        "    {%- endif %}\n"
        "{%- endif %}"
    )


PUBLISHED, PACKAGED = _template(""), _template(_ALIAS)
TEMPLATES = {"published": PUBLISHED, "packaged": PACKAGED}
