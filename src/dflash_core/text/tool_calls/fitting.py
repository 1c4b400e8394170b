"""Messages with calls and results, as a template can render them.

Where a template knows no tools, they are described in the system message, or in the first one where it knows no such
message, and calls are written as Hermes does: most models have seen that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from dflash_core.text.template_values import JSON, NO_TOOLS, Messages, Tools
from dflash_core.text.tool_calls.hermes import HermesParser
from dflash_core.text.tool_calls.support import ToolSupport

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
    if not support.renders:
        return [*_described(_in_words(messages), tools, support)], NO_TOOLS
    one_by_one = messages if support.several else [*_one_by_one(messages)]
    return [_result(message, support) for message in one_by_one], tools


def _result(message: Mapping[str, JSON], support: ToolSupport) -> Mapping[str, JSON]:
    if message["role"] != "tool":
        return message
    if support.result_role == "user":
        return {"role": "user", "content": _response(message)}
    return {**message, "role": support.result_role}


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
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, Sequence) else ()


def _in_words(messages: Messages) -> Iterator[Mapping[str, JSON]]:
    """Calls and results as text. Results that follow each other are one message: some templates want turns to
    alternate."""
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(_response(message))
            continue
        if results:
            yield {"role": "user", "content": "\n".join(results)}
            results = []
        calls = [f"{HermesParser.open}\n{_written(call)}\n{HermesParser.close}" for call in _calls(message)]
        if calls:
            content = [str(message["content"]), *calls] if message["content"] else calls
            yield {**{key: message[key] for key in message if key != "tool_calls"}, "content": "\n".join(content)}
        else:
            yield message
    if results:
        yield {"role": "user", "content": "\n".join(results)}


def _written(call: Mapping[str, JSON]) -> str:
    function = call["function"]
    assert isinstance(function, Mapping), "a call without a function"
    return json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)


def _described(
    messages: Iterator[Mapping[str, JSON]], tools: Tools, support: ToolSupport
) -> Iterator[Mapping[str, JSON]]:
    """With the tools described in the first message."""
    if not tools:
        yield from messages
        return
    text = _HOW.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    first = next(messages, None)
    if first is not None and first["role"] == "system":
        yield {**first, "content": f"{first['content']}\n\n{text}"}
    elif first is not None and not support.system:
        yield {**first, "content": f"{text}\n\n{first['content']}"}
    else:
        yield {"role": "system", "content": text}
        if first is not None:
            yield first
    yield from messages
