"""A model's tokenizer: text to ids and back, special tokens only where the caller allows them.

The merging is done by the `tokenizers` library, over the ordinary tokens. Special tokens are cut out of the text
here, before the library sees it, and are not in the library's vocabulary: text encoded with `special=False` can
therefore not contain one, whatever was typed.
"""

from __future__ import annotations

import codecs
import functools
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from dflash_core.clean import joined
from dflash_core.text.pieces import pieces_of
from dflash_core.text.thinking import CHANNEL_TOKENS, CLOSE, OPEN, ChannelReader, channels_of
from dflash_core.text.vocabulary import CONTROL, UNKNOWN, UNUSED, USER_DEFINED, Vocabulary

# Tokens that end an answer by their name, whether or not the file's eos key says so (llama.cpp's list).
END_NAMES = (
    "<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
    "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>", "<turn|>", "<|tool_response>",
    "<|end|>", "<|return|>", "<|call|>", "<|observation|>",
)  # fmt: skip
# "<|end|>" ends an answer, except where these do: there it ends one of several messages of an answer.
CHANNEL_ENDS = ("<|return|>", "<|call|>")
THINK_TAGS = (OPEN, CLOSE)

_SURROGATES = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """The tokenizer of one model file.

    `special` maps the name of every special token to its id, `stop_ids` holds every token that ends an answer, and
    `hidden` those that never become text: control tokens and padding rows, the think tags excepted. `channels`: how the
    model names its reasoning, where it has no think tags. `notes`: what a user should know of it.

    A user-defined token is special too, except where the kind of tokenizer makes it ordinary text (`text_is_cut` of
    its pieces), the chat template does not write it, and it names no channel: then it is cut out of every text, also of
    what a user types.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises FormatError for tokens, merges or scores that do not fit each other, UnsupportedError for a kind of
        tokenizer or a pre-tokenizer that is unknown."""
        tokens, ids = vocabulary.tokens, vocabulary.ids
        self._tokens = tokens
        self.bos_token_id, self.eos_token_id, self.mask_token_id = ids.get("bos"), ids.get("eos"), ids.get("mask")
        self.chat_template = vocabulary.chat_template

        odd = vocabulary.of_type(UNKNOWN, CONTROL, USER_DEFINED, UNUSED)
        named = {tokens[id]: id for id in odd}
        ends = {name for name in END_NAMES if name in named}
        if ends.issuperset(CHANNEL_ENDS):
            ends.discard("<|end|>")
        self.stop_ids = frozenset(id for id in (ids.get("eos"), ids.get("eot"), *vocabulary.ends) if id is not None)
        self.stop_ids |= {named[name] for name in ends}
        # An end token is a control token even where the file gives the token the type of an ordinary one.
        purposes = (*self.stop_ids, self.bos_token_id, self.mask_token_id)
        odd |= {id: CONTROL for id in purposes if id is not None}
        self._pieces = pieces_of(vocabulary, odd)
        self.adds_bos = self._pieces.adds_bos if vocabulary.add_bos is None else vocabulary.add_bos

        ordinary = {id for id, kind in odd.items() if kind == USER_DEFINED} if self._pieces.text_is_cut else set[int]()
        written = self.chat_template or ""
        ordinary = {
            id
            for id in ordinary
            if not (tokens[id].strip() and (tokens[id] in written or tokens[id] in CHANNEL_TOKENS))
        }
        self.special: Mapping[str, int] = {
            tokens[id]: id for id, kind in odd.items() if kind != UNUSED and tokens[id] and id not in ordinary
        }
        self._cut: Mapping[str, int] = {self._pieces.bytes_of(tokens[id]).decode(): id for id in ordinary if tokens[id]}
        self.hidden = frozenset(id for id, kind in odd.items() if kind != USER_DEFINED and tokens[id] not in THINK_TAGS)
        self.channels = channels_of(self.special)
        self._special_pattern, self._cut_pattern = _any_of(self.special), _any_of(self._cut)
        # Letters of an ordinary token are bytes; the name of a special one is text.
        self._longest = max(1, *map(len, tokens), *(len(name.encode(errors="replace")) for name in self.special))
        # Every turn encodes the whole conversation; the messages of earlier turns come from this cache.
        self._encode_plain = functools.lru_cache(maxsize=512)(self._merge)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """The tokenizer that a GGUF file describes.

        Raises FormatError for missing or malformed keys, UnsupportedError for a tokenizer of another kind.
        """
        return cls(Vocabulary.of(metadata))

    @property
    def think_ids(self) -> tuple[int, int] | None:
        """The tokens that open and close reasoning, if the vocabulary has a pair of them."""
        found = tuple(self.special[tag] for tag in THINK_TAGS if tag in self.special)
        return (found[0], found[1]) if len(found) == 2 else None

    @property
    def closing_ids(self) -> list[int]:
        """What ends reasoning in the model's place."""
        return self.encode(CLOSE if self.channels is None else self.channels.closing)

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    def name(self, id: int) -> str:
        """A token as the file spells it. Raises IndexError."""
        return self._tokens[id]

    def prepare(self) -> None:
        """Build now what the first text would have to wait for; any thread may call. Raises FormatError."""
        self._pieces.prepare()

    def segments(self, text: str) -> Iterator[str | int]:
        """`text` cut at its special tokens: ids for these, strings for what lies between."""
        return _cut(text, self._special_pattern, self.special)

    def min_tokens(self, text: str) -> int:
        """A lower bound of the number of tokens of `text`, computed without tokenising it."""
        text = self._pieces.composed(_whole(text))  # composed text is shorter
        return -(-len(text.encode()) // self._longest)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of `text`. With `special=False`, names of special tokens are ordinary text."""
        ids: list[int] = []
        for segment in self.segments(text) if special else [text]:
            ids += [segment] if isinstance(segment, int) else self._encode_plain(segment)
        return ids

    def begun(self, ids: Sequence[int]) -> list[int]:
        """The ids of a whole prompt: after the BOS token, where prompts begin with it and a template has not put it
        there."""
        bos = self.bos_token_id if self.adds_bos else None
        return [*ids] if bos is None or (ids and ids[0] == bos) else [bos, *ids]

    def _merge(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        for part in _cut(_whole(text), self._cut_pattern, self._cut):
            ids += [part] if isinstance(part, int) else self._pieces.encode(part)
        return tuple(ids)

    def token_bytes(self, id: int) -> bytes:
        """The bytes of a token; nothing for an id beyond the vocabulary (a padding row of the output layer)."""
        if not 0 <= id < len(self._tokens):
            return b""
        return self._pieces.bytes_of(self._tokens[id])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`: without control tokens but with think tags, U+FFFD for bytes that are not UTF-8."""
        return self.reader()(ids).decode("utf-8", "replace")

    def reader(self, shown: Collection[str] = ()) -> Callable[[Iterable[int]], bytes]:
        """Turns the ids of one answer, piece by piece, into the bytes of those that become text. `shown`: names of
        special tokens that do, although they are hidden otherwise; with all tokens of its channels these stay too."""
        hidden = self.hidden.difference(self.special.get(name, -1) for name in shown)

        def visible(ids: Iterable[int]) -> bytes:
            return b"".join([self.token_bytes(id) for id in ids if id not in hidden])

        if self.channels is None or set(shown).issuperset(self.channels.tokens):
            return visible
        channels = ChannelReader(self.channels, self.special)
        return lambda ids: b"".join([channels.read(id, visible((id,))) for id in ids])

    def token_text(self, id: int) -> str:
        """One token for display on one line: spaces as ␣, control characters and broken UTF-8 as escapes."""
        if not 0 <= id < len(self._tokens):
            return f"<id {id}>"
        text = self.token_bytes(id).decode("utf-8", "backslashreplace")
        shown = text.replace(" ", "␣") if text.isprintable() else "".join(map(_visible, text))
        # A combining mark on its own would be drawn over the character before it.
        return "◌" + shown if shown and unicodedata.category(shown[0]) in ("Mn", "Me") else shown


def _whole(text: str) -> str:
    """`text` as Unicode has it: surrogate pairs, which programs in other languages write, are characters. A single
    half, which a terminal can deliver, has no UTF-8 form and so no tokens."""
    return _SURROGATES.sub("\ufffd", joined(text))


def _visible(character: str) -> str:
    if character == " ":
        return "␣"
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def _any_of(names: Iterable[str]) -> re.Pattern[str] | None:
    """Matches any of the names; longest first, since where one begins another the longer one is meant."""
    ordered = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _cut(text: str, pattern: re.Pattern[str] | None, ids: Mapping[str, int]) -> Iterator[str | int]:
    """`text` cut at the names of `ids`, which `pattern` matches: ids for these, strings for what lies between."""
    start = 0
    for match in pattern.finditer(text) if pattern is not None else ():
        if match.start() > start:
            yield text[start : match.start()]
        yield ids[match.group()]
        start = match.end()
    if start < len(text):
        yield text[start:]


class Detokenizer:
    """Turns ids into text piece by piece; all pieces together are what `Tokenizer.decode` gives for all the ids.

    Bytes that may still become a character are buffered. Bytes that cannot are replaced by U+FFFD as soon as that is
    certain. `shown`: names of special tokens that become text, although they are hidden otherwise.
    """

    def __init__(self, tokenizer: Tokenizer, shown: Collection[str] = ()) -> None:
        self._read = tokenizer.reader(shown)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        """The text that has become certain with `ids`."""
        return self._decoder.decode(self._read(ids))

    def finish(self) -> str:
        """The buffered text; no more ids follow."""
        return self._decoder.decode(b"", final=True)
