"""The lab's slash commands that take an argument; each opens its screen and starts at once."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_core.errors import KnobError
from dflash_core.files import check_regular
from dflash_tui.chat.parts import ChatParts
from dflash_tui.slash.command import Slash, SlashError, knob_words

if TYPE_CHECKING:
    from dflash_tui.application.session import SessionLike


async def _sweep(host: ChatParts, rest: str) -> None:
    from dflash_tui.application.lab_request import SWEEP, parse_sweep

    _ready(host)
    try:
        parse_sweep(rest or SWEEP)
    except KnobError as error:
        raise SlashError(f"{error}. Write /sweep {SWEEP}") from None
    host.open_page("sweep", rest or SWEEP)


async def _ab(host: ChatParts, rest: str) -> None:
    from dflash_tui.application.lab_request import AB, parse_ab

    session = _ready(host)
    try:
        parse_ab(rest, host.state.knobs, session.limits)
    except KnobError as error:
        raise SlashError(f"{error}. Write /ab {AB}") from None
    host.open_page("ab", rest or AB)


def _ready(host: ChatParts) -> SessionLike:
    """The session, if an experiment can begin."""
    if host.state.session is None:
        raise SlashError(host.state.no_pair)
    if host.state.busy:
        raise SlashError("an answer is being written: Esc stops it")
    return host.state.session


async def _tune(host: ChatParts, rest: str) -> None:
    _ready(host)
    if rest:
        _check_prompts(Path(rest).expanduser())
    host.open_page("tune", f"prompts={shlex.quote(rest)}" if rest else "")


def _check_prompts(path: Path) -> None:
    try:
        check_regular(path)
        found = path.exists()
    except OSError as error:
        raise SlashError(f"{path}: {error.strerror}; check the path") from None
    if not found:
        raise SlashError(f"{path}: no such file; /tune alone measures on the conversation's prompts")


LAB_SLASH = (
    Slash("tune", "/tune [FILE]", "find the fastest setting on your prompts, or on a file of them", _tune),
    Slash("sweep", "/sweep NAME VALUES", "measure values of one or two: budget 4..63", _sweep, knob_words),
    Slash("ab", "/ab A | B", "A against B, in turn; without A and B: tree against chain", _ab, knob_words),
)
