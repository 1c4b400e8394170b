"""Types of arguments, for argparse: each reads one text, or says what was expected."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dflash_core.cache_types import checked
from dflash_core.errors import KnobError
from dflash_core.knobs import CONTEXT
from dflash_core.memory import checked_experts, parse_bytes

T = TypeVar("T")


def _argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """`read`, whose refusal is argparse's."""

    def of(text: str) -> T:
        try:
            return read(text)
        except KnobError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        except RuntimeError as error:  # "~name" of a user that does not exist
            raise argparse.ArgumentTypeError(f"{text}: {error}") from None

    return of


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise KnobError(f"{text}: expected a whole number from 1")
    return int(text)


def _path(text: str) -> Path:
    if not text:  # a variable of the shell that is not set; Path("") is the current folder
        raise KnobError("found no name, expected a file or a folder")
    return Path(text).expanduser()


def _port(text: str) -> int:
    port = int(text) if text.isdecimal() and len(text) <= 5 else -1
    if not 0 <= port <= 65535:
        raise KnobError(f"{text}: expected a port from 0 to 65535; 0 takes a free one")
    return port


file_path = _argument(_path)
memory_size = _argument(parse_bytes)  # bytes, as 24GiB
positive = _argument(_positive)
port = _argument(_port)
context = _argument(lambda text: int(CONTEXT.parse(text)))
expert_place = _argument(checked_experts)
cache_type = _argument(checked)
