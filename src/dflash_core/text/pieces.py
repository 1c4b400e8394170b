"""The kinds of tokenizers, by `tokenizer.ggml.model`.

Byte-level BPE: every byte of a text is a letter, and letters are merged into tokens. SentencePiece's BPE: characters
are merged into pieces in which U+2581 stands for a space; bytes of characters without a piece are tokens of their own.
"""

from __future__ import annotations

import abc
import re
import threading
from collections.abc import Container, Iterator, Mapping
from typing import ClassVar, cast

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from dflash_core.errors import ContextError, FormatError, UnsupportedError
from dflash_core.text.pre_tokenizers import PRE_TOKENIZERS
from dflash_core.text.vocabulary import NORMAL, Vocabulary


def _byte_letters() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters stand for themselves, U+0100 onwards for the other bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(unprintable)}


LETTERS = _byte_letters()
RARE = frozenset({*range(0x20), 0x7F, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}.difference(b"\t\n\r"))
"""Bytes that some vocabularies have no token for: control characters, and what begins no assigned character."""
LONGEST_RUN = 4_000_000
"""Of blanks or of letters, in characters. The library's regular expressions take at most ten million steps for a match,
up to two a character; beyond that the library ends the program's thread."""
_LONG = re.compile(rf"\s{{{LONGEST_RUN + 1},}}|[^\W\d_]{{{LONGEST_RUN + 1},}}")


class Pieces(abc.ABC):
    """Turns text without special tokens into ids.

    text_is_cut: user-defined tokens are ordinary text, which is cut out of every text before merging. adds_bos: whether
    prompts begin with the BOS token where the file does not say.
    """

    text_is_cut: ClassVar[bool]
    adds_bos: bool

    @abc.abstractmethod
    def __init__(self, vocabulary: Vocabulary, ordinary: Mapping[str, int]) -> None:
        """`ordinary`: the tokens that text is merged into (name -> id)."""

    def prepare(self) -> None:  # noqa: B027 - most have nothing to do
        """Build now what the first `encode` would build; any thread may call. Raises FormatError."""

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]: ...

    def composed(self, text: str) -> str:
        """The text that is merged: composed where the model composes it."""
        return text

    @abc.abstractmethod
    def bytes_of(self, token: str) -> bytes: ...

    @staticmethod
    @abc.abstractmethod
    def is_byte(token: str) -> bool:
        """Whether a token spells a single byte: text needs it, whatever else it is."""


class ByteLevel(Pieces):
    """Raises FormatError for a byte that text needs and no token has, and UnsupportedError
    for an unknown pre-tokenizer. Merges that do not fit the tokens are refused by `prepare` or the first `encode`."""

    text_is_cut = False

    def __init__(self, vocabulary: Vocabulary, ordinary: Mapping[str, int]) -> None:
        if vocabulary.pre not in PRE_TOKENIZERS:
            raise UnsupportedError(
                f"pre-tokenizer {vocabulary.pre!r:.40} is not supported; supported: {', '.join(PRE_TOKENIZERS)}; use a"
                " file that names one of them, or another model"
            )
        known = PRE_TOKENIZERS[vocabulary.pre]
        self._pre = known._replace(
            composes=known.composes if vocabulary.composes is None else vocabulary.composes,
            whole_words=known.whole_words if vocabulary.whole_words is None else vocabulary.whole_words,
        )
        self.adds_bos = self._pre.bos
        missing = sorted(byte for letter, byte in LETTERS.items() if letter not in ordinary)
        needed = next((byte for byte in missing if byte not in RARE), None)
        if needed is not None:  # the library would silently drop such a byte from the text
            raise FormatError(f"the vocabulary has no token for the byte 0x{needed:02x}; byte-level BPE needs it")
        self._normalizer = normalizers.NFC() if self._pre.composes else None
        self._lock = threading.Lock()
        self._unbuilt: tuple[Mapping[str, int], list[tuple[str, str]]] | None = ordinary, _pairs(vocabulary)
        self._built: tokenizers.Tokenizer | None = None

    @property
    def _bpe(self) -> tokenizers.Tokenizer:
        """Built on first use, as 250,000 tokens take the library 0.4 s, in which no other thread runs. Raises
        FormatError."""
        with self._lock:
            if self._built is None:
                assert self._unbuilt is not None, "the lists are dropped when they were used"
                vocab, merges = self._unbuilt
                try:  # from the lists: the library's own JSON format takes twice as long
                    model = models.BPE(vocab=dict(vocab), merges=merges, ignore_merges=self._pre.whole_words)
                except Exception as error:  # the library raises bare Exceptions
                    raise FormatError(f"the merges do not fit the vocabulary: {error}") from None
                splits = [pre_tokenizers.Split(tokenizers.Regex(one), behavior="isolated") for one in self._pre.splits]
                to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
                built = tokenizers.Tokenizer(model)
                if self._normalizer is not None:
                    built.normalizer = self._normalizer
                built.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
                self._built, self._unbuilt = built, None
            return self._built

    def prepare(self) -> None:
        self._bpe  # noqa: B018 - built here

    def encode(self, text: str) -> list[int]:
        """Raises ContextError for a run of blanks or letters that is too long for the regular expressions."""
        if len(text) > LONGEST_RUN and (run := _LONG.search(text)):
            what = "blanks" if run[0].isspace() else "letters"
            raise ContextError(
                f"the text has a run of more than {LONGEST_RUN:,} {what}, the most that can become tokens; shorten it"
            )
        return self._bpe.encode(text, add_special_tokens=False).ids

    def composed(self, text: str) -> str:
        return text if self._normalizer is None else self._normalizer.normalize_str(text)

    def bytes_of(self, token: str) -> bytes:
        try:
            return bytes(map(LETTERS.__getitem__, token))
        except KeyError:  # a special or added token: its name is its text
            return token.encode("utf-8", "replace")

    @staticmethod
    def is_byte(token: str) -> bool:
        return token in LETTERS


def _pairs(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """The merges as pairs. Raises FormatError."""
    pairs = [tuple(merge.split(" ")) for merge in vocabulary.merges]
    if not {*map(len, pairs)} <= {2}:
        broken = next(n for n, pair in enumerate(pairs) if len(pair) != 2)
        merge = vocabulary.merges[broken]
        raise FormatError(f"merge {broken} is {merge!r:.60}, expected two tokens with a space between them")
    return cast(list[tuple[str, str]], pairs)


SPACE = "\u2581"
LINES = r"[^\n]+|[\n]+"
"""Gemma 4 merges no line break with what is beside it."""
_BYTE_NAME = re.compile(r"<0x([0-9A-F]{2})>")


class SentencePieces(Pieces):
    """Merges follow from the scores of the pieces (`scored`), or are the file's own. Raises
    FormatError for a vocabulary without a token for each byte."""

    text_is_cut, adds_bos = True, True

    def __init__(self, vocabulary: Vocabulary, ordinary: Mapping[str, int]) -> None:
        absent = next((byte for byte in range(256) if f"<0x{byte:02X}>" not in ordinary), None)
        if absent is not None:
            raise FormatError(f"the vocabulary has no token <0x{absent:02X}>; text in any language needs all bytes")
        scored = bool(vocabulary.scores)
        self._prefix = SPACE if scored and vocabulary.space_prefix is not False else ""
        pairs = _by_score(vocabulary) if scored else _pairs(vocabulary)
        try:
            bpe = models.BPE(vocab=dict(ordinary), merges=pairs, byte_fallback=True)
        except Exception as error:  # the library raises bare Exceptions
            raise FormatError(f"the merges do not fit the vocabulary: {error}") from None
        self._bpe = tokenizers.Tokenizer(bpe)
        if vocabulary.model == "gemma4":
            self._bpe.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(LINES), behavior="isolated")

    def encode(self, text: str) -> list[int]:
        spaced = self._prefix + text.replace(" ", SPACE)
        return self._bpe.encode(spaced, add_special_tokens=False).ids

    def bytes_of(self, token: str) -> bytes:
        if byte := _BYTE_NAME.fullmatch(token):
            return bytes([int(byte[1], 16)])
        return token.replace(SPACE, " ").encode("utf-8", "replace")

    @staticmethod
    def is_byte(token: str) -> bool:
        return _BYTE_NAME.fullmatch(token) is not None


def _by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """All pairs that make a piece, the best piece first: the pair of the highest score is joined first."""
    tokens = vocabulary.tokens
    pieces = {tokens[id] for id in vocabulary.of_type(NORMAL)}

    def splits(piece: str) -> Iterator[tuple[str, str]]:
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            if left in pieces and right in pieces:
                yield left, right

    ranked = sorted(vocabulary.of_type(NORMAL), key=lambda id: -vocabulary.scores[id])
    return [pair for id in ranked for pair in splits(tokens[id])]


KINDS: Mapping[str, tuple[str, type[Pieces]]] = {
    "gpt2": ("byte-level BPE", ByteLevel),
    "llama": ("SentencePiece", SentencePieces),
    "gemma4": ("Gemma 4's BPE", SentencePieces),
    "spaced": ("BPE with byte fallback, of a tokenizer.json", SentencePieces),
}
"""The kinds of tokenizers, with a description."""


def pieces_of(vocabulary: Vocabulary, special: Container[int]) -> Pieces:
    """The pieces of a vocabulary. `special`: tokens that text is not merged into. Raises FormatError, and
    UnsupportedError for an unknown kind."""
    if vocabulary.model not in KINDS:
        known = ", ".join(f"{name} ({description})" for name, (description, _) in KINDS.items())
        raise UnsupportedError(
            f"tokenizer model {vocabulary.model!r:.40} is not supported; supported: {known}; use another model"
        )
    _, kind = KINDS[vocabulary.model]
    tokens = enumerate(vocabulary.tokens)
    return kind(vocabulary, {token: id for id, token in tokens if id not in special or kind.is_byte(token)})
