"""The app's interface to a decoder: protocols, and requests to load one. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn, Protocol, Self

from dflash_core.clean import encodable
from dflash_core.demo import demo_draft, demo_target_path
from dflash_core.errors import DFlashError
from dflash_core.fits import DEFAULT_CARD, CardOptions, MemoryEstimator, Setup, requested_setup
from dflash_core.knobs import Knobs
from dflash_core.messages import Message
from dflash_core.progress import Progress
from dflash_core.record import Line, Turns
from dflash_core.text.template_values import NO_TOOLS, Tools
from dflash_core.turn_stats import FoundRow
from dflash_tui.application.requests import Requests

if TYPE_CHECKING:
    from dflash_core.answer import Reread
    from dflash_core.engine import Engine
    from dflash_core.events import Piece
    from dflash_core.lab.experiment import Design, Experiment
    from dflash_core.lab.whatif import ExactReplay
    from dflash_core.limits import Limits
    from dflash_core.memory import MemoryBreakdown
    from dflash_core.messages import Call
    from dflash_core.record import TurnRecord
    from dflash_core.snapshots.store import SnapshotStore
    from dflash_core.turn_stats import TurnReport


class Watcher(Protocol):
    """Called with each line of a turn's record, on the decoder's thread; `problem` says why it stopped."""

    problem: str

    def __call__(self, line: Line) -> None: ...


LAST, LISTED = "last", "list"  # no beginning of an id, which has hexadecimal digits
"""In place of a conversation to continue: the one that changed last, or the list of all."""
NOT_HERE = "the model is on the server: measurements and serving need it in this program"


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What to load and how. Without `target`, the demo pair is loaded."""

    target: Path | None = None
    draft: Path | None = None
    device: str = "auto"
    knobs: Knobs = field(default_factory=Knobs)
    watchers: tuple[Watcher, ...] = ()
    context: int = 0  # positions; 0: as many as fit
    card: CardOptions = DEFAULT_CARD
    kv: str = "auto"  # how keys and values are cached: auto, a type, or two types as K/V
    keep_states: int = 0  # number of conversations whose state is stored on disk
    states_memory: str = "auto"  # for states of conversations: auto, 0, or as 4GiB
    states: list[SnapshotStore] = field(default_factory=list, compare=False)  # set by the first load
    shapes: tuple[str, str] = ("", "")  # for plans without files: a published model, and the type of its drafter
    chosen: frozenset[str] = frozenset()  # knobs that the user has set: a model's defaults do not change them
    resume: str = ""  # the conversation to continue: the beginning of its id, LAST or LISTED
    attach: str = ""  # the address of a server whose model is used in place of files
    attach_key: str = field(default="", repr=False)
    attach_model: str = ""  # its name there; "": the one that is loaded

    @property
    def files(self) -> tuple[Path, Path | None]:
        """Target and drafter; those of the demo pair if none is named."""
        if self.target is None:
            return demo_target_path(), demo_draft(self.draft)
        return self.target, self.draft

    def setup(self, estimator: MemoryEstimator, available: int | None = None) -> Setup:
        """How it would be loaded, see `fits.requested_setup`."""
        return requested_setup(estimator, self.context or None, self.kv, available)

    def title(self, *, endings: bool = False) -> str:
        """The name of the pair; with the `endings` of its files while it is not loaded yet."""
        if self.attach:
            return encodable(self.attach)
        if self.target is None:
            return f"demo target + {encodable(self.draft.name)}" if self.draft else "demo pair"
        paths = (self.target, self.draft) if self.draft else (self.target,)
        return encodable(" + ".join(path.name if endings else path.stem for path in paths))


OnPrefill = Callable[[int, int], None]


class TurnLike(Protocol):
    """One answer being generated. Iterated on a worker thread; `stop` may be called from any thread."""

    @property
    def report(self) -> TurnReport | None: ...
    @property
    def record(self) -> TurnRecord | None: ...
    @property
    def text(self) -> str: ...
    @property
    def thinking(self) -> str: ...
    @property
    def calls(self) -> Sequence[Call]:
        """Calls of tools so far, which are not in the text."""

    @property
    def calling(self) -> str:
        """The tool whose call is being written, or ""."""

    def __iter__(self) -> Iterator[Piece]: ...
    def stop(self) -> None: ...
    def answer_now(self) -> None:
        """Close the reasoning and begin the answer. Usable from any thread."""

    def change(self, knobs: Knobs) -> None:
        """Use these knobs from the next step on; knobs that only a new turn can change stay as they are."""


class ConversationLike(Protocol):
    """The chat over a decoder: `ask` adds a user message, or results of calls; `retry` answers the last one again.

    `set_messages` replaces the history; `watchers` get each line of the records that follow. `tools`: what the model
    may call, from the next turn on.
    """

    watchers: list[Callable[[Line], None]]
    turns: Turns
    tools: Tools

    @property
    def messages(self) -> Sequence[Message]: ...
    def set_messages(self, messages: Sequence[Message]) -> None: ...
    @property
    def tools_note(self) -> str:
        """What a user of tools should know of the model; "" for nothing."""

    def ask(
        self, prompt: str | Sequence[Message], knobs: Knobs, *, on_prefill: OnPrefill | None = None
    ) -> TurnLike: ...
    def retry(self, knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> TurnLike: ...
    def reading(self, knobs: Knobs) -> Reread | None:
        """What the next message would read again, and why; None for nothing. Raises DFlashError."""

    def preview(self, text: str, knobs: Knobs) -> str:
        """The whole prompt that the model would get for `text`. Raises DFlashError."""


class SessionLike(Protocol):
    """A loaded model pair with its conversation. Methods return data or a running request (a turn, an experiment)."""

    @property
    def conversation(self) -> ConversationLike: ...
    @property
    def title(self) -> str: ...
    @property
    def context_length(self) -> int: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def turns(self) -> Sequence[TurnRecord]:
        """Every answered turn of this conversation, oldest first."""

    @property
    def knobs(self) -> Knobs: ...
    def memory(self) -> MemoryBreakdown: ...
    def count(self, text: str) -> int:
        """The number of tokens of a text. Usable from any thread."""

    @property
    def limits(self) -> Limits: ...
    @property
    def missing(self) -> Mapping[str, str]:
        """By panel or page ("tree", "steps", "memory"): why it has nothing to show, or is not complete; and why a
        running answer takes no "change". Usually empty."""

    def token_text(self, token: int) -> str: ...
    def clear(self) -> None:
        """Start an empty conversation."""

    def cancel(self) -> None:
        """End what the decoder is doing, also within a prompt. Usable from any thread."""

    def decoder(self) -> Engine:
        """What a server answers other programs with. Raises DFlashError without a loaded model."""

    def experiment(self, design: Design) -> Experiment:
        """Measure settings on prompts. Raises DFlashError if nothing can be measured."""

    def what_if(
        self, record: TurnRecord, budgets: Sequence[int], drafter: str = "", p_min: float | None = None
    ) -> ExactReplay:
        """The turn as other budgets would have drafted it, by the named one of several drafters. Raises DFlashError."""

    def watch(self, requests: Requests) -> bool:
        """Put what other programs ask of the model into `requests`, until `leave`; False where no server tells it."""

    def learned(self) -> Sequence[FoundRow]:
        """Stated, learned and observed acceptance of the drafter's candidates; nothing if nothing is learned."""

    def forget_learned(self) -> None:
        """Reset to the start values."""

    def leave(self) -> None:
        """Save the state of the conversation: the session is not used after this. Not for the app's own thread."""


Loader = Callable[[Progress], SessionLike]


class WithoutDecoder:
    """`refusal`: why there is nothing that needs a decoder."""

    missing: Mapping[str, str] = {}
    refusal: ClassVar[str]

    def __init__(self, title: str) -> None:
        self.title = title
        self.turns = Turns()
        self.watchers: list[Callable[[Line], None]] = []
        self.messages: tuple[Message, ...] = ()
        self.tools: Tools = NO_TOOLS
        self.tools_note = ""

    @property
    def conversation(self) -> Self:
        return self

    def set_messages(self, messages: Sequence[Message]) -> None:
        self.messages = tuple(messages)

    def reading(self, knobs: Knobs) -> None:
        """What would be read again is not known here."""

    def watch(self, requests: Requests) -> bool:
        return False

    def token_text(self, token: int) -> str:
        return f"<id {token}>"

    def learned(self) -> Sequence[FoundRow]:
        """As of the last turn."""
        report = self.turns[-1].report if self.turns else None
        return report.learned if report is not None else ()

    def leave(self) -> None:
        """There is no state to save."""

    def cancel(self) -> None:
        """Nothing runs but the turn."""

    def refuse(self, *_: object, **__: object) -> NoReturn:
        """Raises DFlashError."""
        raise DFlashError(self.refusal)

    forget_learned = decoder = experiment = what_if = refuse
