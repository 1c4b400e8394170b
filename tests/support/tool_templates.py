"""Chat templates that treat tools, calls and results as those of the families do, written for the tests: short."""

from __future__ import annotations

_CHATML_TURN = "{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}"
_CHATML_ASK = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
_RESULT = (
    "{% if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\\n<tool_response>\\n' ~ m.content ~ '\\n</tool_response>' }}"
    "{% if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}"
)

HERMES = (
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% if tools %}{{ '<|im_start|>system\\n' ~ system ~ '\\n<tools>' }}"
    "{% for tool in tools %}{{ '\\n' ~ tool | tojson }}{% endfor %}{{ '\\n</tools><|im_end|>\\n' }}"
    "{% elif system %}{{ '<|im_start|>system\\n' ~ system ~ '<|im_end|>\\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}" + _RESULT + "{% elif m.role == 'assistant' %}"
    "{{ '<|im_start|>assistant\\n' ~ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '\\n' if m.content or not loop.first else '' }}{{ '<tool_call>\\n{\"name\": ' }}{{ c.function.name | tojson }}"
    "{{ ', \"arguments\": ' }}{{ c.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% elif m.role == 'user' or not loop.first %}" + _CHATML_TURN + "{% endif %}{% endfor %}"
    + _CHATML_ASK
)  # fmt: skip

CODER = (
    "{% if tools %}{{ '<|im_start|>system\\n<tools>' }}{% for tool in tools %}{% set f = tool.function %}"
    "{{ '\\n<function>\\n<name>' ~ f.name ~ '</name>\\n<parameters>' }}"
    "{% for key, value in f.parameters.properties | items %}"
    "{{ '\\n<parameter>' ~ key ~ ' ' ~ value.type ~ ' ' ~ value.description ~ '</parameter>' }}{% endfor %}"
    "{{ '\\n</parameters>\\n</function>' }}{% endfor %}{{ '\\n</tools><|im_end|>\\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}" + _RESULT + "{% elif m.role == 'assistant' %}"
    "{{ '<|im_start|>assistant\\n' ~ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '\\n<tool_call>\\n<function=' ~ c.function.name ~ '>\\n' }}"
    "{% for key, value in c.function.arguments | items %}"
    "{{ '<parameter=' ~ key ~ '>\\n' ~ value ~ '\\n</parameter>\\n' }}{% endfor %}"
    "{{ '</function>\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% else %}" + _CHATML_TURN + "{% endif %}{% endfor %}" + _CHATML_ASK
)  # fmt: skip

GEMMA = (
    "{%- macro written(value) -%}"
    "{%- if value is string -%}{{ '<|\"|>' ~ value ~ '<|\"|>' }}"
    "{%- elif value is mapping -%}{{ '{' }}{%- for k, v in value | items -%}{{ k ~ ':' }}{{ written(v) }}"
    "{{ ',' if not loop.last else '' }}{%- endfor -%}{{ '}' }}"
    "{%- elif value is iterable -%}{{ '[' }}{%- for v in value -%}{{ written(v) }}{{ ',' if not loop.last else '' }}"
    "{%- endfor -%}{{ ']' }}{%- else -%}{{ value | tojson }}{%- endif -%}{%- endmacro -%}"
    "{{ bos_token }}{% if tools %}{{ '<|turn>system\\n' }}{% for tool in tools %}"
    "{{ '<|tool>declaration:' ~ tool.function.name ~ written(tool.function.parameters) ~ '<tool|>' }}{% endfor %}"
    "{{ '<turn|>\\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ '<|tool_response>response:' ~ m.name ~ written({'result': m.content}) ~ '<tool_response|>' }}"
    "{% else %}{{ '<|turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\\n' ~ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    "{{ '<|tool_call>call:' ~ c.function.name ~ written(c.function.arguments) ~ '<tool_call|>' }}{% endfor %}"
    "{{ '<turn|>\\n' if not m.tool_calls else '' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>model\\n' }}{% endif %}"
)  # fmt: skip

LLAMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call a message') }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n{\"name\": ' }}"
    "{{ f.name | tojson }}{{ ', \"parameters\": ' }}{{ f.arguments | tojson }}{{ '}<|eot_id|>' }}"
    "{% elif m.role == 'ipython' %}"
    "{{ '<|start_header_id|>ipython<|end_header_id|>\\n\\n' ~ m.content ~ '<|eot_id|>' }}"
    "{% elif m.role == 'tool' %}{{ raise_exception('no tools') }}"
    "{% else %}{{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\\n\\n' }}"
    "{% if tools and m.role == 'user' and loop.first %}{% for tool in tools %}{{ tool | tojson(indent=4) ~ '\\n\\n' }}"
    "{% endfor %}{% endif %}{{ m.content | trim ~ '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)  # fmt: skip

HARMONY = (
    "{{ '<|start|>system<|message|>a<|end|>' }}{% if tools %}{{ '<|start|>developer<|message|>namespace functions {' }}"
    "{% for tool in tools %}{{ '\\ntype ' ~ tool.function.name ~ ' = (_: any) => any;' }}{% endfor %}"
    "{{ '\\n}<|end|>' }}{% endif %}{% set last = namespace(name='') %}{% for m in messages %}"
    "{% if m.tool_calls %}{% set last.name = m.tool_calls[0].function.name %}"
    "{{ '<|start|>assistant to=functions.' ~ last.name ~ '<|channel|>commentary json<|message|>' }}"
    "{{ m.tool_calls[0].function.arguments | tojson ~ '<|call|>' }}"
    "{% elif m.role == 'tool' %}"
    "{{ '<|start|>functions.' ~ last.name ~ ' to=assistant<|channel|>commentary<|message|>' ~ m.content ~ '<|end|>' }}"
    "{% elif m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' ~ m.content ~ '<|end|>' }}"
    "{% else %}{{ '<|start|>' ~ m.role ~ '<|message|>' ~ m.content ~ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)  # fmt: skip

_MISTRAL_TURN = (
    "{% if m.role == 'user' %}{{ '[INST]' ~ m.content ~ '[/INST]' }}"
    "{% elif m.role == 'system' %}{{ '[SYSTEM_PROMPT]' ~ m.content ~ '[/SYSTEM_PROMPT]' }}"
)
MISTRAL = (
    "{{ bos_token }}{% if tools %}{{ '[AVAILABLE_TOOLS]' ~ tools | tojson ~ '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{% for m in messages %}" + _MISTRAL_TURN + "{% elif m.role == 'tool' %}"
    "{{ '[TOOL_RESULTS]' ~ m.content ~ '[/TOOL_RESULTS]' }}{% else %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '[TOOL_CALLS]' ~ c.function.name ~ '[ARGS]' ~ c.function.arguments | tojson }}{% endfor %}"
    "{{ '<|eot_id|>' }}{% endif %}{% endfor %}"
)
# Older ones write an array of objects, and refuse ids of another length, and answers that are empty.
NEMO = (
    "{% if tools %}{{ '[AVAILABLE_TOOLS]' ~ tools | tojson ~ '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' and not loop.first and loop.previtem.role not in ('system', 'assistant') %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% for id in [m.tool_call_id] if m.role == 'tool' %}{% if id | length != 9 %}"
    "{{ raise_exception('nine characters') }}{% endif %}{% endfor %}" + _MISTRAL_TURN + "{% elif m.role == 'tool' %}"
    "{{ '[TOOL_RESULTS]{\"content\": ' ~ m.content ~ ', \"call_id\": \"' ~ m.tool_call_id ~ '\"}[/TOOL_RESULTS]' }}"
    "{% elif m.tool_calls %}{{ '[TOOL_CALLS][' }}{% for c in m.tool_calls %}{% if c.id | length != 9 %}"
    "{{ raise_exception('nine characters') }}{% endif %}{{ (c.function | tojson)[:-1] }}"
    "{{ ', \"id\": \"' ~ c.id ~ '\"}' }}"
    "{{ ', ' if not loop.last else ']<|im_end|>' }}{% endfor %}"
    "{% elif m.content %}{{ m.content ~ '<|im_end|>' }}{% else %}{{ raise_exception('no content') }}{% endif %}"
    "{% endfor %}"
)

# A template that prints the arguments as Python does.
PRINTS = (
    "{% for tool in tools or [] %}{{ tool }}{% endfor %}{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}{% endfor %}"
)
TEMPLATES = {"hermes": HERMES, "coder": CODER, "gemma": GEMMA, "llama": LLAMA, "harmony": HARMONY, "mistral": MISTRAL}
