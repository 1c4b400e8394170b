"""One turn in stored form: lines of JSON that a trace appends one by one and a store packs together. The turns of a
session, packed but for the newest.

A turn is a `Start`, a `Read` for the prompt, a `Step` per step, an `End`. Each id has its text where it
first occurs, so a record is readable without the model. After a crash lines are missing, never wrong.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Generic, TypeVar, overload

import msgspec

from dflash_core.damaged import in_words
from dflash_core.drafting import upgraded
from dflash_core.errors import FormatError, KnobError
from dflash_core.events import Event, Piece, PrefillEvent, StepEvent, TextEvent, Whole
from dflash_core.knobs import RANDOM_SEED, Knobs
from dflash_core.memory import MemoryBreakdown
from dflash_core.turn_check import TurnCheck, check_created
from dflash_core.turn_stats import MAX_DEPTH, TurnReport

VERSION = 2
E = TypeVar("E", PrefillEvent, StepEvent, TextEvent)
READABLE = (1, VERSION)  # by `decode`
WHOLE = 4  # records that stay unpacked: the newest, and those read last
FREE_BYTES = 64 * 2**20
MAX_RATIO = 32  # turns pack to a half or a sixth; gzip makes a thousandth of zeros


class Loaded(msgspec.Struct, frozen=True, tag="loaded", tag_field="line"):
    """The models of the turns that follow; a trace begins with it, a store does not have it."""

    title: str
    context_length: Whole
    memory: MemoryBreakdown


class Start(msgspec.Struct, frozen=True, tag="turn", tag_field="line"):
    """A turn begins: its messages, models and knobs. `created` is ISO 8601 in UTC."""

    created: str
    target: str
    draft: str
    system: str
    prompt: str
    prompt_ids: tuple[Whole, ...]
    knobs: Knobs
    draft_block: Annotated[int, msgspec.Meta(ge=0, le=MAX_DEPTH)] = 0
    draft_kind: str = ""  # of the drafter, as the registry names it; "" in records of version 1
    sinks: Whole = 0  # tokens of the prompt that an attention window always shows


class _PieceLine(msgspec.Struct, Generic[E], frozen=True, omit_defaults=True):
    event: E
    at: float
    text: str = ""
    thinking: str = ""
    texts: dict[int, str] = {}


class Read(_PieceLine[PrefillEvent], frozen=True, tag="prefill", tag_field="line"):
    """The prompt has been read. `at`: seconds since the turn began; `texts`: ids that occur for the first time."""


class Step(_PieceLine[StepEvent], frozen=True, tag="step", tag_field="line"):
    """One step, as `Read`."""


class Received(_PieceLine[TextEvent], frozen=True, tag="text", tag_field="line"):
    """Text of another engine, as `Read`."""


class End(msgspec.Struct, frozen=True, tag="end", tag_field="line", omit_defaults=True):
    """A turn is over. `text` and `thinking`: text that was pending until then."""

    report: TurnReport | None = None
    text: str = ""
    thinking: str = ""


TurnLine = Start | Read | Step | Received | End
Line = Loaded | TurnLine
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Line)


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """All that is known about one turn. `report` is None where no token was drawn, or the turn has not `ended`."""

    start: Start
    pieces: tuple[Piece, ...] = ()
    report: TurnReport | None = None
    texts: Mapping[int, str] = field(default_factory=dict)
    rest: tuple[str, str] = ("", "")  # text and thinking that were pending until the end
    ended: bool = False

    @property
    def knobs(self) -> Knobs:
        """What the turn began with; each step has its own."""
        return self.start.knobs

    @property
    def asked(self) -> Knobs:
        """The knobs to ask again with, see `TurnReport.asked`."""
        return self.report.asked if self.report is not None else replace(self.knobs, seed=RANDOM_SEED)

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(piece.event for piece in self.pieces)

    @property
    def prefill(self) -> PrefillEvent | None:
        return next((event for event in self.events if isinstance(event, PrefillEvent)), None)

    @property
    def steps(self) -> tuple[StepEvent, ...]:
        return tuple(event for event in self.events if isinstance(event, StepEvent))

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces) + self.rest[0]

    @property
    def thinking(self) -> str:
        return "".join(piece.thinking for piece in self.pieces) + self.rest[1]

    def token_text(self, token: int) -> str:
        """A token on one line, as the tokenizer shows it."""
        return self.texts.get(token, f"<id {token}>")


def encode(line: Line) -> bytes:
    """One line of JSON, without its line end."""
    return _ENCODER.encode(line)


def decode(data: bytes) -> Line:
    """The opposite of `encode`. Raises FormatError: what is wrong, and in which field."""
    try:
        line: Line = _DECODER.decode(_current(data))
    except RecursionError:
        raise FormatError("not a line of a turn's record: it is nested too deeply") from None
    except (msgspec.MsgspecError, KnobError, ValueError) as error:
        raise FormatError(f"not a line of a turn's record, version {VERSION}: {in_words(error)}") from None
    return line


# Field names of version 1. The quotes and the colon make it a key: inside a string the quotes would be escaped.
_RENAMED = ((b'"wanted":', b'"bonus":'), (b'"ledger":', b'"memory":'), (b'"owners":', b'"components":'))


def _current(data: bytes) -> bytes:
    """A line with today's field names, whichever version wrote it."""
    for old, new in _RENAMED:
        data = data.replace(old, new)
    return upgraded(data)


def lines(record: TurnRecord) -> Iterator[TurnLine]:
    """The lines that `assemble` puts together again."""
    yield record.start
    texts = dict(record.texts)
    for piece in record.pieces:
        new = {token: texts.pop(token) for token in sorted(ids_of(piece.event).intersection(texts))}
        yield line_of(piece, new)
    if record.ended:
        yield End(record.report, *record.rest)


def line_of(piece: Piece, texts: dict[int, str]) -> Read | Step | Received:
    """The line of one piece; `texts` of the ids that no line before it had."""
    kind: type[Any] = {PrefillEvent: Read, StepEvent: Step, TextEvent: Received}[type(piece.event)]
    line: Read | Step | Received = kind(piece.event, piece.at, piece.text, piece.thinking, texts)
    return line


def ids_of(event: Event) -> set[int]:
    """Every token id that an event names."""
    ids = {*event.tokens}
    if isinstance(event, StepEvent):
        ids.update(event.tree.tokens, *event.drafts.tokens)
        if event.bonus is not None:
            ids.add(event.bonus)
    return ids


def assemble(lines: Iterable[TurnLine]) -> Iterator[TurnRecord]:
    """The turns in `lines`. A turn has not `ended` if another begins, or the lines stop, before its end.

    Raises FormatError at the first line that does not fit those before it, after the turn as far as it goes.
    """
    start: Start | None = None
    pieces, texts, check = list[Piece](), dict[int, str](), TurnCheck()
    for line in lines:
        try:
            if isinstance(line, Start):
                check_created(line.created)
                if start is not None:
                    yield TurnRecord(start, tuple(pieces), texts=texts)
                start, pieces, texts, check = line, [], {}, TurnCheck()
            elif start is None:
                raise FormatError("a step without its turn")
            elif isinstance(line, End):
                check.end(line.report)
                yield TurnRecord(start, tuple(pieces), line.report, texts, (line.text, line.thinking), ended=True)
                start = None
            else:
                check.piece(line.event, line.at)
                pieces.append(Piece(line.event, line.text, line.thinking, line.at))
                texts |= line.texts
        except FormatError:
            if start is not None:
                yield TurnRecord(start, tuple(pieces), texts=texts)
            raise
    if start is not None:
        yield TurnRecord(start, tuple(pieces), texts=texts)


def max_unpacked(packed: int) -> int:
    """The most bytes that `packed` bytes may unpack to: a few kilobytes must not become gigabytes, a long turn may."""
    return max(FREE_BYTES, MAX_RATIO * packed)


def pack(record: TurnRecord) -> bytes:
    """A record compressed for a store."""
    head = b"%d\n" % VERSION
    # The fastest level: a fifth of the default's time for a tenth more bytes, at the end of every turn.
    return head + zlib.compress(b"\n".join(map(encode, lines(record))), 1)


def unpack(data: bytes) -> TurnRecord:
    """The opposite of `pack`. Raises FormatError."""
    head, _, body = data.partition(b"\n")
    if head not in [b"%d" % version for version in READABLE]:
        raise FormatError(f"a turn's record of version {head[:20].decode(errors='replace')!r}, expected {VERSION}")
    unpacker, limit = zlib.decompressobj(), max_unpacked(len(body))
    try:
        text = unpacker.decompress(body, limit)
    except zlib.error as error:
        raise FormatError(f"a turn's record that does not unpack: {error}") from None
    if not unpacker.eof:
        raise FormatError(f"a turn's record that does not unpack: it is cut off, or longer than {limit:,} bytes")
    found = [line for line in map(decode, text.split(b"\n")) if not isinstance(line, Loaded)]
    records = list(assemble(found))
    if len(records) != 1:
        raise FormatError(f"a turn's record that holds {len(records)} turns, expected one")
    return records[0]


class Recorder:
    """Makes the record of a running turn, and passes each new line to the watchers, which must not raise."""

    def __init__(self, start: Start, token_text: Callable[[int], str]) -> None:
        self._start, self._token_text = start, token_text
        self._watchers: tuple[Callable[[Line], None], ...] = ()
        self._pieces: list[Piece] = []
        self._texts: dict[int, str] = {}

    @property
    def events(self) -> list[Event]:
        return [piece.event for piece in self._pieces]

    def begin(self, watchers: Iterable[Callable[[Line], None]]) -> None:
        self._watchers = tuple(watchers)
        self._pass_on(self._start)

    def add(self, piece: Piece) -> None:
        new = {token: self._token_text(token) for token in sorted(ids_of(piece.event).difference(self._texts))}
        self._texts |= new
        self._pieces.append(piece)
        self._pass_on(line_of(piece, new))

    def end(self, report: TurnReport | None, text: str = "", thinking: str = "") -> TurnRecord:
        """The turn is over: its whole record."""
        self._pass_on(End(report, text, thinking))
        return TurnRecord(self._start, tuple(self._pieces), report, self._texts, (text, thinking), ended=True)

    def _pass_on(self, line: Line) -> None:
        for watcher in self._watchers:
            watcher(line)


class Turns(Sequence[TurnRecord]):
    """Append on one thread, read on any. Packing and unpacking a record does not change it."""

    def __init__(self, records: Iterable[TurnRecord] = ()) -> None:
        self._packed: list[bytes | Callable[[], TurnRecord]] = []
        self._whole: OrderedDict[int, TurnRecord] = OrderedDict()
        for record in records:
            self.append(record)

    @classmethod
    def stored(cls, fetch: Iterable[Callable[[], TurnRecord]]) -> Turns:
        """Turns that are stored elsewhere, each loaded when it is read."""
        turns = cls()
        turns._packed += fetch
        return turns

    def append(self, record: TurnRecord) -> None:
        self._packed.append(pack(record))
        self._unpacked(len(self._packed) - 1, record)

    def packed(self, index: int) -> bytes:
        """A packed record, for storage elsewhere."""
        stored = self._packed[index]
        return stored if isinstance(stored, bytes) else pack(stored())

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, index: int) -> TurnRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TurnRecord]: ...
    def __getitem__(self, index: int | slice) -> TurnRecord | Sequence[TurnRecord]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        place = range(len(self._packed))[index]
        record = self._whole.get(place)
        if record is None:
            stored = self._packed[place]
            record = unpack(stored) if isinstance(stored, bytes) else stored()
        self._unpacked(place, record)
        return record

    def _unpacked(self, place: int, record: TurnRecord) -> None:
        self._whole[place] = record
        self._whole.move_to_end(place)
        while len(self._whole) > WHOLE:
            self._whole.popitem(last=False)
