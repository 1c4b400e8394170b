"""Turns messages into the ids of a prompt. Nothing typed into a message becomes a special token.

A template writes the special tokens of a prompt as text between the messages, and the text is tokenised afterwards; a
message that contains "<|im_end|>" would end its own turn. So the character that each special name begins with ("<" in
practice) is replaced in the messages by a private-use character before rendering, and put back after the special names
have been cut out of the rendered text: what then still looks like one is encoded as ordinary text.

The exchange is character for character, so that what templates do to messages - trim, split, compare, measure - works
as before, with one limit: a template does not recognise markup inside a message. (Reasoning is therefore handed over
in its own field, not in the content.) The other limit: a template that writes a bare "<" itself and a message's text
right after it could still form a name; no published one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dflash_core.text.reasoning import NO_VARIABLES, Messages, Variables
from dflash_core.text.template import ChatTemplate
from dflash_core.text.thinking import opens_thinking
from dflash_core.text.tokenizer import Tokenizer

_PRIVATE_USE = range(0xF0000, 0xFFFFE)


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
) -> Rendered:
    """Render `messages` and encode the result. Raises TemplateError."""
    guard = _guard(tokenizer.special, _texts(template, messages))
    restore = {stand_in: character for character, stand_in in guard.items()}
    rendered = template.render(_guarded(messages, guard), thinking=thinking, generate=generate, variables=variables)
    return Rendered(_encoded(tokenizer, rendered, restore), rendered.translate(restore), opens_thinking(rendered))


def system_end(
    tokenizer: Tokenizer, template: ChatTemplate, messages: Messages, *, thinking: bool, variables: Variables
) -> int | None:
    """How many ids of a prompt reach to the end of its first system message, wherever the template puts it; 0 without
    one, None where the template does not let its end be found. Raises TemplateError."""
    system = next((at for at, message in enumerate(messages) if message["role"] == "system"), None)
    if system is None or not messages[system]["content"].strip():
        return 0
    guard = _guard(tokenizer.special, _texts(template, messages))
    # A character that occurs nowhere else follows the message.
    mark = next(chr(code) for code in _free(_texts(template, messages)) if code not in guard.values())
    marked = _guarded(messages, guard)
    marked[system] = {**marked[system], "content": marked[system]["content"] + mark}
    rendered = template.render(marked, thinking=thinking, generate=True, variables=variables)
    if mark not in rendered:
        return None
    restore = {stand_in: character for character, stand_in in guard.items()}
    # Without the mark, the last id may also contain the text that follows.
    return len(_encoded(tokenizer, rendered[: rendered.rindex(mark)], restore)) + 1


def _texts(template: ChatTemplate, messages: Messages) -> tuple[str, ...]:
    return (*(value for message in messages for value in message.values()), template.source)


def _guarded(messages: Messages, guard: Mapping[int, int]) -> list[dict[str, str]]:
    # Roles are the program's own words, and templates compare them.
    return [
        {key: value if key == "role" else value.translate(guard) for key, value in message.items()}
        for message in messages
    ]


def _encoded(tokenizer: Tokenizer, rendered: str, restore: Mapping[int, int]) -> tuple[int, ...]:
    ids: list[int] = []
    for segment in tokenizer.segments(rendered):
        ids += [segment] if isinstance(segment, int) else tokenizer.encode(segment.translate(restore), special=False)
    return tuple(tokenizer.begun(ids))


def _guard(special: Iterable[str], texts: Sequence[str]) -> dict[int, int]:
    """Stand-ins, found in none of `texts`, for the characters that special names begin with."""
    # White space cannot be replaced, as templates trim it; the first other character of a name is replaced instead.
    firsts = {name.strip()[0] for name in special if name.strip()}
    return {ord(first): stand_in for first, stand_in in zip(sorted(firsts), _free(texts))}


def _free(texts: Sequence[str]) -> Iterator[int]:
    """Private-use characters that occur in none of `texts`."""
    present = set().union(*texts)
    return (code for code in _PRIVATE_USE if chr(code) not in present)
