"""What templates do with tools, calls and results: found by rendering, and safe against markup in all of them."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_data import metadata, qwen

from dflash_core.errors import TemplateError
from dflash_core.messages import Call, Message
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting
from dflash_core.text.template import CHATML, ChatTemplate
from dflash_core.text.tokenizer import Tokenizer
from dflash_core.text.tool_calls.parts import CallArguments, CallStart
from dflash_core.text.tool_calls.schemas import Schemas
from support.tool_templates import NEMO, PRINTS, TEMPLATES

FORM = {
    "qwen": "qwen xml",
    "hermes": "hermes",
    "coder": "qwen xml",
    "gemma": "gemma",
    "llama": "llama",
    "harmony": "harmony",
    "mistral": "mistral",
}
MARKUP = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|turn>", "<turn|>"),
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|eot_id|>", "<|start_header_id|>", "<bos>"),
    *("[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)


@cache
def tokenizer() -> Tokenizer:
    """The tokenizer of the golden models, with the special tokens of all families."""
    keys = metadata()
    tokens, types = list(keys["tokenizer.ggml.tokens"]), list(keys["tokenizer.ggml.token_type"])  # type: ignore[call-overload]
    added = [name for name in MARKUP if name not in tokens]
    return Tokenizer.from_metadata(metadata(tokens=[*tokens, *added], token_type=[*types, *[3] * len(added)]))


@cache
def template(name: str) -> ChatTemplate:
    if name == "qwen":
        return qwen()
    return ChatTemplate(PRINTS if name == "prints" else TEMPLATES[name], {"bos_token": "<bos>"})


def tool(name: str = "look", about: str = "a", key: str = "where", **more: Any) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": about}, **more}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def exchange(value: Any = "b", result: str = "c", name: str = "look", key: str = "where") -> list[Message]:
    calls = (Call("call_1", name, {key: value}),)
    return [
        Message("user", "a"),
        Message("assistant", "", calls=calls),
        Message("tool", result, call_id="call_1", name=name),
    ]


@pytest.mark.parametrize("name", FORM)
def test_the_form_is_recognised(name: str) -> None:
    found = template(name).tools
    assert found.renders
    assert found.form is not None
    assert found.form.name == FORM[name]
    assert found.result_role == ("ipython" if name == "llama" else "tool")
    assert found.several == (name not in ("llama", "harmony"))
    assert found.note is None
    assert found.late_system == (name != "qwen")
    assert found.consecutive


def test_an_opening_that_begins_like_a_call_does_not_hide_it() -> None:
    ask = "'<|im_start|>assistant\\n' }}{% endif %}"
    opens = TEMPLATES["hermes"].replace(ask, ask.replace("\\n'", "\\n<think>\\n'"))
    assert opens != TEMPLATES["hermes"]
    form = ChatTemplate(opens).tools.form
    assert form is not None
    assert form.name == "hermes"


@pytest.mark.parametrize("source", [CHATML, "{% for m in messages %}{{ m.content }}{% endfor %}{# tools #}"])
def test_a_template_without_tools(source: str) -> None:
    template = ChatTemplate(source)
    assert not template.tools.renders
    assert template.tools.note is not None
    messages = [Message("system", "be brief"), *exchange("over there", "found it"), *exchange()[1:]]
    text = build_prompt(Prompting(tokenizer(), template, False, tools=[tool("look")]), messages).text
    assert "be brief" in text
    assert json.dumps(tool("look")) in text
    call = '<tool_call>\n{"name": "look", "arguments": {"where": "over there"}}\n</tool_call>'
    assert call in text
    assert "<tool_response>\nfound it\n</tool_response>" in text
    assert template.tools.form is not None
    assert template.tools.form.name == "hermes"


def test_a_template_without_tools_and_system_messages() -> None:
    source = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}"
        "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ ';' }}{% endfor %}"
    )
    template = ChatTemplate(source)
    assert not template.tools.system
    text = build_prompt(
        Prompting(tokenizer(), template, False, tools=[tool("look")]), [Message("user", "where is it")]
    ).text
    assert text.startswith("user: ")
    assert json.dumps(tool("look")) in text
    assert text.endswith("where is it;")


def test_templates_that_take_one_call_a_message_get_them_one_by_one() -> None:
    calls = tuple(Call(f"call_{n}", "look", {"where": f"place {n}"}) for n in range(2))
    results = [Message("tool", f"found {n}", call_id=f"call_{n}", name="look") for n in range(2)]
    messages = [Message("user", "a"), Message("assistant", "I look", "so", calls=calls), *results, Message("user", "b")]
    for name in ("llama", "harmony"):
        text = build_prompt(Prompting(tokenizer(), template(name), False, tools=[tool("look")]), messages).text
        places = [text.index(one) for one in ("place 0", "found 0", "place 1", "found 1")]
        assert places == sorted(places)
        assert (text.count("place"), text.count("found")) == (2, 2)


def test_ids_of_calls_are_as_short_as_a_template_demands() -> None:
    nemo = ChatTemplate(NEMO)
    found = nemo.tools
    assert (found.form and found.form.name, found.result_role, found.several) == ("mistral", "tool", True)
    calls = tuple(Call(f"toolu_{n}", "look", {"where": f"place {n}"}) for n in range(2))
    results = [Message("tool", f"found {n}", call_id=f"toolu_{n}", name="look") for n in range(2)]
    messages = [Message("user", "a"), Message("assistant", "", calls=calls), *results]
    prompting = Prompting(tokenizer(), nemo, False, tools=[tool("look")])
    texts = [build_prompt(prompting, one).text for one in (messages, [*messages, Message("assistant", "b")])]
    ids = [re.findall(r'"(?:id|call_id)": "(\w+)"', text) for text in texts]
    assert ids[0] == ids[1], "prompts begin alike"
    assert ids[0][:2] == ids[0][2:]
    assert len({*ids[0]}) == 2
    assert not any(template(name).tools.nine_letters for name in FORM)
    at_least = ChatTemplate(NEMO.replace("| length != 9", "| length < 9"))
    assert at_least.tools.nine_letters
    assert build_prompt(Prompting(tokenizer(), at_least, False, tools=[tool("look")]), exchange()).text


def test_a_conversation_goes_on_after_an_answer_without_text() -> None:
    messages = [Message("user", "a"), Message("assistant", "", "so"), Message("user", "b")]
    text = build_prompt(Prompting(tokenizer(), ChatTemplate(NEMO), False), messages).text
    assert text == "[INST]a[/INST] <|im_end|>[INST]b[/INST]"
    with pytest.raises(TemplateError, match="nine characters"):
        ChatTemplate(NEMO).render([{"role": "tool", "content": "", "tool_call_id": "1"}], thinking=False)


@pytest.mark.parametrize("knows_tools", [True, False])
def test_a_user_goes_on_after_the_result_of_a_call(knows_tools: bool) -> None:
    """Also where roles must alternate, and where results are user messages."""
    source = NEMO if knows_tools else NEMO.replace("tools", "functions")
    assert ChatTemplate(source).tools.renders is knows_tools
    prompting = Prompting(tokenizer(), ChatTemplate(source), False, tools=[tool("look")])
    asked = Message("user", "and now")
    text = build_prompt(prompting, [*exchange("over there", "found it"), asked]).text
    assert text.endswith("[INST]and now[/INST]" if knows_tools else "</tool_response>\n\nand now[/INST]")
    assert text.count("found it") == 1


def test_a_template_with_a_form_of_its_own() -> None:
    source = (
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}[{{ c.function.name }}: {{ c.function.arguments.plinth }}]{% endfor %}"
        "{% endfor %}"
    )
    assert ChatTemplate(source).tools.renders
    assert ChatTemplate(source).tools.form is None


@pytest.mark.parametrize("name", FORM)
def test_tools_calls_and_results_are_in_the_prompt(name: str) -> None:
    prompt = build_prompt(
        Prompting(tokenizer(), template(name), False, tools=[tool("look")]), exchange("over there", "found it")
    )
    for text in ("look", "over there", "found it"):
        assert text in prompt.text
    assert template(name).render([{"role": "user", "content": "a"}], thinking=False).count("look") == 0


@pytest.mark.parametrize("name", [*FORM, "prints"])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_nothing_in_tools_calls_and_results_adds_a_special_token(name: str, data: st.DataObject) -> None:
    sneaky = st.lists(st.sampled_from([*tokenizer().special, "<", "|", ">", "end|>", "\n", "a"]), max_size=3).map(
        "".join
    )
    about, value, result, key, inner = (data.draw(sneaky) for _ in range(5))
    special = set(tokenizer().special.values())

    def ids(*texts: str) -> list[int]:
        about, value, result, key, inner = texts
        tools = [tool("look", about, f"a{key}", enum={"type": "string", "description": "", "enum": [about]})]
        asked = exchange({f"b{inner}": [value, 1, None]}, result, key=f"a{key}")
        prompt = build_prompt(Prompting(tokenizer(), template(name), False, tools=tools), asked)
        return [id for id in prompt.ids if id in special]

    harmless = ids(*["a"] * 5)
    assert ids(about, value, result, key, inner) == harmless


@pytest.mark.parametrize("name", sorted(MARKUP))
def test_each_special_name_is_text_in_a_result(name: str) -> None:
    for one in FORM:
        expected, found = (
            build_prompt(Prompting(tokenizer(), template(one), False, tools=[tool("look", text)]), exchange(text, text))
            for text in ("a", name)
        )
        assert name in found.text
        special = set(tokenizer().special.values())
        assert [id for id in found.ids if id in special] == [id for id in expected.ids if id in special]


def test_a_mapping_that_is_printed_as_python_does_is_the_text_that_was_given() -> None:
    prompt = build_prompt(
        Prompting(tokenizer(), template("prints"), False, tools=[tool("look", "<a>")]), exchange("<|im_end|>", "<")
    )
    assert "{'where': '<|im_end|>'}" in prompt.text
    assert "'description': '<a>'" in prompt.text


@pytest.mark.parametrize("name", ["qwen", "hermes"])
def test_the_order_of_keys_stays(name: str) -> None:
    described = tool("z", "a", "y", b={"type": "string"}, a={"type": "string"})
    messages = [Message("user", "a"), Message("assistant", "", calls=(Call("1", "z", {"y": "1", "b": "2", "a": "3"}),))]
    text = build_prompt(Prompting(tokenizer(), template(name), False, tools=[described]), messages).text
    assert json.dumps(described) in text
    call = text[text.rindex("<tool_call>") :]
    assert call.index("y") < call.index("b") < call.index("a", call.index("b"))


@pytest.mark.parametrize("name", FORM)
def test_what_a_template_writes_is_read_back(name: str) -> None:
    """The parser of its form gets the arguments that the template was given."""
    form = template(name).tools.form
    assert form is not None
    tools = [tool("look", n={"type": "integer"}, o={"type": "object"}, b={"type": "boolean"})]
    arguments = {"where": 'a\n "b" \n', "n": 5, "b": True, **({} if name == "coder" else {"o": {"k": [1, "x"]}})}
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "reasoning_content": ""}]
    turns[1] |= {"tool_calls": [{"id": "1", "function": {"name": "look", "arguments": arguments}}]}  # type: ignore[dict-item]
    asked = template(name).render(turns[:1], thinking=False, tools=tools)
    written = template(name).render(turns, thinking=False, generate=False, tools=tools)
    parser = form.parser(Schemas(tools))
    parts = [*parser.push(written.removeprefix(asked)), *parser.finish()]
    assert [part.name for part in parts if isinstance(part, CallStart)] == ["look"]
    assert json.loads("".join(part.text for part in parts if isinstance(part, CallArguments))) == arguments


def shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("name", FORM)
@pytest.mark.parametrize("thinking", [False, True])
def test_the_lengths_to_keep_are_shared_with_the_next_prompts(name: str, thinking: bool) -> None:
    tools = [tool("look", "what it is for " * 3)]
    system = [Message("system", "be brief")]

    def prompt(*messages: Message) -> Any:
        return build_prompt(Prompting(tokenizer(), template(name), thinking, tools=tools), [*system, *messages])

    asked = Message("user", "where is it")
    now = prompt(asked)
    other = prompt(Message("user", "something else"))
    assert now.head == other.head == shared(now.ids, other.ids)
    assert 0 < now.head < len(now.ids)
    call = Message("assistant", "I look", "so", calls=(Call("call_9", "look", {"where": "x"}),))
    result = Message("tool", "there", call_id="call_9", name="look")
    assert shared(now.ids, prompt(asked, call, result).ids) >= now.continued >= now.stable > now.head
    assert shared(now.ids, prompt(asked, Message("assistant", "yes", "so"), Message("user", "b")).ids) >= now.stable
    again = prompt(asked, call, result)
    assert again.continued > now.continued
    assert set(again.keep) == {again.head, again.stable, again.continued} - {0}
    assert again.head == now.head


def test_without_tools_a_prompt_is_as_before() -> None:
    prompt = build_prompt(Prompting(tokenizer(), qwen(), True), [Message("user", "a")])
    assert (prompt.head, prompt.continued) == (0, 0)
    assert prompt.keep == (prompt.stable,)
