"""Turns token ids into text while they arrive: never half a character, never half a special token."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence

from dflash_core.text.tokenizer import Tokenizer


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
