"""SentencePiece's BPE: characters are merged into pieces in which U+2581 stands for a space; bytes of characters that
have no piece are tokens of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import cast

import tokenizers
from tokenizers import models, pre_tokenizers

from dflash_core.errors import FormatError
from dflash_core.text.vocabulary import NORMAL, Vocabulary

SPACE = "\u2581"
LINES = r"[^\n]+|[\n]+"
"""Gemma 4 merges no line break with what is beside it."""
_BYTE_NAME = re.compile(r"<0x([0-9A-F]{2})>")


class SentencePieces:
    """Implements `pieces.Pieces`. Merges follow from the scores of the pieces (`scored`), or are the file's own. Raises
    FormatError for a vocabulary without a token for each byte."""

    text_is_cut, adds_bos = True, True

    def __init__(self, vocabulary: Vocabulary, ordinary: Mapping[str, int]) -> None:
        """`ordinary`: the tokens that text is merged into."""
        absent = next((byte for byte in range(256) if f"<0x{byte:02X}>" not in ordinary), None)
        if absent is not None:
            raise FormatError(f"the vocabulary has no token <0x{absent:02X}>; text in any language needs all bytes")
        scored = bool(vocabulary.scores)
        self._prefix = SPACE if scored and vocabulary.space_prefix is not False else ""
        pairs = _by_score(vocabulary) if scored else [_parts(at, one) for at, one in enumerate(vocabulary.merges)]
        try:
            bpe = models.BPE(vocab=dict(ordinary), merges=pairs, byte_fallback=True)
        except Exception as error:  # the library raises bare Exceptions
            raise FormatError(f"the merges do not fit the vocabulary: {error}") from None
        self._bpe = tokenizers.Tokenizer(bpe)
        if vocabulary.model == "gemma4":
            self._bpe.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(LINES), behavior="isolated")

    def prepare(self) -> None:
        """Nothing is left to do."""

    def encode(self, text: str) -> list[int]:
        spaced = self._prefix + text.replace(" ", SPACE)
        return self._bpe.encode(spaced, add_special_tokens=False).ids

    def composed(self, text: str) -> str:
        return text

    def bytes_of(self, token: str) -> bytes:
        if byte := _BYTE_NAME.fullmatch(token):
            return bytes([int(byte[1], 16)])
        return token.replace(SPACE, " ").encode("utf-8", "replace")

    @staticmethod
    def is_byte(token: str) -> bool:
        return _BYTE_NAME.fullmatch(token) is not None


def _parts(at: int, merge: str) -> tuple[str, str]:
    pair = merge.split(" ")
    if len(pair) != 2:
        raise FormatError(f"merge {at} is {merge!r:.60}, expected two tokens with a space between them")
    return cast(tuple[str, str], tuple(pair))


def _by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """All ways to make a piece of two others, the best piece first: the pair of the highest score is joined first."""
    tokens = vocabulary.tokens
    pieces = {tokens[id] for id in vocabulary.of_type(NORMAL)}

    def splits(piece: str) -> Iterator[tuple[str, str]]:
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            if left in pieces and right in pieces:
                yield left, right

    ranked = sorted(vocabulary.of_type(NORMAL), key=lambda id: -vocabulary.scores[id])
    return [pair for id in ranked for pair in splits(tokens[id])]
