"""The engine: a loaded pair that answers prompts, knows its memory, and says how slow it will be."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import torch

from dflash_core import memory
from dflash_core.arch.spec import LayerSpec
from dflash_core.decoder import StepDecoder, plan
from dflash_core.errors import ContextError, MismatchError
from dflash_core.knobs import Knobs, check_tree_width
from dflash_core.loading import DEFAULT_CARD, CardOptions, Draft, Progress, Target, open_draft, open_target, silent
from dflash_core.memory import Ledger, Owner
from dflash_core.models.rows import Rows
from dflash_core.models.target import TargetModel
from dflash_core.runner import Runner

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
        self.machine = target.machine
        fits = self.machine.context_that_fits(target, draft)
        context = min(fits if context_length is None else context_length, config.context_length)
        remedies = f"a context of {fits:,} positions fits; a smaller model or fewer open programs leave room for more"
        memory.check(self.machine.ledger(self.machine.sequence(target, draft, context)), remedies)
        self.session = target.session(draft, context=context)
        super().__init__(
            self.session,
            target.tokenizer.stop_ids,
            context,
            config.vocab_size,
            self.machine.prefill_chunk,
            self.machine.tree_width,
        )

    def decoder(self, knobs: Knobs) -> StepDecoder:
        return self.session.decoder(knobs, self.stop_ids, self.context_length)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about this pair, a line each."""
        notes = [*self.target.notes, *self.machine.notes]
        if self.target.template.notice:
            notes.append(self.target.template.notice)
        if self.target.packed:
            notes.append("the weights stay quantised in memory and are dequantised at every use: very slow")
        if self.context_length < self.target.config.context_length:
            full = self.target.config.context_length
            notes.append(f"the context is {self.context_length:,} positions here, of the model's {full:,}")
        return (*notes, *(self.draft.notes if self.draft else ()))

    def memory(self) -> Ledger:
        """Bytes by owner at full context, beside what is really held."""
        target, draft = self.target, self.draft
        owners = [Owner("target", target.weight_bytes, f"{target.config.block_count} layers")]
        if draft:
            owners.append(Owner("drafter", draft.weight_bytes, f"{draft.config.block_count} layers"))
        owners += self.machine.sequence(target, draft, self.context_length, self.session)
        return self.machine.ledger(tuple(owners), self.session)

    def predicted_step_seconds(self, knobs: Knobs) -> float | None:
        """Seconds per target pass with these knobs, from one timed layer of each kind; None where it is too little
        to mention."""
        mode, block = plan(knobs, self.session.draft_block).mode, self.session.draft_block
        if not isinstance(self.target.model, TargetModel):
            return None
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
    card: CardOptions = DEFAULT_CARD,
    knobs: Knobs | None = None,
) -> Engine:
    """Load a target and, if given, its drafter. Raises what `load_target`, `load_draft` and `Engine` raise, and
    TemplateError; what the headers can refuse is refused before any weight is read, and so are `knobs` that the device
    could not follow (KnobError)."""
    say = progress or silent
    _leave_a_core()
    opened = open_target(target, device, progress=say, card=card)
    if knobs is not None:
        check_tree_width(knobs, opened.machine.tree_width)
    opened.template  # noqa: B018 - built here for its refusals, tokenizer included
    opened_draft = open_draft(draft, opened) if draft is not None else None
    opened.check_room(opened_draft, context_length)
    opened.load(progress=say)
    drafter = opened_draft.load(progress=say) if opened_draft else None
    engine = Engine(opened, drafter, context_length=context_length)
    engine.session.prepare(say)
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
def time_step(model: TargetModel, rows: int) -> float:
    """Predicted seconds of one target pass of `rows` rows: one timed layer per kind, times their number, plus the
    head in proportion to its weights."""
    spec = model.spec
    batch = Rows.of([0] * rows, range(-1, rows - 1), 0)
    x = model.token_embd.rows([0]).expand(rows, -1)
    seconds: dict[LayerSpec, float] = {}
    for block in model.blk:
        if block.spec not in seconds:
            for _ in range(2):  # the first pass pays for page faults and thread pools that no later one sees
                started = time.perf_counter()
                block(x, batch, block.new_state())
                seconds[block.spec] = time.perf_counter() - started
    total = sum(seconds[block.spec] for block in model.blk)
    hidden = spec.embedding_length
    weights = {layer: sum(map(math.prod, layer.tensors(hidden).values())) for layer in seconds}
    return total + min(seconds[layer] / weights[layer] for layer in seconds) * spec.vocab_size * hidden
