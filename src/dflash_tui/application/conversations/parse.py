"""JSON from other programs or torn by a crash: decoded into one type, or refused with a one-line error."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from dflash_core.drafting import upgraded
from dflash_core.errors import FormatError, KnobError

T = TypeVar("T")


def parse(data: bytes | str, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode `data` with `decoder`. Raises FormatError with the problem and its field, also for too deep nesting.

    Parameters that earlier versions wrote are read."""
    try:
        return decoder.decode(upgraded(data.encode() if isinstance(data, str) else data))
    except RecursionError:
        raise FormatError("JSON that is nested too deeply") from None
    except (msgspec.MsgspecError, KnobError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise FormatError(str(error)) from None
