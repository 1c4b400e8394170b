"""Byte-level BPE from GGUF metadata: text to ids and back, special tokens only where the caller allows them.

The merging is done by the `tokenizers` library, over the ordinary tokens. Special tokens are cut out of the text
here, before the library sees it, and are not in the library's vocabulary: text encoded with `special=False` can
therefore not contain one, whatever was typed.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, cast

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from dflash_core.errors import FormatError, UnsupportedError


class PreTokenizer(NamedTuple):
    """What is done to text before merging: whether it is composed first (NFC), and how it is split."""

    composes: bool
    split: str


# By `tokenizer.ggml.pre`. Digits go one by one.
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "qwen35": PreTokenizer(
        True,
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "qwen2": PreTokenizer(
        True,
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}
# Tokens that end an answer by their name, whether or not the file's eos key says so (llama.cpp's list, for Qwen).
END_NAMES = ("<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
THINK_TAGS = ("<think>", "</think>")

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_SURROGATES = re.compile("[\ud800-\udfff]")


def _byte_letters() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters stand for themselves, U+0100 onwards for the other bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(unprintable)}


_BYTE = _byte_letters()


class Tokenizer:
    """The tokenizer of one model file.

    `special` maps the name of every special token to its id, `stop_ids` holds every token that ends an answer, and
    `hidden` those that never become text: control tokens and padding rows, the think tags excepted.
    """

    def __init__(
        self,
        tokens: list[str],
        types: list[int],
        merges: list[str],
        *,
        pre: str,
        ends: Iterable[int] = (),
        bos: int | None = None,
        eos: int | None = None,
        mask: int | None = None,
        chat_template: str | None = None,
    ) -> None:
        """Raises FormatError for merges or types that do not fit the tokens, UnsupportedError for an unknown `pre`."""
        if pre not in PRE_TOKENIZERS:
            raise UnsupportedError(f"pre-tokenizer {pre!r} is not supported; supported: {', '.join(PRE_TOKENIZERS)}")
        if len(types) != len(tokens):
            raise FormatError(
                f"tokenizer.ggml.token_type has {len(types)} entries, expected {len(tokens)}, one a token"
            )
        self._tokens = tokens
        self.bos_token_id = bos
        self.eos_token_id = eos
        self.mask_token_id = mask
        self.chat_template = chat_template

        odd = {id: kind for id, kind in enumerate(types) if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED)}
        named = {tokens[id]: id for id in odd}
        self.stop_ids = frozenset(ends) | {named[name] for name in END_NAMES if name in named}
        # An end token is a control token even where the file gives the token the type of an ordinary one.
        odd |= dict.fromkeys([*self.stop_ids, *(id for id in (bos, mask) if id is not None)], _CONTROL)
        self.special: Mapping[str, int] = {tokens[id]: id for id, kind in odd.items() if kind != _UNUSED and tokens[id]}
        self.hidden = frozenset(
            id for id, kind in odd.items() if kind != _USER_DEFINED and tokens[id] not in THINK_TAGS
        )
        # Longest first: where one name begins another, the longer one is meant.
        names = sorted(self.special, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, names))) if names else None
        # The token of a single byte stays ordinary even where a key names it as end token: text needs all bytes.
        ordinary = {token: id for id, token in enumerate(tokens) if id not in odd or token in _BYTE}
        self._bpe = _build_bpe(ordinary, merges, pre)
        # Letters of an ordinary token are bytes; the name of a special one is text.
        self._longest = max(1, *map(len, tokens), *(len(name.encode(errors="replace")) for name in self.special))
        # Every turn encodes the whole conversation; the messages of earlier turns come from this cache.
        self._encode_plain = functools.lru_cache(maxsize=512)(self._merge)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """The tokenizer that a GGUF file describes.

        Raises FormatError for missing or malformed keys, UnsupportedError for a tokenizer of another kind.
        """
        model = _string(metadata, "tokenizer.ggml.model")
        if model != "gpt2":
            raise UnsupportedError(f"tokenizer model {model!r} is not supported; supported: gpt2 (byte-level BPE)")
        pre = _string(metadata, "tokenizer.ggml.pre")
        tokens = cast(list[str], _list(metadata, "tokenizer.ggml.tokens", str))
        merges = cast(list[str], _list(metadata, "tokenizer.ggml.merges", str))
        types = [_NORMAL] * len(tokens)
        if "tokenizer.ggml.token_type" in metadata:
            types = cast(list[int], _list(metadata, "tokenizer.ggml.token_type", int))
        ids = {
            name: _token_id(metadata, f"tokenizer.ggml.{name}_token_id", len(tokens))
            for name in ("eos", "eot", "bos", "padding", "mask")
        }
        template = metadata.get("tokenizer.chat_template")
        if template is not None and not isinstance(template, str):
            raise FormatError(f"tokenizer.chat_template is a {type(template).__name__}, expected a string")
        return cls(
            tokens,
            types,
            merges,
            pre=pre,
            ends=[id for id in (ids["eos"], ids["eot"]) if id is not None],
            bos=ids["bos"],
            eos=ids["eos"],
            mask=ids["mask"],
            chat_template=template,
        )

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    def name(self, id: int) -> str:
        """A token as the file spells it. Raises IndexError."""
        return self._tokens[id]

    def segments(self, text: str) -> Iterator[str | int]:
        """`text` cut at its special tokens: ids for these, strings for what lies between."""
        start = 0
        if self._special_pattern is not None:
            for match in self._special_pattern.finditer(text):
                if match.start() > start:
                    yield text[start : match.start()]
                yield self.special[match.group()]
                start = match.end()
        if start < len(text):
            yield text[start:]

    def min_tokens(self, text: str) -> int:
        """A lower bound of the number of tokens of `text`, computed without tokenising it."""
        text = _SURROGATES.sub("\ufffd", text)
        if self._bpe.normalizer is not None:  # composed text is shorter
            text = self._bpe.normalizer.normalize_str(text)
        return -(-len(text.encode()) // self._longest)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of `text`. With `special=False`, names of special tokens are ordinary text."""
        ids: list[int] = []
        for segment in self.segments(text) if special else [text]:
            ids += [segment] if isinstance(segment, int) else self._encode_plain(segment)
        return ids

    def _merge(self, text: str) -> tuple[int, ...]:
        # Half a surrogate pair, which a terminal can deliver, has no UTF-8 form and so no tokens.
        return tuple(self._bpe.encode(_SURROGATES.sub("\ufffd", text), add_special_tokens=False).ids)

    def token_bytes(self, id: int) -> bytes:
        """The bytes of a token; nothing for an id beyond the vocabulary (a padding row of the output layer)."""
        if not 0 <= id < len(self._tokens):
            return b""
        token = self._tokens[id]
        try:
            return bytes(map(_BYTE.__getitem__, token))
        except KeyError:  # a special or added token: its name is its text
            return token.encode("utf-8", "replace")

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`: without control tokens but with think tags, U+FFFD for bytes that are not UTF-8."""
        return self.visible_bytes(ids).decode("utf-8", "replace")

    def visible_bytes(self, ids: Iterable[int], hidden: Collection[int] | None = None) -> bytes:
        """The bytes of those `ids` that become text: all but the `hidden` ones, by default the usual."""
        hidden = self.hidden if hidden is None else hidden
        return b"".join([self.token_bytes(id) for id in ids if id not in hidden])

    def token_text(self, id: int) -> str:
        """One token for display on one line: spaces as ␣, control characters and broken UTF-8 as escapes."""
        if not 0 <= id < len(self._tokens):
            return f"<id {id}>"
        text = self.token_bytes(id).decode("utf-8", "backslashreplace")
        shown = text.replace(" ", "␣") if text.isprintable() else "".join(map(_visible, text))
        # A combining mark on its own would be drawn over the character before it.
        return "◌" + shown if shown and unicodedata.category(shown[0]) in ("Mn", "Me") else shown


def _visible(character: str) -> str:
    if character == " ":
        return "␣"
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def _build_bpe(vocabulary: dict[str, int], merges: list[str], pre: str) -> tokenizers.Tokenizer:
    missing = next((byte for letter, byte in _BYTE.items() if letter not in vocabulary), None)
    if missing is not None:  # the library would silently drop such a byte from the text
        raise FormatError(f"the vocabulary has no token for the byte 0x{missing:02x}; byte-level BPE needs all 256")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    broken = next((n for n, pair in enumerate(pairs) if len(pair) != 2), None)
    if broken is not None:
        raise FormatError(f"merge {broken} is {merges[broken]!r:.60}, expected two tokens with a space between them")
    try:
        # Built from the lists: going through the library's own JSON format takes twice as long.
        model = models.BPE(vocab=vocabulary, merges=cast(list[tuple[str, str]], pairs))
    except Exception as error:  # the library raises bare Exceptions
        raise FormatError(f"the merges do not fit the vocabulary: {error}") from None
    bpe = tokenizers.Tokenizer(model)
    split = pre_tokenizers.Split(tokenizers.Regex(PRE_TOKENIZERS[pre].split), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if PRE_TOKENIZERS[pre].composes:
        bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    return bpe


def _string(metadata: Mapping[str, object], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str):
        raise FormatError(f"{key} is {_describe(value)}, expected a string")
    return value


def _list(metadata: Mapping[str, object], key: str, kind: type) -> list[object]:
    value = metadata.get(key)
    if hasattr(value, "tolist"):  # a numpy array; its elements become plain Python values
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or not all(type(item) is kind for item in value):
        raise FormatError(f"{key} is {_describe(value)}, expected a list of {kind.__name__}")
    return list(value)


def _token_id(metadata: Mapping[str, object], key: str, vocab_size: int) -> int | None:
    value = metadata.get(key)
    if hasattr(value, "item"):
        value = value.item()
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
        raise FormatError(f"{key} is {value!r:.40}, expected an id below {vocab_size}")
    return value


def _describe(value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, (list, tuple)):
        odd = next((type(item).__name__ for item in value), "nothing")
        return f"a list that begins with {odd}"
    return f"a {type(value).__name__}"
