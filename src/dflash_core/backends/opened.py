"""What targets of every backend have in common: the header with its text parts, and passes over plain ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from dflash_core import memory
from dflash_core.arch.spec import EMBEDDING, ModelSpec
from dflash_core.backends.base import PREFILL_CHUNK, Logits, Session
from dflash_core.cache_types import CachePair
from dflash_core.config import read_target
from dflash_core.drafters import registry
from dflash_core.drafters.base import Draft, OpenedModel
from dflash_core.drafters.mtp import KIND
from dflash_core.errors import ContextError, MismatchError
from dflash_core.formats.gguf import GGUFFile, open_gguf
from dflash_core.ids import check_ids

if TYPE_CHECKING:
    import torch

    from dflash_core.text.template import ChatTemplate
    from dflash_core.text.tokenizer import Tokenizer


@runtime_checkable
class TeacherForced(Protocol):
    """A loaded MTP head that gives its logits for a whole text."""

    def teacher_forced(self, tokens: Sequence[int], outputs: Logits) -> Logits:
        """Logits (n - 1, vocab) of n tokens with the outputs (n, hidden) of the target's last layer."""


class OpenedTarget(ABC):
    """The part of `backends.base.Target` that needs no machine. Raises FormatError or UnsupportedError."""

    host_bytes = 0
    arithmetic = ""

    def __init__(self, path: str | Path) -> None:
        self.notes: tuple[str, ...] = ()
        self.program_bytes = memory.host_memory().process  # Python and torch, before any of the model
        self.file: GGUFFile
        self.config: ModelSpec
        self.file, self.config = read_target(open_gguf(path))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        from dflash_core.text.tokenizer import Tokenizer  # plans do without it, and without jinja

        return Tokenizer.from_metadata(self.file.metadata)

    @cached_property
    def template(self) -> ChatTemplate:
        from dflash_core.text.template import ChatTemplate

        return ChatTemplate.for_tokenizer(self.tokenizer)

    @property
    def own_draft(self) -> str | None:
        return registry.own_kind(self.file, self.config)

    @abstractmethod
    def session(
        self,
        draft: Draft | None = None,
        captured: Sequence[int] = (),
        context: int = 0,
        kv: CachePair | None = None,
    ) -> Session: ...

    @abstractmethod
    def load_draft(self, opened: OpenedModel[Any], dtype: torch.dtype | None = None) -> Draft: ...

    def mtp_logits(self, ids: Sequence[int]) -> Logits:
        plain = check_ids(ids, self.config.vocab_size)
        if len(plain) < 2:
            raise ContextError(f"{len(plain)} tokens for an MTP head, expected at least 2")
        head = registry.open_draft(KIND, self).load()
        assert isinstance(head, TeacherForced), "a head that says what it drafts"
        return head.teacher_forced(plain, self.hidden(plain, [self.config.block_count - 1]))

    def logits(self, ids: Sequence[int], kv: str | CachePair | None = None) -> Logits:
        pair = CachePair.parse(kv) if isinstance(kv, str) else kv
        return np.concatenate([logits for _, logits in self._passes((), ids, pair)])

    def hidden(self, ids: Sequence[int], layers: Sequence[int]) -> Logits:
        plain = [int(layer) for layer in layers]  # an array is as good as a list
        wrong = [layer for layer in plain if not EMBEDDING <= layer < self.config.block_count]
        if wrong or not plain:
            what = f"layer {wrong[0]} does not exist" if wrong else "no layer named"
            raise MismatchError(f"{what}; this target has 0..{self.config.block_count - 1}")
        return np.concatenate([features for features, _ in self._passes(plain, ids)])

    def _passes(
        self, captured: Sequence[int], ids: Sequence[int], kv: CachePair | None = None
    ) -> Iterator[tuple[Logits, Logits]]:
        """Run a prompt chunk by chunk: outputs of captured layers, if any, and logits of each."""
        plain = check_ids(ids, self.config.vocab_size)
        session = self.session(captured=captured, context=len(plain), kv=kv)
        for at in range(0, len(plain), PREFILL_CHUNK):
            part = plain[at : at + PREFILL_CHUNK]
            logits = session.verify(part, range(-1, len(part) - 1))
            yield (session.features() if captured else logits[:, :0]), logits
            session.commit(range(len(part)))
