"""How the app checks the keys of a settings file. Textual is imported only where a file names keys."""

from __future__ import annotations

from types import ModuleType

from dflash_tui.application.settings.config import KeyRules


def _keys() -> ModuleType:
    from dflash_tui.settings import keys

    return keys


KEY_RULES = KeyRules(lambda id, keys: _keys().checked(id, keys), lambda keys: _keys().clashing(keys))
