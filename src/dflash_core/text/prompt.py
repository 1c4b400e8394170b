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
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from dflash_core.text.template import ChatTemplate
from dflash_core.text.template_values import JSON, NO_TOOLS, NO_VARIABLES, Messages, Tools, Variables
from dflash_core.text.thinking import opens_thinking
from dflash_core.text.tokenizer import Tokenizer

# The symbols of a script that is hardly ever typed (Sutton SignWriting), then private use. The first are printable:
# a template that prints a mapping as Python does would write the others as escapes.
_RARE = (range(0x1D800, 0x1DA00), range(0xF0000, 0xFFFFE))


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered and encoded conversation; `text` is for reading, `ids` is what counts."""

    ids: tuple[int, ...]
    text: str
    opens_thinking: bool


def render_ids(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Messages,
    *,
    thinking: bool,
    generate: bool = True,
    variables: Variables = NO_VARIABLES,
    tools: Tools = NO_TOOLS,
) -> Rendered:
    """Render `messages` and encode the result. Raises TemplateError."""
    guard = _guard(tokenizer.special, _present(template, messages, tools))
    restore = {stand_in: character for character, stand_in in guard.items()}
    rendered = template.render(
        _guarded(messages, guard),
        thinking=thinking,
        generate=generate,
        variables=variables,
        tools=[{key: _translated(value, guard) for key, value in tool.items()} for tool in tools],
    )
    return Rendered(_encoded(tokenizer, rendered, restore), rendered.translate(restore), opens_thinking(rendered))


def system_end(
    tokenizer: Tokenizer, template: ChatTemplate, messages: Messages, *, thinking: bool, variables: Variables
) -> int | None:
    """How many ids of a prompt reach to the end of its first system message, wherever the template puts it; 0 without
    one, None where the template does not let its end be found. Raises TemplateError."""
    system = next((at for at, message in enumerate(messages) if message["role"] == "system"), None)
    if system is None or not str(messages[system]["content"]).strip():
        return 0
    present = _present(template, messages)
    guard = _guard(tokenizer.special, present)
    # A character that occurs nowhere else follows the message.
    mark = next(chr(code) for code in _free(present) if code not in guard.values())
    marked = _guarded(messages, guard)
    marked[system] = {**marked[system], "content": f"{marked[system]['content']}{mark}"}
    rendered = template.render(marked, thinking=thinking, generate=True, variables=variables)
    if mark not in rendered:
        return None
    restore = {stand_in: character for character, stand_in in guard.items()}
    # Without the mark, the last id may also contain the text that follows.
    return len(_encoded(tokenizer, rendered[: rendered.rindex(mark)], restore)) + 1


def _present(template: ChatTemplate, messages: Messages, tools: Tools = NO_TOOLS) -> set[str]:
    """The characters that a prompt may contain."""
    return set(json.dumps([messages, tools], ensure_ascii=False)).union(template.source)


def _guarded(messages: Messages, guard: Mapping[int, int]) -> list[dict[str, JSON]]:
    # Roles are the program's own words, and templates compare them.
    return [
        {key: value if key == "role" else _translated(value, guard) for key, value in message.items()}
        for message in messages
    ]


def _translated(value: JSON, guard: Mapping[int, int]) -> JSON:
    if isinstance(value, str):
        return value.translate(guard)
    if isinstance(value, Mapping):
        return {key.translate(guard): _translated(item, guard) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_translated(item, guard) for item in value]
    return value


def _encoded(tokenizer: Tokenizer, rendered: str, restore: Mapping[int, int]) -> tuple[int, ...]:
    ids: list[int] = []
    for segment in tokenizer.segments(rendered):
        ids += [segment] if isinstance(segment, int) else tokenizer.encode(segment.translate(restore), special=False)
    return tuple(tokenizer.begun(ids))


def _guard(special: Iterable[str], present: Set[str]) -> dict[int, int]:
    """Stand-ins, none of them `present`, for the characters that special names begin with."""
    # White space cannot be replaced, as templates trim it; the first other character of a name is replaced instead.
    firsts = {name.strip()[0] for name in special if name.strip()}
    return {ord(first): stand_in for first, stand_in in zip(sorted(firsts), _free(present))}


def _free(present: Set[str]) -> Iterator[int]:
    """Rare characters that are not `present`."""
    return (code for code in chain(*_RARE) if chr(code) not in present)
