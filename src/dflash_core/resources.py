"""Where the project's data files are: inside the package in a wheel, at the top of the checkout otherwise."""

from __future__ import annotations

from pathlib import Path

from dflash_core.errors import DFlashError

PACKAGES = Path(__file__).resolve().parent.parent
CHECKOUT = PACKAGES.parent


def kernels_dir() -> Path:
    """The folder of CUDA sources. Raises DFlashError where an installation lacks it."""
    return _find(PACKAGES / "dflash_core" / "_kernels", CHECKOUT / "kernels")


def themes_dir() -> Path:
    """The folder of themes. Raises DFlashError where an installation lacks it."""
    return _find(PACKAGES / "dflash_tui" / "_themes", CHECKOUT / "themes")


def _find(packaged: Path, checkout: Path) -> Path:
    """Prefers the packaged folder: a wheel's parent folders do not belong to this project."""
    for folder in (packaged, checkout):
        if folder.is_dir():
            return folder
    raise DFlashError(f"no {checkout.name} at {packaged} or {checkout}; the installation is incomplete: reinstall it")
