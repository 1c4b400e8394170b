"""What an entry of a user's file may be: of the settings, and of presets. msgspec checks types and bounds."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from dflash_core.cache_types import checked
from dflash_core.drafters.registry import resolved
from dflash_core.errors import DFlashError, KnobError
from dflash_core.memory import parse_bytes

SERVERS = "mcp_servers"
"""The table of tool servers."""
MAX_COUNT = 1000
_SWITCHES = {"on": "true", "off": "false"}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value may be: `type` for msgspec, `expected` for people.

    `read` makes the program's value; relative paths start from the folder that it gets. It raises ValueError for a
    wrong value, or KnobError with a reason of its own. `split` prepares a text from the environment for msgspec.
    """

    type: Any
    expected: str
    read: Callable[[Any, Path], Any] = lambda value, folder: value
    split: Callable[[str], Any] = lambda text: text

    def check(self, value: Any, folder: Path, *, text: bool = False) -> Any:
        """The program's value of an entry; `text`: of a text from the environment. Raises DFlashError."""
        try:
            return self.read(msgspec.convert(self.split(value) if text else value, self.type, strict=not text), folder)
        except KnobError as error:
            raise DFlashError(str(error)) from None
        except RuntimeError as error:  # "~name" of a user that does not exist
            raise DFlashError(f"{value!r}: {error}") from None
        except (msgspec.ValidationError, ValueError):
            raise DFlashError(f"found {value!r}, expected {self.expected}") from None


def choice(*names: str) -> Kind:

    def read(value: str, folder: Path) -> str:
        if value not in names:
            raise ValueError
        return value

    return Kind(str, ", ".join(names), read)


def _size(value: str | int, folder: Path) -> str:
    text = str(value).strip()
    if text.lower() in ("auto", "0"):
        return text.lower()
    try:
        parse_bytes(value if isinstance(value, str) else "")
    except KnobError:
        raise ValueError from None
    return text


WORDS = Kind(str, "text")
TEXT = Kind(Annotated[str, msgspec.Meta(min_length=1)], "text")
SWITCH = Kind(bool, "true or false", split=lambda text: _SWITCHES.get(text.lower(), text))
PATH = Kind(str, "a path", lambda value, folder: folder / Path(value).expanduser() if value else None)
DRAFTER = Kind(str, "a path, or text", lambda value, folder: resolved(value, folder) if value else None)
FOLDERS = Kind(
    list[Annotated[str, msgspec.Meta(min_length=1)]], "a list of folders",
    lambda value, folder: tuple(folder / Path(one).expanduser() for one in value),
    lambda text: [part for part in text.split(os.pathsep) if part],
)  # fmt: skip
CACHE = Kind(str, "text", lambda value, folder: checked(value))
SECONDS = Kind(Annotated[float, msgspec.Meta(ge=0, lt=1e9)], "seconds, 0 or more")
COUNT = Kind(Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)], f"a whole number up to {MAX_COUNT}")
SIZE = Kind(str | int, "auto, 0, or an amount such as 4GiB", _size)
KEYS = Kind(str, 'keys by commas, such as "ctrl+r,f10"')
