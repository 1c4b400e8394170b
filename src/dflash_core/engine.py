"""The engine: a loaded pair that answers prompts, knows its memory, and says how slow it will be."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from dflash_core import fits, fits_notes, memory
from dflash_core.arch.recommended import recommended
from dflash_core.backends.opened import Session, Target
from dflash_core.cache_types import AUTO, CacheChoice, checked, named
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.draft import Draft
from dflash_core.drafters.registry import open_draft
from dflash_core.errors import FormatError, MismatchError, OutOfMemoryError, cpu_instead
from dflash_core.fits import DEFAULT_CARD, CardOptions, MemoryEstimator, RanOutError, Setup
from dflash_core.knobs import Knobs, check_tree_width
from dflash_core.limits import Limits
from dflash_core.loading import open_target
from dflash_core.memory import OTHERS, Component, MemoryBreakdown, weights_detail
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.auto import AutoPolicy
from dflash_core.policy.base import FixedPolicy
from dflash_core.policy.costs import StepCosts
from dflash_core.policy.queued import QueuedPolicy
from dflash_core.policy.saved import SavedValues, fingerprint, pair_of, shipped_beside
from dflash_core.progress import Progress, silent
from dflash_core.runner import Runner
from dflash_core.snapshots.store import Snapshots, SnapshotStore, default_cap

# What torch starts with: the cores this process may use.
CORES = torch.get_num_threads()
# Steps slower than this are announced before they start.
SLOW_STEP_S = 1.0
TOKENIZER_WAITS = 1.0  # seconds


class Engine(Runner):
    """A target with or without its drafter, ready to answer. Without one it decodes plainly.

    `context_length` is cut to the model's own; by default it is what fits half of the free memory, 32,768 at most.
    `saved`: files for what is learned about each drafter, in their order; without them it is lost with the engine.
    `kv`: how keys and values are stored: "auto", a name of cache_types.TYPES, or two as "K/V"; the attribute says what
    was chosen, and why.
    `states`: the store for states of conversations other than the session's; by default the engine makes its own.
    Raises MismatchError for a drafter loaded for another target, ContextError for a context length below 2, KnobError
    for a type of cache that there is not, and OutOfMemoryError where the context does not fit.
    """

    def __init__(
        self,
        target: Target,
        draft: Draft | None = None,
        *,
        context_length: int | None = None,
        saved: Sequence[SavedValues] = (),
        kv: str = AUTO,
        states: SnapshotStore | None = None,
    ) -> None:
        requested = checked(kv)
        if draft is not None and draft.target is not target:
            raise MismatchError("the drafter was loaded for another target; load it with load_draft(path, target)")
        self.target, self.draft = target, draft
        self._recommended = recommended(target.file.metadata)
        config, self.machine = target.config, target.machine
        self._estimator = target.estimator(draft)
        available = fits.memory_after_load(self._estimator, self.machine.available())
        self._setup = fits.requested_setup(self._estimator, context_length, requested, available)
        context, self.kv = self._setup.context, _choice(self._estimator, self._setup, requested)
        self._cut = fits_notes.cut_note(context_length, context)
        self._available = available
        self._shrunk = "" if context_length else fits_notes.shrunk_note(self._estimator, self._setup, available)
        less = fits.default_context(self._estimator, self._setup.kv, available)
        remedies = f"a context of {less:,} positions fits; a smaller model or fewer open programs leave memory for more"
        memory.check(self.machine.breakdown(self._estimator.sequence(self._setup)), remedies)
        session: Session = target.session(
            draft, context=context, kv=self.kv.pair, rows=self._setup.rows, nodes=self._setup.nodes
        )
        self.saved = tuple(saved)
        self._auto: AutoPolicy | None = None
        store = states if states is not None else SnapshotStore(default_cap())
        super().__init__(
            session, target.tokenizer.stop_ids, context, config.vocab_size, self.machine.prefill_chunk,
            self.machine.tree_width, self._policy(session.capabilities), str(self.kv.pair),
            Snapshots(store, f"{_space(target, draft)} {self.kv.pair}", cut=session.cuts_anywhere),
        )  # fmt: skip

    def _policy(self, drafter: Capabilities | None) -> AutoPolicy | None:
        """What decides the steps of `auto`; None where the knobs do."""
        if drafter is None:
            return None
        think_ids = self.target.tokenizer.think_ids
        arms = []
        for at, one in enumerate(drafter.parts or (drafter,)):
            shape = self.machine.step_costs(one)
            if shape is None:
                return None
            file = self.saved[at] if at < len(self.saved) else None
            state, save = (file.read(), file.write) if file is not None else (PairState(), None)
            arms.append(Arm(one, state, StepCosts(shape), save))
        queued = drafter.on_device
        self._auto = QueuedPolicy(arms[0], think_ids=think_ids) if queued else AutoPolicy(arms, think_ids=think_ids)
        return self._auto

    def forget_learned(self) -> None:
        """Reset to the start values, on disk too; not while an answer is under way."""
        if self._auto is not None:
            states = [one.forget() for one in self.saved]
            self._auto.reset([*states, *(PairState() for _ in self._auto.arms[len(states) :])])

    @property
    def limits(self) -> Limits:
        template, most = self.target.template, self.target.config.context_length
        return replace(
            super().limits, reasoning=template.reasoning, max_context=most, recommended=self._recommended,
            thinking_notes=template.without_effect,
        )  # fmt: skip

    def ran_out(self, error: OutOfMemoryError) -> RanOutError:
        """Who holds what, and what would help."""
        memory = self.memory()
        estimator = self.target.estimator(self.draft)
        setup = replace(estimator.base, context=self.context_length, kv=self._setup.kv)
        # All that other processes do not use: what this engine uses would be free if it were loaded otherwise.
        others = sum(one.bytes for one in memory.components if one.name == OTHERS)
        found = fits.plan(estimator, setup, available=memory.total - others)
        return fits.ran_out(found, memory)

    # ---- Description -------------------------------------------------------------------------------------------------

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about this pair, a line each."""
        notes = [*self.target.notes, *self.machine.notes, *self._recommended.problems]
        if self.kv.why:
            notes.append(f"keys and values are cached as {self.kv.pair}: {self.kv.why}")
        if self.target.template.notice:
            notes.append(self.target.template.notice)
        if self.target.packed:
            notes.append("the weights stay quantised in memory and are dequantised at every use: very slow")
        rows, usual = self._setup.rows, self.machine.prefill_chunk
        if rows < min(usual, self.context_length):
            more = fits_notes.missing(self._estimator, replace(self._setup, rows=usual), self._available)
            notes.append(f"prompts are read {rows:,} tokens at once, not {usual:,}: {more}")
        if self._setup.nodes < self._estimator.tree_nodes[0]:
            notes.append(fits_notes.trees_end(self.session.max_drafted))
        if self._shrunk:
            notes.append(self._shrunk)
        elif self.context_length < self.target.config.context_length:
            full = self.target.config.context_length
            notes.append(f"the context is {self.context_length:,} positions here, of the model's {full:,}")
        return (*notes, *self._cut, *(self.draft.notes if self.draft else ()))

    def memory(self) -> MemoryBreakdown:
        """Predicted bytes by component at full context, and the bytes really used."""
        target, draft = self.target, self.draft
        drafting = draft.config if draft else None
        detail = weights_detail(target.config.block_count, target.host_bytes, target.host_experts)
        components = [Component("target", target.weight_bytes, detail)]
        if draft and drafting:
            components.append(Component("drafter", draft.weight_bytes, f"{drafting.block_count} layers"))
        components += self._estimator.sequence(self._setup)
        return self.machine.breakdown(tuple(components), self.session)

    def predicted_step_seconds(self, knobs: Knobs) -> float | None:
        """Seconds per target pass with these knobs, from one timed layer of each kind; None where it is too little
        to mention."""
        seconds = self.target.step_seconds(1 + FixedPolicy(self.session.capabilities).next(knobs).budget)
        return seconds if seconds is not None and seconds > SLOW_STEP_S else None


def _choice(estimator: MemoryEstimator, setup: Setup, requested: str) -> CacheChoice:
    """How keys and values are stored, and why, where `auto` chose it."""
    before = estimator.auto[: estimator.auto.index(setup.kv)] if requested == AUTO else ()
    why = f"{setup.context:,} positions leave no memory to spare as {' or '.join(before)}" if before else ""
    if before and (cost := fits_notes.cache_note(setup.kv)):
        why += f"; {cost}"
    return CacheChoice(named(setup.kv), why)


@cpu_instead()
def load_pair(
    target: str | Path,
    draft: str | Path | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
    *,
    context_length: int | None = None,
    card: CardOptions = DEFAULT_CARD,
    knobs: Knobs | None = None,
    chosen: Collection[str] | None = None,
    refuse: bool = True,
    learned: Path | None = None,
    kv: str = AUTO,
    states: SnapshotStore | None = None,
) -> Engine:
    """Load a target and, if given, its drafter. Raises what `load_target`, `load_draft` and `Engine` raise, and
    TemplateError; what the headers can refuse is refused before any weight is read.

    `knobs`: the settings of the first answer, whose steps are prepared; those that the device could not follow are
    refused (KnobError) if `refuse`. `chosen`: names of its sampling settings that the user chose; the others will be as
    recommended for the model. None: all are as `knobs` say. `learned`: the folder where what is learned of pairs is
    stored; `states`: where states of conversations are stored, also those of an engine before this one. `kv`: as of
    `Engine`."""
    say, kv = progress or silent, checked(kv)
    fits.check_context(context_length)
    if "OMP_NUM_THREADS" not in os.environ:
        # torch's threads wait for each other in every operation, so one that another program delays delays all of them:
        # with two threads on two busy cores a step took ten times as long.
        torch.set_num_threads(max(1, CORES - 1))
    opened = open_target(target, device, progress=say, card=card)
    first = knobs or Knobs()
    if refuse:
        check_tree_width(first, opened.machine.tree_width)
    opened.template  # noqa: B018 - built here for its refusals, tokenizer included
    named = opened.own_draft if draft is None else draft
    opened_draft = open_draft(named, opened) if named is not None else None
    opened.check_memory(opened_draft, context_length, kv)
    with tokenizer_meanwhile(opened):
        opened.load(dtype=torch.float32, progress=say)
        drafter = opened_draft.load(progress=say) if opened_draft else None
        saved = _saved(learned, opened, opened_draft) if opened_draft is not None else ()
        engine = Engine(opened, drafter, context_length=context_length, saved=saved, kv=kv, states=states)
        if chosen is not None:
            first = engine.limits.recommended.applied(first, chosen)
        engine.session.prepare(say, first)
        engine.machine.learn(engine.session, say)
        memory.give_back()
        say("ready", 1.0)
    return engine


@contextmanager
def tokenizer_meanwhile(target: Target) -> Iterator[None]:
    """Builds the target's tokenizer beside a load that takes longer than TOKENIZER_WAITS, or right after a shorter one:
    that of a large vocabulary keeps all other threads waiting for 0.4 s. Raises FormatError where it is known to fail;
    after a short load, the first text does."""
    loaded, failed = threading.Event(), list[FormatError]()

    def build() -> None:
        loaded.wait(TOKENIZER_WAITS)
        try:
            target.tokenizer.prepare()
        except FormatError as error:
            failed.append(error)

    # No daemon: one that is building when the interpreter ends panics with a stack trace.
    threading.Thread(target=build, name="tokenizer").start()
    try:
        yield
    finally:
        loaded.set()
    if failed:
        raise failed[0]


def _space(target: Target, draft: Draft | None) -> str:
    """The key under which states of this pair are stored: they fit no other pair."""
    try:
        file = fingerprint(target.file.path)
    except OSError:  # the file no longer exists: then states fit only this engine instance
        file = f"{id(target)}"
    drafter = f"{draft.capabilities.kind} {draft.config and draft.config.name} {draft.weight_bytes}" if draft else ""
    return f"{type(target).__name__} {target.arithmetic} {file} {drafter}"


def _saved(folder: Path | None, target: Target, draft: Draft) -> tuple[SavedValues, ...]:
    """Where what is learned about each drafter is stored; a drafter may also ship with start values."""
    found = []
    for one in draft.parts or (draft,):
        file = one.files[0].path if one.files else None
        pair = pair_of(target.file.path, file if file is not None else one.capabilities.kind)
        found.append(SavedValues(folder, pair, shipped_beside(file) if file is not None else None))
    return tuple(found)
