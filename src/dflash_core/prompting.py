"""The prompt that a model is given for the messages of a conversation."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from dflash_core.errors import LateTemplateError, TemplateError
from dflash_core.messages import Call, Message, to_template
from dflash_core.prefix import common_prefix
from dflash_core.text.prompt import Prompt, Prompting
from dflash_core.text.template_values import JSON, Messages
from dflash_core.text.thinking import CLOSE, OPEN
from dflash_core.text.tokenizer import Tokenizer
from dflash_core.text.tool_calls.support import fitted, uses_tools

SLOW_TEMPLATE_S = 1.5  # a template slower than this renders only the prompt: the user may be waiting to stop


def build_prompt(of: Prompting, messages: Sequence[Message]) -> Prompt:
    """The prompt that asks for the answer to the last of `messages`. Raises TemplateError, also for a template that
    leaves out what the user writes, which one for other roles does."""

    def shared(turns: Sequence[Message], generate: bool = True) -> int | None:
        """How many ids of the prompt another one begins with; None where the template refuses that one."""
        try:
            return common_prefix(now.ids, render(of, turns, generate=generate).ids)
        except TemplateError:  # a template with rules of its own
            return None

    began = time.monotonic()
    now = render(of, messages)
    if time.monotonic() - began > SLOW_TEMPLATE_S:
        return now
    written = messages[-1].content.strip()
    single = [one.role for one in messages if one.role != "system"] == ["user"]
    unseen = single and bool(written) and written not in now.text  # left out, or changed
    if unseen and render(of, [*messages[:-1], _other(written)]).text == now.text:
        raise TemplateError(
            "the model's chat template leaves out messages of the role user, expected one for the roles system,"
            " user, assistant and tool; use a file with the template that the model was published with"
        )
    # What the next prompt begins with cannot be read off this one: templates end it with an opening that the history
    # will not have, drop reasoning from earlier turns, or move the system prompt. So a next turn is rendered, and also
    # only the history: there, no first character of an answer can have merged with what comes before it.
    following = [shared(messages, generate=False), shared([*messages, Message("assistant", "a", "a"), _QUESTION])]
    if not of.tools:  # where one is refused, nothing is known of the next prompt
        return replace(now, stable=min(one or 0 for one in following))
    call = Call("call_a", _name(of.tools[0]), {})
    answered = (Message("assistant", "", "a", calls=(call,)), Message("tool", "a", call_id=call.id, name=call.name))
    # A template may refuse the history with a call that has no result yet, or only together with the result.
    continued = min([one for one in (following[0], shared([*messages, *answered])) if one is not None], default=0)
    stable = min([one for one in (*following, continued) if one], default=0)
    first = next((place for place, message in enumerate(messages) if message.role == "user"), len(messages))
    other = _other("".join(message.content for message in messages[first : first + 1]))
    return replace(now, stable=stable, continued=continued, head=shared([*messages[:first], other]) or 0)


_QUESTION = Message("user", "a")


def _other(question: str) -> Message:
    """A question that begins with another letter than `question`."""
    return Message("user", "b" if question.strip()[:1] == "a" else "a")


def going_on(prompt: Prompt, tokenizer: Tokenizer, answer: Message) -> Prompt:
    """`prompt` with the beginning of its answer, as a model writes it: no template is asked, as most close a message
    and some rewrite it. Without a text, a line break at least, the reasoning stays open; without reasoning none is
    opened."""
    thinking, channels = answer.thinking, tokenizer.channels
    if channels is not None:
        before, between = channels.opening if thinking else channels.answer, channels.closing
    else:
        between = f"\n{CLOSE}\n\n"
        before = "" if prompt.opens_thinking == bool(thinking) else f"{OPEN}\n" if thinking else between
    # Only what the model's own markup has in it becomes special tokens.
    pieces: list[str | int] = [*tokenizer.segments(before), thinking]
    if answer.content:
        after = answer.content.lstrip("\n") if thinking else answer.content
        pieces += [*tokenizer.segments(between), after] if thinking else [after]
    ids: list[int] = []
    for kind, run in groupby(pieces, type):
        parts: list[Any] = [*run]
        ids += parts if kind is int else tokenizer.encode("".join(parts), special=False)
    return begun(prompt, tokenizer, ids)


def begun(prompt: Prompt, tokenizer: Tokenizer, ids: Sequence[int]) -> Prompt:
    """`prompt` with `ids` as the beginning of its answer."""
    text = b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")
    return replace(prompt, ids=(*prompt.ids, *ids), text=prompt.text + text, begun=len(ids))


def render(of: Prompting, messages: Sequence[Message], *, generate: bool = True) -> Prompt:
    """Messages and tools as the template writes them, as `build_prompt` without what later prompts share. Raises
    TemplateError."""
    turns: Messages = [to_template(message) for message in messages]
    if uses_tools(turns, of.tools):
        turns, tools = fitted(turns, of.tools, of.template.tools)
        of = replace(of, tools=tools)
    try:
        return of.render(turns, generate=generate)
    except LateTemplateError:
        raise
    except TemplateError:
        # Some refuse an answer without text, as one that was stopped while it thought: a conversation goes on after it.
        filled = [_filled(turn) for turn in turns]
        if filled == turns:
            raise
        return of.render(filled, generate=generate)


def _filled(turn: Mapping[str, JSON]) -> Mapping[str, JSON]:
    empty = turn["role"] == "assistant" and not turn["content"] and not turn.get("tool_calls")
    return {**turn, "content": " "} if empty else turn


def _name(tool: Mapping[str, JSON]) -> str:
    function = tool.get("function")
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""


def visible_end(of: Prompting, messages: Sequence[Message], prompt: Prompt) -> int:
    """How many ids of `prompt` an attention window has to show for the system message, wherever the template puts it:
    up to where a longer one would begin to differ. All where that is not known."""
    at = next((n for n, one in enumerate(messages) if one.role == "system" and one.content.strip()), None)
    if at is None:
        return 0
    longer = [*messages]
    longer[at] = replace(messages[at], content=messages[at].content + " a")
    try:
        end = common_prefix(prompt.ids, render(of, longer).ids)
    except TemplateError:  # of a template with rules of its own
        end = len(prompt.ids)
    return min(end + 1, len(prompt.ids))  # the first id that differs may also hold the message's end
