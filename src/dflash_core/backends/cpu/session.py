"""The reference backend: one sequence in torch float32 on the CPU. Slow, plain, and the standard for all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.backends.base import AnswerOptions, Checkpoint, Logits
from dflash_core.backends.decoder import Decoder
from dflash_core.cache_types import CachePair
from dflash_core.drafters.base import DenseDrafter, Drafter
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafting import MAX_NODES
from dflash_core.errors import ContextError
from dflash_core.knobs import Knobs
from dflash_core.models.rows import LayerState, Rows
from dflash_core.models.target import TargetModel
from dflash_core.progress import Progress
from dflash_core.snapshots.base import SavedState, Snapshot, check_rows, check_tensors
from dflash_core.tree import Candidates, check_path, check_tree


class CpuSession:
    """Implements `backends.opened.Session` for a target and, if given, a drafter that proposes in lock-step.

    `captured`: the target layers whose outputs passes record, where no drafter says so. `kv`: how keys and values are
    stored; None: as floats of the model's own type.
    """

    def __init__(
        self,
        target: TargetModel,
        drafter: Drafter | None = None,
        captured: Sequence[int] = (),
        kv: CachePair | None = None,
    ) -> None:
        self.target, self.drafter, self.kv = target, drafter, kv
        self.captured_layers = drafter.capabilities.captured_layers if drafter else tuple(captured)
        self.window = EVERYTHING
        self._reset()

    def set_attention_window(self, window: AttentionWindow) -> None:
        self.window = window

    def _reset(self) -> None:
        self.length = 0
        self.states: list[LayerState] = self.target.new_states(self.kv)
        self._tokens: list[int] = []  # of the last pass, as are the parents until it is committed
        self._parents: Sequence[int] = ()
        self._features: Tensor | None = None
        if self.drafter is not None:
            self.drafter.begin(self.states)

    @property
    def capabilities(self) -> Capabilities | None:
        return self.drafter.capabilities if self.drafter else None

    def _run(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        """One target pass over a tree: final hidden rows (n, hidden); captured outputs become the features."""
        check_tree(tokens, parents, self.target.spec.vocab_size)
        rows = Rows.of(tokens, parents, self.length, self.window)
        h, captured = self.target.forward(rows, self.states, self.captured_layers)
        self._tokens, self._parents = list(tokens), parents
        self._features = torch.cat(captured, dim=-1) if captured else None
        return h

    @property
    def max_drafted(self) -> int:
        return MAX_NODES

    def in_chunks(self, count: int) -> bool:
        return False

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> Logits:
        h = self._run(tokens, range(-1, len(tokens) - 1))
        self.commit(range(len(tokens)))
        return self._numpy(self.target.logits(h[-1:])[0])

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        assert self.drafter is not None, "drafts without a drafter"
        return self.drafter.propose(root, knobs, at)

    def draft(self, root: int, window: int, at: int | None = None) -> Logits:
        if not isinstance(self.drafter, DenseDrafter):
            raise ContextError("this drafter proposes tokens without logits; expected one with a model")
        check_tree([root], [-1], self.target.spec.vocab_size)
        return self.drafter.logits(root, window, at)

    @torch.inference_mode()
    def verify(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        return self._numpy(self.target.logits(self._run(tokens, parents)))

    def features(self) -> Logits:
        if self._features is None:
            raise ContextError("no captured layers, expected a drafter that reads them and a verify before its commit")
        return self._numpy(self._features)

    @torch.inference_mode()
    def commit(self, path: Sequence[int]) -> None:
        check_path(path, self._parents)
        for state in self.states:
            state.commit(self.length, path)
        self.length += len(path)
        if self.drafter is not None:
            hidden = None if self._features is None else self._features[list(path)]
            self.drafter.observe([self._tokens[node] for node in path], hidden)
        self._features, self._parents = None, ()

    def prepare(self, progress: Progress, knobs: Knobs) -> None:
        """Nothing: torch is ready as it is."""

    def decoder(self, options: AnswerOptions) -> Decoder:
        return Decoder(self, options)

    def checkpoint(self) -> SavedState:
        """Recurrent states and recent halves; other keys and values, also a drafter's, are only cut."""
        return SavedState(self.length, self._fixed(self.states, self.length))

    def restore(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            self._reset()
            return
        assert isinstance(checkpoint, SavedState), "a checkpoint of another backend"
        self._load(checkpoint)
        self._cut(checkpoint.length)

    @property
    def cuts_anywhere(self) -> bool:
        return not self.target.spec.recurrent and not (self.kv and self.kv.recent)

    def cut(self, length: int) -> bool:
        if not all(state.reaches(length) for state in self.states):
            return False
        self._cut(length)
        return True

    def reserve_host_memory(self, spans: Sequence[tuple[int, int]], most: int) -> None:
        """Any memory does."""

    def leave(self) -> None:
        """See `reserve_host_memory`."""

    def rows(self, begin: int, end: int) -> tuple[Tensor, ...]:
        found = [tensor for state in self.states for tensor in state.positions(begin, end)]
        return (*found, *(self.drafter.rows(begin, end) if self.drafter is not None else ()))

    def state_of(self, length: int, tensors: Sequence[Tensor]) -> SavedState:
        recent = length - self.kv.border(length) if self.kv is not None and self.kv.recent else None
        check_tensors(tensors, self._fixed(self.target.new_states(self.kv), 0), recent)
        return SavedState(length, tuple(tensor.clone() for tensor in tensors))

    def resume(self, snapshot: Snapshot) -> None:
        self._reset()
        check_rows(snapshot.pages, self.rows(0, 0), snapshot.length)
        point = self.state_of(snapshot.length, snapshot.state.tensors)
        tokens = snapshot.tokens.tolist()
        for page in snapshot.pages:
            rows = iter(page.tensors)
            for state in self.states:
                state.put(page.begin, rows)
            if self.drafter is not None:
                self.drafter.resume(page.begin, tokens[page.begin : page.end], rows)
        self._load(point)
        self.length = snapshot.length

    @staticmethod
    def _fixed(states: Sequence[LayerState], length: int) -> tuple[Tensor, ...]:
        return tuple(tensor for state in states for tensor in state.tensors(length))

    @torch.inference_mode()
    def _load(self, checkpoint: SavedState) -> None:
        tensors = iter(checkpoint.tensors)
        for state in self.states:
            state.load(checkpoint.length, tensors)

    def _cut(self, length: int) -> None:
        self.length = length
        if self.drafter is not None:
            self.drafter.cut(length)

    @property
    def nbytes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for state in self.states:
            sizes[state.component] = sizes.get(state.component, 0) + state.nbytes
        return {**sizes, **(self.drafter.nbytes if self.drafter else {})}

    @staticmethod
    def _numpy(logits: Tensor) -> Logits:
        return logits.float().numpy()
