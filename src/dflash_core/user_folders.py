"""Where this program stores the user's files, by the platform's conventions. No folder is created here."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import platformdirs

APP = "dflash-tui"
Kind = Literal["cache", "config", "data", "state"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def user_folder(kind: Kind) -> Path:
    """`cache`: kernels and synthetic models; `config`: settings, themes, presets; `data`: conversations and prompts;
    `state`: the log. The XDG variables move them."""
    return Path(getattr(platformdirs, f"user_{kind}_dir")(APP, appauthor=False))
