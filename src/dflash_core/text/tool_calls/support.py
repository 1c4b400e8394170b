"""What a chat template does with tools, found by rendering it and not by its name, and messages as it can render them.

Where a template knows no tools, they are described in the system message, or in the first one where it knows no such
message, and calls are written as Hermes does: most models have seen that.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from dflash_core.errors import TemplateError
from dflash_core.prefix import common_prefix
from dflash_core.text.template_values import JSON, NO_TOOLS, Messages, Tools
from dflash_core.text.tool_calls.forms import FORMS, HERMES, Form
from dflash_core.text.tool_calls.json_call import HermesParser
from dflash_core.text.tool_calls.parts import CallArguments, CallStart
from dflash_core.text.tool_calls.schemas import Schemas, mapping

Render = Callable[[Messages, Tools, bool], str]
"""Renders messages with tools; the flag opens an answer."""
ResultRole = Literal["tool", "ipython", "function", "user"]

# Words that no template writes by itself.
_NAME, _KEY, _VALUE, _RESULT = "kestrel_probe", "plinth", "quince basalt", "marram osprey"
_ID = "kestrel01"  # of nine letters and digits, as Mistral's templates demand
_CALL: Mapping[str, JSON] = {
    "type": "function",
    "id": _ID,
    "function": {"name": _NAME, "arguments": {_KEY: _VALUE}},
}
_TOOLS: Tools = [
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "a",
            "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}, "required": [_KEY]},
        },
    }
]
_ASKED: Mapping[str, JSON] = {"role": "user", "content": "a"}
_ANSWER: Mapping[str, JSON] = {"role": "assistant", "content": "a", "reasoning_content": ""}


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """`renders`: whether the template writes tools into the prompt; otherwise they are described in the system message
    (`fitted`). `form`: how the model writes calls, None where that is not known: its calls stay text. `result_role`:
    the role of a tool's result; "user" where the template knows none. `nine_letters`: whether the template refuses
    ids of calls that are not nine letters and digits. `several`: whether a message may have several
    calls. `system`: whether there may be a system message, `late_system`: whether there may be one later than first.
    `consecutive`: whether several user messages may follow each other."""

    renders: bool = False
    form: Form | None = HERMES
    result_role: ResultRole = "user"
    nine_letters: bool = False
    several: bool = False
    system: bool = False
    late_system: bool = False
    consecutive: bool = False

    @property
    def note(self) -> str | None:
        """What a user of tools should know; None for nothing."""
        if not self.renders:
            return "the model's chat template knows no tools: they are described in a message"
        if self.form is None:
            return "the form of this model's tool calls is not known: they stay text"
        return None


def tool_support(source: str, render: Render) -> ToolSupport:
    """What the template `source`, which `render` renders, does with tools, calls and results."""

    def rendered(*messages: Mapping[str, JSON], tools: Tools = NO_TOOLS, opens: bool = False) -> str:
        try:
            return render(messages, tools, opens)
        except TemplateError:
            return ""

    late = rendered(_ASKED, _ANSWER, {"role": "system", "content": _VALUE}, _ASKED)
    follows = rendered(_ASKED, {"role": "user", "content": _VALUE})
    system = rendered({"role": "system", "content": _VALUE}, _ASKED)
    others = ToolSupport(system=_VALUE in system, late_system=_VALUE in late, consecutive=_VALUE in follows)
    if "tools" not in source or _NAME not in rendered(_ASKED, tools=_TOOLS):
        return others
    asked = rendered(_ASKED, tools=_TOOLS, opens=True)
    call: Mapping[str, JSON] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": [_CALL]}
    result = {"content": _RESULT, "tool_call_id": _ID, "name": _NAME}
    role: ResultRole = "user"
    for role in get_args(ResultRole):
        if _RESULT in (answered := rendered(_ASKED, call, {"role": role, **result}, tools=_TOOLS)):
            break
    other = _ID[::-1]
    twice = {**call, "tool_calls": [_CALL, {**_CALL, "id": other}]}
    several = rendered(_ASKED, twice, {"role": role, **result}, {"role": role, **result, "tool_call_id": other})
    others_ids = (
        rendered(_ASKED, {**call, "tool_calls": [{**_CALL, "id": id}]}, {"role": role, **result, "tool_call_id": id})
        for id in ("1", f"call_{_ID}")
    )
    at = common_prefix(asked, answered)
    before = answered[:at]
    if before.rfind("<") > before.rfind(">"):  # within a tag: <think> opens the answer, <tool_call> is in the history
        at = before.rfind("<")
    written = answered[at:]
    form = next((one for one in FORMS if _reads(one, written)), None)
    return replace(
        others, renders=True, form=form, result_role=role, several=several.count(_VALUE) == 2,
        nine_letters=bool(answered) and not all(others_ids),
    )  # fmt: skip


def _reads(form: Form, written: str) -> bool:
    """Whether a parser of `form` finds the call that a template has `written`."""
    parser = form.parser(Schemas(_TOOLS))
    parts = [*parser.push(written), *parser.finish()]
    names = [part.name for part in parts if isinstance(part, CallStart)]
    arguments = "".join(part.text for part in parts if isinstance(part, CallArguments))
    try:
        return names == [_NAME] and json.loads(arguments) == {_KEY: _VALUE}
    except ValueError:
        return False


_HOW = (
    "You can call these functions; each line describes one:\n<tools>\n{tools}\n</tools>\n\n"
    "To call one, write its name and its arguments as JSON:\n" + HermesParser.open + "\n"
    '{{"name": "NAME", "arguments": {{"KEY": VALUE}}}}\n' + HermesParser.close
)


def uses_tools(messages: Messages, tools: Tools) -> bool:
    """Whether a template has to know anything of tools to render these."""
    return bool(tools) or any("tool_calls" in message or message["role"] == "tool" for message in messages)


def fitted(messages: Messages, tools: Tools, support: ToolSupport) -> tuple[Messages, Tools]:
    """Messages and tools as a template of this `support` renders them."""
    if support.renders:
        messages = [*map(_with_own_ids, messages)] if support.nine_letters else messages
        one_by_one = messages if support.several else [*_one_by_one(messages)]
        messages = [_result(message, support) for message in one_by_one]
    else:
        messages, tools = _described([*_in_words(messages)], tools, support), NO_TOOLS
    return messages if support.consecutive else [*_alternating(messages)], tools


def _alternating(messages: Messages) -> Iterator[Mapping[str, JSON]]:
    """The same where a user message may follow neither another one, which is joined, nor the result of a call: an
    answer without text comes between."""
    last: Mapping[str, JSON] = {}
    for message in messages:
        before = last.get("role")
        if message["role"] == before == "user":
            last = {**last, "content": f"{last['content']}\n\n{message['content']}"}
            continue
        if last:
            yield last
        if message["role"] == "user" and before not in (None, "system", "assistant"):
            yield {**_ANSWER, "content": ""}
        last = message
    yield last


def _result(message: Mapping[str, JSON], support: ToolSupport) -> Mapping[str, JSON]:
    if message["role"] != "tool":
        return message
    if support.result_role == "user":
        return {"role": "user", "content": _response(message)}
    return {**message, "role": support.result_role}


def _with_own_ids(message: Mapping[str, JSON]) -> Mapping[str, JSON]:
    changed: dict[str, JSON] = {}
    if calls := _calls(message):
        changed["tool_calls"] = [{**call, "id": _own(call["id"])} for call in calls]
    if "tool_call_id" in message:
        changed["tool_call_id"] = _own(message["tool_call_id"])
    return {**message, **changed}


def _own(id: JSON) -> str:
    """An id of nine letters and digits: the same one in every prompt, so that prompts begin alike."""
    return hashlib.sha256(str(id).encode(errors="replace")).hexdigest()[: len(_ID)]


def _response(message: Mapping[str, JSON]) -> str:
    return f"<tool_response>\n{message['content']}\n</tool_response>"


def _one_by_one(messages: Messages) -> Iterator[Mapping[str, JSON]]:
    """The same with one call a message, each followed by its result."""
    results = {message["tool_call_id"]: message for message in messages if message["role"] == "tool"}
    passed: set[JSON] = set()
    for message in messages:
        calls = _calls(message)
        if message["role"] == "tool" and message["tool_call_id"] in passed:
            continue
        if len(calls) < 2:
            yield message
            continue
        for place, call in enumerate(calls):
            without_text = message if not place else {**message, "content": "", "reasoning_content": ""}
            yield {**without_text, "tool_calls": [call]}
            if (result := results.get(call["id"])) is not None and call["id"] not in passed:
                passed.add(call["id"])
                yield result


def _calls(message: Mapping[str, JSON]) -> Sequence[Mapping[str, JSON]]:
    calls = message.get("tool_calls")
    return [mapping(call) for call in calls] if isinstance(calls, Sequence) else ()


def _in_words(messages: Messages) -> Iterator[Mapping[str, JSON]]:
    """Calls and results as text. Results that follow each other are one message: some templates want turns to
    alternate."""
    for of_tool, some in itertools.groupby(messages, lambda message: message["role"] == "tool"):
        if of_tool:
            yield {"role": "user", "content": "\n".join(map(_response, some))}
            continue
        for message in some:
            calls = [f"{HermesParser.open}\n{_written(call)}\n{HermesParser.close}" for call in _calls(message)]
            content = [str(message["content"]), *calls] if message["content"] else calls
            words = {key: message[key] for key in message if key != "tool_calls"} | {"content": "\n".join(content)}
            yield words if calls else message


def _written(call: Mapping[str, JSON]) -> str:
    function = mapping(call["function"])
    return json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)


def _described(messages: Messages, tools: Tools, support: ToolSupport) -> Messages:
    """With the tools described in the first message."""
    if not tools:
        return messages
    text = _HOW.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    first, *others = messages
    if first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *others]
    if not support.system:
        return [{**first, "content": f"{text}\n\n{first['content']}"}, *others]
    return [{"role": "system", "content": text}, first, *others]
