"""What a user can do after a refusal of the decoder: options on the command line, keys in the app.

The decoder names neither. An error carries a code, and the error for a load that does not fit carries the figures.
"""

from __future__ import annotations

from collections.abc import Mapping

from dflash_core.clean import one_line
from dflash_core.errors import MESSAGE, Code, DFlashError, OutOfMemoryError
from dflash_core.fits import RanOutError
from dflash_tui.application import fits

ON_COMMAND_LINE: Mapping[Code, str] = {
    Code.NO_DRAFTER: "--draft FILE, mtp or ngram adds one",
    Code.NO_DEVICE: "--device cpu",
    Code.NOT_ON_THIS_DEVICE: "--device cpu",
    Code.DEVICE_FULL: "--context N takes less",
    Code.NEEDS_A_CARD: "--device cuda",
    Code.UNKNOWN_ARCHITECTURE: "dflash-tui models lists what runs",
}
IN_APP: Mapping[Code, str] = {
    Code.TURN_NOT_IN_SESSION: "Ctrl+R",
    Code.NO_DRAFTER: "start it with --draft FILE, mtp or ngram",
    Code.NO_DEVICE: "start it with --device cpu",
    Code.NOT_ON_THIS_DEVICE: "start it with --device cpu",
    Code.DEVICE_FULL: "the context is the last row of the parameters, F2",
    Code.NEEDS_A_CARD: "start it with --device cuda",
    Code.UNKNOWN_ARCHITECTURE: "dflash-tui models lists what runs",
}


def on_command_line(error: DFlashError) -> str:
    """The refusal as one line, with the options that help."""
    return _with(error, [*_options(error), *_hint(error, ON_COMMAND_LINE)])


def in_app(error: DFlashError) -> str:
    """The refusal as one line, with the keys and options that help."""
    options = _options(error)
    parts = [f"start it with {' or '.join(options)}"] if options else []
    return _with(error, [*parts, *_hint(error, IN_APP)])


def _hint(error: DFlashError, table: Mapping[Code, str]) -> list[str]:
    return [table[error.code]] if error.code is not None and error.code in table else []


def _options(error: DFlashError) -> list[str]:
    if isinstance(error, RanOutError):
        return [fits.options(one, error.plan.setup) for one in error.plan.remedies]
    if not isinstance(error, OutOfMemoryError) or (short := error.shortage) is None:
        return []
    options = [f"--context {short.context}"] if short.context else []
    options += ["--draft-type q8_0"] if short.pack_drafter else []
    return [*options, *(["--device cpu"] if short.on_card else [])]


def _with(error: DFlashError, hints: list[str]) -> str:
    hint = f" ({', '.join(hints)})" if hints else ""
    return one_line(str(error), MESSAGE - len(hint)) + hint
