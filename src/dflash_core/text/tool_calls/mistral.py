"""Calls of Mistral's models: after [TOOL_CALLS] an array of objects or, of newer ones, a name and its arguments."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_core.text.template_values import JSON
from dflash_core.text.tool_calls.json_call import arguments_grammar, json_call, read_arguments, read_call
from dflash_core.text.tool_calls.lark import Lark, literal
from dflash_core.text.tool_calls.parser import Reading, TaggedParser, collected

CALLS, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class MistralParser(TaggedParser):
    """Implements `parser.Parser`. The id that a model gives a call is not used."""

    open, close = CALLS, ""

    def read_block(self) -> Reading[None]:
        reader = self.reader
        yield from reader.expect(CALLS)
        yield from reader.space()
        if not (yield from reader.skip("[")):
            name = yield from collected(lambda emit: reader.up_to((ARGUMENTS, ID, "{"), emit))
            self.start(name.strip())
            yield from reader.up_to((ARGUMENTS, "{"), lambda text: None)
            yield from reader.skip(ARGUMENTS)
            yield from reader.space()
            yield from read_arguments(self, name.strip())
            self.end()
            return
        while True:
            yield from reader.space()
            yield from read_call(self, certain=True)
            yield from reader.space()
            if not (yield from reader.skip(",")):
                break
        yield from reader.skip("]")


def grammar(lark: Lark, name: str, parameters: Mapping[str, JSON]) -> str:
    """A call of `name`, as a part of a grammar: as models with a token before the arguments write it, or older ones."""
    if lark.has(ARGUMENTS):
        return f"{lark.token(CALLS)} {literal(name)} {lark.token(ARGUMENTS)} {arguments_grammar(lark, parameters)}"
    return f'{lark.token(CALLS)} "[" {json_call(lark, name, parameters, "arguments")} "]"'
