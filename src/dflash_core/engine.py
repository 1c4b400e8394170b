"""The engine: a loaded pair that answers prompts, knows its memory, and says how slow it will be."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from dflash_core import memory
from dflash_core.backends.cpu.session import CpuSession
from dflash_core.config import DraftConfig, TargetConfig
from dflash_core.decoder import plan
from dflash_core.errors import ContextError, MismatchError
from dflash_core.knobs import Knobs
from dflash_core.loading import FLOAT_BYTES, Draft, Progress, Target, open_draft, open_target, silent
from dflash_core.memory import Ledger, Owner
from dflash_core.models.qwen35 import Qwen35, Rows
from dflash_core.runner import MAX_CHECKPOINTS, Runner

# The reference decoder's default ceiling: attention over more would take it minutes per answer.
CPU_CONTEXT = 32_768
SMALLEST_CONTEXT = 512
# What torch starts with: the cores this process may use.
CORES = torch.get_num_threads()
# Steps slower than this are announced before they start.
SLOW_STEP_S = 1.0


class Engine(Runner):
    """A target with or without its drafter, ready to answer. Without one it decodes plainly.

    `context_length` is cut to the model's own; by default it is what fits half of the free memory, 32,768 at most.
    Raises MismatchError for a drafter loaded for another target, ContextError for a context length below 2, and
    OutOfMemoryError where the context does not fit.
    """

    def __init__(self, target: Target, draft: Draft | None = None, *, context_length: int | None = None) -> None:
        if draft is not None and draft.target is not target:
            raise MismatchError("the drafter was loaded for another target; load it with load_draft(path, target)")
        if context_length is not None and context_length < 2:
            raise ContextError(f"a context of {context_length} positions, expected at least 2")
        self.target, self.draft = target, draft
        config = target.config
        self.session = CpuSession(target.model, draft.model if draft else None, draft.mask_token if draft else 0)
        fits = _context_that_fits(config, draft.config if draft else None)
        context = min(fits if context_length is None else context_length, config.context_length)
        super().__init__(self.session, target.tokenizer.stop_ids, context, config.vocab_size)
        host = memory.host_memory()
        remedies = f"a context of {fits:,} positions fits; a smaller model or fewer open programs leave room for more"
        memory.check(Ledger("this machine", tuple(self._sequence_owners()), host.total, host.free), remedies)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about this pair, a line each."""
        notes = [self.target.template.notice] if self.target.template.notice else []
        if self.target.packed:
            notes.append("the weights stay quantised in memory and are dequantised at every use: very slow")
        if self.context_length < self.target.config.context_length:
            full = self.target.config.context_length
            notes.append(f"the context is {self.context_length:,} positions here, of the model's {full:,}")
        return (*notes, *(self.draft.notes if self.draft else ()))

    def memory(self) -> Ledger:
        """Bytes by owner at full context, beside what the process really holds."""
        host = memory.host_memory()
        owners = [Owner("target", self.target.weight_bytes, f"{self.target.config.block_count} layers")]
        if self.draft:
            owners.append(Owner("drafter", self.draft.weight_bytes, f"{self.draft.config.block_count} layers"))
        owners += [*self._sequence_owners(), Owner("program", self.target.program_bytes, "Python, torch and the rest")]
        return Ledger("this machine", tuple(owners), host.total, host.free, host.process)

    def _sequence_owners(self) -> list[Owner]:
        """What a sequence of full length takes besides the weights."""
        context, target = self.context_length, self.target.config
        detail = f"{context:,} positions at most"
        owners = [
            Owner("target KV", context * _kv_bytes(target), detail),
            Owner("states", _state_bytes(target) * (1 + MAX_CHECKPOINTS), f"{MAX_CHECKPOINTS} checkpoints"),
        ]
        if self.draft:
            owners.append(Owner("drafter KV", context * _draft_kv_bytes(self.draft.config), detail))
        return owners

    def predicted_step_seconds(self, knobs: Knobs) -> float | None:
        """Seconds per target pass with these knobs, from one timed layer of each kind; None where it is too little
        to mention."""
        mode, block = plan(knobs, self.session.draft_block).mode, self.session.draft_block
        nodes = {"ar": 0, "chain": min(knobs.budget, block - 1), "tree": knobs.budget}[mode]
        seconds = time_step(self.target.model, 1 + nodes)
        return seconds if seconds > SLOW_STEP_S else None


def load_pair(
    target: str | Path,
    draft: str | Path | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
    *,
    context_length: int | None = None,
) -> Engine:
    """Load a target and, if given, its drafter. Raises what `load_target`, `load_draft` and `Engine` raise, and
    TemplateError; what the headers can refuse is refused before any weight is read."""
    say = progress or silent
    _leave_a_core()
    opened = open_target(target, device, progress=say)
    opened.template  # noqa: B018 - built here for its refusals, tokenizer included
    opened_draft = open_draft(draft, opened) if draft is not None else None
    opened.load(progress=say)
    drafter = opened_draft.load(progress=say) if opened_draft else None
    engine = Engine(opened, drafter, context_length=context_length)
    say("ready", 1.0)
    return engine


def _leave_a_core() -> None:
    """Use all cores but one, unless OMP_NUM_THREADS says otherwise.

    torch's threads wait for each other in every operation, so a single one that another program (or the app's own
    screen) holds up holds up all of them: with two threads on two busy cores a step took ten times as long.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, CORES - 1))


@torch.inference_mode()
def time_step(model: Qwen35, rows: int) -> float:
    """Predicted seconds of one target pass of `rows` rows: one timed layer per kind, times their number, plus the
    head in proportion to its weights."""
    config = model.config
    batch = Rows.of([0] * rows, range(-1, rows - 1), 0, config.conv_kernel)
    x = model.token_embd.rows([0]).expand(rows, -1)
    seconds: dict[type, float] = {}
    for block in model.blk:
        kind = type(block.mixer)
        if kind not in seconds:
            for _ in range(2):  # the first pass pays for page faults and thread pools that no later one sees
                started = time.perf_counter()
                block(x, batch, block.mixer.new_state())
                seconds[kind] = time.perf_counter() - started
    total = sum(seconds[type(block.mixer)] for block in model.blk)
    layer = config.embedding_length * (3 * config.feed_forward_length + config.inner_size)
    head: int = config.vocab_size * config.embedding_length
    return total + min(seconds.values()) / layer * head


def _kv_bytes(config: TargetConfig) -> int:
    """Target keys and values per position."""
    return config.n_attention * 2 * config.head_count_kv * config.key_length * FLOAT_BYTES


def _draft_kv_bytes(config: DraftConfig) -> int:
    return config.block_count * 2 * config.head_count_kv * config.key_length * FLOAT_BYTES


def _state_bytes(config: TargetConfig) -> int:
    """Recurrent and convolution states of all linear layers."""
    layer = config.time_step_rank * config.state_size * config.value_head_dim
    layer += (config.conv_kernel - 1) * config.conv_channels
    return config.n_linear * layer * FLOAT_BYTES


def _context_that_fits(target: TargetConfig, draft: DraftConfig | None) -> int:
    """The largest halving of the ceiling whose keys and values take at most half of the free memory."""
    per_position = _kv_bytes(target) + (_draft_kv_bytes(draft) if draft else 0)
    context, free = min(CPU_CONTEXT, target.context_length), memory.host_memory().free
    while context > SMALLEST_CONTEXT and context * per_position > free // 2:
        context //= 2
    return context
