"""The forms in which models write calls, a row each, and the grammar of an answer that must call, or whose calls must
follow their schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from dflash_core.errors import GrammarError
from dflash_core.text.template_values import JSON, Tools
from dflash_core.text.tool_calls import gemma, harmony, json_call, llama, mistral, xml
from dflash_core.text.tool_calls.lark import Lark, either
from dflash_core.text.tool_calls.parser import Parser
from dflash_core.text.tool_calls.schemas import Schemas, mapping

_TAGS = frozenset({json_call.HermesParser.open, json_call.HermesParser.close})
_RESPONSE = ("<tool_response>",)


@dataclass(frozen=True, slots=True)
class Form:
    """How calls are written. `parser`: makes what reads one answer. `grammar`: a call of a tool by its parameters'
    schema. `begins`: the token that a call begins with, if it is one. `shown`: special tokens that the parser needs as
    text, although they are hidden in chats. `stops`: tokens with which a model that does not stop after its calls goes
    on to invent their results; they end an answer where there are tools. `several`: whether an answer may have several
    calls.
    """

    name: str
    parser: Callable[[Schemas], Parser]
    grammar: Callable[[Lark, str, Mapping[str, JSON]], str]
    begins: str = ""
    shown: frozenset[str] = frozenset()
    stops: tuple[str, ...] = ()
    several: bool = True


FORMS = (
    Form("hermes", json_call.HermesParser, json_call.grammar, json_call.HermesParser.open, _TAGS, _RESPONSE),
    Form("qwen xml", xml.XmlParser, xml.grammar, xml.XmlParser.open, _TAGS, _RESPONSE),
    Form(
        "gemma",
        gemma.GemmaParser,
        gemma.grammar,
        gemma.GemmaParser.open,
        frozenset({gemma.GemmaParser.open, gemma.GemmaParser.close, gemma.QUOTE}),
    ),
    Form(
        "harmony",
        harmony.HarmonyParser,
        harmony.grammar,
        shown=frozenset({harmony.START, harmony.CHANNEL, harmony.CONSTRAIN, harmony.MESSAGE, harmony.END}),
        several=False,
    ),
    Form(
        "mistral",
        mistral.MistralParser,
        mistral.grammar,
        mistral.CALLS,
        frozenset({mistral.CALLS, mistral.ID, mistral.ARGUMENTS}),
    ),
    # The last one: it reads any answer that is a JSON object.
    Form("llama", llama.LlamaParser, llama.grammar, shown=frozenset({llama.TAG}), several=False),
)
"""In the order in which they are tried."""
HERMES = FORMS[0]


def tool_grammar(
    form: Form | None,
    tools: Tools,
    special: Mapping[str, int],
    *,
    name: str = "",
    several: bool = True,
    beside: Literal["", "text", "format"] = "",
) -> str:
    """The grammar, in Lark's syntax, of an answer that calls one of `tools`, `several` times if it wants. `name`: the
    only one that it may call. `beside`: it need not call any: it may also write text, or @answer, which is another
    grammar, in the place of calls. `special`: the special tokens of the vocabulary.

    Raises GrammarError where the form of calls is not known, `name` is no tool, or free text could hold a call.
    """
    if form is None:
        raise GrammarError("the form of this model's tool calls is not known, so none can be required")
    functions = [mapping(tool.get("function")) for tool in tools]
    offered = [one for one in functions if not name or one.get("name") == name]
    if not offered:
        raise GrammarError(f"no tool has the name {name!r}" if name else "a tool call without tools")
    if beside and form.begins not in special:
        raise GrammarError(f"calls of the form {form.name} may begin anywhere in a text, so they cannot be constrained")
    lark = Lark(special)
    call = lark.rule(either([form.grammar(lark, str(one["name"]), mapping(one.get("parameters"))) for one in offered]))
    if beside == "text":
        return lark.source(f"{lark.text()} ({call} {lark.text()})*")
    calls = f'{call} ("\\n" {call})*' if several and form.several else call
    return lark.source(f"@answer | {calls}" if beside else calls)
