"""The lab's slash commands that take an argument; each opens its screen and starts at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_core.errors import KnobError
from dflash_tui.slash.command import Slash, SlashError, knob_words

if TYPE_CHECKING:
    from dflash_tui.screens.chat import ChatScreen
    from dflash_tui.session import SessionLike


async def _sweep(host: ChatScreen, rest: str) -> None:
    from dflash_tui.screens.sweep import SweepScreen
    from dflash_tui.text.lab_request import SWEEP, parse_sweep

    _ready(host)
    try:
        parse_sweep(rest or SWEEP)
    except KnobError as error:
        raise SlashError(f"{error}. Write /sweep {SWEEP}") from None
    host.app.push_screen(SweepScreen(host, rest or SWEEP, at_once=True))


async def _ab(host: ChatScreen, rest: str) -> None:
    from dflash_tui.screens.ab import ABScreen
    from dflash_tui.text.lab_request import AB, parse_ab

    session = _ready(host)
    try:
        parse_ab(rest, host.knobs, session.limits)
    except KnobError as error:
        raise SlashError(f"{error}. Write /ab {AB}") from None
    host.app.push_screen(ABScreen(host, rest or AB, at_once=True))


def _ready(host: ChatScreen) -> SessionLike:
    """The session, where an experiment can begin."""
    if host.session is None:
        raise SlashError("no model is loaded")
    if host.flow.busy:
        raise SlashError("an answer is being written: Esc stops it")
    return host.session


LAB_SLASH = (
    Slash("sweep", "/sweep NAME VALUES", "measure values of one or two: budget 4..63", _sweep, knob_words),
    Slash("ab", "/ab A | B", "A against B, in turn; alone: tree against chain", _ab, knob_words),
)
