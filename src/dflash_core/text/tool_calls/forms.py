"""The forms in which models write calls: a row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dflash_core.text.tool_calls import gemma, harmony
from dflash_core.text.tool_calls.gemma import GemmaParser
from dflash_core.text.tool_calls.harmony import HarmonyParser
from dflash_core.text.tool_calls.hermes import HermesParser
from dflash_core.text.tool_calls.llama import TAG, LlamaParser
from dflash_core.text.tool_calls.parser import Parser
from dflash_core.text.tool_calls.schemas import Schemas
from dflash_core.text.tool_calls.xml import XmlParser


@dataclass(frozen=True, slots=True)
class Form:
    """How calls are written. `parser`: makes what reads one answer. `shown`: special tokens that the parser needs as
    text, although they are hidden in chats. `stops`: tokens that end an answer where there are tools."""

    name: str
    parser: Callable[[Schemas], Parser]
    shown: frozenset[str] = frozenset()
    stops: frozenset[str] = frozenset()


_RESPONSES = frozenset({"<tool_response>"})
FORMS = (
    Form("hermes", HermesParser, frozenset({HermesParser.open, HermesParser.close}), _RESPONSES),
    Form("qwen xml", XmlParser, frozenset({XmlParser.open, XmlParser.close}), _RESPONSES),
    Form(
        "gemma",
        GemmaParser,
        frozenset({GemmaParser.open, GemmaParser.close, gemma.QUOTE}),
        frozenset({"<|tool_response>"}),
    ),
    Form(
        "harmony",
        HarmonyParser,
        frozenset({harmony.START, harmony.CHANNEL, harmony.CONSTRAIN, harmony.MESSAGE, harmony.END}),
        frozenset({harmony.CALL, harmony.RETURN}),
    ),
    # The last one: it reads any answer that is a JSON object.
    Form("llama", LlamaParser, frozenset({TAG}), frozenset({"<|eom_id|>"})),
)
"""In the order in which they are tried."""
HERMES = FORMS[0]
