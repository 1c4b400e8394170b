"""The engine: a loaded pair that answers prompts, knows its memory, and says how slow it will be."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from dflash_core import memory
from dflash_core.backends.cpu.session import CpuSession
from dflash_core.config import DraftConfig, TargetConfig
from dflash_core.formats.weights import WeightFile
from dflash_core.knobs import Knobs
from dflash_core.loading import FLOAT_BYTES, Draft, Progress, Target, load_draft, load_target
from dflash_core.memory import Ledger, Owner
from dflash_core.models.qwen35 import Qwen35, Rows
from dflash_core.runner import MAX_CHECKPOINTS, Runner

# The reference decoder's default ceiling: attention over more would take it minutes per answer.
CPU_CONTEXT = 32_768
# Steps slower than this are announced before they start.
SLOW_STEP_S = 1.0


class Engine(Runner):
    """A target with or without its drafter, ready to answer. Without one it decodes plainly.

    `context_length` is cut to the model's own; by default it is what fits half of the free memory, 32,768 at most.
    """

    def __init__(self, target: Target, draft: Draft | None = None, *, context_length: int | None = None) -> None:
        self.target, self.draft = target, draft
        config = target.config
        self.session = CpuSession(target.model, draft.model if draft else None, draft.mask_token if draft else 0)
        limit = context_length or _context_that_fits(config, draft.config if draft else None)
        super().__init__(self.session, target.tokenizer.stop_ids, min(limit, config.context_length), config.vocab_size)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about this pair, a line each."""
        notes = [self.target.template.notice] if self.target.template.notice else []
        if self.target.packed:
            notes.append("the weights stay quantised in memory and are dequantised at every use: very slow")
        return (*notes, *(self.draft.notes if self.draft else ()))

    def memory(self) -> Ledger:
        """Bytes by owner at full context, beside what the process really holds."""
        host, context = memory.host_memory(), self.context_length
        target, draft = self.target.config, self.draft.config if self.draft else None
        state = _state_bytes(target)
        owners = [
            Owner("target", _weight_bytes(self.target.file, self.target.packed), f"{target.block_count} layers"),
            Owner("target KV", context * _kv_bytes(target), f"{context:,} positions at most"),
            Owner("states", state * (1 + MAX_CHECKPOINTS), f"{MAX_CHECKPOINTS} checkpoints"),
        ]
        if self.draft and draft:
            owners += [
                Owner("drafter", _weight_bytes(self.draft.file, self.target.packed), f"{draft.block_count} layers"),
                Owner("drafter KV", context * _draft_kv_bytes(draft), f"{context:,} positions at most"),
            ]
        return Ledger("this machine", tuple(owners), host.total, host.free, host.process)

    def predicted_step_seconds(self, knobs: Knobs | None = None) -> float | None:
        """Seconds per step, from one timed layer of each kind; None where that is too little to mention."""
        rows = 1 + (knobs or Knobs()).budget if self.draft else 1
        seconds = time_step(self.target.model, rows)
        return seconds if seconds > SLOW_STEP_S else None


def load_pair(
    target: str | Path,
    draft: str | Path | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
    *,
    context_length: int | None = None,
) -> Engine:
    """Load a target and, if given, its drafter. Raises what `load_target` and `load_draft` raise."""
    loaded = load_target(target, device, progress=progress)
    drafter = load_draft(draft, loaded, progress=progress) if draft else None
    engine = Engine(loaded, drafter, context_length=context_length)
    if progress:
        progress("ready", 1.0)
    return engine


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
    weights = 3 * config.embedding_length * config.feed_forward_length
    per_weight = min(seconds.values()) / (weights + config.embedding_length * config.inner_size)
    head: int = config.vocab_size * config.embedding_length
    return total + per_weight * head


def _weight_bytes(file: WeightFile, packed: bool) -> int:
    infos = file.tensors.values()
    return sum(info.n_bytes if packed else info.n_elements * FLOAT_BYTES for info in infos)


def _kv_bytes(config: TargetConfig) -> int:
    """Target keys and values per position."""
    return sum(config.full_attention) * 2 * config.head_count_kv * config.key_length * FLOAT_BYTES


def _draft_kv_bytes(config: DraftConfig) -> int:
    return config.block_count * 2 * config.head_count_kv * config.key_length * FLOAT_BYTES


def _state_bytes(config: TargetConfig) -> int:
    """Recurrent and convolution states of all linear layers."""
    layer = config.time_step_rank * config.state_size * config.value_head_dim
    layer += (config.conv_kernel - 1) * config.conv_channels
    return (config.block_count - sum(config.full_attention)) * layer * FLOAT_BYTES


def _context_that_fits(target: TargetConfig, draft: DraftConfig | None) -> int:
    per_position = _kv_bytes(target) + (_draft_kv_bytes(draft) if draft else 0)
    context = min(CPU_CONTEXT, target.context_length)
    while context > 512 and context * per_position > memory.host_memory().free // 2:
        context //= 2
    return context
