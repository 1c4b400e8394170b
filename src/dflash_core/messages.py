"""Messages of a conversation, and the prompt that a model is given for them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dflash_core.errors import TemplateError
from dflash_core.prefix import common_prefix
from dflash_core.text.prompt import render_ids, system_end
from dflash_core.text.reasoning import Effort
from dflash_core.text.template import ChatTemplate
from dflash_core.text.tokenizer import Tokenizer
from dflash_core.turn_stats import TurnReport

SLOW_TEMPLATE_S = 1.5  # a template slower than this renders only the prompt: the user may be waiting to stop


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `report`: how an answer was generated; None unless it was generated here."""

    role: Literal["system", "user", "assistant"]
    content: str
    thinking: str = ""
    report: TurnReport | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a turn. The first `stable` ids will also begin the prompt of the turn after it. `effort` is the
    level of reasoning that the template was given. `sinks`: the first ids, which an attention window always shows; 0
    where there is none."""

    ids: tuple[int, ...]
    text: str
    opens_thinking: bool
    stable: int
    effort: Effort = ""
    sinks: int = 0


def build_prompt(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    thinking: bool,
    variables: Mapping[str, str | bool] = {},
) -> Prompt:
    """The prompt that asks for the answer to the last of `messages`. `variables`: what the template gets in addition
    to `thinking`, see `ChatTemplate.reasoning`. Raises TemplateError."""
    turns = [to_template(message) for message in messages]
    began = time.monotonic()
    now = render_ids(tokenizer, template, turns, thinking=thinking, variables=variables)
    stable = len(now.ids)
    if time.monotonic() - began > SLOW_TEMPLATE_S:
        return Prompt(now.ids, now.text, now.opens_thinking, stable=0)
    # What the next prompt begins with cannot be read off this one: templates end it with an opening that the history
    # will not have, drop reasoning from earlier turns, or move the system prompt. So a next turn is rendered, and also
    # only the history: there, no first character of an answer can have merged with what comes before it.
    answered = [*messages, Message("assistant", "a", "a"), Message("user", "a")]
    for later, generate in ((turns, False), ([to_template(message) for message in answered], True)):
        try:
            again = render_ids(tokenizer, template, later, thinking=thinking, generate=generate, variables=variables)
        except TemplateError:  # a template with rules of its own; then nothing is known of the next prompt
            return Prompt(now.ids, now.text, now.opens_thinking, stable=0)
        stable = min(stable, common_prefix(now.ids, again.ids))
    return Prompt(now.ids, now.text, now.opens_thinking, stable)


def visible_end(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    prompt: Prompt,
    thinking: bool,
    variables: Mapping[str, str | bool],
) -> int:
    """How many ids of `prompt` an attention window has to show for the system message; all where that is not known."""
    turns = [to_template(message) for message in messages]
    try:
        end = system_end(tokenizer, template, turns, thinking=thinking, variables=variables)
    except TemplateError:  # of a template with rules of its own
        end = None
    return len(prompt.ids) if end is None else min(end, len(prompt.ids))


def to_template(message: Message) -> dict[str, str]:
    fields = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        fields["reasoning_content"] = message.thinking
    return fields
