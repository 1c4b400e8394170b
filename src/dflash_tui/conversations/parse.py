"""JSON that others may have written or a crash may have torn, read into one type or refused in one line."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from dflash_core.errors import FormatError, KnobError

T = TypeVar("T")


def parse(data: bytes | str, decoder: msgspec.json.Decoder[T]) -> T:
    """What `decoder` makes of `data`. Raises FormatError: what is wrong and in which field, or nested too deep."""
    try:
        return decoder.decode(data)
    except RecursionError:
        raise FormatError("JSON that is nested too deep") from None
    except (msgspec.MsgspecError, KnobError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise FormatError(str(error)) from None
