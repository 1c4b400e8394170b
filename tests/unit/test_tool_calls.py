"""Tool calls in what a model writes: each form, typed by schema, and the same however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core.text.tool_calls.forms import FORMS, Form
from dflash_core.text.tool_calls.llama import TAG
from dflash_core.text.tool_calls.parts import CallArguments, CallEnd, CallStart, Malformed, Part, Text, Thinking, merged
from dflash_core.text.tool_calls.schemas import Schemas, retyped, typed

BY_NAME = {form.name: form for form in FORMS}
PROPERTIES: dict[str, Any] = {
    "s": {"type": "string"},
    "n": {"type": "integer"},
    "x": {"type": "number"},
    "b": {"type": "boolean"},
    "o": {"type": "object"},
    "a": {"type": "array"},
    "m": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "r": {"$ref": "#/$defs/size"},
    "e": {"enum": [1, 2]},
    "u": {},
}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "$defs": {"size": {"type": ["integer", "string"]}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("f", "g")]


def read(form: str | Form, pieces: list[str], *, cut: bool = False) -> list[Part]:
    parser = (BY_NAME[form] if isinstance(form, str) else form).parser(Schemas(TOOLS))
    parts = [part for piece in pieces for part in parser.push(piece)]
    return merged([*parts, *parser.finish(cut=cut)])


def calls(parts: list[Part]) -> list[tuple[str, Any]]:
    """Names and arguments of the calls, of those alone that are complete."""
    complete = {part.index for part in parts if isinstance(part, CallEnd) and part.complete}
    arguments = {part.index: json.loads(part.text) for part in parts if isinstance(part, CallArguments)
                 and part.index in complete}  # fmt: skip
    return [(part.name, arguments[part.index]) for part in parts if isinstance(part, CallStart)
            and part.index in complete]  # fmt: skip


def text(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))


def xml(name: str, **values: str) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


ONE = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"s": "a \\"b\\"\\n", "n": 5}}\n</tool_call>',
    "qwen xml": xml("f", s='a "b"\n', n="5"),
    "gemma": '<|tool_call>call:f{s:<|"|>a "b"\n<|"|>,n:5}<tool_call|>',
    "llama": '{"name": "f", "parameters": {"s": "a \\"b\\"\\n", "n": "5"}}',
    "harmony": '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"s":"a \\"b\\"\\n","n":5}<|call|>',
    "mistral": '[TOOL_CALLS]f[ARGS]{"s": "a \\"b\\"\\n", "n": 5}',
}
EXPECTED = [("f", {"s": 'a "b"\n', "n": 5})]


@pytest.mark.parametrize("form", ONE)
def test_a_call_is_found_and_typed(form: str) -> None:
    parts = read(form, [ONE[form]])
    assert calls(parts) == EXPECTED
    assert [type(part) for part in parts] == [CallStart, CallArguments, CallEnd]


@pytest.mark.parametrize("form", ["hermes", "qwen xml", "gemma", "mistral"])
def test_text_and_several_calls(form: str) -> None:
    parts = read(form, [f"I look.\n\n{ONE[form]}\n{ONE[form]}\n"])
    assert calls(parts) == EXPECTED * 2
    assert text(parts) == "I look.", "white space around calls is layout"
    assert [part.index for part in parts if isinstance(part, CallStart)] == [0, 1]
    assert text(read(form, [f"{ONE[form]}\nDone.\n"])) == "\nDone.\n"


def test_several_llama_calls() -> None:
    assert calls(read("llama", [ONE["llama"] + "; " + ONE["llama"]])) == EXPECTED * 2
    assert calls(read("llama", ["<|python_tag|>" + ONE["llama"]])) == EXPECTED
    parts = read("llama", ['<|python_tag|>search.call(s="a, b", n=5)'])
    assert calls(parts) == [("search", {"s": "a, b", "n": 5})]
    assert calls(read("llama", ['{"type": "function", "function": {"name": "f", "parameters": {}}}'])) == [("f", {})]


@pytest.mark.parametrize("cut", [1, 4, 1000])
def test_calls_of_older_mistral_models(cut: int) -> None:
    objects = '{"name": "f", "arguments": {"s": "[x]"}}, {"arguments": {"n": 5}, "name": "g", "id": "abcdefghi"}'
    expected = [("f", {"s": "[x]"}), ("g", {"n": 5})]
    for answer in (f"[TOOL_CALLS] [{objects}]", f"[TOOL_CALLS][{objects}", f"[TOOL_CALLS][\n{objects}\n]"):
        assert calls(read("mistral", [answer[at : at + cut] for at in range(0, len(answer), cut)])) == expected
    for answer in ('[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"n": 5}', '[TOOL_CALLS]f{"n": 5}'):
        assert calls(read("mistral", [answer[at : at + cut] for at in range(0, len(answer), cut)])) == [("f", {"n": 5})]
    assert text(read("mistral", ["[TOOL_CALLS]no call"])) == "[TOOL_CALLS]no call"


@pytest.mark.parametrize(
    "answer", ['{"name": "Ada", "age": 3}', '{"a": [1, 2]}\n', "{", '{"name": "f"}', "[1]", " x {"]
)
def test_a_json_answer_is_no_llama_call(answer: str) -> None:
    assert read("llama", [answer]) == [Text(answer)]


def test_harmony_has_reasoning_text_and_calls() -> None:
    answer = (
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"n": "7"}<|call|>'
    )
    expected = [Thinking("One.\n\nTwo."), Text("I look."), CallStart(0, "f"), CallArguments(0, '{"n": 7}'), CallEnd(0)]
    assert read("harmony", [answer]) == expected
    assert read("harmony", ["<|channel|>final<|message|>a <b>\n"]) == [Text("a <b>\n")]
    assert read("harmony", ["no markup, todo"]) == [Text("no markup, todo")]


XML_VALUES = {
    "indentation": "    a\n\n  b",
    "line breaks at both ends": "\na\n\n",
    "a closing tag in a line": "x </parameter> y",
    "a closing tag that ends a line": "x\n</parameter> y\nz",
    "a whole call": xml("g", s="1\n</parameter>\n2"),
    "calls in a row": xml("g") + "\n" + xml("g", n="1"),
    "an opening without an end": "\n<function=g>\n",
    "looks like JSON": '{"a": 1}',
    "escapes": 'a\\n"b"\t\u2028\U0001f600',
    "empty": "",
}


@pytest.mark.parametrize("value", XML_VALUES.values(), ids=XML_VALUES)
def test_values_of_xml_calls_are_data(value: str) -> None:
    assert calls(read("qwen xml", [xml("f", s=value, n="1") + "\n" + xml("g", s=value)])) == [
        ("f", {"s": value, "n": 1}),
        ("g", {"s": value}),
    ]


def test_a_closing_tag_where_a_line_begins_ends_a_value() -> None:
    assert calls(read("qwen xml", ["<tool_call>\n<function=f>\n<parameter=s>\n</parameter>\n</function>"])) == [
        ("f", {"s": ""})
    ]
    assert calls(read("qwen xml", ["<tool_call><function=f><parameter=n>5</parameter></function></tool_call>"])) == [
        ("f", {"n": 5})
    ]


def test_a_long_string_is_streamed() -> None:
    parser = BY_NAME["qwen xml"].parser(Schemas(TOOLS))
    parser.push("<tool_call>\n<function=f>\n<parameter=s>\n")
    for line in ("first line\n", "second line\n"):
        assert merged(parser.push(line)), "a line is passed on when it comes, but for its end"
    for form in ("hermes", "gemma", "harmony"):
        parser, answer = BY_NAME[form].parser(Schemas(TOOLS)), ONE[form]
        parser.push(answer[: answer.index("a ") + 2])
        assert parser.push("more") == [CallArguments(0, "more")]


def test_a_function_without_the_opening_tag() -> None:
    bare = "<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>"
    assert calls(read("qwen xml", ["I look.\n" + bare])) == [("f", {"n": 1})]
    assert text(read("qwen xml", ["I look.\n" + bare])) == "I look."
    for answer in (f"It is `{bare}", "<function=unknown>\n</function>"):
        assert read("qwen xml", [answer]) == [Text(answer)]


@pytest.mark.parametrize(("form", "closed"), [("hermes", 2), ("qwen xml", 1), ("gemma", 1)])
def test_closing_tags_are_forgotten_and_doubled(form: str, closed: int) -> None:
    tag = BY_NAME[form].parser(Schemas()).close  # type: ignore[attr-defined]
    whole = ONE[form]
    assert calls(read(form, [whole.removesuffix(tag)])) == EXPECTED
    assert read(form, [whole + tag]) == read(form, [whole + "\n" + tag + "\n"]) == read(form, [whole])
    if form == "qwen xml":
        assert calls(read(form, [whole.removesuffix(tag).rstrip().removesuffix("</function>")])) == EXPECTED
        assert calls(read(form, [whole.replace("</function>\n", "")])) == EXPECTED
    if form == "hermes":
        assert calls(read(form, [whole[: whole.rindex("}")]])) == EXPECTED


BROKEN = {
    "hermes": [
        "<tool_call>\n{'name': 'f'}\n</tool_call>",
        '<tool_call>\n{"name": "f", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"s": "\\x"}}',
        '<tool_call>{"name": "f", "arguments": {"n": NaN}}',
        '<tool_call>{"name": "f", "more": 1}',
        "<tool_call>",
        '<tool_call>{"name": 5}',
        '<tool_call>{"name": "f", "arguments": {"s": "a" "b"}}',
        '<tool_call>{"name":""}',
        '<tool_call>{"name": "f", "arguments": {"u": ' + "[" * 300 + "}}",
    ],
    "qwen xml": [
        "<tool_call>\nf(1)\n</tool_call>",
        "<tool_call>\n<function=f\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=s>\nnever closed",
        "<tool_call>\n<function=f>\ntext\n</function>",
        "<tool_call>\n<function=>\n</function>",
    ],
    "gemma": [
        "<|tool_call>f{}<tool_call|>",
        "<|tool_call>call:f<tool_call|>",
        '<|tool_call>call:f{s:<|"|>a',
        "<|tool_call>call:f{a:" + "[" * 300 + "}",
        '<|tool_call>call:f{s:<|"|>a<|"|> b}',
    ],
    "harmony": [
        "<|channel|>commentary to=functions.f<|message|>{oops}",
        "<|channel|>commentary to=functions.f<|message|>[]",
        "<|channel|>commentary to=functions.f",
    ],
    "llama": ["<|python_tag|>print(1)", "<|python_tag|>f.call(" + "(" * 500, '<|python_tag|>{"name": "f", "x": 1}'],
}


@pytest.mark.parametrize(("form", "block"), [(form, block) for form, blocks in BROKEN.items() for block in blocks])
def test_what_is_no_call_is_text_with_a_reason(form: str, block: str) -> None:
    parts = read(form, [block])
    assert calls(parts) == []
    assert text(parts) == block, "nothing is swallowed"
    if block != "<|channel|>commentary to=functions.f":
        assert [bool(part.reason) for part in parts if isinstance(part, Malformed)] == [True]


def test_a_broken_call_does_not_spoil_the_next() -> None:
    broken = "<tool_call>\n<function=f>\noops\n</function>\n</tool_call>"
    parts = read("qwen xml", [f"a\n\n{broken}\n{ONE['qwen xml']}"])
    assert calls(parts) == EXPECTED
    assert text(parts) == f"a\n\n{broken}"


@pytest.mark.parametrize("form", ["hermes", "qwen xml", "gemma", "harmony"])
def test_an_answer_that_is_cut_off_has_what_was_sent_of_its_call(form: str) -> None:
    answer = ONE[form][: ONE[form].index("a ") + 2]
    cut = read(form, [answer], cut=True)
    assert cut == [CallStart(0, "f"), CallArguments(0, '{"s": "a '), CallEnd(0, complete=False)]
    assert text(read(form, [answer])) == answer, "the model itself ended it there: no call"


@pytest.mark.parametrize(("form", "tag", "answer"), [
    *((form, BY_NAME[form].begins, answer) for form, answer in ONE.items()), ("harmony", "<|channel|>", ONE["harmony"]),
    *(("llama", TAG, TAG + call) for call in (ONE["llama"], 'f.call(s="a", n=5)')),
])  # fmt: skip
def test_wherever_a_call_is_cut_off_nothing_of_it_is_text(form: str, tag: str, answer: str) -> None:
    """Regressions: the beginning of a parameter's tag; a call without its whole name. Without a tag it may be text."""
    for end in range(len(tag), len(answer)):
        parts = read(form, [answer[:end]], cut=True)
        begun = [part for part in parts if isinstance(part, CallEnd)]
        if (tag and not begun) or any(not part.complete for part in begun):
            assert not text(parts)
            assert not any(isinstance(part, Malformed) for part in parts)


@pytest.mark.parametrize(("form", "begun"), [
    ("hermes", '<tool_call>\n{"names": '), ("gemma", "<|tool_call>lookf"), ("qwen xml", "<tool_call>\noops"),
])  # fmt: skip
def test_what_is_no_call_stays_text_although_it_is_cut_off(form: str, begun: str) -> None:
    assert text(read(form, [begun], cut=True)) == begun


TYPED = [
    ("5", ("integer",), "5"), ("5.0", ("integer",), "5"), ("5.5", ("integer",), '"5.5"'), ("1e3", ("number",), "1e3"),
    ("True", ("boolean",), "true"), ("None", ("null", "string"), "null"), ("007", ("integer",), '"007"'),
    ("true", ("string",), '"true"'), ('{"a": 1}', ("string",), '"{\\"a\\": 1}"'), ('{"a": 1}', ("object",), '{"a": 1}'),
    ("[1]", ("object",), '"[1]"'), ("[1]", ("array", "string"), "[1]"), ("[1", ("array",), '"[1"'),
    (" 5 ", (), "5"), ("a", (), '"a"'), ("NaN", (), '"NaN"'), ("NaN", ("number",), '"NaN"'), ("٣", ("integer",), '"٣"'),
    ("9" * 5000, (), f'"{"9" * 5000}"'), ("[" * 5000, ("array",), f'"{"[" * 5000}"'),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "kinds", "expected"), TYPED)
def test_typed(raw: str, kinds: tuple[str, ...], expected: str) -> None:
    assert typed(raw, kinds) == expected


def test_types_of_schemas() -> None:
    schemas = Schemas(TOOLS)
    assert schemas.kinds("f", "m") == ("null", "integer")
    assert schemas.kinds("f", "r") == ("integer", "string")
    assert schemas.kinds("f", "e") == ("integer",)
    assert schemas.kinds("f", "u") == schemas.kinds("f", "missing") == schemas.kinds("h", "s") == ()
    assert retyped('"5"', ("integer",)) == "5"
    assert retyped('"5"', ("integer", "string")) == '"5"'
    assert retyped('"a"', ("integer",)) == '"a"'


@pytest.mark.parametrize(
    "tools",
    [[{}], [{"function": 5}], [{"function": {"name": "f", "parameters": []}}],
     [{"function": {"name": "f", "parameters": {"properties": {"s": {"$ref": "#/properties/s"}, "n": 5}}}}],
     [{"function": {"name": "f", "parameters": {"properties": {"s": {"$ref": "http://a"}, "n": {"type": {}}}}}}]],
)  # fmt: skip
def test_broken_schemas_have_no_types(tools: list[dict[str, Any]]) -> None:
    schemas = Schemas(tools)
    assert schemas.kinds("f", "s") == schemas.kinds("f", "n") == ()


_TAGS = ["<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=s>", "<parameter=n>", "</parameter>"]
PIECES = {
    "hermes": [*_TAGS[:2], '{"name": "f", ', '"arguments": ', '{"s": "', '\\"', '"}', "}", "\n", "a", " "],
    "qwen xml": [*_TAGS, "1", "\n", " ", "<", "a"],
    "gemma": ["<|tool_call>", "<tool_call|>", "call:f{", "}", "s:", "n:", '<|"|>', "1", ",", "[", "]", "\n", "<|", "a"],
    "harmony": [
        *("<|start|>", "assistant", "<|channel|>", "analysis", "commentary", " to=functions.f", "<|message|>"),
        *("{", '"n": 1', "}", "<|end|>", "<|call|>", " ", "a"),
    ],
    "llama": ["<|python_tag|>", '{"name": "f", ', '"parameters": ', '{"n": ', "1", "}", "f(n=1)", ";", "\n", "a"],
}


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_parts_do_not_depend_on_how_the_text_is_cut(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(sorted(PIECES)))
    whole = st.sampled_from([ONE[form], ONE[form] + "\n" + ONE[form], *BROKEN[form]])
    answer = "".join(data.draw(st.lists(st.sampled_from(PIECES[form]) | whole, max_size=14)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(answer)), max_size=20)))
    cut = data.draw(st.booleans())
    pieces = [answer[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(answer)])]
    assert read(form, pieces, cut=cut) == read(form, [answer], cut=cut) == read(form, list(answer), cut=cut)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("fg"), st.text(max_size=20), st.integers()), max_size=3))
def test_what_a_model_writes_is_read_back(wanted: list[tuple[str, str, int]]) -> None:
    expected = [(name, {"s": value, "n": number}) for name, value, number in wanted]
    as_json = [json.dumps({"name": name, "arguments": values}) for name, values in expected]
    assert calls(read("hermes", [f"<tool_call>\n{one}\n</tool_call>\n" for one in as_json])) == expected
    written = [xml(name, s=value, n=str(number)) for name, value, number in wanted]
    assert calls(read("qwen xml", ["\n".join(written)])) == expected
