"""The app's session over the real decoder. Only the loader's thread imports it, because it imports torch."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

import torch

from dflash_core.clean import encodable
from dflash_core.conversation import Conversation, Models
from dflash_core.drafters.capabilities import DRAFT_KNOBS
from dflash_core.engine import Engine, load_pair
from dflash_core.knobs import SPEC, Knobs
from dflash_core.lab.experiment import Design, Experiment, Laboratory
from dflash_core.lab.whatif import ExactReplay
from dflash_core.limits import Limits
from dflash_core.memory import parse_bytes
from dflash_core.progress import Progress
from dflash_core.record import Loaded, TurnRecord
from dflash_core.snapshots.folder import StateFolder
from dflash_core.snapshots.store import SnapshotStore, default_cap
from dflash_core.user_folders import user_folder
from dflash_tui import __version__
from dflash_tui.application.log import LOG
from dflash_tui.application.requests import Requests
from dflash_tui.application.session import LoadRequest


class EngineSession:
    """A loaded pair, its conversation, and the data that the panels show."""

    missing: Mapping[str, str] = MappingProxyType({})

    def __init__(self, engine: Engine, title: str, knobs: Knobs, notes: Sequence[str]) -> None:
        self._engine = engine
        self.title, self.knobs, self.notes = title, knobs, tuple(notes)
        self.context_length, self.limits = engine.context_length, engine.limits
        self.conversation = self.scratch_conversation()
        self.count, self.clear = self.conversation.count, self.conversation.reset
        self.memory, self.token_text = engine.memory, engine.target.tokenizer.token_text
        self.learned, self.forget_learned = engine.learned, engine.forget_learned
        self.leave, self.cancel = engine.leave, engine.cancel

    @property
    def turns(self) -> Sequence[TurnRecord]:
        return self.conversation.turns

    def watch(self, requests: Requests) -> bool:
        return False

    def decoder(self) -> Engine:
        return self._engine

    def experiment(self, design: Design) -> Experiment:
        return laboratory(self._engine, self.title).experiment(design)

    def what_if(
        self, record: TurnRecord, budgets: Sequence[int], drafter: str = "", p_min: float | None = None
    ) -> ExactReplay:
        return laboratory(self._engine, self.title).replay(record, budgets, drafter, p_min)

    def scratch_conversation(self) -> Conversation:
        """A separate empty conversation over the same decoder, for measuring."""
        return Conversation(self._engine, self._engine.target.tokenizer, self._engine.target.template)


def laboratory(engine: Engine, title: str) -> Laboratory:
    """Experiments on a loaded engine, with the facts that their reports must state."""
    about = (
        ("program", f"dflash-tui {__version__}"),
        ("models", title),
        ("machine", f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads"),
        ("torch", torch.__version__),
        ("context", f"{engine.context_length:,}"),
        ("keys and values", str(engine.kv)),
        ("created", datetime.now(UTC).isoformat(timespec="seconds")),
    )
    return Laboratory(engine, engine.target.tokenizer, engine.target.template, about)


def begin(conversation: Conversation, request: LoadRequest, engine: Engine) -> None:
    """Label the turns of a conversation with their models, and connect the watchers."""
    target = encodable(request.target.name) if request.target else "demo target"
    draft = encodable(request.draft.name) if request.draft else "" if request.target else "demo drafter"
    conversation.models = Models(target, draft, engine.session.capabilities)
    conversation.watchers += request.watchers
    for watcher in request.watchers:
        watcher(Loaded(request.title(), engine.context_length, engine.memory()))


def load_engine(
    request: LoadRequest, progress: Progress, stop_key: str, *, refuse: bool = True
) -> tuple[Engine, tuple[str, ...]]:
    """Load what the command line names. Also returns what the user should know before the first answer.

    Without a target, the demo pair is loaded. `stop_key` ends a slow answer. `refuse` rejects, before anything is
    loaded, parameters that the device does not support. Raises DFlashError.
    """
    engine = load_pair(
        *request.files,
        request.device,
        progress,
        context_length=request.context or None,
        card=request.card,
        knobs=request.knobs,
        chosen=request.chosen,
        refuse=refuse,
        learned=user_folder("data") / "policy",
        kv=request.kv,
        states=_states(request),
    )
    for saved in engine.saved:
        if saved.note:
            LOG.warning("%s", saved.note)
    notes = list(engine.notes)
    if engine.draft is None:
        notes.append("no drafter: plain decoding; --draft FILE adds one, --draft ngram copies from the conversation")
    notes += [*engine.limits.within(request.knobs)[1], *_without_effect(request.knobs, engine.limits)]
    seconds = engine.predicted_step_seconds(request.knobs)
    if seconds is not None:
        notes.append(f"about {seconds:.1f} s per step on this machine; {stop_key} stops and keeps the text")
    return engine, tuple(notes)


def with_recommended(request: LoadRequest, engine: Engine, how: str) -> tuple[LoadRequest, tuple[str, ...]]:
    """The request with the sampling that is recommended for the model, where the user has chosen none, and a line that
    says so. `how`: what decodes greedily instead."""
    found = engine.limits.recommended
    knobs = found.applied(request.knobs, request.chosen)
    if knobs == request.knobs:
        return request, ()
    return replace(request, knobs=knobs), (f"sampling {found.by}: {found.words(knobs.thinking)}; {how}",)


def state_folder(keep: int = 0) -> StateFolder:
    """The folder on disk with the states of the last conversations."""
    return StateFolder(user_folder("cache") / "states", keep)


def _states(request: LoadRequest) -> SnapshotStore:
    """The store for the states of conversations, starting with the first load of a request."""
    if not request.states:
        text = request.states_memory
        capacity = default_cap() if text == "auto" else 0 if text == "0" else parse_bytes(text)
        request.states.append(SnapshotStore(capacity, folder=state_folder(request.keep_states)))
    return request.states[0]


def _without_effect(knobs: Knobs, limits: Limits) -> list[str]:
    """Settings that have no effect: the loaded drafter or the model's template does not use them."""
    notes = [
        f"{name}: no effect, the model's template does not read it"
        for name in sorted(limits.unread())
        if getattr(knobs, name) != SPEC[name].default
    ]
    if note := limits.thinking_notes.get(knobs.thinking):
        notes.append(note)
    if limits.drafter is None:
        return notes
    idle = sorted(DRAFT_KNOBS - limits.drafter.knobs)
    changed = [name for name in idle if getattr(knobs, name) != SPEC[name].default]
    if changed:
        notes.append(f"{', '.join(changed)}: no effect on {limits.drafter.words}")
    kinds = limits.drafter.kind.split("+")
    if "draft" not in idle and knobs.draft not in ("auto", *kinds):
        notes.append(f"draft={knobs.draft}: not loaded; the choices are {', '.join(kinds)}")
    return notes


def load_session(request: LoadRequest, progress: Progress) -> EngineSession:
    """The loaded pair as the app's session. Raises DFlashError."""
    engine, notes = load_engine(request, progress, "Esc", refuse=False)
    request, lines = with_recommended(request, engine, "Alt+G decodes greedily")
    session = EngineSession(engine, request.title(), request.knobs, (*notes, *lines))
    begin(session.conversation, request, engine)
    return session
