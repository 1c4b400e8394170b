"""The kinds of tokenizers, by `tokenizer.ggml.model`."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Protocol

from dflash_core.errors import UnsupportedError
from dflash_core.text.byte_level import ByteLevel
from dflash_core.text.sentence_pieces import SentencePieces
from dflash_core.text.vocabulary import Vocabulary


class Pieces(Protocol):
    """Turns text without special tokens into ids.

    text_is_cut: user-defined tokens are ordinary text, which is cut out of every text before merging. adds_bos: whether
    prompts begin with the BOS token where the file does not say.
    """

    text_is_cut: bool
    adds_bos: bool

    def prepare(self) -> None:
        """Build now what the first `encode` would build; any thread may call. Raises FormatError."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""

    def composed(self, text: str) -> str:
        """The text that is merged: composed where the model composes it."""

    def bytes_of(self, token: str) -> bytes:
        """The bytes that a token stands for."""


class Kind(Protocol):
    """Makes pieces of a vocabulary and its ordinary tokens, those that text is merged into (name -> id)."""

    def __call__(self, vocabulary: Vocabulary, ordinary: Mapping[str, int], /) -> Pieces: ...

    def is_byte(self, token: str) -> bool:
        """Whether a token spells a single byte: text needs it, whatever else it is."""


KINDS: Mapping[str, tuple[str, Kind]] = {
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
        raise UnsupportedError(f"tokenizer model {vocabulary.model!r} is not supported; supported: {known}")
    _, kind = KINDS[vocabulary.model]
    tokens = enumerate(vocabulary.tokens)
    return kind(vocabulary, {token: id for id, token in tokens if id not in special or kind.is_byte(token)})
