"""Types of arguments, for argparse: each reads one text, or says what was expected."""

from __future__ import annotations

import argparse
from pathlib import Path

from dflash_core.cache_types import checked
from dflash_core.errors import KnobError
from dflash_core.knobs import CONTEXT
from dflash_core.memory import checked_experts, parse_bytes


def file_path(text: str) -> Path:
    """A path as typed."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # "~name" of a user that does not exist
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def memory_size(text: str) -> int:
    """Bytes, as 24GiB."""
    try:
        return parse_bytes(text)
    except KnobError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(text: str) -> int:
    """A count of one or more."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number from 1")
    return count


def port(text: str) -> int:
    """A port to listen on."""
    port = int(text) if text.isdecimal() and len(text) <= 5 else -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text}: expected a port from 0 to 65535; 0 takes a free one")
    return port


def context(text: str) -> int:
    """Positions of a context."""
    try:
        return int(CONTEXT.parse(text))
    except KnobError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def expert_place(text: str) -> str:
    """Where experts are."""
    try:
        return checked_experts(text)
    except KnobError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def cache_type(text: str) -> str:
    """A type of the cache of keys and values, or two."""
    try:
        return checked(text)
    except KnobError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
