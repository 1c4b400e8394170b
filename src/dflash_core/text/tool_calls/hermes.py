"""Calls of Qwen3 and Hermes: a JSON object between <tool_call> and </tool_call>."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_core.text.template_values import JSON
from dflash_core.text.tool_calls.json_call import json_call, read_call
from dflash_core.text.tool_calls.json_values import expect
from dflash_core.text.tool_calls.lark import Lark
from dflash_core.text.tool_calls.reader import Reading
from dflash_core.text.tool_calls.tagged import TaggedParser


class HermesParser(TaggedParser):
    """Implements `parser.Parser`."""

    def read_block(self) -> Reading[None]:
        yield from expect(self.reader, self.open)
        while True:
            yield from self.reader.space()
            yield from read_call(self, certain=True)
            yield from self.reader.space()
            # Some write several objects into one block, and some forget the closing tag at the end.
            if (yield from self.reader.peek(1)) != "{":
                break
        yield from self.reader.skip(self.close)


def grammar(lark: Lark, name: str, parameters: Mapping[str, JSON]) -> str:
    """A call of `name`, as a part of a grammar."""
    begin, end = lark.token(HermesParser.open), lark.token(HermesParser.close)
    return f'{begin} "\\n" {json_call(lark, name, parameters, "arguments")} "\\n" {end}'
