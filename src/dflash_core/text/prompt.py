"""Turns messages into the ids of a prompt. Nothing typed into a message becomes a special token.

A template writes the special tokens of a prompt as text between the messages, and the text is tokenised afterwards; a
message that contains "<|im_end|>" would end its own turn. So the character that each special name begins with ("<" in
practice) is replaced in the messages by a rare character before rendering, and put back after the special names have
been cut out of the rendered text: what then still looks like one is encoded as ordinary text. The same is done to the
descriptions of tools and to the arguments of calls, names of arguments included.

The exchange is character for character, so that what templates do to messages - trim, split, compare, measure - works
as before, with one limit: a template does not recognise markup inside a message. (Reasoning is therefore handed over
in its own field, not in the content.) The other limit: a template that writes a bare "<" itself and a message's text
right after it could still form a name; no published one does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from dflash_core.knobs import Knobs
from dflash_core.text.reasoning import Effort
from dflash_core.text.template import ChatTemplate
from dflash_core.text.template_values import JSON, NO_TOOLS, Messages, Tools, Variables
from dflash_core.text.thinking import opens_thinking
from dflash_core.text.tokenizer import Tokenizer

# The symbols of a script that is hardly ever typed (Sutton SignWriting), then private use. The first are printable:
# a template that prints a mapping as Python does would write the others as escapes.
_RARE = (range(0x1D800, 0x1DA00), range(0xF0000, 0xFFFFE))


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered and encoded conversation, the prompt of a turn; `text` is for reading, `ids` is what counts. The first
    `stable` ids will also begin the prompt of the turn after it, whatever that is.
    `effort` is the level of reasoning that the template was given. `sinks`: the first ids, which an attention window
    always shows; 0 where there is none. With tools, `head`: ids that every conversation with the same system message
    and tools begins with; `continued`: ids that also begin the prompt with the results of calls in this answer.
    `begun`: the last ids are the beginning of the answer, which goes on from there.
    """

    ids: tuple[int, ...]
    text: str
    opens_thinking: bool
    stable: int = 0
    effort: Effort = ""
    sinks: int = 0
    head: int = 0
    continued: int = 0
    begun: int = 0

    @property
    def keep(self) -> tuple[int, ...]:
        """The lengths that later prompts will share, shortest first."""
        return tuple(sorted({self.head, self.stable, self.continued} - {0}))

    @property
    def answered(self) -> tuple[int, ...]:
        """The ids of the answer's beginning."""
        return self.ids[len(self.ids) - self.begun :]


@dataclass(frozen=True, slots=True)
class Prompting:
    """What a prompt depends on beside its messages: the model's tokenizer and template, and what the template is given,
    see `ChatTemplate.render`."""

    tokenizer: Tokenizer
    template: ChatTemplate
    thinking: bool
    variables: Variables = field(default_factory=dict)
    tools: Tools = NO_TOOLS

    @classmethod
    def of(cls, tokenizer: Tokenizer, template: ChatTemplate, knobs: Knobs, tools: Tools) -> Prompting:
        """Raises KnobError for a level of reasoning that the template refuses."""
        return cls(tokenizer, template, knobs.thinking, template.reasoning.variables(knobs), tools)

    def render(self, messages: Messages, *, generate: bool = True) -> Prompt:
        """Render `messages` and encode the result. Raises TemplateError."""
        guard = self._guard(messages)
        restore = {stand_in: character for character, stand_in in guard.items()}
        # Roles are the program's own words, and templates compare them.
        guarded = [
            {key: value if key == "role" else _translated(value, guard) for key, value in message.items()}
            for message in messages
        ]
        tools = [{key: _translated(value, guard) for key, value in tool.items()} for tool in self.tools]
        rendered = self.template.render(
            guarded, thinking=self.thinking, generate=generate, variables=self.variables, tools=tools
        )
        ids: list[int] = []
        for one in self.tokenizer.segments(rendered):
            ids += [one] if isinstance(one, int) else self.tokenizer.encode(one.translate(restore), special=False)
        text = rendered.translate(restore)
        return Prompt(tuple(self.tokenizer.begun(ids)), text, opens_thinking(rendered))

    def _guard(self, messages: Messages) -> dict[int, int]:
        """Stand-ins, which no prompt contains otherwise, for the characters that special names begin with."""
        present = set(json.dumps([messages, self.tools], ensure_ascii=False)).union(self.template.source)
        free = (code for code in chain(*_RARE) if chr(code) not in present)
        # White space cannot be replaced, as templates trim it; the first other character of a name is replaced instead.
        firsts = {name.strip()[0] for name in self.tokenizer.special if name.strip()}
        return {ord(first): stand_in for first, stand_in in zip(sorted(firsts), free)}


def _translated(value: JSON, guard: Mapping[int, int]) -> JSON:
    if isinstance(value, str):
        return value.translate(guard)
    if isinstance(value, Mapping):
        return {key.translate(guard): _translated(item, guard) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_translated(item, guard) for item in value]
    return value
