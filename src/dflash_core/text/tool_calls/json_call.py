"""One call as a JSON object: {"name": ..., "arguments": {...}}, in any order of the members."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dflash_core.text.template_values import JSON
from dflash_core.text.tool_calls.json_values import expect, pass_on, read_arguments, read_string, read_value
from dflash_core.text.tool_calls.lark import Lark, literal
from dflash_core.text.tool_calls.parser import BrokenCallError, Parser
from dflash_core.text.tool_calls.reader import Reading
from dflash_core.text.tool_calls.schemas import quoted

_NAMES, _ARGUMENTS, _IGNORED = ("name", "function"), ("arguments", "parameters"), ("id", "type")


def read_call(parser: Parser, *, certain: bool) -> Reading[None]:
    """Read a call, and pass it on while it comes. `certain`: it cannot be anything else, so it begins with its name,
    and arguments may be missing. Otherwise it begins with its arguments. Raises BrokenCallError."""
    yield from _object(parser, certain=certain)
    parser.end()


def _object(parser: Parser, *, certain: bool, inner: bool = False) -> Reading[str]:
    reader = parser.reader
    name, waiting, done = "", "", False
    yield from expect(reader, "{")
    yield from reader.space()
    while not (yield from reader.skip("}")):
        key = json.loads((yield from read_string(reader)))
        yield from reader.space()
        yield from expect(reader, ":")
        yield from reader.space()
        if key == "function" and not (name or inner) and (yield from reader.peek(1)) == "{":
            name = yield from _object(parser, certain=certain, inner=True)
            done = True
        elif key in _NAMES and not name:
            name = json.loads((yield from read_string(reader)))
            if certain:
                parser.start(name)
        elif key in _ARGUMENTS and not done and not waiting:
            if name:
                if not certain:
                    parser.start(name)
                yield from read_arguments(parser, name)
                done = True
            else:
                waiting = yield from read_value(reader)
        elif key in _IGNORED:
            yield from read_value(reader)
        else:
            raise BrokenCallError(f"a tool call has {key!r}, expected a name and arguments")
        yield from reader.space()
        if done and not (yield from reader.peek(1)):  # the last brace may be missing at the end of the answer
            return name
        if (yield from reader.peek(1)) != "}":
            yield from expect(reader, ",")
            yield from reader.space()
    if not done:
        if not name or not (certain or waiting):
            raise BrokenCallError("a tool call without a name or arguments")
        if not certain:
            parser.start(name)
        yield from pass_on(parser, name, waiting or "{}")
    return name


def json_call(lark: Lark, name: str, parameters: Mapping[str, JSON], key: str) -> str:
    """A call of `name` as a part of a grammar, with its arguments as `key`."""
    head = f'{{"name": {quoted(name)}, "{key}": '
    return f"{literal(head)} {arguments_grammar(lark, parameters)} {literal('}')}"


def arguments_grammar(lark: Lark, parameters: Mapping[str, JSON]) -> str:
    """The arguments of a call, as JSON, as a part of a grammar: those that are declared, if any are and the schema does
    not say otherwise."""
    closed: Mapping[str, JSON] = {"additionalProperties": False} if "properties" in parameters else {}
    return lark.json({**closed, **parameters, "type": "object"}, parameters)
