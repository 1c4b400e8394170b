"""Every refusal the project makes, as one line: what was found, what was expected, what to do."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dflash_core.clean import LINE, one_line

MESSAGE = LINE - 40  # characters; leaves space on the line for a prefix


class Code(enum.StrEnum):
    """Identifies errors for which a front end has a remedy of its own: a key to press, an option to give."""

    TURN_NOT_IN_SESSION = "turn not in session"
    NO_DRAFTER = "no drafter"
    NO_DEVICE = "no device"
    NOT_ON_THIS_DEVICE = "not on this device"
    DOES_NOT_FIT = "does not fit"
    DEVICE_FULL = "device full"
    NEEDS_A_CARD = "needs a card"
    UNKNOWN_ARCHITECTURE = "unknown architecture"


@dataclass(frozen=True, slots=True)
class Shortage:
    """Facts of a load that does not fit. `context`: positions that would, 0 where none do; `pack_drafter`: the
    drafter's float matrices could be packed tighter; `on_card`: the load may still fit into main memory."""

    needed: int
    free: int
    context: int = 0
    pack_drafter: bool = False
    on_card: bool = False


class DFlashError(Exception):
    """Base of all refusals. `str(error)` is a line of at most `MESSAGE` characters that can be shown to a user as it
    is, even where parts of it come from a file. It names no key and no option of a front end: these add their own by
    `code`, which is None where none apply."""

    def __init__(self, message: str, *, code: Code | None = None) -> None:
        super().__init__(one_line(message, MESSAGE))
        self.code = code


class FormatError(DFlashError):
    """A file is not of the expected format: wrong magic, truncated, forged counts, missing keys or tensors."""


class InputError(FormatError):
    """A file that was named as input is not a regular one, or has more bytes than are read. `what`: the message without
    the file's name."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name} {what}")
        self.what = what


class UnsupportedError(DFlashError):
    """A well-formed file or platform that this program cannot run: architecture, quantisation type, device."""


class MismatchError(DFlashError):
    """A drafter that was made for another target."""


class TemplateError(DFlashError):
    """The chat template of a file does not compile, or raises while rendering."""


class LateTemplateError(TemplateError):
    """A chat template that was stopped at its time limit."""


class KnobError(DFlashError):
    """A parameter that does not exist, does not parse, or is out of range."""


class GrammarError(DFlashError):
    """A schema or grammar that does not compile, needs what it may not take, or that an answer cannot follow on."""


class CompilerBusyError(GrammarError):
    """Too many grammars are being compiled already; the same one may compile later."""


class ContextError(DFlashError):
    """A prompt that does not fit the context. `needed`: tokens of the prompt, or a lower bound; `capacity`: positions
    of the context; both are 0 for any other error."""

    def __init__(self, message: str, *, code: Code | None = None, needed: int = 0, capacity: int = 0) -> None:
        super().__init__(message, code=code)
        self.needed, self.capacity = needed, capacity


class OutOfMemoryError(DFlashError):
    """A load does not fit the machine; the message names the largest components, `shortage` has the figures."""

    def __init__(self, message: str, *, code: Code | None = None, shortage: Shortage | None = None) -> None:
        super().__init__(message, code=code)
        self.shortage = shortage


class NumericsError(DFlashError):
    """A pass produced numbers that are not finite: the weights are damaged, or a kernel is wrong."""


class DeviceError(DFlashError):
    """No usable device: no driver, too old a driver, a CPU-only torch beside a GPU, a zero vGPU limit. `code`:
    NO_DEVICE where the CPU can do the work instead; none for what measures a card."""


@contextmanager
def cpu_instead() -> Iterator[None]:
    """Inside, the CPU can do the work: errors of a card say so."""
    try:
        yield
    except DeviceError as error:
        if error.code is not None:
            raise
        raise DeviceError(f"{error}, or run it on the CPU", code=Code.NO_DEVICE) from None


class KernelError(DFlashError):
    """A CUDA call or kernel failed in mid-work; the message names it. `reload`: nothing on the device can be used."""

    def __init__(self, message: str, *, reload: bool = False) -> None:
        super().__init__(message)
        self.reload = reload


def cpu_only(message: str) -> UnsupportedError:
    """The error for what a card does not run and the CPU does: found, and expected."""
    return UnsupportedError(f"{message}; run it on the CPU", code=Code.NOT_ON_THIS_DEVICE)


def not_finite(model: str, position: int) -> NumericsError:
    """The message about a model, "target" or "drafter", whose logits are NaN or infinite."""
    files = "its file" if model == "target" else "its file, or the target's, whose head it borrows,"
    return NumericsError(
        f"the {model} produced numbers that are not finite at position {position}, expected logits; "
        f"{files} is damaged: get it again, or compare it with another conversion"
    )
