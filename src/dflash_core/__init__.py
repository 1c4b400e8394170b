"""The decoder: GGUF targets, DFlash drafters and DDTree verification, without any user interface.

Importing this package is cheap: torch is imported when a model is first used. docs/python-api.md has examples.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs

if TYPE_CHECKING:
    from dflash_core.conversation import Conversation
    from dflash_core.engine import Engine, load_pair
    from dflash_core.loading import load_draft, load_target

__all__ = ["Conversation", "DFlashError", "Engine", "Knobs", "load_draft", "load_pair", "load_target"]

_LAZY = {
    "Conversation": "conversation", "Engine": "engine", "load_draft": "loading", "load_pair": "engine",
    "load_target": "loading",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
