"""The turns of a session, oldest first. Candidate trees are large, so all but the newest turns are stored packed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import overload

from dflash_core.record import TurnRecord, pack, unpack

WHOLE = 4  # records that stay unpacked: the newest, and those read last


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
        """A turn has ended."""
        self._packed.append(pack(record))
        self._keep(len(self._packed) - 1, record)

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
        self._keep(place, record)
        return record

    def _keep(self, place: int, record: TurnRecord) -> None:
        self._whole[place] = record
        self._whole.move_to_end(place)
        while len(self._whole) > WHOLE:
            self._whole.popitem(last=False)
