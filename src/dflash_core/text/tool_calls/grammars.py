"""Grammars of tool calls: an answer that must call a tool, or whose calls must follow their schemas."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_core.errors import GrammarError
from dflash_core.text.template_values import Tools
from dflash_core.text.tool_calls.forms import Form
from dflash_core.text.tool_calls.lark import Lark, either
from dflash_core.text.tool_calls.schemas import mapping


def tool_grammar(
    form: Form | None,
    tools: Tools,
    special: Mapping[str, int],
    *,
    name: str = "",
    several: bool = True,
    free: bool = False,
) -> str:
    """The grammar, in Lark's syntax, of an answer that calls one of `tools`, `several` times if it wants. `name`: the
    only one that it may call. `free`: it may also write text, and need not call any. `special`: the special tokens of
    the vocabulary.

    Raises GrammarError where the form of calls is not known, `name` is no tool, or free text could hold a call.
    """
    if form is None:
        raise GrammarError("the form of this model's tool calls is not known, so none can be required")
    functions = [mapping(tool.get("function")) for tool in tools]
    offered = [one for one in functions if not name or one.get("name") == name]
    if not offered:
        raise GrammarError(f"no tool has the name {name!r}" if name else "a tool call without tools")
    if free and form.begins not in special:
        raise GrammarError(f"calls of the form {form.name} may begin anywhere in a text, so they cannot be constrained")
    lark = Lark(special)
    call = lark.rule(either([form.grammar(lark, str(one["name"]), mapping(one.get("parameters"))) for one in offered]))
    if free:
        return lark.source(f"{lark.text()} ({call} {lark.text()})*")
    return lark.source(f'{call} ("\\n" {call})*' if several and form.several else call)
