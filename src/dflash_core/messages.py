"""Messages of a conversation, and the prompt that a model is given for them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dflash_core.errors import TemplateError
from dflash_core.prefix import common_prefix
from dflash_core.text.prompt import Rendered, render_ids, system_end
from dflash_core.text.reasoning import Effort
from dflash_core.text.template import ChatTemplate
from dflash_core.text.template_values import JSON, NO_TOOLS, NO_VARIABLES, Messages, Tools, Variables
from dflash_core.text.tokenizer import Tokenizer
from dflash_core.text.tool_calls.support import fitted, uses_tools
from dflash_core.turn_stats import TurnReport

SLOW_TEMPLATE_S = 1.5  # a template slower than this renders only the prompt: the user may be waiting to stop


Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Call:
    """A model's call of a tool. `id` pairs it with its result; `arguments` in the order in which they came."""

    id: str
    name: str
    arguments: Mapping[str, JSON]

    @property
    def arguments_json(self) -> str:
        """The arguments as JSON text."""
        return json.dumps(self.arguments, ensure_ascii=False)


def arguments_of(text: str) -> Mapping[str, JSON]:
    """The arguments of a call in a history. A model wrote them, so what is no JSON object is not refused."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = text
    return found if isinstance(found, dict) else {"arguments": found}


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `report`: how an answer was generated; None unless it was generated here. `calls`: an answer's,
    after its content. A tool's message is the result of the call `call_id` of the tool `name`."""

    role: Role
    content: str
    thinking: str = ""
    report: TurnReport | None = None
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a turn. The first `stable` ids will also begin the prompt of the turn after it, whatever that is.
    `effort` is the level of reasoning that the template was given. `sinks`: the first ids, which an attention window
    always shows; 0 where there is none. With tools, `head`: ids that every conversation with the same system message
    and tools begins with; `continued`: ids that also begin the prompt with the results of calls in this answer.
    """

    ids: tuple[int, ...]
    text: str
    opens_thinking: bool
    stable: int
    effort: Effort = ""
    sinks: int = 0
    head: int = 0
    continued: int = 0

    @property
    def keep(self) -> tuple[int, ...]:
        """The lengths that later prompts will share, shortest first."""
        return tuple(sorted({self.head, self.stable, self.continued} - {0}))


def build_prompt(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    thinking: bool,
    variables: Variables = NO_VARIABLES,
    tools: Tools = NO_TOOLS,
) -> Prompt:
    """The prompt that asks for the answer to the last of `messages`. `variables`: what the template gets in addition
    to `thinking`, see `ChatTemplate.reasoning`. `tools`: what the model may call. Raises TemplateError, also for a
    template that leaves out what the user writes, which one for other roles does."""

    def rendered(turns: Sequence[Message], generate: bool = True) -> Rendered:
        return render(tokenizer, template, turns, thinking, variables, tools, generate=generate)

    def shared(turns: Sequence[Message], generate: bool = True) -> int | None:
        """How many ids of the prompt another one begins with; None where the template refuses that one."""
        try:
            return common_prefix(now.ids, rendered(turns, generate).ids)
        except TemplateError:  # a template with rules of its own
            return None

    began = time.monotonic()
    now = rendered(messages)
    prompt = Prompt(now.ids, now.text, now.opens_thinking, stable=0)
    if time.monotonic() - began > SLOW_TEMPLATE_S:
        return prompt
    asked = messages[-1]
    if [one.role for one in messages if one.role != "system"] == ["user"] and asked.content.strip():
        other = replace(asked, content="b" if asked.content.strip() == "a" else "a")
        if rendered([*messages[:-1], other]).ids == now.ids:
            raise TemplateError(
                "the model's chat template leaves out messages of the role user, expected one for the roles system,"
                " user, assistant and tool; use a file with the template that the model was published with"
            )
    # What the next prompt begins with cannot be read off this one: templates end it with an opening that the history
    # will not have, drop reasoning from earlier turns, or move the system prompt. So a next turn is rendered, and also
    # only the history: there, no first character of an answer can have merged with what comes before it.
    following = [shared(messages, generate=False), shared([*messages, Message("assistant", "a", "a"), _QUESTION])]
    if not tools:  # where one is refused, nothing is known of the next prompt
        return replace(prompt, stable=min(one or 0 for one in following))
    call = Call("call_a", _name(tools[0]), {})
    answered = (Message("assistant", "", "a", calls=(call,)), Message("tool", "a", call_id=call.id, name=call.name))
    # The history alone may be refused with a call in it that has no result yet, and the other way round.
    continued = min([one for one in (following[0], shared([*messages, *answered])) if one is not None], default=0)
    stable = min([one for one in (*following, continued) if one], default=0)
    first = next((place for place, message in enumerate(messages) if message.role == "user"), len(messages))
    begins = "".join(message.content for message in messages[first : first + 1]).strip()[:1]
    other = Message("user", "b" if begins == "a" else "a")
    return replace(prompt, stable=stable, continued=continued, head=shared([*messages[:first], other]) or 0)


_QUESTION = Message("user", "a")


def render(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    thinking: bool,
    variables: Variables = NO_VARIABLES,
    tools: Tools = NO_TOOLS,
    *,
    generate: bool = True,
) -> Rendered:
    """Messages and tools as the template writes them, as `build_prompt` without what later prompts share. Raises
    TemplateError."""
    of: Messages = [to_template(message) for message in messages]
    if uses_tools(of, tools):
        of, tools = fitted(of, tools, template.tools)
    return render_ids(tokenizer, template, of, thinking=thinking, generate=generate, variables=variables, tools=tools)


def _name(tool: Mapping[str, JSON]) -> str:
    function = tool.get("function")
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""


def visible_end(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    prompt: Prompt,
    thinking: bool,
    variables: Variables,
) -> int:
    """How many ids of `prompt` an attention window has to show for the system message; all where that is not known."""
    turns = [to_template(message) for message in messages]
    try:
        end = system_end(tokenizer, template, turns, thinking=thinking, variables=variables)
    except TemplateError:  # of a template with rules of its own
        end = None
    return len(prompt.ids) if end is None else min(end, len(prompt.ids))


def to_template(message: Message) -> dict[str, JSON]:
    """A message as templates read it."""
    fields: dict[str, JSON] = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        fields["reasoning_content"] = message.thinking
    if message.calls:
        fields["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.role == "tool":
        fields |= {"tool_call_id": message.call_id, "name": message.name}
    return fields
