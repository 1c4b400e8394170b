"""The app's session over the real decoder. Imported by the loader's thread only: it brings torch."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_core.conversation import Conversation
from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.engine import Engine, load_pair
from dflash_core.knobs import Knobs
from dflash_core.memory import Ledger
from dflash_tui.session import LoadRequest, Progress


class EngineSession:
    """A loaded pair, its conversation, and what the panels ask of it."""

    def __init__(self, engine: Engine, title: str, knobs: Knobs, notes: Sequence[str]) -> None:
        self._engine = engine
        self._title = title
        self._knobs = knobs
        self._notes = tuple(notes)
        self._conversation = Conversation(engine, engine.target.tokenizer, engine.target.template)

    @property
    def conversation(self) -> Conversation:
        return self._conversation

    @property
    def title(self) -> str:
        return self._title

    @property
    def context_length(self) -> int:
        return self._engine.context_length

    @property
    def notes(self) -> Sequence[str]:
        return self._notes

    @property
    def knobs(self) -> Knobs:
        return self._knobs

    def ledger(self) -> Ledger:
        return self._engine.memory()

    def context_used(self) -> int:
        """Positions that are committed; it moves while a turn runs."""
        return self._engine.backend.length

    def token_text(self, token: int) -> str:
        return self._engine.target.tokenizer.token_text(token)

    def clear(self) -> None:
        self._conversation.reset()


def load_engine(request: LoadRequest, progress: Progress, stop_key: str) -> tuple[Engine, tuple[str, ...]]:
    """Load what the command line asked for, and what the user should know of it before the first answer.

    Without a target that is the demo pair. `stop_key` ends a slow answer. Raises DFlashError.
    """
    target, draft = request.target, request.draft
    if target is None:
        target, draft = demo_target_path(), demo_draft_path()
    engine = load_pair(target, draft, request.device, progress)
    notes = list(engine.notes)
    if draft is None:
        notes.append("no drafter: plain decoding; --draft FILE adds one")
    seconds = engine.predicted_step_seconds(request.knobs)
    if seconds is not None:
        notes.append(f"about {seconds:.1f} s per step on this machine; {stop_key} stops and keeps the text")
    return engine, tuple(notes)


def load_session(request: LoadRequest, progress: Progress) -> EngineSession:
    """The loaded pair as the app's session. Raises DFlashError."""
    title = request.target.stem if request.target else "demo pair"
    if request.target and request.draft:
        title += f" + {request.draft.stem}"
    engine, notes = load_engine(request, progress, "Esc")
    return EngineSession(engine, title, request.knobs, notes)
