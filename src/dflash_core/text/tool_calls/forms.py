"""The forms in which models write calls: a row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dflash_core.text.template_values import JSON
from dflash_core.text.tool_calls import gemma, harmony, hermes, llama, xml
from dflash_core.text.tool_calls.lark import Lark
from dflash_core.text.tool_calls.parser import Parser
from dflash_core.text.tool_calls.schemas import Schemas

_TAGS = frozenset({hermes.HermesParser.open, hermes.HermesParser.close})
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
    Form("hermes", hermes.HermesParser, hermes.grammar, hermes.HermesParser.open, _TAGS, _RESPONSE),
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
    # The last one: it reads any answer that is a JSON object.
    Form("llama", llama.LlamaParser, llama.grammar, shown=frozenset({llama.TAG}), several=False),
)
"""In the order in which they are tried."""
HERMES = FORMS[0]
