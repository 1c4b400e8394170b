"""Calls of Llama 3: a JSON object that is the whole answer, or one after <|python_tag|>."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping

from dflash_core.text.template_values import JSON
from dflash_core.text.tool_calls.json_call import json_call, pass_on, read_call
from dflash_core.text.tool_calls.lark import Lark
from dflash_core.text.tool_calls.parser import SPACE, BrokenCallError, EndedCallError, Parser, Reading, collected

TAG = "<|python_tag|>"
_MAX_EXPRESSION = 2**14  # characters


class LlamaParser(Parser):
    """Implements `parser.Parser`. An object without a tag is a call if it has a name and parameters and nothing else;
    any other is the answer itself."""

    def parse(self) -> Reading[None]:
        reader = self.reader
        space = yield from reader.space()
        if (yield from reader.comes("{")):
            space = yield from self._objects(space, certain=False)
        while True:
            self.text(space)
            tag, space = yield from reader.until((TAG,), self.text, SPACE)
            if not tag:
                self.text("" if self.calls else space)
                return
            called = yield from self.block(space, self._tagged())
            space = (yield from self._objects("", certain=True)) if called else ""

    def _objects(self, space: str, *, certain: bool) -> Reading[str]:
        """Objects that follow each other, after the white space before the first; what follows the last call."""
        while (yield from self.reader.comes("{")):
            if not (yield from self.block(space, read_call(self, certain=certain), certain=certain)):
                return ""
            space = yield from self.reader.space()
            if (yield from self.reader.skip(";")):
                space += ";" + (yield from self.reader.space())
        return space

    def _tagged(self) -> Reading[None]:
        reader = self.reader
        yield from reader.skip(TAG)
        yield from reader.space()
        if (yield from reader.comes("{")):
            yield from read_call(self, certain=True)
            return
        yield from self._expression((yield from collected(lambda emit: reader.until((TAG,), emit))))

    def _expression(self, text: str) -> Reading[None]:
        """NAME.call(key="value", ...): a tool that the model knows by itself."""
        if len(text) > _MAX_EXPRESSION:
            raise BrokenCallError("a tool call as an expression is too long")
        try:
            call = ast.parse(text.strip(), mode="eval").body
            if not isinstance(call, ast.Call) or call.args or any(one.arg is None for one in call.keywords):
                raise ValueError
            name = ast.unparse(call.func).removesuffix(".call")
            value = json.dumps({one.arg: ast.literal_eval(one.value) for one in call.keywords})
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            if self.cut:
                raise EndedCallError from None
            raise BrokenCallError('an expression is no tool call, expected NAME.call(key="value")') from None
        self.start(name)
        yield from pass_on(self, name, value)
        self.end()


def grammar(lark: Lark, name: str, parameters: Mapping[str, JSON]) -> str:
    """A call of `name`, as a part of a grammar."""
    return json_call(lark, name, parameters, "parameters")
