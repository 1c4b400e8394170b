"""What the chat has loaded, asks and shows. The controllers, the pages and the commands all act on this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dflash_core.arch.recommended import Recommended
from dflash_core.knobs import Knobs
from dflash_core.limits import Limits
from dflash_tui.application.background import UNDER_WAY, DecoderUse
from dflash_tui.application.conversations.history import History
from dflash_tui.application.json_store import Remembered
from dflash_tui.application.requests import Requests
from dflash_tui.application.session import NOT_HERE, Loader, LoadRequest, SessionLike
from dflash_tui.application.settings.config import Settings
from dflash_tui.application.settings.presets import Presets
from dflash_tui.widgets.flash import Notices

if TYPE_CHECKING:
    from dflash_core.messages import Call
    from dflash_core.record import TurnRecord
    from dflash_core.turn_stats import TurnReport
    from dflash_tui.application.background import Experiment, Running
    from dflash_tui.application.conversations.current import CurrentConversation
    from dflash_tui.application.figures.meter import Meter
    from dflash_tui.widgets.answer import Answer
    from dflash_tui.widgets.transcript import TurnBlock

NEED_THE_DECODER = frozenset({
    "tune", "sweep", "ab", "plain", "serve", "policy", "kv", "lab.tune", "lab.sweep", "lab.ab", "lab.plain",
})  # fmt: skip
"""Commands and actions that have no effect on a server's model."""

UNKNOWN = Limits(None, 0)


@dataclass
class ShownTurn:
    """The turn that runs, or else the last one: what its figures are drawn from."""

    running: Running | None = None
    meter: Meter | None = None
    report: TurnReport | None = None
    record: TurnRecord | None = None
    block: TurnBlock | None = None
    answer: Answer | None = None
    taken: tuple[int, int] = (0, 0)  # characters of text and thinking that have been shown
    error: Exception | None = None  # the error that ended the last turn
    cold: bool = True  # no turn has ended since the model was loaded
    lost: bool = False  # the device is lost: nothing works in this process any more
    calls: tuple[Call, ...] = ()  # those of the last answer, which are to be made
    served: bool = False  # it is the answer to another program, and is being written
    client: str = ""  # that program

    @property
    def reasoning(self) -> bool:
        """The answer that is being written has begun with reasoning, and has no text yet."""
        return self.running is not None and bool(self.taken[1]) and not self.taken[0]

    def recall(self, record: TurnRecord | None) -> None:
        """Set the figures to the end of an earlier turn, or to none."""
        from dflash_tui.application.figures.meter import Meter

        self.record = record
        self.meter = Meter.of(record) if record is not None else None
        self.report = record.report if record is not None else None


@dataclass(eq=False, repr=False)
class AppState:
    """`used` are the knobs of the last turn; `context` and `kv` are the next load's."""

    request: LoadRequest  # what was loaded last, or is being loaded
    loader: Loader  # that of the first load
    loaders: Callable[[LoadRequest], Loader]
    check: Callable[[LoadRequest], None]  # raises DFlashError if headers show that a pair cannot be loaded; slow
    knobs: Knobs  # of the next turn
    past: History
    settings: Settings

    def __post_init__(self) -> None:
        self.present: LoadRequest | None = None  # the loaded pair, or the last one that was
        self.context, self.kv = self.request.context, self.request.kv
        self.used = self.knobs
        self.notices = Notices()
        self.presets = Presets()
        self.remembered = Remembered(self.past.folder)
        self.session: SessionLike | None = None
        self.loading = True  # a pair is being loaded, or is about to be
        self.turn = ShownTurn()
        self.clients = dict(self.settings.clients)  # the presets of programs that use the server
        self.serving = ""  # the address at which other programs use the loaded pair
        self.watched = False  # the model is a server's, which tells what other programs ask of it
        self.followed: ShownTurn | None = None  # a request of theirs that is newer than the turn
        self.calling = False  # tools are being called, between two answers
        self.queue: list[TurnBlock] = []  # messages that were sent and that the model has not received yet
        self.overlong = (0, 0)  # positions that the last refused message needed, and its tokens
        self.experiment: Experiment | None = None  # the lab's running experiment
        self.decoder, self.requests = DecoderUse(), Requests()
        self.no_model = ""  # why no model can be used or loaded, as in a replay
        self.without: frozenset[str] = frozenset()  # what is `refused` whatever is loaded, as in a replay

    @cached_property
    def conversation(self) -> CurrentConversation:
        """The conversation on the screen. The first use opens the store."""
        from dflash_tui.application.conversations.current import CurrentConversation

        return CurrentConversation(self.past.folder, self.settings.system)

    @property
    def attached(self) -> bool:
        return self.present is not None and bool(self.present.attach)

    @property
    def refused(self) -> frozenset[str]:
        """Ids of actions, and names of commands, that have no effect."""
        return self.without | NEED_THE_DECODER if self.attached else self.without

    @property
    def refusal(self) -> str:
        """Why they have none."""
        return self.no_model or NOT_HERE

    @property
    def opened(self) -> CurrentConversation | None:
        """The conversation, for code that must not open the store."""
        return self.__dict__.get("conversation")

    @property
    def resumable(self) -> str:
        """The id under which the next start finds the present conversation; "" if there is none, or it will not."""
        return self.opened.resumable if self.opened is not None and not self.no_model else ""

    @property
    def model(self) -> str:
        return self.session.title if self.session is not None else ""

    @property
    def limits(self) -> Limits:
        """What the loaded pair supports; without one nothing is known to be unsupported."""
        return self.session.limits if self.session is not None else UNKNOWN

    @property
    def recommended(self) -> Recommended:
        """The defaults of sampling of the loaded model."""
        return self.limits.recommended

    @property
    def busy(self) -> bool:
        """An answer is being written, or tools are being called for it."""
        return self.turn.running is not None or self.calling

    @property
    def shown(self) -> ShownTurn:
        """The answer whose figures the panels show: the newest, of the chat or of a request."""
        return self.followed or self.turn

    @property
    def shown_runs(self) -> bool:
        """The answer that the panels show is being written."""
        return self.shown.served or self.shown.running is not None

    @property
    def waiting(self) -> bool:
        return bool(self.queue)

    @property
    def unchangeable(self) -> str:
        """Why the conversation cannot be changed: an answer is being written, or messages are queued; "" if it can."""
        if self.busy:
            return "an answer is being written: Esc stops it first"
        if self.queue:
            return "messages are queued for the model; they are answered first"
        return UNDER_WAY if self.experiment is not None else ""

    def missing(self, what: str) -> str:
        """Why the loaded model has no such thing, as a figure or a change of a running answer; "" if it has."""
        return self.session.missing.get(what, "") if self.session is not None else ""

    @property
    def no_pair(self) -> str:
        """Why there is no model to measure or to ask."""
        return "the model is still being loaded; try again when it is ready" if self.loading else "no model is loaded"
