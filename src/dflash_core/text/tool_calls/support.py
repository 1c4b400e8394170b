"""What a chat template does with tools: found by rendering it, not by its name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from dflash_core.errors import TemplateError
from dflash_core.prefix import common_prefix
from dflash_core.text.template_values import JSON, NO_TOOLS, Messages, Tools
from dflash_core.text.tool_calls.forms import FORMS, HERMES, Form
from dflash_core.text.tool_calls.parts import CallArguments, CallStart
from dflash_core.text.tool_calls.schemas import Schemas

Render = Callable[[Messages, Tools, bool], str]
"""Renders messages with tools; the flag opens an answer."""
ResultRole = Literal["tool", "ipython", "function", "user"]

# Words that no template writes by itself.
_NAME, _KEY, _VALUE, _RESULT = "kestrel_probe", "plinth", "quince basalt", "marram osprey"
_CALL: Mapping[str, JSON] = {
    "type": "function",
    "id": "call_a",
    "function": {"name": _NAME, "arguments": {_KEY: _VALUE}},
}
_TOOLS: Tools = [
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "a",
            "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}, "required": [_KEY]},
        },
    }
]
_ASKED: Mapping[str, JSON] = {"role": "user", "content": "a"}
_SAID: Mapping[str, JSON] = {"role": "assistant", "content": "a", "reasoning_content": ""}


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """`renders`: whether the template writes tools into the prompt; otherwise they are described in the system message
    (`fitting`). `form`: how the model writes calls, None where that is not known: its calls stay text. `result_role`:
    the role of a tool's result; "user" where the template knows none.
    `several`: whether a message may have several calls. `system`: whether there may be a system message, `late_system`:
    whether there may be one later than first. `consecutive`: whether several user messages may follow each other."""

    renders: bool = False
    form: Form | None = HERMES
    result_role: ResultRole = "user"
    several: bool = False
    system: bool = False
    late_system: bool = False
    consecutive: bool = False

    @property
    def note(self) -> str | None:
        """What a user of tools should know; None for nothing."""
        if not self.renders:
            return "the model's chat template knows no tools: they are described in a message"
        if self.form is None:
            return "the form of this model's tool calls is not known: they stay text"
        return None


def tool_support(source: str, render: Render) -> ToolSupport:
    """What the template `source`, which `render` renders, does with tools, calls and results."""

    def rendered(*messages: Mapping[str, JSON], tools: Tools = NO_TOOLS, opens: bool = False) -> str:
        try:
            return render(messages, tools, opens)
        except TemplateError:
            return ""

    late = rendered(_ASKED, _SAID, {"role": "system", "content": _VALUE}, _ASKED)
    follows = rendered(_ASKED, {"role": "user", "content": _VALUE})
    system = rendered({"role": "system", "content": _VALUE}, _ASKED)
    others = ToolSupport(system=_VALUE in system, late_system=_VALUE in late, consecutive=_VALUE in follows)
    if "tools" not in source or _NAME not in rendered(_ASKED, tools=_TOOLS):
        return others
    asked = rendered(_ASKED, tools=_TOOLS, opens=True)
    call: Mapping[str, JSON] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": [_CALL]}
    result = {"content": _RESULT, "tool_call_id": "call_a", "name": _NAME}
    role: ResultRole = "user"
    for role in get_args(ResultRole):
        if _RESULT in (answered := rendered(_ASKED, call, {"role": role, **result}, tools=_TOOLS)):
            break
    twice = {**call, "tool_calls": [_CALL, {**_CALL, "id": "call_b"}]}
    several = rendered(_ASKED, twice, {"role": role, **result}, {"role": role, **result, "tool_call_id": "call_b"})
    at = common_prefix(asked, answered)
    before = answered[:at]
    if before.rfind("<") > before.rfind(">"):  # within a tag: <think> opens the answer, <tool_call> is in the history
        at = before.rfind("<")
    written = answered[at:]
    form = next((one for one in FORMS if _reads(one, written)), None)
    return replace(others, renders=True, form=form, result_role=role, several=several.count(_VALUE) == 2)


def _reads(form: Form, written: str) -> bool:
    """Whether a parser of `form` finds the call that a template has `written`."""
    parser = form.parser(Schemas(_TOOLS))
    parts = [*parser.push(written), *parser.finish()]
    names = [part.name for part in parts if isinstance(part, CallStart)]
    arguments = "".join(part.text for part in parts if isinstance(part, CallArguments))
    try:
        return names == [_NAME] and json.loads(arguments) == {_KEY: _VALUE}
    except ValueError:
        return False
