"""What a server tells an attached app of its pair: one object of JSON."""

from __future__ import annotations

import msgspec

from dflash_core.damaged import in_words
from dflash_core.errors import FormatError, KnobError
from dflash_core.knobs import Knobs
from dflash_core.limits import Limits
from dflash_core.memory import MemoryBreakdown
from dflash_core.record import VERSION


class SessionState(msgspec.Struct, frozen=True):
    """`lines`: the version of the lines of records that it sends. `model`: its name in requests."""

    lines: int
    program: str
    model: str
    title: str
    context_length: int
    memory: MemoryBreakdown
    limits: Limits
    knobs: Knobs
    notes: tuple[str, ...] = ()


class _Version(msgspec.Struct):
    lines: int


def decode_state(data: bytes) -> SessionState:
    """The object that a server sent. Raises FormatError: not such an object, or of another version."""
    try:
        found = msgspec.json.decode(data, type=_Version).lines
        if found != VERSION:
            raise FormatError(
                f"the server sends records of version {found}, this program reads {VERSION}: use one release on both"
            )
        return msgspec.json.decode(data, type=SessionState)
    except (msgspec.MsgspecError, KnobError, ValueError) as error:
        raise FormatError(f"not the state of a session of dflash-tui: {in_words(error)}") from None
