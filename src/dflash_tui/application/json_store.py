"""Small JSON files that the program writes for itself. What is damaged is refused in a line, and counts as nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec

from dflash_core.damaged import in_words
from dflash_core.drafting import upgraded
from dflash_core.errors import DFlashError, FormatError, KnobError
from dflash_core.files import read_input, write_whole
from dflash_tui.application.log import LOG

MAX_BYTES = 16 << 20
T = TypeVar("T")
Fact = Literal["tour seen", "parameters unfolded", "inspector hidden", "drawer open"]


def parse(data: bytes | str, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode `data` with `decoder`. Raises FormatError with the problem and its field, also for too deep nesting.

    Parameters that earlier versions wrote are read."""
    try:
        return decoder.decode(upgraded(data.encode() if isinstance(data, str) else data))
    except RecursionError:
        raise FormatError("JSON that is nested too deeply") from None
    except (msgspec.MsgspecError, KnobError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise FormatError(in_words(error)) from None


class JsonFile(Generic[T]):
    """A value of the type `kind`. A file that cannot be read or written is logged and costs only what is in it."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self.path = path
        self._decoder = msgspec.json.Decoder(kind)

    def read(self) -> T | None:
        """The stored value; None if there is none that can be used."""
        try:
            return parse(read_input(self.path, MAX_BYTES), self._decoder)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, DFlashError) as error:
            LOG.warning("%s: %s; nothing of it is used", self.path, error)
            return None

    def write(self, value: T) -> bool:
        """Replace the stored value, all of it or nothing."""
        try:
            write_whole(self.path, msgspec.json.encode(value))
        except (OSError, UnicodeEncodeError) as error:
            LOG.warning("%s cannot be written: %s", self.path, error)
            return False
        return True


class Remembered:
    """Small facts for the next start: the tour was seen, the inspector is hidden."""

    def __init__(self, folder: Path) -> None:
        self._file = JsonFile(folder / "remembered.json", set[str])
        self._facts = self._file.read() or set()

    def __contains__(self, fact: Fact) -> bool:
        return fact in self._facts

    def put(self, fact: Fact, value: bool) -> None:
        if value != (fact in self._facts):
            self._facts ^= {fact}
            self._file.write(self._facts)
