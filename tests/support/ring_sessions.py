"""Two sessions of a target on a device that do the same: the rings of one wrap, those of the other hold everything."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dflash_core import load_target
from dflash_core.backends.base import Checkpoint, Logits
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.drafters.base import OnDevice
from dflash_core.backends.cuda.layers.attention import AttentionMemory
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.cache_types import F16, CachePair
from support.device_pairs import device_named
from support.golden import golden
from support.shallow import LAYERS, some_layers

CONTEXT, ROWS, NODES = 600, 64, 24  # rings of 128 slots


@dataclass
class Both:
    """Two sessions of a target, with rings and with all positions, that do the same."""

    ours: CudaSession
    whole: CudaSession
    tokens: list[int] = field(default_factory=list)

    @staticmethod
    def of(model: DeviceTarget, kv: CachePair = F16, draft: OnDevice | None = None, context: int = CONTEXT) -> Both:
        both = Both(
            CudaSession(model, draft, context=context, kv=kv, rows=ROWS, nodes=NODES, chunks_from=ROWS // 2),
            CudaSession(model, draft, context=context, kv=kv, chunks_from=ROWS // 2),
        )
        rings = [one.kv.ring for one in memories(both.ours)]
        assert rings == [bool(one.layers.spec.window) for one in memories(both.ours)]
        assert any(rings) or kv.recent
        assert not any(one.kv.ring for one in memories(both.whole))
        for session, wraps in zip(both, (True, False), strict=True):
            newest = [one.kv.newest for one in memories(session) if not one.layers.spec.window]
            assert [one.slots < session.memory.slots for one in newest if one] == [wraps] * len(newest) * bool(
                kv.recent
            )
        assert not both.ours.cuts_anywhere
        assert both.whole.cuts_anywhere == (not kv.recent)
        return both

    def __iter__(self) -> Iterator[CudaSession]:
        return iter((self.ours, self.whole))

    def same(self, run: Callable[[CudaSession], Logits]) -> Logits:
        ours, whole = map(run, self)
        assert np.array_equal(ours, whole), f"after {self.whole.length} positions"
        assert np.isfinite(ours).all()
        return ours

    def read(self, rng: np.random.Generator, count: int) -> None:
        """Chunks of up to ROWS rows, or where there are few, a pass."""
        vocab = self.ours.target.spec.vocab_size
        for begin in range(0, count, ROWS):
            part = rng.integers(0, vocab, min(ROWS, count - begin)).tolist()
            self.same(lambda session, part=part: session.prefill(part))
            self.tokens += part

    def step(self, rng: np.random.Generator, shape: Callable[[int, np.random.Generator], list[int]]) -> None:
        """A tree, and a random path through it."""
        parents = shape(int(rng.integers(1, NODES + 1)), rng)
        tokens = rng.integers(0, self.ours.target.spec.vocab_size, len(parents)).tolist()
        self.same(lambda session: session.verify(tokens, parents))
        path = [int(rng.integers(0, len(parents)))]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        for session in self:
            session.commit(path)
        self.tokens += [tokens[node] for node in path]

    def checkpoint(self) -> list[Checkpoint]:
        return [session.checkpoint() for session in self]

    def restore(self, points: list[Checkpoint]) -> None:
        for session, point in zip(self, points, strict=True):
            session.restore(point)
        del self.tokens[points[0].length :]


def memories(session: CudaSession) -> list[AttentionMemory]:
    return [memory for memory in session.memory.mixers if isinstance(memory, AttentionMemory)]


def file_of(name: str) -> Path:
    """A golden target, with few layers of those that have more than one of each kind."""
    return some_layers(name) if name in LAYERS else golden(f"targets/{name}.gguf")


@functools.cache
def target_on(device_name: str, name: str) -> DeviceTarget:
    device, target = device_named(device_name), load_target(file_of(name))
    with device.stream():
        upload = DeviceUpload(device, target.file)
        model = DeviceTarget(device, upload, target.config, CHOICES["f16"])
        upload.close()
    return model
