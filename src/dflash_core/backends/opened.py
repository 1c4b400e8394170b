"""What targets of every backend have in common: the header with its text parts, and passes over plain ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from dflash_core import memory
from dflash_core.arch.spec import ModelSpec
from dflash_core.backends.base import PREFILL_CHUNK, Logits, Session
from dflash_core.config import mask_token, target_config
from dflash_core.drafters.base import Draft
from dflash_core.errors import MismatchError
from dflash_core.formats.gguf import GGUFFile, open_gguf
from dflash_core.ids import check_ids
from dflash_core.text.template import ChatTemplate
from dflash_core.text.tokenizer import Tokenizer


class OpenedTarget(ABC):
    """The part of `backends.base.Target` that needs no machine. Raises FormatError or UnsupportedError."""

    def __init__(self, path: str | Path) -> None:
        self.notes: tuple[str, ...] = ()
        self.program_bytes = memory.host_memory().process  # Python and torch, before any of the model
        self.file: GGUFFile = open_gguf(path)
        self.config: ModelSpec = target_config(self.file)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_metadata(self.file.metadata)

    @cached_property
    def template(self) -> ChatTemplate:
        return ChatTemplate.for_tokenizer(self.tokenizer)

    @property
    def mask_token_id(self) -> int | None:
        return mask_token(self.file)

    @abstractmethod
    def session(self, draft: Draft | None = None, captured: Sequence[int] = (), context: int = 0) -> Session: ...

    def logits(self, ids: Sequence[int]) -> Logits:
        return np.concatenate([logits for _, logits in self._passes((), ids)])

    def hidden(self, ids: Sequence[int], layers: Sequence[int]) -> Logits:
        wrong = [layer for layer in layers if not 0 <= layer < self.config.block_count]
        if wrong or not len(layers):
            what = f"layer {wrong[0]} does not exist" if wrong else "no layer named"
            raise MismatchError(f"{what}; this target has 0..{self.config.block_count - 1}")
        return np.concatenate([features for features, _ in self._passes(layers, ids)])

    def _passes(self, captured: Sequence[int], ids: Sequence[int]) -> Iterator[tuple[Logits, Logits]]:
        """Run a prompt chunk by chunk: outputs of captured layers, if any, and logits of each."""
        plain = check_ids(ids, self.config.vocab_size)
        session = self.session(captured=captured, context=len(plain))
        for at in range(0, len(plain), PREFILL_CHUNK):
            part = plain[at : at + PREFILL_CHUNK]
            logits = session.verify(part, range(-1, len(part) - 1))
            yield (session.features() if captured else logits[:, :0]), logits
            session.commit(range(len(part)))
