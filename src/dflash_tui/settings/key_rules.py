"""How the app checks the keys of a settings file."""

from __future__ import annotations

from dflash_tui.application.settings.config import KeyRules


def key_rules() -> KeyRules:
    from dflash_tui.settings import keys  # imports textual

    return keys
