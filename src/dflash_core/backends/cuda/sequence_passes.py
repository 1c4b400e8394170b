"""The memory of one sequence on the card, and the passes over it: what a step's graph and calls from the host share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor

from dflash_core.attention_window import EVERYTHING
from dflash_core.backends.base import Logits
from dflash_core.backends.cuda.drafters.base import OnDevice
from dflash_core.backends.cuda.launch import At, Launch, Run
from dflash_core.backends.cuda.layers.base import Pass
from dflash_core.backends.cuda.layers.head import Head
from dflash_core.backends.cuda.layers.norm import Added, norm_launch
from dflash_core.backends.cuda.prefill import ChunkPass
from dflash_core.backends.cuda.sequence import Checkpoints, SequenceMemory
from dflash_core.backends.cuda.state import MAX_NODES, PASS_ROWS, width_for
from dflash_core.backends.cuda.target_model import DeviceTarget, block_launches
from dflash_core.cache_types import F16, CachePair
from dflash_core.drafters.base import Drafter
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.errors import Code, UnsupportedError
from dflash_core.fits import PREFILL_ROWS
from dflash_core.knobs import Knobs

# Passes of host-driven calls need only a few widths.
CHUNK_WIDTHS = (1, 24, 64)
PROMPT_ROWS = 24  # of a pass over a prompt that is too short for chunks


class SequencePasses(ABC):
    """The part of a session that steps and decoders use, of a target and, if given, a drafter: `draft` on the device
    proposes inside the steps, `host_drafter` before each step.

    `captured`: the layers whose outputs passes record, if no drafter names them. `context`: the most positions.
    `kv`: the types of cached keys and values. `rows`: the most rows of a prompt chunk. `nodes`: of the largest tree.
    `chunks_from`: shorter prompts are read in passes; None: below MIN_ROWS.
    """

    def __init__(
        self,
        target: DeviceTarget,
        draft: OnDevice | None = None,
        captured: Sequence[int] = (),
        *,
        host_drafter: Drafter | None = None,
        context: int,
        kv: CachePair = F16,
        rows: int = PREFILL_ROWS,
        nodes: int = MAX_NODES,
        chunks_from: int | None = None,
    ) -> None:
        self.target, self.draft_weights, self.device = target, draft, target.device
        self.host_drafter = host_drafter
        if host_drafter is not None and host_drafter.capabilities.captured_layers:
            raise UnsupportedError(
                f"the {host_drafter.capabilities.kind} drafter reads captured layers on the host, which a card does "
                "not provide; expected a drafter that reads only tokens",
                code=Code.NOT_ON_THIS_DEVICE,
            )
        self.captured_layers = tuple(draft.capabilities.captured_layers if draft else captured)
        self._tokens: list[int] = []  # tokens of the last staged tree
        with self.device.stream():
            self.memory = memory = SequenceMemory(target, context, self.captured_layers, draft, kv, rows, nodes)
        self.state, self.head, self.stamps, self.drafter = memory.state, memory.head, memory.stamps, memory.drafter
        self.checkpoints = Checkpoints(self.device, memory)
        self.chunk_pass = ChunkPass(target, memory, memory.chunk) if memory.chunk else None
        self.pass_rows, self.chunks_from = PROMPT_ROWS, chunks_from  # see `read_in_passes`
        self.window = EVERYTHING
        self._bound: dict[tuple[object, ...], Run] = {}

    @property
    def length(self) -> int:
        return int(self.state.host["length"])

    @property
    def max_drafted(self) -> int:
        return self.memory.capacity - 1

    @property
    def capabilities(self) -> Capabilities | None:
        if self.host_drafter is not None:
            return self.host_drafter.capabilities
        return self.draft_weights.capabilities if self.draft_weights else None

    @property
    def device_block(self) -> int:
        """The block of a drafter that proposes inside the step; 0 without such a drafter."""
        return self.drafter.block if self.drafter else 0

    def drafted(self, knobs: Knobs) -> int:
        """How many positions a drafter inside the step drafts with these settings; 0 without such a drafter."""
        return self.draft_weights.capabilities.drafted(knobs) if self.draft_weights else 0

    def draft_head(self, vocabulary: int) -> Head:
        """The head that drafts are chosen by: over the first `vocabulary` tokens, where these are the frequent ones."""
        return self.head.first(vocabulary if self.target.spec.frequent_first else 0)

    @abstractmethod
    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> Logits: ...

    def _logits_of(self, h: Tensor) -> Logits:
        """Logits (vocab,) of one row of the residual stream (hidden,)."""
        self.memory.buffers.h[0] = h
        self.launch(("last",), self._last_launches)
        row: Logits = self.head.on_host(1)[0].numpy()
        return row

    def _last_launches(self) -> list[Launch]:
        memory, target = self.memory, self.target
        scope = Pass(self.state, memory.buffers, 1, 0, At(memory.one, 0), target.spec.rms_eps)
        norm = norm_launch(scope, target.output_norm, self.head.full)
        return [norm, *self.head.launches(memory.buffers.acts, 1)]

    def pass_launches(self, rows: int, node0: int, *, windowed: bool = False) -> list[Launch]:
        """A target pass of `rows` rows over nodes of the tree in the sequence's state, from node0 on: from the
        embedding of the tokens to the head's activations."""
        return list(self._pass(rows, node0, windowed))

    def _pass(self, rows: int, node0: int, windowed: bool) -> Iterator[Launch]:
        target, memory, state = self.target, self.memory, self.state
        captured, window = memory.captured, memory.window if windowed else None
        scope = Pass(state, memory.buffers, rows, node0, state.at("n"), target.spec.rms_eps, window, memory.given)
        scale = target.spec.embedding_scale
        yield target.embedding.launch(memory.buffers.h, state.at("token"), scope.count, rows, node0, scale=scale)
        if target.per_layer is not None:
            yield norm_launch(scope, None, target.per_layer.projection)
            yield from target.per_layer.launches(scope)
        before: Added | None = None
        for index, block in enumerate(target.blk):
            mixer = memory.mixers[block.group].layer(block.place)
            # The first norm adds the previous layer's result: the sum is that layer's output, which may be captured.
            before = yield from block_launches(block, mixer, scope, before, captured.at(index - 1), captured.width)
        last = captured.at(len(target.blk) - 1)
        head = self.head.full
        yield norm_launch(scope, target.output_norm, head, added=before, captured=last, captured_width=captured.width)

    def _bound_pass(self, width: int, node0: int, *, windowed: bool) -> Run:
        """The same launches, bound once."""
        key = "pass", width, node0, windowed
        return self._once(key, lambda: self.pass_launches(width, node0, windowed=windowed))

    def commit_launches(self, width: int) -> list[Launch]:
        """Launches that commit an accepted path of up to `width` nodes, in every layer's memory and for the drafter."""
        launches = [launch for memory in self.memory.mixers for launch in memory.commit(self.state, self.stamps)]
        return launches + (self.drafter.commit_launches(width) if self.drafter else [])

    def update_drafter(self) -> None:
        """Add all pending positions to the drafter's cache."""
        if self.drafter is not None:
            self.drafter.update_cache(self.launch)

    def stage_tree(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Set the tree of the next pass."""
        assert self.length + len(tokens) <= self.memory.slots, "more positions than the sequence's memory holds"
        assert len(tokens) <= self.memory.capacity, "a larger tree than the sequence's memory holds"
        self.state.stage_tree(tokens, parents)
        self.state.push()
        self._tokens = list(tokens)

    def _run_pass(self, live: int, node0: int, *, logits: bool) -> None:
        width = width_for(live, CHUNK_WIDTHS)
        self._bound_pass(width, node0, windowed=self.window.size > 0)()
        if logits:
            self.launch(("logits", width), lambda: self.head.launches(self.memory.buffers.acts, width))
        if node0 == 0:
            self.state.host["pending"] = 0  # the pass has updated the states

    def _commit(self, path: Sequence[int]) -> None:
        if self.drafter is not None and self.drafter.pending + len(path) > self.drafter.max_pending:
            self.update_drafter()
        if self.host_drafter is not None:
            self.host_drafter.observe([self._tokens[node] for node in path], None)
        self.checkpoints.before_growing(self.length + len(path))
        self.state.commit(path)
        self.state.push()
        width = width_for(min(len(path), PASS_ROWS), CHUNK_WIDTHS) if len(path) <= PASS_ROWS else MAX_NODES
        self.launch(("commit", width), lambda: self.commit_launches(width))

    def before_step(self, queued: int) -> None:
        """Called before a step is queued behind `queued` others whose results the host has not read yet."""
        self.checkpoints.before_growing(self.length + self.memory.capacity * (queued + 1))
        if self.drafter is not None:
            self.drafter.before_step(queued)

    def _flush(self) -> None:
        """Apply committed positions to the recurrent and convolution states."""
        state = self.state.host
        if not state["pending"]:
            return
        self.state.push()
        self.launch(("flush",), self._flush_launches)
        state["pending"] = 0

    def _flush_launches(self) -> list[Launch]:
        return [launch for memory in self.memory.mixers for launch in memory.flush(self.state)]

    def launch(self, key: tuple[object, ...], launches: Callable[[], Iterable[Launch]]) -> None:
        """Bind launches once per key, and run them."""
        self._once(key, launches)()

    def _once(self, key: tuple[object, ...], launches: Callable[[], Iterable[Launch]]) -> Run:
        if key not in self._bound:
            self._bound[key] = self.device.bind([*launches()])
        return self._bound[key]
