"""Messages to the ids of a prompt, so that nothing typed into a message becomes a special token.

A template writes the special tokens of a prompt as text between the messages, and the text is tokenised afterwards; a
message that contains "<|im_end|>" would end its own turn. So the character that each special name begins with ("<" in
practice) is replaced in the messages by a private-use character before rendering, and put back after the special names
have been cut out of the rendered text: what then still looks like one is encoded as ordinary text.

The exchange is character for character, so that what templates do to messages - trim, split, compare, measure - works
as before, with one limit: a template does not recognise markup inside a message. (Reasoning is therefore handed over
in its own field, not in the content.) The other limit: a template that writes a bare "<" itself and a message's text
right behind it could still form a name; no published one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
    messages: Sequence[Mapping[str, str]],
    *,
    thinking: bool,
    generate: bool = True,
    variables: Mapping[str, str | bool] = {},
) -> Rendered:
    """Render `messages` and encode the result. Raises TemplateError."""
    values = [value for message in messages for value in message.values()]
    guard = _guard(tokenizer.special, (*values, template.source))
    restore = {stand_in: character for character, stand_in in guard.items()}
    # Roles are the program's own words, and templates compare them.
    guarded = [
        {key: value if key == "role" else value.translate(guard) for key, value in message.items()}
        for message in messages
    ]
    rendered = template.render(guarded, thinking=thinking, generate=generate, variables=variables)
    ids: list[int] = []
    for segment in tokenizer.segments(rendered):
        ids += [segment] if isinstance(segment, int) else tokenizer.encode(segment.translate(restore), special=False)
    return Rendered(tuple(ids), rendered.translate(restore), opens_thinking(rendered))


def _guard(special: Iterable[str], texts: Iterable[str]) -> dict[int, int]:
    """Stand-ins, found in none of `texts`, for the characters that special names begin with."""
    # White space cannot be exchanged, templates trim it; the first other character of a name does as well.
    firsts = {name.strip()[0] for name in special if name.strip()}
    present = set().union(*texts)
    free = (code for code in _PRIVATE_USE if chr(code) not in present)
    return {ord(first): stand_in for first, stand_in in zip(sorted(firsts), free)}
