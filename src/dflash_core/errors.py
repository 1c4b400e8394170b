"""Every refusal the project makes, as one line: what was found, what was expected, what to do."""

from __future__ import annotations

from dflash_core.clean import LINE, one_line

MESSAGE = LINE - 40  # characters; what is put in front of a message has room in its line


class DFlashError(Exception):
    """Base of all refusals. `str(error)` is a single line of at most `MESSAGE` characters that can be shown to a user
    as it is, whatever a file has put into it."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, MESSAGE))


class FormatError(DFlashError):
    """A file is not what its name promises: wrong magic, truncated, forged counts, missing keys or tensors."""


class InputError(FormatError):
    """A file that was named as input is not a regular one, or holds more than is read of it.

    `what`: the message without the file's name.
    """

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name} {what}")
        self.what = what


class UnsupportedError(DFlashError):
    """A well-formed file or platform that this program cannot run: architecture, quantisation type, device."""


class MismatchError(DFlashError):
    """A drafter that was made for another target."""


class TemplateError(DFlashError):
    """The chat template of a file does not compile, or raises while rendering."""


class KnobError(DFlashError):
    """A parameter that does not exist, does not parse, or lies outside its range."""


class ContextError(DFlashError):
    """A prompt that does not fit the context."""


class OutOfMemoryError(DFlashError):
    """The ledger does not fit the machine; the message names the largest owners and what would fit."""


class NumericsError(DFlashError):
    """A pass produced numbers that are not finite: the weights are damaged, or a kernel is wrong."""


class DeviceError(DFlashError):
    """No usable device: no driver, too old a driver, a CPU-only torch beside a GPU, a zero vGPU limit."""


class KernelError(DFlashError):
    """A CUDA call or kernel failed in mid-work; the message names it. `reload`: nothing on the device can be used."""

    def __init__(self, message: str, *, reload: bool = False) -> None:
        super().__init__(message)
        self.reload = reload
