"""Grammars of tool calls: what templates write conforms to them, and what conforms to them is a call."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from test_tool_templates import FORM, template, tokenizer

from dflash_core.constraints.grammar import Grammar, Grammars
from dflash_core.errors import GrammarError
from dflash_core.text.tool_calls.forms import FORMS, Form, tool_grammar
from dflash_core.text.tool_calls.parts import CallArguments, CallEnd, CallStart, Malformed
from dflash_core.text.tool_calls.schemas import Schemas
from support.masks import ids_of

pytest.importorskip("llguidance")

COLOURS = ["red", "light green"]
SIZE = {"type": "integer", "minimum": 0, "maximum": 99}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "colour": {"enum": COLOURS, "type": "string"},
        "size": {"$ref": "#/$defs/size"},
        "on": {"type": "boolean"},
        "sizes": {"type": "array", "items": {"$ref": "#/$defs/size"}, "maxItems": 2},
        "at": {"type": "object", "properties": {"x": SIZE}, "required": ["x"], "additionalProperties": False},
    },
    "required": ["colour", "size"],
    "additionalProperties": False,
    "$defs": {"size": SIZE},
}
TEXTS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [
    {"type": "function", "function": {"name": "paint", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "write", "parameters": TEXTS}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]


@cache
def grammars() -> Grammars:
    return Grammars(tokenizer(), tokenizer().vocab_size)


def form_of(name: str) -> Form:
    form = template(name).tools.form
    assert form is not None
    return form


def follows(source: str | Grammar, text: str) -> bool:
    """Whether an answer may be `text`, its special tokens being such."""
    constraint = grammars().constraint(source if isinstance(source, Grammar) else Grammar("lark", source))
    ids = tokenizer().encode(text)
    path: list[int] = []
    for id in ids:
        if not constraint.admits(path, id):
            return False
        path.append(id)
    return constraint.admits(path, min(tokenizer().stop_ids))


def written(name: str, tool: str, arguments: dict[str, Any]) -> str:
    """A call as a template writes it, without what ends the message."""
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "reasoning_content": ""},
    ]
    turns[1]["tool_calls"] = [{"id": "1", "function": {"name": tool, "arguments": arguments}}]
    asked = template(name).render(turns[:1], thinking=False, tools=TOOLS)
    text = template(name).render(turns, thinking=False, generate=False, tools=TOOLS).removeprefix(asked)
    for end in ("<|im_end|>\n", "<|eot_id|>", "<|call|>"):
        text = text.removesuffix(end)
    if name == "harmony":  # as the model writes it: the recipient after the channel
        text = text.replace(
            f" to=functions.{tool}<|channel|>commentary json",
            f"<|channel|>commentary to=functions.{tool} <|constrain|>json",
        )
    return text.lstrip("\n")


CALLS = [
    ("paint", {"colour": "light green", "size": 7, "on": True, "sizes": [1, 22], "at": {"x": 3}}),
    ("paint", {"colour": "red", "size": 0}),
    ("write", {"text": 'a "b"\n  </parameter> c\n'}),
    ("now", {}),
]


@pytest.mark.parametrize("name", FORM)
def test_what_a_template_writes_conforms(name: str) -> None:
    source = tool_grammar(form_of(name), TOOLS, tokenizer().special)
    for tool, arguments in CALLS:
        if name == "coder":  # this template writes Python's True, as some published ones do
            arguments = {key: value for key, value in arguments.items() if key not in ("on", "sizes", "at")}
        text = written(name, tool, arguments)
        if name == "qwen":
            text = text.replace("\nTrue\n", "\ntrue\n")
        assert follows(source, text), text
        only = tool_grammar(form_of(name), TOOLS, tokenizer().special, name=tool)
        assert follows(only, text)
        other = tool_grammar(form_of(name), TOOLS, tokenizer().special, name="now" if tool != "now" else "paint")
        assert not follows(other, text)
        several = form_of(name).several
        if name not in ("gemma", "harmony"):
            assert follows(source, f"{text}\n{text}") == several
        assert not follows(source, "No call.")
        assert not follows(source, "")


@pytest.mark.parametrize("name", FORM)
def test_other_types_and_names_do_not_conform(name: str) -> None:
    source = tool_grammar(form_of(name), TOOLS, tokenizer().special)
    for tool, arguments in (("paint", {"colour": "blue", "size": 1}), ("paint", {"colour": "red", "size": "x"}),
                            ("paint", {"colour": "red"}), ("draw", {})):  # fmt: skip
        assert not follows(source, written(name, tool, arguments)), (tool, arguments)


@pytest.mark.parametrize("name", FORM)
def test_any_text_that_conforms_is_a_call(name: str) -> None:
    """Drawn at random among what is allowed."""
    form, tools = form_of(name), [TOOLS[0], TOOLS[2]]
    source = tool_grammar(form, tools, tokenizer().special, several=False)
    rng = np.random.default_rng(5)
    for _ in range(6):
        constraint = grammars().constraint(Grammar("lark", source))
        # Not the reasoning, which would not end.
        ids = tokenizer().encode("<|channel|>commentary to=functions.") if name == "harmony" else []
        constraint.add(ids)
        while True:
            mask = constraint.allowed(())
            assert mask is not None
            choice = int(rng.choice(ids_of(mask)))
            if choice in tokenizer().stop_ids or len(ids) > 300:
                break
            ids.append(choice)
            constraint.add([choice])
        text = b"".join(tokenizer().token_bytes(id) for id in ids).decode()
        parser = form.parser(Schemas(tools))
        parts = [*parser.push(text), *parser.finish()]
        assert not any(isinstance(part, Malformed) for part in parts), text
        [begun] = [part for part in parts if isinstance(part, CallStart)]
        assert parts[-1] == CallEnd(0)
        arguments = json.loads("".join(part.text for part in parts if isinstance(part, CallArguments)))
        if begun.name == "now":
            assert arguments == {}
            continue
        assert {"colour", "size"} <= set(arguments) <= set(PARAMETERS["properties"])
        assert arguments["colour"] in COLOURS
        assert type(arguments["size"]) is int
        assert arguments.get("on", True) in (True, False)
        assert all(type(one) is int for one in [*arguments.get("sizes", []), *arguments.get("at", {"x": 1}).values()])


@pytest.mark.parametrize("name", ["qwen", "hermes", "gemma"])
def test_free_text_with_calls_that_conform(name: str) -> None:
    source = tool_grammar(form_of(name), TOOLS, tokenizer().special, beside="text")
    call = written(name, "paint", {"colour": "red", "size": 1})
    for text in ("", "I think so.", f"I look.\n\n{call}", f"{call}\n{call}\nDone."):
        assert follows(source, text), text
    for text in (written(name, "paint", {"colour": "blue", "size": 1}), call[: len(call) // 2]):
        assert not follows(source, text)


@pytest.mark.parametrize("name", ["qwen", "hermes", "gemma"])
def test_calls_may_come_in_the_place_of_a_format(name: str) -> None:
    source = tool_grammar(form_of(name), TOOLS, tokenizer().special, beside="format")
    formatted = Grammar.schema({"type": "object", "properties": {"n": SIZE}, "required": ["n"]})
    call = written(name, "paint", {"colour": "red", "size": 1})
    for text in ('{"n": 3}', call, f"{call}\n{call}"):
        assert follows(replace(formatted, calls=source), text), text
    wrong = written(name, "paint", {"colour": "blue", "size": 1})
    for text in ("", "I think so.", '{"n": 300}', wrong, f'{{"n": 3}}{call}', f"{call}{{}}"):
        assert not follows(replace(formatted, calls=source), text), text
    assert not follows(formatted, call)


def test_what_cannot_be_required_is_refused() -> None:
    special = tokenizer().special
    for form, tools, more in (
        (None, TOOLS, {}),
        (FORMS[0], TOOLS, {"name": "unknown"}),
        (FORMS[0], [], {}),
        (form_of("llama"), TOOLS, {"beside": "text"}),
    ):
        with pytest.raises(GrammarError):
            tool_grammar(form, tools, special, **more)
    with pytest.raises(GrammarError):
        tool_grammar(FORMS[0], TOOLS, {}, beside="text")
    assert (
        follows(tool_grammar(FORMS[0], TOOLS[2:], {}), '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
        is False
    )


def test_a_schema_that_the_library_does_not_know_is_as_free_as_it_has_to_be() -> None:
    odd = {
        "type": "object",
        "properties": {"a": {"type": "object", "propertyNames": {"maxLength": 2}}},
        "required": ["a"],
    }
    tools = [{"function": {"name": "odd", "parameters": odd}}, {"function": {"name": "bare"}}]
    for name in FORM:
        grammars().constraint(Grammar("lark", tool_grammar(form_of(name), tools, tokenizer().special)))
